"""How training runs become lines: numbers over seeds at points, curves with bands, in the colours of their rules."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from rootdk.lab.training import Group, Interval, Run, interval

from .drawing import colour_of, figure_of, ticks_at

_DASHES = ("solid", "dash", "dot", "dashdot", "longdash")


class Point(NamedTuple):
    """A number over seeds, at x."""

    x: float
    over: Interval
    seeds: tuple[float, ...]


Points = dict[str, list[Point]]


def point_of(x: float, values: Iterable[float | None]) -> Point:
    """A point of these values; None is a run that has none, which the interval counts as infinite."""
    some = list(values)
    return Point(x, interval(some), tuple(one for one in some if one is not None))


def points_of(groups: Iterable[Group], of: Callable[[Group], Iterable[Point]]) -> Points:
    """Per line, in the order of x."""
    found: Points = {}
    for one in groups:
        found.setdefault(one.line, []).extend(of(one))
    return {name: sorted(some, key=lambda point: point.x) for name, some in found.items()}


def ticks_of(points: Points) -> dict[str, Any]:
    """A logarithmic axis with ticks where something was measured."""
    return ticks_at(_xs(points))


def _xs(points: Points) -> list[float]:
    return [one.x for some in points.values() for one in some]


def decades(points: Points) -> float:
    """How many powers of ten the points stretch over."""
    xs = _xs(points)
    return math.log10(max(xs) / min(xs)) if xs else 0.0


def plain_figure(traces: list[Any], x: str, y: str, **axes: Any) -> dict[str, Any]:
    """With a legend even where one line is all there is: it is the only place that names it."""
    return figure_of(traces, x, y, showlegend=True, **axes)


def loss_figure(points: Points, x: str, axis: dict[str, Any] | None = None) -> dict[str, Any]:
    """Loss against x, which is logarithmic: ticks where something was measured, if no others are asked for."""
    seen = [y for some in points.values() for one in some for y in (one.over.mean, *one.seeds)]
    return plain_figure(marked(points), x, "loss", xaxis=axis or ticks_of(points), yaxis=span_of(seen))


def _style(name: str, number: int, names: Sequence[str]) -> tuple[str, str]:
    """Colour by rule; what is special about a line of the same rule shows in its dashes."""
    rule = name.partition(",")[0]
    alike = [one for one in names if one.partition(",")[0] == rule]
    return colour_of(rule, number), _DASHES[alike.index(name) % len(_DASHES)]


def marked(points: Points) -> list[Any]:
    """A line with bars of error, and faint seeds, for each."""
    import plotly.graph_objects as go

    traces = []
    for number, (name, some) in enumerate(points.items()):
        colour, dash = _style(name, number, list(points))
        # Side by side, so that the bars of error can be told apart; the axes are logarithmic.
        aside = 1.04 ** (number - (len(points) - 1) / 2)
        seeds = [(one.x * aside, y) for one in some for y in one.seeds if len(one.seeds) > 1]
        traces.append(
            go.Scatter(
                x=[x for x, _ in seeds], y=[y for _, y in seeds], mode="markers", legendgroup=name, showlegend=False,
                marker={"color": colour, "size": 5, "opacity": 0.45}, hoverinfo="skip",
            )
        )  # fmt: skip
        traces.append(
            go.Scatter(
                x=[one.x * aside for one in some], y=[_finite(one.over.mean) for one in some], name=_shown(name),
                mode="lines+markers", line={"color": colour, "width": 2, "dash": dash}, marker={"size": 7},
                error_y={"type": "data", "array": [_finite(one.over.half) or 0.0 for one in some], "color": colour},
                legendgroup=name, hovertemplate="%{y:.4g}",
            )
        )  # fmt: skip
    return traces


Line = tuple[str, str, str, list[Any]]  # name, colour, dash, and a curve (steps, values) per seed


def by_rule(groups: Sequence[Group], along: Callable[[Run], Any]) -> list[Line]:
    """A line per group, at its best learning rate."""
    names = [one.line for one in groups]
    return [
        (one.line, *_style(one.line, number, names), [along(run) for run in one.best.runs])
        for number, one in enumerate(groups)
    ]


def curves_of(lines: Sequence[Line], *, log: bool = False) -> list[Any]:
    """A line, a band and faint seeds for each; line and band end where a seed has no number any more."""
    import plotly.graph_objects as go

    traces = []
    for name, colour, dash, curves in lines:
        steps, means, low, high = _band(curves, log)
        faint = {"mode": "lines", "hoverinfo": "skip", "showlegend": False, "legendgroup": name}
        band = {"fill": "toself", "fillcolor": _faint(colour), "line": {"width": 0}}
        traces.append(go.Scatter(x=steps + steps[::-1], y=high + low[::-1], **band, **faint))
        if len(curves) > 1:
            thin = {"line": {"color": colour, "width": 0.8}, "opacity": 0.55}
            traces += [go.Scatter(x=x, y=y, **thin, **faint) for x, y in curves]
        line = {"color": colour, "width": 2.5, "dash": dash}
        shown = {"name": _shown(name), "legendgroup": name, "hovertemplate": "%{y:.4g}"}
        traces.append(go.Scatter(x=steps, y=means, mode="lines", line=line, **shown))
    return traces


def _band(curves: Sequence[Any], log: bool) -> tuple[list[int], list[float], list[float], list[float]]:
    """Steps, means and both ends of the interval, of curves (steps, values)."""
    into, back = (math.log, math.exp) if log else (float, float)
    steps, means, low, high = [], [], [], []
    shortest = min(len(one[0]) for one in curves)
    for at, step in enumerate(curves[0][0][:shortest]):
        values = [one[1][at] for one in curves]
        if any(one is None or (log and one <= 0) for one in values):
            break
        found = interval(into(one) for one in values)
        half = found.half or 0.0
        steps.append(step)
        means.append(back(found.mean))
        low.append(back(found.mean - half))
        high.append(back(found.mean + half))
    return steps, means, low, high


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _faint(colour: str) -> str:
    red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return f"rgba({red}, {green}, {blue}, 0.14)"


def _shown(name: str) -> str:
    """A name in a legend of plotly, which knows subscripts."""
    return name.replace("d_k", "d<sub>k</sub>").replace("qk_", "qk ")


def span_of(values: Iterable[float | None]) -> dict[str, Any]:
    """An axis for these values, from 0 where they come near it; intervals may reach beyond it."""
    some = [one for one in values if one is not None and math.isfinite(one)]
    if not some:
        return {"rangemode": "tozero"}
    low, high = min(some), max(some)
    room = 0.12 * (high - low) or 0.05 * high
    return {"range": [0.0 if low < 0.4 * high else low - room, high + room]}
