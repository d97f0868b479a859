"""Rows of n Gaussian logits, exactly: the largest weight, how often it takes nearly all, how many keys share a row."""

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import loggamma, ndtr, ndtri

from rootdk.errors import ArgumentError

from ._arguments import Floats, broadcast, keys_and_sigma, numbers
from ._laplace import STEP, alike, highest, one_key

_LEAST_SIGMA = 0.35
_PANEL = np.polynomial.legendre.leggauss(12)


def top_probability(keys: ArrayLike, sigma: ArrayLike) -> Floats:
    """E max p, by quadrature over the largest logit x and over t = e^v.

        n integral of density(x) e^(v - e^v) P(x, v)^(n-1),    P(x, v) = E[exp(-e^(v - sigma (x - X))); X < x]

    keys from 2 to 1e15, sigma from 0 to 1e12; both broadcast. Relative error below 1e-8. About 10 ms per point.

    >>> print(f"{top_probability(1024, 1.0):.4f} {top_probability(1024, 8.0):.3f}")
    0.0162 0.709
    """
    counts, spreads = keys_and_sigma(keys, sigma, most=1e12)
    tops = [_top(n, s) for n, s in zip(counts.flat, spreads.flat, strict=True)]
    return np.array(tops).reshape(counts.shape)[()]


def saturation(keys: ArrayLike, sigma: ArrayLike, threshold: ArrayLike = 0.99) -> Floats:
    """P(max p > threshold), threshold from 0.5 to below 1, where only one key can be above.

    One key beats the other m = n - 1 by that much if D = ln Z_m - sigma X < ln((1 - threshold)/threshold). The
    transform of D is known, E e^(-s D) = e^(s^2 sigma^2/2)/Gamma(1 + s) integral of e^(s u) m psi_1 phi^(m-1) du, and
    is turned back along a line Re s = const near the saddle point, where nothing cancels.

    keys from 2 to 1e15, sigma from 0 to 1e12; all broadcast. Relative error below 1e-6 where the result is above 1e-9.
    Refused where 1/Gamma outgrows the Gaussian and the result is not negligible: sigma < 0.35 with 3 to 9 keys and a
    low threshold.

    >>> print(f"{saturation(512, 8.0):.3f} {saturation(512, 16.0):.3f}")
    0.114 0.379
    """
    counts, spreads = keys_and_sigma(keys, sigma, most=1e12)
    limits = numbers("threshold", threshold, least=0.5, most=1.0 - 1e-12)
    counts, spreads, limits = broadcast(keys=counts, sigma=spreads, threshold=limits)
    points = zip(counts.flat, spreads.flat, limits.flat, strict=True)
    shares = np.array([_saturation(*point) for point in points]).reshape(counts.shape)
    if np.isnan(shares).any():
        refused = spreads[np.isnan(shares)].flat[0]
        raise ArgumentError(
            f"sigma: must be at least {_LEAST_SIGMA} for so few keys and so low a threshold, got {refused:g}"
        )
    return shares[()]


def effective_keys(keys: ArrayLike, sigma: ArrayLike) -> Floats:
    """E 1/sum p^2, the number of keys that share a row, on average.

    1/sum p^2 = (sum e^s)^2/sum e^2s, and 1/sum e^2s is the integral of e^(-t sum e^2s) over t, as in `_laplace` with
    logits twice as wide: 1 + n(n-1) integral of psi_(1/2)^2 phi^(n-2) at 2 sigma.

    keys from 2 to 1e15, sigma from 0 to 1e12; both broadcast. Relative error below 1e-8.

    >>> print(f"{effective_keys(1024, 1.0):.1f} {effective_keys(1024, 8.0):.2f}")
    386.5 2.18
    """
    counts, spreads = keys_and_sigma(keys, sigma, most=1e12)
    flat_keys, flat_sigma = counts.reshape(-1), 2 * spreads.reshape(-1)
    averages = np.empty(flat_keys.size)
    # The integrand is at most n^2 e^(u + sigma^2/4) and, above -sigma^2/2, n^2 e^(-(u/sigma)^2); the result is at least
    # 1 and about n e^(-sigma^2/4).
    log_n, square = np.log(flat_keys), flat_sigma**2
    smaller = 2 * log_n + 25 - np.maximum(0.0, log_n - square / 4)
    by_chernoff = flat_sigma * np.sqrt(smaller)
    start = np.where(by_chernoff < square / 2, by_chernoff, smaller + square / 4)
    for place in alike(flat_keys, flat_sigma) if averages.size else ():
        n, ends = flat_keys[place], highest(flat_keys[place], flat_sigma[place])
        key = one_key(n, flat_sigma[place], -float(start[place].max()), float(ends.max()), deep=50.0)
        power = np.exp((n - 2)[:, None] * key.log_phi)
        averages[place] = 1 + n * (n - 1) * key.integral(key.half * key.half * power)
    return averages.reshape(counts.shape)[()]


