"""How much of a gradient gets through softmax: the experiment "gradient", and claims 2, 15 and 19.

The mean of a norm and the median of a trace tell opposite stories about an unscaled softmax: most rows have almost no
derivative, and the few in which two keys are nearly equal have a very large one.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rootdk import theory
from rootdk.attention import attention, attention_vjp
from rootdk.lab.drawing import POWERS, Picture, grouped_by, heat, plot, predicted_and_measured, ticks_along
from rootdk.lab.formulas import JACOBIAN

from .comparison import EQUAL, EQUAL_IS, LIMITS, SHOWN, Comparison, Grid, Parameters, Result, estimated
from .experiment import Experiment, Progress, Spec, a_count, a_seed, counts, positives, register, rule_names
from .ledger import COMMON, LEDGER, PAPER
from .moments import ENUMERABLE, Law
from .sampler import Floats, Sampling, compare, compare_ratio, factor_of, generator, normal, over_groups, reading
from .sharpness import KEYS, Scale, root, unscaled


@dataclass(frozen=True, slots=True)
class GradientSpec(Spec):
    """Whole Jacobians, and the flow to the query.

    For each sigma the Jacobians of `jacobians` rows of `logits` Gaussian logits; for each d_k and rule groups x rows
    queries over `keys` keys, with values of width d_k.
    """

    sigma: tuple[float, ...] = positives((0.125, 1.0, 8.0))
    logits: int = a_count(16, 2, 512)
    jacobians: int = a_count(2000, 2, 10**6)
    d_k: tuple[int, ...] = counts((16, 64, 256), 1, 8192)
    rules: tuple[str, ...] = rule_names(("none", "sqrt", "dk"))
    keys: int = a_count(256, 2, 65_536)
    groups: int = a_count(64, 2, 10**5)
    rows: int = a_count(32, 1, 10**5)
    seed: int = a_seed()


def run(spec: GradientSpec, progress: Progress) -> Iterator[Comparison | Grid]:
    """Trace and norm of J from its entries; |do/dq|/|o| from random pull-backs."""
    yield from _jacobians(spec)
    progress(0.2)
    for number, d_k in enumerate(spec.d_k):
        yield from _flow(spec, d_k)
        progress(0.2 + 0.8 * sum(spec.d_k[: number + 1]) / sum(spec.d_k))


def jacobian_of_softmax(logits: Floats) -> Floats:
    """dp/dz of rows of logits, by the operator itself: (rows, n) -> (rows, n, n).

    The keys are the unit vectors, so a query is its own logits; the values are the unit vectors, so the output is the
    weights. Pulling back unit vector i then gives row i of the Jacobian.

    >>> jacobian_of_softmax(np.zeros((1, 2)))
    array([[[ 0.25, -0.25],
            [-0.25,  0.25]]])
    """
    rows, n = logits.shape
    unit = np.broadcast_to(np.eye(n), (rows, n, n))
    # Every query n times, one for each unit vector to pull back.
    query = np.repeat(logits[:, None, :], n, axis=1)
    _, pull_back = attention_vjp(query, unit.copy(), unit.copy(), scale=1.0)
    return np.asarray(pull_back(unit.copy())[0])


def _jacobians(spec: GradientSpec) -> Iterator[Comparison | Grid]:
    x = generator(spec.seed, 5).standard_normal((spec.jacobians, spec.logits))
    moments = theory.softmax_moments(spec.logits, np.array(spec.sigma))
    for number, sigma in enumerate(spec.sigma):
        setting: Parameters = {"sigma": sigma, "keys": spec.logits}
        matrix = jacobian_of_softmax(x * sigma)
        traces, squares = np.trace(matrix, axis1=1, axis2=2), (matrix**2).sum(axis=(1, 2))
        yield compare("Jacobian trace", setting, moments.jacobian_trace[number], traces)
        yield compare("|J|^2", setting, moments.jacobian_norm_squared[number], squares)
        # One row to look at, largest weight first, beside diag(p) - p p'.
        order = np.argsort(-x[0])
        shifted = np.exp(sigma * (x[0][order] - x[0].max()))
        formula = theory.softmax_jacobian(shifted / shifted.sum())
        for kind, shown in (("measured", matrix[0][np.ix_(order, order)]), ("theory", formula)):
            yield Grid("jacobian", kind, setting, tuple(map(tuple, shown.tolist())))


def _flow(spec: GradientSpec, d_k: int) -> Iterator[Comparison]:
    """E |(do/dq)' u|^2 = |do/dq|_F^2 for a standard normal u, so one pull-back per row is enough."""
    rng = generator(spec.seed, 6, d_k)
    shape = {"query": spec.rows, "key": spec.keys, "value": spec.keys, "pulled": spec.rows}
    squares: dict[str, tuple[list[float], list[float]]] = {rule: ([], []) for rule in spec.rules}
    for _ in range(spec.groups):
        drawn = {name: normal(rng, (1, rows, d_k)) for name, rows in shape.items()}
        for rule, (gradients, outputs) in squares.items():
            scale = factor_of(rule, d_k, spec.keys)
            out, pull_back = attention_vjp(drawn["query"], drawn["key"], drawn["value"], scale=scale)
            gradients.append(float((pull_back(drawn["pulled"])[0].astype(np.float64) ** 2).sum(axis=-1).mean()))
            outputs.append(float((out.astype(np.float64) ** 2).sum(axis=-1).mean()))
    for rule, (gradients, outputs) in squares.items():
        predicted = theory.relative_gradient(spec.keys, d_k, factor_of(rule, d_k, spec.keys))
        setting: Parameters = {"d_k": d_k, "rule": rule, "keys": spec.keys}
        yield compare_ratio("|do/dq| / |o|", setting, predicted, gradients, outputs)


