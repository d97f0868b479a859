"""The answer: the weights of one row under each rule as d_k grows, and why, in two sentences."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from rootdk.lab.answer import answer, one_row
from rootdk.lab.drawing import COLOURS, bars, line, plot, points
from rootdk.lab.explorer import shared
from rootdk.lab.explorer.chapter import Chapter, Figure, View, number
from rootdk.lab.first_look import RULE_WORDS, RULES
from rootdk.lab.formulas import ATTENTION
from rootdk.theory import rule_variance

_ROW = 16  # keys of the first figure: bars that a person can tell apart


def compute(values: Mapping[str, Any]) -> View:
    """One row by the operator, the spread of the scores over d_k, and the shares of rows that one key takes."""
    d_k, keys = values["d_k"], values["keys"]
    query, key = shared.vectors(values["seed"], keys, d_k)
    shares, numbers = {}, []
    for rule in RULES:
        reading = shared.reading_of(query, key, rule)
        shares[rule] = float(reading.saturated().mean()), float(reading.entropy_ratio.mean(dtype=float))
        variance = float(reading.variance.mean(dtype=float))
        numbers.append(number(f"variance_{rule}", f"{RULE_WORDS[rule]}: variance of the scores", variance, "measured"))
    for rule in RULES:
        label = f"{RULE_WORDS[rule]}: share of 64 rows where one key has over 99 %"
        numbers.append(number(f"alone_{rule}", label, shares[rule][0], "measured", 3))
    row = one_row(query, key[:_ROW])
    places = np.arange(1, len(row["none"]) + 1)
    data = [bars(places, row[rule], RULE_WORDS[rule], COLOURS[rule]) for rule in RULES]
    tops = ", ".join(f"{100 * weights[0]:.0f} % under {RULE_WORDS[rule]}" for rule, weights in row.items())
    weights = plot(data, "key, by weight", "weight", barmode="group", yaxis={"range": [0, 1]}, xaxis={"dtick": 5})
    text = f"One query over {len(places)} keys at d_k = {d_k}. The largest weight is {tops}."
    figures = (Figure("row", "The weights of one row", weights, text), _spread(d_k))
    return View(figures, tuple(numbers), _python(values), lead=answer(d_k, keys, shares).replace(" %", "\u00a0%"))


def _spread(d_k: int) -> Figure:
    """The standard deviation of the scores over d_k; both axes have powers, so that every rule is a straight line."""
    widths = (4, 1024)
    data = []
    for rule in RULES:
        data.append(line(widths, [_deviation(rule, width) for width in widths], RULE_WORDS[rule], COLOURS[rule]))
        data.append(points([d_k], [_deviation(rule, d_k)], "here", COLOURS[rule], showlegend=False))
    ticks = {"type": "log", "tickvals": [4, 16, 64, 256, 1024], "ticktext": ["4", "16", "64", "256", "1024"]}
    figure = plot(data, "d_k", "standard deviation of the scores", xaxis=ticks, yaxis=shared.SPREAD_AXIS)
    spreads = ", ".join(f"{_deviation(rule, d_k):.3g} under {RULE_WORDS[rule]}" for rule in RULES)
    return Figure("spread", "How far apart scores are", figure, f"Theory: at d_k = {d_k} it is {spreads}.")


def _deviation(rule: str, d_k: int) -> float:
    return math.sqrt(rule_variance(rule, d_k))


def _python(values: Mapping[str, Any]) -> str:
    keys = values["keys"]
    return f"""\
{shared.vectors_in_python(values["seed"], keys, values["d_k"])}
for rule in {RULES}:
    reading = rootdk.measure(query, key, np.ones(({keys}, 1), np.float32), scale=rule)[1]
    print(f"variance_{{rule}}", reading.variance.mean(dtype=float))
    print(f"alone_{{rule}}", reading.saturated().mean())
"""


CHAPTER = Chapter(
    id="answer",
    title="The answer",
    formula=ATTENTION,
    to_try="Drag d_k from 4 to 1024 and watch the orange bars.",
    to_see="Without a scale one key takes everything as d_k grows; under 1/√d_k the row keeps its shape; under 1/d_k "
    "all weights become alike.",
    said="Divide by √d_k, or softmax saturates.",
    true="At the start of training, yes: √d_k is the one power of d_k that keeps the spread of the scores where it is.",
    controls=(shared.d_k_knob(512), shared.keys_knob(1024, low=_ROW), shared.SEED),
    compute=compute,
)
