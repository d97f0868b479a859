"""Softmax sharpens: the weights of one row, and what a typical row is by theory."""

import math
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rootdk.attention import measure
from rootdk.lab.drawing import COLOURS, GREY, bars, level, line, plot, points, ticks_at, upright
from rootdk.lab.explorer.chapter import Chapter, Control, Figure, View, number, written
from rootdk.lab.explorer.shared import (
    RULES,
    SEED,
    d_k_knob,
    keys_in_order,
    keys_knob,
    rows_of,
    rule_words,
    vectors,
    vectors_in_python,
    weights_at,
)
from rootdk.lab.formulas import ATTENTION
from rootdk.reading import Reading
from rootdk.scaling import rule
from rootdk.theory import critical_sigma, softmax_moments
from rootdk.theory.row_law import RowLaw

_MOST_BARS = 512
_beside = ThreadPoolExecutor(2, "theory")


def compute(values: Mapping[str, Any]) -> View:
    """The first of 64 queries in bars; medians over all 64 beside those of theory."""
    d_k, keys, name = values["d_k"], values["keys"], values["rule"]
    factor = float(rule(name).factor(d_k, None, None))
    law = _beside.submit(rows_of, keys, d_k, factor)  # as long as all the rest, and most of it without the lock
    query, key = vectors(values["seed"], keys, d_k)
    reading = measure(query, key, np.ones((keys, 1), np.float32), scale=name)[1]
    order = keys_in_order(query, key) if values["sorted"] else np.arange(keys)
    weights = weights_at(query, key, order[:_MOST_BARS], name)
    sigma = factor * math.sqrt(d_k)
    figures = (_bars(weights, float(reading.top_probability[0]), values), _curve(keys, d_k, name, sigma))
    return View(figures, _numbers(reading, law.result(), keys), _python(values))


def _numbers(reading: Reading, law: RowLaw, keys: int) -> tuple[Any, ...]:
    log_n = math.log(keys)
    return (
        number(
            "entropy", "entropy / ln n, median of 64 rows", np.median(reading.entropy_ratio.astype(float)), "measured"
        ),
        number("entropy_theory", "entropy / ln n of the median row", np.median(law.entropy) / log_n, "theory"),
        number(
            "effective",
            "effective keys, median of 64 rows",
            np.median(reading.effective_keys.astype(float)),
            "measured",
        ),
        number("effective_theory", "effective keys of the median row", 1 / np.median(law.p_squared), "theory"),
        number(
            "top", "largest weight, median of 64 rows", np.median(reading.top_probability.astype(float)), "measured"
        ),
        number("top_theory", "largest weight of the median row", np.median(law.top_probability), "theory"),
        number("saturated", "rows of 64 where one key has over 99 %", int(reading.saturated().sum()), "measured"),
    )


def _bars(weights: NDArray[Any], top: float, values: Mapping[str, Any]) -> Figure:
    keys = values["keys"]
    axis = "keys, largest weight first" if values["sorted"] else "keys, as they come"
    drawn = plot(
        [bars(np.arange(1, len(weights) + 1), weights, "weight", COLOURS[values["rule"]])],
        axis,
        "weight",
        bargap=0.1,
        yaxis={"rangemode": "tozero"},
        shapes=[level(1 / keys)],
    )
    text = (
        f"Weights of one row of {keys} keys: the largest is {written(top, 3)}; equal weights would be "
        f"{written(1 / keys, 3)}, the dotted line."
    )
    if len(weights) < keys:
        text += f" The first {len(weights)} are drawn; they hold {weights.sum():.0%} of the weight."
    return Figure("weights", "The weights of one row", drawn, text)


@lru_cache(maxsize=64)
def _entropy(keys: int) -> tuple[NDArray[Any], NDArray[Any]]:
    sigma = np.geomspace(1 / 32, 32, 16)
    return sigma, np.asarray(softmax_moments(keys, sigma).entropy / math.log(keys))


def _at(keys: int, spreads: NDArray[Any]) -> list[float]:
    """Entropy / ln n at these standard deviations of the scores."""
    found: list[float] = (softmax_moments(keys, spreads).entropy / math.log(keys)).tolist()
    return found


def _curve(keys: int, d_k: int, name: str, sigma: float) -> Figure:
    spread, entropy = _entropy(keys)
    rules = ("dk", "sqrt", "none")
    spreads = np.array([float(rule(one).factor(d_k, None, None)) * math.sqrt(d_k) for one in rules])
    at_rules = dict(zip(rules, zip(spreads.tolist(), _at(keys, spreads), strict=True), strict=True))
    here = at_rules[name][1]
    critical = float(critical_sigma(keys))
    data = [line(spread, entropy, "entropy / ln n", GREY)]
    for one, (x, y) in at_rules.items():
        marker = {"color": COLOURS[one], "size": 12, "symbol": "circle" if one == name else "circle-open"}
        data.append(points([x], [y], rule_words(one, figure=True), COLOURS[one], marker=marker))
    drawn = plot(
        data,
        "standard deviation σ of the scores",
        "entropy / ln n",
        xaxis=ticks_at([1 / 32, 1 / 8, 1 / 2, 2, 8, 32]) | {"ticktext": ["1/32", "1/8", "1/2", "2", "8", "32"]},
        yaxis={"range": [0, 1.05]},
        shapes=[upright(critical)],
    )
    text = (
        f"Entropy over ln n against the spread σ of the scores, by theory. At σ = {written(sigma, 3)} it is "
        f"{written(here, 3)}; past the dotted line, σ = √(2 ln n) = {written(critical, 3)}, a few keys take all."
    )
    return Figure("entropy", "From even to frozen", drawn, text)


def _python(values: Mapping[str, Any]) -> str:
    d_k, keys, name = values["d_k"], values["keys"], values["rule"]
    return f"""\
import numpy as np
import rootdk

{vectors_in_python(values["seed"], keys, d_k)}
reading = rootdk.measure(query, key, np.ones(({keys}, 1), np.float32), scale="{name}")[1]
print("entropy", np.median(reading.entropy_ratio.astype(float)))
print("effective", np.median(reading.effective_keys.astype(float)))
print("top", np.median(reading.top_probability.astype(float)))
print("saturated", reading.saturated().sum())

told = rootdk.predict({d_k}, {keys}, "{name}")
print("entropy_theory", told.median_entropy_ratio[0])
print("effective_theory", told.median_effective_keys[0])
print("top_theory", told.median_top_probability[0])
"""


CHAPTER = Chapter(
    id="sharpening",
    title="Softmax sharpens",
    formula=ATTENTION,
    to_try="Take the scale away and drag d_k; then add keys.",
    to_see="Without the scale the weight moves to a few keys and then to one; with 1/√d_k the picture hardly changes.",
    said="Without the scale one word takes nearly all the weight.",
    true="In some rows: with 1024 keys it takes over 99 % in about half of them at d_k = 512, and in a tenth at "
    "d_k = 64; what decides is the spread of the scores against √(2 ln n).",
    controls=(
        d_k_knob(64),
        RULES,
        keys_knob(128),
        Control("sorted", "largest weight first", "flag", True),
        SEED,
    ),
    compute=compute,
)
