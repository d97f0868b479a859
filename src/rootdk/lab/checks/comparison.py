"""Results of experiments and claims: one number beside its prediction, with a verdict, and many of them.

A Comparison is one number. A Result is what an experiment found: comparisons, and the series and grids that figures are
drawn from. All of it is plain data and goes to JSON and back without loss.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from rootdk.errors import ArgumentError
from rootdk.rendering import expect_fields, expect_kind

# A ledger makes some forty comparisons of random numbers, and their errors are estimated from 32 groups. At 4 standard
# errors one seed in eighty would raise a false alarm, at 5 one in a thousand. Training runs have 3 to 5 seeds, and an
# error that is estimated from so few is uncertain itself: there the chance beyond 5 of them is one in twenty to one in
# a hundred.
CLEAR = 5.0

# To be equal to 0 or 1, a measured number must lie within this distance of it, noise included.
EQUAL = 0.25
EQUAL_IS = "random samples count as equal within a quarter: another power of d_k would be off by a factor of 4 or more"

DECIDES, LIMITS, SHOWN = "decides", "limits", "shown"
_ROLES = (DECIDES, LIMITS, SHOWN)
_RELATIONS = ("=", "<", ">", "~", "")

AGREES, DISAGREES, UNDECIDED = "agrees", "disagrees", "undecided"

Parameters = Mapping[str, int | float | str]


@dataclass(frozen=True, slots=True)
class Comparison:
    """One quantity, measured and predicted.

    quantity        what the number is
    measured        the number found; None where only theory can give one, such as at a billion keys
    relation        "=", "<" or ">": how the measured number must compare with the predicted one; "" if nothing is
                    required. "~" requires only that chance can explain the difference: enough beside a formula, never
                    for a claim
    predicted       what theory computes, or where a claim puts the number
    standard_error  of the measured number; None is exact: computed, or the largest of what was seen, and no estimate
    slack           how far apart two equal numbers may be: half of the last printed digit, a bound on rounding, or for
                    a number with a standard error what still counts as equal. Without it such a number is never equal
    role            in a claim. "decides": if it disagrees, the claim is false. "limits": if it disagrees, the claim
                    holds under a condition only. "shown": for the reader
    otherwise       what its disagreement means, in words
    doubt           in words, what it means that the evidence does not decide; the number itself, if none are given
    choice          the reason for the predicted number, if the claim leaves it open ("extremely small", "nearly all"):
                    then we chose the number, and another one may be used instead
    setting         at which d_k, rule, number of keys, ...

    >>> Comparison("e", 2.71828, "=", 2.718, slack=5e-4).agrees
    True
    >>> Comparison("share", 0.52, ">", 0.5, 0.01).state      # not clearly above, and not clearly below
    'undecided'
    >>> Comparison("variance", 1.01, "=", 1.0, 0.1, slack=0.1).state      # noise makes nothing equal
    'undecided'
    >>> Comparison("score variance", 65.0, "~", 64.0, 0.5, role="shown", setting={"d_k": 64}).disagreement
    2.0
    """

    quantity: str
    measured: float | None
    relation: str = ""
    predicted: float = 0.0
    standard_error: float | None = None
    slack: float = 0.0
    role: str = DECIDES
    otherwise: str = ""
    doubt: str = ""
    choice: str = ""
    setting: Parameters = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.relation not in _RELATIONS:
            raise ArgumentError(f"relation: must be one of '=', '<', '>', '~' and '', got {self.relation!r}")
        if self.role not in _ROLES:
            raise ArgumentError(f"role: must be one of {', '.join(map(repr, _ROLES))}, got {self.role!r}")
        if self.relation in ("", "~") and self.role != SHOWN:
            raise ArgumentError(
                f"relation: must be '=', '<' or '>' for what {self.role}, got {self.relation!r} for {self.quantity!r}"
            )

    @property
    def state(self) -> str:
        """AGREES or DISAGREES if the whole interval of CLEAR standard errors to either side does, else UNDECIDED.

        So more noise can only turn either of them into undecided. A number that is not finite decides nothing. A number
        that was not measured, or of which nothing is required, agrees.
        """
        if self.measured is None or not self.relation:
            return AGREES
        unsure = CLEAR * (self.standard_error or 0.0)
        if not (math.isfinite(self.measured) and math.isfinite(unsure)):
            return UNDECIDED
        off = self.measured - self.predicted
        if self.relation == "=":
            agrees, disagrees = abs(off) + unsure <= self.slack, abs(off) - unsure > self.slack
        elif self.relation == "~":
            agrees = abs(off) <= self.slack + unsure
            disagrees = not agrees
        else:
            off = off if self.relation == "<" else -off
            agrees, disagrees = off + unsure < 0, off - unsure >= 0
        return AGREES if agrees else DISAGREES if disagrees else UNDECIDED

    @property
    def agrees(self) -> bool:
        """Whether the state is AGREES."""
        return self.state == AGREES

    @property
    def needed(self) -> float | None:
        """If undecided: how many times as much evidence would decide it, if the measured number stayed; else None."""
        if self.state != UNDECIDED or self.measured is None or not self.standard_error:
            return None
        off = abs(self.measured - self.predicted)
        distance = abs(self.slack - off) if self.relation == "=" else off
        needed = (CLEAR * self.standard_error / distance) ** 2 if distance else math.inf
        return needed if math.isfinite(needed) else None

    @property
    def disagreement(self) -> float | None:
        """(measured - predicted) in standard errors, where equality is required of a number that has one.

        A difference by rounding alone is no disagreement.
        """
        if self.measured is None or self.standard_error is None or self.relation not in ("=", "~"):
            return None
        off = self.measured - self.predicted
        error = max(self.standard_error, 1e-12 * abs(self.predicted))
        if error == 0.0:
            return 0.0 if off == 0.0 else math.copysign(math.inf, off)
        return off / error

    @property
    def objection(self) -> str:
        """The text for a comparison that does not agree."""
        measured = math.nan if self.measured is None else self.measured
        relation = f"{self.relation} {number(self.predicted)}"
        if self.state != UNDECIDED:
            return self.otherwise or f"{self.quantity} is {number(measured)}, not {relation}"
        unsure = CLEAR * (self.standard_error or 0.0)
        if self.doubt:
            return self.doubt
        text = f"{self.quantity} is {measured:.2g} ± {unsure:.2g}, which does not decide whether it is {relation}"
        return f"{text} (about {self.needed:.2g} times as much data would tell)" if self.needed else text

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and texts, ready for JSON, which has no NaN and no infinity: these become words.

        An empty text, setting or slack is left out.
        """
        plain = {name: getattr(self, name) for name in _FIELDS if name not in _OPTIONAL or getattr(self, name)}
        plain |= {"state": self.state, "disagreement": self.disagreement}
        return {name: str(x) if isinstance(x, float) and not math.isfinite(x) else x for name, x in plain.items()}

    @classmethod
    def from_dict(cls, data: dict[str, Any], where: str = "comparison") -> "Comparison":
        """The comparison that `to_dict` was called on."""
        expect_fields(data, [name for name in _FIELDS if name not in _OPTIONAL], where)
        plain = {name: data[name] for name in _FIELDS if name in data}
        for name in ("measured", "predicted", "standard_error", "slack"):
            if plain.get(name) is not None:
                plain[name] = float(plain[name])
        return cls(**plain)


