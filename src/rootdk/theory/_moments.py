"""From what one key contributes to the averages over all keys: the integrals that `_laplace` lists."""

import numpy as np

from ._laplace import Floats, one_key

FIELDS = ("log_sum_exp", "entropy", "p_squared", "p_cubed", "jacobian_trace", "jacobian_norm_squared")
SLOPE = "slope_squared"


def averages(keys: Floats, sigma: float) -> Floats:
    """One row per field of FIELDS and one for SLOPE, one column per entry of `keys` (1-D).

    slope_squared is E sum (dp/dsigma)^2 = E sum p^2 (x - sum p x)^2, what the relative gradient needs along the query:

        n(n-1)/6      integral of 2 (b_2 a_2 - m_2^2) phi^(n-2)
      + n(n-1)(n-2)/6 integral of (b_2 a_1^2 - 2 m_2 m_1 a_1 + a_2 m_1^2) phi^(n-3)

    with a_k = psi_k, and m_k, b_k the same with a factor x, x^2.
    """
    key = one_key(sigma, float(keys.max()))
    psi1, psi2, psi3 = key.psi
    (mean1, mean2), square2 = key.first, key.second[1]
    without_1, without_2 = key.power(keys, 1), key.power(keys, 2)
    # Two keys leave no third: the power would be phi^-1, and its factor n - 2 is 0.
    without_3 = key.power(np.maximum(keys, 3.0), 3)
    pairs, triples = keys * (keys - 1), keys * (keys - 1) * (keys - 2)
    spread_pair = 2 * (square2 * psi2 - mean2 * mean2)
    spread_triple = square2 * psi1 * psi1 - 2 * mean2 * mean1 * psi1 + psi2 * mean1 * mean1
    return np.stack(
        [
            key.integral((1 - key.lost) * -np.expm1((keys[:, None] - 1) * key.log_phi)),
            pairs * key.integral(psi1 * key.rho * without_2),
            keys * key.integral(psi2 * without_1),
            keys / 2 * key.integral(psi3 * without_1),
            pairs * key.integral(psi1 * psi1 * without_2),
            pairs / 3 * key.integral(psi2 * psi2 * without_2)
            + triples / 6 * key.integral(psi2 * psi1 * psi1 * without_3),
            pairs / 6 * key.integral(spread_pair * without_2) + triples / 6 * key.integral(spread_triple * without_3),
        ]
    )
