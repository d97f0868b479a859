"""Pictures of training runs: lines are means over seeds, bands and bars their confidence intervals, faint marks seeds.

Seeds are shown because an interval of a few of them says little where some have learned and others have not yet.
"""

import math
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from rootdk.lab.drawing import HUES, POWERS, Picture, colour_of, plot, short, ticks_at
from rootdk.lab.training import Group, Interval, Run, interval
from rootdk.lab.training.results import METRICS, steps_in_budget, steps_to

_DASHES = ("solid", "dash", "dot", "dashdot", "longdash")


class Point(NamedTuple):
    """A number over seeds, at x."""

    x: float
    over: Interval
    seeds: tuple[float, ...]


Points = dict[str, list[Point]]
Line = tuple[str, str, str, list[Any]]  # name, colour, dash, and a curve (steps, values) per seed


def learning_curves(panel: str, groups: Sequence[Group], d_k: int) -> Picture:
    """Loss along training, each line at the best of the learning rates tried."""
    chosen = _at(groups, d_k)
    traces = curves_of(by_rule(chosen, lambda run: run.along("loss")))
    means = [trace["y"] for trace in traces if trace.get("name")]
    span = _span_of_curves(means)
    figure = plain_figure(traces, "step", "loss", yaxis=span)
    caption = f"{_seeds(chosen)} {_rates(chosen)}{_ended(chosen)}{_diverged(chosen)}{_cut(span, means)}"
    return Picture(f"curves-{slug(panel)}-{d_k}", f"Loss along training: {panel}, d_k = {d_k}", caption, figure)


def layer_curves(
    panel: str, groups: Sequence[Group], d_k: int, name: str, label: str, *, log: bool = False
) -> list[Picture]:
    """One number of each layer along training, a picture per layer."""
    chosen = _at(groups, d_k)
    pictures = []
    for layer in range(min(group.spec.layers for group in chosen)):
        traces = curves_of(by_rule(chosen, lambda run, layer=layer: run.along(name, layer)), log=log)  # type: ignore[misc]
        figure = plain_figure(traces, "step", label, yaxis=POWERS if log else {"range": [0, 1.02]})
        mean = " Means are geometric." if log else ""
        pictures.append(
            Picture(
                f"{name}-{slug(panel)}-{d_k}-{layer}",
                f"{_sentence(label)}, layer {layer + 1} of {chosen[0].spec.layers}: {panel}, d_k = {d_k}",
                f"{_seeds(chosen)}{mean} {_rates(chosen)}{_ended(chosen)}",
                figure,
            )
        )
    return pictures


def over_d_k(panel: str, groups: Sequence[Group], rate: float | None = None) -> Picture:
    """What a run is judged by against d_k: at one learning rate for all, or at the best of those tried for each."""
    chosen = [group for group in groups if rate is None or rate in group.rates]
    points = points_of(chosen, lambda group: [_final(group, group.spec.d_k, group.best.rate if rate is None else rate)])
    label = judged_by(chosen[0])
    figure = loss_figure(points, "d_k", label=label)
    quantity = _sentence(label)
    if rate is None:
        several = any(len(group.rates) > 1 for group in chosen)
        each = "Each point has the learning rate, of those tried, that the validation set chose."
        caption = f"{_seeds(chosen)} {each if several else _rates(chosen)}{_edges(chosen)}"
        title = f"{quantity}, {'best learning rate' if several else 'one learning rate each'}: {panel}"
        return Picture(f"best-{slug(panel)}", title, f"{caption}{_missing(points)}{_censored(chosen)}", figure)
    title, caption = f"{quantity}, one learning rate: {panel}", f"{_seeds(chosen)} Learning rate {rate:g} for all."
    return Picture(f"equal-{slug(panel)}", title, f"{caption}{_missing(points)}{_censored(chosen, rate)}", figure)


def over_rates(panel: str, groups: Sequence[Group], d_k: int) -> Picture:
    """What a run is judged by against the learning rate."""
    chosen = _at(groups, d_k)
    points = points_of(chosen, lambda group: [_final(group, rate, rate) for rate in group.rates])
    label = judged_by(chosen[0])
    figure = loss_figure(points, "learning rate", label=label)
    rates = {rate for group in chosen for rate in group.rates}
    caption = f"{_seeds(chosen)}{_missing(points)}{_censored(chosen, *rates)}"
    title = f"{_sentence(label)} against learning rate: {panel}, d_k = {d_k}"
    return Picture(f"rates-{slug(panel)}-{d_k}", title, caption, figure)


def judged_by(group: Group) -> str:
    """What the runs of a group are compared by, in words."""
    return "steps to 90 % right" if group.spec.stop == "learned" else "lowest loss"