_FIELDS = tuple(each.name for each in fields(Comparison))
_OPTIONAL = frozenset({"slack", "otherwise", "doubt", "choice", "setting"})


def estimated(
    quantity: str, estimate: tuple[float, float], relation: str = "", predicted: float = 0.0, **more: Any
) -> Comparison:
    """A number of a claim with its standard error, as `over_groups` gives both; shown only, if nothing is required.

    >>> estimated("entropy share", (0.5, 0.01), ">", 0.99).state, estimated("entropy share", (0.5, 0.01)).role
    ('disagrees', 'shown')
    """
    role = DECIDES if relation else SHOWN
    return Comparison(quantity, estimate[0], relation, predicted, estimate[1], **{"role": role, **more})


def number(x: float) -> str:
    """Four digits, and all digits before the point for numbers up to a million.

    >>> number(0.123456), number(4096.0), number(5.1847055e21)
    ('0.1235', '4096', '5.185e+21')
    """
    whole = math.isfinite(x) and (abs(x) >= 1e4 or x == int(x)) and abs(x) < 1e6
    return f"{x:.0f}" if whole else f"{x:.4g}"


_KIND = "rootdk.lab.checks.Result"


@dataclass(frozen=True, slots=True)
class Series:
    """Points of a curve or the heights of bars. kind is "theory" or "measured".

    >>> Series("weights", "measured", {"d_k": 64}, (1.0, 2.0), (0.75, 0.25)).y
    (0.75, 0.25)
    """

    name: str
    kind: str
    setting: Parameters
    x: tuple[float, ...]
    y: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Grid:
    """A matrix, such as the Jacobian of one row.

    >>> Grid("jacobian", "theory", {"sigma": 1.0}, ((0.25, -0.25), (-0.25, 0.25))).rows[0]
    (0.25, -0.25)
    """

    name: str
    kind: str
    setting: Parameters
    rows: tuple[tuple[float, ...], ...]


