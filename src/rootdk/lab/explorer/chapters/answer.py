"""The answer: the weights of one row under each rule as d_k grows, and why, in two sentences."""

import math
from collections.abc import Mapping
from functools import lru_cache

import numpy as np

from rootdk.lab.answer import answer, one_row
from rootdk.lab.checks.sampler import factor_of
from rootdk.lab.drawing import bars, line, plot, points
from rootdk.lab.explorer import shared
from rootdk.lab.explorer.chapter import Chapter, Figure, Values, View, number
from rootdk.lab.first_look import RULE_WORDS, RULES
from rootdk.lab.formulas import ATTENTION
from rootdk.theory import saturation

_ROW = 16  # keys of the first figure: bars that a person can tell apart


def compute(values: Values, added: tuple[str, ...] = ()) -> View:
    """One row by the operator, the spread of the scores over d_k, and the shares of rows that one key takes."""
    d_k, keys = values["d_k"], values["keys"]
    words = RULE_WORDS | {rule: rule for rule in added}
    colours = {rule: shared.colour(rule, place - len(RULES)) for place, rule in enumerate(words)}
    query, key = shared.vectors(values["seed"], keys, d_k)
    scales = {rule: factor_of(rule, d_k, keys) for rule in words}
    readings = {rule: shared.reading_of(query, key, scale) for rule, scale in scales.items()}
    numbers = []
    for rule, reading in readings.items():
        variance = reading.variance.mean(dtype=float)
        numbers.append(number(f"variance_{rule}", f"{words[rule]}: score variance", variance, "measured"))
    for rule, reading in readings.items():
        label = f"{words[rule]}: rows of one key, which has over 99 % of the weight, as a share of 64"
        numbers.append(number(f"alone_{rule}", label, reading.saturated().mean(), "measured", 3))
    row = one_row(query, key[:_ROW], scales)
    places = np.arange(1, len(row["none"]) + 1)
    data = [bars(places, weights, words[rule], colours[rule]) for rule, weights in row.items()]
    tops = ", ".join(f"{100 * weights[0]:.0f} % under {words[rule]}" for rule, weights in row.items())
    weights = plot(data, "key, by weight", "weight", barmode="group", yaxis={"range": [0, 1]}, xaxis={"dtick": 5})
    text = f"One query at d_k = {d_k} over {len(places)} keys, few enough to be seen. The largest weight is {tops}."
    figures = (Figure("row", "The weights of one row", weights, text), _spread(values, words, colours))
    # For queries of length sqrt(d_k): rootdk.predict also averages over lengths, which takes far longer.
    alone = {rule: _alone(keys, round(scales[rule] * math.sqrt(d_k), 12)) for rule in ("none", "sqrt")}
    shares = {rule: (share, float(readings[rule].entropy_ratio.mean(dtype=float))) for rule, share in alone.items()}
    lead = answer(d_k, keys, shares).replace(" %", "\u00a0%")
    return View(figures, tuple(numbers), _python(values, added), lead=lead)


@lru_cache(maxsize=256)
def _alone(keys: int, sigma: float) -> float:
    """The share of rows of one key. With 1/√d_k sigma is 1 at every d_k, so moving d_k computes it only once."""
    return float(saturation(keys, sigma))


def _spread(values: Values, words: Mapping[str, str], colours: Mapping[str, str]) -> Figure:
    """The standard deviation of the scores over d_k; both axes have powers, so that every power is a straight line."""
    d_k, keys, widths = values["d_k"], values["keys"], (4, 8, 16, 32, 64, 128, 256, 512, 1024)

    def deviation(rule: str, width: int) -> float:
        return abs(factor_of(rule, width, keys)) * math.sqrt(width)

    data = []
    for rule, label in words.items():
        data.append(line(widths, [deviation(rule, width) for width in widths], label, colours[rule]))
        data.append(points([d_k], [deviation(rule, d_k)], "here", colours[rule], showlegend=False))
    ticks = {"type": "log", "tickvals": [4, 16, 64, 256, 1024], "ticktext": ["4", "16", "64", "256", "1024"]}
    figure = plot(data, "d_k", "standard deviation of the scores", xaxis=ticks, yaxis=shared.SPREAD_AXIS)
    spreads = ", ".join(f"{deviation(rule, d_k):.3g} under {label}" for rule, label in words.items())
    return Figure("spread", "How far apart scores are", figure, f"Theory: at d_k = {d_k} it is {spreads}.")


def _python(values: Values, added: tuple[str, ...]) -> str:
    keys, d_k = values["keys"], values["d_k"]
    scales = ", ".join(f'"{rule}": {shared.in_python(rule, d_k, keys)}' for rule in (*RULES, *added))
    return f"""\
{shared.vectors_in_python(values["seed"], keys, d_k)}
for name, scale in {{{scales}}}.items():
    reading = rootdk.measure(query, key, np.ones(({keys}, 1), np.float32), scale=scale)[1]
    print(f"variance_{{name}}", reading.variance.mean(dtype=float))
    print(f"alone_{{name}}", reading.saturated().mean())
"""


CHAPTER = Chapter(
    id="answer",
    title="The answer",
    formula=ATTENTION,
    to_try="Drag d_k from 4 to 1024 and watch the orange bars.",
    to_see="Without a scale, one key takes all the weight as d_k grows. With 1/√d_k the row keeps its shape. With "
    "1/d_k all weights become nearly equal.",
    said="Divide by √d_k, or softmax saturates.",
    true="At the start of training this is true. √d_k is the only power of d_k that keeps the spread of the scores "
    "the same at every width.",
    controls=(
        shared.d_k_knob(512),
        shared.keys_knob(1024, low=_ROW, words="Keys of the sentence above and of the numbers below."),
        shared.SEED,
    ),
    compute=compute,
    adds_rules=True,
)
