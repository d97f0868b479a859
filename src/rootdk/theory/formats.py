"""What storing a score in a number format does to it: rounding, and overflow where the format ends.

Rounding to nearest has no bias for numbers that lie anywhere between two stored ones. It has one for sums of stored
numbers: `sum_bias` says how much.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtr

from rootdk.errors import ArgumentError

from ._arguments import Floats, broadcast, numbers, result, sigmas


@dataclass(frozen=True, slots=True)
class NumberFormat:
    """Digits of the significand (the hidden one counted), smallest normal exponent, largest finite number."""

    digits: int
    least_exponent: int
    largest: float


FORMATS = {
    "float64": NumberFormat(53, -1022, float(np.finfo(np.float64).max)),
    "float32": NumberFormat(24, -126, float(np.finfo(np.float32).max)),
    "bfloat16": NumberFormat(8, -126, float(2.0**127 * (2 - 2.0**-7))),
    "float16": NumberFormat(11, -14, 65504.0),
    "float8_e5m2": NumberFormat(3, -14, 57344.0),
    "float8_e4m3fn": NumberFormat(4, -6, 448.0),  # without infinity: what is larger becomes NaN
}
# With so many digits or more a binade holds many numbers, and the error is nearly uniform in it.
_MANY = 8


@dataclass(frozen=True, slots=True)
class FormatEffect:
    """What rounding z of law N(0, sigma^2) to a format does, for one sigma or an array of them.

    score_error    root of E (rounded z - z)^2, over the z that do not overflow
    weight_error   what that does to an unnormalised weight e^z: root of E (e^error - 1)^2, error as if normal; above
                   about 1 the weights are noise
    overflow       P(|z| rounds to infinity, or to NaN in a format that has no infinity)

    >>> from rootdk.theory import format_effect
    >>> effect = format_effect(22.6, "bfloat16")  # the scores of d_k = 512 without a scale
    >>> round(float(effect.score_error), 3), float(effect.overflow)
    (0.037, 0.0)
    """

    score_error: Floats
    weight_error: Floats
    overflow: Floats


def spacing(size: float, name: str) -> float:
    """How far the next stored number is from one of this size: 2^(e + 1 - b) from 2^e to 2^(e+1), b digits.

    Infinite past the largest number of the format.

    >>> spacing(1.0, "float32") == 2.0**-23, spacing(100.0, "bfloat16"), spacing(1e5, "float16")
    (True, 0.5, inf)
    """
    kind = FORMATS[name]
    exponent = max(math.frexp(size)[1] - 1, kind.least_exponent) if size else kind.least_exponent
    return math.inf if abs(size) > kind.largest else math.ldexp(1.0, exponent + 1 - kind.digits)


def format_effect(sigma: ArrayLike, name: str) -> FormatEffect:
    """The effect of storing a score as "float64", "float32", "bfloat16", "float16" or an 8-bit float, to nearest.

    Between 2^e and 2^(e+1) numbers of b digits are 2^(e+1-b) apart and the error is uniform within half of that, so
    its mean square is 4^(e+1-b)/12; the binades are added up with their Gaussian probabilities. That takes the
    error as independent of z, good while a binade holds many numbers (b >= 8). Of "float8_e4m3fn" and "float8_e5m2",
    with 4 and 3 digits, the error is integrated from one stored number to the next, exactly. sigma from 0 to 1e100.

    >>> effects = [format_effect(8.0, name) for name in ("float32", "float16", "bfloat16", "float8_e4m3fn")]
    >>> print(*(f"{effect.score_error:.1e}" for effect in effects))
    2.0e-07 1.7e-03 1.3e-02 2.1e-01
    >>> print(f"{format_effect(3e4, 'float16').overflow:.3f} {format_effect(300.0, 'float8_e4m3fn').overflow:.3f}")
    0.029 0.122
    """
    kind, spreads = _format(name), sigmas(sigma)
    variance, overflow = (_by_binades if kind.digits >= _MANY else _by_numbers)(kind, spreads)
    # (e^x - 1)^2 on average for x ~ N(0, v): e^(2v) - 2 e^(v/2) + 1.
    small = np.minimum(variance, 300.0)
    weight_square = np.where(variance > 300.0, np.inf, np.expm1(2 * small) - 2 * np.expm1(small / 2))
    return FormatEffect(np.sqrt(variance)[()], np.sqrt(weight_square)[()], overflow[()])


def sum_bias(size: ArrayLike, rest: ArrayLike, name: str) -> Floats:
    """E (stored - exact) of a + b + rest, where a and b are stored numbers from 2^e to 2^(e+1) and rest is small.

    a and b are multiples of their spacing u (`size` is that of either, such as 1.5), and their sum is stored with a
    spacing of 2u: half of the sums fit, half lie in the middle between two numbers. Rounding to even has no bias for
    these, but any rest moves all of them to its own side, and the mean error is u/2 - rest for rest from 0 to u, u/2 +
    rest from -u to 0, and 0 at 0. So a sum of two large terms and many tiny ones of one sign is off to one side in
    every row alike, by a quarter of the spacing: that is how attention in bfloat16 goes wrong where two keys share the
    largest logit, both with e^0 = 1 exactly (Qiu and Yao 2025, Why Low-Precision Transformer Training Fails,
    arXiv:2510.04212).

    For a and b whose last digit is even as often as odd, and sums from 2^(e+1) on that do not overflow; |rest| < u. A
    format by its name; size and rest broadcast.

    >>> [float(sum_bias(1.5, rest, "bfloat16")) * 2**7 for rest in (0.0, 2**-20, -(2**-20))]     # in units of u
    [0.0, 0.4998779296875, -0.4998779296875]
    """
    kind = _format(name)
    sizes, rests = broadcast(size=numbers("size", size), rest=numbers("rest", rest))
    exponents = np.frexp(np.abs(sizes))[1] - 1
    unit = np.ldexp(1.0, exponents + 1 - kind.digits)
    bad = (sizes == 0) | (exponents < kind.least_exponent) | (np.ldexp(1.0, exponents + 2) > kind.largest)
    if bad.any():
        least, most = math.ldexp(1.0, kind.least_exponent), kind.largest / 4
        raise ArgumentError(f"size: must be from {least:.3g} to {most:.3g} in {name}, got {sizes[bad].flat[0]:g}")
    if (far := np.abs(rests) >= unit).any():
        spaced, given = unit[far].flat[0], rests[far].flat[0]
        raise ArgumentError(f"rest: must be below the spacing {spaced:.3g} of the two numbers, got {given:g}")
    return result(np.sign(rests) * unit / 2 - rests)


def _format(name: str) -> NumberFormat:
    if not isinstance(name, str) or name not in FORMATS:
        raise ArgumentError(f"name: must be one of {', '.join(map(repr, FORMATS))}, got {name!r}")
    return FORMATS[name]


def _by_numbers(kind: NumberFormat, spreads: Floats) -> tuple[Floats, Floats]:
    """E error^2 and P(overflow), cell by cell: between two midpoints all z round to the number in their middle."""
    steps = 2 ** (kind.digits - 1)
    top = math.frexp(kind.largest)[1] - 1
    exponents = np.arange(kind.least_exponent, top + 1)
    normal = (np.ldexp(1.0, exponents)[:, None] * (1 + np.arange(steps) / steps)).reshape(-1)
    stored = np.concatenate([np.ldexp(np.arange(steps) / steps, kind.least_exponent), normal])
    stored = stored[stored <= kind.largest]
    last = kind.largest + math.ldexp(0.5, top + 1 - kind.digits)
    ends = np.concatenate([[0.0], (stored[1:] + stored[:-1]) / 2, [last]])
    wide = np.where(spreads > 0, spreads, 1.0)[..., None]
    with np.errstate(over="ignore", under="ignore"):
        x = ends / wide
        tail, density = ndtr(-x), np.exp(-x * x / 2) / math.sqrt(2 * math.pi)
        chance, first = 2 * -np.diff(tail), 2 * wide * -np.diff(density)
        second = 2 * wide**2 * -np.diff(tail + x * density)
        finite = np.maximum(chance.sum(axis=-1), 1e-300)
        square = (second - 2 * stored * first + stored**2 * chance).sum(axis=-1) / finite
    return np.where(spreads > 0, np.maximum(square, 0.0), 0.0), np.where(spreads > 0, 2 * tail[..., -1], 0.0)


def _by_binades(kind: NumberFormat, spreads: Floats) -> tuple[Floats, Floats]:
    """The same with an error that is uniform in every step of a binade."""
    top = math.frexp(kind.largest)[1] - 1
    # Everything up to the first normal binade is as far apart as that binade.
    exponents = np.arange(kind.least_exponent, top + 1)
    bottom = np.where(exponents == kind.least_exponent, 0.0, np.ldexp(1.0, exponents))
    # Half a step past the largest finite number still rounds to it.
    last = kind.largest + math.ldexp(0.5, top + 1 - kind.digits) if top < 1023 else kind.largest
    ceiling = np.append(np.ldexp(1.0, exponents[1:]), last)
    squares = np.ldexp(1.0, 2 * np.maximum(exponents + 1 - kind.digits, -500)) / 12
    wide = np.where(spreads > 0, spreads, 1.0)[..., None]
    with np.errstate(over="ignore", under="ignore"):
        chance = 2 * (ndtr(-bottom / wide) - ndtr(-ceiling / wide))
        overflow = np.where(spreads > 0, 2 * ndtr(-last / wide[..., 0]), 0.0)
        finite = np.where(spreads > 0, chance.sum(axis=-1), 1.0)
        variance = np.where(spreads > 0, chance @ squares / np.maximum(finite, 1e-300), 0.0)
    return variance, overflow
