"""Scores stored in a number format: what rounding does to them, under each scale. A small score loses no digits."""

from dataclasses import asdict, dataclass

import numpy as np

from rootdk.theory import format_effect

from . import checks
from .result import Comparison, Result, Setting
from .sampling import Floats, Tell, compare_ratio, compare_share

FORMATS = ("float32", "bfloat16", "float16")


@dataclass(frozen=True, slots=True)
class FormatsSpec:
    """rows scores of law N(0, sigma^2). sigma is sqrt(d_k), 1 and 1/sqrt(d_k) under the three usual rules."""

    sigma: tuple[float, ...] = (0.044, 0.125, 1.0, 8.0, 22.6, 30_000.0)
    formats: tuple[str, ...] = FORMATS
    rows: int = 200_000
    seed: int = 0

    def __post_init__(self) -> None:
        checks.positive("sigma", self.sigma)
        checks.names("formats", self.formats, FORMATS)
        checks.counts("rows", (self.rows,), 2, 10**8)
        checks.seed(self.seed)


def run(spec: FormatsSpec, tell: Tell) -> Result:
    """Rounding error of a score and of its weight e^z, relative to the score's spread, and the share that overflows."""
    rng = np.random.default_rng([spec.seed, 8])
    x = rng.standard_normal(spec.rows)
    found: list[Comparison] = []
    for number, sigma in enumerate(spec.sigma):
        z = x * sigma
        for name in spec.formats:
            told = format_effect(sigma, name)
            setting: Setting = {"sigma": sigma, "format": name}
            stored = rounded(z, name)
            kept = np.isfinite(stored)
            error = stored[kept] - z[kept]
            unit = np.full(error.shape, sigma**2)
            found.append(compare_ratio("relative error", setting, told.score_error / sigma, error**2, unit))
            if told.weight_error < 0.1:  # above that the formula takes the error as normal, and it is uniform
                spread = np.expm1(error) ** 2
                found.append(
                    compare_ratio("error of a weight", setting, told.weight_error, spread, np.ones(error.shape))
                )
            found.append(compare_share("overflow", setting, told.overflow, ~kept))
        tell((number + 1) / len(spec.sigma))
    return Result("formats", asdict(spec), tuple(found))


def rounded(z: Floats, name: str) -> Floats:
    """Each number as the format stores it, rounded to nearest, as float64.

    >>> rounded(np.array([1.00390625, 1.01, 70000.0]), "bfloat16").tolist()
    [1.0, 1.0078125, 70144.0]
    """
    if name != "bfloat16":
        with np.errstate(over="ignore"):  # to infinity, as the format has it
            return z.astype(name).astype(np.float64)
    # The upper half of a float32. Adding half a unit, less one where the last kept bit is 0, rounds ties to even.
    bits = z.astype(np.float32).view(np.uint32)
    bits = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) & np.uint32(0xFFFF0000)
    return bits.view(np.float32).astype(np.float64)