def _pictures(result: Result) -> list[Picture]:
    chosen = result.select("|do/dq| / |o|")
    traces, axis = predicted_and_measured(grouped_by(chosen, "rule"), "d_k"), ticks_along(chosen, "d_k")
    figure = plot(traces, "d<sub>k</sub>", "|do/dq| / |o|", xaxis=axis, yaxis=POWERS)
    caption = "Relative to the output. Only 1/√d_k keeps it near 1. "
    caption += "Lines: theory. Markers: measured, with two standard errors."
    flow = Picture("flow", "Gradient that reaches the query", caption, figure)
    return [flow, *(_matrix(grid) for grid in result.grids if grid.kind == "measured")]


def _matrix(grid: Grid) -> Picture:
    """A heat map with the range of its own largest entry: the colour bar is part of the message."""
    places, sigma = list(range(1, len(grid.rows) + 1)), grid.setting["sigma"]
    largest = max(abs(entry) for row in grid.rows for entry in row) or 1.0
    trace = heat(
        grid.rows, (-largest, largest), True, x=places, y=places, zmid=0,
        hovertemplate="∂p<sub>%{y}</sub>/∂z<sub>%{x}</sub> = %{z:.3g}<extra></extra>",
        colorbar={"thickness": 10, "tickformat": ".2g", "outlinewidth": 0},
    )  # fmt: skip
    axes = {
        "xaxis": {"constrain": "domain", "showgrid": False},
        "yaxis": {"autorange": "reversed", "scaleanchor": "x", "constrain": "domain", "showgrid": False},
    }
    caption = (
        f"∂p/∂z of one row of {len(places)} logits. Largest entry {largest:.2g}; each picture has its own colour range."
    )
    figure = plot([trace], "logit, largest first", "weight", **axes)
    return Picture(f"jacobian-{sigma}", f"Jacobian at σ = {sigma:g}", caption, figure)


