"""How large a logit can become, whatever the tokens are: bounds from weights, or from the gains of QK-norm.

The input of a projection is taken as of length sqrt(m), m its width: what a norm without gain hands over.
"""

import numpy as np

from .law import Floats, Law, largest_eigenvalue


def spectral_bound(query: Law, key: Law, query_width: int, key_width: int, *, rotated: bool) -> float:
    """The largest <q, k> over all inputs of length sqrt(m).

    With q = W_q x + b_q and k = W_k y + b_k the product is x' W_q' W_k y and three terms with biases; the largest
    singular value of W_q' W_k is the root of the largest eigenvalue of S_q S_k. A rotation R between the two spoils
    this: W_q' R W_k may be larger than W_q' W_k. It cannot make q or k longer, so |q| |k| holds for every rotation.

    >>> unit = Law(np.zeros(2), np.eye(2))
    >>> spectral_bound(unit, unit, 2, 2, rotated=False), spectral_bound(unit, unit, 2, 2, rotated=True)
    (2.0, 2.0...)
    """
    if rotated:
        return _longest(query, query_width) * _longest(key, key_width)
    spread, turn = np.linalg.eigh(query.covariance)
    root = turn * np.sqrt(np.maximum(spread, 0.0))
    joint = np.sqrt(query_width * key_width * largest_eigenvalue(root.T @ key.covariance @ root))
    by_query = np.sqrt(query_width) * np.linalg.norm(root.T @ key.mean)  # |W_q' b_k| = |S_q^(1/2) b_k|
    by_key = np.sqrt(key_width * float(query.mean @ key.covariance @ query.mean))
    return float(joint + by_query + by_key + abs(query.mean @ key.mean))


def _longest(law: Law, width: int) -> float:
    return float(np.sqrt(width * largest_eigenvalue(law.covariance)) + np.linalg.norm(law.mean))


def gain_bound(
    query: tuple[Floats, Floats], key: tuple[Floats, Floats], lengths: tuple[int, int], *, rotated: bool
) -> float:
    """The largest <q, k> after QK-norm with (gain, shift) of each: d max|g_q g_k| where nothing is shifted or rotated.

    A normed vector of `length` components is sqrt(length) long at the most. A rotation mixes the components of two
    gains, so there the largest gain of each counts: max|g_q| max|g_k|.

    >>> gain, none = np.array([1.0, 3.0]), np.zeros(2)
    >>> gain_bound((gain, none), (gain[::-1], none), (2, 2), rotated=False)
    6.0...
    >>> gain_bound((gain, none), (gain[::-1], none), (2, 2), rotated=True)
    18.0...
    """
    (g_q, s_q), (g_k, s_k) = query, key
    n_q, n_k = np.sqrt(lengths)
    if rotated:
        longest = (n * np.max(np.abs(g)) + np.linalg.norm(s) for n, g, s in ((n_q, g_q, s_q), (n_k, g_k, s_k)))
        return float(np.prod(list(longest)))
    shifted = n_q * np.linalg.norm(g_q * s_k) + n_k * np.linalg.norm(g_k * s_q) + abs(s_q @ s_k)
    return float(n_q * n_k * np.max(np.abs(g_q * g_k)) + shifted)
