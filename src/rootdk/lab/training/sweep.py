"""Many runs: those that are kept are taken, the others go to an engine, and each is kept as soon as it is done.

A Tally says how far a sweep has come, and how long it will take by its pace so far.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any, cast

from rootdk.errors import RootdkError
from rootdk.scaling import fingerprint, rules

from .engine import Advanced, Engine, Event, Failed, Finished, Task, title
from .run import ADDITIVE, Run, RunSpec
from .store import Store, StoreError

_MOST_NAMED = 10
# Sequences in a batch and places in each: what rootdk.lab.training.tasks draws, which only torch could be asked.
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
    """The runs of these specs, in their order. tell hears of every event, and of kept runs as finished ones first.

    With fresh, those that are kept are forgotten first. An error lists what failed, after everything else is done.
    Interrupted, it keeps what is finished. A store in which another sweep is under way is a StoreError at once.
    """
    with store.locked():
        if fresh:
            for spec in specs:
                store.forget(spec)
        return _sweep(specs, store, engine, tell)


def _sweep(specs: Sequence[RunSpec], store: Store, engine: Engine, tell: Callable[[Event], None]) -> tuple[Run, ...]:
    runs: dict[RunSpec, Run] = {}
    for spec in dict.fromkeys(specs):
        kept = store.get(spec)
        if kept is not None:
            runs[spec] = kept
            tell(Finished(kept))
    # In the order in which they are asked for: what was interrupted has the first of them.
    rest = [spec for spec in dict.fromkeys(specs) if spec not in runs]
    failures: list[Failed] = []
    # A generator of an engine ends its processes when it is closed, whatever the reason.
    with closing(cast("Any", engine([_task(spec, store) for spec in rest]))) as events:
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
    own = rules()[spec.rule] if fingerprint(spec.rule) else None
    return Task(spec, store.state(spec).absolute(), own)


def cost(spec: RunSpec) -> float:
    """About how many milliseconds a run takes on one core, rough: for the order of runs and the share that is done.

    >>> cost(RunSpec(d_k=512)) > cost(RunSpec(d_k=8))
    True
    """
    batch, places = _BATCHES[spec.task]
    # Additive attention makes d_k numbers for every pair of places, a dot product only for every place.
    wide = batch * places * (places if spec.rule == ADDITIVE else 1) * spec.heads * spec.d_k
    per_step = spec.layers * (3.0 + 5e-5 * batch * places * spec.width + 1.7e-5 * wide)
    return (spec.steps + _LOOKS) * per_step


class Tally:
    """Counts the events of a sweep. The clock is an argument so that a test can turn its hands."""

    def __init__(self, specs: Sequence[RunSpec], clock: Callable[[], float] = time.monotonic) -> None:
        self.specs, self.clock = tuple(dict.fromkeys(specs)), clock
        self.share = dict.fromkeys(self.specs, 0.0)  # of each run, what is done
        self.before: dict[RunSpec, float] = {}  # of that, what an earlier sweep did
        self.active: set[RunSpec] = set()
        self.finished = self.kept = self.failed = 0
        self.begun = clock()

    def count(self, event: Event) -> None:
        """Take in one event."""
        spec = event.run.spec if isinstance(event, Finished) else event.spec
        if isinstance(event, Advanced):
            self.share[spec] = event.step / spec.steps
            if spec not in self.before:
                # The first step that is reported, less the one that was just done.
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
        """Seconds that are left, by the pace so far; None while nobody can know."""
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