register(
    Experiment(
        name="gradient",
        place=4,
        spec=GradientSpec,
        run=run,
        seconds=0.4,
        heading="How much gradient reaches the query",
        text="Two things are measured with the operator's own backward pass: the gradient at the query relative to "
        "the output, and the Jacobian of softmax. Without a scale the gradient is large on average, but nearly 0 in "
        "many rows. "
        "With 1/d_k the Jacobian is fine; the factor before it is small.",
        formula=JACOBIAN,
        pictures=_pictures,
        quick={"jacobians": 500, "d_k": (16, 64), "groups": 32},
        full={"jacobians": 20_000, "d_k": (16, 64, 256, 512), "keys": 512, "groups": 128, "rows": 160},
    )
)


Gradient = Callable[[Any, Any, Any], Any]


@LEDGER.claim(
    2,
    title="unscaled gradients are tiny",
    statement="For large d_k dot products grow large and push the softmax to where its gradients are extremely small.",
    source=f"{PAPER}, section 3.2.1, as a suspicion and without an experiment: "
    '"We suspect that for large values of d_k, the dot products grow large in magnitude, pushing the softmax function '
    'into regions where it has extremely small gradients"',
    method=f"Rows of {KEYS} keys, normal q and k, no scale: variance of the scores, trace of the softmax Jacobian J, "
    "measured; |J| and |do/dq|/|o| as root mean squares over rows, exact.",
)
def gradients_vanish(
    sampling: Sampling, scale: Scale = unscaled, d_ks: Sequence[int] = (16, 64, 256, 1024)
) -> Iterator[Comparison]:
    """scale is what the claim is about: no scale at all."""
    median: dict[int, tuple[float, float]] = {}
    for d_k in d_ks:
        rows = reading(sampling, d_k, KEYS, scale(d_k))
        variance = over_groups(rows.variance * (KEYS / (KEYS - 1)) / d_k)
        yield estimated(f"d_k = {d_k}: score variance / d_k", variance, "=", 1.0, slack=EQUAL, choice=EQUAL_IS)
        median[d_k] = over_groups(rows.jacobian_trace, np.median)
        yield estimated(f"d_k = {d_k}: median tr J", median[d_k])
    largest, smallest = max(d_ks), min(d_ks)
    (trace, error), base = median[largest], median[smallest][0]
    text = f"median tr J, d_k = {largest} / d_k = {smallest}"
    reason = "ten times smaller in the typical row counts as extremely small; with the scale nothing is lost"
    yield Comparison(text, trace / base, "<", 0.1, error / base, choice=reason)
    # With 1/sqrt(d_k) the trace is 1 - e/n and not one row is below.
    dead = over_groups(reading(sampling, largest, KEYS, scale(largest)).jacobian_trace < 0.01)
    reason = "one row in three without a gradient is more than chance; with the scale there is none"
    yield estimated(f"d_k = {largest}: rows with tr J < .01", dead, ">", 1 / 3, choice=reason)
    scales = np.array([[scale(d_k), root(d_k)] for d_k in d_ks])
    sizes = np.array(d_ks)[:, None]
    norm = np.sqrt(theory.attention_moments(KEYS, sizes, scales).jacobian_norm_squared)
    passed = theory.relative_gradient(KEYS, sizes, scales)
    ratios = {name: float(values[-1, 0] / values[-1, 1]) for name, values in (("|J|", norm), ("|do/dq|/|o|", passed))}
    condition = f"if gradient means the trace of J in a typical (median) row; at d_k = {d_ks[-1]} the root mean square "
    condition += "over rows of " + " and of ".join(f"{name} is {ratio:.1f} times" for name, ratio in ratios.items())
    condition += " what it is with the scale"
    for name, ratio in ratios.items():
        text = f"d_k {d_ks[-1]}: {name}, unscaled / scaled"
        reason = "to be smaller at all than with the scale is the least that the claim asks"
        yield Comparison(text, ratio, "<", 1.0, role=LIMITS, otherwise=condition, choice=reason)


