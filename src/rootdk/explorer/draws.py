"""Random queries and keys that stay the same while a knob moves.

The rows of a seed are drawn once, 1024 components wide, and a setting takes the first d_k components of the first n
keys. So dragging d_k or n adds numbers and changes none, and costs no drawing.
"""

from functools import lru_cache
from threading import Lock

import numpy as np
from numpy.typing import NDArray

QUERIES, WIDEST = 64, 1024
Floats32 = NDArray[np.float32]


class _Drawn:
    """The vectors of one seed; keys are drawn when they are first asked for, 512 at a time."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self._lock = Lock()  # requests come from several threads, and a generator has one state
        self.query = self._rng.standard_normal((QUERIES, WIDEST), np.float32)
        self._key = np.empty((0, WIDEST), np.float32)

    def keys(self, count: int) -> Floats32:
        with self._lock:
            missing = -(-(count - len(self._key)) // 512) * 512
            if missing > 0:
                more = self._rng.standard_normal((missing, WIDEST), np.float32)
                self._key = np.concatenate([self._key, more])
            return self._key[:count]


@lru_cache(maxsize=4)
def _drawn(seed: int) -> _Drawn:
    return _Drawn(seed)


def vectors(seed: int, keys: int, d_k: int) -> tuple[Floats32, Floats32]:
    """Standard normal queries (64, d_k) and keys (keys, d_k), as the lines of `vectors_in_python` draw them.

    >>> query, key = vectors(0, 3, 8)
    >>> more = vectors(0, 700, 16)[1]
    >>> query.shape, key.shape, bool((more[:3, :8] == key).all())
    ((64, 8), (3, 8), True)
    """
    found = _drawn(seed)
    return found.query[:, :d_k], found.keys(keys)[:, :d_k]


def vectors_in_python(seed: int, keys: int, d_k: int) -> str:
    """The same as lines to run."""
    return f"""\
rng = np.random.default_rng({seed})
query = rng.standard_normal(({QUERIES}, {WIDEST}), np.float32)[:, :{d_k}]
key = rng.standard_normal(({keys}, {WIDEST}), np.float32)[:, :{d_k}]
"""
