"""Mean and variance of a score: the experiment "variance", and claims 3, 4, 17 and 20, enumerated and drawn."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from rootdk.lab.drawing import GREY, HUES, POWERS, Picture, grouped_by, level, line, plot, points, ticks_at
from rootdk.lab.formulas import SQUARE
from rootdk.scaling import rule
from rootdk.theory import exact_score_moments

from .comparison import EQUAL, EQUAL_IS, LIMITS, SHOWN, Comparison, Parameters, Result
from .experiment import Experiment, Progress, Spec, a_count, a_seed, counts, names, register
from .ledger import COMMON, LEDGER, PAPER
from .sampler import (
    LAWS,
    Sampler,
    Sampling,
    chunks,
    compare,
    draw,
    generator,
    normal,
    over_groups,
    reading,
    sign,
    student,
    uniform,
)

_SIDE = 4  # 16 scores from 8 vectors: drawing them is what takes the time


@dataclass(frozen=True, slots=True)
class VarianceSpec(Spec):
    """At least `rows` scores for every d_k and law, in groups of 4 queries with 4 keys; groups are independent."""

    d_k: tuple[int, ...] = counts((4, 16, 64, 256, 1024), 1, 10**6)
    laws: tuple[str, ...] = names(("gaussian", "uniform", "sign", "laplace"), LAWS)
    rows: int = a_count(20_000, 2, 10**8)
    seed: int = a_seed()


def run(spec: VarianceSpec, progress: Progress) -> Result:
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


def _pictures(result: Result) -> list[Picture]:
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
        # Side by side, so that the bars of error can be told apart.
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
        run=run,
        seconds=0.5,
        heading="The variance of a score is d_k",
        text="The square of a sum of d_k products has d_k squares with the average 1, and d_k (d_k − 1) cross terms "
        "with the average 0. So the variance is d_k, exactly. The components must be independent, with mean 0 and "
        "variance 1; their distribution does not matter.",
        formula=SQUARE,
        pictures=_pictures,
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
    divided: Callable[[int], float] = lambda d_k: rule("sqrt").factor(d_k, None, None),
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
