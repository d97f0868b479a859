"""The logits of attention with Gaussian q and k: their spread inside a row, and the largest of a call. Exact.

sigma = |scale| |q| differs from row to row; `attention.spread_nodes` has values of it with their weights.
"""

import math

import numpy as np
from scipy.optimize import brentq
from scipy.special import gammainc, gammaincinv, gammaln, log_ndtr

from ._arguments import Floats
from .attention import spread_nodes


def mean_length(freedom: float) -> float:
    """E |q| for a standard normal vector of that many components: sqrt(2) Gamma((d + 1)/2)/Gamma(d/2)."""
    if freedom > 1e4:  # the logarithms of Gamma would cancel; the next term of the series is 5/(128 d^3)
        return math.sqrt(freedom) * (1 - 1 / (4 * freedom) + 1 / (32 * freedom**2))
    return float(math.sqrt(2) * math.exp(gammaln((freedom + 1) / 2) - gammaln(freedom / 2)))


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
    sigma, weight = spread_nodes(min(keys * rows, 1e15), d_k, scale, finer=3)
    sigma, weight = sigma[sigma > 0], weight[sigma > 0]
    # The law of a score has a corner at 0 for two components, and a pole for one.
    points = 400 if d_k > 2 else 4000

    def law(z: Floats) -> Floats:
        above = weight @ -np.expm1(keys * log_ndtr(z / sigma[:, None])) + np.where(z < 0, 1 - weight.sum(), 0.0)
        return np.asarray(np.exp(rows * np.log1p(-np.clip(above, 0.0, 1 - 2.0**-53))))

    end = float(sigma.max()) * math.sqrt(2 * (math.log(keys * rows) + 20))
    z = np.linspace(-9 * abs(scale) * math.sqrt(d_k), end, points)
    # Once to see where it turns, once more to integrate it.
    coarse = law(z)
    turns = np.flatnonzero((coarse > 1e-12) & (coarse < 1 - 1e-12))
    z = np.linspace(z[max(turns[0] - 1, 0)], z[min(turns[-1] + 1, points - 1)], points)
    fine = law(z)
    return float(z[-1] - float((fine[1:] + fine[:-1]) @ np.diff(z)) / 2)