def entropy_over_rates(panel: str, groups: Sequence[Group], d_k: int) -> Picture:
    """The entropy of the sharpest layer at the end against the learning rate."""
    chosen = _at(groups, d_k)
    points = points_of(chosen, lambda group: [_sharpest_at_the_end(group, rate) for rate in group.rates])
    axes = {"xaxis": ticks_at(_xs(points)), "yaxis": {"range": [0, 1.02]}}
    figure = plain_figure(marked(points), "learning rate", "entropy share", **axes)
    caption = f"{_seeds(chosen)} The layer with the smallest entropy, on held-out batches."
    title = f"Entropy at the end against learning rate: {panel}, d_k = {d_k}"
    return Picture(f"collapse-{slug(panel)}-{d_k}", title, caption, figure)


def transplants(panel: str, groups: Sequence[Group], d_k: int) -> list[Picture]:
    """Loss of trained models whose queries and keys are set to one size: against it, and against the largest logit."""
    chosen = _at(groups, d_k)
    pictures = []
    for name, label, along in (("kappa", "κ", 0), ("logit", "largest |logit|", 2)):
        points = points_of(chosen, lambda group, along=along: _transplanted(group.best.runs, along))  # type: ignore[misc]
        xs = _xs(points)
        figure = loss_figure(points, label, POWERS | {"dtick": 2 if xs and max(xs) > 1e4 * min(xs) else 1})
        untouched = "; ".join(f"{group.line} {group.best.loss.mean:.3g}" for group in chosen)
        caption = f"{_seeds(chosen)} Without transplant the loss is: {untouched}."
        title = f"Transplant, loss against {label}: {panel}, d_k = {d_k}"
        pictures.append(Picture(f"transplant-{name}-{slug(panel)}-{d_k}", title, caption, figure))
    return pictures


def ladder(panel: str, group: Group) -> list[Picture]:
    """One setting at every learning rate: loss, and the entropy of the sharpest layer, along training."""
    spec = group.spec
    lost = f" Diverged: {group.diverged} of {len(group.runs)} runs." if group.diverged else ""
    pictures = []
    for name, label, along in (
        ("loss", "loss", lambda run: run.along("loss")),
        ("entropy", "entropy share of the sharpest layer", _sharpest),
    ):
        lines = [(f"{rate:g}", HUES[number % len(HUES)], "solid", [along(run) for run in group.at(rate).runs])
                 for number, rate in enumerate(group.rates)]  # fmt: skip
        traces = curves_of(lines)
        means = [trace["y"] for trace in traces if trace.get("name")]
        span = _span_of_curves(means) if name == "loss" else {"range": [0, 1.02]}
        figure = plain_figure(traces, "step", label, yaxis=span)
        caption = f"{_seeds([group])} The legend has the learning rates.{lost}{_cut(span, means)}"
        title = f"{_sentence(label)} by learning rate: {panel}, {group.line}, d_k = {spec.d_k}"
        pictures.append(Picture(f"ladder-{name}-{slug(panel)}-{spec.d_k}", title, caption, figure))
    return pictures


def _sharpest(run: Run) -> tuple[list[int], list[float | None]]:
    """Steps at which layers were looked at, and the smallest entropy of any of them."""
    inside = [moment for moment in run.moments if moment.layers]
    return [moment.step for moment in inside], [
        min((layer.entropy for layer in moment.layers if layer.entropy is not None), default=None) for moment in inside
    ]


def _sharpest_at_the_end(group: Group, rate: float) -> Point:
    return point_of(rate, (_sharpest(run)[1][-1] for run in group.at(rate).runs))


def _transplanted(runs: Sequence[Run], along: int) -> list[Point]:
    """(x, loss over seeds) per kappa; x is the kappa, or the mean over seeds of what it leads to."""
    points = []
    for kappa in dict.fromkeys(row[0] for run in runs for row in run.transplant):
        rows = [row for run in runs for row in run.transplant if row[0] == kappa]
        x = interval(row[along] for row in rows).mean
        if math.isfinite(x):
            points.append(point_of(x, (row[1] for row in rows)))
    return points


def _at(groups: Sequence[Group], d_k: int) -> list[Group]:
    return [group for group in groups if group.spec.d_k == d_k]


def _final(group: Group, x: float, rate: float) -> Point:
    """Steps to 90 %, or the loss where that of the validation set is lowest; none of a run that diverged."""
    runs = group.at(rate).runs
    if group.spec.stop == "learned":
        return point_of(x, map(steps_in_budget, runs))
    return point_of(x, (None if run.diverged else METRICS["loss"](run) for run in runs))


def _span_of_curves(means: Sequence[Sequence[float]]) -> dict[str, Any]:
    """An axis for losses after the first look, no higher than at the start, which would flatten all other lines."""
    top = max((line[0] for line in means if len(line)), default=math.inf)
    return span_of(min(y, top) for line in means for y in line[1:])


