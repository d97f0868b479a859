"""Dot products grow: the law of the scores, measured and computed, and what happens where the premise fails."""

import math
from functools import lru_cache
from typing import Any

import numpy as np

from rootdk.lab.checks import sampler
from rootdk.lab.checks.sampler import factor_of
from rootdk.lab.drawing import COLOURS, GREY, bars, line, plot
from rootdk.lab.explorer.chapter import Array, Chapter, Control, Figure, Values, View, choice, number, written
from rootdk.lab.explorer.shared import RULES, SEED, colour, d_k_knob, factor_in_python, reading_of
from rootdk.lab.first_look import RULE_WORDS
from rootdk.lab.formulas import SCALED
from rootdk.theory import row_variance, score_density, score_variance

# 16 independent groups give the standard error; 8 queries and 24 keys each are 3072 scores from few enough vectors.
_GROUPS, _QUERIES, _KEYS = 16, 8, 24
# A law of the components: how it is drawn here, what a person reads, and the same draw as a line of NumPy.
_LAWS = {
    "normal": (sampler.normal, "normal", "rng.standard_normal({shape}, np.float32)"),
    "sign": (sampler.sign, "sign: -1 or 1", "np.float32(rng.integers(0, 2, {shape}, np.int8) * 2 - 1)"),
    "uniform": (sampler.uniform, "uniform", "(rng.random({shape}, np.float32) * 2 - 1) * np.float32(3**0.5)"),
    "student": (
        sampler.student,
        "heavy tails: Student's t, 5 degrees of freedom",
        "(1.5 / rng.standard_gamma(2.5, {shape}, np.float32)) ** 0.5 * rng.standard_normal({shape}, np.float32)",
    ),
}
_PREMISES = ("correlation_query", "correlation_key", "mean_query", "mean_key")


def compute(values: Values) -> View:
    """3072 scores, their histogram before and after the scale, and the variance that theory gives them."""
    d_k = values["d_k"]
    factor = factor_of(values["rule"], d_k, _KEYS)
    mean, whole, inside = _theory(values)
    query, key = _vectors(values)
    scores = np.matmul(query, key.transpose(0, 2, 1)).astype(np.float64)
    spread = sampler.compare("variance of all", {}, whole, (scores - mean) ** 2)
    # A row about its own mean shows (n - 1)/n of the variance.
    row = reading_of(query, key, "none").variance.mean(dtype=float) * _KEYS / (_KEYS - 1)
    numbers = (
        number("variance", "variance of q·k", spread.measured, "measured"),
        number("variance_error", "its standard error", spread.standard_error, "measured", 2),
        number("variance_theory", "variance of q·k", whole, "theory"),
        number("premise", "variance of q·k, divided by d_k", whole / d_k, "theory"),
        number("inside", "variance inside a row after the scale: what softmax gets", factor**2 * row, "measured"),
        number("inside_theory", "variance inside a row after the scale", factor**2 * inside, "theory"),
    )
    law = mean, whole
    return View((_before(scores, values, law), _after(scores, values, law, factor)), numbers, _python(values))


@lru_cache(maxsize=4)
def _parts(law: str, d_k: int, seed: int) -> tuple[tuple[Array, Array], ...]:
    """(own, shared) of the queries and of the keys: kept, so that dragging a mean or a correlation draws nothing."""
    rng = np.random.default_rng(seed)
    return tuple(
        (_LAWS[law][0](rng, (_GROUPS, count, d_k)), rng.standard_normal((_GROUPS, count, 1), np.float32))
        for count in (_QUERIES, _KEYS)
    )


def _vectors(values: Values) -> list[Array]:
    """Queries and keys: a part of its own in each component, a part that all components of a vector share, a mean."""
    parts = _parts(values["law"], values["d_k"], values["seed"])
    vectors = []
    for name, (own, shared) in zip(("query", "key"), parts, strict=True):
        r, mean = values[f"correlation_{name}"], np.float32(values[f"mean_{name}"])
        vectors.append(np.float32((1 - r) ** 0.5) * own + np.float32(r**0.5) * shared + mean)
    return vectors


