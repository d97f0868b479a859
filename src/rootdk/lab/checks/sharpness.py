"""How sharp a softmax is: the experiment "sharpness", and claims 9, 11 and 12."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from rootdk import theory
from rootdk.attention import measure
from rootdk.lab.drawing import Picture, plot, predicted_and_measured, ticks_along, upright
from rootdk.lab.formulas import FREEZING

from .comparison import LIMITS, Comparison, Parameters, Result, estimated
from .experiment import Experiment, Progress, Spec, a_count, a_seed, positives, register
from .ledger import COMMON, LEDGER
from .sampler import (
    Floats,
    Sampling,
    chunks,
    compare,
    compare_share,
    computed,
    factor_of,
    generator,
    over_groups,
    reading,
)


@dataclass(frozen=True, slots=True)
class SharpnessSpec(Spec):
    """rows of `keys` logits, no logit in two rows; every sigma sees the same rows, stretched.

    computed   further values of sigma, for theory alone
    """

    sigma: tuple[float, ...] = positives((0.125, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0))
    computed: tuple[float, ...] = positives((0.18, 0.25, 0.35, 0.7, 1.4, 2.4, 2.8, 3.4, 4.8, 5.7, 6.7, 9.5, 11.3, 13.5))
    keys: int = a_count(1024, 2, 10**7)
    rows: int = a_count(20_000, 2, 10**8)
    seed: int = a_seed()


# Property of a Reading -> what the comparison is called.
_MEANS = {
    "log_sum_exp": "log sum exp",
    "entropy": "entropy",
    "p_squared": "sum p^2",
    "jacobian_trace": "Jacobian trace",
}
_FROZEN = "rows of one key"


def run(spec: SharpnessSpec, progress: Progress) -> Iterator[Comparison]:
    """Means over rows through rootdk.measure: a query of one component per sigma, a key of one component per logit."""
    rng = generator(spec.seed, 3)
    names = (*_MEANS, "jacobian_norm", "top_probability")
    blocks: dict[str, list[Floats]] = {name: [] for name in names}
    done = 0
    for rows in chunks(spec.rows, spec.keys, most=500_000):
        # float64, because in float32 the rounding error of 1 - sum p^2 of a flat row is larger than the standard error.
        key = rng.standard_normal((rows, spec.keys, 1))
        query = np.broadcast_to(np.array(spec.sigma)[:, None], (rows, len(spec.sigma), 1))
        _, reading = measure(query, key, key, scale=1.0)
        for name in names:
            blocks[name].append(getattr(reading, name))
        done += rows
        progress(done / spec.rows)
    by_sigma = {name: np.concatenate(parts) for name, parts in blocks.items()}
    for number, (setting, predicted) in enumerate(_theory(spec.sigma, spec.keys)):
        samples = {label: by_sigma[name][:, number] for name, label in _MEANS.items()}
        samples["|J|^2"] = by_sigma["jacobian_norm"][:, number] ** 2
        samples["largest weight"] = by_sigma["top_probability"][:, number]
        for quantity, values in samples.items():
            yield compare(quantity, setting, predicted[quantity], values)
        if _FROZEN in predicted:
            yield compare_share(_FROZEN, setting, predicted[_FROZEN], samples["largest weight"] > 0.99)
    for setting, predicted in _theory(spec.computed, spec.keys):
        for quantity, value in predicted.items():
            yield computed(quantity, setting, value)


def _theory(sigmas: tuple[float, ...], keys: int) -> Iterator[tuple[Parameters, dict[str, float]]]:
    """The setting of each sigma, and what theory says of every quantity there."""
    moments = theory.softmax_moments(keys, np.array(sigmas))
    for number, sigma in enumerate(sigmas):
        predicted = {label: float(getattr(moments, name)[number]) for name, label in _MEANS.items()}
        predicted["|J|^2"] = float(moments.jacobian_norm_squared[number])
        predicted["largest weight"] = float(theory.top_probability(keys, sigma))
        if sigma >= 0.35 or keys >= 10:  # elsewhere the theory does not hold
            predicted[_FROZEN] = float(theory.saturation(keys, sigma))
        yield {"sigma": sigma, "keys": keys}, predicted


_MARKED = "Lines: theory. Markers: measured, with two standard errors."


def _pictures(result: Result) -> list[Picture]:
    left = ("Jacobian trace", "|J|^2", "largest weight", _FROZEN)
    rises = "The trace falls; the norm first rises and then falls. "
    return [
        _along_sigma(result, ("entropy",), "entropy-sigma", "Entropy, in nats", "Dotted: σ = √(2 ln n). " + _MARKED),
        _along_sigma(result, left, "trace-sigma", "The Jacobian and the weights", rises + _MARKED),
    ]


def _along_sigma(result: Result, quantities: Sequence[str], name: str, title: str, caption: str) -> Picture:
    traces = predicted_and_measured({quantity: result.select(quantity) for quantity in quantities}, "sigma")
    critical = (2 * math.log(float(result.comparisons[0].setting["keys"]))) ** 0.5
    axis = ticks_along(result.comparisons, "sigma")
    figure = plot(traces, "standard deviation σ of the scores", "", xaxis=axis, shapes=[upright(critical)])
    return Picture(name, title, caption, figure)


register(
    Experiment(
        name="sharpness",
        place=3,
        spec=SharpnessSpec,
        run=run,
        seconds=0.6,
        heading="When scores spread, one key takes the weight",
        text="When the standard deviation of the scores, after the scale, is above √(2 ln n), a few keys take all the "
        "weight, no matter how many keys there are: softmax is frozen. The trace of its Jacobian J then goes to 0. The "
        "norm of J rises first, because a few keys still compete, and then falls.",
        formula=FREEZING,
        pictures=_pictures,
        quick={"rows": 1000, "sigma": (0.125, 1.0, 8.0), "computed": (2.0, 4.0)},
        full={"sigma": (0.125, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 16.0, 32.0)},
    )
)


KEYS = 512
_MOST = "nearly all the weight is 99 %, and that it takes it means in most rows"
_EVEN = "weights that leave 1 % of ln n at most are near 1/n each"
Scale = Callable[[int], float]


def unscaled(_d_k: int) -> float:
    """The factor 1."""
    return 1.0


def root(d_k: int) -> float:
    """The factor 1/sqrt(d_k)."""
    return 1 / math.sqrt(d_k)


@LEDGER.claim(
    9,
    title="hardly matters at small d_k",
    statement="At d_k = 4 the query 1, 0, 1, 0 and the key 0, 1, 1, 1 score 1, and 0.5 after the scale: for small d_k "
    "the scale hardly matters.",
    source=COMMON,
    method="The product itself. How much of the entropy of the weights is lost without the scale, as a share of ln n "
    f"for {KEYS} keys: exact averages over normal q and k.",
)
def small_d_k(
    _sampling: Sampling,
    query: Sequence[float] = (1, 0, 1, 0),
    key: Sequence[float] = (0, 1, 1, 1),
    small: int = 4,
    larger: Sequence[int] = (64, 512),
    without: Scale = unscaled,
    hardly: float = 0.05,
) -> Iterator[Comparison]:
    """hardly is how much of ln n may be lost without being noticed."""
    score = float(np.dot(query, key))
    yield Comparison("q.k", score, "=", 1.0)
    yield Comparison("q.k / sqrt(d_k)", score / math.sqrt(len(query)), "=", 0.5)
    d_ks = np.array([small, *larger])
    scales = (np.array([scale(d_k) for d_k in d_ks.tolist()]) for scale in (root, without))
    scaled, not_scaled = (theory.attention_moments(KEYS, d_ks, factors).entropy for factors in scales)
    lost = ((scaled - not_scaled) / math.log(KEYS)).tolist()
    reason = "less than half of what is lost at the larger d_k is clearly less"
    for d_k, share in zip(larger, lost[1:], strict=True):
        yield Comparison(f"lost at d_k = {small}, under half that of {d_k}", lost[0], "<", share / 2, choice=reason)
    others = " and ".join(f"{share:.0%} at {d_k}" for d_k, share in zip(larger, lost[1:], strict=True))
    condition = f"in comparison only: at d_k = {small} the entropy is still {lost[0]:.0%} of ln n lower without the "
    condition += f"scale, {others}"
    reason = "hardly is taken to mean at most a twentieth of ln n, 0.31 nats for 512 keys"
    yield Comparison(f"lost at d_k = {small}", lost[0], "<", hardly, role=LIMITS, otherwise=condition, choice=reason)


@LEDGER.claim(
    11,
    title="one word takes all the weight",
    statement="Without the scale one word takes nearly all the weight.",
    source=COMMON,
    method="Share of measured rows in which one key has more than 99 %, and the median effective number of keys, for "
    "normal q and k without a scale.",
)
def one_key_takes_all(
    sampling: Sampling,
    scale: Scale = unscaled,
    keys: Sequence[int] = (64, 512, 4096),
    d_ks: Sequence[int] = (64, 256, 512, 1024),
    usual: int = 64,
) -> Iterator[Comparison]:
    """usual is the d_k at which the claim is illustrated; the largest of d_ks decides whether it is ever true."""
    middle, largest = keys[len(keys) // 2], max(d_ks)

    def taken(d_k: int, n: int) -> tuple[float, float]:
        return over_groups(reading(sampling, d_k, n, scale(d_k)).saturated(0.99))

    def effective(d_k: int) -> tuple[float, float]:
        return over_groups(reading(sampling, d_k, middle, scale(d_k)).effective_keys, np.median)

    for d_k in sorted({*d_ks} - {usual, largest}):
        yield estimated(f"rows of one key, d_k = {d_k}, {middle} keys", taken(d_k, middle))
    text = f"rows of one key, d_k = {largest}, {middle} keys"
    yield estimated(text, taken(largest, middle), ">", 0.5, choice=_MOST)
    reason = "two keys that share a row evenly make 2; one that takes nearly all makes less"
    yield estimated(f"effective keys, d_k = {largest}, {middle} keys", effective(largest), "<", 2.0, choice=reason)
    most = [d_k for d_k in sorted(d_ks) if estimated("", taken(d_k, middle), ">", 0.5).agrees]
    share, _ = taken(usual, middle)
    condition = f"in most rows for large d_k only: with {middle} keys in {share:.0%} of rows at d_k = {usual}"
    condition += f", clearly in more than half at d_k = {most[0]}" if most else ", nowhere clearly in more than half"
    for n in keys:
        text = f"rows of one key, d_k = {usual}, {n} keys"
        yield estimated(text, taken(usual, n), ">", 0.5, role=LIMITS, otherwise=condition, choice=_MOST)
    yield estimated(f"effective keys, d_k = {usual}, {middle} keys", effective(usual))


@LEDGER.claim(
    12,
    title="1/d_k makes weights alike",
    statement="Dividing by d_k itself gives scores of variance 1/d_k and weights near 1/n each, less able to tell keys "
    "apart.",
    source=COMMON,
    method=f"The rule's variance; entropy and largest weight of measured rows of {KEYS} keys; |do/dq|/|o|, exact, "
    "against the scale 1/sqrt(d_k). Once more with q and k grown by d_k^(1/4) each.",
)
def divided_by_d_k(
    sampling: Sampling,
    rule: str = "dk",
    d_ks: Sequence[int] = (64, 512),
    growth: Scale = lambda d_k: d_k**0.25,
) -> Iterator[Comparison]:
    """growth is the factor by which training may have scaled q and k, each."""
    near = "twice 1/n at most is near 1/n; with 1/sqrt(d_k) the largest weight is several times that"
    less = "a quarter of what passes with 1/sqrt(d_k) is clearly less able"
    for d_k in d_ks:
        variance = float(theory.rule_variance(rule, d_k))
        yield Comparison(f"d_k = {d_k}: variance times d_k", variance * d_k, "=", 1.0, slack=1e-15)
        rows = reading(sampling, d_k, KEYS, rule)
        yield estimated(f"d_k = {d_k}: entropy share", over_groups(rows.entropy_ratio), ">", 0.99, choice=_EVEN)
        top = over_groups(rows.top_probability * KEYS)
        yield estimated(f"d_k = {d_k}: largest weight times n", top, "<", 2.0, choice=near)
        passed = theory.relative_gradient(KEYS, d_k, factor_of(rule, d_k, KEYS))
        share = float(passed / theory.relative_gradient(KEYS, d_k, root(d_k)))
        yield Comparison(f"d_k = {d_k}: |do/dq|/|o| against sqrt rule", share, "<", 0.25, choice=less)
    grown = {
        d_k: over_groups(reading(sampling, d_k, KEYS, factor_of(rule, d_k, KEYS) * growth(d_k) ** 2).entropy_ratio)
        for d_k in d_ks
    }
    condition = "while q and k have variance 1, as at the start: training can grow them, and "
    condition += " and ".join(f"{growth(d_k):.3g} times as large at d_k = {d_k}" for d_k in d_ks)
    condition += f" they leave an entropy of {', '.join(f'{ratio:.2f}' for ratio, _ in grown.values())} ln n"
    for d_k, ratio in grown.items():
        text = f"d_k = {d_k}, grown q and k: entropy share"
        yield estimated(text, ratio, ">", 0.99, role=LIMITS, otherwise=condition, choice=_EVEN)
