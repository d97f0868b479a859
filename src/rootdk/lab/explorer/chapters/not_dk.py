"""Why not d_k: what dividing by d_k itself does at the start, and what it does not do."""

import math
from collections.abc import Mapping

import numpy as np

from rootdk.lab.checks.sampler import factor_of
from rootdk.lab.drawing import COLOURS, ONES_AND_THREES, level, line, plot, points
from rootdk.lab.explorer import shared
from rootdk.lab.explorer.chapter import Array, Chapter, Control, Figure, Values, View, number, written
from rootdk.lab.explorer.shared import WIDTHS, median
from rootdk.lab.first_look import RULE_WORDS
from rootdk.lab.formulas import SCALED
from rootdk.theory import format_effect

_CURVE_KEYS = 512
_MOST_KEYS = 128
_BOTH = ("sqrt", "dk")


def compute(values: Values) -> View:
    """The same row under both scales. To make q and k g times as large is to make the scale g^2 times as large."""
    d_k, keys, grown = values["d_k"], values["keys"], values["grown"]
    query, key = shared.vectors(values["seed"], keys, d_k)
    scales = {rule: grown**2 * factor_of(rule, d_k, keys) for rule in _BOTH}
    # The derivative in q, which is g times as large as the unit normal q of the formula: so it is 1/g of that.
    gradient = {rule: shared.flow(keys, d_k, scale) / grown for rule, scale in scales.items()}
    numbers = []
    for rule, scale in scales.items():
        words, reading = RULE_WORDS[rule], shared.reading_of(query, key, scale)
        entropy, top = median(reading.entropy_ratio), median(reading.top_probability) * keys
        error = float(format_effect(scale * math.sqrt(d_k), "float16").weight_error)
        stored = f"{words}: error of a weight if its score is stored in float16"
        numbers += [
            number(f"entropy_{rule}", f"{words}: entropy share, median of 64 rows", entropy, "measured"),
            number(f"top_{rule}", f"{words}: largest weight times n, median", top, "measured"),
            number(f"flow_{rule}", f"{words}: |∂o/∂q| / |o|", gradient[rule], "theory"),
            number(f"error_{rule}", stored, error, "theory", 2),
        ]
    ratio = gradient["sqrt"] / gradient["dk"]
    numbers.append(number("ratio", "gradient with 1/√d_k, divided by that with 1/d_k", ratio, "theory"))
    numbers.append(number("root", "√d_k", math.sqrt(d_k), "theory"))
    return View((_weights(query, key, scales), _gradient(values, gradient)), tuple(numbers), _python(values))


def _weights(query: Array, key: Array, scales: Mapping[str, float]) -> Figure:
    keys = len(key)
    places = shared.keys_in_order(query, key)[:_MOST_KEYS]
    data, tops = [], []
    for rule, scale in scales.items():
        weights = shared.weights_at(query, key, places, scale)
        data.append(line(np.arange(1, len(places) + 1), weights, RULE_WORDS[rule], COLOURS[rule]))
        tops.append(f"{written(weights[0] * keys, 3)} times that with {RULE_WORDS[rule]}")
    across = f"the {len(places)} keys with the largest weights"
    figure = plot(data, across, "weight", yaxis={"rangemode": "tozero"}, shapes=[level(1 / keys)])
    text = (
        f"Weights of one row of {keys} keys, largest first. Equal weights, the dotted line, are "
        f"{written(1 / keys, 3)}; the largest is {' and '.join(tops)}."
    )
    return Figure("weights", "The weights of one row", figure, text)


def _gradient(values: Values, gradient: Mapping[str, float]) -> Figure:
    data, ends = [], []
    for rule in _BOTH:
        y = shared.over_widths("flow", _CURVE_KEYS, rule)
        data.append(line(WIDTHS, y, RULE_WORDS[rule], COLOURS[rule]))
        data.append(points([values["d_k"]], [gradient[rule]], "your values", COLOURS[rule], showlegend=False))
        ends.append(f"{RULE_WORDS[rule]} from {written(y[0], 3)} to {written(y[-1], 3)}")
    figure = plot(data, "d_k", "|∂o/∂q| / |o|", xaxis=shared.WIDTH_AXIS, yaxis=ONES_AND_THREES)
    text = (
        f"Gradient of the query relative to the output, q and k as at the start, {_CURVE_KEYS} keys, for d_k from "
        f"{WIDTHS[0]} to {WIDTHS[-1]}: {'; '.join(ends)}."
    )
    return Figure("gradient", f"What a change of q does, {_CURVE_KEYS} keys", figure, text)


def _python(values: Values) -> str:
    d_k, keys, grown = values["d_k"], values["keys"], values["grown"]
    return f"""\
{shared.vectors_in_python(values["seed"], keys, d_k)}
from rootdk.theory import format_effect, relative_gradient

flow = {{}}
for name, exponent in (("sqrt", 0.5), ("dk", 1.0)):
    scale = {grown}**2 * {d_k}**-exponent      # q and k {grown} times as large
    reading = rootdk.measure(query, key, np.ones(({keys}, 1), np.float32), scale=scale)[1]
    print(f"entropy_{{name}}", np.median(reading.entropy_ratio.astype(float)))
    print(f"top_{{name}}", np.median(reading.top_probability.astype(float)) * {keys})
    flow[name] = relative_gradient({keys}, {d_k}, scale) / {grown}
    print(f"flow_{{name}}", flow[name])
    print(f"error_{{name}}", format_effect(scale * {d_k}**0.5, "float16").weight_error)
print("ratio", flow["sqrt"] / flow["dk"])
print("root", {d_k}**0.5)
"""


CHAPTER = Chapter(
    id="not-dk",
    title="Why not d_k",
    formula=SCALED,
    to_try="Drag d_k. Then make q and k larger, as training can do.",
    to_see="At the start, 1/d_k gives weights near 1/n and a gradient that is smaller by about √d_k. When q and k grow "
    "by d_k to the power 1/4, the weights become those of 1/√d_k.",
    said="Dividing by d_k makes the weights uniform, so the model cannot learn, and the small numbers are unstable.",
    true="Uniform weights and a small gradient at the start: yes. But q and k can grow, and some models use 1/d_k "
    "(maximal-update parametrisation, Granite). Small scores lose no digits; only float16 gradients can underflow.",
    controls=(
        shared.d_k_knob(64, low=16),
        shared.keys_knob(512),
        Control(
            "grown", "standard deviation of the components of q and k", "float", 1.0, 1.0, 6.0, 0.1,
            help="1 at the start; training can make it larger.",
        ),
        shared.SEED,
    ),
    compute=compute,
)  # fmt: skip
