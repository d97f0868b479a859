"""The variance of the scores when the premise changes: another rule, correlation, a mean, a cap, a norm."""

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from rootdk.errors import ArgumentError, ArgumentTypeError
from rootdk.scaling import ScaleRule, rule

from ._arguments import Floats, broadcast, numbers, sigmas, whole


def rule_variance(
    scale: str | ScaleRule, d_k: ArrayLike, keys: ArrayLike | None = None, position: ArrayLike | None = None
) -> Floats:
    """Variance of z = factor <q, k> at unit inputs, for a rule of rootdk.scaling or the name of one.

    d_k factor^2, or factor^2/d_k for a rule that wants q and k of length 1. keys and position are needed only by rules
    that depend on them; all broadcast.

    >>> [float(rule_variance(name, 64)) for name in ("none", "sqrt", "dk")]
    [64.0, 1.0, 0.015625]
    >>> rule_variance("entropy_invariant", 64, keys=[512, 512**2]).tolist()
    [1.0, 4.0]
    """
    chosen = rule_of(scale)
    arguments = {"d_k": whole("d_k", d_k, 1, 1e15)}
    for name, value in (("keys", keys), ("position", position)):
        if value is not None:
            arguments[name] = whole(name, value, 0, 1e15)
    arrays = broadcast(**arguments)
    # Rules take d_k as one int, as the operator gives it.
    points = (map(int, point) for point in zip(*(array.flat for array in arrays), strict=True))
    variances = [chosen.score_variance(**dict(zip(arguments, point, strict=True))) for point in points]
    return np.array(variances, np.float64).reshape(arrays[0].shape)[()]


def correlated_score_variance(
    d_k: ArrayLike, correlation_query: ArrayLike, correlation_key: ArrayLike | None = None
) -> Floats:
    """d_k (1 + (d_k - 1) r_q r_k): unit components, any two with correlation r_q in the query and r_k in the key.

    tr(S_q S_k) for S = (1 - r) I + r 1 1'. It is the product that counts: uncorrelated keys alone keep the variance at
    d_k. A covariance needs r from -1/(d_k - 1) to 1. correlation_key is like correlation_query unless given.

    >>> float(correlated_score_variance(64, 0.5)), float(correlated_score_variance(64, 0.5, 0.0))
    (1072.0, 64.0)
    """
    if correlation_key is None:
        correlation_key = correlation_query
    size, r_query, r_key = broadcast(
        d_k=whole("d_k", d_k, 1, 1e15),
        correlation_query=numbers("correlation_query", correlation_query, least=-1.0, most=1.0),
        correlation_key=numbers("correlation_key", correlation_key, least=-1.0, most=1.0),
    )
    least = -1.0 / np.maximum(size - 1, 1)
    for name, r in (("correlation_query", r_query), ("correlation_key", r_key)):
        if (low := r < least).any():
            bound, given = least[low].flat[0], r[low].flat[0]
            raise ArgumentError(f"{name}: must be at least -1/(d_k - 1) = {bound:.4g}, got {given:g}")
    return (size * (1 + (size - 1) * r_query * r_key))[()]


def shared_mean_variance(d_k: ArrayLike, mean_query: ArrayLike, mean_key: ArrayLike) -> tuple[Floats, Floats]:
    """(whole, inside a row) = (d_k (1 + m_q^2 + m_k^2), d_k (1 + m_q^2)), where all components have one mean.

    Of the two means only the query's affects softmax: the key's moves all scores of a row together.

    >>> whole_variance, inside = shared_mean_variance(64, 0.5, 2.0)
    >>> float(whole_variance), float(inside)
    (336.0, 80.0)
    """
    size, m_query, m_key = broadcast(
        d_k=whole("d_k", d_k, 1, 1e15),
        mean_query=numbers("mean_query", mean_query),
        mean_key=numbers("mean_key", mean_key),
    )
    inside = size * (1 + m_query * m_query)
    return (inside + size * m_key * m_key)[()], inside[()]


