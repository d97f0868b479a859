"""Number formats: how far apart stored scores are, what that does to a weight, and where float16 ends."""

import math
from functools import lru_cache

import numpy as np

from rootdk.lab.checks.rounding import FORMATS, rounded
from rootdk.lab.checks.sampler import factor_of
from rootdk.lab.drawing import HUES, POWERS, level, line, plot, upright
from rootdk.lab.explorer.chapter import Array, Chapter, Control, Figure, Table, Values, View, choice, number, written
from rootdk.lab.explorer.shared import RULES, SEED, d_k_knob, factor_in_python
from rootdk.lab.formulas import SCALED
from rootdk.theory import format_effect
from rootdk.theory.formats import FORMATS as KINDS
from rootdk.theory.formats import spacing

_SCORES = 20_000
_KEYS = 1024  # for rules that depend on the number of keys
_SIGMAS = np.geomspace(1e-3, 1e6, 46)
_AXES = {"xaxis": POWERS, "yaxis": POWERS | {"dtick": 2}}
# A float64 array z rounded to a format, in NumPy.
_ROUNDED = {
    "float32": "z.astype(np.float32).astype(float)",
    "float16": "z.astype(np.float16).astype(float)",
    # To the nearest multiple of the distance between stored numbers; a half goes to the even one.
    "bfloat16": "np.round(np.float32(z) / (step := 2.0 ** (np.floor(np.log2(abs(np.float32(z)))) - 7))) * step",
}


def compute(values: Values) -> View:
    """Scores of law N(0, sigma^2), stored: the error of theory, and that of 20,000 rounded numbers."""
    d_k, name = values["d_k"], values["format"]
    raw = values["spread"] ** 2 * math.sqrt(d_k)
    sigma = raw * abs(factor_of(values["rule"], d_k, _KEYS))
    effect, before = format_effect(sigma, name), format_effect(raw, name)
    z = sigma * np.random.default_rng(values["seed"]).standard_normal(_SCORES)
    stored = rounded(z, name)
    finite = np.isfinite(stored)
    error = math.sqrt(float(((stored[finite] - z[finite]) ** 2).mean())) if finite.any() else math.nan
    unscaled = "share that overflows if q·k is stored before the scale"
    numbers = (
        number("sigma", "standard deviation of the scores", sigma, "theory"),
        number("spacing", "distance between stored numbers of that size", spacing(sigma, name), "theory", 3),
        number("error", "error of a stored score, root mean square", error, "measured", 3),
        number("error_theory", "error of a stored score, root mean square", float(effect.score_error), "theory", 3),
        number("weight_error", "relative error of its weight e^z", float(effect.weight_error), "theory", 3),
        number("overflow", "share of the scores that overflow", float(effect.overflow), "theory", 3),
        number("overflow_raw", unscaled, float(before.overflow), "theory", 3),
    )
    return View((_errors(values, sigma), _spacings(sigma)), numbers, _python(values), _table(sigma, raw))


@lru_cache(maxsize=8)
def _weight_errors(name: str) -> Array:
    return np.asarray(format_effect(_SIGMAS, name).weight_error)


def _errors(values: Values, sigma: float) -> Figure:
    data = []
    for name, colour in zip(FORMATS, HUES, strict=False):
        y = _weight_errors(name)
        shown = y < 1e3
        data.append(line(_SIGMAS[shown], y[shown], name, colour, "solid" if name == values["format"] else "dot"))
    marks = [upright(sigma), level(1.0)]
    figure = plot(data, "standard deviation σ of the scores", "relative error of a weight", shapes=marks, **_AXES)
    errors = ", ".join(f"{written(format_effect(sigma, name).weight_error, 2)} in {name}" for name in FORMATS)
    text = (
        f"Relative error of a weight when its score is rounded, at σ = {written(sigma, 3)}: {errors}. Above 1, the "
        "dotted horizontal line, weights are noise."
    )
    return Figure("errors", "What rounding does to a weight", figure, text)


def _spacings(sigma: float) -> Figure:
    sizes = 2.0 ** np.arange(-10, 19)  # where the distance changes
    data = []
    for name, colour in zip(FORMATS, HUES, strict=False):
        y = np.array([spacing(size, name) for size in sizes])
        data.append(line(sizes[np.isfinite(y)], y[np.isfinite(y)], name, colour, shape="hv"))
    figure = plot(data, "size of a score", "distance to the next stored number", shapes=[upright(sigma)], **_AXES)
    distances = ", ".join(f"{written(spacing(sigma, name), 3)} in {name}" for name in FORMATS)
    text = f"Distance between stored numbers near {written(sigma, 3)}: {distances}. The float16 line ends at 65504."
    return Figure("spacing", "How far apart scores are stored", figure, text)


def _table(sigma: float, raw: float) -> Table:
    rows = []
    for name in FORMATS:
        effect, kind = format_effect(sigma, name), KINDS[name]
        cells = (kind.digits, kind.largest, spacing(sigma, name), effect.weight_error, effect.overflow,
                 format_effect(raw, name).overflow)  # fmt: skip
        rows.append((name, *(written(cell, 3) for cell in cells)))
    headings = ("format", "binary digits", "largest number", "distance at σ", "error of a weight", "overflow",
                "overflow of q·k unscaled")  # fmt: skip
    return Table(headings, tuple(rows))


def _python(values: Values) -> str:
    name, d_k = values["format"], values["d_k"]
    return f"""\
import numpy as np
from rootdk.theory import format_effect
from rootdk.theory.formats import spacing

raw = {values["spread"]}**2 * {d_k}**0.5
sigma = raw * abs({factor_in_python(values["rule"], d_k, _KEYS)})
z = sigma * np.random.default_rng({values["seed"]}).standard_normal({_SCORES})
stored = {_ROUNDED[name]}
kept = np.isfinite(stored)
print("sigma", sigma)
print("spacing", spacing(sigma, "{name}"))
print("error", np.sqrt(((stored[kept] - z[kept]) ** 2).mean()))
effect = format_effect(sigma, "{name}")
print("error_theory", effect.score_error)
print("weight_error", effect.weight_error)
print("overflow", effect.overflow)
print("overflow_raw", format_effect(raw, "{name}").overflow)
"""


CHAPTER = Chapter(
    id="formats",
    title="Number formats",
    formula=SCALED,
    to_try="Choose float16, make the components of q and k larger, and set the scale to none. Then use 1/d_k.",
    to_see="The distance between two stored numbers grows with their size. e^z turns that distance into a relative "
    "error. So large scores lose digits and small scores do not.",
    said="Half precision needs small scores, and scores divided by d_k get so small that they are unstable.",
    true="Only the first part. From 128 on, bfloat16 scores are 1 or more apart, and float16 ends at 65504, which q·k "
    "can reach before the scale. Small scores keep their digits.",
    controls=(
        choice("format", "format", FORMATS, "float16"),
        d_k_knob(64),
        RULES,
        Control("spread", "standard deviation of the components of q and k", "float", 1.0, 0.1, 100.0, 0.1, log=True),
        SEED,
    ),
    compute=compute,
)
