"""Pictures of training runs: lines are means over seeds, bands and bars their confidence intervals."""

import math
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from rootdk.trained import Interval, Run, interval
from rootdk.trained.grouping import Group

from .drawing import POWERS, Picture, colour_of, figure_of, ticks_at

_DASHES = ("solid", "dash", "dot", "dashdot", "longdash")
_STEPS = "step"


def learning_curves(panel: str, groups: Sequence[Group], d_k: int) -> Picture:
    """Loss along training, each line at the learning rate that suits it best."""
    some = _at(groups, d_k)
    traces = _curves(some, lambda run: run.along("loss"))
    figure = _figure(traces, _STEPS, "loss", yaxis=_not_above_the_start(some))
    caption = f"{_seeds(some)} Best learning rate of each: {_rates(some)}.{_diverged(some)}"
    return Picture(f"curves-{_slug(panel)}-{d_k}", f"Loss along training: {panel}, d_k = {d_k}", caption, figure)


def layer_curves(
    panel: str, groups: Sequence[Group], d_k: int, name: str, label: str, *, log: bool = False
) -> list[Picture]:
    """One number of each layer along training, a picture per layer."""
    some = _at(groups, d_k)
    found = []
    for layer in range(min(one.spec.layers for one in some)):
        traces = _curves(some, lambda run, layer=layer: run.along(name, layer), log=log)  # type: ignore[misc]
        figure = _figure(traces, _STEPS, label, yaxis=POWERS if log else {"range": [0, 1.02]})
        mean = " Means are geometric." if log else ""
        found.append(
            Picture(
                f"{name}-{_slug(panel)}-{d_k}-{layer}",
                f"{label[0].upper()}{label[1:]}, layer {layer + 1} of {some[0].spec.layers}: {panel}, d_k = {d_k}",
                f"{_seeds(some)}{mean} Each at its best learning rate.",
                figure,
            )
        )
    return found


def over_d_k(panel: str, groups: Sequence[Group], rate: float | None = None) -> Picture:
    """Loss at the end against d_k: at one learning rate for all, or at the best of each."""
    some = [one for one in groups if rate is None or rate in one.rates]
    points = _points(some, lambda one: [(one.spec.d_k, one.final(one.best_rate if rate is None else rate))])
    figure = _figure(_marked(points), "d<sub>k</sub>", "loss", xaxis=ticks_at(_xs(points)), yaxis=_from_zero(points))
    if rate is None:
        return Picture(
            f"best-{_slug(panel)}",
            f"Loss at the end, best learning rate: {panel}",
            f"{_seeds(some)} Each point has the learning rate, of those tried, that is best for it.{_missing(points)}",
            figure,
        )
    title, caption = f"Loss at the end, one learning rate: {panel}", f"{_seeds(some)} Learning rate {rate:g} for all."
    return Picture(f"equal-{_slug(panel)}", title, caption + _missing(points), figure)


def over_rates(panel: str, groups: Sequence[Group], d_k: int) -> Picture:
    """Loss at the end against the learning rate."""
    some = _at(groups, d_k)
    points = _points(some, lambda one: [(rate, one.final(rate)) for rate in one.rates])
    figure = _figure(_marked(points), "learning rate", "loss", xaxis=ticks_at(_xs(points)), yaxis=_from_zero(points))
    caption = f"{_seeds(some)}{_missing(points)}"
    return Picture(f"rates-{_slug(panel)}-{d_k}", f"Loss against learning rate: {panel}, d_k = {d_k}", caption, figure)


def entropy_over_rates(panel: str, groups: Sequence[Group], d_k: int) -> Picture:
    """The entropy of the sharpest layer at the end against the learning rate."""
    some = _at(groups, d_k)

    def sharpest(run: Run) -> float | None:
        return min((one.entropy for one in run.last.layers if one.entropy is not None), default=None)

    points = _points(some, lambda one: [(rate, interval(map(sharpest, one.at(rate)))) for rate in one.rates])
    axes = {"xaxis": ticks_at(_xs(points)), "yaxis": {"range": [0, 1.02]}}
    figure = _figure(_marked(points), "learning rate", "entropy / ln n", **axes)
    caption = f"{_seeds(some)} The layer with the smallest entropy, on held-out batches."
    title = f"Entropy at the end against learning rate: {panel}, d_k = {d_k}"
    return Picture(f"collapse-{_slug(panel)}-{d_k}", title, caption, figure)


def transplants(panel: str, groups: Sequence[Group], d_k: int) -> list[Picture]:
    """Loss of trained models whose queries and keys are set to one size: against it, and against the largest logit."""
    some = _at(groups, d_k)
    found = []
    for name, label, along in (("kappa", "κ", 0), ("logit", "largest |logit|", 2)):
        points = _points(some, lambda one, along=along: _transplanted(one.best, along))  # type: ignore[misc]
        axes = {"xaxis": POWERS | {"dtick": 1}, "yaxis": _from_zero(points)}
        figure = _figure(_marked(points), label, "loss", **axes)
        untouched = "; ".join(f"{one.line} {one.final(one.best_rate).mean:.3g}" for one in some)
        caption = f"{_seeds(some)} Without transplant the loss is: {untouched}."
        title = f"Transplant, loss against {label}: {panel}, d_k = {d_k}"
        found.append(Picture(f"transplant-{name}-{_slug(panel)}-{d_k}", title, caption, figure))
    return found


