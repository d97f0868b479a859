"""Which runs belong together: those that differ in nothing but their seeds, or but their learning rates too."""

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any

from .interval import Interval, interval
from .run import Run
from .spec import RunSpec

# transplant does not count: it happens after the training and changes none of it.
_IN_COMMON = tuple(one.name for one in fields(RunSpec) if one.name not in {"seed", "learning_rate", "transplant"})


@dataclass(frozen=True, slots=True)
class Group:
    """Runs of one setting at several learning rates, each with several seeds."""

    runs: tuple[Run, ...]

    def __getattr__(self, name: str) -> Any:
        """What the specs have in common: `group.task`, `group.d_k`."""
        if name not in _IN_COMMON:
            raise AttributeError(name)
        return getattr(self.runs[0].spec, name)

    @property
    def rates(self) -> list[float]:
        """The learning rates, smallest first."""
        return sorted({run.spec.learning_rate for run in self.runs})

    def at(self, rate: float) -> tuple[Run, ...]:
        """The runs at one learning rate, by seed; a seed counts once."""
        found = {run.spec.seed: run for run in self.runs if run.spec.learning_rate == rate}
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


def unusual(groups: Iterable[Group]) -> tuple[str, ...]:
    """The names, next to task, rule and d_k, in which the groups differ from one another."""
    some = list(groups)
    names = (name for name in _IN_COMMON if name not in {"task", "rule", "d_k"})
    return tuple(name for name in names if len({getattr(one, name) for one in some}) > 1)