def _theory(values: Values) -> tuple[float, float, float]:
    """Mean, variance, and variance inside a row of q·k, in the basis where nothing is correlated.

    S = (1 - r) I + r 1 1' has the eigenvalue 1 + (d - 1) r along (1, ..., 1), where the mean lies too, and 1 - r
    across. So d problems of 1 x 1 are added up, instead of one of d x d, which takes 0.1 s at d = 1024.
    """
    d_k, r_query, r_key = values["d_k"], values["correlation_query"], values["correlation_key"]
    root = math.sqrt(d_k)
    m_query, m_key = root * values["mean_query"], root * values["mean_key"]
    along = [[1 + (d_k - 1) * r_query]], [[1 + (d_k - 1) * r_key]]
    across = (d_k - 1) * float(score_variance([[1 - r_query]], [[1 - r_key]]))
    whole = float(score_variance(*along, m_query, m_key)) + across
    return m_query * m_key, whole, float(row_variance(*along, m_query)) + across


_Law = tuple[float, float]  # mean and variance of q·k


def _before(scores: Array, values: Values, law: _Law) -> Figure:
    """On axes that hold every d_k, with the narrowest and the widest law behind: so only the scores move."""
    x = np.linspace(-100, 100, 401)
    ghosts = [line(x, score_density(x, d_k), f"d_k = {d_k}", GREY, "dot") for d_k in (4, 1024)]
    return _histogram("scores", "q·k", scores, values, law, 1.0, COLOURS["none"], ghosts, (100.0, 0.26))


def _after(scores: Array, values: Values, law: _Law, factor: float) -> Figure:
    """On the same axes under every rule, with the same scores under the other rules behind."""
    ghosts = []
    for rule, words in RULE_WORDS.items():
        if rule != values["rule"]:
            x, _, density = _density(values, law, factor_of(rule, values["d_k"], _KEYS))
            ghosts.append(line(x, density, words, COLOURS[rule], "dot"))
    hue = colour(values["rule"])
    return _histogram("scaled", "After the scale", scores, values, law, factor, hue, ghosts, (12.0, 0.55))


def _histogram(
    name: str, title: str, scores: Array, values: Values, law: _Law, by: float,
    hue: str, ghosts: list[dict[str, Any]], axes: tuple[float, float],
) -> Figure:  # fmt: skip
    """Bars of the scores times `by`, the curve of theory, ghosts behind; axes are half the width and the height."""
    z, mean, sigma = scores * by, law[0] * by, math.sqrt(law[1] * by**2)
    width = 0.25 * sigma
    if values["law"] == "sign":
        # Products of signs are 2 apart: bins that hold a whole number of them, else some bins would always be empty.
        width = 2 * by * max(1, round(width / (2 * by)))
    steps = math.ceil(5 * sigma / width)
    edges = mean + width * (np.arange(-steps, steps + 2) - 0.5)
    counts, _ = np.histogram(z, edges)
    heights = counts / z.size / width
    x, curve, density = _density(values, law, by)
    measured = bars((edges[1:] + edges[:-1]) / 2, heights, "measured", hue, opacity=0.45, width=width)
    # Where the premise fails scores may leave the axes; then these grow.
    half = max(axes[0], abs(mean) + 4 * sigma) if any(values[premise] for premise in _PREMISES) else axes[0]
    data = [*ghosts, measured, line(x, density, curve, GREY)]
    across, up = {"range": [-half, half]}, {"range": [0, axes[1]]}
    figure = plot(data, "score", "density", bargap=0, xaxis=across, yaxis=up)
    share = float((np.abs(z - mean) < sigma).mean())
    text = (
        f"Histogram of {z.size} scores. Theory: mean {written(mean, 3)}, standard deviation {written(sigma, 3)} "
        f"({share:.0%} of the scores are nearer to the mean than that)."
    )
    if density.max() > axes[1]:
        text += f" The top of the curve, at {written(density.max(), 3)}, is outside the figure."
    return Figure(name, title, figure, text)


