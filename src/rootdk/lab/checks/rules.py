"""The scale rules side by side: what each does to attention with random q and k, at your d_k and along d_k."""

from dataclasses import asdict, dataclass

import numpy as np

from rootdk.api import attention, measure
from rootdk.errors import ArgumentError
from rootdk.prediction import predict
from rootdk.reading import Reading
from rootdk.theory import attention_moments

from . import checks
from .result import Comparison, Result, Series, Setting
from .sampling import Floats, Tell, compare, compare_share, factor_of

_LARGEST_GROUP = 2**27  # components of one group's keys: 1 GiB in float64
_SHOWN_KEYS = 16  # bars that a person can tell apart


@dataclass(frozen=True, slots=True)
class RulesSpec:
    """groups x rows queries over `keys` keys per group, the same q and k under every rule.

    d_k       where everything is compared
    curve     where entropy and trace are, for a curve along d_k
    computed  further points of that curve, for theory alone
    """

    d_k: tuple[int, ...] = (64, 512)
    curve: tuple[int, ...] = (4, 16, 64, 256)
    computed: tuple[int, ...] = (8, 32, 128, 512)
    rules: tuple[str, ...] = ("none", "sqrt", "dk")
    keys: int = 1024
    groups: int = 64
    rows: int = 64
    seed: int = 0

    def __post_init__(self) -> None:
        checks.counts("d_k", self.d_k, 1, 8192)
        checks.counts("curve", self.curve, 1, 8192)
        checks.counts("computed", self.computed, 1, 8192)
        checks.rules(self.rules)
        checks.counts("keys", (self.keys,), 2, 262_144)
        if self.keys * max(*self.d_k, *self.curve) > _LARGEST_GROUP:
            largest = max(*self.d_k, *self.curve)
            raise ArgumentError(
                f"keys: must be at most {_LARGEST_GROUP // largest} at d_k = {largest}, got {self.keys}"
            )
        checks.counts("groups", (self.groups,), 2, 10**5)
        checks.counts("rows", (self.rows,), 1, 10**5)
        checks.seed(self.seed)


def run(spec: RulesSpec, tell: Tell) -> Result:
    """Variance, entropy, trace and norm of J, largest weight and frozen rows, under each rule."""
    found: list[Comparison] = []
    series: list[Series] = []
    sizes = sorted({*spec.d_k, *spec.curve})
    # Drawing takes time in proportion to d_k, and theory about as long as 300 of them.
    cost = np.cumsum([size + 300 for size in sizes])
    for number, d_k in enumerate(sizes):
        for rule, (reading, bars) in _measured(spec, d_k).items():
            scale = factor_of(rule, d_k, spec.keys)
            found += _along(spec, d_k, rule, reading)
            if d_k in spec.d_k:
                found += _at(reading, spec, d_k, rule, scale)
                series.append(bars)
        tell(float(cost[number] / cost[-1]))
    found += [
        one for d_k in spec.computed if d_k not in sizes for rule in spec.rules for one in _along(spec, d_k, rule)
    ]
    return Result("rules", asdict(spec), tuple(found), tuple(series))


def _measured(spec: RulesSpec, d_k: int) -> dict[str, tuple[Reading, Series]]:
    """Every rule on the same vectors, group by group: all groups at once would not fit for large d_k and many keys."""
    # A generator per d_k: the numbers of one d_k do not depend on which others were asked for.
    rng = np.random.default_rng([spec.seed, 4, d_k])
    value = np.ones((1, spec.keys, 1))
    parts: dict[str, list[Reading]] = {rule: [] for rule in spec.rules}
    bars: dict[str, Series] = {}
    for group in range(spec.groups):
        # Drawn in float32, measured in float64: a flat row needs the digits.
        query = rng.standard_normal((1, spec.rows, d_k), dtype=np.float32).astype(np.float64)
        key = rng.standard_normal((1, spec.keys, d_k), dtype=np.float32).astype(np.float64)
        for rule in spec.rules:
            parts[rule].append(measure(query, key, value, scale=factor_of(rule, d_k, spec.keys))[1])
            if group == 0:
                bars[rule] = _bars(query, key, d_k, rule)
    return {rule: (Reading.concatenate(parts[rule], axis=0), bars[rule]) for rule in spec.rules}


def _along(spec: RulesSpec, d_k: int, rule: str, reading: Reading | None = None) -> list[Comparison]:
    setting: Setting = {"d_k": d_k, "rule": rule, "keys": spec.keys}
    moments = attention_moments(spec.keys, d_k, factor_of(rule, d_k, spec.keys))
    told = {
        "H / ln n": float(moments.entropy) / float(np.log(spec.keys)),
        "trace of J": float(moments.jacobian_trace),
        "|J|^2": float(moments.jacobian_norm_squared),
    }
    if reading is None:
        return [Comparison(name, setting, value) for name, value in told.items()]
    rows = (reading.entropy_ratio, reading.jacobian_trace, reading.jacobian_norm**2)
    return [compare(name, setting, value, seen) for (name, value), seen in zip(told.items(), rows, strict=True)]


def _at(reading: Reading, spec: RulesSpec, d_k: int, rule: str, scale: float) -> list[Comparison]:
    setting: Setting = {"d_k": d_k, "rule": rule, "keys": spec.keys}
    told = predict(d_k, spec.keys, scale)
    return [
        compare("score variance", setting, told.mean_variance[0], reading.variance),
        compare("largest weight", setting, told.mean_top_probability[0], reading.top_probability),
        compare_share("rows with p > .99", setting, told.saturated[0], reading.saturated(0.99)),
    ]


def _bars(query: Floats, key: Floats, d_k: int, rule: str) -> Series:
    """Weights of one query over 16 keys, largest first. With unit vectors as values the output is the weights."""
    few = key[:, :_SHOWN_KEYS]
    shown = few.shape[1]
    weights = attention(query[:, :1], few, np.eye(shown)[None], scale=factor_of(rule, d_k, shown))[0, 0]
    place = tuple(float(i + 1) for i in range(shown))
    return Series("weights", "measured", {"d_k": d_k, "rule": rule}, place, tuple(np.sort(weights)[::-1].tolist()))
