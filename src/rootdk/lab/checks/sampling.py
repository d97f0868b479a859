"""Random components, and means with an honest standard error.

Rows that share their keys are not independent. So rows come in groups, each with keys of its own, and the standard
error is that of the mean of the groups' means.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rootdk.errors import ArgumentError
from rootdk.scaling import rule

from .result import Comparison, Setting

Floats = NDArray[Any]
Generator = np.random.Generator
Tell = Callable[[float], None]

# Components with mean 0 and variance 1, and their fourth moments.
KURTOSIS = {"gaussian": 3.0, "uniform": 1.8, "sign": 1.0, "laplace": 6.0, "student_t": 9.0}


def draw(rng: Generator, law: str, shape: tuple[int, ...]) -> Floats:
    """Independent components of mean 0 and variance 1. "student_t" has 5 degrees of freedom: heavy tails."""
    if law == "gaussian":
        return rng.standard_normal(shape, dtype=np.float32)
    if law == "uniform":
        return np.asarray((rng.random(shape, dtype=np.float32) * 2 - 1) * np.float32(3**0.5))
    if law == "sign":
        return np.asarray(rng.integers(0, 2, shape, dtype=np.int8) * 2 - 1, np.float32)
    if law == "laplace":
        size = rng.standard_exponential(shape, dtype=np.float32) * np.float32(0.5**0.5)
        return np.asarray(np.copysign(size, rng.random(shape, dtype=np.float32) - np.float32(0.5)))
    if law == "student_t":
        return np.asarray(rng.standard_t(5, shape) * (3 / 5) ** 0.5, np.float32)
    raise ArgumentError(f"law: must be one of {', '.join(map(repr, KURTOSIS))}, got {law!r}")


def factor_of(name: str, d_k: int, keys: int) -> float:
    """The scale of a named rule for the last row of a call with that many keys."""
    chosen = rule(name)
    known = {"keys": keys, "position": keys - 1}
    return float(chosen.factor(d_k, *(known[which] if which in chosen.varies else None for which in known)))


def compare(quantity: str, setting: Setting, theory: Any, samples: Any) -> Comparison:
    """The mean over the first axis of independent samples beside what theory says; further axes are averaged first.

    >>> one = compare("mean", {}, 2.0, [1.0, 3.0, 2.0, 2.0])
    >>> one.measured, round(one.standard_error, 4)
    (2.0, 0.4082)
    """
    groups = np.asarray(samples, np.float64)
    groups = groups.reshape(len(groups), -1).mean(axis=1)
    error = groups.std(ddof=1) / np.sqrt(groups.size)
    return Comparison(quantity, setting, float(theory), float(groups.mean()), float(error))


def compare_share(quantity: str, setting: Setting, theory: Any, hits: Any) -> Comparison:
    """The same for a share of rows, whose error is at least that of independent rows with the share of theory.

    Where no row was hit, the samples do not differ and would claim to be exact.
    """
    told, array = min(max(float(theory), 0.0), 1.0), np.asarray(hits)
    found = compare(quantity, setting, theory, array)
    least = (told * (1 - told) / array.size) ** 0.5
    return Comparison(quantity, setting, float(theory), found.measured, max(found.standard_error or 0.0, float(least)))


def compare_ratio(quantity: str, setting: Setting, theory: Any, top: Any, bottom: Any) -> Comparison:
    """sqrt(mean top / mean bottom), with the error to first order: the top and bottom of a group go together.

    >>> compare_ratio("root of ratio", {}, 2.0, [4.0, 8.0, 4.0], [1.0, 2.0, 1.0]).measured
    2.0
    """
    above, below = (np.asarray(part, np.float64).reshape(len(part), -1).mean(axis=1) for part in (top, bottom))
    ratio = above.mean() / below.mean()
    spread = (above - ratio * below).std(ddof=1) / np.sqrt(above.size) / below.mean()
    root = float(np.sqrt(ratio))
    return Comparison(quantity, setting, float(theory), root, float(spread) / (2 * root))


def chunks(rows: int, size_of_one: int, most: int = 4_000_000) -> list[int]:
    """How many rows to draw at a time, so that no array has more than `most` numbers.

    >>> chunks(10, 1_000_000)
    [4, 4, 2]
    """
    step = max(1, min(rows, most // max(size_of_one, 1)))
    return [min(step, rows - start) for start in range(0, rows, step)]
