"""The derivative of softmax, J = diag(p) - p p', and its spectrum.

J is symmetric, has no negative eigenvalue, and J 1 = 0. A vector that gets through it is the gradient of the scores.
"""

from typing import Any

import numpy as np

from ._arguments import Floats, probabilities


def softmax_jacobian(p: Any) -> Floats:
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


def jacobian_spectral_norm(p: Any) -> Any:
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


def jacobian_norm_bounds(p: Any) -> tuple[Any, Any]:
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
