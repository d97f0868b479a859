"""The whole law of a score: nearly Gaussian for large d_k, with a width of sqrt(d_k) until it is scaled."""

from dataclasses import asdict, dataclass

import numpy as np

from rootdk.theory import score_density, score_excess_kurtosis, score_tail

from . import checks
from .result import Comparison, Result, Series
from .sampling import Tell, compare, compare_share, draw

_SIDE = 64  # queries and keys of a group: 4096 scores from 128 vectors
_REACH, _BINS = 7, 113  # in standard deviations: beyond it nothing is counted or drawn


@dataclass(frozen=True, slots=True)
class ScoresSpec:
    """groups of 64 Gaussian queries and 64 keys, every query with every key."""

    d_k: tuple[int, ...] = (4, 64, 512)
    groups: int = 100
    seed: int = 0

    def __post_init__(self) -> None:
        checks.counts("d_k", self.d_k, 3, 10**5)
        checks.counts("groups", (self.groups,), 2, 10**6)
        checks.seed(self.seed)


def run(spec: ScoresSpec, tell: Tell) -> Result:
    """Moments and tails of z = <q, k>/sqrt(d_k), and histograms of z and of <q, k> with their densities."""
    found: list[Comparison] = []
    series: list[Series] = []
    for number, d_k in enumerate(spec.d_k):
        rng = np.random.default_rng([spec.seed, 2, d_k])
        z = np.empty((spec.groups, _SIDE, _SIDE))
        for group in z:
            query, key = draw(rng, "gaussian", (_SIDE, d_k)), draw(rng, "gaussian", (_SIDE, d_k))
            # In blocks of 4 queries: so small a product BLAS computes without threads, which cost more than they bring.
            group[:] = np.matmul(query.reshape(-1, 4, d_k), key.T).reshape(_SIDE, _SIDE)
        root, setting = d_k**0.5, {"d_k": d_k}
        z /= root
        found.append(compare("scaled variance", setting, 1.0, z**2))
        found.append(compare("scaled fourth moment", setting, 3 + score_excess_kurtosis(d_k), z**4))
        found += [
            compare_share(f"share beyond {edge}", setting, score_tail(edge, d_k, 1 / root), np.abs(z) > edge)
            for edge in (1, 2, 3)
        ]
        series += _pictures(z, d_k)
        tell((number + 1) / len(spec.d_k))
    return Result("scores", asdict(spec), tuple(found), tuple(series))


def _pictures(z: np.ndarray[tuple[int, ...], np.dtype[np.float64]], d_k: int) -> list[Series]:
    """Histogram and density, of z and of the unscaled score: the same counts, on another axis."""
    edges = np.linspace(-_REACH, _REACH, _BINS + 1)
    counts, _ = np.histogram(z, edges)
    centres, height = (edges[1:] + edges[:-1]) / 2, counts / z.size / (edges[1] - edges[0])
    curve = np.linspace(-_REACH, _REACH, 225)
    found = []
    for rule, stretch in (("sqrt", 1.0), ("none", d_k**0.5)):
        setting: dict[str, int | float | str] = {"d_k": d_k, "rule": rule}
        density = score_density(curve * stretch, d_k, stretch / d_k**0.5)
        found.append(Series("density", "measured", setting, _listed(centres * stretch), _listed(height / stretch)))
        found.append(Series("density", "theory", setting, _listed(curve * stretch), _listed(density)))
    return found


def _listed(values: object) -> tuple[float, ...]:
    return tuple(np.asarray(values, np.float64).tolist())
