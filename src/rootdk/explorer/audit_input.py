"""An audit that somebody drops on the page: JSON of unknown making, checked before anything is drawn from it."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from rootdk.errors import ArgumentError

_VERDICTS = ("healthy", "warning", "critical")
_SEVERITIES = ("critical", "warning", "note")
_TEXTS = ("layer", "metric", "source", "remedy")
# More than any model has: what is larger is a mistake, and would take long to draw.
MOST_HEADS, MOST_FINDINGS, _LONGEST = 100_000, 100_000, 1000


def checked_audit(audit: Any) -> Mapping[str, Any]:
    """The audit itself, if it has the shape that `rootdk audit --json` writes; else an error that names the place.

    >>> checked_audit({"verdict": "fine"})
    Traceback (most recent call last):
    ...
    rootdk.errors.ArgumentError: audit.verdict: must be one of healthy, warning, critical, got 'fine'
    """
    if not isinstance(audit, Mapping):
        raise ArgumentError(f"audit: must be the object that `rootdk audit --json` writes, got {_kind(audit)}")
    _choice("audit.verdict", audit.get("verdict"), _VERDICTS)
    layers = _list("audit.layers", audit.get("layers"))
    if not layers:
        raise ArgumentError("audit.layers: must hold at least one layer, got none")
    for number, layer in enumerate(layers):
        _layer(f"audit.layers[{number}]", layer)
    heads = sum(len(layer["heads"]) for layer in layers)
    if not 0 < heads <= MOST_HEADS:
        raise ArgumentError(f"audit.layers: must hold 1 to {MOST_HEADS} heads, got {heads}")
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
    _choice(f"{place}.severity", finding.get("severity"), _SEVERITIES)
    for name in _TEXTS:
        _text(f"{place}.{name}", finding.get(name))
    head = finding.get("head")
    if head is not None and (isinstance(head, bool) or not isinstance(head, int)):
        raise ArgumentError(f"{place}.head: must be a whole number or null, got {_kind(head)}")
    for name in ("value", "threshold"):
        _number(f"{place}.{name}", finding.get(name))


def _numbers(place: str, given: Any) -> None:
    if not isinstance(given, Mapping):
        raise ArgumentError(f"{place}: must be an object of numbers, got {_kind(given)}")
    for name, value in given.items():
        _number(f"{place}.{str(name)[:40]}", value)


def _number(place: str, value: Any) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ArgumentError(f"{place}: must be a finite number or null, got {_kind(value)}")


def _text(place: str, value: Any) -> None:
    if not isinstance(value, str) or len(value) > _LONGEST:
        raise ArgumentError(f"{place}: must be a text of at most {_LONGEST} characters, got {_kind(value)}")


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
    if isinstance(value, (bool, int, float)):
        return repr(value)[:40]
    names = {type(None): "nothing", str: "a text", list: "a list", dict: "an object"}
    return names.get(type(value), type(value).__name__)
