"""How sharp the softmax of n Gaussian logits is, as their standard deviation grows."""

from dataclasses import asdict, dataclass

import numpy as np

from rootdk.api import measure
from rootdk.theory import saturation, softmax_moments, top_probability

from . import checks
from .result import Comparison, Result
from .sampling import Floats, Tell, chunks, compare, compare_share


@dataclass(frozen=True, slots=True)
class SharpnessSpec:
    """rows of `keys` logits, no logit in two rows; every sigma sees the same rows, stretched.

    computed   further values of sigma, for theory alone
    """

    sigma: tuple[float, ...] = (0.125, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
    computed: tuple[float, ...] = (0.18, 0.25, 0.35, 0.7, 1.4, 2.4, 2.8, 3.4, 4.8, 5.7, 6.7, 9.5, 11.3, 13.5)
    keys: int = 1024
    rows: int = 20_000
    seed: int = 0

    def __post_init__(self) -> None:
        checks.positive("sigma", self.sigma)
        checks.positive("computed", self.computed)
        checks.counts("keys", (self.keys,), 2, 10**7)
        checks.counts("rows", (self.rows,), 2, 10**8)
        checks.seed(self.seed)


# Property of a Reading -> what the comparison is called.
_MEANS = {
    "log_sum_exp": "log sum exp",
    "entropy": "entropy",
    "p_squared": "sum p^2",
    "jacobian_trace": "trace of J",
}
_LABELS = _MEANS | {"norm": "|J|^2", "top": "largest weight", "frozen": "rows with p > .99"}


def run(spec: SharpnessSpec, tell: Tell) -> Result:
    """Means over rows through rootdk.measure: a query of one component per sigma, a key of one component per logit."""
    rng = np.random.default_rng([spec.seed, 3])
    names = (*_MEANS, "jacobian_norm", "top_probability")
    kept: dict[str, list[Floats]] = {name: [] for name in names}
    done = 0
    for rows in chunks(spec.rows, spec.keys, most=500_000):
        # float64, because 1 - sum p^2 of a flat row loses in float32 what the standard error still shows.
        key = rng.standard_normal((rows, spec.keys, 1))
        query = np.broadcast_to(np.array(spec.sigma)[:, None], (rows, len(spec.sigma), 1))
        _, reading = measure(query, key, key, scale=1.0)
        for name in names:
            kept[name].append(getattr(reading, name))
        done += rows
        tell(done / spec.rows)
    by_sigma = {name: np.concatenate(parts) for name, parts in kept.items()}
    found: list[Comparison] = []
    for number, (sigma, told) in enumerate(zip(spec.sigma, _theory(spec.sigma, spec.keys), strict=True)):
        rows_of = {name: column[:, number] for name, column in by_sigma.items()}
        setting = {"sigma": sigma, "keys": spec.keys}
        found += [compare(label, setting, told[name], rows_of[name]) for name, label in _MEANS.items()]
        found.append(compare(_LABELS["norm"], setting, told["norm"], rows_of["jacobian_norm"] ** 2))
        found.append(compare(_LABELS["top"], setting, told["top"], rows_of["top_probability"]))
        if "frozen" in told:
            frozen = rows_of["top_probability"] > 0.99
            found.append(compare_share(_LABELS["frozen"], setting, told["frozen"], frozen))
    for sigma, told in zip(spec.computed, _theory(spec.computed, spec.keys), strict=True):
        setting = {"sigma": sigma, "keys": spec.keys}
        found += [Comparison(label, setting, told[name]) for name, label in _LABELS.items() if name in told]
    return Result("sharpness", asdict(spec), tuple(found))


def _theory(sigmas: tuple[float, ...], keys: int) -> list[dict[str, float]]:
    moments = softmax_moments(keys, np.array(sigmas))
    told = []
    for number, sigma in enumerate(sigmas):
        one = {name: float(getattr(moments, name)[number]) for name in _MEANS}
        one["norm"] = float(moments.jacobian_norm_squared[number])
        one["top"] = float(top_probability(keys, sigma))
        if sigma >= 0.35 or keys >= 10:  # elsewhere theory refuses
            one["frozen"] = float(saturation(keys, sigma))
        told.append(one)
    return told
