"""The formula, step by step on numbers that fit on a hand: scores, scaled scores, weights, output."""

import numpy as np

from rootdk.attention import attention, measure
from rootdk.errors import ArgumentError
from rootdk.lab.checks.sampler import factor_of
from rootdk.lab.drawing import COLOURS, GREY, bars, plot
from rootdk.lab.explorer import shared
from rootdk.lab.explorer.chapter import Chapter, Control, Figure, Table, Values, View, choice, number, written
from rootdk.lab.explorer.shared import RULES
from rootdk.lab.formulas import ATTENTION

# The vectors of the usual examples; `zeros` further components are 0. With unit values the output is the weights.
_UNIT = "1 0 0; 0 1 0; 0 0 1"
_EXAMPLES = {
    "four": {"query": "1 0 1 0", "keys": "0 1 1 1; 1 0 1 0; 0 1 0 1", "values": _UNIT, "zeros": "0"},
    "sixty-four": {"query": "2", "keys": "7; 5; 6", "values": _UNIT, "zeros": "63"},
    "hundred": {"query": "10", "keys": "5; 1; 0.5", "values": _UNIT, "zeros": "99"},
}
_LABELS = {
    "own": "your own numbers",
    "four": "d_k = 4: first score 1",
    "sixty-four": "d_k = 64: scores 14, 10, 12",
    "hundred": "d_k = 100: scores 50, 10, 5",
}


def compute(values: Values) -> View:
    """One query through the operator. Values of unit vectors show the weights themselves."""
    query, key, value = (np.array(values[name]) for name in ("query", "keys", "values"))
    if key.shape[1] != query.shape[1]:
        raise ArgumentError(f"keys: must have {query.shape[1]} numbers in a row like the query, got {key.shape[1]}")
    if len(value) != len(key):
        raise ArgumentError(f"values: must have {len(key)} rows, one for each key, got {len(value)}")
    query, key = (np.pad(array, ((0, 0), (0, values["zeros"]))) for array in (query, key))
    d_k, names = query.shape[1], [f"key {place}" for place in range(1, len(key) + 1)]
    scores = (query @ key.T)[0]
    factor = factor_of(values["rule"], d_k, len(key))
    scaled = scores * factor
    weights = attention(query, key, np.eye(len(key)), scale=factor)[0]
    output, reading = measure(query, key, value, scale=factor)
    numbers = (
        number("d_k", "d_k", d_k),
        number("factor", "every score is multiplied by", factor),
        number("top", "largest weight", weights.max()),
        number("entropy", "entropy of the weights", reading.entropy[0]),
        number("effective", "effective keys", reading.effective_keys[0]),
    )
    colour = shared.colour(values["rule"])
    steps = plot(
        [bars(names, scores, "q·k", GREY), bars(names, scaled, "scaled", colour)], "", "score", barmode="group"
    )
    pairs = ", ".join(f"{written(a, 3)} becomes {written(b, 3)}" for a, b in zip(scores, scaled, strict=True))
    shares = ", ".join(f"{name} {written(weight, 3)}" for name, weight in zip(names, weights, strict=True))
    components = [f"component {place}" for place in range(1, output.shape[1] + 1)]
    mixed = plot([bars(components, output[0], "output", COLOURS["sqrt"])], "", "output")
    figures = (
        Figure("scores", "Scores", steps, f"Scores before and after the scale: {pairs}."),
        Figure(
            "weights", "Weights", plot([bars(names, weights, "weight", colour)], "", "weight", yaxis={"range": [0, 1]}),
            f"Weights after softmax: {shares}.",
        ),
        Figure("output", "Output", mixed, f"Output: {', '.join(written(x, 3) for x in output[0])}."),
    )  # fmt: skip
    rows = zip(names, scores, scaled, np.exp(scaled - scaled.max()), weights, strict=True)
    table = Table(
        ("", "q·k", "scaled score z", "e^(z - largest z)", "weight"),
        tuple((name, *(written(cell) for cell in cells)) for name, *cells in rows),
    )
    return View(figures, numbers, _python(values), table)


def _python(values: Values) -> str:
    query, keys, value = (str([list(row) for row in values[name]]) for name in ("query", "keys", "values"))
    zeros = values["zeros"]
    padded = ("np.pad(", f", ((0, 0), (0, {zeros})))") if zeros else ("np.array(", ")")
    query, keys = (padded[0] + rows + padded[1] for rows in (query, keys))
    d_k = len(values["query"][0]) + zeros
    factor = shared.factor_in_python(values["rule"], d_k, len(values["keys"]))
    scale = shared.in_python(values["rule"], d_k, len(values["keys"]))
    return f"""\
import numpy as np
import rootdk

query = {query}
keys = {keys}
values = np.array({value})
output, reading = rootdk.measure(query, keys, values, scale={scale})
weights = rootdk.attention(query, keys, np.eye(len(keys)), scale={scale})
print("d_k", query.shape[1])
print("factor", {factor})
print("top", weights.max())
print("entropy", reading.entropy[0])
print("effective", reading.effective_keys[0])
"""


CHAPTER = Chapter(
    id="formula",
    title="The formula",
    formula=ATTENTION,
    to_try="Choose the example with d_k = 64 and set the scale to none. Or type your own numbers.",
    to_see="The order of the scores never changes. The scale changes how far apart they are, and so how equal the "
    "weights are.",
    said="Attention is softmax(QKᵀ/√d_k)V.",
    true="Yes. The scale never changes which key is first. At d_k = 4 it halves the scores, at d_k = 64 it divides "
    "them by 8.",
    controls=(
        choice("example", "example", _LABELS, "four", sets=_EXAMPLES),
        RULES,  # beside the example: both are what the reader is asked to change
        Control("query", "query", "numbers", "1 0 1 0", -1000, 1000, rows=1, columns=8, columns_with="keys"),
        Control(
            "keys", "keys, one in a row", "numbers", "0 1 1 1; 1 0 1 0; 0 1 0 1", -1000, 1000, rows=8, columns=8,
            rows_with="values", columns_with="query",
        ),
        Control("values", "values, one in a row", "numbers", _UNIT, -1000, 1000, rows=8, columns=8, rows_with="keys"),
        Control(
            "zeros", "further components, all 0", "int", 0, 0, 1016, 1,
            help="They do not change any score, but they count in d_k.",
        ),
    ),
    compute=compute,
)  # fmt: skip
