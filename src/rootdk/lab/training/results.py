"""The runs of a study: which belong together, what they show over seeds, and the runs that come with the package.

Results    all runs, with what made them
Outcome    runs that differ in their seeds alone
Group      runs that differ in their learning rates too: an Outcome for each rate
interval   a mean over seeds, and how sure of it one may be
"""

import functools
import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from importlib.resources import files
from typing import Any

import numpy as np

from rootdk.errors import ArgumentError
from rootdk.rendering import expect_fields, expect_kind
from rootdk.untrusted import parse_json

from .run import Run, RunSpec

# The name of the file format, which is older than this module: files of earlier versions can be read.
_KIND = "rootdk.trained.Results"
_SHIPPED = "shipped.json"


@dataclass(frozen=True, slots=True)
class Interval:
    """mean +- half, from `count` values; half is None where one value says nothing about the others.

    >>> Interval(1.0, None, 1).half is None
    True
    """

    mean: float
    half: float | None
    count: int

    @property
    def error(self) -> float:
        """The standard error of the mean; infinite where it is not known."""
        return math.inf if self.half is None else self.half / _quantile(self.count, 0.95)


def interval(values: Iterable[float | None], level: float = 0.95) -> Interval:
    """Mean and Student's confidence interval, mean +- t s/sqrt(count), of runs that differ in their seeds alone.

    A value that is None, from a run that diverged, makes the mean infinite: leaving it out would flatter the rest.

    >>> over_seeds = interval([1.0, 2.0, 3.0])
    >>> over_seeds.mean, round(over_seeds.half, 3)
    (2.0, 2.484)
    """
    numbers = [known(value) for value in values]
    count = len(numbers)
    mean = float(np.mean(numbers)) if numbers else math.nan
    if count < 2:
        return Interval(mean, None, count)
    if not math.isfinite(mean):
        return Interval(mean, math.inf, count)
    return Interval(mean, float(np.std(numbers, ddof=1) / math.sqrt(count) * _quantile(count, level)), count)


def _quantile(count: int, level: float) -> float:
    from scipy.stats import t

    return float(t.ppf(0.5 + level / 2, count - 1))


def known(value: float | None) -> float:
    """The number, or infinity for a run that diverged and has none."""
    return math.inf if value is None else float(value)


def difference(a: Interval, b: Interval) -> tuple[float, float]:
    """a - b and its standard error."""
    return a.mean - b.mean, math.hypot(a.error, b.error)


@dataclass(frozen=True, slots=True)
class Results:
    """Runs, and facts about their making: size of the plan, versions, machine.

    >>> results = shipped()
    >>> results.values("rule", task="recall"), Results.from_dict(results.to_dict()) == results
    (['dk', 'none', 'sqrt'], True)
    """

    runs: tuple[Run, ...]
    about: Mapping[str, str] = field(default_factory=dict)

    def select(self, where: Callable[[Run], bool] | None = None, **spec: Any) -> tuple[Run, ...]:
        """The runs whose spec has these values, and for which `where` is true.

        >>> from rootdk.lab.training import shipped
        >>> {run.spec.rule for run in shipped().select(task="recall", rule="sqrt")}
        {'sqrt'}
        """
        return tuple(
            run
            for run in self.runs
            if all(getattr(run.spec, name) == value for name, value in spec.items()) and (where is None or where(run))
        )

    def values(self, name: str, **spec: Any) -> list[Any]:
        """The values that the runs with this spec have for another entry of it, in order."""
        return sorted({getattr(run.spec, name) for run in self.select(**spec)})

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        return {"kind": _KIND, "about": dict(self.about), "runs": [run.to_dict() for run in self.runs]}

    def to_json(self) -> str:
        """One run per line, so that a change of one run is a change of one line."""
        runs = ",\n".join(json.dumps(run.to_dict(), allow_nan=False, separators=(",", ":")) for run in self.runs)
        return f'{{"kind": "{_KIND}", "about": {json.dumps(dict(self.about))}, "runs": [\n{runs}\n]}}\n'

    @classmethod
    def from_dict(cls, data: Any) -> "Results":
        """The results that `to_dict` was called on."""
        expect_kind(data, _KIND)
        expect_fields(data, ("about", "runs"))
        return cls(tuple(Run.from_dict(run) for run in data["runs"]), dict(data["about"]))

    @classmethod
    def of(cls, runs: Iterable[Run], **about: str) -> "Results":
        """Runs with facts about them."""
        return cls(tuple(runs), about)


@functools.cache
def shipped() -> Results:
    """The results that come with the package, made by `rootdk train-study`; their `about` says how.

    >>> "torch" in shipped().about
    True
    """
    return Results.from_dict(parse_json(files(__package__).joinpath(_SHIPPED).read_bytes()))


@dataclass(frozen=True, slots=True)
class Outcome:
    """Runs that differ in their seeds alone, at one learning rate.

    >>> best = grouped(shipped().select(task="text", rule="sqrt"))[0].best
    >>> len(best.runs), best.loss.count
    (3, 3)
    """

    rate: float
    runs: tuple[Run, ...]

    @property
    def loss(self) -> Interval:
        """At the end, on what is not trained on. A run that diverged has none, and makes the mean infinite."""
        return interval(None if run.diverged else run.last.loss for run in self.runs)

    @property
    def accuracy(self) -> Interval:
        """At the end; nothing is right in a run that diverged."""
        return interval(0.0 if run.diverged else run.last.accuracy or 0.0 for run in self.runs)

    @property
    def start(self) -> float:
        """The mean loss before the first step."""
        return interval(run.moments[0].loss for run in self.runs).mean

    @property
    def entropy(self) -> Interval:
        """entropy / ln n of the sharpest layer at the end."""
        return interval(sharpest(run) for run in self.runs)

    @property
    def diverged(self) -> int:
        """How many of the runs did."""
        return sum(run.diverged for run in self.runs)


