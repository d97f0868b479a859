"""The scale rules: the experiments "rules" and "length".

"rules" shows what each does to attention with random q and k, at your d_k and along d_k; "length" how entropy and the
trace of J move with the number of keys, to a billion.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from rootdk.attention import attention, measure
from rootdk.errors import ArgumentError
from rootdk.lab.drawing import POWERS, Picture, bars, colour_of, grouped_by, plot, predicted_and_measured, ticks_along
from rootdk.reading import Reading
from rootdk.theory import attention_moments
from rootdk.theory.prediction import predict

from .comparison import Comparison, Parameters, Result, Series
from .experiment import Experiment, Progress, Spec, a_count, a_seed, counts, register, rule_names
from .sampler import Floats, compare, compare_share, computed, factor_of, generator, normal

_LARGEST_GROUP = 2**27  # components of one group's keys: 1 GiB in float64
_SHOWN_KEYS = 16  # bars that a person can tell apart


@dataclass(frozen=True, slots=True)
class RulesSpec(Spec):
    """groups x rows queries over `keys` keys per group, the same q and k under every rule.

    d_k       where everything is compared
    curve     where entropy and trace are, for a curve along d_k
    computed  further points of that curve, for theory alone
    """

    d_k: tuple[int, ...] = counts((64, 512), 1, 8192)
    curve: tuple[int, ...] = counts((4, 16, 64, 256), 1, 8192)
    computed: tuple[int, ...] = counts((8, 32, 128, 512), 1, 8192)
    rules: tuple[str, ...] = rule_names(("none", "sqrt", "dk"))
    keys: int = a_count(1024, 2, 262_144)
    groups: int = a_count(64, 2, 10**5)
    rows: int = a_count(64, 1, 10**5)
    seed: int = a_seed()

    def __post_init__(self) -> None:
        Spec.__post_init__(self)
        largest = max(*self.d_k, *self.curve)
        most = _LARGEST_GROUP // largest
        if self.keys > most:
            raise ArgumentError(f"keys: must be at most {most} at d_k = {largest}, got {self.keys}")
        for rule, d_k in product(self.rules, (*self.d_k, *self.curve, *self.computed)):
            factor_of(rule, d_k, self.keys)  # a rule that fails is an error before anything is drawn


def run_rules(spec: RulesSpec, progress: Progress) -> Iterator[Comparison | Series]:
    """Variance, entropy, trace and norm of J, largest weight and frozen rows, under each rule."""
    sizes = sorted({*spec.d_k, *spec.curve})
    # Drawing takes time in proportion to d_k, and theory about as long as 300 components.
    cost = np.cumsum([size + 300 for size in sizes])
    for number, d_k in enumerate(sizes):
        for rule, (reading, weights) in _measured(spec, d_k).items():
            scale = factor_of(rule, d_k, spec.keys)
            yield from _along(spec, d_k, rule, reading)
            if d_k in spec.d_k:
                yield from _at(reading, spec, d_k, rule, scale)
                yield weights
        progress(float(cost[number] / cost[-1]))
    for d_k, rule in product(spec.computed, spec.rules):
        if d_k not in sizes:
            yield from _along(spec, d_k, rule)


def _measured(spec: RulesSpec, d_k: int) -> dict[str, tuple[Reading, Series]]:
    """Every rule on the same vectors, group by group: all groups at once would not fit for large d_k and many keys."""
    # A generator per d_k: the numbers of one d_k do not depend on which others were asked for.
    rng = generator(spec.seed, 4, d_k)
    value = np.ones((1, spec.keys, 1))
    parts: dict[str, list[Reading]] = {rule: [] for rule in spec.rules}
    weights: dict[str, Series] = {}
    for group in range(spec.groups):
        # Drawn in float32, measured in float64: a flat row needs the digits.
        query = normal(rng, (1, spec.rows, d_k)).astype(np.float64)
        key = normal(rng, (1, spec.keys, d_k)).astype(np.float64)
        for rule in spec.rules:
            parts[rule].append(measure(query, key, value, scale=factor_of(rule, d_k, spec.keys))[1])
            if group == 0:
                weights[rule] = _weights(query, key, d_k, rule)
    return {rule: (Reading.concatenate(parts[rule], axis=0), weights[rule]) for rule in spec.rules}


def _along(spec: RulesSpec, d_k: int, rule: str, reading: Reading | None = None) -> Iterator[Comparison]:
    moments = attention_moments(spec.keys, d_k, factor_of(rule, d_k, spec.keys))
    predicted = {
        "entropy share": float(moments.entropy) / float(np.log(spec.keys)),
        "Jacobian trace": moments.jacobian_trace,
        "|J|^2": moments.jacobian_norm_squared,
    }
    rows = (reading.entropy_ratio, reading.jacobian_trace, reading.jacobian_norm**2) if reading is not None else None
    return _beside({"d_k": d_k, "rule": rule, "keys": spec.keys}, predicted, rows)


def _beside(setting: Parameters, predicted: Mapping[str, Any], samples: Sequence[Any] | None) -> Iterator[Comparison]:
    """What theory predicts of each quantity, beside its samples where there are any."""
    for place, (quantity, value) in enumerate(predicted.items()):
        if samples is None:
            yield computed(quantity, setting, value)
        else:
            yield compare(quantity, setting, value, samples[place])


def _at(reading: Reading, spec: RulesSpec, d_k: int, rule: str, scale: float) -> Iterator[Comparison]:
    setting: Parameters = {"d_k": d_k, "rule": rule, "keys": spec.keys}
    predicted = predict(d_k, spec.keys, scale)
    yield compare("score variance", setting, predicted.mean_variance[0], reading.variance)
    yield compare("largest weight", setting, predicted.mean_top_probability[0], reading.top_probability)
    yield compare_share("rows of one key", setting, predicted.saturated[0], reading.saturated(0.99))


def _weights(query: Floats, key: Floats, d_k: int, rule: str) -> Series:
    """Weights of one query over 16 keys, largest first. With unit vectors as values the output is the weights."""
    few = key[:, :_SHOWN_KEYS]
    shown = few.shape[1]
    weights = attention(query[:, :1], few, np.eye(shown)[None], scale=factor_of(rule, d_k, shown))[0, 0]
    place = tuple(float(i + 1) for i in range(shown))
    return Series("weights", "measured", {"d_k": d_k, "rule": rule}, place, tuple(np.sort(weights)[::-1].tolist()))


def _asked(size: str, d_k: Sequence[int], keys: int, rules: Sequence[str]) -> Mapping[str, Any]:
    # Fewer groups where one is large, so that the time stays in bounds; the standard errors are then larger.
    groups = max(16, min(64, 64_000_000 // (keys * sum(d_k))))
    groups = {"quick": max(16, groups // 2), "default": groups, "full": 2 * groups}[size]
    return {"d_k": tuple(dict.fromkeys(d_k)), "keys": keys, "rules": tuple(dict.fromkeys(rules)), "groups": groups}


def _rules_pictures(result: Result) -> list[Picture]:
    by_d_k: dict[int, list[Series]] = {}
    for series in result.series:
        by_d_k.setdefault(int(series.setting["d_k"]), []).append(series)
    return [
        _along_d_k(result, "entropy share", "entropy-dk", "Entropy against d_k", "entropy share (entropy / ln n)"),
        _along_d_k(result, "Jacobian trace", "trace-dk", "Jacobian trace against d_k", "Jacobian trace"),
        *(_bars(d_k, weights) for d_k, weights in by_d_k.items()),
    ]


def _along_d_k(result: Result, quantity: str, name: str, title: str, label: str) -> Picture:
    chosen = result.select(quantity)
    traces = predicted_and_measured(grouped_by(chosen, "rule"), "d_k")
    caption = "Lines: theory. Markers: measured, with two standard errors."
    return Picture(name, title, caption, plot(traces, "d<sub>k</sub>", label, xaxis=ticks_along(chosen, "d_k")))


def _bars(d_k: int, weights: Sequence[Series]) -> Picture:
    traces = []
    for number, series in enumerate(weights):
        rule = str(series.setting["rule"])
        traces.append(bars(series.x, series.y, rule, colour_of(rule, number), hovertemplate="%{y:.4f}"))
    caption = f"The same query over the same {len(weights[0].x)} keys, largest weight first, under each rule."
    figure = plot(traces, "key, by weight", "weight", barmode="group", yaxis={"range": [0, 1]})
    return Picture(f"weights-{d_k}", f"Softmax weights of one query, d_k = {d_k}", caption, figure)


register(
    Experiment(
        name="rules",
        place=5,
        spec=RulesSpec,
        run=run_rules,
        seconds=2.2,
        heading="The scale rules side by side",
        text="The same random queries and keys with each rule. This is the state at the start of training. A trained "
        "model can be different, and some models are tuned for 1/d_k.",
        pictures=_rules_pictures,
        quick={"curve": (16, 64, 256), "rows": 16},
        full={"curve": (4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048), "rows": 160},
        asked=_asked,
    )
)


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


def run_length(spec: LengthSpec, progress: Progress) -> Iterator[Comparison]:
    """Entropy in nats, entropy share and Jacobian trace for each rule and number of keys."""
    for keys, rule in product(spec.computed, spec.rules):
        if keys not in spec.measured:
            yield from _at_length(spec, keys, rule)
    # Short rows get more groups, so that no number of keys has less than a quarter of a million logits of its own.
    progress(0.1)
    for number, keys in enumerate(spec.measured):
        groups = max(spec.groups, min(200, 250_000 // (keys * spec.rows)))
        for rule, means in _measured_means(spec, keys, groups).items():
            yield from _at_length(spec, keys, rule, means)
        progress(0.1 + 0.9 * sum(spec.measured[: number + 1]) / sum(spec.measured))


def _at_length(spec: LengthSpec, keys: int, rule: str, means: Floats | None = None) -> Iterator[Comparison]:
    moments = attention_moments(keys, spec.d_k, factor_of(rule, spec.d_k, keys))
    predicted = {
        "entropy": moments.entropy,
        "entropy share": float(moments.entropy) / math.log(keys),
        "Jacobian trace": moments.jacobian_trace,
    }
    samples = None if means is None else (means[0], means[0] / math.log(keys), means[1])
    return _beside({"keys": keys, "rule": rule, "d_k": spec.d_k}, predicted, samples)


def _measured_means(spec: LengthSpec, keys: int, groups: int) -> dict[str, Floats]:
    """By rule: the mean entropy of each group, and its mean Jacobian trace."""
    rng = generator(spec.seed, 7, keys)
    by_rule: dict[str, list[tuple[Any, Any]]] = {rule: [] for rule in spec.rules}
    value = np.ones((1, keys, 1), np.float32)
    for _ in range(groups):
        query = normal(rng, (1, spec.rows, spec.d_k))
        key = normal(rng, (1, keys, spec.d_k))
        for rule in spec.rules:
            _, reading = measure(query, key, value, scale=factor_of(rule, spec.d_k, keys))
            by_rule[rule].append((np.mean(reading.entropy), np.mean(reading.jacobian_trace)))
    return {rule: np.array(pairs, np.float64).T for rule, pairs in by_rule.items()}


def _length_pictures(result: Result) -> list[Picture]:
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
        spec=LengthSpec,
        run=run_length,
        seconds=2.0,
        heading="More keys",
        text="With 1/√d_k the entropy stays a constant below ln n, so that long rows look more and more uniform. "
        "Without a scale the entropy is far lower and grows in proportion to ln n: at d_k = 64 from 0.41 nats at 16 "
        "keys to 3.02 at a billion. A rule with ln n makes long rows sharper, by more than what keeps entropy / ln n "
        "constant.",
        pictures=_length_pictures,
        quick={"measured": (16, 256, 4096), "computed": (10**6, 10**9)},
        full={"measured": (16, 64, 256, 1024, 4096, 16_384, 100_000), "groups": 64},
    )
)
