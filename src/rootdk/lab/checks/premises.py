"""The premise broken on purpose: correlated components, a shared mean, heavy tails. The formulas say by how much."""

from dataclasses import asdict, dataclass

import numpy as np

from rootdk.api import measure
from rootdk.theory import correlated_score_variance, score_excess_kurtosis, shared_mean_variance

from . import checks
from .result import Comparison, Result
from .sampling import KURTOSIS, Floats, Generator, Tell, compare, draw


@dataclass(frozen=True, slots=True)
class PremisesSpec:
    """groups of rows queries and `keys` keys; every score under 1/sqrt(d_k)."""

    d_k: int = 64
    correlation: tuple[float, ...] = (0.1, 0.5)
    mean: tuple[float, ...] = (0.5, 2.0)
    laws: tuple[str, ...] = ("laplace", "student_t")
    keys: int = 64
    rows: int = 16
    groups: int = 1000
    seed: int = 0

    def __post_init__(self) -> None:
        checks.counts("d_k", (self.d_k,), 2, 8192)
        for one in checks.positive("correlation", self.correlation):
            correlated_score_variance(self.d_k, one)
        checks.positive("mean", self.mean)
        checks.names("laws", self.laws, KURTOSIS)
        checks.counts("keys", (self.keys,), 2, 65_536)
        checks.counts("rows", (self.rows,), 1, 10**5)
        checks.counts("groups", (self.groups,), 2, 10**6)
        checks.seed(self.seed)


def run(spec: PremisesSpec, tell: Tell) -> Result:
    """The variance inside a row, which softmax feels, by rootdk.measure; with a mean, of all scores together too."""
    rng = np.random.default_rng([spec.seed, 9])
    d_k, steps = spec.d_k, len(spec.correlation) + 2 * len(spec.mean) + len(spec.laws)
    found: list[Comparison] = []

    def note(more: list[Comparison]) -> None:
        found.extend(more)
        done = len({one.setting["premise"] for one in found})
        tell(min(1.0, done / steps))

    for r in spec.correlation:
        told = correlated_score_variance(d_k, r) / d_k
        note(_inside(spec, f"correlation {r:g}", told, _correlated(rng, spec, r)))
    for mean in spec.mean:
        for query_mean, key_mean, whose in ((mean, 0.0, "queries"), (0.0, mean, "keys")):
            whole, inside = shared_mean_variance(d_k, query_mean, key_mean)
            query, key = _gaussian(rng, spec)
            moved = (query + np.float32(query_mean), key + np.float32(key_mean))
            premise = f"mean {mean:g} in all {whose}"
            note(_inside(spec, premise, inside / d_k, moved))
            # About the known mean 0 of all scores: the query and the key are never shifted together.
            scores = np.matmul(moved[0], moved[1].transpose(0, 2, 1)) / d_k**0.5
            note([compare("variance of all", {"premise": premise, "d_k": d_k}, whole / d_k, scores**2)])
    for law in spec.laws:
        query, key = (draw(rng, law, (spec.groups, n, d_k)) for n in (spec.rows, spec.keys))
        note(_inside(spec, f"components: {law}", 1.0, (query, key)))
        if law == "student_t":
            continue  # it has a fourth moment, but no eighth: a mean of fourth powers has no standard error
        kurtosis = score_excess_kurtosis(d_k, KURTOSIS[law], KURTOSIS[law])
        scores = np.matmul(query, key.transpose(0, 2, 1)) / d_k**0.5
        note([compare("fourth moment", {"premise": f"components: {law}", "d_k": d_k}, 3 + kurtosis, scores**4)])
    return Result("premises", asdict(spec), tuple(found))


def _gaussian(rng: Generator, spec: PremisesSpec) -> tuple[Floats, Floats]:
    return (
        draw(rng, "gaussian", (spec.groups, spec.rows, spec.d_k)),
        draw(rng, "gaussian", (spec.groups, spec.keys, spec.d_k)),
    )


def _correlated(rng: Generator, spec: PremisesSpec, r: float) -> tuple[Floats, Floats]:
    """Any two components of a vector share the part sqrt(r) of a common number."""
    own, common = np.float32((1 - r) ** 0.5), np.float32(r**0.5)
    query, key = (
        own * part + common * rng.standard_normal((*part.shape[:-1], 1), dtype=np.float32)
        for part in _gaussian(rng, spec)
    )
    return query, key


def _inside(spec: PremisesSpec, premise: str, told: float, vectors: tuple[Floats, Floats]) -> list[Comparison]:
    query, key = vectors
    value = np.ones((*key.shape[:-1], 1), np.float32)
    _, reading = measure(query, key, value, scale=spec.d_k**-0.5)
    # A row about its own mean shows (n - 1)/n of the variance.
    variance = np.asarray(reading.variance, np.float64) * (spec.keys / (spec.keys - 1))
    return [compare("variance inside a row", {"premise": premise, "d_k": spec.d_k}, told, variance)]
