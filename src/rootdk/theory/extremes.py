"""The extremes of a call, for `rootdk.predict`: the largest logit of all rows, and the lowest ln Z.

sigma = |scale| |q| differs from row to row; `attention.spread_nodes` has values of it with their weights. The law of
the largest logit is a product over keys and rows, averaged over sigma, exactly.

The lowest ln Z. Given sigma, Z = sum e^s is a sum of n independent terms with the transform E e^(-t Z) = phi(t)^n, so
its lower tail follows by the saddle point method: with t > 0 for which e^(-t Z) moves the mean of Z to z,

    z = n psi_1/(t phi),   w = -sqrt(2 n (-ln phi - psi_1/phi)),   v = -sqrt(n (psi_2/phi - (psi_1/phi)^2))
    P(Z < z) = Phi(w + ln(v/w)/w)          (Barndorff-Nielsen; off by a share of some percent at most)

phi and psi_k are those of `_laplace`, and running over its grid u = ln t gives the whole curve. Averaging over sigma
gives the law of ln Z of a row, and of r rows with keys of their own the lowest has the law 1 - (1 - P)^r. As ln P moves
by some percent, the lowest ln Z moves by that over the steepness of ln P, which is large where r is.
"""

import math

import numpy as np
from scipy.special import log_ndtr, ndtr

from ._arguments import Floats
from ._laplace import alike, highest, lowest, one_key
from .attention import spread_nodes
from .row_law import ROWS, RowLaw

Curve = tuple[Floats, Floats]
_FINER = 2
_POINTS = 400
_FEW = 64
# Below this spread of ln Z, or of Z against a term of it, the saddle point method has nothing to add: such a ln Z is
# Gaussian.
_NARROW, _FLAT = 1e-4, 0.5


def expected_maximum_logit(keys: float, rows: float, d_k: float, scale: float) -> float:
    """E of the largest logit of `rows` rows with keys of their own; its law is (E_sigma Phi(z/sigma)^n)^rows."""
    if scale == 0.0:
        return 0.0
    sigma, weight = spread_nodes(min(keys * rows, 1e15), d_k, scale, finer=3)
    sigma, weight = sigma[sigma > 0], weight[sigma > 0]
    # The law of a score has a corner at 0 for two components, and a pole for one.
    points = 400 if d_k > 2 else 4000

    def law(z: Floats) -> Floats:
        above = weight @ -np.expm1(keys * log_ndtr(z / sigma[:, None])) + np.where(z < 0, 1 - weight.sum(), 0.0)
        return np.asarray(np.exp(rows * np.log1p(-np.clip(above, 0.0, 1 - 2.0**-53))))

    end = float(sigma.max()) * math.sqrt(2 * (math.log(keys * rows) + 20))
    z = np.linspace(-9 * abs(scale) * math.sqrt(d_k), end, points)
    # Once to see where it turns, once more to integrate it.
    coarse = law(z)
    turns = np.flatnonzero((coarse > 1e-12) & (coarse < 1 - 1e-12))
    z = np.linspace(z[max(turns[0] - 1, 0)], z[min(turns[-1] + 1, points - 1)], points)
    fine = law(z)
    return float(z[-1] - float((fine[1:] + fine[:-1]) @ np.diff(z)) / 2)


