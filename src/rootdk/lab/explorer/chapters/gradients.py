"""Gradients: the derivative of softmax for one small row, and which of its sizes vanishes as d_k grows."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rootdk.attention import attention_vjp, measure
from rootdk.lab.checks.gradient_flow import jacobian_of_softmax
from rootdk.lab.drawing import COLOURS, ONES_AND_THREES, heat, line, plot, points
from rootdk.lab.explorer.chapter import Chapter, Control, Figure, View, number, written
from rootdk.lab.explorer.shared import (
    EXPONENTS,
    QUERIES,
    RULES,
    SEED,
    WIDTH_AXIS,
    WIDTHS,
    d_k_knob,
    flow,
    flow_over_widths,
    median_over_widths,
    norm_over_widths,
    rows_of,
    rule_words,
    vectors,
    vectors_in_python,
)
from rootdk.lab.formulas import JACOBIAN
from rootdk.scaling import rule
from rootdk.theory.row_law import RowLaw

KEYS = 512  # of the curves and of the numbers; the heat map has room for fewer
_VALUES = 16  # components of a value


def _median_trace(rows: RowLaw) -> Any:
    return np.median(rows.jacobian_trace)


def _median_norm(rows: RowLaw) -> Any:
    return np.median(rows.jacobian_norm)


def _live(rows: RowLaw) -> Any:
    return (rows.top_probability <= 0.99).mean()


def _medians(of_rows: Callable[[RowLaw], Any]) -> Callable[[int, float], NDArray[Any]]:
    return lambda keys, exponent: median_over_widths(keys, exponent, of_rows)


_SHOWN: dict[str, tuple[str, Callable[[int, float], NDArray[Any]]]] = {
    "trace": ("median of tr J", _medians(_median_trace)),
    "live": ("share of rows where no key has over 99 %", _medians(_live)),
    "norm": ("median of |J|", _medians(_median_norm)),
    "rms": ("root mean square of |J|", norm_over_widths),
    "flow": ("|∂o/∂q| / |o|", flow_over_widths),
}
_SHOWN_LABELS = tuple(label for label, _ in _SHOWN.values())


def compute(values: Mapping[str, Any]) -> View:
    """One Jacobian by pulling back through the operator; 64 rows of 512 keys beside theory."""
    d_k, name = values["d_k"], values["rule"]
    factor = float(rule(name).factor(d_k, None, None))
    query, key = vectors(values["seed"], KEYS, d_k)
    reading = measure(query, key, np.ones((KEYS, 1), np.float32), scale=name)[1]
    rows = rows_of(KEYS, d_k, factor)
    found = {
        "trace": float(np.median(reading.jacobian_trace.astype(float))),
        "live": float((~reading.saturated()).mean()),
        "norm": float(np.median(reading.jacobian_norm.astype(float))),
        "rms": float(np.sqrt((reading.jacobian_norm.astype(float) ** 2).mean())),
        "flow": _flow(values),
    }
    numbers = (
        number("trace", "tr J, median of 64 rows", found["trace"], "measured"),
        number("trace_theory", "tr J of the median row", _median_trace(rows), "theory"),
        number("live", "share of rows where no key has over 99 %", found["live"], "measured", 3),
        number("norm", "|J|, median of 64 rows", found["norm"], "measured"),
        number("norm_theory", "|J| of the median row", _median_norm(rows), "theory"),
        number("rms", "|J|, root mean square of 64 rows", found["rms"], "measured"),
        number("flow", "|∂o/∂q| / |o| over 64 rows", found["flow"], "measured"),
        number("flow_theory", "|∂o/∂q| / |o|", flow(KEYS, d_k, factor), "theory"),
    )
    return View((_map(values, factor), _curves(values, found)), numbers, _python(values))


def _flow(values: Mapping[str, Any]) -> float:
    """E |(do/dq)' u|^2 = |do/dq|^2 for a standard normal u, so one pull-back of a row of such u is enough."""
    query, key = vectors(values["seed"], KEYS, values["d_k"])
    rng = np.random.default_rng([values["seed"], 1])
    value, pulled = (rng.standard_normal((count, _VALUES), np.float32) for count in (KEYS, QUERIES))
    out, pull_back = attention_vjp(query, key, value, scale=values["rule"])
    return float(np.sqrt((pull_back(pulled)[0].astype(float) ** 2).sum() / (out.astype(float) ** 2).sum()))


