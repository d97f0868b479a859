"""Rows of n Gaussian logits, and where softmax changes its character.

Exact: the largest weight, how often it takes nearly all, how many keys share a row. The simple laws on either side of
the change are limits for many keys. Each says where it holds and refuses elsewhere.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import log_ndtr, loggamma, ndtr, ndtri

from rootdk.errors import ArgumentError

from ._arguments import Floats, broadcast, keys_and_sigma, keys_of, numbers, result
from .softmax import STEP, alike, highest, one_key

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
    is inverted along a line Re s = const near the saddle point, where nothing cancels.

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

    1/sum p^2 = (sum e^s)^2/sum e^2s, and 1/sum e^2s is the integral of e^(-t sum e^2s) over t, as in `softmax` with
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
    for place in alike(flat_keys, flat_sigma):
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
    # The largest term exceeds the sum of the others, and by Jensen that is at least (n - 1) e^(their mean).
    bound = keys * ndtr((edge - math.log(keys - 1)) / (sigma * math.sqrt(1 + 1 / (keys - 1))))
    if bound < 1e-12:
        return 0.0
    return math.nan if sigma < _LEAST_SIGMA else _inverted(keys, sigma, edge)


def _inverted(keys: float, sigma: float, edge: float) -> float:
    """n P(D < edge): the transform of D, inverted along a line through the saddle point for this edge."""
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
    """a @ b, a few lines at a time: BLAS computes such small products without threads.

    On a busy machine waiting for threads takes longer than the whole product.
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


def critical_sigma(keys: ArrayLike) -> Floats:
    """sqrt(2 ln n): past it a few keys take all the weight, however many there are (the random-energy transition).

    keys from 2.

    >>> print(f"{critical_sigma(1024):.3f} {critical_sigma(1e9):.3f}")
    3.723 6.438
    """
    return result(np.sqrt(2 * np.log(keys_of(keys))))


def expected_maximum(keys: ArrayLike) -> Floats:
    """E max of n standard normal numbers = integral of Phi(x) - Phi(x)^n, exact by quadrature. keys from 1.

    The largest logit is sigma times this, about 10 to 20 % below sigma sqrt(2 ln n) for the usual n.

    >>> print(f"{expected_maximum(2):.6f} {expected_maximum(1024):.4f}")
    0.564190 3.2482
    """
    counts = keys_of(keys, least=1)
    # The trapezoidal rule on an analytic function that falls off like a Gaussian; Phi^n turns within 1/sqrt(2 ln n).
    step = 1 / 64
    x = np.arange(-13 / step, 13 / step + 1) * step
    log_phi = log_ndtr(x)
    different, back = np.unique(counts.reshape(-1), return_inverse=True)
    maxima = [-(ndtr(x) * np.expm1((n - 1) * log_phi)).sum() * step for n in different]
    return np.array(maxima)[back].reshape(counts.shape)[()]


def warm_entropy(keys: ArrayLike, sigma: ArrayLike) -> Floats:
    """E H ~ ln n - sigma^2/2, for sigma < sqrt(2 ln n)/2: the weight is spread over a share e^(-sigma^2/2) of the keys.

    >>> print(f"{warm_entropy(1024, 1.0):.3f}")
    6.431
    """
    counts, spreads = _checked(keys, sigma, frozen=False)
    return (np.log(counts) - spreads * spreads / 2)[()]


def warm_p_squared(keys: ArrayLike, sigma: ArrayLike) -> Floats:
    """E sum p^2 ~ e^(sigma^2)/n, for sigma < sqrt(2 ln n)/2.

    >>> print(f"{warm_p_squared(1024, 1.0):.4f}")
    0.0027
    """
    counts, spreads = _checked(keys, sigma, frozen=False)
    return (np.exp(spreads * spreads) / counts)[()]


def frozen_jacobian_trace(keys: ArrayLike, sigma: ArrayLike) -> Floats:
    """E tr J ~ sqrt(2 ln n)/sigma, for sigma > sqrt(2 ln n); too high by 10 to 40 % at the n of practice.

    >>> print(f"{frozen_jacobian_trace(1024, 16.0):.3f}")
    0.233
    """
    counts, spreads = _checked(keys, sigma, frozen=True)
    return result(np.sqrt(2 * np.log(counts)) / spreads)


def frozen_saturation(keys: ArrayLike, sigma: ArrayLike, gap: ArrayLike) -> Floats:
    """P(p_max > 1 - gap) ~ sin(pi m)/(pi m) gap^m with m = sqrt(2 ln n)/sigma, for m < 1 and gap from 0 to 1/2.

    The law of the largest of the Poisson-Dirichlet weights to which a frozen softmax tends; gap^m alone has the right
    exponent and stays too high however many keys there are. For 16 keys and more and gaps from 0.01 it is 0.5 to 1 of
    what `saturation`, which is exact, gives from sigma = 2 sqrt(2 ln n) on, and 0.35 to 1 of it at 1.5 sqrt(2 ln n);
    at the transition itself it goes to 0 and `saturation` does not.

    >>> print(f"{frozen_saturation(1024, 16.0, 0.01):.2f}")
    0.31
    """
    counts, spreads = _checked(keys, sigma, frozen=True)
    counts, spreads, gaps = broadcast(keys=counts, sigma=spreads, gap=numbers("gap", gap, least=0.0, most=0.5))
    share = np.sqrt(2 * np.log(counts)) / spreads
    return result(np.sinc(share) * gaps**share)


def _checked(keys: Any, sigma: Any, frozen: bool) -> tuple[Floats, ...]:
    """Both as arrays, on the side of the transition where a law holds."""
    counts, spreads = keys_and_sigma(keys, sigma)
    limit = np.sqrt(2 * np.log(counts)) / (1 if frozen else 2)
    outside = spreads <= limit if frozen else spreads >= limit
    if outside.any():
        expected = "above sqrt(2 ln n)" if frozen else "below sqrt(2 ln n)/2"
        bound, spread = limit[outside].flat[0], spreads[outside].flat[0]
        raise ArgumentError(f"sigma: must be {expected} = {bound:.4g} for this law, got {spread:g}")
    return counts, spreads