def _cut(span: dict[str, Any], means: Iterable[Sequence[float]]) -> str:
    top = span["range"][1] if "range" in span else math.inf
    return " What lies above is cut off." if any(y > top for line in means for y in line) else ""


def _seeds(groups: Sequence[Group]) -> str:
    counts = sorted({len(group.best.runs) for group in groups})
    if counts[-1] == 1:
        return "One seed, so no interval."
    return f"Mean of {counts[0] if len(counts) == 1 else f'{counts[0]} to {counts[-1]}'} seeds with its 95% interval."


# Of more lines than these a caption does not name each.
_NAMED = 6


def _rates(groups: Sequence[Group]) -> str:
    rates = {rate for group in groups for rate in group.rates}
    if len(rates) == 1:
        return f"Learning rate {min(rates):.3g}, the only one tried."
    if len(groups) > _NAMED:
        return f"Each at the learning rate that the validation set chose: the table at the end.{_edges(groups)}"
    each = "; ".join(f"{group.line} {group.best.rate:.3g}" for group in groups)
    return f"Learning rates, of those tried the best by the validation set: {each}.{_edges(groups)}"


def _edges(groups: Sequence[Group]) -> str:
    """Where a better learning rate may lie beyond those tried: the best is at an end of them, or the only one."""
    names = [(f"{group.line}, d_k = {group.spec.d_k}", group.edge) for group in groups]
    ends = [f"{name} ({edge})" for name, edge in names if edge in {"lowest", "highest"}]
    only = [name for name, edge in names if edge == "only"]
    text = f" At an end of the rates tried: {'; '.join(ends)}." if ends else ""
    # Where no line has a second rate, the caption has said so.
    if 0 < len(only) < len(groups):
        words = f"{len(only)} lines" if len(groups) > _NAMED and len(only) > 1 else "; ".join(only)
        text += f" One rate alone was tried: {words}."
    return text


def _ended(groups: Sequence[Group]) -> str:
    early = any(len({run.last.step for run in group.best.runs}) > 1 for group in groups)
    return " A run that has ended keeps its last value." if early else ""


def _censored(groups: Sequence[Group], *rates: float) -> str:
    """How many runs did not come to 90 %, at these rates or at the best of each."""
    runs = [run for group in groups if group.spec.stop == "learned" for rate in rates or (group.best.rate,)
            for run in group.at(rate).runs]  # fmt: skip
    late = sum(steps_to(run) is None for run in runs)
    return f" {late} of {len(runs)} runs did not come so far, and stand at their budget." if late else ""


def _diverged(groups: Sequence[Group]) -> str:
    lost = [(group, group.best.diverged) for group in groups]
    words = [f"{count} of {len(group.best.runs)} runs of {group.line}" for group, count in lost if count]
    return f" Diverged: {', '.join(words)}." if words else ""


def _missing(points: Points) -> str:
    """Points without a mean, because a run diverged."""
    lost = sum(not math.isfinite(point.over.mean) for chosen in points.values() for point in chosen)
    return f" {lost} point{'s' if lost > 1 else ''} with a diverged run not shown." if lost else ""


def slug(text: str) -> str:
    """A name as it is in an address.

    >>> slug("recall, 300 steps")
    'recall-300-steps'
    """
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def _sentence(label: str) -> str:
    return label[0].upper() + label[1:]


def point_of(x: float, values: Iterable[float | None]) -> Point:
    """A point of these values; None is a run that has none, which the interval counts as infinite."""
    over_seeds = list(values)
    return Point(x, interval(over_seeds), tuple(value for value in over_seeds if value is not None))


def points_of(groups: Iterable[Group], of: Callable[[Group], Iterable[Point]]) -> Points:
    """Per line, in the order of x."""
    by_line: Points = {}
    for group in groups:
        by_line.setdefault(group.line, []).extend(of(group))
    return {name: sorted(points, key=lambda point: point.x) for name, points in by_line.items()}


def _xs(points: Points) -> list[float]:
    return [point.x for line in points.values() for point in line]


def plain_figure(traces: list[Any], x: str, y: str, **axes: Any) -> dict[str, Any]:
    """With a legend even for a single line: nothing else names it."""
    return plot(traces, x, y, showlegend=True, **axes)


def loss_figure(points: Points, x: str, axis: dict[str, Any] | None = None, label: str = "loss") -> dict[str, Any]:
    """Loss against x, which is logarithmic: ticks where something was measured, if no others are asked for."""
    losses = [y for line in points.values() for point in line for y in (point.over.mean, *point.seeds)]
    return plain_figure(marked(points), x, label, xaxis=axis or ticks_at(_xs(points)), yaxis=span_of(losses))


