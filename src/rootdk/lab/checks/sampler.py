"""Random queries and keys, and numbers over them with an honest standard error.

Rows that share their keys are not independent, and rows with keys of their own cost too much. So rows come in groups
with one set of keys per group, and the standard error is taken between the groups, which are independent.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rootdk.attention import measure
from rootdk.errors import ArgumentError, ArgumentTypeError
from rootdk.reading import Reading
from rootdk.scaling import factor_at, rule

from .comparison import SHOWN, Comparison, Parameters, estimated

Floats = NDArray[Any]
Generator = np.random.Generator
Shape = tuple[int, ...]
Sampler = Callable[[Generator, Shape], Floats]

ROWS_PER_GROUP = 64
_GROUPS_AT_ONCE = 32  # some 80 MB at d_k = 1024 and 512 keys


@dataclass(frozen=True, slots=True)
class Sampling:
    """How much the claims draw, and from which seed. `rows` are query rows per measured number, in groups of 64.

    1024 rows make a quick look, 20,000 a thorough one. With fewer than 16 groups standard errors would be guesses.

    >>> Sampling(rows=2048).groups
    32
    """

    rows: int = 2048
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least, most in (("rows", 1024, 1_000_000), ("seed", 0, 2**63 - 1)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int):
                raise ArgumentTypeError(f"{name}: must be an int, got {value!r}")
            if not least <= value <= most:
                raise ArgumentError(f"{name}: must be from {least} to {most}, got {value}")

    @property
    def groups(self) -> int:
        """How many groups make up the rows."""
        return math.ceil(self.rows / ROWS_PER_GROUP)


def generator(seed: int, *tags: int) -> Generator:
    """Random numbers that depend on the seed and on their purpose, not on what else was drawn."""
    return np.random.default_rng([seed, *tags])


# The laws of a component, each with mean 0 and variance 1.


def normal(rng: Generator, shape: Shape) -> Floats:
    """Standard normal."""
    return rng.standard_normal(shape, dtype=np.float32)


def uniform(rng: Generator, shape: Shape) -> Floats:
    """Even between -sqrt(3) and sqrt(3)."""
    return np.asarray((rng.random(shape, dtype=np.float32) * 2 - 1) * np.float32(3**0.5))


def sign(rng: Generator, shape: Shape) -> Floats:
    """-1 or 1."""
    return np.asarray(rng.integers(0, 2, shape, dtype=np.int8) * 2 - 1, np.float32)


def laplace(rng: Generator, shape: Shape) -> Floats:
    """An exponential on either side of 0."""
    size = rng.standard_exponential(shape, dtype=np.float32) * np.float32(0.5**0.5)
    return np.asarray(np.copysign(size, rng.random(shape, dtype=np.float32) - np.float32(0.5)))


def student(rng: Generator, shape: Shape) -> Floats:
    """Student's t with 5 degrees of freedom: heavy tails, and a fourth moment that exists. Drawn in float32."""
    chi_square = 2 * rng.standard_gamma(2.5, shape, np.float32)
    return np.asarray(rng.standard_normal(shape, np.float32) * np.sqrt(np.float32(3) / chi_square))


def student_float64(rng: Generator, shape: Shape) -> Floats:
    """The same law, drawn in float64 by NumPy and rounded: other numbers of the same seed, which experiments keep."""
    return np.asarray(rng.standard_t(5, shape) * (3 / 5) ** 0.5, np.float32)


class Law(NamedTuple):
    """How a component is drawn, and its fourth moment."""

    sampler: Sampler
    fourth_moment: float


LAWS: Mapping[str, Law] = MappingProxyType(
    {
        "gaussian": Law(normal, 3.0),
        "uniform": Law(uniform, 1.8),
        "sign": Law(sign, 1.0),
        "laplace": Law(laplace, 6.0),
        "student_t": Law(student_float64, 9.0),
    }
)


def draw(rng: Generator, law: str, shape: Shape) -> Floats:
    """Independent components of one of LAWS."""
    if law not in LAWS:
        raise ArgumentError(f"law: must be one of {', '.join(map(repr, LAWS))}, got {law!r}")
    return LAWS[law].sampler(rng, shape)


