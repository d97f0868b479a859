"""What the softmax of n Gaussian logits is on average: exact for any n and sigma, by quadrature.

Every average comes from one function, the Laplace transform of a log-normal number. For n Gaussian logits s = sigma x
the sum Z = sum e^s enters as 1/Z^k = integral of t^(k-1) e^(-t Z) / (k-1)! dt. Given t the keys are independent, so an
average over all of them becomes a product of averages over one. With u = ln t and y = u + s:

    phi(u)   = E exp(-e^y)               what one key contributes that is only in the denominator
    psi_k(u) = E e^(k y) exp(-e^y)       what one key contributes that is p^k in the numerator
    rho(u)   = E g(y), g(y) = E1(e^y) + (y + Euler's constant) exp(-e^y)        the same for -p ln p, by parts

They are computed for many pairs (n, sigma) at once.

Steps. In u every integrand is analytic and bounded for |Im u| < pi/2, whatever n and sigma are, because there
|exp(-t e^s)| < 1. So the trapezoidal rule with step h errs like e^(-pi^2/h): 1e-17 at h = 1/4. For sigma > 10 the strip
is wider in proportion, and so is the step. The average over one key is a trapezoidal sum too, over y with the same
step where the Gaussian is wide. Where it is narrow, Gauss-Hermite with few points: e^(sigma x) is nearly a line.

Limits. They leave out e^-28 of each integral. `lowest` and `highest` say from which bounds they follow.

The averages over all keys follow from what one key contributes:

    E sum p^2           = n            integral of psi_2 phi^(n-1)
    E sum p^3           = n/2          integral of psi_3 phi^(n-1)
    E H                 = n(n-1)       integral of psi_1 rho phi^(n-2)
    E tr J  = E sum_{i!=j} p_i p_j
                        = n(n-1)       integral of psi_1^2 phi^(n-2)
    E |J|^2 = E sum_{i!=j} 2 p_i^2 p_j^2 + E sum_{i,j,k distinct} p_i^2 p_j p_k
                        = n(n-1)/3     integral of psi_2^2 phi^(n-2)
                        + n(n-1)(n-2)/6 integral of psi_2 psi_1^2 phi^(n-3)
    E ln Z  = E H + sigma^2 E tr J      because H = ln Z - sum p s, and E sum p s = sigma^2 E tr J by parts

The textbook forms 1 - E sum p^2, E ln Z - sigma^2 E tr J and E sum p^2 - 2 E sum p^3 + E (sum p^2)^2 are differences of
nearly equal numbers where one key takes all. Here every integrand is positive and only sums are left: nothing cancels,
at any sigma.

J = diag(p) - p p' is the derivative of softmax for weights p. It is symmetric, has no negative eigenvalue, and J 1 = 0.
It maps the gradient of the weights to the gradient of the scores.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import exp1, ndtr, ndtri

from ._arguments import Floats, keys_and_sigma, probabilities

STEP = 0.25
_NARROW = 0.35  # below this sigma the average over one key is taken over x, above over y
_NEGLIGIBLE = 28.0  # e^-28 of an integral is left out on each side
_TOP = 3.7  # e^y exp(-e^y) is below e^-36 from here on
_HERMITE = np.polynomial.hermite_e.hermegauss(20)
# Pairs that share a grid: as alike as this in ln n and ln sigma, and so many at most.
_ALIKE, _MOST_TOGETHER = 1.0, 64


@dataclass(frozen=True, slots=True)
class OneKey:
    """What one key contributes, on the grid u with the given step; one row per pair (n, sigma).

    `psi` holds psi_1, psi_2, psi_3, and `half` psi_(1/2). `lost` is 1 - phi, because phi^n needs the digits of 1 - phi
    where n is large.
    `first` holds E x e^(k y) exp(-e^y) for k = 1 and 2, `second` E x^2 e^(2 y) exp(-e^y), up to one shift of x for the
    whole row; sums that depend only on differences of x do not depend on the shift.
    """

    u: Floats
    step: float
    lost: Floats
    psi: Floats
    half: Floats
    rho: Floats
    first: Floats
    second: Floats

    @property
    def log_phi(self) -> Floats:
        """ln phi; 1 - phi can round to 1 at the right end, where any power of phi counts for nothing but phi^0 = 1."""
        return np.asarray(np.log1p(-np.minimum(self.lost, 1.0 - 2.0**-53)))

    def integral(self, integrand: Floats) -> Floats:
        """The integral over u, the last axis."""
        return np.asarray(integrand.sum(axis=-1) * self.step)


def alike(keys: Floats, sigma: Floats) -> Iterator[NDArray[np.intp]]:
    """The places of pairs that one grid serves without being much too wide for any of them."""
    if not keys.size:
        return
    with np.errstate(divide="ignore"):
        across = np.where(sigma < _NARROW, -np.inf, np.floor(np.log(sigma) / (_ALIKE / 4)))
    boxes = np.stack([across, np.floor(np.log(keys) / _ALIKE)])
    order = np.lexsort((sigma, *boxes[::-1]))
    changes = np.flatnonzero((boxes[:, order[1:]] != boxes[:, order[:-1]]).any(axis=0)) + 1
    for together in np.split(order, changes):
        yield from np.split(together, range(_MOST_TOGETHER, len(together), _MOST_TOGETHER))


def lowest(keys: Floats, sigma: Floats) -> Floats:
    """Where the integrals over u may begin.

    Far to the left psi_k <= E e^(k y) = e^(k u + k^2 sigma^2/2), and nearer, by Chernoff, <= e^(-u^2/(2 sigma^2)). An
    average of sum p^k is about e^((k^2 - k) sigma^2/2) n^(1-k), at most 1, and its integrand at most n psi_k. Averages
    over two and three keys have a factor n psi for each, and fall off no slower.
    """
    log_n, square = np.log(keys), sigma * sigma
    starts = []
    for k in (2, 3):
        by_moment = log_n + square / 2 + _NEGLIGIBLE / k
        rare = np.maximum(0.0, (k - 1) * log_n - (k * k - k) / 2 * square)
        by_chernoff = sigma * np.sqrt(2 * (log_n + _NEGLIGIBLE + rare))
        starts.append(np.where(by_moment > k * square, by_moment, by_chernoff))
    return np.asarray(-np.maximum(*starts))


def highest(keys: Floats, sigma: Floats) -> Floats:
    """Where the integrals over u may end.

    phi^n <= e^(-n (1 - phi)), and 1 - phi is at least (1 - 1/e) P(y > 0) and at least P(y > u) (1 - exp(-e^u)). With
    few keys the numerator falls off instead: n psi_k psi_l and n psi_k phi like e^(-(u/sigma)^2).
    """
    enough = (_NEGLIGIBLE + 3 * np.log(keys)) / keys
    end = _TOP + sigma * math.sqrt(_NEGLIGIBLE)
    with np.errstate(divide="ignore", invalid="ignore"):
        by_chance = np.where(enough < 0.6, sigma * ndtri(np.minimum(enough / 0.63, 0.99)), np.inf)
        by_middle = np.where(enough < 0.45, np.log(-np.log1p(-2 * np.minimum(enough, 0.49))), np.inf)
    return np.asarray(np.minimum(end, np.minimum(by_chance, by_middle)))


def one_key(keys: Floats, sigma: Floats, low: float, high: float, deep: float = _NEGLIGIBLE) -> OneKey:
    """The contributions for pairs that are alike, on a grid from low to high.

    deep: how far below -ln n e^y still counts; psi_(1/2), which falls off half as fast, needs twice as much.
    """
    least = float(sigma.min())
    stride = max(1, int(least / 10))
    step = STEP * stride
    first, last = math.floor(low / step), math.ceil(high / step)
    if least < _NARROW:
        return _over_x(sigma, step, np.arange(first, last + 1, dtype=np.float64) * step)
    # e^y below this is negligible even n times; above, exp(-e^y) is negligible, or no u reaches this y.
    bottom = math.floor(-(math.log(float(keys.max())) + deep) / STEP)
    most = float(sigma.max())
    reach = high + step + most * (8.5 + 3 * most)
    return _over_y(sigma, stride, first, last, bottom, max(bottom + 1, math.ceil(min(_TOP, reach) / STEP)))


def _over_x(sigma: Floats, step: float, u: Floats) -> OneKey:
    x, weight = _HERMITE[0], _HERMITE[1] / math.sqrt(2 * math.pi)
    y = u[:, None] + (sigma[:, None] * x)[:, None, :]
    t = np.exp(y)
    decay = np.exp(-t)
    t_decay = t * decay
    columns = np.stack([t_decay, t * t_decay, t * t * t_decay])
    return OneKey(
        u,
        step,
        -np.expm1(-t) @ weight,
        columns @ weight,
        np.sqrt(t) * decay @ weight,
        _entropy_kernel(y) @ weight,
        columns[:2] @ (weight * x),
        columns[1] @ (weight * x * x),
    )


def _over_y(sigma: Floats, stride: int, first: int, last: int, bottom: int, top: int) -> OneKey:
    y = np.arange(bottom, top + 1, dtype=np.float64) * STEP
    u = np.arange(first, last + 1, dtype=np.float64) * (stride * STEP)
    rows, columns = last - first + 1, len(y)
    width = sigma[:, None]
    if stride < columns:
        # Both tables depend on y - u alone, and u runs over multiples of the step of y: no distance is evaluated twice.
        start = bottom - last * stride
        away = (start + np.arange((rows - 1) * stride + columns, dtype=np.float64)) * STEP / width
        # One window per u, from the largest u to the smallest.
        gauss, below = (
            np.lib.stride_tricks.sliding_window_view(table, columns, axis=-1)[:, ::stride]
            for table in _tables(away, width)
        )
    else:
        away = (y - u[::-1, None]) / width[:, None]
        gauss, below = _tables(away, width[:, None])
    t = np.exp(y)
    t_kept = t * np.exp(-t)
    # x is y/sigma up to a shift, and the division is done after the sums.
    square = t * t_kept
    powers = [t_kept, square, t * square, np.sqrt(t) * np.exp(-t), _entropy_kernel(y)]
    powers += [t_kept * y, square * y, square * y * y]
    # einsum and not matmul: products this small gain nothing from BLAS threads and wait for them on a busy machine.
    psi1, psi2, psi3, half, rho, first1, first2, second2 = np.einsum("suy,fy->fsu", gauss, np.stack(powers))[..., ::-1]
    return OneKey(
        u,
        STEP * stride,
        np.einsum("suy,y->su", below, t_kept)[:, ::-1],
        np.stack([psi1, psi2, psi3]),
        half,
        rho,
        np.stack([first1, first2]) / width,
        second2 / width**2,
    )


def _tables(away: Floats, sigma: Floats) -> tuple[Floats, Floats]:
    """Density of y at a distance of `away` sigmas from u, and P(y' above it), both times the step."""
    return np.exp(-away * away / 2) * (STEP / (sigma * math.sqrt(2 * math.pi))), ndtr(-away) * STEP


def _entropy_kernel(y: Floats) -> Floats:
    """E1(t) + (ln t + Euler's constant) e^-t at t = e^y: what t = 1/Z makes of -p ln p after one integration by parts.

    Near t = 0 both terms are large and nearly opposite, so there Ein(t) = E1(t) + ln t + Euler's constant = sum of
    -(-t)^k/(k k!) takes the place of E1.
    """
    t = np.exp(y)
    log_term = y + np.euler_gamma
    kernel = np.empty_like(t)
    small = t < 0.5
    tiny = t[small]
    series, power = np.zeros_like(tiny), np.ones_like(tiny)
    for k in range(1, 15):
        power = power * (-tiny / k)
        series = series - power / k
    kernel[small] = series + log_term[small] * np.expm1(-tiny)
    kernel[~small] = exp1(t[~small]) + log_term[~small] * np.exp(-t[~small])
    return kernel


@dataclass(frozen=True, slots=True)
class SoftmaxMoments:
    """Averages over rows. Each field is a float64 number, or an array of the arguments' common shape.

    log_sum_exp             E ln Z, Z = sum e^s
    entropy                 E of -sum p ln p, in nats
    p_squared               E sum p^2
    p_cubed                 E sum p^3
    jacobian_trace          E tr J = E (1 - sum p^2), J = diag(p) - p p'
    jacobian_norm_squared   E |J|_F^2 = E (sum p^2 - 2 sum p^3 + (sum p^2)^2)

    >>> from rootdk.theory import softmax_moments
    >>> moments = softmax_moments(1024, [1.0, 8.0])
    >>> (moments.entropy / np.log(1024)).round(2).tolist()
    [0.93, 0.13]
    """

    log_sum_exp: Floats
    entropy: Floats
    p_squared: Floats
    p_cubed: Floats
    jacobian_trace: Floats
    jacobian_norm_squared: Floats


# What is averaged, in the order of the arrays below. The last one is for the relative gradient alone.
AVERAGES = (*SoftmaxMoments.__slots__, "slope_squared")


def softmax_moments(keys: ArrayLike, sigma: ArrayLike) -> SoftmaxMoments:
    """The averages for `keys` independent logits of law N(mean, sigma^2); log_sum_exp is that for mean 0.

    keys from 2 to 1e15, sigma from 0 to 1e100; both broadcast. The relative error of every field is below 1e-8
    (against mpmath, for 2 to 1e9 keys and sigma from 0.01 to 64): no field is computed as a difference. A point takes
    some tenths of a millisecond, and an array of them is computed in blocks.

    >>> m = softmax_moments(1024, 8.0)
    >>> print(f"{m.log_sum_exp:.2f} {m.p_squared:.3f} {m.entropy:.3f}")
    26.39 0.602 0.899
    >>> softmax_moments([2, 1e9], [[1.0], [8.0], [64.0]]).entropy.shape
    (3, 2)
    """
    return record(averages_of(*keys_and_sigma(keys, sigma)))


def averages_of(keys: Floats, sigma: Floats) -> Floats:
    """One entry per name in AVERAGES, along the first axis, for arrays of one shape."""
    # Points of attention that share n and a lattice of sigma ask for the same pair many times.
    different, back = np.unique(np.stack([keys.reshape(-1), sigma.reshape(-1)]), axis=1, return_inverse=True)
    keys_of_pair, sigma_of_pair = different
    averages = np.empty((len(AVERAGES), keys_of_pair.size))
    low, high = lowest(*different), highest(*different)
    for place in alike(*different):
        limits = float(low[place].min()), float(high[place].max())
        averages[:, place] = _together(keys_of_pair[place], sigma_of_pair[place], *limits)
    return averages[:, back.reshape(-1)].reshape(len(AVERAGES), *keys.shape)


def record(averages: Floats) -> SoftmaxMoments:
    """The public part of such an array."""
    return SoftmaxMoments(*(average[()] for average in averages[:-1]))


def _together(keys: Floats, sigma: Floats, low: float, high: float) -> Floats:
    """The averages, one column per pair, for pairs that one grid serves.

    slope_squared is E sum (dp/dsigma)^2 = E sum p^2 (x - sum p x)^2, what the relative gradient needs:

        n(n-1)/6      integral of 2 (b_2 a_2 - m_2^2) phi^(n-2)
      + n(n-1)(n-2)/6 integral of (b_2 a_1^2 - 2 m_2 m_1 a_1 + a_2 m_1^2) phi^(n-3)

    with a_k = psi_k, and m_k, b_k the same with a factor x, x^2.
    """
    key = one_key(keys, sigma, low, high)
    (psi1, psi2, psi3), (mean1, mean2), square2 = key.psi, key.first, key.second
    # Two keys leave no third: the power would be phi^-1, and its factor n - 2 is 0.
    without_3 = np.exp(np.maximum(keys - 3, 0.0)[:, None] * key.log_phi)
    phi = 1 - key.lost
    without_2 = np.where(keys[:, None] > 2, without_3 * phi, 1.0)
    without_1 = without_2 * phi
    pairs, triples = keys * (keys - 1), keys * (keys - 1) * (keys - 2)
    pair, triple = psi1 * without_2, psi1 * without_3
    spread_pair = 2 * (square2 * psi2 - mean2 * mean2)
    spread_triple = (square2 * psi1 - 2 * mean2 * mean1) * psi1 + psi2 * mean1 * mean1
    entropy, trace = pairs * key.integral(pair * key.rho), pairs * key.integral(pair * psi1)
    return np.stack(
        [
            entropy + sigma * sigma * trace,
            entropy,
            keys * key.integral(psi2 * without_1),
            keys / 2 * key.integral(psi3 * without_1),
            trace,
            pairs / 3 * key.integral(psi2 * psi2 * without_2) + triples / 6 * key.integral(psi2 * psi1 * triple),
            pairs / 6 * key.integral(spread_pair * without_2) + triples / 6 * key.integral(spread_triple * without_3),
        ]
    )


def softmax_jacobian(p: ArrayLike) -> Floats:
    """diag(p) - p p' for weights p of shape (..., n): shape (..., n, n).

    >>> softmax_jacobian([0.5, 0.5])
    array([[ 0.25, -0.25],
           [-0.25,  0.25]])
    """
    weights = probabilities(p)
    others = _others(weights)
    jacobian = -weights[..., :, None] * weights[..., None, :]
    place = np.arange(weights.shape[-1])
    # p (1 - p) with 1 - p as the sum of the others: near p = 1 a difference would keep no digits.
    jacobian[..., place, place] = weights * others
    return np.asarray(jacobian)


def jacobian_spectral_norm(p: ArrayLike) -> Floats:
    """The largest eigenvalue of J for weights p of shape (..., n): shape (...).

    It solves 1 = sum p_i^2/(p_i - lambda), that is sum p_i/(p_i - lambda) = 0, between the two largest weights,
    and lies between max p(1 - p) and 2 max p(1 - p). O(n) per row. One single weight gives 0.

    >>> jacobian_spectral_norm([[0.5, 0.5], [0.99, 0.01]]).round(4).tolist()
    [0.5, 0.0198]
    """
    weights = probabilities(p)
    if weights.shape[-1] == 1:
        return np.zeros(weights.shape[:-1])[()]
    ordered = np.sort(weights, axis=-1)
    first, second, rest = ordered[..., -1:], ordered[..., -2:-1], ordered[..., :-1]
    low, high = jacobian_norm_bounds(weights)
    low, high = np.maximum(low[..., None], second), np.minimum(high[..., None], first)
    # The bracket spans a factor of 2, so 55 halvings leave nothing but rounding.
    for _ in range(55):
        middle = (low + high) / 2
        with np.errstate(divide="ignore", invalid="ignore"):
            slope = first / (first - middle) - (rest / (middle - rest)).sum(axis=-1, keepdims=True)
        # Where the two largest are equal the bracket has closed on them, and both terms are infinite.
        too_high = slope > 0
        low, high = np.where(too_high, low, middle), np.where(too_high, middle, high)
    return ((low + high) / 2)[..., 0][()]


def jacobian_norm_bounds(p: ArrayLike) -> tuple[Floats, Floats]:
    """(max p(1 - p), 2 max p(1 - p)): an entry of the diagonal below, Gershgorin above. The upper one is at most 1/2.

    >>> low, high = jacobian_norm_bounds([0.9, 0.05, 0.05])
    >>> print(f"{low:.3f} {high:.3f}")
    0.090 0.180
    """
    weights = probabilities(p)
    largest = (weights * _others(weights)).max(axis=-1)
    return largest[()], (2 * largest)[()]


def _others(weights: Floats) -> Floats:
    """1 - p for each weight; for the largest as the sum of the others."""
    others = 1.0 - weights
    place = weights.argmax(axis=-1)[..., None]
    without = weights.copy()
    np.put_along_axis(without, place, 0.0, axis=-1)
    np.put_along_axis(others, place, without.sum(axis=-1, keepdims=True), axis=-1)
    return np.asarray(np.maximum(others, 0.0))
