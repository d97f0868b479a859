"""The law of one score of Gaussian q and k: its density and its tails, from the law of the query's length."""

import math
from typing import Any

import numpy as np
from scipy.special import ndtr

from rootdk.errors import ArgumentError

from ._arguments import Floats, count, numbers
from .attention import spread_nodes


def score_density(x: Any, d_k: int, scale: float = 1.0) -> Any:
    """Density of z = scale <q, k> at x, for standard normal q and k: the average of N(0, scale^2 |q|^2) over |q|.

    d_k from 3 to 1e6: with fewer components the density has a corner or a pole at 0.
    The relative error is below 1e-5, from d_k = 4 on below 1e-7, down to 1e-12 of the density at 0;
    further out the result is too low. x is a number or an array.

    >>> print(f"{score_density(0.0, 64, 0.125):.4f} {1 / math.sqrt(2 * math.pi):.4f}")     # a little above N(0, 1)
    0.4037 0.3989
    """
    points, sigma, weight = _mixture(x, d_k, scale)
    density = np.exp(-((points[..., None] / sigma) ** 2) / 2) / (sigma * math.sqrt(2 * math.pi))
    return (density @ weight)[()]


def score_tail(x: Any, d_k: int, scale: float = 1.0) -> Any:
    """P(|z| > x) for the same z, x from 0.

    >>> print(f"{score_tail(3.0, 64, 0.125):.5f} {score_tail(3.0, 4, 0.5):.5f}")          # Gaussian: 0.00270
    0.00330 0.00992
    """
    points, sigma, weight = _mixture(x, d_k, scale)
    return (2 * ndtr(-np.abs(points)[..., None] / sigma) @ weight)[()]


def _mixture(x: Any, d_k: int, scale: float) -> tuple[Floats, Floats, Floats]:
    points = numbers("x", x)
    factor = float(numbers("scale", scale, least=-1e50, most=1e50))
    if factor == 0.0:
        raise ArgumentError("scale: must be a number other than 0, got 0: such scores have no density")
    # Finer and further out than the averages need: 1/sigma bends more than they do where d_k is small, and the density
    # far out comes from long queries.
    sigma, weight = spread_nodes(2.0, count("d_k", d_k, 3, 10**6), factor, log_error=-34.0, finer=4)
    return points, sigma[sigma > 0], weight[sigma > 0]
