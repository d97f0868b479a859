"""What the page sends, and the state that its address has, checked and bounded: text in, values to compute with out.

The bounds are what keeps every computation short, so nothing reaches a chapter that did not come through here.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qsl, unquote

from rootdk.errors import ArgumentError

from .chapter import Chapter, Control

# ASCII digits only: int() and float() also take "1_000", "nan" and digits of other scripts.
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,3})?", re.ASCII)
_WHOLE = re.compile(r"[+-]?\d+", re.ASCII)
_FLAGS = {"true": True, "false": False, "1": True, "0": False}
_LONGEST = 2000


class RefusedValueError(ArgumentError):
    """A value that cannot be used; `name` is the knob's."""

    def __init__(self, name: str, expected: str, got: str) -> None:
        super().__init__(f"{name}: {expected}, got {_short(got)}")
        self.name = name


def read_values(chapter: Chapter, raw: Mapping[str, str]) -> dict[str, Any]:
    """The value of every knob of the chapter; for one that is not in `raw` its default, or what a choice sets.

    An int, a float, a bool, the text of a choice, or for "numbers" a tuple of rows, each a tuple of floats.
    """
    known = {control.name: control for control in chapter.controls}
    for name in raw:
        if name not in known:
            names = ", ".join(known) or "no parameter"
            raise RefusedValueError(
                _short(name, quote=False), f"must be one of {names} in the chapter {chapter.id!r}", name
            )
    defaults = {name: text_of(control) for name, control in known.items()}
    for name, control in known.items():
        if control.sets:
            defaults |= control.sets.get(read_value(control, raw.get(name, defaults[name])), {})
    return {name: read_value(control, raw.get(name, defaults[name])) for name, control in known.items()}


def read_value(control: Control, text: str) -> Any:
    """The value of one knob, or RefusedValueError.

    >>> read_value(Control("d_k", "d_k", "int", 64, 1, 1024), "128")
    128
    >>> read_value(Control("keys", "keys", "numbers", "1 0", -9, 9, rows=2, columns=2), "1 0; -.5, 2")
    ((1.0, 0.0), (-0.5, 2.0))
    """
    if len(text) > _LONGEST:
        raise RefusedValueError(control.name, f"must be at most {_LONGEST} characters long", text)
    text = text.strip()
    if control.kind == "choice":
        if text not in control.choices:
            raise RefusedValueError(control.name, f"must be one of {', '.join(control.choices)}", text)
        return text
    if control.kind == "flag":
        if text.lower() not in _FLAGS:
            raise RefusedValueError(control.name, "must be true or false", text)
        return _FLAGS[text.lower()]
    if control.kind == "numbers":
        return _matrix(control, text)
    return _number(control, text, whole=control.kind == "int")


def text_of(control: Control) -> str:
    """The default as the page would send it."""
    return str(control.default).lower() if control.kind == "flag" else str(control.default)


def _number(control: Control, text: str, whole: bool = False) -> float | int:
    if not (_WHOLE if whole else _NUMBER).fullmatch(text):
        raise RefusedValueError(control.name, f"must be a {'whole ' if whole else ''}number{_within(control)}", text)
    value = int(text) if whole else float(text)
    low = -math.inf if control.low is None else control.low
    high = math.inf if control.high is None else control.high
    # Compared as it is: a whole number of a thousand digits is no float.
    if not low <= value <= high or abs(value) == math.inf:
        raise RefusedValueError(control.name, f"must be a number{_within(control)}", text)
    return value


def _matrix(control: Control, text: str) -> tuple[tuple[float, ...], ...]:
    lines = [line for line in re.split(r"[;\n]", text) if line.strip()]
    if not lines:
        raise RefusedValueError(control.name, "must hold at least one number", text)
    if control.rows is not None and len(lines) > control.rows:
        raise RefusedValueError(control.name, f"must have at most {control.rows} rows", f"{len(lines)} rows")
    rows = tuple(
        tuple(float(_number(control, entry)) for entry in re.split(r"[,\s]+", line.strip(" ,\t\r"))) for line in lines
    )
    widths = sorted({len(row) for row in rows})
    if len(widths) > 1:
        lengths = " and ".join(map(str, widths))
        raise RefusedValueError(control.name, "must have rows of one length", f"rows of {lengths}")
    if control.columns is not None and widths[0] > control.columns:
        raise RefusedValueError(
            control.name, f"must have at most {control.columns} numbers in a row", f"{widths[0]} numbers"
        )
    return rows


def _within(control: Control) -> str:
    if control.low is None or control.high is None:
        return ""
    return f" from {control.low:g} to {control.high:g}"


def _short(text: str, quote: bool = True) -> str:
    cut = text if len(text) <= 40 else f"{text[:40]}..."
    return repr(cut) if quote else cut


def read_address(text: str) -> tuple[str, dict[str, str]]:
    """Chapter and values; the whole link of a view may be given too.

    >>> read_address("http://127.0.0.1:8765/#growth?d_k=512&rule=none")
    ('growth', {'d_k': '512', 'rule': 'none'})
    """
    chapter, _, query = text.rpartition("#")[2].partition("?")
    return unquote(chapter), dict(parse_qsl(query, keep_blank_values=True))


def started_at(chapters: tuple[Chapter, ...], text: str) -> tuple[str, tuple[Chapter, ...]]:
    """The chapter of an address, and the chapters with its values as the defaults of their knobs.

    An unknown chapter or knob, or a value out of bounds, is an error that names it.
    """
    wanted, raw = read_address(text)
    known = [chapter.id for chapter in chapters]
    if wanted not in known:
        raise ArgumentError(f"at: must begin with a chapter, one of {', '.join(known)}, got {wanted!r}")
    return wanted, tuple(_moved(chapter, raw) if chapter.id == wanted else chapter for chapter in chapters)


def _moved(chapter: Chapter, raw: dict[str, str]) -> Chapter:
    values = read_values(chapter, raw)
    # Numbers in rows stay the text that they were written as, as their defaults are.
    defaults = {knob.name: raw[knob.name] if knob.kind == "numbers" else values[knob.name]
                for knob in chapter.controls if knob.name in raw}  # fmt: skip
    controls = (replace(knob, default=defaults.get(knob.name, knob.default)) for knob in chapter.controls)
    return replace(chapter, controls=tuple(controls))
