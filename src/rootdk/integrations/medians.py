"""Medians of numbers that are spread over processes, exactly and without moving the numbers.

Half of all numbers lie at or below the median. To find it, guess, count on every process how many lie at or below the
guess, add the counts up, and halve the range; after as many rounds as a number has bits nothing is left to guess.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]
# Adds up one array of counts of each process.
Add = Callable[[NDArray[np.int64]], NDArray[np.int64]]


def medians(rows: list[Numbers], add: Add, wide: bool) -> Numbers:
    """The median of each set of numbers of which every process has a part; NaN where nobody has any.

    rows   of each set the part at hand
    add    adds up arrays of counts over all processes
    wide   whether the numbers are float64, which takes 64 rounds of counting; 32 find a float32 to its last bit

    >>> sets = [np.array([3.0, 1.0, 2.0]), np.array([-1.0, -4.0]), np.array([])]
    >>> medians(sets, add=lambda counts: counts, wide=True).tolist()
    [2.0, -2.5, nan]
    """
    parts = [np.sort(_ordered(row, wide)) for row in rows]
    count = add(np.array([part.size for part in parts], np.int64))
    # The two in the middle; they are one and the same where the count is odd.
    wanted = np.stack([(count + 1) // 2, count // 2 + 1])
    bits = 64 if wide else 32
    low = np.full(wanted.shape, -(2 ** (bits - 1)), np.int64)
    high = np.full(wanted.shape, 2 ** (bits - 1) - 1, np.int64)
    for _ in range(bits):
        middle = (low & high) + ((low ^ high) >> 1)  # half way without overflow
        below = np.array(
            [[np.searchsorted(part, x, "right") for part, x in zip(parts, row, strict=True)] for row in middle],
            np.int64,
        )
        enough = add(below.reshape(middle.shape)) >= wanted
        high, low = np.where(enough, middle, high), np.where(enough, low, middle + (middle < high))
    pair = _number(low, wide)
    return np.where(count > 0, (pair[0] + pair[1]) / 2, np.nan)


def _ordered(numbers: Numbers, wide: bool) -> NDArray[np.int64]:
    """Integers in the order of the numbers: their bits, with those of negative numbers turned round."""
    bits: Any = numbers.astype(np.float64).view(np.int64) if wide else numbers.astype(np.float32).view(np.int32)
    ordered: NDArray[np.int64] = _turned(bits).astype(np.int64)
    return ordered


def _number(ordered: NDArray[np.int64], wide: bool) -> Numbers:
    """The way back."""
    bits = _turned(ordered if wide else ordered.astype(np.int32))
    numbers: Numbers = bits.view(np.float64 if wide else np.float32).astype(np.float64)
    return numbers


def _turned(bits: Any) -> Any:
    return np.where(bits < 0, bits ^ np.iinfo(bits.dtype).max, bits)