def _map(values: Mapping[str, Any], factor: float) -> Figure:
    query, key = vectors(values["seed"], values["keys"], values["d_k"])
    logits = factor * np.einsum("d,nd->n", query[0], key).astype(float)
    jacobian = jacobian_of_softmax(np.sort(logits)[::-1][None])[0]
    places = list(range(1, len(jacobian) + 1))
    told = "∂p %{y} / ∂z %{x}: %{z:.3g}<extra></extra>"
    drawn = plot(
        [heat(jacobian, (-0.25, 0.25), both_sides=True, x=places, y=places, hovertemplate=told)],
        "score, largest first",
        "weight",
        xaxis={"constrain": "domain"},
        yaxis={"autorange": "reversed", "scaleanchor": "x", "constrain": "domain"},
    )
    small = float((np.abs(jacobian) < 1e-3).mean())
    text = (
        f"Jacobian of one row of {len(jacobian)} keys: trace {written(float(np.trace(jacobian)), 3)}, Frobenius norm "
        f"{written(float(np.linalg.norm(jacobian)), 3)}; {small:.0%} of its entries are below 0.001 in size."
    )
    return Figure("jacobian", "The Jacobian of one row", drawn, text)


def _curves(values: Mapping[str, Any], found: Mapping[str, float]) -> Figure:
    shown, (label, over_widths) = values["shown"], _SHOWN[values["shown"]]
    data, ends = [], []
    for one, exponent in EXPONENTS.items():
        y = over_widths(KEYS, exponent)
        data.append(line(WIDTHS, y, rule_words(one, figure=True), COLOURS[one]))
        first, last = (written(float(y[end]), 3) for end in (0, -1))
        ends.append(f"{rule_words(one)}: {first} at d_k = {WIDTHS[0]}, {last} at {WIDTHS[-1]}")
    data.append(points([values["d_k"]], [found[shown]], "measured here", COLOURS[values["rule"]]))
    axis: dict[str, Any] = ONES_AND_THREES if shown == "flow" else {"rangemode": "tozero"}
    drawn = plot(data, "d<sub>k</sub>", label, xaxis=WIDTH_AXIS, yaxis=axis)
    return Figure("sizes", f"{label}, {KEYS} keys", drawn, f"{label} by theory. {'; '.join(ends)}.")


def _python(values: Mapping[str, Any]) -> str:
    d_k, name, seed = values["d_k"], values["rule"], values["seed"]
    return f"""\
import numpy as np
import rootdk
from rootdk.theory import relative_gradient

{vectors_in_python(seed, KEYS, d_k)}
reading = rootdk.measure(query, key, np.ones(({KEYS}, 1), np.float32), scale="{name}")[1]
print("trace", np.median(reading.jacobian_trace.astype(float)))
print("live", 1 - reading.saturated().mean())
print("norm", np.median(reading.jacobian_norm.astype(float)))
print("rms", np.sqrt((reading.jacobian_norm.astype(float) ** 2).mean()))

rng = np.random.default_rng([{seed}, 1])
value = rng.standard_normal(({KEYS}, {_VALUES}), np.float32)
pulled = rng.standard_normal(({QUERIES}, {_VALUES}), np.float32)
out, pull_back = rootdk.attention_vjp(query, key, value, scale="{name}")
d_query, d_key, d_value = pull_back(pulled)
print("flow", np.sqrt((d_query.astype(float) ** 2).sum() / (out.astype(float) ** 2).sum()))

told = rootdk.predict({d_k}, {KEYS}, "{name}")
print("trace_theory", told.median_jacobian_trace[0])
print("norm_theory", told.median_jacobian_norm[0])
print("flow_theory", relative_gradient({KEYS}, {d_k}, rootdk.scaling.rule("{name}").factor({d_k}, None, None)))
"""


CHAPTER = Chapter(
    id="gradients",
    title="Gradients",
    formula=JACOBIAN,
    to_try="Take the scale away, drag d_k, and choose which size of the Jacobian is drawn.",
    to_see="The median trace collapses and fewer rows stay alive, while |J| first grows; under 1/d_k the Jacobian is "
    "fine and the gradient of q is small all the same.",
    said="Without the scale softmax saturates and its gradients vanish.",
    true="Half: the median row does die, but the root mean square of |J| stays above that of 1/√d_k at every d_k "
    "drawn, the gradient of q relative to the output grows, and under 1/d_k it is the factor before J that is small.",
    controls=(
        d_k_knob(64, low=16),
        RULES,
        Control(
            "shown",
            "drawn over d_k",
            "choice",
            "trace",
            choices=tuple(_SHOWN),
            labels=tuple(one[0] for one in _SHOWN.values()),
        ),
        Control("keys", "keys in the heat map", "int", 16, 2, 32, 1),
        SEED,
    ),
    compute=compute,
)
