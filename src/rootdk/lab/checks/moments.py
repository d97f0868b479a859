"""One score: the experiments "variance" and "scores", and claims 3, 4, 17 and 20, enumerated and drawn.

"variance" is about mean and variance; "scores" about the whole law, nearly Gaussian for large d_k, with a width of
sqrt(d_k) until scaled.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np

from rootdk.lab.drawing import GREY, HUES, POWERS, Picture, bars, grouped_by, level, line, plot, points, ticks_along
from rootdk.lab.formulas import SCALED, SQUARE
from rootdk.scaling import rule
from rootdk.theory import exact_score_moments, score_density, score_excess_kurtosis, score_tail

from .comparison import EQUAL, EQUAL_IS, LIMITS, SHOWN, Comparison, Parameters, Result, Series, estimated
from .experiment import Experiment, Progress, Spec, a_count, a_seed, counts, names, register
from .ledger import COMMON, LEDGER, PAPER
from .sampler import (
    LAWS,
    Floats,
    Sampler,
    Sampling,
    chunks,
    compare,
    compare_share,
    draw,
    generator,
    normal,
    over_groups,
    reading,
    sign,
    student,
    uniform,
)

_SIDE = 4  # 16 scores from 8 vectors: drawing these takes most of the time


@dataclass(frozen=True, slots=True)
class VarianceSpec(Spec):
    """At least `rows` scores for every d_k and law, in groups of 4 queries with 4 keys; groups are independent."""

    d_k: tuple[int, ...] = counts((4, 16, 64, 256, 1024), 1, 10**6)
    laws: tuple[str, ...] = names(("gaussian", "uniform", "sign", "laplace"), LAWS)
    rows: int = a_count(20_000, 2, 10**8)
    seed: int = a_seed()


def run_variance(spec: VarianceSpec, progress: Progress) -> Iterator[Comparison]:
    """Var <q, k> = d_k and E <q, k> = 0, measured on every pair of a group."""
    done = 0
    for law, d_k in product(spec.laws, spec.d_k):
        rng = generator(spec.seed, 1, list(LAWS).index(law), d_k)
        parts = []
        for groups in chunks(max(2, math.ceil(spec.rows / _SIDE**2)), 2 * _SIDE * d_k):
            query, key = draw(rng, law, (groups, _SIDE, d_k)), draw(rng, law, (groups, _SIDE, d_k))
            parts.append(np.matmul(query, key.transpose(0, 2, 1)).astype(np.float64))
        scores = np.concatenate(parts)
        setting: Parameters = {"d_k": d_k, "law": law}
        yield compare("score mean", setting, 0.0, scores)
        yield compare("score variance", setting, d_k, scores**2)
        done += d_k
        progress(done / (len(spec.laws) * sum(spec.d_k)))


def _variance_pictures(result: Result) -> list[Picture]:
    """The variance against d_k, and divided by it."""
    chosen = result.select("score variance")
    sizes = sorted({float(comparison.setting["d_k"]) for comparison in chosen})
    rings, ratios = [line(sizes, sizes, "theory: d_k", GREY)], []
    for number, (law, of_law) in enumerate(grouped_by(chosen, "law").items()):
        x, colour = np.array([comparison.setting["d_k"] for comparison in of_law]), HUES[number]
        y, errors = np.array([(comparison.measured, comparison.standard_error) for comparison in of_law]).T
        ring = {"color": colour, "size": 7 + 5 * number, "symbol": "circle-open", "line": {"width": 2}}
        rings.append(points(x, y, law, colour, marker=ring, hovertemplate="measured %{y:.4g}"))
        # Side by side, so that the error bars do not overlap.
        beside, dot = x * 1.12 ** (number - 1.5), {"color": colour, "size": 7}
        ratios.append(points(beside, y / x, law, colour, errors / x, marker=dot, hovertemplate="measured %{y:.4f}"))
    axis = ticks_along(chosen, "d_k")
    against = plot(rings, "d<sub>k</sub>", "variance of q·k", xaxis=axis, yaxis=POWERS)
    over = plot(ratios, "d<sub>k</sub>", "variance / d<sub>k</sub>", xaxis=axis, shapes=[level(1.0)])
    explained = "Line: theory. Rings, one inside the other: random pairs of four distributions."
    measured = "Measured, with two standard errors. Theory: 1."
    return [
        Picture("variance", "Variance of a score", explained, against),
        Picture("variance-ratio", "The same, divided by d_k", measured, over),
    ]


register(
    Experiment(
        name="variance",
        place=1,
        spec=VarianceSpec,
        run=run_variance,
        seconds=0.5,
        heading="The variance of a score is d_k",
        text="The square of a sum of d_k products has d_k squares with the average 1, and d_k (d_k − 1) cross terms "
        "with the average 0. So the variance is d_k, exactly. The components must be independent, with mean 0 and "
        "variance 1; their distribution does not matter.",
        formula=SQUARE,
        pictures=_variance_pictures,
        quick={"d_k": (4, 64, 256), "rows": 4000},
        full={"d_k": (1, 4, 16, 64, 256, 1024, 4096), "laws": (*VarianceSpec().laws, "student_t")},
    )
)


Law = Mapping[Any, Any]
Laws = Mapping[str, Law]
Samplers = Mapping[str, Sampler]

# Mean 0 and variance 1, few values: every outcome can be enumerated.
ENUMERABLE: Laws = {
    "signs": {-1: "1/2", 1: "1/2"},
    "lopsided": {"-1/2": "4/5", 2: "1/5"},
    "rare": {-3: "1/18", 0: "8/9", 3: "1/18"},
}
SAMPLED: Samplers = {"normal": normal, "uniform": uniform, "signs": sign, "Student t5": student}


@LEDGER.claim(
    3,
    title="q.k has variance d_k",
    statement="If the components of q and k are independent with mean 0 and variance 1, then q.k has mean 0 and "
    "variance d_k.",
    source=f'{PAPER}, section 3.2.1, footnote 4: with such components the dot product "has mean 0 and variance d_k"',
    method="Every outcome enumerated in fractions for laws of a few values, d_k up to 64; random q and k of four laws "
    "up to d_k = 4096.",
)
def score_moments(
    sampling: Sampling,
    laws: Laws = ENUMERABLE,
    samplers: Samplers = SAMPLED,
    small: Sequence[int] = (1, 2, 3, 8, 64),
    large: Sequence[int] = (16, 4096),
) -> Iterator[Comparison]:
    """laws map values to probabilities; samplers draw components."""
    for name, law in laws.items():
        exact = {d_k: exact_score_moments(d_k, law) for d_k in small if d_k <= 8 or len(law) == 2}
        far = max(abs(moments["mean"]) for moments in exact.values())
        off = max(abs(moments["variance"] - d_k) for d_k, moments in exact.items())
        until = f"{name}, d_k up to {max(exact)}"
        yield Comparison(f"{until}: |mean|", float(far), "=", 0.0)
        yield Comparison(f"{until}: |variance - d_k|", float(off), "=", 0.0)
    for number, (name, sampler) in enumerate(samplers.items()):
        for d_k in large:
            rng = generator(sampling.seed, 3, number, d_k)
            # In each group 8 queries meet 8 keys: 64 scores for 16 vectors drawn. Narrow ones are cheap: more of them.
            shape = (max(4, 512 // d_k) * sampling.groups, 8, d_k)
            scores = np.matmul(sampler(rng, shape), np.swapaxes(sampler(rng, shape), -1, -2))
            yield _equal(f"{name}, d_k = {d_k}: mean / sqrt(d_k)", over_groups(scores / math.sqrt(d_k)), 0.0)
            squares = scores.astype(np.float64) ** 2
            yield _equal(f"{name}, d_k = {d_k}: variance / d_k", over_groups(squares / d_k), 1.0)


def _equal(text: str, estimate: tuple[float, float], predicted: float, **more: Any) -> Comparison:
    """A number that was drawn and must be equal to another one."""
    return estimated(text, estimate, "=", predicted, slack=EQUAL, choice=EQUAL_IS, **more)


@LEDGER.claim(
    4,
    title="q_i k_i has variance 1",
    statement="Each product q_i k_i has mean 0 and variance 1.",
    source=f"{PAPER}, section 3.2.1, footnote 4; {COMMON}",
    method="As for claim 3, with a single component.",
)
def product_moments(sampling: Sampling, laws: Laws = ENUMERABLE, samplers: Samplers = SAMPLED) -> Iterator[Comparison]:
    """laws map values to probabilities; samplers draw components."""
    for name, law in laws.items():
        moments = exact_score_moments(1, law)
        yield Comparison(f"{name}: mean", float(moments["mean"]), "=", 0.0)
        yield Comparison(f"{name}: variance", float(moments["variance"]), "=", 1.0)
    for number, (name, sampler) in enumerate(samplers.items()):
        rng, shape = generator(sampling.seed, 4, number), (sampling.groups, 8192)
        products = sampler(rng, shape).astype(np.float64) * sampler(rng, shape)
        yield _equal(f"{name}: mean", over_groups(products), 0.0)
        yield _equal(f"{name}: variance", over_groups(products**2), 1.0)


@LEDGER.claim(
    17,
    title="q, k start at variance 1",
    statement="Weights start with mean 0 and variance 1, and so q and k do too.",
    source=COMMON,
    method="Random weights of variance 1 times random inputs of variance 1; new weights for every group. Beside it "
    "weights of variance 1/d_model (scaled by fan-in), which do give such q and k, and are not what the claim says.",
)
def initial_weights(
    sampling: Sampling,
    d_model: int = 256,
    d_k: int = 64,
    fan_in: Callable[[int], float] = lambda d_model: 1 / d_model,
) -> Iterator[Comparison]:
    """fan_in gives the variance of a weight of a layer with that many inputs."""
    component, score = _projected(sampling, d_model, d_k, 1.0)
    otherwise = (
        f"with weights of variance 1, q_i has variance {component[0]:.0f} at d_model = {d_model}; q and k of "
        "variance 1 come from weights of variance 1/d_model"
    )
    yield _equal("unit weights: variance of q_i", component, 1.0, otherwise=otherwise)
    ratio = (score[0] / d_model**2, score[1] / d_model**2)
    yield estimated("unit weights: Var(q.k)/(d_k d_model^2)", ratio, "~", 1.0, role=SHOWN)
    component, score = _projected(sampling, d_model, d_k, fan_in(d_model))
    yield estimated("fan-in weights: variance of q_i", component, "~", 1.0, role=SHOWN)
    yield estimated("fan-in weights: Var(q.k) / d_k", score, "~", 1.0, role=SHOWN)


def _projected(sampling: Sampling, d_model: int, d_k: int, variance: float) -> tuple[tuple[float, float], ...]:
    """Variance of a component of q, and of q.k over d_k, each with its error."""
    rng, count = generator(sampling.seed, 17), 16 * sampling.groups
    width = np.float32(math.sqrt(variance))
    query, key = (
        np.matmul(normal(rng, (count, 16, d_model)), normal(rng, (count, d_model, d_k)) * width) for _ in range(2)
    )
    scores = np.matmul(query, np.swapaxes(key, -1, -2)).astype(np.float64)
    return over_groups(query.astype(np.float64) ** 2), over_groups(scores**2 / d_k)


@LEDGER.claim(
    20,
    title="scaled by sqrt(d_k)",
    statement="Scores are scaled by sqrt(d_k).",
    source=f"{COMMON}; {PAPER}, section 3.2.1, writes 1/sqrt(d_k)",
    method="The variance of the scores divided by sqrt(d_k), and multiplied by it: by the rule, and measured.",
)
def direction(
    sampling: Sampling,
    divided: Callable[[int], float] = lambda d_k: float(rule("sqrt").factor(d_k, None, None)),
    multiplied: Callable[[int], float] = math.sqrt,
    d_ks: Sequence[int] = (16, 256),
) -> Iterator[Comparison]:
    """Both give the factor of the scores."""
    far = max(d_ks)
    wide = multiplied(far) ** 2 * far
    condition = f"if it means that they are divided: multiplied, they have variance {wide:.0f} at d_k = {far}"
    for d_k in d_ks:
        # Four roundings: the root, the quotient, its square, the product.
        exact = divided(d_k) ** 2 * d_k
        yield Comparison(f"divided, d_k = {d_k}: variance", exact, "=", 1.0, slack=1e-15)
        yield _row_variance(f"divided, d_k = {d_k}: measured variance", sampling, d_k, divided(d_k))
        as_multiplied = _row_variance(f"multiplied, d_k = {d_k}: measured variance", sampling, d_k, multiplied(d_k))
        yield replace(as_multiplied, role=LIMITS, otherwise=condition)
        text = f"multiplied, d_k = {d_k}: measured / d_k^2"
        yield replace(_row_variance(text, sampling, d_k, multiplied(d_k) / d_k), role=SHOWN)


def _row_variance(text: str, sampling: Sampling, d_k: int, factor: float) -> Comparison:
    """A row of n keys, centred on its own mean, shows (n - 1)/n of the variance."""
    return _equal(text, over_groups(reading(sampling, d_k, 512, factor).variance * (512 / 511)), 1.0)


_SCORES_SIDE = 64  # queries and keys of a group: 4096 scores from 128 vectors
_REACH, _BINS = 7, 113  # in standard deviations: beyond it nothing is counted or drawn


@dataclass(frozen=True, slots=True)
class ScoresSpec(Spec):
    """groups of 64 Gaussian queries and 64 keys, every query with every key."""

    d_k: tuple[int, ...] = counts((4, 64, 512), 3, 10**5)
    groups: int = a_count(100, 2, 10**6)
    seed: int = a_seed()


def run_scores(spec: ScoresSpec, progress: Progress) -> Iterator[Comparison | Series]:
    """Moments and tails of z = <q, k>/sqrt(d_k), and histograms of z and of <q, k> with their densities."""
    for number, d_k in enumerate(spec.d_k):
        rng = generator(spec.seed, 2, d_k)
        z = np.empty((spec.groups, _SCORES_SIDE, _SCORES_SIDE))
        for group in z:
            query, key = normal(rng, (_SCORES_SIDE, d_k)), normal(rng, (_SCORES_SIDE, d_k))
            # In blocks of 4 queries: BLAS computes such small products without threads, which cost more time than they
            # save.
            group[:] = np.matmul(query.reshape(-1, 4, d_k), key.T).reshape(_SCORES_SIDE, _SCORES_SIDE)
        root, setting = d_k**0.5, {"d_k": d_k}
        z /= root
        yield compare("scaled variance", setting, 1.0, z**2)
        yield compare("scaled fourth moment", setting, 3 + score_excess_kurtosis(d_k), z**4)
        for edge in (1, 2, 3):
            yield compare_share(f"share beyond {edge}", setting, score_tail(edge, d_k, 1 / root), np.abs(z) > edge)
        yield from _histograms(z, d_k)
        progress((number + 1) / len(spec.d_k))


def _histograms(z: Floats, d_k: int) -> Iterator[Series]:
    """Histogram and density, of z and of the unscaled score: the same counts, on another axis."""
    edges = np.linspace(-_REACH, _REACH, _BINS + 1)
    counts, _ = np.histogram(z, edges)
    centres, height = (edges[1:] + edges[:-1]) / 2, counts / z.size / (edges[1] - edges[0])
    curve = np.linspace(-_REACH, _REACH, 225)
    for name, stretch in (("sqrt", 1.0), ("none", d_k**0.5)):
        density = score_density(curve * stretch, d_k, stretch / d_k**0.5)
        for kind, x, y in (("measured", centres * stretch, height / stretch), ("theory", curve * stretch, density)):
            yield Series("density", kind, {"d_k": d_k, "rule": name}, tuple(x.tolist()), tuple(y.tolist()))


def _score_pictures(result: Result) -> list[Picture]:
    wider = "Bars: measured. Lines: the exact density. The larger d_k is, the wider."
    same = "The same scores after the scale: the same width for every d_k."
    return [
        _histogram(result, "none", "Scores without a scale", wider),
        _histogram(result, "sqrt", "Scores times 1/√d_k", same),
    ]


def _histogram(result: Result, rule: str, title: str, caption: str) -> Picture:
    traces = []
    chosen = [series for series in result.series if series.setting["rule"] == rule]
    widest = max((series.setting["d_k"] for series in chosen), default=1)
    for number, counted in enumerate(series for series in chosen if series.kind == "measured"):
        name, colour = f"d_k = {counted.setting['d_k']}", HUES[number % len(HUES)]
        (density,) = (other for other in chosen if other.kind == "theory" and other.setting == counted.setting)
        traces.append(
            bars(
                counted.x, counted.y, name, colour, legendgroup=name, opacity=0.4, width=counted.x[1] - counted.x[0],
                hovertemplate="measured %{y:.3g}", showlegend=False,
            )
        )  # fmt: skip
        traces.append(line(density.x, density.y, name, colour, legendgroup=name, hovertemplate="theory %{y:.3g}"))
    reach = 4.5 * float(widest) ** 0.5 if rule == "none" else 4.5
    height = POWERS | {"range": [-5, 0]} if rule == "none" else {"rangemode": "tozero"}
    figure = plot(
        traces, "score", "density", barmode="overlay", bargap=0, xaxis={"range": [-reach, reach]}, yaxis=height
    )
    return Picture(f"scores-{rule}", title, caption, figure)


register(
    Experiment(
        name="scores",
        place=2,
        spec=ScoresSpec,
        run=run_scores,
        seconds=0.2,
        heading="Scores spread out as d_k grows",
        text="For a given query, the scores of a row are exactly Gaussian. Their standard deviation is the length of "
        "the query, which is close to √d_k. Dividing by √d_k gives every d_k the same standard deviation, 1.",
        formula=SCALED,
        pictures=_score_pictures,
        quick={"groups": 30},
        full={"d_k": (4, 16, 64, 512), "groups": 1000},
    )
)
