"""What every view of an audit shows: the metrics in their order, short names, findings in groups."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rootdk import rendering

from .result import SEVERITIES
from .thresholds import DEVIATION
from .thresholds import LAYERS as _LAYERS

_LISTED = 8
_SAME = ("severity", "metric", "threshold", "source")
# A note on more groups of heads than this names only the layers: nobody reads a longer list, and JSON has them all.
_MOST_PLACES = 3
# The number in a remedy that differs from layer to layer.
_OWN_NUMBER = re.compile(r"(?<=divide the scale by )[0-9.e+-]*[0-9]")


@dataclass(frozen=True, slots=True)
class Metric:
    """One number per head.

    short    a heading of a few words
    words    what it is
    share    whether it lies between 0 and 1; elsewhere factors matter and not differences: colours follow the logarithm
    """

    name: str
    short: str
    words: str
    share: bool = False


METRICS = (
    Metric(
        "logit_deviation",
        "score std",
        "Standard deviation of the scores inside a row, median over rows. Past √(2 ln n) few keys take all the weight.",
    ),
    Metric("max_logit", "largest score", "The largest score of any row, after the scale."),
    Metric(
        "entropy_ratio",
        "entropy share",
        "Entropy / ln n of the weights of a row, median over rows: 1 is equal weights, 0 is one key.",
        share=True,
    ),
    Metric(
        "saturated", "rows of one key", "Share of the rows in which one key has over 99 % of the weight.", share=True
    ),
    Metric(
        "jacobian_trace",
        "Jacobian trace",
        "1 - ∑p², the trace of the softmax Jacobian, median over rows: near 0 no gradient passes.",
        share=True,
    ),
    Metric("cap_ratio", "logit / softcap", "The largest logit before the cap, over the cap."),
    Metric(
        "predicted_deviation",
        "predicted deviation",
        "Standard deviation of the logits that the weights make of an input of independent unit components.",
    ),
    Metric("spectral_bound", "bound of the logits", "No input of norm √m, m its width, gives a larger logit."),
    Metric("gain_bound", "bound by the gains", "After QK-norm no input at all gives a larger logit."),
)


def present(layers: Sequence[Mapping[str, Any]]) -> list[Metric]:
    """The metrics that at least one head has a number for."""
    measured = {
        name for layer in layers for head in layer["heads"] for name, value in head.items() if value is not None
    }
    return [metric for metric in METRICS if metric.name in measured]


def grid(layers: Sequence[Mapping[str, Any]], name: str) -> list[list[float]]:
    """One row per layer and one number per head; NaN where there is none."""
    widest = max(len(layer["heads"]) for layer in layers)
    rows = []
    for layer in layers:
        values = [head.get(name) for head in layer["heads"]]
        row = [math.nan if value is None else float(value) for value in values]
        rows.append(row + [math.nan] * (widest - len(row)))
    return rows


def short_names(names: Sequence[str], width: int = 80) -> list[str]:
    """Module paths shortened to what distinguishes them: parts that all of them share are left out, long words are cut.

    >>> short_names(["bert.layer.0.attention.self", "bert.layer.1.attention.self"])
    ['0', '1']
    >>> short_names(["encoder.block.0.SelfAttention", "decoder.block.0.EncDecAttention"])
    ['encoder.SelfAttention', 'decoder.EncDecAttention']
    >>> short_names(["encoder.block.0.SelfAttention", "decoder.block.1.EncDecAttention"], width=12)
    ['enc.0.Sel', 'dec.1.Enc']
    >>> short_names(["attn"])
    ['attn']
    """
    parts = [name.split(".") for name in names]
    if len({len(words) for words in parts}) == 1 and len(set(names)) > 1:
        differing = [place for place in range(len(parts[0])) if len({words[place] for words in parts}) > 1]
        parts = [[words[place] for place in differing] for words in parts]
    shortened = [".".join(words) for words in parts]
    if max(map(len, shortened), default=0) <= width:
        return shortened
    shortened = [".".join(word if word.isdigit() else word[:3] for word in words) for words in parts]
    # If even that is too long, keep the end, which distinguishes better than the beginning.
    return [name if len(name) <= width else "…" + name[1 - width :] for name in shortened]


@dataclass(frozen=True, slots=True)
class FindingGroup:
    """One threshold, and all findings that crossed it.

    value, limit   with enough digits to tell them apart. The limit of a note that only states a number is empty.
    """

    severity: str
    metric: str
    source: str
    remedy: str
    value: str
    limit: str
    places: str


def grouped(audit: Mapping[str, Any]) -> list[FindingGroup]:
    """The findings of an audit's dictionary, the worst first, else in the order in which they come.

    >>> same = {"metric": "max_logit", "severity": "warning", "threshold": 100.0, "source": "s", "remedy": "r"}
    >>> findings = [{"layer": f"layers.{i}.attn", "head": 3, "value": 110.0 + i, **same} for i in range(2)]
    >>> [group] = grouped({"layers": [], "findings": findings})
    >>> group.value, group.limit, group.places
    ('110 to 111', '100', 'layers.{0,1}.attn, head 3')
    """
    sizes = {layer["name"]: len(layer["heads"]) for layer in audit["layers"]}
    groups: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for finding in audit["findings"]:
        # With marks in place of the layer and its number a remedy is the same for all layers.
        remedy = _OWN_NUMBER.sub(DEVIATION, str(finding["remedy"]).replace(repr([finding["layer"]]), _LAYERS))
        groups.setdefault((*(finding[name] for name in _SAME), remedy), []).append(finding)
    merged = []
    for (*same, marked), members in groups.items():
        values = [float(finding["value"]) for finding in members if finding["value"] is not None]
        layers = list(dict.fromkeys(finding["layer"] for finding in members))
        severity, metric, threshold, source = same
        value, limit = _against(values, float(threshold))
        if severity == "note" and (threshold == 0 or value == limit):
            limit = ""
        places = _places(members, sizes, brief=severity == "note")
        remedy = _together(marked, members).replace(_LAYERS, repr(layers))
        merged.append(FindingGroup(severity, metric, source, remedy, value, limit, places))
    return sorted(merged, key=lambda group: SEVERITIES.index(group.severity))


def _together(remedy: str, findings: Sequence[Mapping[str, Any]]) -> str:
    """The remedy of all, with the range of their numbers."""
    numbers = [float(match[0]) for finding in findings if (match := _OWN_NUMBER.search(str(finding["remedy"])))]
    return remedy.replace(DEVIATION, _range(numbers)) if numbers else remedy


def _against(values: Sequence[float], limit: float) -> tuple[str, str]:
    """The range of the values, and the limit, with enough digits to tell them apart.

    >>> _against([2.1, 3.0], 2.0), _against([2.7791], 2.7784)
    (('2.1 to 3', '2'), ('2.779', '2.778'))
    """
    ends = {end for end in (min(values, default=limit), max(values, default=limit)) if end != limit}
    for show in (rendering.brief, *(f"{{:.{digits}g}}".format for digits in range(4, 17))):
        if show(limit) not in map(show, ends):
            break
    return _range(values, show), show(limit)


def _range(values: Sequence[float], show: Callable[[float], str] = rendering.brief) -> str:
    if not values:
        return "not a number"
    low, high = show(min(values)), show(max(values))
    return low if low == high else f"{low} to {high}"


def _places(findings: Sequence[Mapping[str, Any]], sizes: Mapping[str, int], brief: bool = False) -> str:
    """Layers with their heads; layers for which the same holds are named together."""
    heads: dict[str, list[int]] = {}
    for finding in findings:
        heads.setdefault(finding["layer"], [])
        if finding["head"] is not None:
            heads[finding["layer"]].append(finding["head"])
    together: dict[str, list[str]] = {}
    for layer, numbers in heads.items():
        together.setdefault(_numbers(numbers, sizes.get(layer)), []).append(layer)
    if brief and len(together) > _MOST_PLACES:
        count = f"{len(heads)} of {counted(len(sizes or heads), 'layer')}"
        return f"heads of {count}, from {next(iter(heads))} to {next(reversed(heads))}"
    return "; ".join(named(layers) + words for words, layers in together.items())


def counted(number: int, word: str) -> str:
    """1 layer, 2 layers."""
    return f"{number} {word}{'' if number == 1 else 's'}"


def named(layers: Sequence[str]) -> str:
    """Paths that differ in one part only, with what differs in braces.

    >>> named(["h.0.attn", "h.1.attn"]), named(["h.0.attn"])
    ('h.{0,1}.attn', 'h.0.attn')
    """
    if list(layers) == [""]:
        return "the whole model"
    parts = [layer.split(".") for layer in layers]
    if len(layers) > 1 and len({len(path) for path in parts}) == 1:
        differ = [place for place in range(len(parts[0])) if len({path[place] for path in parts}) > 1]
        if len(differ) == 1:
            (place,) = differ
            inside = _listed([path[place] for path in parts]).replace(", ", ",")
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
