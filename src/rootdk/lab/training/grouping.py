"""Which runs belong together: those that differ in nothing but their seeds, or but their learning rates too."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any

from .interval import Interval, interval
from .run import Run
from .spec import RunSpec

# transplant does not count: it happens after the training and changes none of it.
_IN_COMMON = tuple(one.name for one in fields(RunSpec) if one.name not in {"seed", "learning_rate", "transplant"})
_OF_A_PANEL = ("optimizer", "layers", "width", "heads")
_POWERS = {0.25: "√√d_k", 0.5: "√d_k", 1.0: "d_k", -0.25: "1/√√d_k", -0.5: "1/√d_k", -1.0: "1/d_k"}


@dataclass(frozen=True, slots=True)
class Group:
    """Runs of one setting at several learning rates, each with several seeds."""

    runs: tuple[Run, ...]

    @property
    def spec(self) -> RunSpec:
        """What the runs have in common; seed, learning rate and transplant are those of the first."""
        return self.runs[0].spec

    @property
    def line(self) -> str:
        """The rule, and what else is special about W_q and W_k: groups of one line differ in d_k alone."""
        extra = [(name, getattr(self.spec, name)) for name in ("qk_rate", "qk_size")]
        return ", ".join(
            [self.spec.rule, *(f"{name} {_power(value, self.spec.d_k)}" for name, value in extra if value != 1.0)]
        )

    @property
    def rates(self) -> list[float]:
        """The learning rates, smallest first."""
        return sorted({run.spec.learning_rate for run in self.runs})

    def at(self, rate: float) -> tuple[Run, ...]:
        """The runs at one learning rate, by seed; a seed counts once."""
        some = [run for run in self.runs if run.spec.learning_rate == rate]
        # Of two runs that differ in their transplants alone, the one that has some.
        found = {run.spec.seed: run for run in sorted(some, key=lambda run: len(run.transplant))}
        return tuple(found[seed] for seed in sorted(found))

    def final(self, rate: float, name: str = "loss") -> Interval:
        """A number at the end of the runs at one learning rate. A run that diverged has none, and the mean no end."""
        return interval(None if run.diverged else getattr(run.last, name) for run in self.at(rate))

    @property
    def best_rate(self) -> float:
        """The learning rate with the smallest loss at the end; the smaller one where all diverged."""
        return min(self.rates, key=lambda rate: self.final(rate).mean)

    @property
    def best(self) -> tuple[Run, ...]:
        """The runs at the best learning rate."""
        return self.at(self.best_rate)

    @property
    def diverged(self) -> int:
        """How many of all runs did, whatever their learning rate."""
        return sum(run.diverged for rate in self.rates for run in self.at(rate))


def grouped(runs: Iterable[Run]) -> tuple[Group, ...]:
    """Groups by everything in the spec but seed, learning rate and transplant, in the order in which they come."""
    found: dict[tuple[Any, ...], list[Run]] = {}
    for run in runs:
        found.setdefault(tuple(getattr(run.spec, name) for name in _IN_COMMON), []).append(run)
    return tuple(Group(tuple(some)) for some in found.values())


def panels(groups: Iterable[Group]) -> dict[str, tuple[Group, ...]]:
    """Groups that may stand beside one another: of one task, optimizer and model, for as many steps.

    The name of a panel says what sets it apart from the others.
    """
    some = list(groups)
    varied = [name for name in _OF_A_PANEL if len({getattr(one.spec, name) for one in some}) > 1]
    found: dict[str, list[Group]] = {}
    for one in some:
        more = [(name, getattr(one.spec, name)) for name in varied]
        parts = [value if isinstance(value, str) else f"{name} {value}" for name, value in more]
        found.setdefault(", ".join([one.spec.task, f"{one.spec.steps} steps", *parts]), []).append(one)
    return {name: tuple(members) for name, members in found.items()}


def _power(value: float, d_k: int) -> str:
    """A factor as the power of d_k that it is, if it is one: what makes points of several d_k one line.

    >>> _power(8.0, 64), _power(2.0, 16), _power(3.0, 64)
    ('√d_k', '√√d_k', '3')
    """
    for power, text in _POWERS.items():
        if d_k > 1 and math.isclose(value, d_k**power, rel_tol=1e-3):
            return text
    return f"{value:.4g}"
