"""Gradients: the derivative of softmax for one small row, and which of its sizes vanishes as d_k grows."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from rootdk.attention import attention_vjp
from rootdk.lab.checks.gradient_flow import jacobian_of_softmax
from rootdk.lab.checks.sampler import factor_of
from rootdk.lab.drawing import ONES_AND_THREES, line, plot, points, square_map
from rootdk.lab.explorer import shared
from rootdk.lab.explorer.chapter import Chapter, Control, Figure, Values, View, number, written
from rootdk.lab.explorer.shared import QUANTITIES, QUERIES, WIDTHS, median
from rootdk.lab.formulas import JACOBIAN

KEYS = 512  # of the curves and of the numbers; the heat map has room for fewer
_VALUES = 16  # components of a value


def compute(values: Values) -> View:
    """One Jacobian by pulling back through the operator; 64 rows of 512 keys beside theory."""
    d_k, rule = values["d_k"], values["rule"]
    factor = factor_of(rule, d_k, KEYS)
    reading = shared.reading_of(*shared.vectors(values["seed"], KEYS, d_k), factor)
    law = shared.rows_of(KEYS, d_k, factor)
    measured = {
        "trace": median(reading.jacobian_trace),
        "live": float((~reading.saturated()).mean()),
        "norm": median(reading.jacobian_norm),
        "rms": float(np.sqrt((reading.jacobian_norm.astype(float) ** 2).mean())),
        "flow": _flow(values, factor),
    }
    numbers = (
        number("trace", "Jacobian trace, median of 64 rows", measured["trace"], "measured"),
        number("trace_theory", "Jacobian trace of the median row", median(law.jacobian_trace), "theory"),
        number("live", QUANTITIES["live"], measured["live"], "measured", 3),
        number("norm", "|J|, median of 64 rows", measured["norm"], "measured"),
        number("norm_theory", "|J| of the median row", median(law.jacobian_norm), "theory"),
        number("rms", "|J|, root mean square of 64 rows", measured["rms"], "measured"),
        number("flow", "|∂o/∂q| / |o| over 64 rows", measured["flow"], "measured"),
        number("flow_theory", "|∂o/∂q| / |o|", shared.flow(KEYS, d_k, factor), "theory"),
    )
    return View((_map(values, factor), _curves(values, measured)), numbers, _python(values))


def _flow(values: Values, factor: float) -> float:
    """E |(do/dq)' u|^2 = |do/dq|^2 for a standard normal u, so one pull-back of a row of such u is enough."""
    query, key = shared.vectors(values["seed"], KEYS, values["d_k"])
    rng = np.random.default_rng([values["seed"], 1])
    value, pulled = (rng.standard_normal((count, _VALUES), np.float32) for count in (KEYS, QUERIES))
    out, pull_back = attention_vjp(query, key, value, scale=factor)
    return float(np.sqrt((pull_back(pulled)[0].astype(float) ** 2).sum() / (out.astype(float) ** 2).sum()))


def _map(values: Values, factor: float) -> Figure:
    query, key = shared.vectors(values["seed"], values["keys"], values["d_k"])
    logits = factor * np.einsum("d,nd->n", query[0], key).astype(float)
    jacobian = jacobian_of_softmax(np.sort(logits)[::-1][None])[0]
    hover = "∂p %{y} / ∂z %{x}: %{z:.3g}"
    small = float((np.abs(jacobian) < 1e-3).mean())
    text = (
        f"Jacobian of one row of {len(jacobian)} keys: its trace is {written(np.trace(jacobian), 3)}, its "
        f"Frobenius norm {written(np.linalg.norm(jacobian), 3)}. {small:.0%} of its entries are below 0.001."
    )
    figure = square_map(jacobian, (-0.25, 0.25), "score, largest first", "weight", hover)
    return Figure("jacobian", "The Jacobian of one row", figure, text)


def _curves(values: Values, measured: Mapping[str, float]) -> Figure:
    shown, label = values["shown"], QUANTITIES[values["shown"]]
    data, ends = [], []
    for rule, words in shared.compared(values["rule"]).items():
        y = shared.over_widths(shown, KEYS, rule)
        data.append(line(WIDTHS, y, words, shared.colour(rule)))
        first, last = (written(y[end], 3) for end in (0, -1))
        ends.append(f"{words}: {first} at d_k = {WIDTHS[0]}, {last} at {WIDTHS[-1]}")
    data.append(points([values["d_k"]], [measured[shown]], "measured here", shared.colour(values["rule"])))
    axis: dict[str, Any] = ONES_AND_THREES if shown == "flow" else {"rangemode": "tozero"}
    figure = plot(data, "d_k", label, xaxis=shared.WIDTH_AXIS, yaxis=axis)
    return Figure("sizes", f"{label}, {KEYS} keys", figure, f"{label} by theory. {'; '.join(ends)}.")


def _python(values: Values) -> str:
    d_k, seed = values["d_k"], values["seed"]
    rule = shared.in_python(values["rule"], d_k, KEYS)
    return f"""\
{shared.vectors_in_python(seed, KEYS, d_k)}
reading = rootdk.measure(query, key, np.ones(({KEYS}, 1), np.float32), scale={rule})[1]
print("trace", np.median(reading.jacobian_trace.astype(float)))
print("live", 1 - reading.saturated().mean())
print("norm", np.median(reading.jacobian_norm.astype(float)))
print("rms", np.sqrt((reading.jacobian_norm.astype(float) ** 2).mean()))

rng = np.random.default_rng([{seed}, 1])
value = rng.standard_normal(({KEYS}, {_VALUES}), np.float32)
pulled = rng.standard_normal(({QUERIES}, {_VALUES}), np.float32)
out, pull_back = rootdk.attention_vjp(query, key, value, scale={rule})
d_query, d_key, d_value = pull_back(pulled)
print("flow", np.sqrt((d_query.astype(float) ** 2).sum() / (out.astype(float) ** 2).sum()))

from rootdk.theory import relative_gradient

theory = rootdk.predict({d_k}, {KEYS}, {rule})
print("trace_theory", theory.median_jacobian_trace[0])
print("norm_theory", theory.median_jacobian_norm[0])
print("flow_theory", relative_gradient({KEYS}, {d_k}, {shared.factor_in_python(values["rule"], d_k, KEYS)}))
"""


CHAPTER = Chapter(
    id="gradients",
    title="Gradients",
    formula=JACOBIAN,
    to_try="Set the scale to none, drag d_k, and choose which measure of the Jacobian is drawn.",
    to_see="Without the scale the median trace falls to 0, while |J| first grows. With 1/d_k the Jacobian is fine, but "
    "the gradient of q is still small.",
    said="Without the scale softmax saturates and its gradients vanish.",
    true="Partly. The median row does lose its gradient. But the root mean square of |J| is larger than with 1/√d_k, "
    "and the gradient of q grows relative to the output. With 1/d_k the factor before J is what is small.",
    controls=(
        shared.d_k_knob(64, low=16),
        shared.RULES,
        shared.quantity_knob("trace", ("trace", "live", "norm", "rms", "flow")),
        Control("keys", "keys in the heat map", "int", 16, 2, 32, 1),
        shared.SEED,
    ),
    compute=compute,
)
