"""Dot products grow: the law of the scores, measured and told, and what happens where the premise fails."""

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rootdk.attention import measure
from rootdk.lab.checks import sampler
from rootdk.lab.checks.sampler import compare
from rootdk.lab.drawing import COLOURS, GREY, bars, line, plot
from rootdk.lab.explorer.chapter import Chapter, Control, Figure, View, number, written
from rootdk.lab.explorer.shared import RULES, SEED, d_k_knob
from rootdk.lab.formulas import SCALED
from rootdk.scaling import rule
from rootdk.theory import row_variance, score_density, score_variance

# 16 independent groups give the standard error; 8 queries and 24 keys each are 3072 scores from few enough vectors.
_GROUPS, _QUERIES, _KEYS = 16, 8, 24
_LAWS = {"normal": sampler.normal, "sign": sampler.sign, "uniform": sampler.uniform, "student": sampler.student}
_LAW_LABELS = ("normal", "sign: -1 or 1", "uniform", "heavy tails: Student's t, 5 degrees of freedom")


def compute(values: Mapping[str, Any]) -> View:
    """3072 scores, their histogram before and after the scale, and the variance that theory gives them."""
    d_k, factor = values["d_k"], rule(values["rule"]).factor(values["d_k"], None, None)
    mean, whole, inside = _theory(values)
    query, key = _vectors(values)
    scores = np.matmul(query, key.transpose(0, 2, 1)).astype(np.float64)
    reading = measure(query, key, np.ones((_GROUPS, _KEYS, 1), np.float32), scale="none")[1]
    spread = compare("variance of all", {}, whole, (scores - mean) ** 2)
    # A row about its own mean shows (n - 1)/n of the variance.
    felt = compare("inside a row", {}, inside, np.asarray(reading.variance, np.float64) * (_KEYS / (_KEYS - 1)))
    square = factor * factor
    numbers = (
        number("variance", "variance of q·k", spread.measured, "measured"),
        number("variance_error", "its standard error", spread.standard_error, "measured", 2),
        number("variance_theory", "variance of q·k", whole, "theory"),
        number("premise", "times the d_k of the premise", whole / d_k, "theory"),
        number(
            "felt",
            "variance inside a row, scaled: what softmax feels",
            square * float(felt.measured or 0.0),
            "measured",
        ),
        number("felt_theory", "variance inside a row, scaled", square * inside, "theory"),
    )
    figures = tuple(
        _histogram(name, title, scores * by, values, mean * by, whole * by * by, by, reach)
        for name, title, by, reach in (("scores", "q·k", 1.0, 100.0), ("scaled", "After the scale", factor, 5.0))
    )
    return View(figures, numbers, _python(values))


@lru_cache(maxsize=4)
def _drawn(law: str, d_k: int, seed: int) -> tuple[tuple[NDArray[Any], NDArray[Any]], ...]:
    """(own, shared) of the queries and of the keys: kept, so that dragging a mean or a correlation draws nothing."""
    rng = np.random.default_rng(seed)
    return tuple(
        (_LAWS[law](rng, (_GROUPS, count, d_k)), rng.standard_normal((_GROUPS, count, 1), np.float32))
        for count in (_QUERIES, _KEYS)
    )


def _vectors(values: Mapping[str, Any]) -> list[NDArray[Any]]:
    """Queries and keys: a part of its own in each component, a part that all components of a vector share, a mean."""
    found = []
    for whose, (own, shared) in zip(
        ("query", "key"), _drawn(values["law"], values["d_k"], values["seed"]), strict=True
    ):
        r, mean = values[f"correlation_{whose}"], np.float32(values[f"mean_{whose}"])
        found.append(np.float32((1 - r) ** 0.5) * own + np.float32(r**0.5) * shared + mean)
    return found


def _theory(values: Mapping[str, Any]) -> tuple[float, float, float]:
    """Mean, variance, and variance inside a row of q·k, in the basis where nothing is correlated.

    S = (1 - r) I + r 1 1' has the eigenvalue 1 + (d - 1) r along (1, ..., 1), where the mean lies too, and 1 - r
    across. So d 1 x 1 problems are added up, and not one of d x d: that takes 0.1 s at d = 1024.
    """
    d_k, r_query, r_key = values["d_k"], values["correlation_query"], values["correlation_key"]
    root = math.sqrt(d_k)
    m_query, m_key = root * values["mean_query"], root * values["mean_key"]
    along = [[1 + (d_k - 1) * r_query]], [[1 + (d_k - 1) * r_key]]
    across = (d_k - 1) * float(score_variance([[1 - r_query]], [[1 - r_key]]))
    whole = float(score_variance(*along, m_query, m_key)) + across
    return m_query * m_key, whole, float(row_variance(*along, m_query)) + across


