"""One score: the experiments "variance" and "scores", and claims 3, 4, 17 and 20, enumerated and drawn.

"variance" is about mean and variance; "scores" about the whole law, nearly Gaussian for large d_k, with a width of
sqrt(d_k) until scaled.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from rootdk.lab.drawing import GREY, HUES, POWERS, Picture, bars, grouped_by, level, line, plot, points, ticks_at
from rootdk.lab.formulas import SCALED, SQUARE
from rootdk.scaling import rule
from rootdk.theory import exact_score_moments, score_density, score_excess_kurtosis, score_tail

from .comparison import EQUAL, EQUAL_IS, LIMITS, SHOWN, Comparison, Parameters, Result, Series
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


def run_variance(spec: VarianceSpec, progress: Progress) -> Result:
    """Var <q, k> = d_k and E <q, k> = 0, measured on every pair of a group."""
    comparisons: list[Comparison] = []
    pairs = [(law, d_k) for law in spec.laws for d_k in spec.d_k]
    cost = [d_k for _, d_k in pairs]
    for number, (law, d_k) in enumerate(pairs):
        rng = generator(spec.seed, 1, list(LAWS).index(law), d_k)
        parts = []
        for groups in chunks(max(2, math.ceil(spec.rows / _SIDE**2)), 2 * _SIDE * d_k):
            query, key = draw(rng, law, (groups, _SIDE, d_k)), draw(rng, law, (groups, _SIDE, d_k))
            parts.append(np.matmul(query, key.transpose(0, 2, 1)).astype(np.float64))
        scores = np.concatenate(parts)
        setting: Parameters = {"d_k": d_k, "law": law}
        comparisons.append(compare("score mean", setting, 0.0, scores))
        comparisons.append(compare("score variance", setting, d_k, scores**2))
        progress(sum(cost[: number + 1]) / sum(cost))
    return Result("variance", asdict(spec), tuple(comparisons))


def _variance_pictures(result: Result) -> list[Picture]:
    return [_against_d_k(result), _over_d_k(result)]


def _against_d_k(result: Result) -> Picture:
    chosen = result.select("score variance")
    sizes = sorted({float(comparison.setting["d_k"]) for comparison in chosen})
    traces = [line(sizes, sizes, "theory: d_k", GREY)]
    for number, (law, of_law) in enumerate(grouped_by(chosen, "law").items()):
        marker = {"color": HUES[number], "size": 7 + 5 * number, "symbol": "circle-open", "line": {"width": 2}}
        x, y = [comparison.setting["d_k"] for comparison in of_law], [comparison.measured for comparison in of_law]
        traces.append(points(x, y, law, HUES[number], marker=marker, hovertemplate="measured %{y:.4g}"))
    figure = plot(traces, "d<sub>k</sub>", "variance of q·k", xaxis=ticks_at(sizes), yaxis=POWERS)
    caption = "Line: theory. Rings, one inside the other: random pairs of four distributions."
    return Picture("variance", "Variance of a score", caption, figure)


def _over_d_k(result: Result) -> Picture:
    chosen, traces = result.select("score variance"), []
    for number, (law, of_law) in enumerate(grouped_by(chosen, "law").items()):
        sizes = np.array([float(comparison.setting["d_k"]) for comparison in of_law])
        # Side by side, so that the error bars do not overlap.
        x = sizes * 1.12 ** (number - 1.5)
        y = np.array([comparison.measured or 0.0 for comparison in of_law]) / sizes
        errors = np.array([comparison.standard_error or 0.0 for comparison in of_law]) / sizes
        marker = {"color": HUES[number], "size": 7}
        traces.append(points(x, y, law, HUES[number], errors, marker=marker, hovertemplate="measured %{y:.4f}"))
    axis = ticks_at(float(comparison.setting["d_k"]) for comparison in chosen)
    figure = plot(traces, "d<sub>k</sub>", "variance / d<sub>k</sub>", xaxis=axis, shapes=[level(1.0)])
    return Picture(
        "variance-ratio", "The same, divided by d_k", "Measured, with two standard errors. Theory: 1.", figure
    )


register(
    Experiment(
        name="variance",
        place=1,
        question="Is the variance of a score d_k?",
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
            scores = np.matmul(*_vectors(rng, sampler, max(4, 512 // d_k) * sampling.groups, d_k))
            mean, mean_error = over_groups(scores / math.sqrt(d_k))
            variance, error = over_groups(scores.astype(np.float64) ** 2 / d_k)
            yield _drawn(f"{name}, d_k = {d_k}: mean / sqrt(d_k)", mean, 0.0, mean_error)
            yield _drawn(f"{name}, d_k = {d_k}: variance / d_k", variance, 1.0, error)


def _drawn(text: str, measured: float, predicted: float, error: float) -> Comparison:
    """A number that was drawn and is to be equal to another one."""
    return Comparison(text, measured, "=", predicted, error, slack=EQUAL, choice=EQUAL_IS)


def _vectors(rng: np.random.Generator, sampler: Sampler, count: int, d_k: int) -> tuple[Any, Any]:
    return sampler(rng, (count, 8, d_k)), np.swapaxes(sampler(rng, (count, 8, d_k)), -1, -2)


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
        mean, mean_error = over_groups(products)
        variance, error = over_groups(products**2)
        yield _drawn(f"{name}: mean", mean, 0.0, mean_error)
        yield _drawn(f"{name}: variance", variance, 1.0, error)


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
    yield replace(
        _drawn("unit weights: variance of q_i", component[0], 1.0, component[1]),
        otherwise=f"with weights of variance 1, q_i has variance {component[0]:.0f} at d_model = {d_model}; q and k of "
        "variance 1 come from weights of variance 1/d_model",
    )
    ratio, error = (x / d_model**2 for x in score)
    yield Comparison("unit weights: Var(q.k)/(d_k d_model^2)", ratio, "~", 1.0, error, role=SHOWN)
    component, score = _projected(sampling, d_model, d_k, fan_in(d_model))
    yield Comparison("fan-in weights: variance of q_i", component[0], "~", 1.0, component[1], role=SHOWN)
    yield Comparison("fan-in weights: Var(q.k) / d_k", score[0], "~", 1.0, score[1], role=SHOWN)


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
    variance, error = over_groups(reading(sampling, d_k, 512, factor).variance * (512 / 511))
    return _drawn(text, variance, 1.0, error)


_SCORES_SIDE = 64  # queries and keys of a group: 4096 scores from 128 vectors
_REACH, _BINS = 7, 113  # in standard deviations: beyond it nothing is counted or drawn


@dataclass(frozen=True, slots=True)
class ScoresSpec(Spec):
    """groups of 64 Gaussian queries and 64 keys, every query with every key."""

    d_k: tuple[int, ...] = counts((4, 64, 512), 3, 10**5)
    groups: int = a_count(100, 2, 10**6)
    seed: int = a_seed()


def run_scores(spec: ScoresSpec, progress: Progress) -> Result:
    """Moments and tails of z = <q, k>/sqrt(d_k), and histograms of z and of <q, k> with their densities."""
    comparisons: list[Comparison] = []
    series: list[Series] = []
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
        comparisons.append(compare("scaled variance", setting, 1.0, z**2))
        comparisons.append(compare("scaled fourth moment", setting, 3 + score_excess_kurtosis(d_k), z**4))
        comparisons += [
            compare_share(f"share beyond {edge}", setting, score_tail(edge, d_k, 1 / root), np.abs(z) > edge)
            for edge in (1, 2, 3)
        ]
        series += _histograms(z, d_k)
        progress((number + 1) / len(spec.d_k))
    return Result("scores", asdict(spec), tuple(comparisons), tuple(series))


def _histograms(z: Floats, d_k: int) -> list[Series]:
    """Histogram and density, of z and of the unscaled score: the same counts, on another axis."""
    edges = np.linspace(-_REACH, _REACH, _BINS + 1)
    counts, _ = np.histogram(z, edges)
    centres, height = (edges[1:] + edges[:-1]) / 2, counts / z.size / (edges[1] - edges[0])
    curve = np.linspace(-_REACH, _REACH, 225)
    series = []
    for name, stretch in (("sqrt", 1.0), ("none", d_k**0.5)):
        setting: Parameters = {"d_k": d_k, "rule": name}
        density = score_density(curve * stretch, d_k, stretch / d_k**0.5)
        series.append(Series("density", "measured", setting, _listed(centres * stretch), _listed(height / stretch)))
        series.append(Series("density", "theory", setting, _listed(curve * stretch), _listed(density)))
    return series


def _listed(values: object) -> tuple[float, ...]:
    return tuple(np.asarray(values, np.float64).tolist())


def _score_pictures(result: Result) -> list[Picture]:
    wider = "Bars: measured. Lines: the exact density. The larger d_k is, the wider."
    scaled_text = "The same scores after the scale: the same width for every d_k."
    return [
        _histogram(result, "none", "Scores without a scale", wider),
        _histogram(result, "sqrt", "Scores times 1/√d_k", scaled_text),
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
        question="What is the distribution of a score?",
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
