"""How readings move over steps: the growth of the largest logit, where it leads, and the fall of the entropy."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from rootdk.audit.layer import LayerReading, Numbers

# In how many steps growth is counted, and over how many a trend must have been seen to be one.
PER_STEPS, FEWEST_STEPS, FEWEST_POINTS = 1000, 100, 5
# More than this are thinned out to every second one, so that a long run needs no more memory than a short one.
MOST_POINTS = 256
_LIMIT = 1e3


@dataclass(frozen=True, slots=True)
class Movement:
    """Of one layer, over the last 1000 steps or as many as there are.

    growth        per head: by what factor the largest logit grows in 1000 steps; 1 where the trend is within its noise
    crossing      per head: the step at which it reaches 1000 at that rate; inf if it never does
    entropy_drop  the share that the layer's median of entropy / ln n has lost
    """

    growth: Numbers
    crossing: Numbers
    entropy_drop: float
    level: Numbers
    step: int

    def forecast(self, step: int) -> Numbers:
        """The largest logit of each head at a later step, at that rate."""
        found: Numbers = self.level * self.growth ** ((step - self.step) / PER_STEPS)
        return found


class Trend:
    """Two numbers per head and step that was read.

    The logarithm of the largest logit is fitted by a straight line, so growth is a factor, and the line is believed
    where its slope is more than two standard errors from 0.

    >>> trend = Trend()
    >>> for step in range(0, 1001, 100):
    ...     trend.note("attn", step, np.array([10.0 * 2 ** (step / 500)]), np.array([0.9]))
    >>> movement = trend.movement("attn")
    >>> round(float(movement.growth[0]), 3), round(float(movement.crossing[0]))
    (4.0, 3322)
    """

    def __init__(self) -> None:
        self._points: dict[str, list[tuple[int, Numbers, Numbers]]] = {}

    def add(self, readings: Iterable[LayerReading]) -> None:
        """Note what a step showed."""
        for reading in readings:
            self.note(reading.name, reading.step, *reading.digest)

    def note(self, name: str, step: int, max_logit: Numbers, entropy_ratio: Numbers) -> None:
        """The same in numbers, one per head."""
        points = self._points.setdefault(name, [])
        points.append((step, max_logit, entropy_ratio))
        if len(points) > MOST_POINTS:
            del points[1:-1:2]

    def steps(self, name: str) -> list[int]:
        """The steps that are known of a layer."""
        return [step for step, _, _ in self._points.get(name, [])]

    def movement(self, name: str) -> Movement | None:
        """None where too few steps are known to speak of a trend."""
        known = self._points.get(name, [])
        recent = [point for point in known if point[0] >= known[-1][0] - PER_STEPS]
        if len(recent) < FEWEST_POINTS or recent[-1][0] - recent[0][0] < FEWEST_STEPS:
            return None
        steps = np.array([point[0] for point in recent], np.float64)
        logits = np.array([point[1] for point in recent])
        with np.errstate(divide="ignore", invalid="ignore"):
            logs = np.where(logits > 0, np.log(logits), math.nan)
        centred = steps - steps.mean()
        spread = (centred**2).sum()
        mean = logs.mean(axis=0)
        slope = (centred[:, None] * (logs - mean)).sum(axis=0) / spread
        left = logs - mean - centred[:, None] * slope
        error = np.sqrt((left**2).sum(axis=0) / max(len(steps) - 2, 1) / spread)
        slope = np.where(np.abs(slope) > 2 * error, slope, 0.0)
        level = np.exp(mean + slope * centred[-1])
        with np.errstate(divide="ignore", invalid="ignore"):
            further = np.where(slope > 0, np.maximum(np.log(_LIMIT / level), 0.0) / slope, math.inf)
        before, now = (float(np.nanmedian(point[2])) for point in (recent[0], recent[-1]))
        drop = 1 - now / before if before > 0 else math.nan
        return Movement(np.exp(slope * PER_STEPS), steps[-1] + further, drop, level, int(steps[-1]))
