"""What the softmax of n Gaussian logits is on average: exact for any n and sigma, by quadrature.

The averages over all keys follow from what one key contributes. With phi, psi_k, rho of `_laplace`:

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
The gradient of the scores is what it makes of the gradient of the weights.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from ._arguments import Floats, keys_and_sigma, probabilities
from ._laplace import alike, highest, lowest, one_key


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
    return averages[:, back.reshape(-1)].reshape(-1, *keys.shape)


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
