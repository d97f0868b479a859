"""What the claims read off training runs: the runs at their best learning rate, and differences with their errors."""

import math
from dataclasses import dataclass
from typing import Any

from rootdk.errors import ArgumentError
from rootdk.lab.training import Interval, Results, Run, interval

_PLAIN = {"qk_rate": 1.0, "qk_size": 1.0}


@dataclass(frozen=True, slots=True)
class Outcome:
    """Runs that differ in their seeds alone, at one learning rate."""

    rate: float
    runs: tuple[Run, ...]

    @property
    def loss(self) -> Interval:
        """At the end, on what is not trained on."""
        return interval(run.last.loss for run in self.runs)

    @property
    def accuracy(self) -> Interval:
        """At the end; nothing is right in a run that diverged."""
        return interval(run.last.accuracy or 0.0 for run in self.runs)

    @property
    def start(self) -> float:
        """The mean loss before the first step."""
        return interval(run.moments[0].loss for run in self.runs).mean

    def entropy(self) -> Interval:
        """entropy / ln n of the sharpest layer at the end."""
        return interval(sharpest(run) for run in self.runs)


def known(value: float | None) -> float:
    """The number, or infinity for a run that diverged and has none."""
    return math.inf if value is None else value


def sharpest(run: Run) -> float:
    """entropy / ln n of the sharpest layer at the end; infinite where there is no number: that is no collapse."""
    return min(known(layer.entropy) for layer in run.last.layers)


def outcomes(results: Results, **spec: Any) -> tuple[Outcome, ...]:
    """One per learning rate, from the lowest to the highest; there must be some, with two seeds at least."""
    spec = {"optimizer": "adam", **_PLAIN, **spec}
    rates = results.values("learning_rate", **spec)
    found = tuple(Outcome(rate, results.select(learning_rate=rate, **spec)) for rate in rates)
    if not found or min(len(one.runs) for one in found) < 2:
        asked = ", ".join(f"{name} = {value}" for name, value in spec.items())
        raise ArgumentError(f"results: must hold at least two runs with {asked}, got {len(found) and 1}")
    return found


def best(results: Results, **spec: Any) -> Outcome:
    """At the learning rate whose mean loss at the end is lowest: the same choice for every rule."""
    return min(outcomes(results, **spec), key=lambda one: one.loss.mean)


def widths(results: Results, task: str, rule: str, optimizer: str = "adam") -> list[int]:
    """The d_k that a rule was run with."""
    found: list[int] = results.values("d_k", task=task, rule=rule, optimizer=optimizer, **_PLAIN)
    if len(found) < 2:
        raise ArgumentError(f"results: must hold {task} with rule {rule!r} at two d_k at least, got {found}")
    return found


def difference(a: Interval, b: Interval) -> tuple[float, float]:
    """a - b and its standard error."""
    return a.mean - b.mean, math.hypot(a.error, b.error)


def lost(outcome: Outcome, against: Outcome) -> tuple[float, float]:
    """How much less was learned than `against`, as a share of what that learned from start to end, and its error."""
    learned = against.start - against.loss.mean
    less, error = difference(outcome.loss, against.loss)
    return less / learned, error / learned
