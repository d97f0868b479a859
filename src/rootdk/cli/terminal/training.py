"""How far a sweep has come: a table that moves on a terminal, elsewhere a line now and then. On standard error."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rootdk.lab.training import RunSpec
from rootdk.lab.training.engine import Advanced, Again, Event, Failed, Finished, title
from rootdk.lab.training.sweep import cost

_SECONDS_BETWEEN_LINES = 30.0
# A run that was kept, or goes on from a state, says nothing about the pace of this sweep.
_SECONDS_BEFORE_A_GUESS = 5.0


class Progress:
    """Counts what events tell. The clock is an argument so that a test can turn its hands."""

    def __init__(self, specs: Sequence[RunSpec], clock: Callable[[], float] = time.monotonic) -> None:
        self.specs, self.clock = tuple(dict.fromkeys(specs)), clock
        self.start: float | None = None
        self.share = dict.fromkeys(self.specs, 0.0)  # of each run, what is done
        self.before: dict[RunSpec, float] = {}  # of that, what an earlier sweep did
        self.active: dict[RunSpec, int] = {}
        self.finished = self.kept = self.failed = 0
        self.begun = clock()

    def hear(self, event: Event) -> None:
        """Take in one event."""
        spec = event.run.spec if isinstance(event, Finished) else event.spec
        if isinstance(event, Advanced):
            self.share[spec] = event.step / spec.steps
            if spec not in self.before:
                # The first step that is told, less the one that was just done.
                self.before[spec] = max(0.0, (event.step - 1) / spec.steps)
            self.active[spec] = event.step
            return
        self.active.pop(spec, None)
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

    def table(self) -> Any:
        """The line, a bar per task, and the runs that are under way."""
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        bars = Table.grid(padding=(0, 2))
        for task in dict.fromkeys(spec.task for spec in self.specs):
            some = [spec for spec in self.specs if spec.task == task]
            total = sum(map(cost, some))
            done = sum(cost(spec) * self.share[spec] for spec in some)
            count = sum(self.share[spec] == 1.0 for spec in some)
            bars.add_row(task, ProgressBar(total, done, width=30), f"{count}/{len(some)}")
        for spec, step in list(self.active.items()):
            bars.add_row(
                "", ProgressBar(spec.steps, step, width=30), Text(title(spec), overflow="ellipsis", no_wrap=True)
            )
        return Group(Text(self.line), bars)


def clock_face(seconds: float) -> str:
    """Minutes and seconds, with hours where there are any.

    >>> clock_face(75), clock_face(7384)
    ('1:15', '2:03:04')
    """
    whole = round(seconds)
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"


@contextmanager
def shown(specs: Sequence[RunSpec]) -> Iterator[Callable[[Event], None]]:
    """What to tell events to, inside the block."""
    from rich.console import Console

    console, progress = Console(stderr=True), Progress(specs)
    said = progress.begun

    def tell(event: Event) -> None:
        nonlocal said
        progress.hear(event)
        if isinstance(event, Failed | Again):
            word = "failed" if isinstance(event, Failed) else "goes on from its state"
            console.print(f"{title(event.spec)}: {word}: {event.reason}", markup=False, highlight=False, soft_wrap=True)
        now = progress.clock()
        if not console.is_terminal and now - said >= _SECONDS_BETWEEN_LINES:
            said = now
            console.print(progress.line, markup=False, highlight=False, soft_wrap=True)

    if not console.is_terminal:
        yield tell
        return
    from rich.live import Live

    with Live(get_renderable=progress.table, console=console, refresh_per_second=4, transient=True):
        yield tell
