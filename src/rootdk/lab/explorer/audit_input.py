"""An audit that somebody drops on the page: JSON of unknown making, read with a bound and checked before use."""

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rootdk.audit.result import SEVERITIES, VERDICTS
from rootdk.errors import ArgumentError, RootdkError
from rootdk.untrusted import JsonError, parse_json, printable

if TYPE_CHECKING:
    from starlette.requests import Request

_TEXTS = ("layer", "metric", "source", "remedy")
# More than any model has: what is larger is a mistake, and would take long to draw. A map has a row for each layer, and
# all rows are as long as the longest: 256 layers of 128 heads take about two seconds.
MOST_CELLS, MOST_FINDINGS, _LONGEST = 32_768, 100_000, 1000
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
    for name in _TEXTS:
        _text(f"{place}.{name}", finding.get(name))
    for name in ("head", "value", "threshold"):
        if name not in finding:
            raise ArgumentError(f"{place}.{name}: must be there, and is missing")
    head = finding["head"]
    if head is not None and (isinstance(head, bool) or not isinstance(head, int) or not 0 <= head < MOST_CELLS):
        raise ArgumentError(f"{place}.head: must be a whole number below {MOST_CELLS} or null, got {_kind(head)}")
    _number(f"{place}.value", finding["value"])
    _number(f"{place}.threshold", finding["threshold"], null=False)


def _numbers(place: str, by_name: Any) -> None:
    if not isinstance(by_name, Mapping):
        raise ArgumentError(f"{place}: must be an object of numbers, got {_kind(by_name)}")
    for name, value in by_name.items():
        _number(f"{place}.{printable(str(name)[:40])}", value)


def _number(place: str, value: Any, *, null: bool = True) -> None:
    if value is None and null:
        return
    # Compared and not converted: a whole number of 400 digits is no float. A NaN is in no range.
    largest = sys.float_info.max
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not -largest <= value <= largest:
        raise ArgumentError(f"{place}: must be a finite number{' or null' * null}, got {_kind(value)}")


def _text(place: str, value: Any) -> None:
    if not isinstance(value, str) or len(value) > _LONGEST:
        raise ArgumentError(f"{place}: must be a text of at most {_LONGEST} characters, got {_kind(value)}")
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
    """What JSON calls it."""
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
