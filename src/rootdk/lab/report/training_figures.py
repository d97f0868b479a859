"""Pictures of training runs: lines are means over seeds, bands and bars their confidence intervals, faint marks seeds.

Seeds are shown because an interval of a few of them says little where some have learned and others have not yet.
"""

import math
import re
from collections.abc import Iterable, Sequence
from typing import Any

from rootdk.lab.training import Group, Run, interval

from .drawing import HUES, POWERS, Picture
from .training_traces import (
    Point,
    Points,
    by_rule,
    curves_of,
    decades,
    loss_figure,
    marked,
    plain_figure,
    point_of,
    points_of,
    span_of,
    ticks_of,
)

_STEPS = "step"


def learning_curves(panel: str, groups: Sequence[Group], d_k: int) -> Picture:
    """Loss along training, each line at the learning rate that suits it best."""
    some = _at(groups, d_k)
    traces = curves_of(by_rule(some, lambda run: run.along("loss")))
    means = [trace.y for trace in traces if trace.name]
    span = _span_of_curves(means)
    figure = plain_figure(traces, _STEPS, "loss", yaxis=span)
    caption = f"{_seeds(some)} {_rates(some)}{_diverged(some)}{_cut(span, means)}"
    return Picture(f"curves-{_slug(panel)}-{d_k}", f"Loss along training: {panel}, d_k = {d_k}", caption, figure)


def layer_curves(
    panel: str, groups: Sequence[Group], d_k: int, name: str, label: str, *, log: bool = False
) -> list[Picture]:
    """One number of each layer along training, a picture per layer."""
    some = _at(groups, d_k)
    found = []
    for layer in range(min(one.spec.layers for one in some)):
        traces = curves_of(by_rule(some, lambda run, layer=layer: run.along(name, layer)), log=log)  # type: ignore[misc]
        figure = plain_figure(traces, _STEPS, label, yaxis=POWERS if log else {"range": [0, 1.02]})
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
    points = points_of(some, lambda one: [_final(one, one.spec.d_k, one.best.rate if rate is None else rate)])
    figure = loss_figure(points, "d<sub>k</sub>")
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
    points = points_of(some, lambda one: [_final(one, rate, rate) for rate in one.rates])
    figure = loss_figure(points, "learning rate")
    caption = f"{_seeds(some)}{_missing(points)}"
    return Picture(f"rates-{_slug(panel)}-{d_k}", f"Loss against learning rate: {panel}, d_k = {d_k}", caption, figure)


def entropy_over_rates(panel: str, groups: Sequence[Group], d_k: int) -> Picture:
    """The entropy of the sharpest layer at the end against the learning rate."""
    some = _at(groups, d_k)
    points = points_of(
        some, lambda one: [point_of(rate, (_sharpest(run)[1][-1] for run in one.at(rate).runs)) for rate in one.rates]
    )
    axes = {"xaxis": ticks_of(points), "yaxis": {"range": [0, 1.02]}}
    figure = plain_figure(marked(points), "learning rate", "entropy / ln n", **axes)
    caption = f"{_seeds(some)} The layer with the smallest entropy, on held-out batches."
    title = f"Entropy at the end against learning rate: {panel}, d_k = {d_k}"
    return Picture(f"collapse-{_slug(panel)}-{d_k}", title, caption, figure)


def transplants(panel: str, groups: Sequence[Group], d_k: int) -> list[Picture]:
    """Loss of trained models whose queries and keys are set to one size: against it, and against the largest logit."""
    some = _at(groups, d_k)
    found = []
    for name, label, along in (("kappa", "κ", 0), ("logit", "largest |logit|", 2)):
        points = points_of(some, lambda one, along=along: _transplanted(one.best.runs, along))  # type: ignore[misc]
        figure = loss_figure(points, label, POWERS | {"dtick": 2 if decades(points) > 4 else 1})
        untouched = "; ".join(f"{one.line} {one.best.loss.mean:.3g}" for one in some)
        caption = f"{_seeds(some)} Without transplant the loss is: {untouched}."
        title = f"Transplant, loss against {label}: {panel}, d_k = {d_k}"
        found.append(Picture(f"transplant-{name}-{_slug(panel)}-{d_k}", title, caption, figure))
    return found


