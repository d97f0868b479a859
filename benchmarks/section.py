"""What a section is: steps that measure, targets that judge what was measured, tables that show it.

A section is a file in sections/ with a tuple SECTIONS. Its steps write rows into the report under the section's name;
a row has "name", "seconds" with a timing per contestant, and in "left_out" why somebody took no part. A figure is taken
twice, from the best calls and from the medians, and the worse of the two is judged: a target that only one of them
meets is not met.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from rich import box
from rich.table import Table

from benchmarks.peers import Peer

Row = dict[str, Any]
Report = dict[str, Any]
Verdict = dict[str, Any]
Figure = Callable[[Row, str], float]
Cell = Callable[[Row], str]
STATISTICS = ("best", "median")


class Step(NamedTuple):
    """One piece of work: under which key of the report its result goes, what the progress bar says, the work itself.

    The result is a row, or with `whole` all that stands under the key.
    """

    key: str
    label: str
    run: Callable[[], Any]
    whole: bool = False


@dataclass(frozen=True, slots=True)
class Setting:
    """What a run is: the sections, who takes part, how many threads, how much time."""

    sections: frozenset[str]
    peers: Sequence[Peer]
    threads: int
    quick: bool

    @property
    def torch(self) -> bool:
        """Whether torch takes part."""
        return any(peer.name == "torch" for peer in self.peers)

    def seconds(self, full: float, quick: float = 0.3) -> float:
        """How long one race may take."""
        return quick if self.quick else full


def nothing(_: Report) -> tuple[()]:
    """A section without a table of its own."""
    return ()


@dataclass(frozen=True, slots=True)
class Section:
    """`--what NAME`: its steps, the verdicts on a report, and what is shown of it, tables and lines of text."""

    name: str
    steps: Callable[[Setting], Iterable[Step]]
    judge: Callable[[Report], Iterable[Verdict]]
    show: Callable[[Report], Iterable[Table | str]] = nothing


def of_rows(
    name: str,
    steps: Callable[[Setting], Iterable[Step]],
    judge: Callable[[Report], Iterable[Verdict]],
    title: str,
    columns: Mapping[str, Cell],
) -> Section:
    """A section whose rows are shown as one table."""
    return Section(name, steps, judge, lambda report: [filled(title, "", report[name], columns)])


def every(_: Row) -> bool:
    """Every row counts."""
    return True


@dataclass(frozen=True, slots=True)
class Target:
    """A limit on one figure, folded over rows. `needs` are the contestants that a row must have, ours first."""

    name: str
    limit: float
    figure: Figure
    fold: Callable[[list[float]], float]
    needs: tuple[str, ...]
    at_most: bool = False
    counts: Callable[[Row], bool] = every  # which rows it is about

    def judge(self, rows: Sequence[Row], otherwise: str = "not measured") -> Verdict:
        """Over the rows where everybody took part. A row that rootdk could not do makes the target short.

        `otherwise` says why there are no rows, where there are none.
        """
        rows, ours = [row for row in rows if self.counts(row)], self.needs[0]
        unable = [row for row in rows if ours not in row["seconds"]]
        complete = [row for row in rows if all(name in row["seconds"] for name in self.needs)]
        met: bool | None
        if unable:
            name = unable[0]["name"]
            why = ("" if name in self.name else f"{name}: ") + _who_is_missing(unable, self.needs[:1])
            reached, met = "no result", False
        elif not complete:
            reached, met, why = "-", None, _who_is_missing(rows, self.needs) or otherwise
        else:
            figures = [self.fold([self.figure(row, statistic) for row in complete]) for statistic in STATISTICS]
            reached = " / ".join(f"{figure:.2f}" for figure in figures)
            met = max(figures) <= self.limit if self.at_most else min(figures) >= self.limit
            missing = len(rows) - len(complete)
            remarks = [f"{missing} of {len(rows)} left out: {_who_is_missing(rows, self.needs)}"] if missing else []
            helped = [f"{name} {note}" for row in complete for name, note in row.get("notes", {}).items()]
            why = "; ".join(remarks + helped[:1])
        return verdict(self.name, f"{'<=' if self.at_most else '>='} {self.limit:.2f}", reached, met=met, why=why)


def verdict(name: str, wanted: str, reached: str, *, met: bool | None, why: str = "") -> Verdict:
    """The record that goes into the report; `met` is None where nothing could be judged."""
    return {"name": name, "wanted": wanted, "reached": reached, "met": met, "why": why}


def _who_is_missing(rows: Iterable[Row], needs: Sequence[str]) -> str:
    for row in rows:
        for name in needs:
            if name not in row["seconds"]:
                return f"{name} {row['left_out'].get(name, 'took no part')}"
    return ""


def judge_rows(report: Report, key: str, targets: Iterable[Target], *, with_torch: bool = False) -> Iterator[Verdict]:
    """Each target over the rows of one key. `with_torch`: without torch there are no rows at all."""
    for target in targets:
        needs_torch = with_torch or "torch" in target.needs
        absent = needs_torch and "torch" not in report.get("peers", {"torch": ""})
        yield target.judge(report.get(key, []), no_torch(report) if absent else "no such shape in this run")


def judge_each(report: Report, key: str, otherwise: str, prefix: str = "") -> Iterator[Verdict]:
    """Each row is a target: rootdk is not slower than torch. `otherwise` names the target where there are no rows."""
    rows = report.get(key, [])
    for row in rows:
        yield slowest(f"{prefix}{row['name']}").judge([row])
    if not rows:
        yield verdict(otherwise, ">= 1.00", "-", met=None, why=no_torch(report))


def no_torch(report: Report) -> str:
    """Why torch takes no part."""
    return f"torch {report.get('absent', {}).get('torch', 'takes no part')}"


def geometric_mean(ratios: Sequence[float]) -> float:
    """Mean that treats twice as fast and half as fast as opposites, so that ratios average without favour.

    >>> geometric_mean([2.0, 0.5])
    1.0
    """
    if not ratios:
        raise ValueError("geometric_mean: needs at least one ratio")
    return math.exp(math.fsum(map(math.log, ratios)) / len(ratios))


def faster(rival: str, ours: str = "rootdk") -> Figure:
    """How many times faster `ours` is than `rival`."""
    return lambda row, statistic: float(row["seconds"][rival][statistic] / row["seconds"][ours][statistic])


def ratio(key: str, *deeper: str) -> Figure:
    """A ratio that the row carries itself."""

    def figure(row: Row, statistic: str) -> float:
        figures = row[key]
        for name in deeper:
            figures = figures[name]
        return float(figures[statistic])

    return figure


def at_most(name: str, limit: float, figure: Figure, *needs: str, counts: Callable[[Row], bool] = every) -> Target:
    """No row may be above the limit."""
    return Target(name, limit, figure, max, needs, at_most=True, counts=counts)


def at_least(name: str, limit: float, figure: Figure, *needs: str, counts: Callable[[Row], bool] = every) -> Target:
    """No row may be below the limit."""
    return Target(name, limit, figure, min, needs, counts=counts)


def mean(name: str, limit: float, counts: Callable[[Row], bool] = every) -> Target:
    """Times faster than torch, as geometric mean."""
    needs = ("rootdk", "torch")
    return Target(f"{name}, geometric mean", limit, faster("torch"), geometric_mean, needs, counts=counts)


def slowest(name: str) -> Target:
    """Not slower than torch anywhere."""
    return at_least(name, 1.0, faster("torch"), "rootdk", "torch")


def of(key: str, wanted: Any) -> Callable[[Row], bool]:
    """The rows that have this value under this key."""
    return lambda row: bool(row[key] == wanted)


def table(title: str, *headings: str) -> Table:
    """First column to the left, the others to the right: five peers must fit in 80 columns."""
    lines = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=0, min_width=len(title) + 2)
    for number, heading in enumerate(headings):
        lines.add_column(heading, justify="right" if number else "left", no_wrap=number == 0)
    return lines


def filled(title: str, first: str, rows: Iterable[Row], columns: Mapping[str, Cell]) -> Table:
    """One line per row: its name, then every column's cell."""
    lines = table(title, first, *columns)
    for row in rows:
        lines.add_row(row["name"], *(cell(row) for cell in columns.values()))
    return lines


def cell(figure: Figure, form: str, *needs: str) -> Cell:
    """A figure from the best calls and from the medians, or a dash where one that it needs took no part."""
    return lambda row: (
        " / ".join(f"{figure(row, statistic):{form}}" for statistic in STATISTICS)
        if set(needs) <= set(row["seconds"])
        else "-"
    )


def milliseconds(name: str) -> Cell:
    """What a call of this contestant took."""
    return cell(lambda row, statistic: row["seconds"][name][statistic] * 1e3, ".3g", name)


def times_faster(rival: str, ours: str = "rootdk") -> Cell:
    """How many times faster `ours` is than `rival`."""
    return cell(faster(rival, ours), ".2f", rival, ours)


def mebibytes(size: float) -> str:
    """Whole MiB; less than one is little, and not nothing.

    >>> mebibytes(0), mebibytes(2**20 - 1), mebibytes(37.6 * 2**20)
    ('under 1 MiB', 'under 1 MiB', '38 MiB')
    """
    return f"{size / 2**20:.0f} MiB" if size >= 2**20 else "under 1 MiB"
