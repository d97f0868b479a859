"""Depth: how alike tokens become from one random attention layer to the next, and what the spread of the logits does.

Let n tokens have vectors of length 1 with the cosine rho between any two, and let W_q, W_k and W_v be random and wide.
Then the logits are normal with Cov(s_ij, s_kl) = sigma^2 rho_ik rho_jl. What the keys of a row have in common moves the
whole row, so softmax depends on sigma sqrt(1 - rho), and the logits of two rows for the same key are correlated by rho.
With o_i = sum_j p_ij v_j,

    E <o_i, o_k> = rho + (1 - rho) X,   X = E sum_j p_ij p_kj     (two rows)
    E |o_i|^2    = rho + (1 - rho) Y,   Y = E sum_j p_ij^2        (one row)

and behind a residual of weight a the cosine is (a^2 rho + rho + (1 - rho) X)/(a^2 + rho + (1 - rho) Y). Two ways to
fail: rows that are flat have X = Y = 1/n, and all tokens become one (rank collapse); rows that are frozen copy single
tokens and have no gradient (entropy collapse). Which of them comes, and how fast, is the question of Giorlandino and
Goldt 2025, Two failure modes of deep transformers and how to avoid them, arXiv:2505.24333, who answer it in the limit
of many keys.

X is an integral over two Laplace variables, because 1/(Z Z') is one. With u = ln t, what the two rows share, c, and
what is their own (f_k below has the spread tau of that),

    X = n integral of Psi(u, v) Phi(u, v)^(n-1) du dv
    Psi = E_c f_1(u + c) f_1(v + c),   f_1(y) = E e^(y + tau x) exp(-e^(y + tau x))
    Phi = E_c f_0(u + c) f_0(v + c),   f_0(y) = E exp(-e^(y + tau x))

and both averages over c are products of matrices. As in `softmax`, all is analytic in a strip and every term positive.
"""

import math

import numpy as np
from numpy.typing import ArrayLike

from ._arguments import Floats, broadcast, count, numbers, whole
from .softmax import softmax_moments

_STEP = 0.25
_MOST_KEYS, _MOST_SIGMA = 1e9, 64.0
_FEW = np.polynomial.hermite_e.hermegauss(32)


def row_overlap(keys: ArrayLike, sigma: ArrayLike, correlation: ArrayLike) -> Floats:
    """E sum_j p_j p'_j of two rows of n normal logits that have this correlation at each key. Exact, by quadrature.

    1/n where the rows are independent, E sum p^2 where they are the same. keys from 2 to 1e9, sigma from 0 to 64,
    correlation from 0 to 1; all broadcast. Relative error below 1e-8; a point takes 1 ms to 1 s.

    >>> row_overlap(512, 4.0, [0.0, 0.5, 1.0]).round(4).tolist()
    [0.002, 0.0371, 0.3123]
    """
    counts, spreads, alike = broadcast(
        keys=whole("keys", keys, 2, _MOST_KEYS),
        sigma=numbers("sigma", sigma, least=0.0, most=_MOST_SIGMA),
        correlation=numbers("correlation", correlation, least=0.0, most=1.0),
    )
    overlaps = [_overlap(*point) for point in zip(counts.flat, spreads.flat, alike.flat, strict=True)]
    return np.array(overlaps).reshape(counts.shape)[()]


