"""Every softmax average from one function: the Laplace transform of a log-normal number.

For n Gaussian logits s = sigma x the sum Z = sum e^s enters as 1/Z^k = integral of t^(k-1) e^(-t Z) / (k-1)! dt. Given
t the keys are independent, so an average over all of them becomes a product of averages over one. With u = ln t and
y = u + s:

    phi(u)   = E exp(-e^y)               what one key contributes that is only in the denominator
    psi_k(u) = E e^(k y) exp(-e^y)       what one key contributes that is p^k in the numerator
    rho(u)   = E g(y), g(y) = E1(e^y) + (y + Euler's constant) exp(-e^y)        the same for -p ln p, by parts

    E ln Z              = integral of phi - phi^n
    E sum p^2           = n            integral of psi_2 phi^(n-1)
    E sum p^3           = n/2          integral of psi_3 phi^(n-1)
    E H                 = n(n-1)       integral of psi_1 rho phi^(n-2)
    E tr J  = E sum_{i!=j} p_i p_j
                        = n(n-1)       integral of psi_1^2 phi^(n-2)
    E |J|^2 = E sum_{i!=j} 2 p_i^2 p_j^2 + E sum_{i,j,k distinct} p_i^2 p_j p_k
                        = n(n-1)/3     integral of psi_2^2 phi^(n-2)
                        + n(n-1)(n-2)/6 integral of psi_2 psi_1^2 phi^(n-3)

The textbook forms 1 - E sum p^2, E ln Z - sigma^2 E tr J and E sum p^2 - 2 E sum p^3 + E (sum p^2)^2 are differences of
nearly equal numbers where one key takes all. Here every integrand is positive: nothing cancels, at any sigma.

Steps and limits. In u every integrand is analytic and bounded for |Im u| < pi/2, whatever n and sigma are, because
there |exp(-t e^s)| < 1. So the trapezoidal rule with step h errs like e^(-pi^2/h): 1e-17 at h = 1/4. For sigma > 10
the strip is wider in proportion, and so is the step. The inner averages over one key are trapezoidal sums too: over y
with the same step where the Gaussian is wide, over x where it is narrow. Limits cut off e^(-30) of each integral, by
Chernoff's bound n P(y > 0) <= n e^(a u + a^2 sigma^2/2).
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import exp1, ndtr

Floats = NDArray[np.float64]

STEP = 0.25
_NARROW = 0.35  # below this sigma the average over one key is taken over x, above over y
_NEGLIGIBLE = 30.0  # e^-30 of an integral is left out on each side
_TOP = 3.7  # e^y exp(-e^y) is below e^-36 from here on


@dataclass(frozen=True, slots=True)
class OneKey:
    """What one key contributes, on the grid u with the given step.

    Columns of `psi` are psi_1, psi_2, psi_3. `lost` is 1 - phi, because phi^n needs the digits of 1 - phi where n is
    large. `first` and `second` hold E x e^(k y) exp(-e^y) and E x^2 e^(k y) exp(-e^y) for k = 1 and 2, up to one shift
    of x for the whole row; sums in which only differences of x enter do not see the shift.
    """

    u: Floats
    step: float
    lost: Floats
    psi: Floats
    rho: Floats
    first: Floats
    second: Floats

    @property
    def log_phi(self) -> Floats:
        """ln phi; 1 - phi can round to 1 at the right end, where any power of phi counts for nothing but phi^0 = 1."""
        return np.asarray(np.log1p(-np.minimum(self.lost, 1.0 - 2.0**-53)))

    def power(self, keys: Floats, less: int) -> Floats:
        """phi^(keys - less), one row per number of keys."""
        return np.asarray(np.exp((keys[:, None] - less) * self.log_phi))

    def integral(self, integrand: Floats) -> Floats:
        """Over u, the last axis."""
        return np.asarray(integrand.sum(axis=-1) * self.step)


def one_key(sigma: float, most_keys: float) -> OneKey:
    """The contributions at this sigma, on a grid that is wide enough for up to `most_keys` keys."""
    reach = math.log(most_keys) + _NEGLIGIBLE
    low = reach + sigma * sigma / 2 if sigma * sigma < 2 * reach else sigma * math.sqrt(2 * reach)
    stride = max(1, int(sigma / 10))
    step = STEP * stride
    first, last = -math.ceil(low / step), math.ceil((_TOP + 8.5 * sigma) / step)
    if sigma < _NARROW:
        return _over_x(sigma, step, np.arange(first, last + 1, dtype=np.float64) * step)
    return _over_y(sigma, stride, first, last, -math.ceil(reach / STEP))


def _over_x(sigma: float, step: float, u: Floats) -> OneKey:
    # At this step the Gaussian itself is integrated to e^(-2 pi^2/h^2), and the strip pi/(2 sigma) is wider than that
    # needs.
    x = np.arange(-21, 22) * 0.4
    weight = np.exp(-x * x / 2) * (0.4 / math.sqrt(2 * math.pi))
    y = u[:, None] + sigma * x
    t = np.exp(y)
    kept = np.exp(-t)
    t_kept = t * kept
    columns = np.stack([t_kept, t * t_kept, t * t * t_kept])
    return OneKey(
        u,
        step,
        -np.expm1(-t) @ weight,
        columns @ weight,
        _entropy_kernel(y) @ weight,
        columns[:2] @ (weight * x),
        columns[:2] @ (weight * x * x),
    )


def _over_y(sigma: float, stride: int, first: int, last: int, lowest: int) -> OneKey:
    y = np.arange(lowest, math.ceil(_TOP / STEP) + 1, dtype=np.float64) * STEP
    u = np.arange(first, last + 1, dtype=np.float64) * (stride * STEP)
    rows, columns = last - first + 1, len(y)
    if stride < columns:
        # Both tables hang on y - u alone, and u runs over multiples of the step of y: no distance is evaluated twice.
        start = lowest - last * stride
        away = (start + np.arange((rows - 1) * stride + columns, dtype=np.float64)) * (STEP / sigma)
        gauss, below = (_rows(table, columns, stride) for table in _tables(away, sigma))
    else:
        away = (y - u[:, None]) / sigma
        gauss, below = (table[::-1] for table in _tables(away, sigma))
    t = np.exp(y)
    t_kept = t * np.exp(-t)
    powers = np.stack([t_kept, t * t_kept, t * t * t_kept, _entropy_kernel(y)])
    x = y / sigma
    both = powers[:2]
    # einsum and not matmul: products this small gain nothing from BLAS threads and wait for them on a busy machine.
    sums = np.einsum("uy,fy->fu", gauss, np.concatenate([powers, both * x, both * x * x]))
    psi1, psi2, psi3, rho, *moments = sums[:, ::-1]
    return OneKey(
        u,
        STEP * stride,
        np.einsum("uy,y->u", below, t_kept)[::-1],
        np.stack([psi1, psi2, psi3]),
        rho,
        np.stack(moments[:2]),
        np.stack(moments[2:]),
    )


def _tables(away: Floats, sigma: float) -> tuple[Floats, Floats]:
    """Density of y at a distance of `away` sigmas from u, and P(y' above it), both times the step."""
    return np.exp(-away * away / 2) * (STEP / (sigma * math.sqrt(2 * math.pi))), ndtr(-away) * STEP


def _rows(table: Floats, columns: int, stride: int) -> Floats:
    """One window per u, from the largest u to the smallest, without evaluating a distance twice."""
    return np.lib.stride_tricks.sliding_window_view(table, columns)[::stride]


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
