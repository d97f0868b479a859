"""Times and the few numbers made of them."""

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds per call. The best call is the one least disturbed; the median is what a user meets."""

    best: float
    median: float
    calls: int


def timing(seconds: Sequence[float]) -> Timing:
    """Sum up the calls of one contestant."""
    return Timing(best=min(seconds), median=statistics.median(seconds), calls=len(seconds))


def geometric_mean(ratios: Iterable[float]) -> float:
    """Mean that treats twice as fast and half as fast as opposites, so that ratios average without favour."""
    logs = [math.log(ratio) for ratio in ratios]
    if not logs:
        raise ValueError("geometric_mean: needs at least one ratio")
    return math.exp(math.fsum(logs) / len(logs))