def softcap_variance(sigma: ArrayLike, softcap: ArrayLike) -> Floats:
    """Var c tanh(z/c) for z of law N(0, sigma^2): sigma^2 - 2 sigma^4/c^2 + ..., never above min(sigma^2, c^2). Exact.

    sigma from 0, softcap above 0; both broadcast.

    >>> print(f"{softcap_variance(1.0, 50.0):.5f} {softcap_variance(1000.0, 50.0):.0f}")
    0.99920 2400
    """
    spreads, caps = broadcast(sigma=sigmas(sigma), softcap=numbers("softcap", softcap, above=0.0))
    return (caps * caps * _capped(spreads / caps, square=True))[()]


def softcap_slope(sigma: ArrayLike, softcap: ArrayLike) -> Floats:
    """E of d(c tanh(z/c))/dz = E sech^2(z/c): the share of the gradient that passes the cap on average.

    >>> print(f"{softcap_slope(1.0, 50.0):.5f} {softcap_slope(1000.0, 50.0):.3f}")
    0.99960 0.040
    """
    spreads, caps = broadcast(sigma=sigmas(sigma), softcap=numbers("softcap", softcap, above=0.0))
    return _capped(spreads / caps, square=False)[()]


def qk_norm_variance(scale: ArrayLike, gain_query: ArrayLike, gain_key: ArrayLike) -> tuple[Floats, Floats]:
    """(variance, largest |z|) of z = scale <g_q q', g_k k'>, where q' and k' are scaled to a mean square of 1.

    The variance is scale^2 sum g_q^2 g_k^2, for q and k whose components are exchangeable and symmetric about 0; the
    bound is scale d max|g_q g_k| for any q and k. Gains have shape (..., d).

    >>> variance, largest = qk_norm_variance(0.125, np.ones(64), np.ones(64))
    >>> float(variance), float(largest)
    (1.0, 8.0)
    """
    gains_query, gains_key = broadcast(
        gain_query=numbers("gain_query", gain_query), gain_key=numbers("gain_key", gain_key)
    )
    if gains_query.ndim == 0 or gains_query.shape[-1] == 0:
        raise ArgumentError(f"gain_query: must have one gain per component, got shape {gains_query.shape}")
    product = np.abs(gains_query * gains_key)
    factor, largest = broadcast(scale=np.abs(numbers("scale", scale)), gains=product.max(axis=-1))
    squares = (product * product).sum(axis=-1)
    return (factor * factor * squares)[()], (factor * product.shape[-1] * largest)[()]


def rule_of(scale: Any) -> ScaleRule:
    """The rule itself, or the one of that name."""
    if isinstance(scale, str):
        return rule(scale)
    if not isinstance(scale, ScaleRule):
        raise ArgumentTypeError(f"scale: must be a name or a rule from rootdk.scaling, got {scale!r}")
    return scale


def _capped(ratio: Floats, square: bool) -> Floats:
    """E tanh^2(w) or E sech^2(w) for w of law N(0, ratio^2).

    Both are analytic up to |Im w| = pi/2, so the trapezoidal rule with a step of 0.1 is exact to rounding: in w
    where the Gaussian is wide, in x = w/ratio where it is narrow. For a wide one sech^2, which falls off, is summed.
    """
    averages = np.empty(ratio.size)
    for i, width in enumerate(ratio.flat):
        if width < 1.0:
            x = np.arange(-9, 9.05, 0.1)
            weight = np.exp(-x * x / 2) * (0.1 / math.sqrt(2 * math.pi))
            tangent = np.tanh(width * x)
            averages[i] = weight @ (tangent * tangent if square else 1 / np.cosh(width * x) ** 2)
        else:
            w = np.arange(-20, 20.05, 0.1)
            weight = np.exp(-((w / width) ** 2) / 2) * (0.1 / (width * math.sqrt(2 * math.pi)))
            passed = weight @ (1 / np.cosh(w) ** 2)
            averages[i] = 1 - passed if square else passed
    return averages.reshape(ratio.shape)