def chunks(rows: int, size_of_row: int, most: int = 4_000_000) -> list[int]:
    """How many rows to draw at a time, so that no array has more than `most` numbers.

    >>> chunks(10, 1_000_000)
    [4, 4, 2]
    """
    step = max(1, min(rows, most // max(size_of_row, 1)))
    return [min(step, rows - start) for start in range(0, rows, step)]


@lru_cache(maxsize=64)
def reading(sampling: Sampling, d_k: int, keys: int, scale: float | str) -> Reading:
    """What measure() reads of standard normal q and k; fields are (groups, 64). The same q and k under every scale."""
    parts = []
    for start in range(0, sampling.groups, _GROUPS_AT_ONCE):
        count = min(_GROUPS_AT_ONCE, sampling.groups - start)
        rng = generator(sampling.seed, d_k, keys, start)
        query, key = normal(rng, (count, ROWS_PER_GROUP, d_k)), normal(rng, (count, keys, d_k))
        # The reading depends on q and k only, so one column of values is enough.
        parts.append(measure(query, key, np.ones((count, keys, 1), np.float32), scale=scale)[1])
    return Reading.concatenate(parts, axis=0)


def factor_of(name: str, d_k: int, keys: int) -> float:
    """The scale of a rule, given as text, for the last row of a call with that many keys.

    A user's rule may do anything; if it fails, the error names it.

    >>> factor_of("mup(64)", 256, 1024), factor_of("0.2", 256, 1024)
    (0.03125, 0.2)
    """
    chosen = rule(name)
    if chosen.unit_length:
        raise ArgumentError(f"rule: must be one for q and k as they are, got {name!r}")
    try:
        factor = float(factor_at(chosen, d_k, keys, keys - 1))
        wrong = "" if math.isfinite(factor) else f"{factor}"
    except Exception as error:  # noqa: BLE001 -- the factor is not our code
        factor, wrong = math.nan, f"{type(error).__name__}: {error}"
    if wrong:
        raise ArgumentError(f"rule: {name!r} must give one number at d_k = {d_k} and {keys} keys, got {wrong}")
    return factor


# Numbers over groups.


def over_groups(by_group: Any, statistic: Callable[[Any], Any] = np.mean) -> tuple[float, float]:
    """The statistic over everything, and its standard error from how the groups (first axis) differ.

    >>> over_groups([[1.0, 3.0], [3.0, 5.0]])
    (3.0, 1.0)
    """
    array = np.asarray(by_group, np.float64)
    return float(statistic(array)), _standard_error(np.array([statistic(group) for group in array]))


def mean_of(samples: Any) -> tuple[float, float]:
    """The mean over the first axis of independent samples, and its standard error; further axes are averaged first.

    >>> mean_of([[0.0, 2.0], [2.0, 4.0]])
    (2.0, 1.0)
    """
    means = _group_means(samples)
    return float(means.mean()), _standard_error(means)


def compare(quantity: str, setting: Parameters, predicted: Any, samples: Any) -> Comparison:
    """The mean of samples beside what theory says.

    >>> mean = compare("mean", {}, 2.0, [1.0, 3.0, 2.0, 2.0])
    >>> mean.measured, round(mean.standard_error, 4)
    (2.0, 0.4082)
    """
    return estimated(quantity, mean_of(samples), "~", float(predicted), role=SHOWN, setting=setting)


def compare_share(quantity: str, setting: Parameters, predicted: Any, hits: Any) -> Comparison:
    """The same for a share of rows, whose error is at least that of independent rows with the share of theory.

    If no row was hit, the samples are all equal and would seem exact.
    """
    mean, error = mean_of(hits)
    share = min(max(float(predicted), 0.0), 1.0)
    least = (share * (1 - share) / np.asarray(hits).size) ** 0.5
    return estimated(quantity, (mean, max(error, least)), "~", float(predicted), role=SHOWN, setting=setting)


def compare_ratio(quantity: str, setting: Parameters, predicted: Any, top: Any, bottom: Any) -> Comparison:
    """sqrt(mean top / mean bottom), with the error to first order: the top and bottom of a group go together.

    >>> compare_ratio("root of ratio", {}, 2.0, [4.0, 8.0, 4.0], [1.0, 2.0, 1.0]).measured
    2.0
    """
    above, below = _group_means(top), _group_means(bottom)
    ratio = above.mean() / below.mean()
    spread = _standard_error(above - ratio * below) / below.mean()
    root = float(np.sqrt(ratio))
    estimate = (root, float(spread) / (2 * root))
    return estimated(quantity, estimate, "~", float(predicted), role=SHOWN, setting=setting)


def computed(quantity: str, setting: Parameters, predicted: Any) -> Comparison:
    """The prediction of theory, where nothing was measured."""
    return Comparison(quantity, None, "~", float(predicted), role=SHOWN, setting=setting)


def _group_means(samples: Any) -> Floats:
    groups = np.asarray(samples, np.float64)
    return np.asarray(groups.reshape(len(groups), -1).mean(axis=1))


def _standard_error(of_groups: Floats) -> float:
    return float(of_groups.std(ddof=1) / math.sqrt(of_groups.size))
