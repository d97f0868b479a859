"""Theory over d_k that several chapters draw, kept once it is computed: a point takes milliseconds."""

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rootdk.lab.drawing import ticks_at
from rootdk.theory import attention_moments, relative_gradient
from rootdk.theory.row_law import RowLaw, row_law

# From 16 on: below, an average over the length of the query takes several times as long.
WIDTHS = (16, 32, 64, 128, 256, 512, 1024)
# Room for the first and the last number below the axis.
WIDTH_AXIS = ticks_at(WIDTHS) | {"range": [math.log10(14), math.log10(1180)]}
EXPONENTS = {"none": 0.0, "sqrt": 0.5, "dk": 1.0}


@lru_cache(maxsize=1024)
def rows_of(keys: int, d_k: int, scale: float) -> RowLaw:
    """How rows differ: where the medians of rootdk.predict come from, without the rest of it, which takes longer."""
    return row_law(keys, d_k, scale)


@lru_cache(maxsize=1024)
def flow(keys: int, d_k: int, scale: float) -> float:
    """|do/dq|/|o| of one setting."""
    return float(relative_gradient(keys, d_k, scale))


@lru_cache(maxsize=256)
def flow_over_widths(keys: int, exponent: float) -> NDArray[Any]:
    """|do/dq|/|o| under d_k^-exponent at every width."""
    widths = np.array(WIDTHS)
    return np.asarray(relative_gradient(keys, widths, widths**-exponent))


@lru_cache(maxsize=256)
def entropy_over_widths(keys: int, exponent: float) -> NDArray[Any]:
    """E H/ln n under d_k^-exponent at every width."""
    widths = np.array(WIDTHS)
    return np.asarray(attention_moments(keys, widths, widths**-exponent).entropy / np.log(keys))


@lru_cache(maxsize=256)
def norm_over_widths(keys: int, exponent: float) -> NDArray[Any]:
    """sqrt(E |J|_F^2) under d_k^-exponent at every width."""
    widths = np.array(WIDTHS)
    return np.asarray(np.sqrt(attention_moments(keys, widths, widths**-exponent).jacobian_norm_squared))


@lru_cache(maxsize=256)
def median_over_widths(keys: int, exponent: float, of_rows: Callable[[RowLaw], Any]) -> NDArray[Any]:
    """A number of the rows, such as a median, under d_k^-exponent at every width."""
    return np.array([float(of_rows(rows_of(keys, d_k, float(d_k**-exponent)))) for d_k in WIDTHS])
