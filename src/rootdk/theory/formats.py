"""What storing a score in a number format does to it: rounding, and overflow where the format ends."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import ndtr

from rootdk.errors import ArgumentError

from ._arguments import sigmas


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
}


@dataclass(frozen=True, slots=True)
class FormatEffect:
    """What rounding z of law N(0, sigma^2) to a format does, for one sigma or an array of them.

    score_error    root of E (rounded z - z)^2, over the z that do not overflow
    weight_error   what that does to an unnormalised weight e^z: root of E (e^error - 1)^2, error as if normal; above
                   about 1 the weights are noise
    overflow       P(|z| rounds to infinity)

    >>> from rootdk.theory import format_effect
    >>> effect = format_effect(22.6, "bfloat16")  # the scores of d_k = 512 without a scale
    >>> round(float(effect.score_error), 3), float(effect.overflow)
    (0.037, 0.0)
    """

    score_error: Any
    weight_error: Any
    overflow: Any


def spacing(size: float, name: str) -> float:
    """How far the next stored number is from one of this size: 2^(e + 1 - b) from 2^e to 2^(e+1), b digits.

    Infinite past the largest number of the format.

    >>> spacing(1.0, "float32") == 2.0**-23, spacing(100.0, "bfloat16"), spacing(1e5, "float16")
    (True, 0.5, inf)
    """
    kind = FORMATS[name]
    exponent = max(math.frexp(size)[1] - 1, kind.least_exponent)
    return math.inf if abs(size) > kind.largest else math.ldexp(1.0, exponent + 1 - kind.digits)


def format_effect(sigma: Any, name: str) -> FormatEffect:
    """The effect of storing a score as "float64", "float32", "bfloat16" or "float16", rounded to nearest.

    Between 2^e and 2^(e+1) numbers of b digits are 2^(e+1-b) apart and the error is uniform within half of that, so
    its mean square is 4^(e+1-b)/12; the binades are added up with their Gaussian probabilities. That takes the
    error as independent of z, good while a binade holds many numbers (b >= 8). sigma from 0 to 1e100.

    >>> effects = [format_effect(8.0, name) for name in ("float32", "float16", "bfloat16")]
    >>> print(*(f"{effect.score_error:.1e}" for effect in effects))
    2.0e-07 1.7e-03 1.3e-02
    >>> print(f"{format_effect(3e4, 'float16').overflow:.3f}")
    0.029
    """
    if not isinstance(name, str) or name not in FORMATS:
        raise ArgumentError(f"name: must be one of {', '.join(map(repr, FORMATS))}, got {name!r}")
    kind = FORMATS[name]
    spreads = sigmas(sigma)
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
        # (e^x - 1)^2 on average for x ~ N(0, v): e^(2v) - 2 e^(v/2) + 1.
        small = np.minimum(variance, 300.0)
        weight_square = np.where(variance > 300.0, np.inf, np.expm1(2 * small) - 2 * np.expm1(small / 2))
    return FormatEffect(np.sqrt(variance)[()], np.sqrt(weight_square)[()], overflow[()])
