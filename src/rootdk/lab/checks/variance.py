"""Mean and variance of a score against d_k, for components of several laws: 0 and d_k, whatever the law."""

import math
from dataclasses import asdict, dataclass

import numpy as np

from . import checks
from .result import Comparison, Result, Setting
from .sampling import KURTOSIS, Tell, chunks, compare, draw

_SIDE = 4  # 16 scores from 8 vectors: drawing them is what takes the time


@dataclass(frozen=True, slots=True)
class VarianceSpec:
    """At least `rows` scores for every d_k and law, in groups of 4 queries with 4 keys; groups are independent."""

    d_k: tuple[int, ...] = (4, 16, 64, 256, 1024)
    laws: tuple[str, ...] = ("gaussian", "uniform", "sign", "laplace")
    rows: int = 20_000
    seed: int = 0

    def __post_init__(self) -> None:
        checks.counts("d_k", self.d_k, 1, 10**6)
        checks.names("laws", self.laws, KURTOSIS)
        checks.counts("rows", (self.rows,), 2, 10**8)
        checks.seed(self.seed)


def run(spec: VarianceSpec, tell: Tell) -> Result:
    """Var <q, k> = d_k and E <q, k> = 0, measured on every pair of a group."""
    found: list[Comparison] = []
    pairs = [(law, d_k) for law in spec.laws for d_k in spec.d_k]
    cost = [d_k for _, d_k in pairs]
    for number, (law, d_k) in enumerate(pairs):
        rng = np.random.default_rng([spec.seed, 1, list(KURTOSIS).index(law), d_k])
        parts = []
        for groups in chunks(max(2, math.ceil(spec.rows / _SIDE**2)), 2 * _SIDE * d_k):
            query, key = draw(rng, law, (groups, _SIDE, d_k)), draw(rng, law, (groups, _SIDE, d_k))
            parts.append(np.matmul(query, key.transpose(0, 2, 1)).astype(np.float64))
        scores = np.concatenate(parts)
        setting: Setting = {"d_k": d_k, "law": law}
        found += [compare("score mean", setting, 0.0, scores), compare("score variance", setting, d_k, scores**2)]
        tell(sum(cost[: number + 1]) / sum(cost))
    return Result("variance", asdict(spec), tuple(found))
