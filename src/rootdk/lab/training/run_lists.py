"""Which runs a study makes: those of a size, or those of a JSON file. A run that two questions ask for is made once.

The default size asks, in this order, so that a study that is interrupted has answered the first questions:

    rules     rule x d_k x learning rate on recall: does learning slow without the scale
    causes    1/d_k under Adam: with larger gradients, with a larger rate of W_q and W_k, with start and rate matched
    starts    no scale from W_q and W_k smaller by d_k^1/4, 1/d_k from larger ones, queries and keys normalised
    digits    rule x d_k x learning rate on images, and additive attention from the start of either dot product
    text      the same on characters, up to learning rates at which the entropy collapses; each run of it ends in a
              transplant: the trained model with queries and keys of other sizes
    seeds     more of them for 1/sqrt(d_k) and 1/d_k, where one in eight could change a verdict
    warm-up, and another width and depth, on recall: fewer seeds, because no verdict rests on them

Learning rates are half a power of ten apart. Where the best of a setting was at an end of them, more were added.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from rootdk.errors import ArgumentError, RootdkError
from rootdk.untrusted import read_json

from .run import ADDITIVE, TASKS, RunSpec

SIZES = ("quick", "default")
RULES = ("sqrt", "none", "dk")
KAPPAS = (1e-3, 1e-2, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 1e3, 1e4)
MATCHED_D_K = 256  # its fourth root is a whole number, and a power of two changes no digit
_WARMUP = 100


@dataclass(frozen=True, slots=True)
class _Grid:
    """What all runs of a task have in common, and how far they reach."""

    common: dict[str, Any]
    d_k: tuple[int, ...]
    rates: tuple[float, ...]
    seeds: int


_GRIDS = {
    "quick": {
        "recall": _Grid({"steps": 600, "stop": "learned"}, (16, 256), (3e-3,), 3),
        "digits": _Grid({"steps": 150, "stop": "flat"}, (16, 128), (3e-3,), 3),
        "text": _Grid({"steps": 150, "transplant": KAPPAS}, (16, 128), (1e-2,), 3),
    },
    "default": {
        "recall": _Grid({"steps": 1500, "stop": "learned"}, (256, 16), (1e-3, 3e-3, 1e-2), 8),
        "digits": _Grid({"steps": 400, "stop": "flat"}, (16, 128), (1e-3, 3e-3, 1e-2), 8),
        "text": _Grid({"steps": 400, "transplant": KAPPAS}, (128, 16), (1e-3, 3e-3, 1e-2, 3e-2, 1e-1), 8),
    },
}


def plan(size: str = "default", tasks: Sequence[str] = TASKS, rules: Sequence[str] = ()) -> tuple[RunSpec, ...]:
    """The specs of one size; with rules those alone, at every d_k and learning rate of the size.

    >>> len(plan("quick")), {spec.seed for spec in plan("quick")}
    (60, {0, 1, 2})
    >>> len(plan("quick", ["text"], ["sqrt", "mup(64)"]))
    12
    """
    if size not in SIZES:
        raise ArgumentError(f"size: must be one of {', '.join(map(repr, SIZES))}, got {size!r}")
    for task in tasks:
        if task not in TASKS:
            raise ArgumentError(f"tasks: must be among {', '.join(map(repr, TASKS))}, got {task!r}")
    parts = _own(size, rules) if rules else _quick() if size == "quick" else _default()
    # Seed by seed, so that what is interrupted has as many of each setting.
    return tuple(
        dict.fromkeys(
            replace(spec, seed=seed)
            for seeds, specs in parts
            for seed in range(seeds)
            for spec in specs
            if spec.task in tasks
        )
    )


_Part = tuple[int, list[RunSpec]]  # how many seeds, and the specs with the first of them


def _own(size: str, rules: Sequence[str]) -> Iterator[_Part]:
    for task, grid in _GRIDS[size].items():
        yield grid.seeds, _cells(size, task, [{"rule": rule} for rule in rules])


def _quick() -> Iterator[_Part]:
    for task, grid in _GRIDS["quick"].items():
        yield grid.seeds, _cells("quick", task, [{"rule": rule} for rule in RULES])
    yield 3, _cells("quick", "digits", [{"rule": ADDITIVE}])


def _default() -> Iterator[_Part]:
    recall, digits, text = (_GRIDS["default"][task] for task in ("recall", "digits", "text"))
    usual, wide = [{"rule": rule} for rule in RULES], (MATCHED_D_K,)
    root, no_scale, over_d_k = usual
    yield recall.seeds, _cells("default", "recall", usual)
    yield (
        recall.seeds,
        _cells("default", "recall", [no_scale], wide, (3e-4,))
        + _cells("default", "recall", [over_d_k], wide, (3e-2,))
        + _cells("default", "recall", [root, over_d_k], (16,), (3e-2,))
        + _cells("default", "recall", [over_d_k], (16,), (1e-1,)),
    )
    quarter = MATCHED_D_K**0.25
    # Adam's steps do not depend on the size of the gradient, so that the rate is matched by the fourth root of d_k.
    causes = [
        {"qk_gradient": quarter**2},
        {"qk_rate": quarter},
        {"qk_rate": quarter, "qk_size": quarter},
    ]
    starts = [{**no_scale, "qk_size": 1 / quarter}, {**over_d_k, "qk_size": quarter}, {**root, "qk_norm": True}]
    yield (
        recall.seeds,
        _cells("default", "recall", [{**over_d_k, **cause} for cause in causes], wide, (1e-3,))
        + _cells("default", "recall", starts, wide)
        + _cells("default", "recall", starts[:1], wide, (3e-4,))
        + _cells("default", "recall", starts[1:2], wide, (3e-2,)),
    )
    yield digits.seeds, _cells("default", "digits", usual)
    starts_of_v = {d_k: [{"rule": ADDITIVE}, {"rule": ADDITIVE, "v_size": d_k**0.5}] for d_k in digits.d_k}
    additive = (_cells("default", "digits", arms, (d_k,)) for d_k, arms in starts_of_v.items())
    yield digits.seeds, [spec for cells in additive for spec in cells]
    yield (
        text.seeds,
        _cells("default", "text", [root, no_scale]) + _cells("default", "text", [over_d_k], text.d_k[:1]),
    )
    # More seeds where with 8 of them one could change a verdict.
    yield (
        2 * recall.seeds,
        _cells("default", "recall", [root, over_d_k], wide) + _cells("default", "recall", [over_d_k], wide, (3e-2,)),
    )
    yield 2 * text.seeds, _cells("default", "text", [root])
    yield 4 * text.seeds, _cells("default", "text", [root], text.d_k[-1:])
    for change in ({"warmup": _WARMUP}, {"layers": 1, "width": 64}):
        arms = [{**root, **change}, {**no_scale, **change}]
        yield (
            5,
            _cells("default", "recall", arms, wide)
            + _cells("default", "recall", arms[:1], wide, (3e-2,))
            + _cells("default", "recall", arms[1:], wide, (3e-4,)),
        )


def _cells(
    size: str,
    task: str,
    arms: Sequence[dict[str, Any]],
    d_ks: Sequence[int] | None = None,
    rates: Sequence[float] | None = None,
) -> list[RunSpec]:
    """Every arm at every d_k and learning rate: those of the task, if no others are asked for."""
    grid = _GRIDS[size][task]
    return [
        RunSpec(task=task, d_k=d_k, learning_rate=rate, **grid.common, **arm)
        for d_k, rate, arm in product(d_ks or grid.d_k, rates or grid.rates, arms)
    ]


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
