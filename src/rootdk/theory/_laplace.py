"""Every softmax average from one function: the Laplace transform of a log-normal number.

For n Gaussian logits s = sigma x the sum Z = sum e^s enters as 1/Z^k = integral of t^(k-1) e^(-t Z) / (k-1)! dt. Given
t the keys are independent, so an average over all of them becomes a product of averages over one. With u = ln t and
y = u + s:

    phi(u)   = E exp(-e^y)               what one key contributes that is only in the denominator
    psi_k(u) = E e^(k y) exp(-e^y)       what one key contributes that is p^k in the numerator
    rho(u)   = E g(y), g(y) = E1(e^y) + (y + Euler's constant) exp(-e^y)        the same for -p ln p, by parts

`softmax` makes the averages over all keys of them. Here they are computed for many pairs (n, sigma) at once.

Steps. In u every integrand is analytic and bounded for |Im u| < pi/2, whatever n and sigma are, because there
|exp(-t e^s)| < 1. So the trapezoidal rule with step h errs like e^(-pi^2/h): 1e-17 at h = 1/4. For sigma > 10 the strip
is wider in proportion, and so is the step. The average over one key is a trapezoidal sum too, over y with the same
step where the Gaussian is wide. Where it is narrow, Gauss-Hermite with few points: e^(sigma x) hardly bends.

Limits. They leave out e^-28 of each integral. `lowest` and `highest` say from which bounds they follow.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import exp1, ndtr, ndtri

Floats = NDArray[np.float64]

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
    whole row; sums in which only differences of x enter do not see the shift.
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
        """Over u, the last axis."""
        return np.asarray(integrand.sum(axis=-1) * self.step)


def alike(keys: Floats, sigma: Floats) -> Iterator[NDArray[np.intp]]:
    """The places of pairs that one grid serves without being much too wide for any of them."""
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
    # e^y below this is nothing even n times; above, exp(-e^y) is nothing, or y is out of reach of every u.
    bottom = math.floor(-(math.log(float(keys.max())) + deep) / STEP)
    most = float(sigma.max())
    reach = high + step + most * (8.5 + 3 * most)
    return _over_y(sigma, stride, first, last, bottom, max(bottom + 1, math.ceil(min(_TOP, reach) / STEP)))


def _over_x(sigma: Floats, step: float, u: Floats) -> OneKey:
    x, weight = _HERMITE[0], _HERMITE[1] / math.sqrt(2 * math.pi)
    y = u[:, None] + (sigma[:, None] * x)[:, None, :]
    t = np.exp(y)
    kept = np.exp(-t)
    t_kept = t * kept
    columns = np.stack([t_kept, t * t_kept, t * t * t_kept])
    return OneKey(
        u,
        step,
        -np.expm1(-t) @ weight,
        columns @ weight,
        np.sqrt(t) * kept @ weight,
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
        # Both tables hang on y - u alone, and u runs over multiples of the step of y: no distance is evaluated twice.
        start = bottom - last * stride
        away = (start + np.arange((rows - 1) * stride + columns, dtype=np.float64)) * STEP / width
        gauss, below = (_rows(table, columns, stride) for table in _tables(away, width))
    else:
        away = (y - u[::-1, None]) / width[:, None]
        gauss, below = _tables(away, width[:, None])
    t = np.exp(y)
    t_kept = t * np.exp(-t)
    # x is y/sigma up to a shift, and the division waits until the sums are there.
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


def _rows(table: Floats, columns: int, stride: int) -> Floats:
    """One window per u, from the largest u to the smallest, without evaluating a distance twice."""
    return np.lib.stride_tricks.sliding_window_view(table, columns, axis=-1)[:, ::stride]


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