def _density(values: Values, law: _Law, by: float) -> tuple[Array, str, Any]:
    """Places, the name of a curve, and the density there, for scores times `by`."""
    middle, sigma = by * law[0], by * math.sqrt(law[1])
    x = middle + sigma * np.linspace(-5, 5, 161)
    if values["law"] == "normal" and not any(values[premise] for premise in _PREMISES):
        return x, "theory: exact density", score_density(x, values["d_k"], by)
    # For other components there is no simple density; how far the bars are from this curve is worth seeing.
    normal = np.exp(-(((x - middle) / sigma) ** 2) / 2) / (sigma * math.sqrt(2 * math.pi))
    return x, "normal density of the same variance", normal


def _python(values: Values) -> str:
    d_k, lines = values["d_k"], []
    for name, whose, count in (("q", "query", _QUERIES), ("k", "key", _KEYS)):
        r = values[f"correlation_{whose}"]
        law = _LAWS[values["law"]][2].format(shape=f"({_GROUPS}, {count}, {d_k})")
        lines += [
            f"{name} = np.float32((1 - {r}) ** 0.5) * {law}",
            f"{name} += np.float32({r} ** 0.5) * rng.standard_normal(({_GROUPS}, {count}, 1), np.float32)",
            f"{name} += np.float32({values[f'mean_{whose}']})",
        ]
    vectors = "\n".join(lines)
    return f"""\
import numpy as np
import rootdk
from rootdk.theory import row_variance, score_variance

rng = np.random.default_rng({values["seed"]})
{vectors}
scores = np.matmul(q, k.transpose(0, 2, 1)).astype(float)
by_group = ((scores - {d_k * values["mean_query"] * values["mean_key"]}) ** 2).mean(axis=(1, 2))
print("variance", by_group.mean())
print("variance_error", by_group.std(ddof=1) / {_GROUPS} ** 0.5)

cov_q, cov_k = ((1 - r) * np.eye({d_k}) + r for r in ({values["correlation_query"]}, {values["correlation_key"]}))
whole = score_variance(cov_q, cov_k, {values["mean_query"]}, {values["mean_key"]})
inside = row_variance(cov_q, cov_k, {values["mean_query"]})
scale = {factor_in_python(values["rule"], d_k, _KEYS)}
print("variance_theory", whole)
print("premise", whole / {d_k})
print("inside_theory", scale**2 * inside)
reading = rootdk.measure(q, k, np.ones(({_GROUPS}, {_KEYS}, 1), np.float32), scale="none")[1]
print("inside", scale**2 * reading.variance.mean(dtype=float) * {_KEYS} / {_KEYS - 1})
"""


CHAPTER = Chapter(
    id="growth",
    title="Dot products grow",
    formula=SCALED,
    to_try="Drag d_k from 4 to 1024. Then give the components a correlation, or give the queries a mean.",
    to_see="Without the scale the histogram gets wider, like √d_k. With 1/√d_k its width stays the same for every "
    "distribution of the components, as long as the premise holds.",
    said="The components of q and k are independent with mean 0 and variance 1, so q·k has variance d_k.",
    true="This is exact for every distribution. But correlation inside q and inside k, or a mean of the queries, makes "
    "the variance larger than d_k. A mean of the keys only moves whole rows, and softmax ignores that.",
    controls=(
        d_k_knob(64),
        RULES,
        choice("law", "distribution of the components", {name: label for name, (_, label, _) in _LAWS.items()}),
        Control("correlation_query", "correlation inside a query", "float", 0.0, 0.0, 1.0, 0.01),
        Control("correlation_key", "correlation inside a key", "float", 0.0, 0.0, 1.0, 0.01),
        Control("mean_query", "mean of the queries", "float", 0.0, -2.0, 2.0, 0.05),
        Control("mean_key", "mean of the keys", "float", 0.0, -2.0, 2.0, 0.05),
        SEED,
    ),
    compute=compute,
)  # fmt: skip
