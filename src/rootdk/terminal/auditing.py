"""`rootdk audit`: read the weights, run the model if asked, or show the demonstration, with a bar that moves."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rootdk.audit.result import Phase
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
        from rootdk.audit.demonstration import demonstrate

        return demonstrate(seed=order.seed, progress=progress).to_dict()
    from rootdk.audit import read_checkpoint

    watched = order.text is not None or order.tokens is not None
    share = 0.3 if watched else 1.0
    weights = read_checkpoint(
        order.path, keys=order.keys, phase=order.phase, progress=lambda name, done: progress(name, share * done)
    )
    if not watched:
        return weights.to_dict()
    from rootdk.audit.running import run_checkpoint

    run = run_checkpoint(
        order.path, text=order.text, tokens=order.tokens, seed=order.seed, phase=order.phase,
        progress=lambda name, done: progress(name, share + (1 - share) * done),
    )  # fmt: skip
    return weights.merge(run).to_dict()


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