def _histogram(
    name: str,
    title: str,
    z: NDArray[Any],
    values: Mapping[str, Any],
    mean: float,
    variance: float,
    by: float,
    reach: float,
) -> Figure:
    sigma = math.sqrt(variance)
    width = 0.25 * sigma
    if values["law"] == "sign":
        # Products of signs are 2 apart: bins that hold a whole number of them, or the histogram would be a comb.
        width = 2 * by * max(1, round(width / (2 * by)))
    steps = math.ceil(5 * sigma / width)
    edges = mean + width * (np.arange(-steps, steps + 2) - 0.5)
    counts, _ = np.histogram(z, edges)
    centres, height = (edges[1:] + edges[:-1]) / 2, counts / z.size / width
    curve = mean + sigma * np.linspace(-5, 5, 161)
    told, density = _density(values, curve, mean, sigma, by)
    colour = COLOURS["none" if name == "scores" else values["rule"]]
    half = max(reach, abs(mean) + 4 * sigma)
    drawn = plot(
        [bars(centres, height, "measured", colour, opacity=0.45, width=width), line(curve, density, told, GREY)],
        "score",
        "density",
        bargap=0,
        xaxis={"range": [-half, half]},
        yaxis={"rangemode": "tozero"},
    )
    share = float((np.abs(z - mean) < sigma).mean())
    text = (
        f"Histogram of {z.size} scores around {written(mean, 3)}, standard deviation {written(sigma, 3)} by theory; "
        f"{share:.0%} of them are nearer to the middle than that."
    )
    return Figure(name, title, drawn, text)


def _density(values: Mapping[str, Any], x: Any, mean: float, sigma: float, by: float) -> tuple[str, Any]:
    plain = not any(values[name] for name in ("correlation_query", "correlation_key", "mean_query", "mean_key"))
    if values["law"] == "normal" and plain:
        return "theory: exact density", score_density(x, values["d_k"], by)
    # For other components there is no simple density; how far the bars are from this curve is worth seeing.
    return "normal law of that variance", np.exp(-(((x - mean) / sigma) ** 2) / 2) / (sigma * math.sqrt(2 * math.pi))


def _python(values: Mapping[str, Any]) -> str:
    d_k, own, shared = values["d_k"], "np.float32((1 - {r}) ** 0.5)", "np.float32({r} ** 0.5)"
    lines = []
    for name, whose, count in (("q", "query", _QUERIES), ("k", "key", _KEYS)):
        r = values[f"correlation_{whose}"]
        lines += [
            f"{name} = {own.format(r=r)} * {values['law']}(rng, ({_GROUPS}, {count}, {d_k}))",
            f"{name} += {shared.format(r=r)} * rng.standard_normal(({_GROUPS}, {count}, 1), np.float32)",
            f"{name} += np.float32({values[f'mean_{whose}']})",
        ]
    vectors = "\n".join(lines)
    return f"""\
import numpy as np
import rootdk
from rootdk.lab.checks.sampler import {values["law"]}
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
factor = rootdk.scaling.rule("{values["rule"]}").factor({d_k}, None, None)
print("variance_theory", whole)
print("premise", whole / {d_k})
print("felt_theory", factor**2 * inside)
reading = rootdk.measure(q, k, np.ones(({_GROUPS}, {_KEYS}, 1), np.float32), scale="none")[1]
print("felt", factor**2 * reading.variance.mean(dtype=float) * {_KEYS} / {_KEYS - 1})
"""


CHAPTER = Chapter(
    id="growth",
    title="Dot products grow",
    formula=SCALED,
    to_try="Drag d_k from 4 to 1024; then give the components a correlation, or the queries a mean.",
    to_see="Without the scale the histogram widens like √d_k; with 1/√d_k it keeps its width, whatever the law of the "
    "components, until the premise fails.",
    said="The components of q and k are independent with mean 0 and variance 1, so q·k has variance d_k.",
    true="The step is exact for every law of the components; but components that correlate in q and in k widen the "
    "scores beyond d_k, and so does a mean of the queries, while a mean of the keys moves whole rows, which softmax "
    "ignores.",
    controls=(
        d_k_knob(64),
        RULES,
        Control("law", "law of the components", "choice", "normal", choices=tuple(_LAWS), labels=_LAW_LABELS),
        Control("correlation_query", "correlation inside a query", "float", 0.0, 0.0, 1.0, 0.01),
        Control("correlation_key", "correlation inside a key", "float", 0.0, 0.0, 1.0, 0.01),
        Control("mean_query", "mean of the queries", "float", 0.0, -2.0, 2.0, 0.05),
        Control("mean_key", "mean of the keys", "float", 0.0, -2.0, 2.0, 0.05),
        SEED,
    ),
    compute=compute,
)
