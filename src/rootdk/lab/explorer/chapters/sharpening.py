"""Softmax sharpens: the weights of one row, and what a typical row is by theory."""

import math
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache

import numpy as np

from rootdk.lab.checks.sampler import factor_of
from rootdk.lab.drawing import COLOURS, GREY, bars, level, line, plot, points, upright
from rootdk.lab.explorer import shared
from rootdk.lab.explorer.chapter import Array, Chapter, Control, Figure, Values, View, number, written
from rootdk.lab.explorer.shared import median
from rootdk.lab.first_look import RULE_WORDS
from rootdk.lab.formulas import ATTENTION
from rootdk.theory import critical_sigma, softmax_moments

_MOST_BARS, _MOST_SORTED = 512, 32  # after sorting, all but the first are almost 0
_beside = ThreadPoolExecutor(2, "theory")


def compute(values: Values) -> View:
    """The first of 64 queries in bars; medians over all 64 beside those of theory."""
    d_k, keys, rule = values["d_k"], values["keys"], values["rule"]
    factor = factor_of(rule, d_k, keys)
    # In a thread: it takes as long as everything below, and mostly without the interpreter's lock.
    rows = _beside.submit(shared.rows_of, keys, d_k, factor)
    query, key = shared.vectors(values["seed"], keys, d_k)
    reading = shared.reading_of(query, key, factor)
    figures = (_weights(query, key, values), _curve(keys, d_k, rule))
    law = rows.result()
    numbers = (
        number("entropy", "entropy share, median of 64 rows", median(reading.entropy_ratio), "measured"),
        number("entropy_theory", "entropy share of the median row", median(law.entropy) / math.log(keys), "theory"),
        number("effective", "effective keys, median of 64 rows", median(reading.effective_keys), "measured"),
        number("effective_theory", "effective keys of the median row", 1 / median(law.p_squared), "theory"),
        number("top", "largest weight, median of 64 rows", median(reading.top_probability), "measured"),
        number("top_theory", "largest weight of the median row", median(law.top_probability), "theory"),
        number("saturated", "rows of 64 where one key has over 99 %", int(reading.saturated().sum()), "measured"),
    )
    return View(figures, numbers, _python(values))


def _weights(query: Array, key: Array, values: Values) -> Figure:
    """In bars, from 0 to 1 under every rule, with the weights under the other rules behind."""
    keys = values["keys"]
    order = shared.keys_in_order(query, key) if values["sorted"] else np.arange(keys)
    most = min(keys, _MOST_SORTED if values["sorted"] else _MOST_BARS)
    places = np.arange(1, most + 1)
    weights = {
        rule: shared.weights_at(query, key, order[:most], factor_of(rule, values["d_k"], keys))
        for rule in shared.compared(values["rule"])
    }
    chosen = weights.pop(values["rule"])
    ghosts = [line(places, y, RULE_WORDS[rule], COLOURS[rule], "dot") for rule, y in weights.items()]
    data = [bars(places, chosen, "weight", shared.colour(values["rule"])), *ghosts]
    across = "keys, largest weight first" if values["sorted"] else "keys, in their order"
    figure = plot(data, across, "weight", bargap=0.1, yaxis={"range": [0, 1]}, shapes=[level(1 / keys)])
    text = (
        f"Weights of one row of {keys} keys. The largest is {written(chosen.max(), 3)}. Equal weights would be "
        f"{written(1 / keys, 3)} each, the dotted horizontal line."
    )
    if len(places) < keys:
        text += f" {len(places)} keys are drawn; they have {chosen.sum():.0%} of the weight."
    return Figure("weights", "The weights of one row", figure, text)


@lru_cache(maxsize=256)
def _entropy(keys: int, spreads: tuple[float, ...]) -> list[float]:
    """Entropy / ln n at these standard deviations of the scores."""
    shares: list[float] = (softmax_moments(keys, np.array(spreads)).entropy / math.log(keys)).tolist()
    return shares


_SPREADS = tuple(np.geomspace(1 / 32, 32, 16).tolist())


def _curve(keys: int, d_k: int, rule: str) -> Figure:
    words = shared.compared(rule)
    spreads = {name: abs(factor_of(name, d_k, keys)) * math.sqrt(d_k) for name in words}
    shares = dict(zip(spreads, _entropy(keys, tuple(spreads.values())), strict=True))
    critical = float(critical_sigma(keys))
    data = [line(_SPREADS, _entropy(keys, _SPREADS), "entropy share", GREY)]
    for name, sigma in spreads.items():
        colour = shared.colour(name)
        marker = {"color": colour, "size": 12, "symbol": "circle" if name == rule else "circle-open"}
        data.append(points([sigma], [shares[name]], words[name], colour, marker=marker))
    axes = {"xaxis": shared.SPREAD_AXIS, "yaxis": {"range": [0, 1.05]}}
    figure = plot(data, "standard deviation σ of the scores", "entropy share", shapes=[upright(critical)], **axes)
    text = (
        f"Entropy share (entropy / ln n; 1 is equal weights) by theory. At σ = {written(spreads[rule], 3)} it is "
        f"{written(shares[rule], 3)}. Right of the dotted line, σ = √(2 ln n) = {written(critical, 3)}, a few keys "
        "take all the weight."
    )
    return Figure("entropy", "From equal weights to one key", figure, text)


def _python(values: Values) -> str:
    d_k, keys = values["d_k"], values["keys"]
    rule = shared.in_python(values["rule"], d_k, keys)
    return f"""\
{shared.vectors_in_python(values["seed"], keys, d_k)}
reading = rootdk.measure(query, key, np.ones(({keys}, 1), np.float32), scale={rule})[1]
print("entropy", np.median(reading.entropy_ratio.astype(float)))
print("effective", np.median(reading.effective_keys.astype(float)))
print("top", np.median(reading.top_probability.astype(float)))
print("saturated", reading.saturated().sum())

theory = rootdk.predict({d_k}, {keys}, {rule})
print("entropy_theory", theory.median_entropy_ratio[0])
print("effective_theory", theory.median_effective_keys[0])
print("top_theory", theory.median_top_probability[0])
"""


CHAPTER = Chapter(
    id="sharpening",
    title="Softmax sharpens",
    formula=ATTENTION,
    to_try="Set the scale to none and drag d_k. Then add keys.",
    to_see="Without the scale the weight moves to a few keys, then to one. With 1/√d_k the picture hardly changes.",
    said="Without the scale one word takes nearly all the weight.",
    true="In some rows. With 1024 keys, one key has over 99 % in about half of the rows at d_k = 512, and in a tenth "
    "of them at d_k = 64. It happens when the spread of the scores is larger than √(2 ln n).",
    controls=(
        shared.d_k_knob(64),
        shared.RULES,
        shared.keys_knob(128, low=3),  # of two keys rootdk.predict has medians that are exact, which takes longer
        Control("sorted", "largest weight first", "flag", True),
        shared.SEED,
    ),
    compute=compute,
)