@LEDGER.claim(
    15,
    title="most derivatives are tiny",
    statement="Where the weights are skewed most derivatives are tiny.",
    source=COMMON,
    method=f"Rows of {KEYS} keys, normal q and k, d_k = 1024, no scale: trace of the Jacobian J, share of its entries "
    "from 1/1000 on, measured. |J| along the spread sigma of normal scores, exact.",
)
def skewed_rows(
    sampling: Sampling,
    scale: Scale = unscaled,
    d_k: int = 1024,
    spreads: Sequence[float] = (0.25, 0.5, 1, 2, 3, 4, 5, 6, 8, 16, 32, 64),
) -> Iterator[Comparison]:
    """spreads are values of sigma in rising order."""
    trace = over_groups(reading(sampling, d_k, KEYS, scale(d_k)).jacobian_trace, np.median)
    reason = "of the trace of an even row, which is next to 1, a tenth"
    yield estimated("median tr J", trace, "<", 0.1, choice=reason)
    reason = "most is 99 of 100 entries; tiny is below 1/1000, where an entry can reach 1/4"
    live = live_entries(sampling, d_k, KEYS, scale(d_k))
    yield estimated("entries of J from .001 on", live, "<", 0.01, choice=reason)
    yield estimated("the same with 1/sqrt(d_k)", live_entries(sampling, d_k, KEYS, root(d_k)))
    norm = np.sqrt(theory.softmax_moments(KEYS, np.array(spreads)).jacobian_norm_squared)
    top = int(norm.argmax())
    for place in sorted({0, top, len(spreads) - 1}):
        yield Comparison(f"|J| at sigma = {spreads[place]:g}", float(norm[place]), role=SHOWN)
    rising = float((np.diff(norm) > 0).sum())
    condition = (
        "for the typical row and by count: the norm |J| (root mean square) grows with the skew at first, from "
        f"{norm[0]:.3f} at sigma = {spreads[0]:g} to {norm[top]:.3f} at {spreads[top]:g}"
    )
    yield Comparison("steps of sigma at which |J| grows", rising, "=", 0.0, role=LIMITS, otherwise=condition)


@LEDGER.claim(
    19,
    title="derived and not tuned",
    statement="The scale 1/sqrt(d_k) is derived and not tuned.",
    source=COMMON,
    method="Derived would mean: the premise alone, independent components of mean 0 and variance 1, and the demand "
    "that q.k keeps variance 1 at every d_k leave one exponent a in d_k^-a, and none to choose. So a is solved for at "
    "each d_k, from the exact variance. Then from another premise, a correlation between q_i and k_i, with E(q.k)^2 in "
    "place of the variance. Beside it the a that best keeps |do/dq|/|o| at 1, which is our own demand.",
)
def derived(
    _sampling: Sampling,
    exponent: float = 0.5,
    law: Law = ENUMERABLE["signs"],
    d_ks: Sequence[int] = (16, 64, 512),
    correlation: float = 0.5,
    gradient: Gradient = theory.relative_gradient,
    keys: Sequence[int] = (16, 512, 65536),
) -> Iterator[Comparison]:
    """exponent is the one that was derived; law is that of a component, values and probabilities."""
    # The variance of a sum of independent products is d_k times that of one, which is enumerated.
    product = float(theory.exact_score_moments(1, law)["variance"])
    for d_k in d_ks:
        a = math.log(product * d_k) / (2 * math.log(d_k))
        yield Comparison(f"d_k = {d_k}: a that keeps the variance at 1", a, "=", exponent, slack=1e-12)
    aligned = {d_k: _aligned_exponent(d_k, correlation) for d_k in d_ks}
    listed = ", ".join(f"{a:.2f} at d_k = {d_k}" for d_k, a in aligned.items())
    condition = (
        f"from its premise, q and k independent: where q_i and k_i are correlated by {correlation:g}, the same demand "
        f"gives an exponent of {listed}, and towards 1, that is 1/d_k, for large d_k (the argument of muP)"
    )
    reason = (
        "near is 0.02 in the exponent, a factor of 1.15 at d_k = 1024, where the rules that people use differ by 32"
    )
    for d_k, a in aligned.items():
        text = f"d_k = {d_k}, correlation {correlation:g}: a that keeps E(q.k)^2 at 1"
        yield Comparison(text, a, "=", exponent, slack=0.02, role=LIMITS, otherwise=condition, choice=reason)
    for number, (best, flattest, level) in zip(keys, _landing(gradient, (16, 128, 1024), keys), strict=True):
        yield Comparison(f"{number} keys: a that keeps |do/dq|/|o| at 1", best, role=SHOWN)
        yield Comparison(f"{number} keys: a that keeps it equal at every d_k", flattest, role=SHOWN)
        yield Comparison(f"{number} keys: |do/dq|/|o| at a = 1/2", level, role=SHOWN)


