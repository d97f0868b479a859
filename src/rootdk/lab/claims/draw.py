"""Random q and k, and statistics over them with their standard error.

Rows that share their keys are not independent, and rows with keys of their own cost too much. So rows come in groups of
64 with one set of keys per group, and the standard error is taken between the groups, which are independent.
"""

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rootdk.api import measure
from rootdk.reading import Reading

from .ledger import Setting

ROWS_PER_GROUP = 64
_GROUPS_AT_ONCE = 32  # some 80 MB at d_k = 1024 and 512 keys
Floats = NDArray[Any]
Sampler = Callable[[np.random.Generator, tuple[int, ...]], Floats]


def generator(setting: Setting, *tags: int) -> np.random.Generator:
    """Numbers that depend on the seed and on what they are for, not on what else was checked."""
    return np.random.default_rng([setting.seed, *tags])


def groups(setting: Setting) -> int:
    """How many groups make up the rows of the setting."""
    return math.ceil(setting.rows / ROWS_PER_GROUP)


def over_groups(by_group: Any, statistic: Callable[[Any], Any] = np.mean) -> tuple[float, float]:
    """The statistic over everything, and its standard error from how the groups (first axis) differ.

    >>> over_groups([[1.0, 3.0], [3.0, 5.0]])
    (3.0, 1.0)
    """
    array = np.asarray(by_group, np.float64)
    each = np.array([statistic(group) for group in array])
    return float(statistic(array)), float(each.std(ddof=1) / math.sqrt(len(each)))


def normal(rng: np.random.Generator, shape: tuple[int, ...]) -> Floats:
    """Standard normal components."""
    return rng.standard_normal(shape, np.float32)


def uniform(rng: np.random.Generator, shape: tuple[int, ...]) -> Floats:
    """Even between -sqrt(3) and sqrt(3)."""
    return (rng.random(shape, np.float32) - np.float32(0.5)) * np.float32(math.sqrt(12))


def sign(rng: np.random.Generator, shape: tuple[int, ...]) -> Floats:
    """-1 or 1."""
    return (rng.integers(0, 2, shape, np.int8) * 2 - 1).astype(np.float32)


def student(rng: np.random.Generator, shape: tuple[int, ...]) -> Floats:
    """Student's t with 5 degrees of freedom, brought to variance 1: heavy tails, and a fourth moment that exists."""
    chi_square = 2 * rng.standard_gamma(2.5, shape, np.float32)
    return np.asarray(rng.standard_normal(shape, np.float32) * np.sqrt(np.float32(3) / chi_square))


@lru_cache(maxsize=64)
def reading(setting: Setting, d_k: int, keys: int, scale: float | str) -> Reading:
    """What measure() reads of standard normal q and k; fields are (groups, 64). The same q and k under every scale."""
    parts = []
    for start in range(0, groups(setting), _GROUPS_AT_ONCE):
        count = min(_GROUPS_AT_ONCE, groups(setting) - start)
        rng = generator(setting, d_k, keys, start)
        query, key = normal(rng, (count, ROWS_PER_GROUP, d_k)), normal(rng, (count, keys, d_k))
        # The reading depends on q and k only, so one column of values is enough.
        parts.append(measure(query, key, np.ones((count, keys, 1), np.float32), scale=scale)[1])
    return Reading.concatenate(parts, axis=0)