def expected_lowest(keys: float, d_k: float, scale: float, rows: float, law: RowLaw) -> float:
    """E of the lowest ln Z of `rows` rows; of few rows by the rows of the row law, which hold no rare ones."""
    if scale == 0.0:
        return math.log(keys)
    if rows <= _FEW:
        share = (1 - np.arange(ROWS + 1) / ROWS) ** rows
        return float(np.sort(law.log_sum_exp) @ (share[:-1] - share[1:]))
    sigma, weight = spread_nodes(keys, d_k, scale, finer=_FINER)
    curves = _curves(keys, sigma)

    def reached(a: Floats) -> Floats:
        below = weight @ np.stack([ndtr(_at(a, *curve)) for curve in curves])
        return np.asarray(-np.expm1(rows * np.log1p(-np.clip(below, 0.0, 1 - 1e-16))))

    a = np.linspace(min(float(curve[0][0]) for curve in curves), float(law.log_sum_exp.max()), _POINTS)
    chance = reached(a)
    for _ in range(8):
        turns = np.flatnonzero((chance > 1e-10) & (chance < 1 - 1e-10))
        first, last = (turns[0], turns[-1]) if len(turns) else (np.searchsorted(chance, 0.5),) * 2
        if last - first > _POINTS / 2:
            break
        # Too few points where the law turns: the next ones lie between those that do.
        a = np.linspace(a[max(first - 1, 0)], a[min(last + 1, _POINTS - 1)], _POINTS)
        chance = reached(a)
    return float(a[-1] - ((chance[1:] + chance[:-1]) / 2 * np.diff(a)).sum())


def _curves(keys: float, sigma: Floats) -> list[Curve]:
    """For each sigma: values of ln Z, rising, and the normal quantile of P(ln Z < value)."""
    counts, square = np.full(len(sigma), keys), sigma * sigma
    log_mean, spread = np.log(keys) + square / 2, np.sqrt(np.expm1(np.minimum(square, 600.0)) / keys)
    # Laws narrower than the lattice of sigma would make a staircase; each is widened to its cell of the lattice.
    positive = np.log(sigma[sigma > 0])
    cell = square * (abs(positive[1] - positive[0]) if len(positive) > 1 else 0.0) / math.sqrt(12)
    curves = [_gaussian(*row) for row in zip(log_mean - spread**2 / 2, spread, cell, strict=True)]
    wide = np.flatnonzero((spread > _NARROW) & (spread * keys > _FLAT))
    with np.errstate(divide="ignore"):
        start = np.maximum(np.log(0.05 / spread) - log_mean, lowest(counts, sigma))
        end = np.maximum(np.log(12 / spread) - log_mean, np.where(counts < 64, 4 + 9 * sigma, highest(counts, sigma)))
    for block in alike(counts[wide], sigma[wide]) if len(wide) else ():
        place = wide[block]
        key = one_key(counts[place], sigma[place], float(start[place].min()), float(end[place].max()))
        first, second = key.psi[0] * np.exp(-key.log_phi), key.psi[1] * np.exp(-key.log_phi)
        w_square, v_square = 2 * keys * (-key.log_phi - first), keys * (second - first * first)
        log_z = np.log(keys) + np.log(np.maximum(first, 1e-300)) - key.u
        for i, at in enumerate(place):
            # Past ln phi = -20 its digits are gone, and so are they near the mean, where w and v are both next to 0.
            good = (w_square[i] > 0.01) & (w_square[i] < 200) & (v_square[i] > 0) & (key.log_phi[i] > -20)
            w, v = -np.sqrt(w_square[i][good]), -np.sqrt(v_square[i][good])
            quantile = (w + np.log(v / w) / w) / math.sqrt(1 + (cell[at] / spread[at]) ** 2)
            if len(w) > 1:
                curves[at] = log_z[i][good][::-1], quantile[::-1]
    return curves


def _gaussian(log_mean: float, spread: float, cell: float) -> Curve:
    """A straight line: ln Z of a narrow law is Gaussian."""
    reach = np.array([-12.0, 12.0])
    return log_mean + reach * math.hypot(spread, cell), reach


def _at(a: Floats, log_z: Floats, quantile: Floats) -> Floats:
    """The quantile at other values; on a straight line past either end."""
    quantiles = np.interp(a, log_z, quantile)
    for end, inner, beyond in ((0, 1, a < log_z[0]), (-1, -2, a > log_z[-1])):
        gap = log_z[end] - log_z[inner]
        slope = (quantile[end] - quantile[inner]) / gap if gap else math.inf
        quantiles[beyond] = quantile[end] + slope * (a[beyond] - log_z[end])
    return quantiles
