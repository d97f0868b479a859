"""Findings that say the same of several layers and heads, as one: what a person reads. JSON keeps them apart."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rootdk import _views

_ORDER = ("critical", "warning", "note")
_LISTED = 8
_SAME = ("severity", "metric", "threshold", "source", "remedy")


@dataclass(frozen=True, slots=True)
class FindingGroup:
    """One threshold, and all that crossed it."""

    severity: str
    metric: str
    threshold: float
    source: str
    remedy: str
    value: str
    places: str
    count: int


def grouped(audit: Mapping[str, Any]) -> list[FindingGroup]:
    """The findings of an audit's dictionary, the worst first, else in the order in which they come.

    >>> same = {"metric": "max_logit", "severity": "warning", "threshold": 100.0, "source": "s", "remedy": "r"}
    >>> found = [{"layer": f"layers.{i}.attn", "head": 3, "value": 110.0 + i, **same} for i in range(2)]
    >>> [one] = grouped({"layers": [], "findings": found})
    >>> one.value, one.places
    ('110 to 111', 'layers.{0,1}.attn, head 3')
    """
    sizes = {layer["name"]: len(layer["heads"]) for layer in audit["layers"]}
    groups: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for one in audit["findings"]:
        groups.setdefault(tuple(one[name] for name in _SAME), []).append(one)
    found = []
    for key, some in groups.items():
        values = [float(one["value"]) for one in some if one["value"] is not None]
        same = dict(zip(_SAME, key, strict=True))
        found.append(FindingGroup(**same, value=_range(values), places=_places(some, sizes), count=len(some)))
    return sorted(found, key=lambda one: _ORDER.index(one.severity))


def _range(values: Sequence[float]) -> str:
    if not values:
        return "not a number"
    low, high = _views.brief(min(values)), _views.brief(max(values))
    return low if low == high else f"{low} to {high}"


def _places(some: Sequence[Mapping[str, Any]], sizes: Mapping[str, int]) -> str:
    """Layers with their heads; layers of which the same is said are named together."""
    heads: dict[str, list[int]] = {}
    for one in some:
        heads.setdefault(one["layer"], [])
        if one["head"] is not None:
            heads[one["layer"]].append(one["head"])
    together: dict[str, list[str]] = {}
    for layer, numbers in heads.items():
        together.setdefault(_numbers(numbers, sizes.get(layer)), []).append(layer)
    return "; ".join(_names(layers) + words for words, layers in together.items())


def _names(layers: Sequence[str]) -> str:
    """Paths that differ in one part only, with what differs in braces.

    >>> _names(["h.0.attn", "h.1.attn"]), _names(["h.0.attn"])
    ('h.{0,1}.attn', 'h.0.attn')
    """
    parts = [layer.split(".") for layer in layers]
    if len(layers) > 1 and len({len(one) for one in parts}) == 1:
        differ = [place for place in range(len(parts[0])) if len({one[place] for one in parts}) > 1]
        if len(differ) == 1:
            (place,) = differ
            inside = _listed([one[place] for one in parts]).replace(", ", ",")
            return ".".join([*parts[0][:place], f"{{{inside}}}", *parts[0][place + 1 :]])
    return _listed(layers)


def _listed(names: Sequence[str]) -> str:
    if len(names) <= _LISTED:
        return ", ".join(names)
    return f"{', '.join(names[: _LISTED - 2])}, ... {names[-1]}"


def _numbers(heads: Sequence[int], size: int | None) -> str:
    if not heads:
        return ""
    if len(heads) == size:
        return ", all heads"
    return f", head{'s' * (len(heads) > 1)} {_listed([str(head) for head in heads])}"
