"""Which runs a study makes: those of a size, or those of a JSON file. A run that two questions ask for is made once.

    rules     rule x d_k x learning rate: does learning slow without the scale, over which d_k does each rule work
    additive  against dot products as d_k grows, on the task whose sequences are short enough for it
    matched   1/d_k with the learning rate and the start that make it 1/sqrt(d_k), and with the learning rate alone
    ladder    learning rates up to where training breaks, with the entropy along the way

Every run of a dot product on text ends in a transplant: the trained model with queries and keys of other sizes.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from rootdk.errors import ArgumentError, RootdkError
from rootdk.untrusted import read_json

from .run import ADDITIVE, TASKS, RunSpec

SIZES = ("quick", "default", "full")
RULES = ("none", "sqrt", "dk")
KAPPAS = (1e-3, 1e-2, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 1e3, 1e4)
MATCHED_D_K = 256  # its fourth root is a whole number, and a power of two changes no digit


@dataclass(frozen=True, slots=True)
class _Size:
    """How much of everything."""

    seeds: dict[str, int]
    steps: dict[str, int]
    d_k: dict[str, tuple[int, ...]]
    rates: dict[str, tuple[float, ...]]
    additive: tuple[int, ...]
    sgd: tuple[float, ...]
    ladder: tuple[float, ...]


_SIZES = {
    "quick": _Size(
        seeds=dict.fromkeys(TASKS, 3),
        steps={"recall": 200, "text": 150, "digits": 100},
        d_k={"recall": (16, 256), "text": (64,), "digits": (16, 128)},
        rates={"recall": (3e-3,), "text": (3e-3,), "digits": (1e-3,)},
        additive=(16, 128),
        sgd=(),
        ladder=(),
    ),
    "default": _Size(
        # Few images are held out, so that chance speaks louder there.
        seeds={"recall": 3, "text": 3, "digits": 5},
        steps={"recall": 300, "text": 400, "digits": 200},
        d_k={"recall": (16, 64, 256, 512), "text": (32, 256), "digits": (16, 64, 256, 512)},
        rates={"recall": (1e-3, 3e-3, 1e-2, 3e-2), "text": (1e-3, 3e-3, 1e-2, 3e-2), "digits": (3e-4, 1e-3, 3e-3)},
        additive=(16, 64, 256, 512),
        sgd=(0.01, 0.03, 0.1),
        ladder=(1e-3, 3e-3, 1e-2, 3e-2, 0.1),
    ),
    "full": _Size(
        seeds=dict.fromkeys(TASKS, 6),
        steps={"recall": 1000, "text": 2000, "digits": 400},
        d_k=dict.fromkeys(TASKS, (8, 16, 32, 64, 128, 256, 512)),
        rates=dict.fromkeys(TASKS, (0.0003, 0.001, 0.003, 0.01, 0.03)),
        additive=(16, 32, 64, 128, 256, 512),
        sgd=(0.003, 0.01, 0.03, 0.1),
        ladder=(3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3),
    ),
}


def plan(size: str = "default", tasks: Sequence[str] = TASKS, rules: Sequence[str] = ()) -> tuple[RunSpec, ...]:
    """The specs of one size; with rules those alone, at every d_k and learning rate of the size.

    >>> len(plan("quick")), {spec.seed for spec in plan("quick")}
    (51, {0, 1, 2})
    >>> len(plan("quick", ["text"], ["sqrt", "mup(64)"]))
    6
    """
    if size not in SIZES:
        raise ArgumentError(f"size: must be one of {', '.join(map(repr, SIZES))}, got {size!r}")
    for task in tasks:
        if task not in TASKS:
            raise ArgumentError(f"tasks: must be among {', '.join(map(repr, TASKS))}, got {task!r}")
    sizes = _SIZES[size]
    return tuple(dict.fromkeys(spec for task in tasks for spec in _of(sizes, task, rules)))


def _of(sizes: _Size, task: str, rules: Sequence[str]) -> Iterator[RunSpec]:
    for seed in range(sizes.seeds[task]):
        common: dict[str, Any] = {"task": task, "steps": sizes.steps[task], "seed": seed}
        if task == "text":
            common["transplant"] = KAPPAS
        for rule, d_k, rate in product(rules or RULES, sizes.d_k[task], sizes.rates[task]):
            yield RunSpec(rule=rule, d_k=d_k, learning_rate=rate, **common)
        if rules:
            continue
        if task == "text":
            for rate in sizes.ladder:
                yield RunSpec(d_k=64, learning_rate=rate, **common)
        if task == "digits":
            # The lowest rate is left out: additive attention takes ten times as long, and is best at higher ones.
            for d_k, rate in product(sizes.additive, sizes.rates[task][-2:]):
                yield RunSpec(rule=ADDITIVE, d_k=d_k, learning_rate=rate, **common)
            for rule, d_k, rate in product(RULES, (sizes.d_k[task][0], MATCHED_D_K), sizes.sgd):
                yield RunSpec(rule=rule, d_k=d_k, optimizer="sgd", learning_rate=rate, **common)
            # z = scale q.k: 1/d_k with weights larger by d_k^(1/4) is 1/sqrt(d_k), and SGD's steps, which are
            # smaller by d_k^(1/4), must then be made larger by its square to move the same distance.
            yield from _matched("sgd", sizes.sgd, MATCHED_D_K**0.5, common)
        if task == "recall" and sizes.sgd:
            # Adam's steps do not depend on the size of the gradient.
            yield from _matched("adam", sizes.rates[task], MATCHED_D_K**0.25, common)


def _matched(optimizer: str, rates: Sequence[float], qk_rate: float, common: dict[str, Any]) -> Iterator[RunSpec]:
    for rate, qk_size in product(rates, (1.0, MATCHED_D_K**0.25)):
        yield RunSpec(
            rule="dk",
            d_k=MATCHED_D_K,
            optimizer=optimizer,
            learning_rate=rate,
            qk_rate=qk_rate,
            qk_size=qk_size,
            **common,
        )


def read_specs(path: Path) -> tuple[RunSpec, ...]:
    """The runs that the file asks for. An error names the entry and the field.

    What Results wrote can be given too: of each of its runs the spec is taken.
    """
    try:
        data = read_json(path)
    except OSError as error:
        raise ArgumentError(f"spec: cannot read {path}: {error.strerror or error}") from error
    except ValueError as error:
        raise ArgumentError(f"spec: {path} is not JSON: {error}") from error
    runs: Any = data.get("runs") if isinstance(data, dict) else data
    if not isinstance(runs, list) or not runs:
        kind = (
            "an empty list" if runs == [] else f"{type(data).__name__} without it" if runs is None else repr(runs)[:40]
        )
        raise ArgumentError(f'spec: {path} must hold a list of runs, alone or under "runs", got {kind}')
    return tuple(_spec(path, number, entry) for number, entry in enumerate(runs))


def _spec(path: Path, number: int, entry: Any) -> RunSpec:
    recorded = isinstance(entry, dict) and isinstance(entry.get("spec"), dict)
    try:
        return RunSpec.from_dict(entry["spec"] if recorded else entry)
    except RootdkError as error:
        raise ArgumentError(f"spec: entry {number} of {path}: {error}") from error