def ladder(panel: str, group: Group) -> list[Picture]:
    """One setting at every learning rate: loss, and the entropy of the sharpest layer, along training."""
    spec = group.spec
    found = []
    for name, label, along in (
        ("loss", "loss", lambda run: run.along("loss")),
        ("entropy", "entropy / ln n of the sharpest layer", _sharpest),
    ):
        lines = [(f"{rate:g}", HUES[number % len(HUES)], "solid", [along(run) for run in group.at(rate).runs])
                 for number, rate in enumerate(group.rates)]  # fmt: skip
        traces = curves_of(lines)
        means = [trace.y for trace in traces if trace.name]
        span = _span_of_curves(means) if name == "loss" else {"range": [0, 1.02]}
        figure = plain_figure(traces, _STEPS, label, yaxis=span)
        caption = f"{_seeds([group])} The legend has the learning rates.{_lost(group)}{_cut(span, means)}"
        title = f"{label[0].upper()}{label[1:]} by learning rate: {panel}, {group.line}, d_k = {spec.d_k}"
        found.append(Picture(f"ladder-{name}-{_slug(panel)}-{spec.d_k}", title, caption, figure))
    return found


def _sharpest(run: Run) -> tuple[list[int], list[float | None]]:
    """Steps, and the smallest entropy of any layer at each."""
    steps = [one.step for one in run.moments]
    return steps, [
        min((layer.entropy for layer in one.layers if layer.entropy is not None), default=None) for one in run.moments
    ]


def _transplanted(runs: Sequence[Run], along: int) -> list[Point]:
    """(x, loss over seeds) per kappa; x is the kappa, or the mean over seeds of what it leads to."""
    points = []
    for kappa in dict.fromkeys(one[0] for run in runs for one in run.transplant):
        rows = [one for run in runs for one in run.transplant if one[0] == kappa]
        x = interval(one[along] for one in rows).mean
        if math.isfinite(x):
            points.append(point_of(x, (one[1] for one in rows)))
    return points


def _at(groups: Sequence[Group], d_k: int) -> list[Group]:
    return [one for one in groups if one.spec.d_k == d_k]


def _final(group: Group, x: float, rate: float) -> Point:
    """The loss at the end; none of a run that diverged."""
    return point_of(x, (None if run.diverged else run.last.loss for run in group.at(rate).runs))


def _span_of_curves(means: Sequence[Sequence[float]]) -> dict[str, Any]:
    """For losses after the first look, and no higher than they began: a start or an explosion makes all else flat."""
    top = max((line[0] for line in means if len(line)), default=math.inf)
    return span_of(min(y, top) for line in means for y in line[1:])


def _cut(span: dict[str, Any], means: Iterable[Sequence[float]]) -> str:
    top = span["range"][1] if "range" in span else math.inf
    return " What lies above is cut off." if any(y > top for line in means for y in line) else ""


def _seeds(groups: Sequence[Group]) -> str:
    counts = sorted({len(one.best.runs) for one in groups})
    if counts[-1] == 1:
        return "One seed, so no interval."
    return f"Mean of {counts[0] if len(counts) == 1 else f'{counts[0]} to {counts[-1]}'} seeds with its 95% interval."


def _rates(groups: Sequence[Group]) -> str:
    rates = {rate for one in groups for rate in one.rates}
    if len(rates) == 1:
        return f"Learning rate {min(rates):.3g}, the only one tried."
    return f"Best learning rate of each: {'; '.join(f'{one.line} {one.best.rate:.3g}' for one in groups)}."


def _lost(group: Group) -> str:
    return f" Diverged: {group.diverged} of {len(group.runs)} runs." if group.diverged else ""


def _diverged(groups: Sequence[Group]) -> str:
    lost = [(one, one.best.diverged) for one in groups]
    words = [f"{count} of {len(one.best.runs)} runs of {one.line}" for one, count in lost if count]
    return f" Diverged: {', '.join(words)}." if words else ""


def _missing(points: Points) -> str:
    """Points that a diverged run has no mean at."""
    lost = sum(not math.isfinite(one.over.mean) for some in points.values() for one in some)
    return f" {lost} point{'s' if lost > 1 else ''} with a diverged run not shown." if lost else ""


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower())
