"""The summary of a training study: 80 columns, a row per task, rule and d_k, at its best learning rate."""

import math
from collections.abc import Iterator

from rootdk import _views
from rootdk.trained import Results
from rootdk.trained.grouping import Group, grouped, unusual
from rootdk.trained.interval import Interval

WIDTH = 80
_SHORT = {"optimizer": "", "learning_rate": "rate "}


def lines(results: Results) -> Iterator[str]:
    """Line by line; loss and accuracy belong to batches that were not trained on."""
    groups = grouped(results.runs)
    seeds = sorted({len(one.best) for one in groups})
    counted = f"{seeds[0]}" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    yield f"{len(results.runs)} runs. Loss at the end at the best learning rate, {counted} seeds, ± 95% interval"
    names = unusual(groups)
    for task in dict.fromkeys(one.task for one in groups):
        some = [one for one in groups if one.task == task]
        steps = sorted({one.steps for one in some})
        yield ""
        yield f"{task}, {' or '.join(map(str, steps))} steps"
        yield f"{'rule':<17} {'d_k':>4}  {'loss':>15}  {'accuracy':>8}  {'rate':>7}  {'diverged':>8}".rstrip()
        for one in sorted(some, key=lambda one: one.d_k):
            yield f"{_row(one)}  {_more(one, names)}".rstrip()[:WIDTH]


def _row(one: Group) -> str:
    rate = one.best_rate
    accuracy = one.final(rate, "accuracy").mean
    right = f"{100 * accuracy:.1f}%" if math.isfinite(accuracy) else "-"
    lost = f"{one.diverged} of {sum(len(one.at(rate)) for rate in one.rates)}" if one.diverged else "-"
    return f"{one.rule:<17} {one.d_k:>4}  {spread(one.final(rate)):>15}  {right:>8}  {rate:>7g}  {lost:>8}"


def spread(found: Interval) -> str:
    """mean ± half, or the mean alone where one seed says nothing about others.

    >>> spread(Interval(1.2345, 0.0678, 3)), spread(Interval(float("inf"), float("inf"), 3))
    ('1.234 ± 0.068', 'diverged')
    """
    if not math.isfinite(found.mean):
        return "diverged"
    if found.half is None:
        return f"{found.mean:.3f}"
    return f"{found.mean:.3f} ± {found.half:.3f}"


def _more(one: Group, names: tuple[str, ...]) -> str:
    """What sets this row apart from others with the same task, rule and d_k; the number of steps is in the heading."""
    parts = []
    for name in names:
        value = getattr(one, name)
        if name != "steps":
            parts.append(value if isinstance(value, str) else f"{name} {_views.short(value)}")
    return ", ".join(parts)
