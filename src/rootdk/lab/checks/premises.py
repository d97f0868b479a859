"""Where the premise ends: the experiment "premises", and claim 33.

The experiment has correlated components, a shared mean and heavy tails; formulas say by how much the variance changes.
The claim asks whether training makes q and k dependent, from trained models that come with packages. alignment.json
beside this file has their numbers: `python -m benchmarks.calibration.alignment` measures them again.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from rootdk.attention import measure
from rootdk.lab.drawing import COLOURS, GREY, Picture, bars, plot, points
from rootdk.theory import correlated_score_variance, score_excess_kurtosis, shared_mean_variance

from .comparison import LIMITS, SHOWN, Comparison, Result, estimated
from .experiment import Experiment, Progress, Spec, a_count, a_seed, names, positives, register
from .ledger import LEDGER
from .sampler import LAWS, Floats, Generator, Sampling, compare, draw, generator, normal, over_groups


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


def run(spec: PremisesSpec, progress: Progress) -> Iterator[Comparison]:
    """The variance inside a row, on which softmax depends, by rootdk.measure; with a mean, that of all scores too."""
    rng, d_k = generator(spec.seed, 9), spec.d_k
    premises = len(spec.correlation) + 2 * len(spec.mean) + len(spec.laws)
    shares = iter(np.linspace(0, 1, premises + 1).tolist())
    for r in spec.correlation:
        progress(next(shares))
        predicted = float(correlated_score_variance(d_k, r)) / d_k
        yield _inside(spec, f"correlation {r:g}", predicted, _correlated(rng, spec, r))
    for mean in spec.mean:
        for query_mean, key_mean, whose in ((mean, 0.0, "queries"), (0.0, mean, "keys")):
            progress(next(shares))
            whole, inside = map(float, shared_mean_variance(d_k, query_mean, key_mean))
            query, key = _gaussian(rng, spec)
            shifted = (query + np.float32(query_mean), key + np.float32(key_mean))
            premise = f"mean {mean:g} in all {whose}"
            yield _inside(spec, premise, inside / d_k, shifted)
            # About the known mean 0 of all scores: the query and the key are never shifted together.
            scores = np.matmul(shifted[0], shifted[1].transpose(0, 2, 1)) / d_k**0.5
            yield compare("variance of all", {"premise": premise, "d_k": d_k}, whole / d_k, scores**2)
    for law in spec.laws:
        progress(next(shares))
        query, key = (draw(rng, law, (spec.groups, n, d_k)) for n in (spec.rows, spec.keys))
        yield _inside(spec, f"components: {law}", 1.0, (query, key))
        if law == "student_t":
            continue  # it has a fourth moment, but no eighth: a mean of fourth powers has no standard error
        kurtosis = score_excess_kurtosis(d_k, LAWS[law].fourth_moment, LAWS[law].fourth_moment)
        scores = np.matmul(query, key.transpose(0, 2, 1)) / d_k**0.5
        yield compare("fourth moment", {"premise": f"components: {law}", "d_k": d_k}, 3 + kurtosis, scores**4)


def _gaussian(rng: Generator, spec: PremisesSpec) -> tuple[Floats, Floats]:
    return normal(rng, (spec.groups, spec.rows, spec.d_k)), normal(rng, (spec.groups, spec.keys, spec.d_k))


def _correlated(rng: Generator, spec: PremisesSpec, r: float) -> tuple[Floats, Floats]:
    """Any two components of a vector share the part sqrt(r) of a common number."""
    own_factor, common_factor = np.float32((1 - r) ** 0.5), np.float32(r**0.5)
    query, key = (
        own_factor * part + common_factor * normal(rng, (*part.shape[:-1], 1)) for part in _gaussian(rng, spec)
    )
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


@cache
def trained_models() -> Mapping[str, Any]:
    """By name: d_k, tokens, and of every head, trained and newly made, the numbers that the benchmark explains."""
    models: dict[str, Any] = json.loads(Path(__file__).with_name("alignment.json").read_text("utf-8"))
    return models


@LEDGER.claim(
    33,
    title="training aligns q and k",
    statement="Training makes q and k know of each other: their products no longer cancel, q.k gets a mean, and its "
    "size outgrows that of independent q and k.",
    source="Yang et al. 2022, Tensor Programs V: Tuning Large Neural Networks via Zero-Shot Hyperparameter Transfer, "
    "on 1/d attention (in our words; not checked at the source), https://arxiv.org/abs/2203.03466",
    method="q and k of the same token in trained models that packages bring, and in the same models newly made. tr C, "
    "the mean of q.k that they owe to each other, over the root of tr(S_q S_k), the deviation of the score of "
    "independent q and k: means over heads. And E (q.k)^2 as measured, over that of independent q and k with the same "
    "means and covariances, and over the formula with C: medians over heads, errors by drawing heads anew.",
)
def training_aligns(
    sampling: Sampling, models: Mapping[str, Any] | None = None, kind: str = "trained", deviations: float = 0.5
) -> Iterator[Comparison]:
    """kind is "trained" or "new"; deviations is the limit from which a mean counts."""
    models = models or trained_models()
    half = "half a deviation: of newly made models the mean over heads is 0"
    sizes = {name: _median(sampling, model[kind]["without"]) for name, model in models.items()}
    listed = ", ".join(f"{size:.2f} in {name}" for name, (size, _) in sizes.items())
    condition = (
        f"as far as the mean goes: E (q.k)^2 is not larger by it, but {listed} times that of independent q and k "
        "(median over heads), because the means of q and k point away from each other and what a token shares with "
        "itself makes up for that. A row is made of other tokens, too; and that q.k grows like d_k, models of one "
        "width each cannot show"
    )
    larger = "to be larger at all is the least that outgrowing asks"
    for name, model in models.items():
        mean = over_groups(model[kind]["mean"])
        yield estimated(f"{name}, d_k = {model['d_k']}: mean / deviation", mean, ">", deviations, choice=half)
        yield estimated(f"{name}, newly made: mean / deviation", over_groups(model["new"]["mean"]))
        above = np.array(model[kind]["mean"]) > max(map(abs, model["new"]["mean"]))
        yield Comparison(f"{name}: heads above every new one", float(above.mean()), role=SHOWN)
        yield estimated(f"{name}: m_q.m_k / deviation", over_groups(model[kind]["means"]))
        text = f"{name}: E(q.k)^2 over that of independent q and k"
        yield estimated(text, sizes[name], ">", 1.0, role=LIMITS, otherwise=condition, choice=larger)
        yield estimated(f"{name}: E(q.k)^2 over the formula with C", _median(sampling, model[kind]["with_c"]))


def _median(sampling: Sampling, heads: Sequence[float]) -> tuple[float, float]:
    """The median over heads, and its scatter when as many heads are drawn again."""
    rng, values = generator(sampling.seed, 33), np.array(heads)
    drawn = np.median(rng.choice(values, (400, len(values))), axis=1)
    return float(np.median(values)), float(drawn.std(ddof=1))
