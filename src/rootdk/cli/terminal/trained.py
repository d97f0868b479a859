"""The summary of a training study: 80 columns, a row per task, rule and d_k, at its best learning rate."""

import math
import textwrap
from collections.abc import Iterator

from rootdk.lab.training import Group, Interval, Results, grouped, panels

WIDTH = 80
_NAME = 28


def lines(results: Results) -> Iterator[str]:
    """Line by line; loss and accuracy belong to batches that were not trained on."""
    groups = grouped(results.runs)
    seeds = sorted({len(one.best.runs) for one in groups})
    counted = f"{seeds[0]}" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    sure = f"{counted} seeds ± 95% interval" if seeds[-1] > 1 else "one seed"
    count = f"{len(results.runs)} run{'s' * (len(results.runs) != 1)}"
    yield f"{count}. Loss at the end, at the best learning rate; {sure}"
    for heading, some in panels(groups).items():
        yield ""
        yield from textwrap.wrap(heading, WIDTH, subsequent_indent="  ")
        yield f"{'rule':<{_NAME}} {'d_k':>4}  {'loss':>13}  {'accuracy':>8}  {'rate':>8}  {'diverged':>8}"
        for one in sorted(some, key=lambda one: one.spec.d_k):
            yield from _row(one)


def _row(one: Group) -> Iterator[str]:
    best = one.best
    right = f"{100 * best.accuracy.mean:.1f}%" if math.isfinite(best.loss.mean) else "-"
    lost = f"{one.diverged} of {sum(len(outcome.runs) for outcome in one.outcomes)}" if one.diverged else "-"
    name = one.line
    if len(name) > _NAME:
        yield name
        name = ""
    yield f"{name:<{_NAME}} {one.spec.d_k:>4}  {spread(best.loss):>13}  {right:>8}  {best.rate:>8.3g}  {lost:>8}"


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
