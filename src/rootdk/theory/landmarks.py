"""Where the softmax of n Gaussian logits changes its character, and the simple laws on either side.

The simple laws are limits for many keys. Each says where it holds and refuses elsewhere; `softmax_moments` is exact
everywhere.
"""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import log_ndtr, ndtr

from rootdk.errors import ArgumentError

from ._arguments import Floats, broadcast, keys_and_sigma, keys_of, numbers, result


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
    counts, spreads = _warm(keys, sigma)
    return (np.log(counts) - spreads * spreads / 2)[()]


def warm_p_squared(keys: ArrayLike, sigma: ArrayLike) -> Floats:
    """E sum p^2 ~ e^(sigma^2)/n, for sigma < sqrt(2 ln n)/2.

    >>> print(f"{warm_p_squared(1024, 1.0):.4f}")
    0.0027
    """
    counts, spreads = _warm(keys, sigma)
    return (np.exp(spreads * spreads) / counts)[()]


def frozen_jacobian_trace(keys: ArrayLike, sigma: ArrayLike) -> Floats:
    """E tr J ~ sqrt(2 ln n)/sigma, for sigma > sqrt(2 ln n); too high by 10 to 40 % at the n of practice.

    >>> print(f"{frozen_jacobian_trace(1024, 16.0):.3f}")
    0.233
    """
    counts, spreads = _frozen(keys, sigma)
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
    counts, spreads = _frozen(keys, sigma)
    counts, spreads, gaps = broadcast(keys=counts, sigma=spreads, gap=numbers("gap", gap, least=0.0, most=0.5))
    share = np.sqrt(2 * np.log(counts)) / spreads
    return result(np.sinc(share) * gaps**share)


def _warm(keys: Any, sigma: Any) -> tuple[Floats, ...]:
    counts, spreads = keys_and_sigma(keys, sigma)
    limit = np.sqrt(2 * np.log(counts)) / 2
    return _inside(counts, spreads, spreads < limit, "below sqrt(2 ln n)/2", limit)


def _frozen(keys: Any, sigma: Any) -> tuple[Floats, ...]:
    counts, spreads = keys_and_sigma(keys, sigma)
    limit = np.sqrt(2 * np.log(counts))
    return _inside(counts, spreads, spreads > limit, "above sqrt(2 ln n)", limit)


def _inside(counts: Floats, spreads: Floats, good: Any, expected: str, limit: Floats) -> tuple[Floats, ...]:
    if not good.all():
        bound, spread = limit[~good].flat[0], spreads[~good].flat[0]
        raise ArgumentError(f"sigma: must be {expected} = {bound:.4g} for this law, got {spread:g}")
    return counts, spreads
