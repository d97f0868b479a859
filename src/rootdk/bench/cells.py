"""Narrow tables, and what stands in their cells: two figures, from the best calls and from the medians."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich import box
from rich.table import Table

from rootdk.bench.targets import speed_ratio
from rootdk.bench.verdict import STATISTICS

Row = dict[str, Any]
Cell = Callable[[Row], str]


def table(title: str, *headings: str) -> Table:
    """First column to the left, the others to the right: five peers must fit in 80 columns."""
    made = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=0, min_width=len(title) + 2)
    for number, heading in enumerate(headings):
        made.add_column(heading, justify="right" if number else "left", no_wrap=number == 0)
    return made


def filled(title: str, first: str, rows: Sequence[Row], columns: Mapping[str, Cell]) -> Table:
    """One line per row: its name, then every column's cell."""
    made = table(title, first, *columns)
    for row in rows:
        made.add_row(row["name"], *(cell(row) for cell in columns.values()))
    return made


def time_of(name: str, unit: float) -> Cell:
    """Best / median of one contestant, in units of `unit` seconds."""
    return lambda row: (
        " / ".join(f"{row['seconds'][name][statistic] / unit:.3g}" for statistic in STATISTICS)
        if name in row["seconds"]
        else "-"
    )


def faster_than(rival: str, ours: str = "rootdk") -> Cell:
    """How many times faster, best / median."""
    return lambda row: (
        " / ".join(f"{speed_ratio(row, rival, ours, statistic):.2f}" for statistic in STATISTICS)
        if {rival, ours} <= set(row["seconds"])
        else "-"
    )