def sharpest(run: Run) -> float:
    """entropy / ln n of the sharpest layer at the end; infinite where there is no number: that is no collapse."""
    return min(known(layer.entropy) for layer in run.last.layers)


def lost(outcome: Outcome, against: Outcome) -> tuple[float, float]:
    """How much less was learned than `against`, as a share of what that learned from start to end, and its error."""
    learned = against.start - against.loss.mean
    less, error = difference(outcome.loss, against.loss)
    return less / learned, error / learned


# transplant does not count: it happens after the training and changes none of it.
_IN_COMMON = tuple(entry.name for entry in fields(RunSpec) if entry.name not in {"seed", "learning_rate", "transplant"})
_OF_A_PANEL = ("optimizer", "layers", "width", "heads")
_POWERS = {0.25: "√√d_k", 0.5: "√d_k", 1.0: "d_k", -0.25: "1/√√d_k", -0.5: "1/√d_k", -1.0: "1/d_k"}


@dataclass(frozen=True, slots=True)
class Group:
    """Runs of one setting at several learning rates, each with several seeds.

    >>> group = grouped(shipped().select(task="text", rule="sqrt"))[0]
    >>> group.best.rate in group.rates, group.line
    (True, 'sqrt')
    """

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

    def at(self, rate: float) -> Outcome:
        """The runs at one learning rate, by seed; a seed counts once."""
        at_rate = [run for run in self.runs if run.spec.learning_rate == rate]
        # Of two runs that differ in their transplants alone, the one that has some.
        by_seed = {run.spec.seed: run for run in sorted(at_rate, key=lambda run: len(run.transplant))}
        return Outcome(rate, tuple(by_seed[seed] for seed in sorted(by_seed)))

    @property
    def outcomes(self) -> tuple[Outcome, ...]:
        """One per learning rate, from the lowest to the highest."""
        return tuple(self.at(rate) for rate in self.rates)

    @property
    def best(self) -> Outcome:
        """At the learning rate with the smallest loss at the end; the smallest rate where all diverged."""
        return min(self.outcomes, key=lambda outcome: outcome.loss.mean)

    @property
    def diverged(self) -> int:
        """How many of all runs did, whatever their learning rate."""
        return sum(outcome.diverged for outcome in self.outcomes)


def grouped(runs: Iterable[Run]) -> tuple[Group, ...]:
    """Groups by everything in the spec but seed, learning rate and transplant, in the order in which they come.

    >>> {group.spec.rule for group in grouped(shipped().select(task="text"))} == {"none", "sqrt", "dk"}
    True
    """
    groups: dict[tuple[Any, ...], list[Run]] = {}
    for run in runs:
        groups.setdefault(tuple(getattr(run.spec, name) for name in _IN_COMMON), []).append(run)
    return tuple(Group(tuple(members)) for members in groups.values())


def panels(groups: Iterable[Group]) -> dict[str, tuple[Group, ...]]:
    """Groups that may stand beside one another: of one task, optimizer and model, for as many steps.

    The name of a panel says what sets it apart from the others.

    >>> list(panels(grouped(shipped().select(task="text"))))
    ['text, 400 steps']
    """
    groups = list(groups)
    varied = [name for name in _OF_A_PANEL if len({getattr(group.spec, name) for group in groups}) > 1]
    members: dict[str, list[Group]] = {}
    for group in groups:
        more = [(name, getattr(group.spec, name)) for name in varied]
        parts = [value if isinstance(value, str) else f"{name} {value}" for name, value in more]
        members.setdefault(", ".join([group.spec.task, f"{group.spec.steps} steps", *parts]), []).append(group)
    return {name: tuple(panel) for name, panel in members.items()}


def _power(value: float, d_k: int) -> str:
    """A factor as the power of d_k that it is, if it is one: what makes points of several d_k one line.

    >>> _power(8.0, 64), _power(2.0, 16), _power(3.0, 64)
    ('√d_k', '√√d_k', '3')
    """
    for power, text in _POWERS.items():
        if d_k > 1 and math.isclose(value, d_k**power, rel_tol=1e-3):
            return text
    return f"{value:.4g}"


# What a claim asks for, unless it says otherwise.
_USUAL = {"optimizer": "adam", "qk_rate": 1.0, "qk_size": 1.0}


def outcomes(results: Results, **spec: Any) -> tuple[Outcome, ...]:
    """The runs with this spec, one outcome per learning rate; there must be some, with two seeds at least."""
    spec = {**_USUAL, **spec}
    by_rate = Group(results.select(**spec)).outcomes
    if not by_rate or min(len(outcome.runs) for outcome in by_rate) < 2:
        wanted = ", ".join(f"{name} = {value}" for name, value in spec.items())
        raise ArgumentError(f"results: must hold at least two runs with {wanted}, got {len(by_rate) and 1}")
    return by_rate


def best(results: Results, **spec: Any) -> Outcome:
    """At the learning rate whose mean loss at the end is lowest: the same choice for every rule."""
    return min(outcomes(results, **spec), key=lambda outcome: outcome.loss.mean)


def widths(results: Results, task: str, rule: str) -> list[int]:
    """The d_k that a rule was run with."""
    d_ks: list[int] = results.values("d_k", task=task, rule=rule, **_USUAL)
    if len(d_ks) < 2:
        raise ArgumentError(f"results: must hold {task} with rule {rule!r} at two d_k at least, got {d_ks}")
    return d_ks
