"""The runs of a study: which belong together, what they show over seeds, and the runs that come with the package.

Results    all runs, with what made them
Outcome    runs that differ in their seeds alone
Group      runs that differ in their learning rates too: an Outcome for each rate
interval   a mean over seeds, and its confidence interval
estimate   a number that several groups give, with a bootstrap over seeds that chooses their learning rates again

Learning rates are chosen by the validation set; what is reported belongs to the test set.
"""

import functools
import gzip
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from importlib.resources import files
from typing import Any

import numpy as np

from rootdk.errors import ArgumentError
from rootdk.files import parse_json
from rootdk.rendering import expect_fields, expect_kind

from .run import TASKS, Moment, Run, RunSpec

# The name of the file format, which is older than this module: files of earlier versions can be read.
_KIND = "rootdk.trained.Results"
_SHIPPED = "shipped.json.gz"
LEARNED = 0.9  # a run has learned once so many of the answers are right


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

    A value that is None, from a run that diverged, makes the mean infinite: without it the mean would look too good.

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
        like = [run for run in self.runs if all(getattr(run.spec, name) == value for name, value in spec.items())]
        return tuple(like if where is None else filter(where, like))

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
    return Results.from_dict(parse_json(gzip.decompress(files(__package__).joinpath(_SHIPPED).read_bytes())))


def lowest(run: Run) -> Moment:
    """The look at which the validation loss is lowest: what a run is judged by, whatever it does afterwards."""
    return min(run.moments, key=lambda moment: known(moment.valid_loss))


def steps_to(run: Run, name: str = "accuracy") -> int | None:
    """The first look at which 90 % of the answers are right; None if the run ended before. Looks are a tenth apart."""
    return next((moment.step for moment in run.moments if (getattr(moment, name) or 0.0) >= LEARNED), None)


def steps_in_budget(run: Run, name: str = "accuracy") -> float:
    """The steps to 90 %, or the budget where they were not enough: a bound from below."""
    step = steps_to(run, name)
    return float(run.spec.steps if step is None else step)


