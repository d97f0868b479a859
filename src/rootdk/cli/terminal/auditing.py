"""`rootdk audit`: read the weights, run the model if asked, or show the demonstration, with a bar that moves."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rootdk.audit.finding import RANK
from rootdk.audit.thresholds import Phase
from rootdk.untrusted import shown_text

Progress = Callable[[str, float], None]


@dataclass(frozen=True, slots=True)
class Order:
    """What was asked for; without a path, the demonstration."""

    path: Path | None
    text: str | None
    tokens: int | None
    keys: int
    phase: Phase
    seed: int


def audit_of(order: Order, progress: Progress) -> dict[str, Any]:
    """The audit as the dictionary that is its JSON."""
    if order.path is None:
        return _demonstration(order, progress)
    from rootdk.audit import read_checkpoint

    watched = order.text is not None or order.tokens is not None
    share = 0.3 if watched else 1.0
    found = read_checkpoint(
        order.path, keys=order.keys, phase=order.phase, progress=lambda name, done: progress(name, share * done)
    ).to_dict()
    if not watched:
        return found
    from rootdk.audit.running import run_checkpoint

    report = run_checkpoint(
        order.path, text=order.text, tokens=order.tokens, seed=order.seed, phase=order.phase,
        progress=lambda name, done: progress(name, share + (1 - share) * done),
    )  # fmt: skip
    return joined(found, report.to_dict())


def _demonstration(order: Order, progress: Progress) -> dict[str, Any]:
    from rootdk.audit.demonstration import RULES, demonstrate

    found: dict[str, Any] = demonstrate(seed=order.seed, progress=progress).to_dict()
    name = f"demonstration, one small untrained model under the scales {', '.join(RULES)}"
    return found | {"model": {"model_type": name}, "unknown": []}


def joined(weights: Mapping[str, Any], run: Mapping[str, Any]) -> dict[str, Any]:
    """One audit of two: a layer that both know by the same path has the numbers of both, no finding comes twice.

    The worst findings come first.

    >>> one = {"verdict": "healthy", "layers": [{"name": "a", "heads": [{"x": 1.0}]}], "findings": []}
    >>> other = {"verdict": "warning", "layers": [{"name": "a", "heads": [{"y": 2.0}]}], "findings": []}
    >>> both = joined(one, other)
    >>> both["verdict"], both["layers"]
    ('warning', [{'name': 'a', 'heads': [{'x': 1.0, 'y': 2.0}]}])
    """
    order = ("healthy", "warning", "critical")
    measured = {layer["name"]: layer for layer in run["layers"]}
    layers = []
    for layer in weights["layers"]:
        other = measured.pop(layer["name"], None)
        if other is None or len(other["heads"]) != len(layer["heads"]):
            layers += [layer] if other is None else [layer, other]
            continue
        heads = [{**one, **two} for one, two in zip(layer["heads"], other["heads"], strict=True)]
        layers.append({**layer, **other, "heads": heads})
    told = {(one["layer"], one["head"], one["metric"]) for one in run["findings"]}
    rest = [one for one in weights["findings"] if (one["layer"], one["head"], one["metric"]) not in told]
    return {
        **weights,
        "verdict": max(weights["verdict"], run["verdict"], key=order.index),
        "layers": [*layers, *measured.values()],
        "findings": sorted([*run["findings"], *rest], key=lambda one: -RANK[one["severity"]]),
        **{name: run[name] for name in ("phase", "unread") if name in run},
    }


@contextmanager
def bar() -> Iterator[Progress]:
    """On standard error and only on a terminal; the layer that is read is written beside it."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeElapsedColumn(),
        TextColumn("{task.description}", markup=False),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as shown:
        task = shown.add_task("", total=1.0)
        yield lambda name, share: shown.update(task, completed=share, description=shown_text(name, 60))
