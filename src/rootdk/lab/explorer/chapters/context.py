"""Long contexts: what the number of keys does, up to a billion, and what rules with ln n make of it."""

import math
from functools import lru_cache
from typing import Any

import numpy as np

from rootdk import scaling
from rootdk.lab.checks.sampler import factor_of
from rootdk.lab.drawing import COLOURS, GREY, HUES, ONES_AND_THREES, POWERS, line, plot, points, upright
from rootdk.lab.explorer.chapter import Array, Chapter, Control, Figure, Values, View, choice, number, written
from rootdk.lab.explorer.shared import colour, d_k_knob
from rootdk.lab.formulas import FREEZING
from rootdk.theory import critical_sigma, rule_variance, softmax_moments

_LENGTHS = tuple(round(10 ** (power / 2)) for power in range(2, 19))
_NAMES = {
    "sqrt": ("1/√d_k", COLOURS["sqrt"]),
    "none": ("none", COLOURS["none"]),
    "entropy_invariant": ("ln n / (ln 512 √d_k)", COLOURS["entropy_invariant"]),
    "ssmax": ("s ln n / √d_k", HUES[2]),
    "qwen_log_n": ("Qwen: ln n past 2048 keys", HUES[4]),
    "llama4": ("Llama 4", COLOURS["llama4"]),
}
_SSMAX = "Scalable softmax; its paper lets each head learn s."
_AXIS = POWERS | {"dtick": 2, "range": [0.8, 9.2]}


def _rule(name: str, s: float) -> scaling.ScaleRule:
    if name == "ssmax":
        return scaling.ssmax(s)
    return scaling.qwen_log_n(2048) if name == "qwen_log_n" else scaling.rule(name)


def _sigma(name: str, s: float, d_k: int, keys: Any) -> Array:
    """The spread of the scores of the last query; of the rules above, only "none" depends on d_k."""
    return np.asarray(np.sqrt(rule_variance(_rule(name, s), d_k, keys, np.asarray(keys) - 1)))


@lru_cache(maxsize=256)
def _curve(name: str, s: float, d_k: int) -> tuple[Array, Array, Array]:
    """sigma, entropy / ln n and 1 / E sum p^2 at every length."""
    sigma = _sigma(name, s, d_k, _LENGTHS)
    moments = softmax_moments(_LENGTHS, sigma)
    return sigma, np.asarray(moments.entropy / np.log(_LENGTHS)), np.asarray(1 / moments.p_squared)