@dataclass(frozen=True, slots=True)
class Result:
    """What one run of one experiment found; `spec` holds everything that it depended on.

    >>> from rootdk.lab.checks import EXPERIMENTS, run
    >>> result = run(EXPERIMENTS["variance"].spec(d_k=(16,), laws=("sign",), rows=1000))
    >>> [one.predicted for one in result.select("score variance", d_k=16)]
    [16.0]
    >>> Result.from_dict(result.to_dict()) == result
    True
    """

    experiment: str
    spec: Mapping[str, Any]
    comparisons: tuple[Comparison, ...]
    series: tuple[Series, ...] = ()
    grids: tuple[Grid, ...] = ()
    seconds: float = field(default=0.0, compare=False)

    def __post_init__(self) -> None:
        for comparison in self.comparisons:
            for name in ("predicted", "measured", "standard_error"):
                value = getattr(comparison, name)
                if value is not None and not math.isfinite(value):
                    where = f"{comparison.quantity} at {dict(comparison.setting)}"
                    raise ArgumentError(f"{name}: must be finite in an experiment, got {value} for {where}")
            if (comparison.measured is None) != (comparison.standard_error is None):
                raise ArgumentError("standard_error: must be given exactly where measured is, in an experiment")

    @property
    def compared(self) -> int:
        """How many numbers were both predicted and measured."""
        return sum(comparison.measured is not None for comparison in self.comparisons)

    @property
    def worst(self) -> Comparison:
        """The comparison with the largest disagreement."""
        return max(self.comparisons, key=lambda comparison: abs(comparison.disagreement or 0.0))

    def select(self, quantity: str, **setting: float | str) -> tuple[Comparison, ...]:
        """The comparisons of that quantity whose setting has these values."""
        return tuple(
            comparison
            for comparison in self.comparisons
            if comparison.quantity == quantity
            and all(comparison.setting.get(name) == value for name, value in setting.items())
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain lists, ready for JSON; `from_dict` is the way back."""
        return {
            "kind": _KIND,
            "experiment": self.experiment,
            "spec": _lists(self.spec),
            "comparisons": [comparison.to_dict() for comparison in self.comparisons],
            "series": [_lists(asdict(series)) for series in self.series],
            "grids": [_lists(asdict(grid)) for grid in self.grids],
            "seconds": self.seconds,
        }

    @classmethod
    def from_dict(cls, data: Any) -> "Result":
        """The result that `to_dict` was called on; an error if the dictionary holds something else."""
        expect_kind(data, _KIND)
        expect_fields(data, ["experiment", "spec", "comparisons", "series", "grids", "seconds"])
        for part, kind in (("series", Series), ("grids", Grid)):
            for entry in data[part]:
                expect_fields(entry, list(kind.__dataclass_fields__), f"data[{part!r}]")
        return cls(
            experiment=str(data["experiment"]),
            spec=_tuples(dict(data["spec"])),
            comparisons=tuple(Comparison.from_dict(entry, "data['comparisons']") for entry in data["comparisons"]),
            series=tuple(Series(**_tuples(entry)) for entry in data["series"]),
            grids=tuple(Grid(**_tuples(entry)) for entry in data["grids"]),
            seconds=float(data["seconds"]),
        )


def _lists(value: Any) -> Any:
    """Tuples as lists, for a dictionary that equals what JSON gives back."""
    if isinstance(value, Mapping):
        return {name: _lists(entry) for name, entry in value.items()}
    return [_lists(entry) for entry in value] if isinstance(value, (tuple, list)) else value


def _tuples(value: Any) -> Any:
    """The inverse of _lists."""
    if isinstance(value, Mapping):
        return {name: _tuples(entry) for name, entry in value.items()}
    return tuple(_tuples(entry) for entry in value) if isinstance(value, list) else value
