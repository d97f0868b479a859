"""What the page sends, and the state that its address has, checked and bounded: text in, values to compute with out.

The bounds are what keeps every computation short, so nothing reaches a chapter that did not come through here.

An audit that somebody drops on the page: JSON of unknown origin, read up to a size and checked before use.
"""

import math
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote

from rootdk.audit.result import SEVERITIES, VERDICTS
from rootdk.errors import ArgumentError, RootdkError
from rootdk.files import JsonError, parse_json, printable

from .chapter import Chapter, Control

if TYPE_CHECKING:
    from starlette.requests import Request

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
    # Compared without conversion: a whole number of a thousand digits does not fit into a float.
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


TEXTS = ("layer", "metric", "source", "remedy")
# More than any model has: what is larger is a mistake, and would take long to draw. A map has a row for each layer, and
# all rows are as long as the longest: 256 layers of 128 heads take about two seconds.
MOST_CELLS, MOST_FINDINGS, _LONGEST_WORD = 32_768, 100_000, 1000
# An audit of 100 layers of 128 heads is near 8 MB.
LARGEST_BODY = 16 * 2**20


def checked_audit(audit: Any) -> Mapping[str, Any]:
    """The audit itself, if it has the shape that `rootdk audit --json` writes; else an error that names the place.

    >>> checked_audit({"verdict": "fine"})
    Traceback (most recent call last):
    ...
    rootdk.errors.ArgumentError: audit.verdict: must be one of healthy, unjudged, warning, critical, got 'fine'
    """
    if not isinstance(audit, Mapping):
        raise ArgumentError(f"audit: must be the object that `rootdk audit --json` writes, got {_kind(audit)}")
    _choice("audit.verdict", audit.get("verdict"), VERDICTS[::-1])
    layers = _list("audit.layers", audit.get("layers"))
    if not layers:
        raise ArgumentError("audit.layers: must hold at least one layer, got none")
    for number, layer in enumerate(layers):
        _layer(f"audit.layers[{number}]", layer)
    widest = max(len(layer["heads"]) for layer in layers)
    if not 0 < len(layers) * widest <= MOST_CELLS:
        got = f"{len(layers)} layers of up to {widest} heads"
        raise ArgumentError(f"audit.layers: must make a map of 1 to {MOST_CELLS} cells, got {got}")
    findings = _list("audit.findings", audit.get("findings"))
    if len(findings) > MOST_FINDINGS:
        raise ArgumentError(f"audit.findings: must hold at most {MOST_FINDINGS}, got {len(findings)}")
    for number, finding in enumerate(findings):
        _finding(f"audit.findings[{number}]", finding)
    return audit


def _layer(place: str, layer: Any) -> None:
    if not isinstance(layer, Mapping):
        raise ArgumentError(f"{place}: must be an object with name and heads, got {_kind(layer)}")
    _text(f"{place}.name", layer.get("name"))
    for number, head in enumerate(_list(f"{place}.heads", layer.get("heads"))):
        _numbers(f"{place}.heads[{number}]", head)
    _numbers(f"{place}.baseline", layer.get("baseline", {}))


def _finding(place: str, finding: Any) -> None:
    if not isinstance(finding, Mapping):
        raise ArgumentError(f"{place}: must be an object, got {_kind(finding)}")
    _choice(f"{place}.severity", finding.get("severity"), SEVERITIES)
    for name in TEXTS:
        _text(f"{place}.{name}", finding.get(name))
    for name in ("head", "value", "threshold"):
        if name not in finding:
            raise ArgumentError(f"{place}.{name}: must be there, and is missing")
    head = finding["head"]
    if head is not None and (isinstance(head, bool) or not isinstance(head, int) or not 0 <= head < MOST_CELLS):
        raise ArgumentError(f"{place}.head: must be a whole number below {MOST_CELLS} or null, got {_kind(head)}")
    _check_number(f"{place}.value", finding["value"])
    _check_number(f"{place}.threshold", finding["threshold"], null=False)


def _numbers(place: str, by_name: Any) -> None:
    if not isinstance(by_name, Mapping):
        raise ArgumentError(f"{place}: must be an object of numbers, got {_kind(by_name)}")
    for name, value in by_name.items():
        _check_number(f"{place}.{printable(str(name)[:40])}", value)


def _check_number(place: str, value: Any, *, null: bool = True) -> None:
    if value is None and null:
        return
    # Compared without conversion: a whole number of 400 digits does not fit into a float. A NaN is in no range.
    largest = sys.float_info.max
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not -largest <= value <= largest:
        raise ArgumentError(f"{place}: must be a finite number{' or null' * null}, got {_kind(value)}")


def _text(place: str, value: Any) -> None:
    if not isinstance(value, str) or len(value) > _LONGEST_WORD:
        raise ArgumentError(f"{place}: must be a text of at most {_LONGEST_WORD} characters, got {_kind(value)}")
    if any("\ud800" <= letter <= "\udfff" for letter in value):
        raise ArgumentError(
            f"{place}: must be a text that UTF-8 can hold, got {value[:40]!r}, which has half a character"
        )


def _choice(place: str, value: Any, known: Sequence[str]) -> None:
    if not isinstance(value, str) or value not in known:
        got = repr(value[:40]) if isinstance(value, str) else _kind(value)
        raise ArgumentError(f"{place}: must be one of {', '.join(known)}, got {got}")


def _list(place: str, value: Any) -> Sequence[Any]:
    if not isinstance(value, list):
        raise ArgumentError(f"{place}: must be a list, got {_kind(value)}")
    return value


def _kind(value: Any) -> str:
    """The name of its type in JSON."""
    if isinstance(value, int) and value.bit_length() > sys.float_info.max_exp:
        return f"a whole number of {value.bit_length()} bits"  # Python refuses to write out the longest ones
    if isinstance(value, (bool, int, float)):
        return repr(value)[:40]
    names = {type(None): "nothing", str: "a text", list: "a list", dict: "an object"}
    return names.get(type(value), type(value).__name__)


class BodyError(RootdkError):
    """A body that is too large, of another type, or no JSON object; `status` is HTTP's."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"audit: {message}")
        self.status = status


async def read_body(request: "Request") -> bytes:
    """The text of a JSON object, at most LARGEST_BODY bytes. What is too large is not read to its end."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise BodyError(415, f"must come as application/json, got {kind[:60] or 'no content type'}")
    if int(request.headers.get("content-length", "0")) > LARGEST_BODY:
        raise _too_large()
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > LARGEST_BODY:
            raise _too_large()
    return bytes(body)


def parsed(body: bytes) -> dict[str, Any]:
    """The object in the text of at most LARGEST_BODY bytes; numbers must be finite, as JSON has it.

    >>> parsed(b'{"verdict": "healthy"}')
    {'verdict': 'healthy'}
    """
    if len(body) > LARGEST_BODY:
        raise _too_large()
    try:
        audit = parse_json(body, constants=False, halves=True)
    except JsonError as error:
        raise BodyError(422, f"must be JSON: {error}") from error
    if not isinstance(audit, dict):
        raise BodyError(422, f"must be a JSON object, got {type(audit).__name__}")
    return audit


def _too_large() -> BodyError:
    return BodyError(413, f"must be at most {LARGEST_BODY} bytes long")
