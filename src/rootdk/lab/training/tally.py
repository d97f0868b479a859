"""How far a sweep has come, and how long it will take by its pace so far."""

import time
from collections.abc import Callable, Sequence

from .engine import Advanced, Event, Failed, Finished
from .run import RunSpec
from .sweep import cost

# A run that was kept, or goes on from a state, says nothing about the pace of this sweep.
_SECONDS_BEFORE_A_GUESS = 5.0


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
