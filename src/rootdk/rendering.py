"""How results are rendered: as a table for the terminal or a notebook, as plain lists for JSON, and back."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .errors import ArgumentError

if TYPE_CHECKING:
    from rich.table import Table

Rows = Sequence[Sequence[str]]

# No colours of its own: it takes the notebook's text colour, so that light and dark both read well.
_CELL = "padding:2px 10px;text-align:right;font-variant-numeric:tabular-nums"
_HEAD = _CELL + ";font-weight:600;border-bottom:1px solid currentColor"


def short(value: Any) -> str:
    """A number as a table shows it.

    >>> short(0.123456), short(7), short(float("nan"))
    ('0.123', '7', 'nan')
    """
    number = float(value)
    return f"{int(number)}" if number.is_integer() and abs(number) < 1e6 else f"{number:.3g}"


def brief(value: Any, share: bool = False) -> str:
    """A number in about five characters, for a table of many columns; a share of 1 goes without its leading 0.

    >>> [brief(x) for x in (0.123456, -12.345, 4321.0, 131072, 2e9, 3e-5)]
    ['0.123', '-12.3', '4321', '131k', '2000M', '3e-5']
    >>> [brief(x, share=True) for x in (0.5, 0.9999, 1.0, 2e-7, float("nan"))]
    ['.500', '1.00', '1', '2e-7', 'nan']
    """
    number = float(value)
    if not math.isfinite(number) or number == 0:
        return f"{number:g}"
    if abs(number) < 5e-4 or abs(number) >= 9999.5e9:
        digit, _, power = f"{number:.0e}".partition("e")
        return f"{digit}e{int(power)}"
    if abs(number) < 1:
        text = f"{number:.3f}"
        return (text[1:] if text[0] == "0" else text[:4]) if share else text
    if abs(number) < 999.5:
        return f"{number:.3g}"
    for limit, size, letter in ((99999.5, 1.0, ""), (9999.5e3, 1e3, "k"), (9999.5e6, 1e6, "M")):
        if abs(number) < limit:
            return f"{number / size:.0f}{letter}"
    return f"{number / 1e9:.0f}G"


def html_table(title: str, columns: Sequence[str], rows: Rows) -> str:
    """One self-contained table; every text is escaped."""
    from html import escape

    head = "".join(f'<th style="{_HEAD}">{escape(name)}</th>' for name in columns)
    body = "".join(
        "<tr>" + "".join(f'<td style="{_CELL}">{escape(cell)}</td>' for cell in row) + "</tr>" for row in rows
    )
    return (
        '<div style="overflow:auto;max-height:30em">'
        '<table style="border-collapse:collapse;background:transparent;color:inherit">'
        f'<caption style="caption-side:top;text-align:left;color:inherit;padding:2px 10px">{escape(title)}</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def rich_table(title: str, columns: Sequence[str], rows: Rows) -> Table:
    """A table for a terminal: one blank between columns, and no cell is cut."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(title), title_justify="left", box=box.SIMPLE_HEAD, show_edge=False, padding=0)
    for name in columns:
        table.add_column(Text(name), justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    return table


def encode(array: Any) -> list[Any]:
    """The numbers in C order; JSON has no NaN and no infinity, so these become the words "nan", "inf", "-inf"."""
    flat = np.asarray(array).reshape(-1).tolist()
    return [x if isinstance(x, int) or math.isfinite(x) else str(x) for x in flat]


def decode(numbers: Sequence[Any], dtype: Any, shape: Sequence[int]) -> NDArray[Any]:
    """The array from which encode() made these numbers."""
    return np.array(numbers, dtype).reshape(tuple(shape))


def csv_text(rows: Iterable[Mapping[str, Any]]) -> str:
    """A line of names and a line for each row, comma-separated; an entry that is a mapping becomes columns of its own.

    >>> print(csv_text([{"d_k": 64, "setting": {"rule": "sqrt"}}, {"d_k": 512, "note": "a, b"}]), end="")
    d_k,setting.rule,note
    64,sqrt,
    512,,"a, b"
    """
    import csv
    import io

    flat = [_flat(row) for row in rows]
    names = list(dict.fromkeys(name for row in flat for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)
    return text.getvalue()


def _flat(row: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    entries: dict[str, Any] = {}
    for name, value in row.items():
        entries |= _flat(value, f"{before}{name}.") if isinstance(value, Mapping) else {f"{before}{name}": value}
    return entries


def expect_kind(data: Any, kind: str) -> None:
    """An error unless the dictionary was written for this class."""
    got = data.get("kind") if isinstance(data, dict) else type(data).__name__
    if got != kind:
        raise ArgumentError(f"data: must be a dictionary of kind {kind!r}, got {got!r}")


def expect_fields(data: Any, names: Sequence[str], where: str = "data") -> None:
    """An error that lists what is missing."""
    if not isinstance(data, dict):
        raise ArgumentError(f"{where}: must be a dictionary, got {type(data).__name__}")
    missing = [name for name in names if name not in data]
    if missing:
        wanted, absent = (", ".join(map(repr, listed)) for listed in (names, missing))
        raise ArgumentError(f"{where}: must hold {wanted}, got no {absent}")
