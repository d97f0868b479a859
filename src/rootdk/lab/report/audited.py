"""The page of an audit, from the dictionary that is also its JSON: verdict, findings, maps, every number."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from rootdk import _views
from rootdk.audit.grouped import FindingGroup, grouped
from rootdk.audit.metrics import METRICS, grid

from .document import card, check_plotly, document, figure, foot, rich
from .maps import audit_pictures, spread_pictures
from .tables import number, table

_BADGES = {"healthy": "good", "note": "open", "warning": "half", "critical": "bad"}
# Past so many heads the page shows layers only: a table of ten thousand rows is read by nobody.
_MOST_ROWS = 1500
_WEIGHTS = (
    "Read from the weights and the configuration alone; no model code ran. Predicted numbers are for an input of "
    "independent unit components, what a norm hands over when training begins: a gate there, a baseline later."
)
_MAPS = "Every head of every layer. Colours run from the smallest to the largest number of each map."
_RUN = "Measured in a forward pass, beside what theory says of random q and k."


def render_audit(audit: Mapping[str, Any], about: Mapping[str, str] | None = None) -> str:
    """One HTML page.

    audit   what to_dict() of a CheckpointAudit or of a watched Report gives, or the JSON of `rootdk audit`
    about   facts for the foot of the page, such as version and path
    """
    check_plotly()
    model = audit.get("model") or {}
    name = f"Attention audit: {model['model_type']}" if model.get("model_type") else "Attention audit"
    pictures = [*audit_pictures(audit), *spread_pictures(audit)]
    lead = _RUN if any("logit_deviation" in head for layer in audit["layers"] for head in layer["heads"]) else _WEIGHTS
    body = [
        f"<h1>{rich(name)}</h1>",
        f"<p>{lead}</p>",
        "<nav><a href='#findings'>Findings</a><a href='#maps'>Layers and heads</a><a href='#numbers'>Numbers</a></nav>",
        f"<div class='cards'>{''.join(_cards(audit, model))}</div>",
        f"<section><h2 id='findings'>Findings</h2>{_findings(audit)}{_unknown(audit)}</section>",
        f"<section><h2 id='maps'>Layers and heads</h2><p>{_MAPS}</p>",
        f"<div class='figures'>{''.join(map(figure, pictures))}</div>",
        "</section>",
        f"<section><h2 id='numbers'>Numbers</h2>{_numbers(audit)}</section>",
        foot(about or {}),
    ]
    return document(name, body)


def _cards(audit: Mapping[str, Any], model: Mapping[str, Any]) -> list[str]:
    layers = audit["layers"]
    counted = [sum(one["severity"] == kind for one in audit["findings"]) for kind in ("critical", "warning", "note")]
    words = " ".join(
        _badge(kind, f"{count} {kind}{'s' if count != 1 and kind != 'critical' else ''}")
        for kind, count in zip(("critical", "warning", "note"), counted, strict=True)
        if count
    )
    heads = max((len(layer["heads"]) for layer in layers), default=0)
    found = [
        card(f"<span class='{_BADGES[audit['verdict']]}'>{escape(audit['verdict'])}</span>", words or "nothing found"),
        card(f"{len(layers)} × {heads}", "layers × heads" + _grouped_heads(model)),
    ]
    if model.get("scale"):
        root = float(model["d_k"]) ** -0.5
        beside = "" if abs(model["scale"] - root) < 1e-9 * root else f"; 1/√d_k is {_views.short(root)}"
        found.append(card(_views.short(model["scale"]), rich(f"the scale: {model['scale_source']}{beside}")))
    if model.get("softcap"):
        found.append(card(_views.short(model["softcap"]), "softcap; all numbers here are before it"))
    return found


def _grouped_heads(model: Mapping[str, Any]) -> str:
    keys, heads = model.get("key_heads"), model.get("heads")
    return f", {keys} key heads" if keys and keys != heads else ""


def _findings(audit: Mapping[str, Any]) -> str:
    groups = grouped(audit)
    if not groups:
        return "<p>Nothing is outside its range.</p>"
    return f"<div class='claims'>{''.join(map(_finding, groups))}</div>"


def _finding(one: FindingGroup) -> str:
    heading = f"{_badge(one.severity, one.severity)}<strong>{escape(one.metric)}</strong>"
    crossed = f"{escape(one.value)}, limit {_views.brief(one.threshold)}"
    return (
        f"<article class='claim'><header>{heading}</header>"
        f"<p>{crossed}: <span class='path'>{escape(one.places)}</span></p>"
        f"<p class='condition path'>{escape(one.remedy)}</p><p class='dim'>{escape(one.source)}</p></article>"
    )


def _unknown(audit: Mapping[str, Any]) -> str:
    unread = [f"{name}: {why}" for name, why in (audit.get("unread") or {}).items()]
    names = [*(audit.get("unknown") or ()), *unread]
    if not names:
        return ""
    listed = "".join(f"<li class='path'>{escape(name)}</li>" for name in names)
    return f"<details><summary>not understood, so not read ({len(names)})</summary><ul>{listed}</ul></details>"


def _numbers(audit: Mapping[str, Any]) -> str:
    """Layers at a glance, and every head where that is not too many."""
    layers = audit["layers"]
    metrics = _held(layers)
    grids = {name: grid(layers, name) for name in metrics}
    rows = [
        [str(layer["name"]), *(_middle(grids[name][place]) for name in metrics)] for place, layer in enumerate(layers)
    ]
    found = f"<p>The median over the heads of each layer.</p>{table(['layer', *metrics], rows)}"
    if sum(len(layer["heads"]) for layer in layers) > _MOST_ROWS:
        return f"{found}<p class='dim'>Every head: rootdk audit --json.</p>"
    each = [
        [str(layer["name"]), str(head), *(number(values.get(name)) for name in metrics)]
        for layer in layers
        for head, values in enumerate(layer["heads"])
    ]
    return f"{found}<details><summary>every head</summary>{table(['layer', 'head', *metrics], each)}</details>"


def _held(layers: Sequence[Mapping[str, Any]]) -> list[str]:
    """All metrics that a head has, those with a map first."""
    held = dict.fromkeys(name for layer in layers for head in layer["heads"] for name in head)
    known = [one.name for one in METRICS if one.name in held]
    return known + [name for name in held if name not in known]


def _middle(row: Sequence[float]) -> str:
    known = sorted(value for value in row if value == value)  # noqa: PLR0124 -- a NaN is not itself
    return number((known[len(known) // 2] + known[(len(known) - 1) // 2]) / 2 if known else None)


def _badge(kind: str, text: str) -> str:
    return f"<span class='badge {_BADGES[kind]}'>{escape(text)}</span>"
