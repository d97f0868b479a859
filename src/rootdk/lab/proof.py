"""Why the variance is d_k, step by step with the actual terms: (q_1 k_1 + ... + q_d k_d)^2 written out."""

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from rootdk.theory import exact_score_moments, square_term_counts
from rootdk.theory._arguments import count

from .checks.moments import ENUMERABLE
from .checks.sampler import chunks, generator, mean_of, normal

MOST_WRITTEN_OUT = 6  # 36 terms are a table to read; 49 are not
MOST_ENUMERATED = 400
_MOST_DRAWN = 20_000_000


@dataclass(frozen=True, slots=True)
class Proof:
    """The argument for one d.

    squares, crosses   the d terms that average 1 and the d (d - 1) that average 0; written out up to d = 6, else empty
    terms, ones, zeros, total   their counts and the sum of the averages, which is the variance
    exact              variance of the score with random signs as components, from all outcomes; None where d is large
    divisor            sqrt(d), which makes the variance 1
    measured           name -> (mean, standard error) over `pairs` random pairs: one squared term, one cross term,
                       the square of the sum s, and of s/sqrt(d)
    """

    d: int
    squares: tuple[str, ...]
    crosses: tuple[str, ...]
    terms: int
    ones: int
    zeros: int
    total: int
    exact: Fraction | None
    divisor: float
    pairs: int
    seed: int
    measured: dict[str, tuple[float, float]]

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and names, for JSON; the exact variance as a text."""
        plain = {name: getattr(self, name) for name in self.__dataclass_fields__}
        plain["exact"] = None if self.exact is None else str(self.exact)
        plain["measured"] = {
            name: {"mean": mean, "standard_error": error} for name, (mean, error) in self.measured.items()
        }
        return plain


def prove(d: Any, seed: Any = 0) -> Proof:
    """The terms of the square, their averages, the exact variance, and a Monte Carlo beside it. d from 1 to 1e6.

    >>> proof = prove(3)
    >>> proof.terms, proof.ones, proof.zeros, proof.total, proof.exact
    (9, 3, 6, 3, Fraction(3, 1))
    >>> proof.crosses[0]
    'q1 k1 q2 k2'
    """
    size, start = count("d", d, 1, 10**6), count("seed", seed, 0, 2**63 - 1)
    counts = square_term_counts(size)
    places = range(1, size + 1) if size <= MOST_WRITTEN_OUT else range(0)
    pairs = max(100, min(20_000, _MOST_DRAWN // size))
    return Proof(
        d=size,
        squares=tuple(f"q{i}^2 k{i}^2" for i in places),
        crosses=tuple(f"q{i} k{i} q{j} k{j}" for i in places for j in places if i != j),
        terms=counts["terms"],
        ones=counts["average_1"],
        zeros=counts["average_0"],
        total=counts["sum"],
        exact=exact_score_moments(size, ENUMERABLE["signs"])["variance"] if size <= MOST_ENUMERATED else None,
        divisor=size**0.5,
        pairs=pairs,
        seed=start,
        measured=_measured(size, pairs, start),
    )


def _measured(d: int, pairs: int, seed: int) -> dict[str, tuple[float, float]]:
    rng = generator(seed, 10, d)
    parts = []
    for rows in chunks(pairs, d):
        products = normal(rng, (rows, d)) * normal(rng, (rows, d))
        parts.append((products[:, 0], products[:, -1], products.sum(axis=1, dtype=np.float64)))
    first, last, score = (np.concatenate(part).astype(np.float64) for part in zip(*parts, strict=True))
    samples = {"q1^2 k1^2": first * first}
    if d > 1:
        samples[f"q1 k1 q{d} k{d}"] = first * last
    samples |= {"square of s": score**2, "square of s / sqrt(d)": score**2 / d}
    return {name: mean_of(values) for name, values in samples.items()}