def choice_of(run: Run) -> float:
    """The number by which a learning rate is chosen: the smaller its mean over seeds, the better.

    Steps to 90 % right of the validation set where runs end when they have learned, else the lowest validation loss.
    """
    if run.spec.stop == "learned":
        return steps_in_budget(run, "valid_accuracy")
    return math.inf if run.diverged else known(lowest(run).valid_loss)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Runs that differ in their seeds alone, at one learning rate.

    >>> best = grouped(shipped().select(task="digits", rule="sqrt"))[0].best
    >>> len(best.runs) == best.loss.count
    True
    """

    rate: float
    runs: tuple[Run, ...]

    @property
    def choice(self) -> float:
        """The number by which learning rates are compared, from the validation set; smaller is better."""
        return interval(choice_of(run) for run in self.runs).mean

    @property
    def loss(self) -> Interval:
        """On the test set, where the validation loss is lowest. A run that diverged makes the mean infinite."""
        return interval(METRICS["loss"](run) for run in self.runs)

    @property
    def accuracy(self) -> Interval:
        """At the same look; 0 for a run that diverged."""
        return interval(0.0 if run.diverged else lowest(run).accuracy or 0.0 for run in self.runs)

    @property
    def steps(self) -> list[int | None]:
        """Steps to 90 % right, one per run; None where the run ended before."""
        return [steps_to(run) for run in self.runs]

    @property
    def learned(self) -> int:
        """How many of the runs came to 90 % right."""
        return sum(step is not None for step in self.steps)

    @property
    def median_steps(self) -> float | None:
        """The median of the steps to 90 % right; None where fewer than half of the runs came so far."""
        ordered = sorted(math.inf if step is None else step for step in self.steps)
        middle = (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2
        return middle if math.isfinite(middle) else None

    @property
    def diverged(self) -> int:
        """How many of the runs diverged."""
        return sum(run.diverged for run in self.runs)


def sharpest_ever(run: Run) -> float:
    """The smallest entropy / ln n of any layer at any look; infinite if it is unknown: that is no collapse."""
    return min(known(layer.entropy) for moment in run.moments for layer in moment.layers)


def largest(run: Run) -> float:
    """The largest |logit| of any layer at any look."""
    return max(known(layer.largest) for moment in run.moments for layer in moment.layers)


def unstable(run: Run) -> bool:
    """Whether it diverged, had a spike, or ended with a validation loss 5 % above its lowest."""
    forgot = known(run.last.valid_loss) > 1.05 * known(lowest(run).valid_loss)
    return run.diverged or run.spikes > 0 or forgot


# One number of a run, for means over seeds.
METRICS: dict[str, Callable[[Run], float]] = {
    "loss": lambda run: math.inf if run.diverged else known(lowest(run).loss),
    "start": lambda run: known(run.moments[0].loss),
    "log_steps": lambda run: math.log(steps_in_budget(run)),
}


@dataclass(frozen=True, slots=True)
class Estimate:
    """A number from runs over seeds: its bootstrap standard error, and the middle 95 % of what the bootstrap gave."""

    value: float
    error: float
    low: float
    high: float


class Arm:
    """One number of the runs of a group, at the learning rate that the validation set chooses, or at a given one.

    >>> runs = shipped().select(task="digits", rule="sqrt", d_k=16, optimizer="adam")
    >>> arm = Arm(Group(runs), "loss")
    >>> 0 < arm.mean(range(len(arm.seeds))) < 1
    True
    """

    def __init__(self, group: "Group", metric: str, rate: float | None = None) -> None:
        by_rate = [outcome for outcome in group.outcomes if rate is None or outcome.rate == rate]
        runs = [{run.spec.seed: run for run in outcome.runs} for outcome in by_rate]
        self.seeds = sorted(set.intersection(*map(set, runs))) if runs else []
        if len(self.seeds) < 2:
            raise ArgumentError(f"results: must hold two seeds of each learning rate of {group.line}, got {self.seeds}")
        self.choice = np.array([[choice_of(by_seed[seed]) for seed in self.seeds] for by_seed in runs])
        self.values = np.array([[METRICS[metric](by_seed[seed]) for seed in self.seeds] for by_seed in runs])

    def mean(self, places: Sequence[int]) -> float:
        """Over the seeds at these places, at the rate that is best for them."""
        rate = int(np.argmin(self.choice[:, places].mean(axis=1)))
        return float(self.values[rate, places].mean())


DRAWS = 400


def estimate(combine: Callable[..., float], *arms: Arm) -> Estimate:
    """combine(mean of the first arm, of the second, ...) with its bootstrap over seeds.

    A draw takes as many seeds as the arms have in common, with repetition and the same for all arms, whose runs of one
    seed share their batches; it chooses the learning rate of every arm again. The deviation of the draws is larger by
    sqrt(n/(n - 1)) here, because n seeds vary less around their own mean than around the true one.
    """
    common = sorted(set.intersection(*(set(arm.seeds) for arm in arms)))
    if len(common) < 2:
        seeds = [arm.seeds for arm in arms]
        raise ArgumentError(f"results: must hold two seeds that all that is compared has in common, got {seeds}")
    rows = [[arm.seeds.index(seed) for seed in common] for arm in arms]

    def combined(places: Sequence[int]) -> float:
        return combine(*(arm.mean([row[at] for at in places]) for arm, row in zip(arms, rows, strict=True)))

    return resampled(combined, len(common))


def resampled(statistic: Callable[[Sequence[int]], float], count: int) -> Estimate:
    """A statistic of the seeds at the places 0 to count - 1, and its values when seeds are drawn with repetition.

    >>> values = np.array([1.0, 2.0, 3.0, 4.0])
    >>> found = resampled(lambda places: float(values[list(places)].mean()), 4)
    >>> found.value, found.low < 2.5 < found.high
    (2.5, True)
    """
    value = statistic(range(count))
    rng = np.random.default_rng(0)
    drawn = [statistic(places) for places in rng.integers(0, count, (DRAWS, count)).tolist()]
    if not np.isfinite([value, *drawn]).all():
        return Estimate(value, math.inf, -math.inf, math.inf)
    low, high = np.quantile(drawn, [0.025, 0.975])
    error = float(np.std(drawn, ddof=1)) * math.sqrt(count / (count - 1))
    return Estimate(value, error, float(low), float(high))


# transplant does not count: it happens after the training and changes none of it.
_IN_COMMON = tuple(entry.name for entry in fields(RunSpec) if entry.name not in {"seed", "learning_rate", "transplant"})
_OF_A_PANEL = ("optimizer", "layers", "width", "heads", "stop")
_POWERS = {0.25: "√√d_k", 0.5: "√d_k", 1.0: "d_k", -0.25: "1/√√d_k", -0.5: "1/√d_k", -1.0: "1/d_k"}


@dataclass(frozen=True, slots=True)
class Group:
    """Runs of one setting at several learning rates, each with several seeds.

    >>> group = grouped(shipped().select(task="digits", rule="sqrt"))[0]
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
        """The rule, and what else is special about attention or its training: those of one line differ in d_k alone."""
        extra = [(name, getattr(self.spec, name)) for name in ("qk_rate", "qk_size", "qk_gradient", "v_size")]
        words = [f"{name} {_power(value, self.spec.d_k)}" for name, value in extra if value != 1.0]
        words += ["qk_norm"] * self.spec.qk_norm
        words += [f"warmup {self.spec.warmup}"] * bool(self.spec.warmup)
        return ", ".join([self.spec.rule, *words])

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
        """At the learning rate that the validation set chooses; the smallest of rates that do equally well."""
        return min(self.outcomes, key=lambda outcome: outcome.choice)

    @property
    def edge(self) -> str:
        """At which end of the rates tried the best one is, if at one: then a better one may lie beyond.

        It is "lowest", "highest" or nothing; "only" where there is no other.
        """
        rates = self.rates
        if len(rates) == 1:
            return "only"
        return {rates[0]: "lowest", rates[-1]: "highest"}.get(self.best.rate, "")

    @property
    def diverged(self) -> int:
        """How many of all runs diverged, whatever their learning rate."""
        return sum(outcome.diverged for outcome in self.outcomes)