def compute(values: Values, added: tuple[str, ...] = ()) -> View:
    """Rows whose scores are N(0, sigma^2): every query of length sqrt(d_k). Exact for any number of keys."""
    keys, d_k, s = values["keys"], values["d_k"], values["s"]
    names = _NAMES | {
        rule: (rule, colour(rule, place)) for place, rule in enumerate(rule for rule in added if rule not in _NAMES)
    }
    # Settings that a rule does not depend on are left out of the key of the cache.
    settings = {
        name: (name, s if name == "ssmax" else 1.0, 64 if name in _NAMES and name != "none" else d_k) for name in names
    }
    sigma = np.array([float(_sigma(*setting, keys)) for setting in settings.values()])
    moments = softmax_moments(keys, sigma)
    entropy, critical = moments.entropy / math.log(keys), float(critical_sigma(keys))
    numbers = [number("critical", "√(2 ln n): above it a few keys take all the weight", critical, "theory")]
    for (name, (words, _)), share in zip(names.items(), entropy, strict=True):
        numbers.append(number(f"entropy_{name}", f"{words}: entropy share", share, "theory"))

    def lines(which: int, **more: Any) -> list[dict[str, Any]]:
        styles = zip(settings.values(), names.values(), strict=True)
        return [
            line(_LENGTHS, _curve(*setting)[which], words, hue, "solid" if setting[0] in _NAMES else "dash", **more)
            for setting, (words, hue) in styles
        ]

    axis_and_mark = {"xaxis": _AXIS, "shapes": [upright(keys)]}
    label, which = ("entropy share", 1) if values["shown"] == "entropy" else ("effective keys", 2)
    defined = " (entropy / ln n; 1 is equal weights)" if which == 1 else " (1 / mean of ∑p²)"
    at_n = entropy if which == 1 else 1 / moments.p_squared
    marks = [
        points([keys], [y], words, hue, showlegend=False) for (words, hue), y in zip(names.values(), at_n, strict=True)
    ]
    axis: dict[str, Any] = {"range": [0, 1.05]} if which == 1 else POWERS
    shares = plot([*lines(which), *marks], "keys n", label, yaxis=axis, **axis_and_mark)
    frozen = line(_LENGTHS, critical_sigma(_LENGTHS), "√(2 ln n)", GREY, "dash")
    spread = plot([*lines(0, showlegend=False), frozen], "keys n", "σ", yaxis=ONES_AND_THREES, **axis_and_mark)

    def listed(by_rule: Array) -> str:
        pairs = zip(names.values(), by_rule, strict=True)
        return ", ".join(f"{words} {written(float(y), 3)}" for (words, _), y in pairs)

    text = f"Standard deviation of the scores at {keys:,} keys: {listed(sigma)}; "
    text += f"above {written(critical, 3)}, the dashed line, a few keys take all the weight."
    figures = (
        Figure(
            "shares", label.capitalize(), shares, f"{label.capitalize()}{defined} at {keys:,} keys: {listed(at_n)}."
        ),
        Figure("spread", "Spread of the scores (the same colours)", spread, text),
    )
    return View(figures, tuple(numbers), _python(values, tuple(names)[len(_NAMES) :]))


def _python(values: Values, added: tuple[str, ...]) -> str:
    keys, d_k = values["keys"], values["d_k"]
    lines = f"""\
import numpy as np
from rootdk import scaling
from rootdk.theory import critical_sigma, rule_variance, softmax_moments

print("critical", critical_sigma({keys}))
rules = {{name: scaling.rule(name) for name in ("sqrt", "none", "entropy_invariant", "llama4")}}
rules |= {{"ssmax": scaling.ssmax({values["s"]}), "qwen_log_n": scaling.qwen_log_n(2048)}}
for name, rule in rules.items():
    sigma = np.sqrt(rule_variance(rule, {d_k}, keys={keys}, position={keys - 1}))
    print(f"entropy_{{name}}", softmax_moments({keys}, sigma).entropy / np.log({keys}))
"""
    for rule in added:
        sigma = f"abs({factor_of(rule, d_k, keys)!r}) * {d_k} ** 0.5"
        lines += f'print("entropy_{rule}", softmax_moments({keys}, {sigma}).entropy / np.log({keys}))\n'
    return lines


CHAPTER = Chapter(
    id="context",
    title="Long contexts",
    formula=FREEZING,
    to_try="Drag the number of keys to a billion. Then change d_k and s.",
    to_see="With 1/√d_k the weights spread out as keys are added. Rules with ln n make them sharper instead. Above the "
    "dashed line a few keys take all the weight.",
    said="In long contexts attention fades, and a factor of ln n keeps the entropy where it was.",
    true="For random q and k attention does fade with 1/√d_k: the entropy share rises. But ln n does too much: the "
    "entropy share falls. The dashed line √(2 ln n) moves slowly, from 3.7 at a thousand keys to 6.4 at a billion.",
    controls=(
        Control("keys", "keys n", "int", 1_000_000, 10, 1_000_000_000, 1, log=True, help="Keys that the query sees."),
        d_k_knob(64),
        Control("s", "s, of s ln n / √d_k", "float", 0.43, 0.05, 1.0, 0.01, help=_SSMAX),
        choice("shown", "drawn over n", {"entropy": "entropy share", "effective": "effective keys"}),
    ),
    compute=compute,
    adds_rules=True,
)
