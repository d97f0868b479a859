"""Longer and longer rows: how entropy and the trace of J move with the number of keys, to a billion."""

import math
from dataclasses import asdict, dataclass

import numpy as np

from rootdk.api import measure
from rootdk.theory import attention_moments

from . import checks
from .result import Comparison, Result
from .sampling import Tell, compare, factor_of


@dataclass(frozen=True, slots=True)
class LengthSpec:
    """measured: numbers of keys that are drawn, groups x rows queries each; computed: those for theory alone."""

    d_k: int = 64
    rules: tuple[str, ...] = ("none", "sqrt", "entropy_invariant")
    measured: tuple[int, ...] = (16, 256, 4096, 100_000)
    computed: tuple[int, ...] = (64, 1024, 16_384, 10**6, 10**7, 10**8, 10**9)
    groups: int = 16
    rows: int = 16
    seed: int = 0

    def __post_init__(self) -> None:
        checks.counts("d_k", (self.d_k,), 1, 8192)
        checks.rules(self.rules)
        checks.counts("measured", self.measured, 2, 10**6)
        checks.counts("computed", self.computed, 2, 10**12)
        checks.counts("groups", (self.groups,), 2, 10**5)
        checks.counts("rows", (self.rows,), 1, 10**5)
        checks.seed(self.seed)


def run(spec: LengthSpec, tell: Tell) -> Result:
    """Entropy in nats, H / ln n and the trace of J for each rule and number of keys."""
    found: list[Comparison] = []
    for keys in spec.computed:
        if keys not in spec.measured:
            found += _told(spec, keys)
    # Short rows get more groups, so that no number of keys has less than a quarter of a million logits of its own.
    tell(0.1)
    for number, keys in enumerate(spec.measured):
        groups = max(spec.groups, min(200, 250_000 // (keys * spec.rows)))
        found += _measured(spec, keys, groups)
        tell(0.1 + 0.9 * sum(spec.measured[: number + 1]) / sum(spec.measured))
    return Result("length", asdict(spec), tuple(found))


def _setting(spec: LengthSpec, keys: int, rule: str) -> dict[str, int | float | str]:
    return {"keys": keys, "rule": rule, "d_k": spec.d_k}


def _told(spec: LengthSpec, keys: int) -> list[Comparison]:
    found = []
    for rule in spec.rules:
        told = attention_moments(keys, spec.d_k, factor_of(rule, spec.d_k, keys))
        setting = _setting(spec, keys, rule)
        found.append(Comparison("entropy", setting, float(told.entropy)))
        found.append(Comparison("H / ln n", setting, float(told.entropy) / math.log(keys)))
        found.append(Comparison("trace of J", setting, float(told.jacobian_trace)))
    return found


def _measured(spec: LengthSpec, keys: int, groups: int) -> list[Comparison]:
    rng = np.random.default_rng([spec.seed, 7, keys])
    kept: dict[str, list[tuple[float, float]]] = {rule: [] for rule in spec.rules}
    value = np.ones((1, keys, 1), np.float32)
    for _ in range(groups):
        query = rng.standard_normal((1, spec.rows, spec.d_k), dtype=np.float32)
        key = rng.standard_normal((1, keys, spec.d_k), dtype=np.float32)
        for rule in spec.rules:
            _, reading = measure(query, key, value, scale=factor_of(rule, spec.d_k, keys))
            kept[rule].append((float(np.mean(reading.entropy)), float(np.mean(reading.jacobian_trace))))
    found = []
    for told in _told(spec, keys):
        entropy, trace = np.array(kept[str(told.setting["rule"])]).T
        samples = {"entropy": entropy, "H / ln n": entropy / math.log(keys), "trace of J": trace}[told.quantity]
        found.append(compare(told.quantity, told.setting, told.theory, samples))
    return found