def grouped(runs: Iterable[Run]) -> tuple[Group, ...]:
    """Groups by everything in the spec but seed, learning rate and transplant, in the order in which they come.

    >>> {"none", "sqrt", "dk"} <= {group.spec.rule for group in grouped(shipped().select(task="digits"))}
    True
    """
    groups: dict[tuple[Any, ...], list[Run]] = {}
    for run in runs:
        groups.setdefault(tuple(getattr(run.spec, name) for name in _IN_COMMON), []).append(run)
    return tuple(Group(tuple(members)) for members in groups.values())


def panels(groups: Iterable[Group]) -> dict[str, tuple[Group, ...]]:
    """Groups that may be compared: of one task, optimizer and model, for as many steps.

    The name of a panel says what sets it apart from the others of its task.

    >>> list(panels(grouped(shipped().select(task="digits", optimizer="adam"))))
    ['digits, 400 steps']
    """
    groups = list(groups)
    specs = [group.spec for group in groups]
    members: dict[str, list[Group]] = {}
    for group in groups:
        alike = [spec for spec in specs if spec.task == group.spec.task]
        varied = [name for name in _OF_A_PANEL if len({getattr(spec, name) for spec in alike}) > 1]
        more = [(name, getattr(group.spec, name)) for name in varied]
        parts = [value if isinstance(value, str) else f"{name} {value}" for name, value in more]
        members.setdefault(", ".join([group.spec.task, f"{group.spec.steps} steps", *parts]), []).append(group)
    return {name: tuple(panel) for name, panel in members.items()}


def _power(value: float, d_k: int) -> str:
    """A factor as a power of d_k, if it is one: so that points of several d_k make one line.

    >>> _power(8.0, 64), _power(2.0, 16), _power(3.0, 64)
    ('√d_k', '√√d_k', '3')
    """
    for power, text in _POWERS.items():
        if d_k > 1 and math.isclose(value, d_k**power, rel_tol=1e-3):
            return text
    return f"{value:.4g}"


# The settings of a claim, unless it gives others.
_NAMES = ("optimizer", "qk_rate", "qk_size", "qk_gradient", "qk_norm", "v_size", "warmup", "layers", "width", "heads")
_USUAL = {name: getattr(RunSpec(), name) for name in _NAMES}


def setting(results: Results, **spec: Any) -> Group:
    """The runs with this spec at all learning rates; there must be some, with two seeds of each at least."""
    wanted = {**_USUAL, **spec}
    group = Group(results.select(**wanted))
    fewest = min((len(outcome.runs) for outcome in group.outcomes), default=0)
    if fewest < 2:
        named = ", ".join(f"{name} = {value}" for name, value in wanted.items() if name in spec or value != 1)
        raise ArgumentError(f"results: must hold at least two runs with {named}, got {fewest}")
    return group


def tasks_of(results: Results, *rules: str, fewest: int = 2) -> list[str]:
    """The tasks that each of these rules was run on at so many d_k or more."""
    tried = {(task, rule): results.values("d_k", task=task, rule=rule, **_USUAL) for task in TASKS for rule in rules}
    return [task for task in TASKS if all(len(tried[task, rule]) >= fewest for rule in rules)]


def widths(results: Results, task: str, rule: str, fewest: int = 2) -> list[int]:
    """The d_k that a rule was run with."""
    d_ks: list[int] = results.values("d_k", task=task, rule=rule, **_USUAL)
    if len(d_ks) < fewest:
        raise ArgumentError(f"results: must hold {task} with rule {rule!r} at {fewest} d_k at least, got {d_ks}")
    return d_ks
