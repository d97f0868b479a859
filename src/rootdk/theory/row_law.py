"""How the rows of attention differ from each other: quantities whose law over rows has no formula.

The average of sum p^2 over rows is an integral; its median is not, and neither is the average of |J|_F, which is a
root. For these, the law of a row is represented by 8192 rows that are always the same:

    |q|            by its chi law
    the largest    16 of the n numbers x, exactly: with x_1 > x_2 > ... the tails P(X > x_i) are G_i/G_(n+1), where G_i
                   is the sum of i exponential numbers
    the others     lie below x_16, and only sums over them are needed, of e^s, e^2s, e^3s and s e^s: Gaussian numbers
                   with the mean and covariance that n - 16 truncated Gaussian keys have. Each of these keys has less
                   than a 16th of the row, so what is not Gaussian about their sums is small

16 keys or fewer are all among the largest, and there is no rest.

The rows are points that fill a cube evenly: a lattice in the eight coordinates that count most (|q| and the gaps above
the first seven keys), and in each of the others every one of 8192 quantiles once. Judged by lattices that are shifted
against each other, about half a percent of all rows at most is on the wrong side of a median: some tenths of a percent
of most medians, and some percent where rows differ by orders of magnitude. Averages that do have an integral can be
computed from these rows too, at any number of keys; the tests compare the two.

The extremes of a call, for `rootdk.predict`: the largest logit of all rows, and the lowest ln Z.

sigma = |scale| |q| differs from row to row; `attention.spread_nodes` has values of it with their weights. The law of
the largest logit is a product over keys and rows, averaged over sigma, exactly.

The lowest ln Z. Given sigma, Z = sum e^s is a sum of n independent terms with the transform E e^(-t Z) = phi(t)^n, so
its lower tail follows by the saddle point method: with t > 0 for which e^(-t Z) moves the mean of Z to z,

    z = n psi_1/(t phi),   w = -sqrt(2 n (-ln phi - psi_1/phi)),   v = -sqrt(n (psi_2/phi - (psi_1/phi)^2))
    P(Z < z) = Phi(w + ln(v/w)/w)          (Barndorff-Nielsen; off by a share of some percent at most)

phi and psi_k are those of `softmax`, and running over its grid u = ln t gives the whole curve. Averaging over sigma
gives the law of ln Z of a row, and of r rows with keys of their own the lowest has the law 1 - (1 - P)^r. As ln P moves
by some percent, the lowest ln Z moves by that over the steepness of ln P, which is large where r is.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache

import numpy as np
from scipy.special import gammaincinv, log_ndtr, ndtr, ndtri

from ._arguments import Floats
from .attention import spread_nodes
from .softmax import alike, highest, lowest, one_key

ROWS = 8192
_LARGEST = 16
_LATTICE = 8
_REST = 4  # how many sums there are over the others


@dataclass(frozen=True, slots=True)
class RowLaw:
    """One number per row for each quantity of a Reading."""

    log_sum_exp: Floats
    entropy: Floats
    top_probability: Floats
    p_squared: Floats
    jacobian_trace: Floats
    jacobian_norm: Floats


def row_law(keys: float, d_k: float, scale: float, shift: int = 0) -> RowLaw:
    """The rows of softmax(scale q k') for standard normal q and k. shift chooses among lattices, all as good."""
    sigma = abs(scale) * _lengths(d_k, shift)
    x = _largest(keys, shift)
    left = keys - len(x)
    if not left:
        return _row(sigma, x, np.zeros((_REST, ROWS)))
    return _row(sigma, x, _sums_below(left, sigma, x[0], x[-1], _independent(shift)))


# A slider moves one of keys and d_k at a time, and needs the same results for the other again and again.
@lru_cache(maxsize=16)
def _lengths(d_k: float, shift: int) -> Floats:
    """|q| of every row."""
    return _kept(np.sqrt(2 * gammaincinv(d_k / 2, _cube(shift)[0])))


@lru_cache(maxsize=16)
def _largest(keys: float, shift: int) -> Floats:
    """The largest of `keys` standard normal numbers, in order, for every row."""
    count = int(min(keys, _LARGEST))
    reached = _gaps(shift)[:count]
    # A Poisson process, divided by where it ends: uniform numbers in their order.
    return _kept(-ndtri(reached / (reached[-1] + _gamma(keys - count + 1, _cube(shift)[_LARGEST + 1]))))


@lru_cache(maxsize=2)
def _gaps(shift: int) -> Floats:
    return _kept(np.cumsum(-np.log(_cube(shift)[1 : _LARGEST + 1]), axis=0))


@lru_cache(maxsize=2)
def _independent(shift: int) -> Floats:
    """The Gaussian numbers behind the sums over the other keys."""
    return _kept(ndtri(_cube(shift)[_LARGEST + 2 :]))


def _kept(array: Floats) -> Floats:
    """Read-only, because every caller gets the same cached array."""
    array.flags.writeable = False
    return array


@lru_cache(maxsize=2)
def _cube(shift: int) -> Floats:
    """One line per coordinate: |q|, the gaps, what the gaps left out add up to, the sums over the others."""
    rng = np.random.default_rng([20170612, shift])
    quantiles = (np.arange(ROWS) + 0.5) / ROWS
    even = rng.permuted(np.broadcast_to(quantiles, (_LARGEST + 2 + _REST, ROWS)), axis=1)
    # The root of x^(k + 1) = x + 1, the golden ratio for k = 1: multiples of its powers fill the cube evenly.
    root = 2.0
    for _ in range(64):
        root = (1 + root) ** (1 / (_LATTICE + 1))
    step = root ** -np.arange(1.0, _LATTICE + 1)
    even[:_LATTICE] = (rng.random((_LATTICE, 1)) + step[:, None] * np.arange(ROWS)) % 1
    return _kept(even)


def _gamma(shape: float, quantile: Floats) -> Floats:
    """Numbers of the gamma law; past a shape of 30 by Wilson and Hilferty's cube, good to 1e-4 of its spread."""
    if shape < 30:
        return np.asarray(gammaincinv(shape, quantile))
    return np.asarray(shape * (1 - 1 / (9 * shape) + ndtri(quantile) / (3 * math.sqrt(shape))) ** 3)


def _sums_below(count: float, sigma: Floats, first: Floats, below: Floats, normal: Floats) -> Floats:
    """Sums of e^r, e^2r, e^3r and -r e^r over `count` keys below `below`, where r = sigma (x - first) <= 0."""
    outside = log_ndtr(below)

    @cache
    def moment(k: int, power: int) -> Floats:
        """E[(-r)^power e^(k r)] of one such key."""
        # Completing the square moves the mean of x to k sigma: x - k sigma is standard normal below `edge`.
        edge = below - k * sigma
        log_inside = log_ndtr(edge)
        inside = np.exp(k * sigma * (k * sigma / 2 - first) + log_inside - outside)
        if power == 0:
            return np.asarray(inside)
        # For a normal number below a far edge: its mean distance below the edge, and its variance.
        far, away = edge < -50, 1 / np.minimum(edge, -50.0) ** 2
        hazard = np.exp(-edge * edge / 2 - log_inside) / math.sqrt(2 * math.pi)
        short = np.where(far, np.sqrt(away) * (1 - 2 * away), hazard + edge)
        mean = first - below + short
        if power == 1:
            return np.asarray(inside * sigma * mean)
        variance = np.where(far, away * (1 - 6 * away), np.maximum(1 - hazard * short, 0.0))
        return np.asarray(inside * sigma * sigma * (mean * mean + variance))

    kinds = ((1, 0), (2, 0), (3, 0), (1, 1))
    # If the sums before a sum determine it, all that is left of its variance is rounding.
    least = [1e-12 * moment(2 * k, 2 * power) for k, power in kinds]
    covariance = [
        [moment(k + j, power + p) - moment(k, power) * moment(j, p) for j, p in kinds[: i + 1]]
        for i, (k, power) in enumerate(kinds)
    ]
    means = np.stack([count * moment(*kind) for kind in kinds])
    return np.maximum(means + math.sqrt(count) * _correlated(covariance, least, normal), 0.0)


def _correlated(covariance: Sequence[Sequence[Floats]], least: Sequence[Floats], normal: Floats) -> Floats:
    """Gaussian numbers of this covariance from independent ones, by Cholesky's factor, for all rows at once."""
    factor: list[list[Floats]] = []
    for i, line in enumerate(covariance):
        factor.append([])
        for j, entry in enumerate(line):
            left = entry - sum((a * b for a, b in zip(factor[i][:j], factor[j][:j], strict=True)), np.zeros(1))
            if i == j:
                factor[i].append(np.sqrt(np.where(left > least[i], left, 0.0)))
            else:
                scale = factor[j][j]
                factor[i].append(np.where(scale > 0, left / np.where(scale > 0, scale, 1.0), 0.0))
    return np.stack([sum((a * z for a, z in zip(line, normal, strict=False)), np.zeros(1)) for line in factor])


def _row(sigma: Floats, x: Floats, rest: Floats) -> RowLaw:
    """Relative to the largest logit, so that a row with one weight next to 1 keeps the digits of the others."""
    r = sigma * (x[1:] - x[0])
    weight = np.exp(r)
    others = weight.sum(axis=0) + rest[0]
    z = 1 + others
    top, left = 1 / z, others / z
    squares = weight * weight
    square = (squares.sum(axis=0) + rest[1]) / z**2  # of all but the largest
    cube = ((squares * weight).sum(axis=0) + rest[2]) / z**3
    p_squared = top * top + square
    norm_squared = top * top * (left * left + square) + square * (1 + p_squared) - 2 * cube
    return RowLaw(
        sigma * x[0] + np.log1p(others),
        np.log1p(others) + (rest[3] - (r * weight).sum(axis=0)) / z,
        top,
        p_squared,
        left * (2 - left) - square,
        np.sqrt(np.maximum(norm_squared, 0.0)),
    )


Curve = tuple[Floats, Floats]
_FINER = 2
_POINTS = 400
_FEW = 64
# Below this spread of ln Z, or of Z relative to a term of it, the saddle point method is not needed: such a ln Z is
# Gaussian.
_NARROW, _FLAT = 1e-4, 0.5


def expected_maximum_logit(keys: float, rows: float, d_k: float, scale: float) -> float:
    """E of the largest logit of `rows` rows with keys of their own; its law is (E_sigma Phi(z/sigma)^n)^rows."""
    if scale == 0.0:
        return 0.0
    # It is proportional to the scale. The nodes of a tiny one lack the rows that are flat, and here those count.
    unit = max(abs(scale), 1e-4)
    sigma, weight = spread_nodes(min(keys * rows, 1e15), d_k, unit, finer=3)
    sigma, weight = sigma[sigma > 0], weight[sigma > 0]
    # The law of a score has a corner at 0 for two components, and a pole for one.
    points = 400 if d_k > 2 else 4000

    def law(z: Floats) -> Floats:
        above = weight @ -np.expm1(keys * log_ndtr(z / sigma[:, None])) + np.where(z < 0, 1 - weight.sum(), 0.0)
        return np.asarray(np.exp(rows * np.log1p(-np.clip(above, 0.0, 1 - 2.0**-53))))

    end = float(sigma.max()) * math.sqrt(2 * (math.log(keys * rows) + 20))
    z = np.linspace(-9 * unit * math.sqrt(d_k), end, points)
    # Once to find where it rises, once more to integrate it.
    coarse = law(z)
    turns = np.flatnonzero((coarse > 1e-12) & (coarse < 1 - 1e-12))
    z = np.linspace(z[max(turns[0] - 1, 0)], z[min(turns[-1] + 1, points - 1)], points)
    fine = law(z)
    return abs(scale) / unit * float(z[-1] - float((fine[1:] + fine[:-1]) @ np.diff(z)) / 2)


def expected_lowest(keys: float, d_k: float, scale: float, rows: float, law: RowLaw) -> float:
    """E of the lowest ln Z of `rows` rows; for few rows from the rows of the row law, which contain no rare ones."""
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
        # Too few points where the law rises: take the next ones between these.
        a = np.linspace(a[max(first - 1, 0)], a[min(last + 1, _POINTS - 1)], _POINTS)
        chance = reached(a)
    return float(a[-1] - ((chance[1:] + chance[:-1]) / 2 * np.diff(a)).sum())


def _curves(keys: float, sigma: Floats) -> list[Curve]:
    """For each sigma: values of ln Z, rising, and the normal quantile of P(ln Z < value)."""
    counts, square = np.full(len(sigma), keys), sigma * sigma
    log_mean, spread = np.log(keys) + square / 2, np.sqrt(np.expm1(np.minimum(square, 600.0)) / keys)
    # Laws narrower than the lattice of sigma would give steps; each is widened to its cell of the lattice.
    positive = np.log(sigma[sigma > 0])
    cell = square * (abs(positive[1] - positive[0]) if len(positive) > 1 else 0.0) / math.sqrt(12)
    curves = [_gaussian(*row) for row in zip(log_mean - spread**2 / 2, spread, cell, strict=True)]
    wide = np.flatnonzero((spread > _NARROW) & (spread * keys > _FLAT))
    with np.errstate(divide="ignore"):
        start = np.maximum(np.log(0.05 / spread) - log_mean, lowest(counts, sigma))
        end = np.maximum(np.log(12 / spread) - log_mean, np.where(counts < 64, 4 + 9 * sigma, highest(counts, sigma)))
    for block in alike(counts[wide], sigma[wide]):
        place = wide[block]
        key = one_key(counts[place], sigma[place], float(start[place].min()), float(end[place].max()))
        first, second = key.psi[0] * np.exp(-key.log_phi), key.psi[1] * np.exp(-key.log_phi)
        w_square, v_square = 2 * keys * (-key.log_phi - first), keys * (second - first * first)
        log_z = np.log(keys) + np.log(np.maximum(first, 1e-300)) - key.u
        for i, at in enumerate(place):
            # Beyond ln phi = -20 its digits are lost, and also near the mean, where w and v are both close to 0.
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
