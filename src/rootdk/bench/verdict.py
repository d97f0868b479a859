"""One target, judged: met, short, or not judged and why.

A figure is taken twice, from the best calls and from the medians, and the worse of the two is judged: a target that
only one of them meets is not met.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

Row = dict[str, Any]
Figure = Callable[[Row, str], float]
Verdict = dict[str, Any]
STATISTICS = ("best", "median")


@dataclass(frozen=True, slots=True)
class Target:
    """A limit on one figure, folded over rows. `needs` are the contestants that a row must have, ours first."""

    name: str
    limit: float
    figure: Figure
    fold: Callable[[list[float]], float]
    needs: tuple[str, ...]
    at_most: bool = False

    @property
    def wanted(self) -> str:
        """Such as '>= 1.50'."""
        return f"{'<=' if self.at_most else '>='} {self.limit:.2f}"

    def judge(self, rows: Sequence[Row], otherwise: str = "not measured") -> Verdict:
        """Over the rows where everybody took part. A row that rootdk could not do makes the target short.

        `otherwise` says why there are no rows, where there are none.
        """
        ours = self.needs[0]
        unable = [row for row in rows if ours not in row["seconds"]]
        if unable:
            first = unable[0]
            place = "" if first["name"] in self.name else f"{first['name']}: "
            why = f"{place}{ours} {first['left_out'].get(ours, 'took no part')}"
            return self._say("no result", met=False, why=why)
        complete = [row for row in rows if all(name in row["seconds"] for name in self.needs)]
        if not complete:
            return self._say("-", met=None, why=_who_is_missing(rows, self.needs) or otherwise)
        figures = [self.fold([self.figure(row, statistic) for row in complete]) for statistic in STATISTICS]
        reached = " / ".join(f"{figure:.2f}" for figure in figures)
        met = max(figures) <= self.limit if self.at_most else min(figures) >= self.limit
        missing = len(rows) - len(complete)
        remarks = [f"{missing} of {len(rows)} left out: {_who_is_missing(rows, self.needs)}"] if missing else []
        noted = [f"{name} {note}" for row in complete for name, note in row.get("notes", {}).items()]
        return self._say(reached, met=met, why="; ".join(remarks + noted[:1]))

    def _say(self, reached: str, *, met: bool | None, why: str) -> Verdict:
        return verdict(self.name, self.wanted, reached, met=met, why=why)


def verdict(name: str, wanted: str, reached: str, *, met: bool | None, why: str = "") -> Verdict:
    """The record that goes into the report; `met` is None where nothing could be judged."""
    return {"name": name, "wanted": wanted, "reached": reached, "met": met, "why": why}


def _who_is_missing(rows: Iterable[Row], needs: Sequence[str]) -> str:
    for row in rows:
        for name in needs:
            if name not in row["seconds"]:
                return f"{name} {row['left_out'].get(name, 'took no part')}"
    return ""


def headline(verdicts: Sequence[Verdict]) -> list[str]:
    """What stands at the top: what falls short, what was not judged, or that every target is reached."""
    short = [one for one in verdicts if one["met"] is False]
    unjudged = [one for one in verdicts if one["met"] is None]
    judged = len(verdicts) - len(unjudged)
    lines = []
    if short:
        lines.append(f"falls short: {len(short)} of {judged} targets")
        for one in short:
            why = f" ({one['why']})" if one["why"] else ""
            lines.append(f"  {one['name']}: {one['reached']}, wanted {one['wanted']}{why}")
    elif judged:
        lines.append("every target reached" if not unjudged else f"every target that was judged is reached ({judged})")
    if unjudged:
        lines.append(f"not judged: {len(unjudged)}")
        lines += [f"  {one['name']}: {one['why']}" for one in unjudged]
    return lines
