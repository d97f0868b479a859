"""The answer in two sentences and one picture, with the reader's own numbers: what every first screen opens with."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rootdk.attention import attention
from rootdk.theory import predict

from .checks.comparison import Result
from .drawing import COLOURS, Picture, bars, plot
from .first_look import RULE_WORDS, RULES

WIDTHS = (4, 64, 512)
_KEYS = 16  # of the picture: steps that a person can tell apart


def answer(d_k: int, keys: int, shares: Mapping[str, tuple[float, float]] | None = None) -> str:
    """Why the scale is 1/√d_k, for this d_k and number of keys.

    shares   for "none" and "sqrt": the share of rows in which one key has over 99 % of the weight, and the entropy of
             the weights as a share of ln n, its largest value. Without them those of theory.

    >>> print(answer(512, 1024))
    Because q·k is a sum of d_k products: its variance is d_k, and dividing by √d_k makes it 1 at every width. Without \
the scale, 49 % of rows at d_k = 512 give one key over 99 % of the weight; with it, none do.
    >>> print(answer(4, 16).partition("width. ")[2])
    Without the scale, the weights at d_k = 4 keep 64 % of the largest entropy they could have; with it, 86 %.
    """
    if shares is None:
        laws = {rule: predict(d_k, keys, rule) for rule in ("none", "sqrt")}
        shares = {rule: (float(law.saturated[0]), float(law.mean_entropy_ratio[0])) for rule, law in laws.items()}
    (alone, entropy), (alone_scaled, entropy_scaled) = shares["none"], shares["sqrt"]
    why = "Because q·k is a sum of d_k products: its variance is d_k, and dividing by √d_k makes it 1 at every width."
    if alone >= 0.05:
        scaled = "none do" if alone_scaled < 5e-4 else f"{_percent(alone_scaled)} do"
        consequence = (
            f"{_percent(alone)} of rows at d_k = {d_k} give one key over 99 % of the weight; with it, {scaled}."
        )
    else:
        consequence = (
            f"the weights at d_k = {d_k} keep {_percent(entropy)} of the largest entropy they could have; with it, "
            f"{_percent(entropy_scaled)}."
        )
    return f"{why} Without the scale, {consequence}"


def answer_of(rules: Result) -> str:
    """The same at the largest d_k of the experiment "rules", whose result already has the numbers of theory.

    It uses theory and not the measurement beside it: so the sentence is the same on every screen, whatever the seed.
    """
    d_k, keys = max(rules.spec["d_k"]), rules.spec["keys"]
    shares = {}
    for rule in ("none", "sqrt"):
        names = ("rows of one key", "entropy share")
        predicted = [
            float(comparison.predicted) for name in names for comparison in rules.select(name, d_k=d_k, rule=rule)
        ]
        if len(predicted) == len(names):
            shares[rule] = (predicted[0], predicted[1])
    return answer(d_k, keys, shares if len(shares) == 2 else None)


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share >= 0.095 else f"{100 * share:.1f} %"


def one_row(
    query: NDArray[Any], key: NDArray[Any], scales: Mapping[str, float | str] | None = None
) -> dict[str, NDArray[Any]]:
    """The weights that the first query gives the keys under each scale, largest first, by the operator itself.

    scales   by name; without them the three usual rules
    """
    unit = np.eye(len(key), dtype=key.dtype)
    chosen = scales or {rule: rule for rule in RULES}
    return {name: np.sort(attention(query[:1], key, unit, scale=scale)[0])[::-1] for name, scale in chosen.items()}


def rows_as_widths_grow() -> dict[int, dict[str, NDArray[Any]]]:
    """`one_row` at d_k = 4, 64 and 512: the same first components, so that only the width and the rule differ."""
    rng = np.random.default_rng(0)
    query, key = rng.standard_normal((1, WIDTHS[-1])), rng.standard_normal((_KEYS, WIDTHS[-1]))
    return {d_k: one_row(query[:, :d_k], key[:, :d_k]) for d_k in WIDTHS}


def rows_svg(rows: Mapping[int, Mapping[str, NDArray[Any]]]) -> str:
    """The rows as one drawing: a rule in each line, a d_k in each column, a bar for each key, all from 0 to 1.

    It needs no script, so that it is there when the page opens. Text takes the page's colour.
    """
    left, wide, high, top = 54, 102, 56, 22  # narrow, so that letters can be read on a phone
    parts = []
    for column, d_k in enumerate(rows):
        x = left + column * (wide + 8)
        name = f"d<tspan dy='3' font-size='9'>k</tspan><tspan dy='-3'> = {d_k}</tspan>"
        parts.append(f"<text x='{x + wide / 2:g}' y='14' text-anchor='middle' font-weight='600'>{name}</text>")
    for line, rule in enumerate(RULES):
        y = top + line * (high + 22)
        words = RULE_WORDS[rule].replace("d_k", "d<tspan dy='3' font-size='9'>k</tspan>")
        parts.append(f"<text x='0' y='{y + high / 2 + 4:g}' font-weight='600'>{words}</text>")
        for column, row in enumerate(rows.values()):
            x, weights = left + column * (wide + 8), row[rule]
            step = wide / len(weights)
            parts.append(f"<path d='M{x} {y + high}h{wide}' stroke='currentColor' stroke-opacity='.4'/>")
            parts += [
                f"<rect x='{x + at * step:.1f}' y='{y + high * (1 - weight):.1f}' width='{step - 1.5:.1f}' "
                f"height='{high * weight:.1f}' fill='{COLOURS[rule]}'/>"
                for at, weight in enumerate(weights)
            ]
            largest = f"largest {100 * weights[0]:.0f} %"
            parts.append(f"<text x='{x + wide}' y='{y + high + 13}' text-anchor='end' font-size='11'>{largest}</text>")
    size = (left + len(rows) * (wide + 8), top + len(RULES) * (high + 22))
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {size[0]} {size[1]}' fill='currentColor' "
        f"font-family='system-ui, sans-serif' font-size='12' aria-hidden='true'>{''.join(parts)}</svg>"
    )


def rows_text(rows: Mapping[int, Mapping[str, NDArray[Any]]]) -> str:
    """What the drawing shows, in a sentence with its numbers."""
    tops = "; ".join(
        f"{RULE_WORDS[rule]}: {', '.join(f'{100 * row[rule][0]:.0f} % at d_k = {d_k}' for d_k, row in rows.items())}"
        for rule in RULES
    )
    return f"One random query over {_KEYS} keys. Each bar is one key, the largest weight first. Largest weight: {tops}."


def rows_pictures() -> list[Picture]:
    """The same as figures of their own, one for each d_k, on the same axes."""
    pictures = []
    for d_k, row in rows_as_widths_grow().items():
        traces = [bars(range(1, _KEYS + 1), row[rule], RULE_WORDS[rule], COLOURS[rule]) for rule in RULES]
        figure = plot(traces, "key, by weight", "weight", barmode="group", yaxis={"range": [0, 1]})
        caption = f"One random query over {_KEYS} keys, the largest weight first, under each rule."
        pictures.append(Picture(f"one-row-{d_k}", f"The weights of one row, d_k = {d_k}", caption, figure))
    return pictures


def worked_example() -> tuple[Sequence[str], list[list[str]]]:
    """Three keys, d_k = 64, q·k = 14, 10 and 12: what softmax makes of them without the scale and with it."""
    query, key = np.zeros((1, 64)), np.zeros((3, 64))
    query[0, 0], key[:, 0] = 2, (7, 5, 6)
    scores, scaled = (query @ key.T)[0], (query @ key.T)[0] / 8
    plain, even = (attention(query, key, np.eye(3), scale=rule)[0] for rule in ("none", "sqrt"))
    head = ("key", "score q·k", "weight without the scale", "z = q·k / √64", "e^z", "weight: e^z / sum of all e^z")
    cells = zip(scores, plain, scaled, np.exp(scaled), even, strict=True)
    return head, [[str(place), *(f"{x:.4g}" for x in row)] for place, row in enumerate(cells, 1)]
