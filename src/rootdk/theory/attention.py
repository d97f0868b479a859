"""Averages for attention itself: Gaussian q and k, so that the spread of the logits differs from row to row.

Given q, the logits scale * <q, k_j> are independent N(0, sigma^2) with sigma = |scale| |q|, and |q|^2 is chi-square
with d_k degrees of freedom. So the averages of `softmax_moments` are averaged once more, over v = ln sigma. Its density

    2^(1 - d/2) / Gamma(d/2) e^(d w - e^(2w)/2),   w = v - ln |scale|

is analytic, and the trapezoidal rule with step h errs by its Fourier transform at 2 pi/h,
|Gamma(d/2 + i pi/h) / Gamma(d/2)|: the step is the largest for which that is below e^-30, but at most 1/11 and at most
1/ln n, because as a function of ln sigma the averages themselves bend where the weight moves to few keys, the more
sharply the more keys there are. sum p^3 needs the smallest step: where a typical row has n^-2 of it, its average comes
from rare sharp rows. With these steps a quarter of the step changes no average by more than 1e-9.

How much a change of the query changes the output is |do/dq| relative to |o|. With o = sum p_j v_j the derivative in the
query is do/dq = scale sum_j p_j v_j (k_j - sum p k)'. For standard normal v it has E_v |do/dq|_F^2 = d_v scale^2 sum_j
p_j^2 |k_j - sum p k|^2, and E_v |o|^2 = d_v sum p^2. Split k along q and across. Across, the d_k - 1 components are
independent of p, and each adds sum_j p_j^2 (1 - 2 p_j + sum p^2) = |J|_F^2. Along q the component is x_j = s_j/sigma,
and p_j (x_j - sum p x) = dp_j/dsigma. So

    E |do/dq|_F^2 / E |o|^2 = scale^2 ((d_k - 1) E |J|_F^2 + E |dp/dsigma|^2) / E sum p^2

Gradients of keys and values. Let each row i receive a gradient g_i of its own, E g g' = I, independent of all else. The
scores of the row get ds = J V g, and E_v |ds|^2 = |J|_F^2 |g|^2; a key gets dk_j = scale sum_i ds_ij q_i, a value dv_j
= sum_i p_ij g_i. Rows do not mix on average, because their g are independent, and |scale| |q| is sigma. So per row,
summed over keys,

    E |dq|^2 = d_v scale^2 ((d_k - 1) E |J|_F^2 + E |dp/dsigma|^2)    E |dK|^2 = d_v E sigma^2 |J|_F^2
    E |dV|^2 = d_v E sum p^2
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import gammaincc, gammainccinv, gammaincinv, gammaln, loggamma

from rootdk.errors import ArgumentError

from ._arguments import Floats, broadcast, keys_of, numbers, result, whole
from .softmax import AVERAGES, SoftmaxMoments, averages_of, record

MOST_D_K = 1e6
_NARROW_SCALE = 1e6


def attention_moments(keys: ArrayLike, d_k: ArrayLike, scale: ArrayLike) -> SoftmaxMoments:
    """The averages over rows of softmax(scale q k') for standard normal q and k with d_k components.

    keys from 2 to 1e15, d_k from 1 to 1e6, scale any number up to 1e50 in size, up to 1e6 where d_k is 1 or 2; all
    broadcast. The relative error is below 1e-8 in every field. A point takes some 30 values of sigma and some
    milliseconds, below d_k = 16 up to ten times that; points that share n share values of sigma. For components with
    another variance multiply scale by both standard deviations.

    >>> none, sqrt = attention_moments(512, 64, [1.0, 0.125]).jacobian_trace
    >>> print(f"{none:.2f} {sqrt:.3f}")
    0.38 0.995
    """
    counts, sizes, scales = _checked(keys, d_k, scale)
    return record(_attention_averages(counts, sizes, scales))


def relative_gradient(keys: ArrayLike, d_k: ArrayLike, scale: ArrayLike) -> Floats:
    """sqrt(E |do/dq|_F^2 / E |o|^2) for standard normal q, k and v, whatever the width of v. Exact, by quadrature.

    keys from 2 to 1e15, d_k from 1 to 1e6; all arguments broadcast. Only the scale 1/sqrt(d_k) keeps it near 1 at
    every d_k.

    >>> for d_k in (64, 256):
    ...     print(*(f"{relative_gradient(512, d_k, scale):.3f}" for scale in (1.0, d_k**-0.5, 1 / d_k)))
    2.906 0.995 0.125
    4.067 0.991 0.062
    """
    counts, sizes, scales = _checked(keys, d_k, scale)
    average = dict(zip(AVERAGES, _attention_averages(counts, sizes, scales), strict=True))
    return result(np.sqrt(_query_gradient_squared(average, sizes, scales) / average["p_squared"]))


@dataclass(frozen=True, slots=True)
class GradientSizes:
    """Root mean squares of gradients, per row and over sqrt(d_v): see `gradient_sizes`.

    >>> sizes = gradient_sizes(512, 64, 0.125)
    >>> bool(sizes.query < sizes.value)
    True
    """

    query: Floats
    key: Floats
    value: Floats


def gradient_sizes(keys: ArrayLike, d_k: ArrayLike, scale: ArrayLike) -> GradientSizes:
    """sqrt(E |dq|^2), sqrt(E |dK|^2) and sqrt(E |dV|^2), each over sqrt(d_v), per row. Exact, by quadrature.

    For standard normal q, k and v and a gradient of the output with independent components of variance 1. dK and dV are
    what one row sends to all keys and values; of m rows over the same keys they are sqrt(m) times that. query over
    value is `relative_gradient`. Behind a norm that gives every token x the length sqrt(width), the gradient of W_q of
    m tokens is sqrt(m width) times that of a query: dW_q = sum dq x'. All arguments broadcast, in the ranges of
    `attention_moments`.

    >>> for scale in (1.0, 64**-0.5, 1 / 64):
    ...     sizes = gradient_sizes(512, 64, scale)
    ...     print(f"{sizes.query:.4f} {sizes.key:.4f} {sizes.value:.4f}")
    2.2924 2.3014 0.7890
    0.0725 0.0730 0.0728
    0.0056 0.0056 0.0445
    """
    counts, sizes, scales = _checked(keys, d_k, scale)
    average = dict(zip(AVERAGES, _attention_averages(counts, sizes, scales), strict=True))
    weighted = dict(zip(AVERAGES, _attention_averages(counts, sizes, scales, power=2), strict=True))
    query = _query_gradient_squared(average, sizes, scales)
    squares = (query, weighted["jacobian_norm_squared"], average["p_squared"])
    return GradientSizes(*(np.sqrt(square)[()] for square in squares))


def _query_gradient_squared(average: dict[str, Floats], d_k: Floats, scale: Floats) -> Floats:
    """E |dq|^2 / d_v: across the query every key counts with |J|^2, along it with the slope."""
    return scale * scale * ((d_k - 1) * average["jacobian_norm_squared"] + average["slope_squared"])


def _checked(keys: Any, d_k: Any, scale: Any) -> tuple[Floats, ...]:
    """The three arguments as arrays of one shape."""
    counts, sizes, scales = broadcast(
        keys=keys_of(keys),
        d_k=whole("d_k", d_k, 1, MOST_D_K),
        scale=numbers("scale", scale, least=-1e50, most=1e50),
    )
    # Nearly all of such an average comes from queries near 0, below the lattice.
    lost = (sizes < 3) & (np.abs(scales) > _NARROW_SCALE)
    if lost.any():
        raise ArgumentError(
            f"scale: must be at most {_NARROW_SCALE:g} in size where d_k is 1 or 2, got {scales[lost].flat[0]:g}"
        )
    return counts, sizes, scales


def _attention_averages(keys: Floats, d_k: Floats, scale: Floats, power: int = 0) -> Floats:
    """`averages_of`, averaged over the length of the query, with a factor sigma^power."""
    nodes = [spread_nodes(*point) for point in zip(keys.flat, d_k.flat, scale.flat, strict=True)]
    sizes = [len(sigma) for sigma, _ in nodes]
    if not sizes:
        return averages_of(keys, keys)
    # All points in one call: those that share a sigma share the work.
    sigma, weight = (np.concatenate(parts) for parts in zip(*nodes, strict=True))
    weighted = averages_of(np.repeat(keys.reshape(-1), sizes), sigma) * weight * sigma**power
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.intp)
    return np.asarray(np.add.reduceat(weighted, starts, axis=-1).reshape(-1, *keys.shape))


def spread_nodes(
    keys: float, d_k: float, scale: float, log_error: float = -30.0, finer: int = 1
) -> tuple[Floats, Floats]:
    """Values of sigma = |scale| |q| and their weights, on a lattice of ln sigma that other calls share.

    log_error bounds what the step and the limits leave out; `finer` divides the step, for functions of sigma that bend
    more than the averages do.
    """
    if scale == 0.0:
        return np.zeros(1), np.ones(1)
    half, shift = d_k / 2, math.log(abs(scale))
    step = _step(half, keys, log_error) / finer
    # A row can be rare and still count: where n is large a typical sum p^3 is n^-2 and that of a sharp row is 1. To
    # the left, where a typical row is sharp, a flat row counts in proportion to sigma, in the slope to its cube.
    rare = log_error - 2.5
    high = _log_quantile(half, rare - 2 * math.log(keys), upper=True)
    low = _log_quantile(half, rare - 3 * max(0.0, shift + math.log(d_k) / 2), upper=False)
    # Rows below can be taken as sigma = 0: they differ from it by sigma^2, and they are e^(d w) of all.
    flat = (log_error - 2 * shift) / (d_k + 2)
    if flat > high:  # all rows are
        return np.zeros(1), np.ones(1)
    index = np.arange(math.floor((max(low, flat) + shift) / step), math.ceil((high + shift) / step) + 1)
    v = np.asarray(index * step, np.float64)
    sigma, weight = np.exp(v), _density(v - shift, d_k) * step
    if flat > low:
        # The rest of the lattice, where the density falls like e^(d w). Not 1 minus the others: that may be only
        # rounding.
        rest = v[0] - step * np.arange(1, math.ceil(40 / (d_k * step)) + 1)
        sigma, weight = np.append(sigma, 0.0), np.append(weight, _density(rest - shift, d_k).sum() * step)
    return sigma, weight


def _density(w: Floats, d_k: float) -> Floats:
    """The density of w = ln |q|, around its peak at ln(d)/2, so that large d does not subtract large numbers."""
    off = w - math.log(d_k) / 2
    return np.asarray(np.exp(d_k * (off - np.expm1(2 * off) / 2) + _log_peak(d_k / 2)))


def _log_peak(half: float) -> float:
    """ln of the density at its peak: ln 2 + half ln half - half - ln Gamma(half), without its cancellation."""
    if half < 20:
        return float(math.log(2) + half * math.log(half) - half - gammaln(half))
    stirling = 1 / (12 * half) - 1 / (360 * half**3) + 1 / (1260 * half**5) - 1 / (1680 * half**7)
    return math.log(2) + 0.5 * math.log(half / (2 * math.pi)) - stirling


def _step(half: float, keys: float, log_error: float) -> float:
    """The largest 2^(-j/4) up to 1/11 and 1/ln n where the Fourier transform of the density is below e^log_error."""
    j = max(14, math.ceil(4 * math.log2(math.log(keys))))
    while (loggamma(half + 1j * math.pi * 2 ** (j / 4)) - gammaln(half)).real > log_error:
        j += 1
    return float(2 ** (-j / 4))


def _log_quantile(half: float, log_tail: float, upper: bool) -> float:
    """ln of the length |q| that is exceeded (or not reached) with this log probability, or somewhat further out."""
    tail = math.exp(max(log_tail, -690.0))
    if not upper:
        return 0.5 * math.log(max(2 * gammaincinv(half, tail), 1e-300))
    square = 2 * gammainccinv(half, tail)
    while gammaincc(half, square / 2) > tail * 1.01:  # the inverse gives up far out in the tail
        square *= 1.1
    return 0.5 * math.log(square)
