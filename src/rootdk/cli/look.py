"""`rootdk look`: what the scale does to random q and k, as one table."""

import re
import textwrap
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import click

from . import options

if TYPE_CHECKING:
    from rootdk.lab.first_look import Look


@click.command()
@options.d_k()
@options.rule()
@options.keys()
@options.number("--rows", 1, 65_536, 1024, "Number of queries to measure.")
@options.seed("Seed of the random q and k.")
@options.data("Print JSON instead of a table.", "one row per d_k and rule")
def look(
    d_k: tuple[int, ...], rule: tuple[str, ...], keys: int, rows: int, seed: int, as_json: bool, as_csv: bool
) -> None:
    """What the scale does, in one table.

    Measures the same random q and k with every rule.
    """
    from rootdk.lab.first_look import look as measured
    from rootdk.lab.first_look import meaning

    looks = measured(d_k, rule, keys, rows, seed)
    dicts, words = [look.to_dict() for look in looks], meaning(looks)
    plain = {"seed": seed, "looks": dicts, "meaning": words}
    options.show(as_json, as_csv, plain, dicts, lambda width: _lines(looks, words, width))


_HEADINGS = ("score variance", "entropy share", "effective keys", "rows of one key", "Jacobian trace")
_WORDS = (
    "Entropy share: entropy / ln n; 1 is equal weights. Effective keys: 1 / sum p^2, of the median row. Rows of one "
    "key: one key has over 99 % of the weight. Jacobian trace: 1 - sum p^2; near 0 the weights can hardly change."
)


def _lines(looks: Sequence["Look"], meaning: str, width: int) -> Iterator[str]:
    """What it means, what was done, the table and its notes."""
    from rootdk.lab.first_look import RULE_WORDS, rule_label
    from rootdk.scaling import rule

    yield from filled(meaning, width)
    yield ""
    labels = {look.rule: rule_label(look.rule) for look in looks}
    # Formulas stay in one piece.
    formulas = [f"{name} = {rule(name).formula}".replace(" ", "\0") for name in labels if name not in RULE_WORDS]
    listed = f": {', '.join(formulas)}" if formulas else ""
    yield from filled(
        f"{looks[0].rows} random queries over {looks[0].keys} keys. Each score is multiplied by a scale{listed}.", width
    )
    names = max(map(len, labels.values()))
    tops, lows = zip(*map(in_two_lines, _HEADINGS), strict=True)
    rows = [
        ("", "", *tops),
        ("d_k", "scale", *lows),
        *((str(look.d_k), labels[look.rule], *look.shown().values()) for look in looks),
    ]
    widths = [max(map(len, column)) for column in list(zip(*rows, strict=True))[2:]]
    for d_k, label, *cells in rows:
        aligned = (f" {cell:>{size}}" for cell, size in zip(cells, widths, strict=True))
        yield f"{d_k:>4} {label:<{names}}{''.join(aligned)}"
    yield from filled(_WORDS, width)


def in_two_lines(heading: str) -> tuple[str, str]:
    """The two halves of its words.

    >>> in_two_lines("rows of one key")
    ('rows of', 'one key')
    """
    words = heading.split()
    half = len(words) // 2
    return " ".join(words[:half]), " ".join(words[half:])


def filled(text: str, width: int) -> list[str]:
    """Lines of at most `width` columns, and of at most 100; no line breaks around a = or before a %."""
    # A character that no text holds stands for such a space while the lines are made.
    unbroken = re.sub(r" (?=[=%])|(?<=[=]) ", "\0", text)
    lines = textwrap.wrap(unbroken, min(width, 100), break_long_words=False, break_on_hyphens=False)
    return [line.replace("\0", " ") for line in lines]
