"""Mean and variance of a score against d_k, for components of several laws: 0 and d_k, whatever the law."""

from dataclasses import asdict, dataclass

import numpy as np

from . import checks
from .result import Comparison, Result, Setting
from .sampling import KURTOSIS, Tell, chunks, compare, draw


@dataclass(frozen=True, slots=True)
class VarianceSpec:
    """rows pairs (q, k) for every d_k and law, all independent."""

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
    """Var <q, k> = d_k and E <q, k> = 0, measured on pairs."""
    found: list[Comparison] = []
    pairs = [(law, d_k) for law in spec.laws for d_k in spec.d_k]
    cost = [d_k for _, d_k in pairs]
    for number, (law, d_k) in enumerate(pairs):
        rng = np.random.default_rng([spec.seed, 1, list(KURTOSIS).index(law), d_k])
        parts = []
        for rows in chunks(spec.rows, d_k):
            query, key = draw(rng, law, (rows, d_k)), draw(rng, law, (rows, d_k))
            parts.append(np.einsum("ij,ij->i", query, key).astype(np.float64))
        scores = np.concatenate(parts)
        setting: Setting = {"d_k": d_k, "law": law}
        found += [compare("score mean", setting, 0.0, scores), compare("score variance", setting, d_k, scores**2)]
        tell(sum(cost[: number + 1]) / sum(cost))
    return Result("variance", asdict(spec), tuple(found))