def _aligned_exponent(d_k: int, correlation: float) -> float:
    """a of the scale d_k^-a that keeps E(q.k)^2 at 1 where q_i and k_i have that correlation."""
    unit, cross = np.eye(d_k), correlation * np.eye(d_k)
    square = float(theory.score_variance(unit, unit, cross_covariance=cross)) + float(theory.score_mean(cross)) ** 2
    return math.log(square) / (2 * math.log(d_k))


def _landing(gradient: Gradient, d_ks: Sequence[int], keys: Sequence[int]) -> list[tuple[float, float, float]]:
    """For each number of keys: the best a, the a at which ln d_k explains nothing, and the level at 1/sqrt(d_k)."""
    sizes, counts = np.array(d_ks, np.float64), np.array(keys)[:, None, None]
    coarse = np.linspace(0, 1, 5)
    logs = np.log(gradient(counts, sizes, sizes ** -coarse[:, None]))
    landed = []
    for number, table in zip(keys, logs, strict=True):
        near = coarse[int((table**2).sum(axis=1).argmin())]
        fine = near + np.linspace(-0.125, 0.125, 5)
        values = np.log(gradient(number, sizes, sizes ** -fine[:, None]))
        # Between the five points every d_k has its own smooth curve; a polynomial of degree 4 goes through them.
        a = np.linspace(fine[0], fine[-1], 2001)
        curves = np.stack([np.polyval(np.polyfit(fine - near, column, 4), a - near) for column in values.T])
        slope = np.polyfit(np.log(sizes), curves, 1)[0]
        level = float(np.exp(np.mean(np.log(gradient(number, sizes, sizes**-0.5)))))
        landed.append((float(a[(curves**2).sum(axis=0).argmin()]), float(a[np.abs(slope).argmin()]), level))
    return landed


_ROWS_OF_WEIGHTS = 4  # per group: a row has n x n derivatives


def live_entries(sampling: Sampling, d_k: int, keys: int, scale: float, threshold: float = 1e-3) -> tuple[float, float]:
    """The share of the entries of diag(p) - p p' that reach the threshold in size, and its standard error."""
    rng, count = generator(sampling.seed, d_k, keys, 15), sampling.groups
    query, key = normal(rng, (count, _ROWS_OF_WEIGHTS, d_k)), normal(rng, (count, keys, d_k))
    value = np.broadcast_to(np.eye(keys, dtype=np.float32), (count, keys, keys))
    shares = []
    for weights in np.sort(attention(query, key, value, scale=scale), axis=-1):
        diagonal = (weights * (1 - weights) >= threshold).sum(axis=-1)
        # p_i p_j >= threshold needs both to be at least the threshold, and there are at most 1/threshold such keys.
        top = weights[:, -min(keys, math.ceil(1 / threshold)) :]
        pairs = (top[:, :, None] * top[:, None, :] >= threshold).sum(axis=(-1, -2)) - (top * top >= threshold).sum(-1)
        shares.append((diagonal + pairs) / keys**2)
    return over_groups(shares)
