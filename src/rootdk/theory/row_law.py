"""How the rows of attention differ from each other: quantities whose law over rows has no formula.

The average of sum p^2 over rows is an integral; its median is not, and neither is the average of |J|_F, a root. For
these, the law of a row is laid out as 8192 rows that are chosen once and for all:

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
of most medians, and some percent where rows differ by orders of magnitude. What averages do have an integral come out
of these rows too, at any number of keys; the tests hold them to that.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache

import numpy as np
from scipy.special import gammaincinv, log_ndtr, ndtri

from ._arguments import Floats

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


# Whoever moves one of keys and d_k at a time, as a slider does, asks for the same of the other again and again.
@lru_cache(maxsize=16)
def _lengths(d_k: float, shift: int) -> Floats:
    """|q| of every row."""
    return _kept(np.sqrt(2 * gammaincinv(d_k / 2, _cube(shift)[0])))


@lru_cache(maxsize=16)
def _largest(keys: float, shift: int) -> Floats:
    """The largest of `keys` standard normal numbers, in order, for every row."""
    count = int(min(keys, _LARGEST))
    reached = _gaps(shift)[:count]
    # The gaps of a Poisson process, made uniform by where it ends.
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
        # Of a normal number below a far edge: how far below it lies on average, and its variance.
        far, away = edge < -50, 1 / np.minimum(edge, -50.0) ** 2
        hazard = np.exp(-edge * edge / 2 - log_inside) / math.sqrt(2 * math.pi)
        short = np.where(far, np.sqrt(away) * (1 - 2 * away), hazard + edge)
        mean = first - below + short
        if power == 1:
            return np.asarray(inside * sigma * mean)
        variance = np.where(far, away * (1 - 6 * away), np.maximum(1 - hazard * short, 0.0))
        return np.asarray(inside * sigma * sigma * (mean * mean + variance))

    kinds = ((1, 0), (2, 0), (3, 0), (1, 1))
    # Rounding is all that is left of the variance of a sum that the ones before it determine.
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