def token_similarity(
    keys: ArrayLike, sigma: ArrayLike, similarity: ArrayLike, residual: ArrayLike = 0.0, layers: int = 1
) -> Floats:
    """The mean cosine of two tokens after so many random attention layers, each behind a norm.

    similarity is that before the first. sigma is the deviation of q.k times its scale for tokens that have nothing in
    common, 1 under 1/sqrt(d_k) at a start by fan-in. residual is the weight a of x in a x + attention(x), where a row
    that gives one key all its weight keeps the length of x. Holds for random weights of a width far above the number of
    keys, without masks and positions, as a ratio of means: cosines that scatter by 1/sqrt(width) add about
    sigma^2/width to the square of an output, which is n sigma^2/width of its smallest value. Ranges as for
    `row_overlap`; all but layers broadcast.

    >>> token_similarity(512, [1.0, 8.0], 0.0, layers=2).round(3).tolist()       # flat rows make all tokens alike
    [0.998, 0.008]
    >>> token_similarity(512, 1.0, 0.0, residual=[1.0, 4.0], layers=12).round(3).tolist()
    [0.887, 0.002]
    """
    depth = count("layers", layers, 0, 10_000)
    counts, spreads, alike, weights = broadcast(
        keys=whole("keys", keys, 2, _MOST_KEYS),
        sigma=numbers("sigma", sigma, least=0.0, most=_MOST_SIGMA),
        similarity=numbers("similarity", similarity, least=0.0, most=1.0),
        residual=numbers("residual", residual, least=0.0, most=1e6),
    )
    for _ in range(depth):
        sigma_inside = spreads * np.sqrt(1 - alike)
        two_rows = alike + (1 - alike) * row_overlap(counts, sigma_inside, alike)
        one_row = alike + (1 - alike) * softmax_moments(counts, sigma_inside).p_squared
        squared = weights * weights
        alike = np.minimum((squared * alike + two_rows) / (squared + one_row), 1.0)
    return alike[()]


def _overlap(keys: float, sigma: float, correlation: float) -> float:
    if sigma == 0.0 or correlation == 0.0:
        return 1 / keys
    if correlation == 1.0:
        return float(softmax_moments(keys, sigma).p_squared)
    shared_sigma, own_sigma = sigma * math.sqrt(correlation), sigma * math.sqrt(1 - correlation)
    # As for one row: below, n e^u e^(sigma^2/2) is negligible; above, a key is so far down only by e^-(u/sigma)^2/2.
    reach = math.log(keys) + 32
    low = -(reach + sigma * sigma / 2 if sigma * sigma < 2 * reach else sigma * math.sqrt(2 * reach))
    u = np.arange(math.floor(low / _STEP), math.ceil((4 + 9 * sigma) / _STEP) + 1)
    if shared_sigma > 2 * _STEP:
        # The shared part lies on the same lattice, so that u + c takes few different values.
        reach_of_c = math.ceil(9 * shared_sigma / _STEP)
        c = np.arange(-reach_of_c, reach_of_c + 1)
        weight = np.exp(-((c * _STEP / shared_sigma) ** 2) / 2) * (_STEP / (shared_sigma * math.sqrt(2 * math.pi)))
        lost, taken = _one_row(np.arange(u[0] + c[0], u[-1] + c[-1] + 1) * _STEP, own_sigma)
        place = (u - u[0])[:, None] + np.arange(len(c))
        lost, taken = lost[place], taken[place]
    else:
        node, weight = _FEW
        weight = weight / math.sqrt(2 * math.pi)
        y = u[:, None] * _STEP + shared_sigma * node
        lost, taken = (part.reshape(y.shape) for part in _one_row(y.reshape(-1), own_sigma))
    # 1 - Phi = E (l + l' - l l') with l = 1 - f_0, so that its power keeps its digits.
    single = lost @ weight
    either = single[:, None] + single - (lost * weight) @ lost.T
    psi = (taken * weight) @ taken.T
    power = np.exp((keys - 1) * np.log1p(-np.minimum(either, 1 - 2.0**-53)))
    return float(keys * _STEP * _STEP * (psi * power).sum())


def _one_row(y: Floats, spread: float) -> tuple[Floats, Floats]:
    """1 - f_0 and f_1 at every y."""
    step = min(0.5, _STEP / max(spread, 1e-3))
    x = np.arange(-math.ceil(9.5 / step), math.ceil(9.5 / step) + 1) * step
    weight = np.exp(-x * x / 2) * (step / math.sqrt(2 * math.pi))
    lost, taken = np.empty(len(y)), np.empty(len(y))
    for start in range(0, len(y), 256):
        part = slice(start, start + 256)
        t = np.exp(np.minimum(y[part, None] + spread * x, 700.0))
        lost[part] = -np.expm1(-t) @ weight
        taken[part] = (t * np.exp(-t)) @ weight
    return lost, taken
