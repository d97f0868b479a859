"""The runs of a study: which they are, and making them.

Kept runs are reused, the others go to an engine, and each is kept as soon as it is done. A Tally shows how far a sweep
is, and how long it will take at its pace so far.

Which runs: those of a size, or those of a JSON file. A run that two questions ask for is made once.
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

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, cast

from rootdk.errors import ArgumentError, RootdkError
from rootdk.files import read_json
from rootdk.scaling import fingerprint, rules

from .engine import Advanced, Engine, Event, Failed, Finished, Task, title
from .run import ADDITIVE, TASKS, Run, RunSpec
from .store import Store, StoreError

_MOST_NAMED = 10
# Sequences in a batch and places in each: as in rootdk.lab.training.model, which cannot be loaded without torch.
_BATCHES = {"recall": (16, 24), "text": (8, 64), "digits": (16, 16)}
# A run that was kept, or goes on from a state, says nothing about the pace of this sweep.
_SECONDS_BEFORE_A_GUESS = 5.0
_LOOKS = 60  # looking at a model from time to time takes about as long as so many steps


class SweepError(RootdkError):
    """Some runs failed; the others are kept. `failures` holds a Failed for each."""

    def __init__(self, failures: Sequence[Failed], finished: int) -> None:
        self.failures = tuple(failures)
        named = [f"{title(failure.spec)}: {failure.reason}" for failure in failures[:_MOST_NAMED]]
        more = [f"and {len(failures) - _MOST_NAMED} more"] if len(failures) > _MOST_NAMED else []
        runs = "run" if len(failures) == 1 else "runs"
        super().__init__(
            f"{len(failures)} {runs} failed; the {finished} that are finished are kept and will not be run again. "
            + "; ".join([*named, *more])
        )


def sweep(
    specs: Sequence[RunSpec],
    store: Store,
    engine: Engine,
    tell: Callable[[Event], None] = lambda _event: None,
    fresh: bool = False,
) -> tuple[Run, ...]:
    """The runs of these specs, in their order. tell is called with every event; kept runs come first, as finished ones.

    With fresh, those that are kept are forgotten first. An error lists what failed, after everything else is done.
    Interrupted, it keeps what is finished. A store in which another sweep is running is a StoreError at once.
    """
    runs: dict[RunSpec, Run] = {}
    failures: list[Failed] = []
    with store.locked():
        for spec in dict.fromkeys(specs):
            if fresh:
                store.forget(spec)
            if (stored := store.get(spec)) is not None:
                runs[spec] = stored
                tell(Finished(stored))
        # In the order in which they are asked for: an interrupted study has the first of them.
        tasks = [_task(spec, store) for spec in dict.fromkeys(specs) if spec not in runs]
        # A generator of an engine ends its processes when it is closed, whatever the reason.
        with closing(cast("Any", engine(tasks))) as events:
            for event in events:
                if isinstance(event, Finished):
                    store.put(event.run)
                    runs[event.run.spec] = event.run
                elif isinstance(event, Failed):
                    failures.append(event)
                    if event.no_space:
                        raise StoreError(
                            f"runs: cannot write to {store.place}: {event.reason}; the runs that are finished are kept"
                        )
                tell(event)
    if failures:
        raise SweepError(failures, len(runs))
    return tuple(runs[spec] for spec in specs)


def _task(spec: RunSpec, store: Store) -> Task:
    rule = rules()[spec.rule] if fingerprint(spec.rule) else None
    return Task(spec, store.state(spec).absolute(), rule)


def cost(spec: RunSpec) -> float:
    """About how many milliseconds a run takes on one core, roughly: for the order of runs and the share that is done.

    >>> cost(RunSpec(d_k=512)) > cost(RunSpec(d_k=8))
    True
    """
    batch, places = _BATCHES[spec.task]
    # Additive attention makes d_k numbers for every pair of places, a dot product only for every place.
    wide = batch * places * (places if spec.rule == ADDITIVE else 1) * spec.heads * spec.d_k
    per_step = spec.layers * (3.0 + 5e-5 * batch * places * spec.width + 1.7e-5 * wide)
    return (spec.steps + _LOOKS) * per_step


class Tally:
    """Counts the events of a sweep. The clock is an argument so that a test can set it."""

    def __init__(self, specs: Sequence[RunSpec], clock: Callable[[], float] = time.monotonic) -> None:
        self.specs, self.clock = tuple(dict.fromkeys(specs)), clock
        self.share = dict.fromkeys(self.specs, 0.0)  # the part of each run that is done
        self.before: dict[RunSpec, float] = {}  # the part of that which an earlier sweep did
        self.active: set[RunSpec] = set()
        self.finished = self.kept = self.failed = 0
        self.begun = clock()

    def count(self, event: Event) -> None:
        """Count one event."""
        spec = event.run.spec if isinstance(event, Finished) else event.spec
        if isinstance(event, Advanced):
            self.share[spec] = event.step / spec.steps
            if spec not in self.before:
                # The first step that is reported, minus the one that was just done.
                self.before[spec] = max(0.0, (event.step - 1) / spec.steps)
            self.active.add(spec)
            return
        self.active.discard(spec)
        if isinstance(event, Finished):
            self.finished += 1
            if spec not in self.before:
                self.before[spec] = 1.0
                self.kept += 1
            self.share[spec] = 1.0
        elif isinstance(event, Failed):
            self.failed += 1
            self.share[spec] = 1.0
            self.before.setdefault(spec, 1.0)

    def done(self, specs: Sequence[RunSpec]) -> float:
        """The share of the work of these runs that is done."""
        return sum(cost(spec) * self.share[spec] for spec in specs) / sum(map(cost, specs))

    @property
    def elapsed(self) -> float:
        """Seconds since the start."""
        return self.clock() - self.begun

    @property
    def remaining(self) -> float | None:
        """Seconds that are left, by the pace so far; None while that is not known."""
        done = sum(cost(spec) * (self.share[spec] - before) for spec, before in self.before.items())
        left = sum(cost(spec) * (1.0 - share) for spec, share in self.share.items())
        if left <= 0:
            return 0.0
        return left * self.elapsed / done if done > 0 and self.elapsed >= _SECONDS_BEFORE_A_GUESS else None

    @property
    def line(self) -> str:
        """All in one line."""
        parts = [f"{self.finished} of {len(self.specs)} runs"]
        parts += [f"{self.kept} of them kept before"] if self.kept else []
        parts += [f"{self.failed} failed"] if self.failed else []
        left = self.remaining
        parts += [f"{clock_face(self.elapsed)} gone", f"about {clock_face(left)} left" if left is not None else ""]
        return ", ".join(part for part in parts if part)


def clock_face(seconds: float) -> str:
    """Minutes and seconds, with hours where there are any.

    >>> clock_face(75), clock_face(7384)
    ('1:15', '2:03:04')
    """
    whole = round(seconds)
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"


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

    def cells(
        self, arms: Sequence[dict[str, Any]], d_ks: Sequence[int] | None = None, rates: Sequence[float] | None = None
    ) -> list[RunSpec]:
        """Every arm at every d_k and learning rate: those of the grid, if no others are asked for."""
        return [
            RunSpec(d_k=d_k, learning_rate=rate, **self.common, **arm)
            for d_k, rate, arm in product(d_ks or self.d_k, rates or self.rates, arms)
        ]


_RECALL = {"task": "recall", "stop": "learned"}
_DIGITS = {"task": "digits", "stop": "flat"}
_TEXT = {"task": "text", "transplant": KAPPAS}
_GRIDS = {
    "quick": (
        _Grid({**_RECALL, "steps": 600}, (16, 256), (3e-3,), 3),
        _Grid({**_DIGITS, "steps": 150}, (16, 128), (3e-3,), 3),
        _Grid({**_TEXT, "steps": 150}, (16, 128), (1e-2,), 3),
    ),
    "default": (
        _Grid({**_RECALL, "steps": 1500}, (256, 16), (1e-3, 3e-3, 1e-2), 8),
        _Grid({**_DIGITS, "steps": 400}, (16, 128), (1e-3, 3e-3, 1e-2), 8),
        _Grid({**_TEXT, "steps": 400}, (128, 16), (1e-3, 3e-3, 1e-2, 3e-2, 1e-1), 8),
    ),
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
    if rules or size == "quick":
        arms = [{"rule": rule} for rule in rules or RULES]
        parts = [(grid.seeds, grid.cells(arms)) for grid in _GRIDS[size]]
        if not rules:
            _, digits, _ = _GRIDS[size]
            parts.append((digits.seeds, digits.cells([{"rule": ADDITIVE}])))
    else:
        parts = list(_default())
    # Seed by seed, so that an interrupted study has equally many runs of each setting.
    in_order = (replace(spec, seed=seed) for seeds, specs in parts for seed in range(seeds) for spec in specs)
    return tuple(dict.fromkeys(spec for spec in in_order if spec.task in tasks))


def _default() -> Iterator[tuple[int, list[RunSpec]]]:
    """Parts of the study: how many seeds, and the specs with the first of them."""
    recall, digits, text = _GRIDS["default"]
    usual, wide = [{"rule": rule} for rule in RULES], (MATCHED_D_K,)
    root, no_scale, over_d_k = usual
    yield recall.seeds, recall.cells(usual)
    yield (
        recall.seeds,
        recall.cells([no_scale], wide, (3e-4,))
        + recall.cells([over_d_k], wide, (3e-2,))
        + recall.cells([root, over_d_k], (16,), (3e-2,))
        + recall.cells([over_d_k], (16,), (1e-1,)),
    )
    quarter = MATCHED_D_K**0.25
    # Adam's steps do not depend on the size of the gradient, so that the rate is matched by the fourth root of d_k.
    causes = [{"qk_gradient": quarter**2}, {"qk_rate": quarter}, {"qk_rate": quarter, "qk_size": quarter}]
    starts = [{**no_scale, "qk_size": 1 / quarter}, {**over_d_k, "qk_size": quarter}, {**root, "qk_norm": True}]
    yield (
        recall.seeds,
        recall.cells([{**over_d_k, **cause} for cause in causes], wide, (1e-3,))
        + recall.cells(starts, wide)
        + recall.cells(starts[:1], wide, (3e-4,))
        + recall.cells(starts[1:2], wide, (3e-2,)),
    )
    yield digits.seeds, digits.cells(usual)
    additive = []
    for d_k in digits.d_k:
        additive += digits.cells([{"rule": ADDITIVE}, {"rule": ADDITIVE, "v_size": d_k**0.5}], (d_k,))
    yield digits.seeds, additive
    yield text.seeds, text.cells([root, no_scale]) + text.cells([over_d_k], text.d_k[:1])
    # More seeds where, with 8 of them, a single seed could change a verdict.
    yield 2 * recall.seeds, recall.cells([root, over_d_k], wide) + recall.cells([over_d_k], wide, (3e-2,))
    yield 2 * text.seeds, text.cells([root])
    yield 4 * text.seeds, text.cells([root], text.d_k[-1:])
    for change in ({"warmup": _WARMUP}, {"layers": 1, "width": 64}):
        with_root, without = {**root, **change}, {**no_scale, **change}
        specs = recall.cells([with_root, without], wide)
        yield 5, specs + recall.cells([with_root], wide, (3e-2,)) + recall.cells([without], wide, (3e-4,))


def read_specs(path: Path) -> tuple[RunSpec, ...]:
    """The runs that the file asks for. An error names the entry and the field.

    A file of Results can be given too: the spec of each of its runs is taken.
    """
    try:
        data = read_json(path)
    except OSError as error:
        raise ArgumentError(f"spec: cannot read {path}: {error.strerror or error}") from error
    except ValueError as error:
        raise ArgumentError(f"spec: {path} is not JSON: {error}") from error
    runs: Any = data.get("runs") if isinstance(data, dict) else data
    if not isinstance(runs, list) or not runs:
        without = f"{type(data).__name__} without it"
        kind = "an empty list" if runs == [] else without if runs is None else repr(runs)[:40]
        raise ArgumentError(f'spec: {path} must hold a list of runs, alone or under "runs", got {kind}')
    return tuple(_spec(path, number, entry) for number, entry in enumerate(runs))


def _spec(path: Path, number: int, entry: Any) -> RunSpec:
    recorded = isinstance(entry, dict) and isinstance(entry.get("spec"), dict)
    try:
        return RunSpec.from_dict(entry["spec"] if recorded else entry)
    except RootdkError as error:
        raise ArgumentError(f"spec: entry {number} of {path}: {error}") from error
