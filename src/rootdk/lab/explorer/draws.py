"""Random queries and keys that stay the same while a knob moves.

The rows of a seed are drawn once, 1024 components wide, and a setting takes the first d_k components of the first n
keys. So dragging d_k or n adds numbers and changes none, and costs no drawing.
"""

from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from threading import Lock

import numpy as np
from numpy.typing import NDArray

QUERIES, WIDEST = 64, 1024
Floats32 = NDArray[np.float32]


_BLOCK = 512
_KEYS = 7  # beside the seed and the block: no other draw of a chapter has three numbers for its seed
_drawers = ThreadPoolExecutor(2, "draws")  # NumPy draws without the interpreter's lock


class _Drawn:
    """The vectors of one seed; keys are drawn when they are first asked for, 512 at a time, each from its own seed."""

    def __init__(self, seed: int) -> None:
        self._seed, self._lock = seed, Lock()
        self.query = np.random.default_rng(seed).standard_normal((QUERIES, WIDEST), np.float32)
        self._key = np.empty((0, WIDEST), np.float32)

    def keys(self, count: int) -> Floats32:
        with self._lock:  # requests come from several threads
            there, wanted = len(self._key) // _BLOCK, -(-count // _BLOCK)
            if wanted > there:
                grown = np.empty((wanted * _BLOCK, WIDEST), np.float32)
                grown[: len(self._key)] = self._key
                parts = [grown[at * _BLOCK : (at + 1) * _BLOCK] for at in range(there, wanted)]
                list(_drawers.map(self._draw, range(there, wanted), parts))
                self._key = grown
            return self._key[:count]

    def _draw(self, block: int, into: Floats32) -> None:
        np.random.default_rng([self._seed, _KEYS, block]).standard_normal(dtype=np.float32, out=into)


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
blocks = [np.random.default_rng([{seed}, {_KEYS}, block]) for block in range({-(-keys // _BLOCK)})]
key = np.concatenate([one.standard_normal(({_BLOCK}, {WIDEST}), np.float32) for one in blocks])[:{keys}, :{d_k}]
"""
