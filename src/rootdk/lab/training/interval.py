"""A mean over seeds and how sure of it one may be."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Interval:
    """mean +- half, from `count` values; half is None where one value says nothing about the others."""

    mean: float
    half: float | None
    count: int

    @property
    def error(self) -> float:
        """The standard error of the mean; infinite where it is not known."""
        return math.inf if self.half is None else self.half / _quantile(self.count, 0.95)

    def overlaps(self, value: float) -> bool:
        """Whether the value lies inside."""
        return self.half is not None and abs(value - self.mean) <= self.half


def interval(values: Iterable[float | None], level: float = 0.95) -> Interval:
    """Mean and Student's confidence interval, mean +- t s/sqrt(count), of runs that differ in their seeds alone.

    A value that is None, from a run that diverged, makes the mean infinite: leaving it out would flatter the rest.

    >>> one = interval([1.0, 2.0, 3.0])
    >>> one.mean, round(one.half, 3)
    (2.0, 2.484)
    """
    some = [math.inf if one is None else float(one) for one in values]
    mean = float(np.mean(some)) if some else math.nan
    if len(some) < 2:
        return Interval(mean, None, len(some))
    if not math.isfinite(mean):
        return Interval(mean, math.inf, len(some))
    return Interval(mean, float(np.std(some, ddof=1) / math.sqrt(len(some)) * _quantile(len(some), level)), len(some))


def _quantile(count: int, level: float) -> float:
    from scipy.stats import t

    return float(t.ppf(0.5 + level / 2, count - 1))
