"""A map of layers and heads in a terminal: darker is larger, in signs as well as in colours."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rich.text import Text

from rootdk import _views
from rootdk.audit.metrics import Metric

# Read without colours too, on paper or by someone who sees few of them.
_SIGNS = "·░▒▓█"
_COLOURS = ("#4575b4", "#74add1", "#e6c34a", "#f46d43", "#d73027")
# Heads of one layer that differ by less are shown alike: a map must not make a drama of rounding.
_LEAST_FACTOR, _LEAST_SHARE = 4.0, 0.1


@dataclass(frozen=True, slots=True)
class Steps:
    """Where one sign ends and the next begins: the four borders, from low to high; two where all numbers are one."""

    borders: tuple[float, ...]

    @classmethod
    def of(cls, metric: Metric, values: Sequence[float]) -> "Steps":
        """Five steps from the smallest to the largest, even in factors or in differences."""
        known = [value for value in values if math.isfinite(value)]
        low, high = min(known, default=0.0), max(known, default=1.0)
        count = len(_SIGNS)
        if low == high:
            return cls((low,) * 2)  # the middle sign for all
        if metric.spread and low > 0.0:
            left, right = math.sqrt(low), math.sqrt(high)  # products of the two may leave float64
            middle, reach = left * right, max(right / left, math.sqrt(_LEAST_FACTOR))
            return cls(tuple(middle * reach ** (2 * step / count - 1) for step in range(1, count)))
        middle = (low + high) / 2
        half = max((high - low) / 2, _LEAST_SHARE / 2 if metric.share else 1e-12)
        return cls(tuple(middle + half * (2 * step / count - 1) for step in range(1, count)))

    def place(self, value: float) -> int:
        """Which of the five a value is."""
        return sum(value >= border for border in self.borders)


def heat_map(
    metric: Metric, rows: Sequence[Sequence[float]], names: Sequence[str], marks: Sequence[str], width: int
) -> Text:
    """Heading, what the signs mean, a line per layer; marks stand at the ends of lines.

    Two columns for a head where there is room, else one; heads that do not fit go on in the next line.
    """
    label = max(5, *map(len, names))
    steps = Steps.of(metric, [value for row in rows for value in row])
    heads = max(map(len, rows))
    room = max(8, width - label - 2 - max((len(mark) + 1 for mark in marks), default=0))
    size = 2 if 2 * heads <= room else 1
    text = Text(metric.short, style="bold")
    text.append("\n")
    text.append_text(_legend(steps))
    text.append(f"\n{'layer':{label}}  {_ruler(min(heads, room // size), size)}", style="dim")
    for row, name, mark in zip(rows, names, marks, strict=True):
        for start in range(0, len(row), room // size):
            shown = name if start == 0 else ""
            text.append(f"\n{shown:{label}}  ")
            for value in row[start : start + room // size]:
                text.append_text(_cell(value, steps, size))
            if mark and start == 0:
                text.append(f" {mark}", style="bold")
    return text


def _cell(value: float, steps: Steps, size: int) -> Text:
    if math.isnan(value):
        return Text(" " * size)
    place = steps.place(value)
    return Text(_SIGNS[place] * size, style=_COLOURS[place])


def _legend(steps: Steps) -> Text:
    """Each sign with the number that it begins at."""
    text = Text()
    if len(steps.borders) == 2:
        return text.append(_SIGNS[2] * 2, style=_COLOURS[2]).append(f" {_views.brief(steps.borders[0])} everywhere")
    bounds = ["", *(_views.brief(border) for border in steps.borders)]
    for sign, colour, bound in zip(_SIGNS, _COLOURS, bounds, strict=True):
        text.append(f" {bound} " if bound else "")
        text.append(sign * 2, style=colour)
    return text


def _ruler(heads: int, size: int) -> str:
    """Numbers of heads, every fourth, or every eighth where a head is one column."""
    step, line = (4 if size == 2 else 8), ""
    for head in range(0, heads, step):
        line = line.ljust(head * size) + str(head)
    return line.ljust(heads * size) + "  head"