def _transplanted(runs: Sequence[Run], along: int) -> list[tuple[float, Interval]]:
    """(x, loss over seeds) per kappa; x is the kappa, or the mean over seeds of what it leads to."""
    points = []
    for kappa in dict.fromkeys(one[0] for run in runs for one in run.transplant):
        rows = [one for run in runs for one in run.transplant if one[0] == kappa]
        x = interval(one[along] for one in rows).mean
        if math.isfinite(x):
            points.append((x, interval(one[1] for one in rows)))
    return points


def _figure(traces: list[Any], x: str, y: str, **axes: Any) -> dict[str, Any]:
    """With a legend even where one line is all there is: it is the only place that names it."""
    return figure_of(traces, x, y, showlegend=True, **axes)


def _at(groups: Sequence[Group], d_k: int) -> list[Group]:
    return [one for one in groups if one.spec.d_k == d_k]


Points = dict[str, list[tuple[float, Interval]]]


def _points(groups: Iterable[Group], of: Callable[[Group], Iterable[tuple[float, Interval]]]) -> Points:
    """Per line, in the order of x."""
    found: Points = {}
    for one in groups:
        found.setdefault(one.line, []).extend(of(one))
    return {name: sorted(some, key=lambda point: point[0]) for name, some in found.items()}


def _xs(points: Points) -> list[float]:
    return [x for some in points.values() for x, _ in some]


def _style(name: str, number: int, names: Sequence[str]) -> tuple[str, str]:
    """Colour by rule; what is special about a line of the same rule shows in its dashes."""
    rule = name.partition(",")[0]
    alike = [one for one in names if one.partition(",")[0] == rule]
    return colour_of(rule, number), _DASHES[alike.index(name) % len(_DASHES)]


def _marked(points: Points) -> list[Any]:
    import plotly.graph_objects as go

    traces = []
    for number, (name, some) in enumerate(points.items()):
        colour, dash = _style(name, number, list(points))
        # Side by side, so that the bars of error can be told apart; the axes are logarithmic.
        aside = 1.04 ** (number - (len(points) - 1) / 2)
        traces.append(
            go.Scatter(
                x=[x * aside for x, _ in some], y=[_finite(one.mean) for _, one in some], name=_shown(name),
                mode="lines+markers", line={"color": colour, "width": 2, "dash": dash}, marker={"size": 7},
                error_y={"type": "data", "array": [_finite(one.half) or 0.0 for _, one in some], "color": colour},
                hovertemplate="%{y:.4g}",
            )
        )  # fmt: skip
    return traces


def _curves(groups: Sequence[Group], along: Callable[[Run], Any], *, log: bool = False) -> list[Any]:
    """A line and a band per group, up to the first step at which one of its seeds has no number any more."""
    import plotly.graph_objects as go

    traces = []
    names = [one.line for one in groups]
    for number, one in enumerate(groups):
        colour, dash = _style(one.line, number, names)
        steps, means, low, high = _band([along(run) for run in one.best], log)
        traces.append(
            go.Scatter(
                x=steps + steps[::-1], y=high + low[::-1], fill="toself", fillcolor=_faint(colour), mode="lines",
                line={"width": 0}, hoverinfo="skip", showlegend=False, legendgroup=one.line,
            )
        )  # fmt: skip
        traces.append(
            go.Scatter(
                x=steps, y=means, name=_shown(one.line), legendgroup=one.line, mode="lines",
                line={"color": colour, "width": 2, "dash": dash}, hovertemplate="%{y:.4g}",
            )
        )  # fmt: skip
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
    return f"rgba({red}, {green}, {blue}, 0.18)"


def _shown(name: str) -> str:
    """A name in a legend of plotly, which knows subscripts."""
    return name.replace("d_k", "d<sub>k</sub>").replace("qk_", "qk ")


def _not_above_the_start(groups: Sequence[Group]) -> dict[str, Any]:
    """From 0 to a little over the losses at the start: one run that explodes must not make the others flat."""
    starts = [run.moments[0].loss for one in groups for run in one.best]
    top = max((one for one in starts if one is not None), default=None)
    return {"rangemode": "tozero"} if top is None else {"range": [0, 1.15 * top]}


def _from_zero(points: Points) -> dict[str, Any]:
    """From 0 to a little over the largest mean, so that a wide interval of few seeds does not make the rest flat."""
    top = max((one.mean for some in points.values() for _, one in some if math.isfinite(one.mean)), default=1.0)
    return {"range": [0, 1.25 * top]}


def _seeds(groups: Sequence[Group]) -> str:
    counts = sorted({len(one.best) for one in groups})
    if counts[-1] == 1:
        return "One seed, so no interval."
    return f"Mean of {counts[0] if len(counts) == 1 else f'{counts[0]} to {counts[-1]}'} seeds with its 95% interval."


def _rates(groups: Sequence[Group]) -> str:
    return "; ".join(f"{one.line} {one.best_rate:.3g}" for one in groups)


def _diverged(groups: Sequence[Group]) -> str:
    lost = [(one, sum(run.diverged for run in one.best)) for one in groups]
    words = [f"{count} of {len(one.best)} runs of {one.line}" for one, count in lost if count]
    return f" Diverged: {', '.join(words)}." if words else ""


def _missing(points: Points) -> str:
    """Points that a diverged run has no mean at."""
    lost = sum(not math.isfinite(one.mean) for some in points.values() for _, one in some)
    return f" {lost} point{'s' if lost > 1 else ''} with a diverged run not shown." if lost else ""


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower())