def _style(name: str, number: int, names: Sequence[str]) -> tuple[str, str]:
    """Colour by rule; what is special about a line of the same rule shows in its dashes."""
    rule = name.partition(",")[0]
    alike = [name for name in names if name.partition(",")[0] == rule]
    return colour_of(rule, number), _DASHES[alike.index(name) % len(_DASHES)]


def marked(points: Points) -> list[dict[str, Any]]:
    """A line with bars of error, and faint seeds, for each."""
    traces = []
    for number, (name, line) in enumerate(points.items()):
        colour, dash = _style(name, number, list(points))
        # Side by side, so that the error bars do not overlap; the axes are logarithmic.
        aside = 1.04 ** (number - (len(points) - 1) / 2)
        seeds = [(point.x * aside, y) for point in line for y in point.seeds if len(point.seeds) > 1]
        halves = [_finite(point.over.half) or 0.0 for point in line]
        traces.append(
            {
                "type": "scatter", "x": short([x for x, _ in seeds]), "y": short([y for _, y in seeds]),
                "mode": "markers", "marker": {"color": colour, "size": 5, "opacity": 0.45}, "legendgroup": name,
                "showlegend": False, "hoverinfo": "skip",
            }
        )  # fmt: skip
        traces.append(
            {
                "type": "scatter", "x": short([point.x * aside for point in line]),
                "y": short([_finite(point.over.mean) for point in line]), "name": name.replace("qk_", "qk "),
                "mode": "lines+markers", "line": {"color": colour, "width": 2, "dash": dash}, "marker": {"size": 7},
                "error_y": {"type": "data", "array": short(halves), "color": colour}, "legendgroup": name,
                "hovertemplate": "%{y:.4g}",
            }
        )  # fmt: skip
    return traces


def by_rule(groups: Sequence[Group], along: Callable[[Run], Any]) -> list[Line]:
    """A line per group, at its best learning rate."""
    names = [group.line for group in groups]
    return [
        (group.line, *_style(group.line, number, names), [along(run) for run in group.best.runs])
        for number, group in enumerate(groups)
    ]


def curves_of(lines: Sequence[Line], *, log: bool = False) -> list[dict[str, Any]]:
    """A line, a band and faint seeds for each; line and band end where a seed has no number any more."""
    traces: list[dict[str, Any]] = []
    for name, colour, dash, curves in lines:
        steps, means, low, high = _band(curves, log)
        faint = {"type": "scatter", "mode": "lines", "hoverinfo": "skip", "showlegend": False, "legendgroup": name}
        band = {"fill": "toself", "fillcolor": _faint(colour), "line": {"width": 0}}
        traces.append({"x": steps + steps[::-1], "y": short(high + low[::-1]), **band, **faint})
        if len(curves) > 1:
            thin = {"line": {"color": colour, "width": 0.8}, "opacity": 0.55}
            traces += [{"x": list(x), "y": short(y), **thin, **faint} for x, y in curves]
        drawn = {"type": "scatter", "mode": "lines", "line": {"color": colour, "width": 2.5, "dash": dash}}
        shown = {"name": name.replace("qk_", "qk "), "legendgroup": name, "hovertemplate": "%{y:.4g}"}
        traces.append({"x": steps, "y": short(means), **drawn, **shown})
    return traces


def _band(curves: Sequence[Any], log: bool) -> tuple[list[int], list[float], list[float], list[float]]:
    """Steps, means and both ends of the interval, of curves (steps, values). What has ended keeps its last value."""
    into, back = (math.log, math.exp) if log else (float, float)
    steps, means, low, high = [], [], [], []
    at = [dict(zip(*curve, strict=True)) for curve in curves]
    for step in sorted(set().union(*at)):
        values = [values.get(step, curve[1][-1]) for values, curve in zip(at, curves, strict=True)]
        if any(step not in values and step < curve[0][-1] for values, curve in zip(at, curves, strict=True)):
            continue  # the last look into the layers of one run; another run went further
        if any(value is None or (log and value <= 0) for value in values):
            break
        over_seeds = interval(into(value) for value in values)
        half = over_seeds.half or 0.0
        steps.append(step)
        means.append(back(over_seeds.mean))
        low.append(back(over_seeds.mean - half))
        high.append(back(over_seeds.mean + half))
    return steps, means, low, high


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _faint(colour: str) -> str:
    red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return f"rgba({red}, {green}, {blue}, 0.14)"


def span_of(values: Iterable[float | None]) -> dict[str, Any]:
    """An axis for these values, from 0 where they come near it; intervals may reach beyond it."""
    known = [value for value in values if value is not None and math.isfinite(value)]
    if not known:
        return {"rangemode": "tozero"}
    low, high = min(known), max(known)
    margin = 0.12 * (high - low) or 0.05 * high
    return {"range": [0.0 if low < 0.4 * high else low - margin, high + margin]}
