"""Choosing c: all scales d_k^-a side by side, to see which a keeps things as they are when d_k changes."""

from collections.abc import Mapping
from typing import Any

from rootdk.lab.drawing import COLOURS, GREY, HUES, ONES_AND_THREES, level, line, plot, points
from rootdk.lab.explorer.chapter import Array, Chapter, Control, Figure, Values, View, choice, number, written
from rootdk.lab.explorer.shared import QUANTITIES, WIDTH_AXIS, WIDTHS, colour, over_widths, quantity_knob
from rootdk.lab.formulas import SCALED

_FIXED = (0.0, 0.25, 0.5, 0.75, 1.0)
_LINES = {
    "flow": "from rootdk.theory import relative_gradient\n\ny = relative_gradient({keys}, widths, widths**-{a})",
    "variance": "y = widths * (widths**-{a}) ** 2      # d_k scale^2",
    "entropy": "from rootdk.theory import attention_moments\n\n"
    "y = attention_moments({keys}, widths, widths**-{a}).entropy / np.log({keys})",
}


def compute(values: Values, added: tuple[str, ...] = ()) -> View:
    """Curves over d_k for five exponents and the one chosen, and how much each changes from one end to the other."""
    keys, exponent = int(values["keys"]), values["exponent"]
    label = QUANTITIES[values["shown"]]
    curves = {a: over_widths(values["shown"], keys, a) for a in sorted({*_FIXED, exponent})}
    curve = curves[exponent]
    change = {a: float(y[-1] / y[0]) for a, y in curves.items()}
    numbers = (
        number("exponent", "a", exponent),
        number("first", f"{label} at d_k = {WIDTHS[0]}", curve[0], "theory"),
        number("last", f"{label} at d_k = {WIDTHS[-1]}", curve[-1], "theory"),
        number("change", "the last divided by the first", change[exponent], "theory"),
        number("change_root", "the same for a = 1/2", change[0.5], "theory"),
    )
    further = {rule: over_widths(values["shown"], keys, rule) for rule in added}
    figures = (_over_widths(label, curves, further, values), _over_exponents(change, values))
    return View(figures, numbers, _python(values))


def _over_widths(label: str, curves: Mapping[float, Array], further: Mapping[str, Array], values: Values) -> Figure:
    data = []
    for a, hue in zip(_FIXED, (COLOURS["none"], HUES[4], COLOURS["sqrt"], HUES[3], COLOURS["dk"]), strict=True):
        data.append(line(WIDTHS, curves[a], f"a = {a:g}", hue, "dot" if a != 0.5 else "solid"))
    chosen = curves[values["exponent"]]
    marker = {"color": GREY, "size": 9, "symbol": "diamond"}
    data.append(points(WIDTHS, chosen, f"your a = {values['exponent']:g}", GREY, marker=marker))
    data += [line(WIDTHS, y, rule, colour(rule, 2 - place), "dash") for place, (rule, y) in enumerate(further.items())]
    axis: dict[str, Any] = {"range": [0, 1.05]} if values["shown"] == "entropy" else ONES_AND_THREES
    figure = plot(data, "d_k", label, xaxis=WIDTH_AXIS, yaxis=axis)
    first, last, root = (written(y, 3) for y in (chosen[0], chosen[-1], curves[0.5][-1]))
    text = (
        f"{label} over d_k, theory. With a = {values['exponent']:g} it goes from {first} at d_k = {WIDTHS[0]} to "
        f"{last} at {WIDTHS[-1]}; with a = 1/2 it is {root} there."
    )
    for rule, y in further.items():
        text += f" Under {rule}: from {written(y[0], 3)} to {written(y[-1], 3)}."
    return Figure("curves", "Scales d_k to the power -a", figure, text)


def _over_exponents(change: Mapping[float, float], values: Values) -> Figure:
    a, y = list(change), list(change.values())
    chosen = values["exponent"]
    data = [line(a, y, "change", GREY), points([chosen], [change[chosen]], f"your a = {chosen:g}", COLOURS["sqrt"])]
    label = f"value at {WIDTHS[-1]} / value at {WIDTHS[0]}"
    figure = plot(data, "a", label, yaxis=ONES_AND_THREES, shapes=[level(1.0)])
    changes = ", ".join(f"{written(change[a], 3)} for a = {a:g}" for a in _FIXED)
    text = f"Value at d_k = {WIDTHS[-1]} over that at {WIDTHS[0]}: {changes}."
    return Figure("change", "How much it changes with d_k", figure, text)


def _python(values: Values) -> str:
    def curve(a: float) -> str:
        return _LINES[values["shown"]].format(keys=int(values["keys"]), a=a)

    return f"""\
import numpy as np

widths = np.array({list(WIDTHS)}, float)
print("exponent", {values["exponent"]})
{curve(values["exponent"])}
print("first", y[0])
print("last", y[-1])
print("change", y[-1] / y[0])
{curve(0.5)}
print("change_root", y[-1] / y[0])
"""


CHAPTER = Chapter(
    id="choosing",
    title="Choosing c",
    formula=SCALED,
    to_try="Move a from 0 (no scale) to 1 (divide by d_k). Look at the gradient, the variance and the entropy.",
    to_see="Every line rises or falls with d_k, except the line of a = 1/2.",
    said="√d_k is derived and not tuned.",
    true="For the variance, a = 1/2 follows exactly. It also keeps the gradient constant within 4 % from d_k = 16 to "
    "1024, but with 16 keys at 0.84 and not at 1. Nothing here says that a variance of 1 trains best.",
    controls=(
        Control("exponent", "a in d_k to the power -a", "float", 0.5, 0.0, 1.0, 0.05),
        quantity_knob("flow", ("flow", "variance", "entropy")),
        choice("keys", "keys n", ("16", "512", "4096"), "512"),
    ),
    compute=compute,
    adds_rules=True,
)
