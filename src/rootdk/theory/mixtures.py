"""Means, medians and extremes over the rows of attention with Gaussian q and k, for one setting at a time.

sigma = |scale| |q| differs from row to row; `Nodes` are values of it with their weights, from `attention.spread_nodes`.
"""

import math
from collections.abc import Callable

import numpy as np
from scipy.optimize import brentq
from scipy.special import gammainc, gammaincinv, gammaln, log_ndtr

from ._arguments import Floats
from .attention import spread_nodes
from .rows import SaturationLaw

Nodes = tuple[Floats, Floats]


def mean_length(freedom: float) -> float:
    """E |q| for a standard normal vector of that many components: sqrt(2) Gamma((d + 1)/2)/Gamma(d/2)."""
    if freedom > 1e4:  # the logarithms of Gamma would cancel; the next term of the series is 5/(128 d^3)
        return math.sqrt(freedom) * (1 - 1 / (4 * freedom) + 1 / (32 * freedom**2))
    return float(math.sqrt(2) * math.exp(gammaln((freedom + 1) / 2) - gammaln(freedom / 2)))


def mean_over(nodes: Nodes, of_sigma: Callable[[float], float]) -> float:
    """The mean of a function of sigma over rows."""
    return float(sum(weight * of_sigma(float(sigma)) for sigma, weight in zip(*nodes, strict=True)))


def median_row_variance(keys: float, d_k: float, scale: float) -> float:
    """Median of scale^2 chi-square(d_k) chi-square(n - 1)/n, the variance of a row about its own mean. Exact."""
    if scale == 0.0:
        return 0.0
    # Averaged over the narrower of the two laws, so that the distribution function of the other is smooth on its nodes.
    narrow, wide = max(d_k, keys - 1), min(d_k, keys - 1)
    length, weight = spread_nodes(2.0, narrow, 1.0)

    def excess(log_product: float) -> float:
        with np.errstate(divide="ignore"):  # a length of 0 stands for all that are too short to matter
            return float(weight @ gammainc(wide / 2, math.exp(log_product) / (2 * length**2)) - 0.5)

    centre = math.log(4 * gammaincinv(wide / 2, 0.5) * gammaincinv(narrow / 2, 0.5))
    return scale * scale / keys * math.exp(brentq(excess, centre - 5, centre + 5, xtol=1e-13))


def expected_maximum_logit(keys: float, rows: float, d_k: float, scale: float) -> float:
    """E of the largest logit of `rows` rows with keys of their own; its law is (E_sigma Phi(z/sigma)^n)^rows."""
    if scale == 0.0:
        return 0.0
    sigma, weight = spread_nodes(keys * rows, d_k, scale, finer=4)
    sigma, weight = sigma[sigma > 0], weight[sigma > 0]
    unit = abs(scale) * math.sqrt(d_k)
    end = float(sigma.max()) * math.sqrt(2 * (math.log(keys * rows) + 20))
    z = np.linspace(-9 * unit, end, 4001)
    above = weight @ -np.expm1(keys * log_ndtr(z / sigma[:, None])) + np.where(z < 0, 1 - weight.sum(), 0.0)
    law = np.exp(rows * np.log1p(-np.clip(above, 0.0, 1 - 2.0**-53)))
    return float(end - float((law[1:] + law[:-1]) @ np.diff(z)) / 2)


def median_top_probability(nodes: Nodes, keys: float) -> float:
    """The median of max p, exact, where it is above one half; NaN elsewhere."""
    laws = [(weight, SaturationLaw(keys, float(sigma))) for sigma, weight in zip(*nodes, strict=True)]

    def excess(logit: float) -> float:
        threshold = 1 / (1 + math.exp(-logit))
        return float(sum(weight * law.above(threshold) for weight, law in laws)) - 0.5

    far = 25.0  # a threshold of 1 - 1e-11
    if not (excess(0.0) > 0 > excess(far)):
        return math.nan
    return 1 / (1 + math.exp(-brentq(excess, 0.0, far, xtol=1e-9)))


def median_sigma(d_k: float, scale: float) -> float:
    """|scale| times the median of |q|."""
    return abs(scale) * math.sqrt(2 * float(gammaincinv(d_k / 2, 0.5)))


def p_squared_variance(moments: Floats) -> Floats:
    """Variance of sum p^2 at one sigma, by the norm's own formula; rounding is cut off at 0."""
    p_squared, p_cubed, norm_squared = moments[2], moments[3], moments[5]
    return np.asarray(np.maximum(norm_squared - p_squared + 2 * p_cubed - p_squared**2, 0.0))
