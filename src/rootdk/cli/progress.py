"""How far a command is: bars on standard error that are gone when it is done, and only on a terminal."""

from collections.abc import Hashable

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Column

from rootdk.untrusted import shown_text

_LONGEST = 100


class Bars:
    """A bar, a percentage, the time so far and a text; one row, and more where a command names them.

    Called with a text and the share that is done, from any thread. What else is to be said meanwhile goes through
    `console`, which writes it above the bars.
    """

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(stderr=True)
        self._drawn = Progress(
            BarColumn(20),
            TextColumn("{task.percentage:>3.0f}%"),
            TimeElapsedColumn(),
            # A text may be the name of a layer in a file of unknown making, which is no markup.
            TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis")),
            console=self.console,
            transient=True,
            disable=not self.console.is_terminal,
        )
        self._rows: dict[Hashable, TaskID] = {"": self._drawn.add_task("starting", total=1.0)}

    def __enter__(self) -> "Bars":  # noqa: PYI034 -- typing.Self came with Python 3.11
        self._drawn.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self._drawn.stop()

    def __call__(self, text: str, share: float, row: Hashable = "") -> None:
        """Move a row, which is new if it has not been named before."""
        shown = shown_text(text, _LONGEST)
        if row not in self._rows:
            self._rows[row] = self._drawn.add_task(shown, total=1.0)
        self._drawn.update(self._rows[row], completed=share, description=shown)

    def drop(self, row: Hashable) -> None:
        """Take a row away, if it is there."""
        if row in self._rows:
            self._drawn.remove_task(self._rows.pop(row))
