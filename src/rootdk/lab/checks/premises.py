"""The experiment "premises": correlated components, a shared mean, heavy tails. The formulas say by how much."""

from dataclasses import asdict, dataclass

import numpy as np

from rootdk.attention import measure
from rootdk.lab.drawing import COLOURS, GREY, Picture, bars, plot, points
from rootdk.theory import correlated_score_variance, score_excess_kurtosis, shared_mean_variance

from .comparison import Comparison
from .experiment import Experiment, Progress, Spec, a_count, a_seed, names, positives, register
from .result import Result
from .sampler import LAWS, Floats, Generator, compare, draw, generator, normal


@dataclass(frozen=True, slots=True)
class PremisesSpec(Spec):
    """groups of rows queries and `keys` keys; every score under 1/sqrt(d_k)."""

    d_k: int = a_count(64, 2, 8192)
    correlation: tuple[float, ...] = positives((0.1, 0.5))
    mean: tuple[float, ...] = positives((0.5, 2.0))
    laws: tuple[str, ...] = names(("laplace", "student_t"), LAWS)
    keys: int = a_count(64, 2, 65_536)
    rows: int = a_count(16, 1, 10**5)
    groups: int = a_count(1000, 2, 10**6)
    seed: int = a_seed()

    def __post_init__(self) -> None:
        Spec.__post_init__(self)
        for correlation in self.correlation:
            correlated_score_variance(self.d_k, correlation)


def run(spec: PremisesSpec, progress: Progress) -> Result:
    """The variance inside a row, which softmax feels, by rootdk.measure; with a mean, of all scores together too."""
    rng = generator(spec.seed, 9)
    d_k, steps = spec.d_k, len(spec.correlation) + 2 * len(spec.mean) + len(spec.laws)
    comparisons: list[Comparison] = []

    def note(comparison: Comparison) -> None:
        comparisons.append(comparison)
        done = len({comparison.setting["premise"] for comparison in comparisons})
        progress(min(1.0, done / steps))

    for r in spec.correlation:
        predicted = float(correlated_score_variance(d_k, r)) / d_k
        note(_inside(spec, f"correlation {r:g}", predicted, _correlated(rng, spec, r)))
    for mean in spec.mean:
        for query_mean, key_mean, whose in ((mean, 0.0, "queries"), (0.0, mean, "keys")):
            whole, inside = map(float, shared_mean_variance(d_k, query_mean, key_mean))
            query, key = _gaussian(rng, spec)
            moved = (query + np.float32(query_mean), key + np.float32(key_mean))
            premise = f"mean {mean:g} in all {whose}"
            note(_inside(spec, premise, inside / d_k, moved))
            # About the known mean 0 of all scores: the query and the key are never shifted together.
            scores = np.matmul(moved[0], moved[1].transpose(0, 2, 1)) / d_k**0.5
            note(compare("variance of all", {"premise": premise, "d_k": d_k}, whole / d_k, scores**2))
    for law in spec.laws:
        query, key = (draw(rng, law, (spec.groups, n, d_k)) for n in (spec.rows, spec.keys))
        note(_inside(spec, f"components: {law}", 1.0, (query, key)))
        if law == "student_t":
            continue  # it has a fourth moment, but no eighth: a mean of fourth powers has no standard error
        kurtosis = score_excess_kurtosis(d_k, LAWS[law].fourth_moment, LAWS[law].fourth_moment)
        scores = np.matmul(query, key.transpose(0, 2, 1)) / d_k**0.5
        note(compare("fourth moment", {"premise": f"components: {law}", "d_k": d_k}, 3 + kurtosis, scores**4))
    return Result("premises", asdict(spec), tuple(comparisons))


def _gaussian(rng: Generator, spec: PremisesSpec) -> tuple[Floats, Floats]:
    return normal(rng, (spec.groups, spec.rows, spec.d_k)), normal(rng, (spec.groups, spec.keys, spec.d_k))


def _correlated(rng: Generator, spec: PremisesSpec, r: float) -> tuple[Floats, Floats]:
    """Any two components of a vector share the part sqrt(r) of a common number."""
    own, common = np.float32((1 - r) ** 0.5), np.float32(r**0.5)
    query, key = (own * part + common * normal(rng, (*part.shape[:-1], 1)) for part in _gaussian(rng, spec))
    return query, key


def _inside(spec: PremisesSpec, premise: str, predicted: float, vectors: tuple[Floats, Floats]) -> Comparison:
    query, key = vectors
    value = np.ones((*key.shape[:-1], 1), np.float32)
    _, reading = measure(query, key, value, scale=spec.d_k**-0.5)
    # A row about its own mean shows (n - 1)/n of the variance.
    variance = np.asarray(reading.variance, np.float64) * (spec.keys / (spec.keys - 1))
    return compare("variance inside a row", {"premise": premise, "d_k": spec.d_k}, predicted, variance)


def _pictures(result: Result) -> list[Picture]:
    chosen = result.select("variance inside a row")[::-1]
    names = [str(comparison.setting["premise"]) for comparison in chosen]
    errors = [2 * (comparison.standard_error or 0.0) for comparison in chosen]
    traces = [
        bars(
            [comparison.predicted for comparison in chosen], names, "theory", GREY, orientation="h", opacity=0.55,
            hovertemplate="theory %{x:.4g}",
        ),
        points(
            [comparison.measured for comparison in chosen], names, "measured", COLOURS["sqrt"],
            marker={"color": COLOURS["sqrt"], "size": 9}, error_x={"type": "data", "array": errors},
            hovertemplate="measured %{x:.4g}",
        ),
    ]  # fmt: skip
    figure = plot(traces, "variance inside a row", "", margin={"l": 8, "r": 12, "t": 8, "b": 48})
    caption = "With 1/√d_k. Where the premise holds, it is 1. Correlation makes it larger; a mean of the keys does not."
    return [Picture("premises", "Variance when the premise is wrong", caption, figure)]


register(
    Experiment(
        name="premises",
        place=8,
        question="What if the premise is wrong?",
        spec=PremisesSpec,
        run=run,
        seconds=1.0,
        heading="When the premise is wrong",
        text="Correlated components, or queries with a mean, make the scores of a row spread further, and 1/√d_k does "
        "not correct that. A mean of the keys moves a whole row, and softmax ignores that. Heavy tails change nothing "
        "as long as the variance is 1.",
        pictures=_pictures,
        quick={"groups": 200},
        full={"correlation": (0.02, 0.1, 0.5), "groups": 5000},
    )
)