def _saturation(keys: float, sigma: float, threshold: float) -> float:
    """P(max p > threshold); NaN where it cannot be computed."""
    if sigma == 0:
        return 0.0
    edge = math.log((1 - threshold) / threshold)
    if keys == 2:
        return float(2 * ndtr(edge / (math.sqrt(2) * sigma)))
    # The winner beats the sum of the others, and by Jensen that is at least (n - 1) e^(their mean).
    bound = keys * ndtr((edge - math.log(keys - 1)) / (sigma * math.sqrt(1 + 1 / (keys - 1))))
    if bound < 1e-12:
        return 0.0
    return math.nan if sigma < _LEAST_SIGMA else _inverted(keys, sigma, edge)


def _inverted(keys: float, sigma: float, edge: float) -> float:
    """n P(D < edge): the transform of D, turned back along a line through the saddle point for this edge."""
    others = keys - 1
    # One factor n psi_1 where the averages have two: it falls off half as fast to the left, and is e^(-u^2/(2
    # sigma^2)) to the right.
    reach = math.log(keys) + 30
    low = reach + sigma * sigma / 2 if sigma * sigma < 2 * reach else sigma * math.sqrt(2 * reach)
    key = one_key(np.array([keys]), np.array([sigma]), -low, 3.7 + 8.5 * sigma)
    # m psi_1 phi^(m-1) is the density of ln(exponential) - ln Z_m at u.
    psi, log_phi = key.psi[0, 0], key.log_phi[0]
    log_density = np.log(np.maximum(psi, 1e-300)) + (others - 1) * log_phi + math.log(others * key.step)
    used = log_density > log_density.max() - 60
    u, log_density = key.u[used], log_density[used]

    def log_values(s: Any) -> Any:
        """ln(E e^(-s D)/s)."""
        exponent = s[:, None] * u + log_density
        peak = exponent.real.max(axis=1)
        total = np.log(np.exp(exponent - peak[:, None]).sum(axis=1)) + peak
        return total + s * s * (sigma * sigma / 2) - loggamma(1 + s) - np.log(s)

    reals = np.geomspace(1e-3, 30.0, 60) * (4 / max(sigma, 1.0))
    real = float(reals[np.argmin(log_values(reals) + reals * edge)])
    step = 0.1 / max(sigma, 1.0)
    s = real + 1j * step * np.arange(math.ceil((9 / sigma + math.pi / sigma**2) / step) + 1)
    values = np.exp(log_values(s) + s * edge).real
    return float(min(1.0, max(0.0, keys * step / math.pi * (values.sum() - values[0] / 2))))


def _top(keys: float, sigma: float) -> float:
    # The largest of n lies within a few 1/sqrt(2 ln n) of its mean; a quarter of that resolves it.
    step = 0.25 / math.sqrt(2 * math.log(keys) + 1)
    # Below, some other key is larger in all but e^-40 of the rows.
    x = np.arange(float(ndtri(math.exp(-40 / (keys - 1)))), math.sqrt(2 * (math.log(keys) + 32)), step)
    v = np.arange(math.floor((-math.log(keys) - 30) / STEP), 16) * STEP
    r, weight = _below_the_largest(sigma, float(x[-1]) + 8.5)
    # 1 - P, so that the power n - 1 keeps its digits: keys above x, and what the ones below lose.
    taken = -np.expm1(-np.exp(v[:, None] - sigma * r)) * weight
    gauss = np.exp(-((x - r[:, None]) ** 2) / 2) / math.sqrt(2 * math.pi)
    lost = ndtr(-x) + _product(taken, gauss)
    power = np.exp((keys - 1) * np.log1p(-np.minimum(lost, 1 - 2.0**-53)))
    density = np.exp(-x * x / 2) / math.sqrt(2 * math.pi)
    return float(keys * step * STEP * (np.exp(v - np.exp(v)) @ power @ density))


def _product(a: Floats, b: Floats) -> Floats:
    """a @ b, a few lines at a time: so small a product BLAS computes without threads.

    On a busy machine they are waited for longer than the whole product takes.
    """
    lines = max(1, 200_000 // b.size)
    whole = len(a) // lines * lines
    blocks = np.matmul(a[:whole].reshape(-1, lines, a.shape[1]), b).reshape(whole, -1)
    return np.concatenate([blocks, a[whole:] @ b])


def _below_the_largest(sigma: float, far: float) -> tuple[Floats, Floats]:
    """Gauss-Legendre nodes from 0 to `far`: panels of 1/(2 sigma) at first, each twice as long, at most 1."""
    edges, length = [0.0], min(1.0, 0.5 / max(sigma, 0.5))
    while edges[-1] < far:
        edges.append(edges[-1] + length)
        length = min(1.0, 2 * length)
    node, weight = _PANEL
    start, width = np.array(edges[:-1])[:, None], np.diff(edges)[:, None]
    return (start + width * (node + 1) / 2).reshape(-1), (width / 2 * weight).reshape(-1)
