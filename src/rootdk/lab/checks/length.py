"""The experiment "length": how entropy and the trace of J move with the number of keys, to a billion."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from rootdk.attention import measure
from rootdk.lab.drawing import POWERS, Picture, grouped_by, plot, predicted_and_measured
from rootdk.theory import attention_moments

from .comparison import Comparison, Parameters, Result
from .experiment import Experiment, Progress, Spec, a_count, a_seed, counts, register, rule_names
from .sampler import compare, computed, factor_of, generator, normal


@dataclass(frozen=True, slots=True)
class LengthSpec(Spec):
    """measured: numbers of keys that are drawn, groups x rows queries each; computed: those for theory alone."""

    d_k: int = a_count(64, 1, 8192)
    rules: tuple[str, ...] = rule_names(("none", "sqrt", "entropy_invariant"))
    measured: tuple[int, ...] = counts((16, 256, 4096, 100_000), 2, 10**6)
    computed: tuple[int, ...] = counts((64, 1024, 16_384, 10**6, 10**7, 10**8, 10**9), 2, 10**12)
    groups: int = a_count(16, 2, 10**5)
    rows: int = a_count(16, 1, 10**5)
    seed: int = a_seed()


def run(spec: LengthSpec, progress: Progress) -> Result:
    """Entropy in nats, entropy share and Jacobian trace for each rule and number of keys."""
    comparisons: list[Comparison] = []
    for keys in spec.computed:
        if keys not in spec.measured:
            comparisons += _computed(spec, keys)
    # Short rows get more groups, so that no number of keys has less than a quarter of a million logits of its own.
    progress(0.1)
    for number, keys in enumerate(spec.measured):
        groups = max(spec.groups, min(200, 250_000 // (keys * spec.rows)))
        comparisons += _measured(spec, keys, groups)
        progress(0.1 + 0.9 * sum(spec.measured[: number + 1]) / sum(spec.measured))
    return Result("length", asdict(spec), tuple(comparisons))


def _computed(spec: LengthSpec, keys: int) -> list[Comparison]:
    comparisons = []
    for rule in spec.rules:
        moments = attention_moments(keys, spec.d_k, factor_of(rule, spec.d_k, keys))
        setting: Parameters = {"keys": keys, "rule": rule, "d_k": spec.d_k}
        comparisons.append(computed("entropy", setting, moments.entropy))
        comparisons.append(computed("entropy share", setting, float(moments.entropy) / math.log(keys)))
        comparisons.append(computed("Jacobian trace", setting, moments.jacobian_trace))
    return comparisons


def _measured(spec: LengthSpec, keys: int, groups: int) -> list[Comparison]:
    rng = generator(spec.seed, 7, keys)
    kept: dict[str, list[tuple[float, float]]] = {rule: [] for rule in spec.rules}
    value = np.ones((1, keys, 1), np.float32)
    for _ in range(groups):
        query = normal(rng, (1, spec.rows, spec.d_k))
        key = normal(rng, (1, keys, spec.d_k))
        for rule in spec.rules:
            _, reading = measure(query, key, value, scale=factor_of(rule, spec.d_k, keys))
            kept[rule].append((float(np.mean(reading.entropy)), float(np.mean(reading.jacobian_trace))))
    comparisons = []
    for comparison in _computed(spec, keys):
        entropy, trace = np.array(kept[str(comparison.setting["rule"])]).T
        by_name = {"entropy": entropy, "entropy share": entropy / math.log(keys), "Jacobian trace": trace}
        samples = by_name[comparison.quantity]
        comparisons.append(compare(comparison.quantity, comparison.setting, comparison.predicted, samples))
    return comparisons


def _pictures(result: Result) -> list[Picture]:
    to_a_billion = "In nats. Lines: theory, up to a billion keys. Markers: measured."
    return [
        _along_keys(result, "entropy", "entropy-n", "Entropy against the number of keys", to_a_billion),
        _along_keys(result, "entropy share", "ratio-n", "Entropy share", "Entropy / ln n; 1 means equal weights."),
    ]


def _along_keys(result: Result, quantity: str, name: str, title: str, caption: str) -> Picture:
    chosen = result.select(quantity)
    traces = predicted_and_measured(grouped_by(chosen, "rule"), "keys")
    return Picture(name, title, caption, plot(traces, "number of keys n", quantity, xaxis=_powers_of_ten(chosen)))


def _powers_of_ten(chosen: Sequence[Comparison]) -> dict[str, Any]:
    """Every second power of ten, and space for the label of the last one."""
    ends = [math.log10(float(comparison.setting["keys"])) for comparison in chosen]
    reach = {"range": [min(ends) - 0.3, max(ends) + 0.3]} if ends else {}
    return POWERS | {"tick0": 1, "dtick": 2} | reach


register(
    Experiment(
        name="length",
        place=6,
        question="What happens when there are more keys?",
        spec=LengthSpec,
        run=run,
        seconds=2.0,
        heading="More keys",
        text="With 1/√d_k the entropy stays a constant below ln n, so that long rows look more and more uniform. "
        "Without a scale the entropy is far lower and grows in proportion to ln n: at d_k = 64 from 0.41 nats at 16 "
        "keys to 3.02 at a billion. A rule with ln n makes long rows sharper, by more than what keeps entropy / ln n "
        "constant.",
        pictures=_pictures,
        quick={"measured": (16, 256, 4096), "computed": (10**6, 10**9)},
        full={"measured": (16, 64, 256, 1024, 4096, 16_384, 100_000), "groups": 64},
    )
)
