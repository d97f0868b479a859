"""Long contexts: what the number of keys does, up to a billion, and what rules with ln n make of it."""

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

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


class _Drawn(NamedTuple):
    """A rule as it is drawn; setting is (name, s, d_k), the key of the cache."""

    words: str
    hue: str
    dash: str
    setting: tuple[str, float, int]


def _drawn(values: Values, added: Sequence[str]) -> list[_Drawn]:
    """The rules above and those that were added; s and d_k are always the same where a rule does not depend on them."""
    s, d_k = values["s"], values["d_k"]
    rules = [
        _Drawn(words, hue, "solid", (name, s if name == "ssmax" else 1.0, d_k if name == "none" else 64))
        for name, (words, hue) in _NAMES.items()
    ]
    return rules + [_Drawn(rule, colour(rule, place), "dash", (rule, 1.0, d_k)) for place, rule in enumerate(added)]


def compute(values: Values, added: tuple[str, ...] = ()) -> View:
    """Rows whose scores are N(0, sigma^2): every query of length sqrt(d_k). Exact for any number of keys."""
    keys, added = values["keys"], tuple(rule for rule in added if rule not in _NAMES)
    rules = _drawn(values, added)
    sigma = np.array([float(_sigma(*rule.setting, keys)) for rule in rules])
    moments = softmax_moments(keys, sigma)
    entropy, critical = moments.entropy / math.log(keys), float(critical_sigma(keys))
    numbers = [number("critical", "√(2 ln n): above it a few keys take all the weight", critical, "theory")]
    for rule, share in zip(rules, entropy, strict=True):
        numbers.append(number(f"entropy_{rule.setting[0]}", f"{rule.words}: entropy share", share, "theory"))

    def lines(which: int, **more: Any) -> list[dict[str, Any]]:
        return [line(_LENGTHS, _curve(*rule.setting)[which], *rule[:3], **more) for rule in rules]

    def listed(by_rule: Array) -> str:
        return ", ".join(f"{rule.words} {written(y, 3)}" for rule, y in zip(rules, by_rule, strict=True))

    axis: dict[str, Any]
    if values["shown"] == "entropy":
        label, defined, which, at_n = "entropy share", "entropy / ln n; 1 is equal weights", 1, entropy
        axis = {"range": [0, 1.05]}
    else:
        label, defined, which, at_n = "effective keys", "1 / mean of ∑p²", 2, 1 / moments.p_squared
        axis = POWERS
    marks = [points([keys], [y], rule.words, rule.hue, showlegend=False) for rule, y in zip(rules, at_n, strict=True)]
    axis_and_mark = {"xaxis": _AXIS, "shapes": [upright(keys)]}
    shares = plot([*lines(which), *marks], "keys n", label, yaxis=axis, **axis_and_mark)
    frozen = line(_LENGTHS, critical_sigma(_LENGTHS), "√(2 ln n)", GREY, "dash")
    spread = plot([*lines(0, showlegend=False), frozen], "keys n", "σ", yaxis=ONES_AND_THREES, **axis_and_mark)
    title = label.capitalize()
    text = f"Standard deviation of the scores at {keys:,} keys: {listed(sigma)}; "
    text += f"above {written(critical, 3)}, the dashed line, a few keys take all the weight."
    figures = (
        Figure("shares", title, shares, f"{title} ({defined}) at {keys:,} keys: {listed(at_n)}."),
        Figure("spread", "Spread of the scores (the same colours)", spread, text),
    )
    return View(figures, tuple(numbers), _python(values, added))


def _python(values: Values, added: Sequence[str]) -> str:
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
