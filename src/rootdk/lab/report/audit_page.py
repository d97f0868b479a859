"""The page of an audit, from the dictionary that is also its JSON: verdict, findings, maps, every number.

The maps: a heat map of layers and heads for each metric, and how the heads of each layer spread.
"""

import math
from collections.abc import Mapping, Sequence
from html import escape
from statistics import median
from typing import Any

from rootdk import rendering
from rootdk.audit.metrics import METRICS, Metric, grid, grouped, present, short_names
from rootdk.audit.result import SEVERITIES, WORDS
from rootdk.files import shown_values
from rootdk.lab.drawing import COLOURS, GREY, HUES, POWERS, Picture, line, plot, points, short

from ..drawing import badge, card, document, figures, foot, number, rich, table

_BADGES = {"healthy": "good", "unjudged": "open", "note": "open", "warning": "half", "critical": "bad"}
# Past so many heads the page shows layers only: nobody reads a table of ten thousand rows.
_MOST_ROWS = 1500
_WEIGHTS = (
    "Read from the weights and the configuration alone; no model code ran. Predicted numbers are for an input of "
    "independent unit components, what a norm hands over when training begins: a gate there, a baseline later."
)
_MAPS = "Every head of every layer. Colours run from the smallest to the largest number of each map."
_RUN = "Measured in a forward pass, beside what theory says of random q and k."
_LABEL = 14
# Distinct on white and on black, and for people who see few colours.
_SCALE = "Viridis"


def render_audit(audit: Mapping[str, Any], about: Mapping[str, str] | None = None) -> str:
    """One HTML page.

    audit   what to_dict() of a rootdk.audit.Audit gives, or the JSON of `rootdk audit`
    about   facts for the foot of the page, such as version and path

    >>> from rootdk.audit.running import demonstrate
    >>> "none.layers.0.attention" in render_audit(demonstrate().to_dict())
    True
    """
    audit, about = shown_values(audit), shown_values(about or {})
    model = audit.get("model") or {}
    name = f"Attention audit: {model['model_type']}" if model.get("model_type") else "Attention audit"
    pictures = [*audit_pictures(audit), *spread_pictures(audit)]
    lead = _RUN if any("logit_deviation" in head for layer in audit["layers"] for head in layer["heads"]) else _WEIGHTS
    body = [
        f"<h1>{rich(name)}</h1>",
        f"<p>{lead}</p>",
        f"<div class='cards'>{''.join(_cards(audit, model))}</div>",
        f"<section><h2 id='findings'>Findings</h2>{_findings(audit)}{_unknown(audit)}</section>",
        f"<section><h2 id='maps'>Layers and heads</h2><p>{_MAPS}</p>{figures(pictures)}</section>",
        f"<section><h2 id='numbers'>Numbers</h2>{_numbers(audit)}</section>",
        foot(about),
    ]
    links = [("findings", "Findings"), ("maps", "Layers and heads"), ("numbers", "Numbers")]
    return document(name, links, body)


def _cards(audit: Mapping[str, Any], model: Mapping[str, Any]) -> list[str]:
    layers = audit["layers"]
    counted = [sum(finding["severity"] == kind for finding in audit["findings"]) for kind in SEVERITIES]
    words = " ".join(
        badge(_BADGES[kind], f"{count} {kind}{'s' if count != 1 and kind != 'critical' else ''}")
        for kind, count in zip(SEVERITIES, counted, strict=True)
        if count
    )
    heads = max((len(layer["heads"]) for layer in layers), default=0)
    shared = model.get("key_heads") and model["key_heads"] != model.get("heads")
    key_heads = f", {model['key_heads']} key heads" if shared else ""
    cards = [
        card(
            f"<span class='{_BADGES[audit['verdict']]}'>{escape(WORDS.get(audit['verdict'], audit['verdict']))}</span>",
            words or "nothing found",
        ),
        card(f"{len(layers)} × {heads}", f"layers × heads{key_heads}"),
    ]
    if model.get("scale"):
        root = float(model["d_k"]) ** -0.5
        beside = "" if abs(model["scale"] - root) < 1e-9 * root else f"; 1/√d_k is {rendering.short(root)}"
        cards.append(card(rendering.short(model["scale"]), rich(f"the scale: {model['scale_source']}{beside}")))
    if model.get("softcap"):
        cards.append(card(rendering.short(model["softcap"]), "softcap; all numbers here are before it"))
    return cards


def _findings(audit: Mapping[str, Any]) -> str:
    listed = ""
    for group in grouped(audit):
        heading = f"{badge(_BADGES[group.severity], group.severity)}<strong>{escape(group.metric)}</strong>"
        crossed = f"{escape(group.value)}, limit {group.limit}" if group.limit else escape(group.value)
        listed += (
            f"<article class='claim'><header>{heading}</header>"
            f"<p>{crossed}: <span class='path'>{escape(group.places)}</span></p>"
            f"<p class='condition path'>{escape(group.remedy)}</p><p class='dim'>{escape(group.source)}</p></article>"
        )
    return f"<div class='claims'>{listed}</div>" if listed else "<p>Nothing is outside its range.</p>"


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
        [str(layer["name"]), *(number(_median(grids[name][place])) for name in metrics)]
        for place, layer in enumerate(layers)
    ]
    medians = f"<p>The median over the heads of each layer.</p>{table(['layer', *metrics], rows)}"
    if sum(len(layer["heads"]) for layer in layers) > _MOST_ROWS:
        return f"{medians}<p class='dim'>Every head: rootdk audit --json.</p>"
    each = [
        [str(layer["name"]), str(head), *(number(values.get(name)) for name in metrics)]
        for layer in layers
        for head, values in enumerate(layer["heads"])
    ]
    return f"{medians}<details><summary>every head</summary>{table(['layer', 'head', *metrics], each)}</details>"


def _held(layers: Sequence[Mapping[str, Any]]) -> list[str]:
    """All metrics that a head has, those with a map first."""
    names = dict.fromkeys(name for layer in layers for head in layer["heads"] for name in head)
    known = [metric.name for metric in METRICS if metric.name in names]
    return known + [name for name in names if name not in known]


def audit_pictures(audit: Mapping[str, Any]) -> list[Picture]:
    """One map for each metric that the audit has numbers for."""
    layers = audit["layers"]
    return [map_picture(metric, layers) for metric in present(layers)]


def spread_pictures(audit: Mapping[str, Any]) -> list[Picture]:
    """The first metric along the layers: every head, the median, and the prediction of theory for random q and k."""
    layers = audit["layers"]
    return [spread_picture(metric, layers) for metric in present(layers)[:1] if len(layers) > 1]


def map_picture(metric: Metric, layers: Sequence[Mapping[str, Any]]) -> Picture:
    """Every head of every layer; colours from the smallest number to the largest."""
    rows = grid(layers, metric.name)
    known = [value for row in rows for value in row if math.isfinite(value)]
    logarithmic = not metric.share and min(known) > 0.0
    names = [_plain(layer["name"]) for layer in layers]
    trace = {
        "type": "heatmap",
        "z": [short([_placed(value, logarithmic) for value in row]) for row in rows],
        "x": list(range(len(rows[0]))),
        "y": list(range(len(names))),
        "colorscale": _SCALE,
        "customdata": [
            [[rendering.brief(value), name] for value in row] for row, name in zip(rows, names, strict=True)
        ],
        "hovertemplate": "%{customdata[1]}, head %{x}<br>%{customdata[0]}<extra></extra>",
        "xgap": 1,
        "ygap": 1,
        **_colours(known, logarithmic, metric.share),
    }
    heads = {"dtick": 1 if len(rows[0]) <= 8 else 2} if len(rows[0]) <= 16 else {}
    labels = [_plain(name) for name in short_names([str(layer["name"]) for layer in layers], _LABEL)]
    every = max(1, math.ceil(len(labels) / 20))  # as many names as there is room for
    ticks = {"tickvals": list(range(0, len(labels), every)), "ticktext": labels[::every]}
    xaxis = {**heads, "showgrid": False, "tickangle": 0}
    yaxis = {"autorange": "reversed", "showgrid": False, **ticks}
    figure = plot([trace], "head", "", xaxis=xaxis, yaxis=yaxis, margin={"l": 8, "r": 8, "t": 8, "b": 48})
    return Picture(f"map-{metric.name}", metric.short[:1].upper() + metric.short[1:], metric.words, figure)


def _plain(name: Any) -> str:
    """Escaped, because plotly reads texts as HTML: a link in the name of a layer would become one on the page."""
    return escape(str(name))


def _placed(value: float, logarithmic: bool) -> float | None:
    if not math.isfinite(value):
        return None
    return math.log10(value) if logarithmic else value


def _colours(known: Sequence[float], logarithmic: bool, share: bool) -> dict[str, Any]:
    """At least a factor of 4, or a tenth of the whole: colours must not exaggerate rounding."""
    low, high = min(known), max(known)
    if logarithmic:
        left, right = math.log10(low), math.log10(high)  # their product may overflow float64
        middle, half = (left + right) / 2, max(right - left, math.log10(4)) / 2
    else:
        middle, half = low / 2 + high / 2, max(high / 2 - low / 2, 0.05 if share else 5e-13)
    least, most = middle - half, middle + half
    ticks: dict[str, Any] = {"tickformat": ".2f" if share else ".3g"}
    if logarithmic:  # the bar shows the numbers themselves
        places = [least + (most - least) * part / 4 for part in range(5)]
        ticks = {"tickvals": places, "ticktext": [rendering.brief(10 ** min(place, 308.0)) for place in places]}
    return {"colorbar": {"thickness": 10, "outlinewidth": 0, **ticks}, "zmin": least, "zmax": most}


def spread_picture(metric: Metric, layers: Sequence[Mapping[str, Any]]) -> Picture:
    """One metric along the layers: every head, the median, and the prediction of theory for random q and k."""
    rows = grid(layers, metric.name)
    names = short_names([str(layer["name"]) for layer in layers])
    places = list(range(len(names)))
    dots = [(place, value) for place, row in zip(places, rows, strict=True) for value in row if math.isfinite(value)]
    medians = [_median([value for value in row if math.isfinite(value)]) for row in rows]
    traces = [
        points(
            [place for place, _ in dots], [value for _, value in dots], "one head", HUES[0],
            text=[_plain(names[place]) for place, _ in dots], hovertemplate="%{text}<br>%{y:.3g}<extra></extra>",
            marker={"color": HUES[0], "size": 6, "opacity": 0.45},
        ),
        line(
            places, medians, "median of the layer", COLOURS["none"], mode="lines+markers", connectgaps=False,
            hovertemplate="median %{y:.3g}<extra></extra>",
        ),
    ]  # fmt: skip
    baseline = [layer.get("baseline", {}).get(metric.name) for layer in layers]
    if any(value is not None for value in baseline):
        hover = "theory %{y:.3g}<extra></extra>"
        traces.append(line(places, baseline, "theory, random q and k", GREY, "dot", hovertemplate=hover))
    every = max(1, math.ceil(len(names) / 12))
    # Long names would overlap; the hover has them.
    labels = [_plain(name) for name in names] if max(map(len, names)) <= 3 else [str(place) for place in places]
    known = [value for _, value in dots]
    axis: dict[str, Any] = {}
    if not metric.share and min(known) > 0.0:
        axis = {"type": "log", "dtick": "D2"} if max(known) / min(known) < 200 else POWERS
    across = {"tickvals": places[::every], "ticktext": labels[::every], "tickangle": 0}
    figure = plot(traces, "layer", metric.short, yaxis=axis, xaxis=across)
    caption = f"{metric.words} A layer that stands out from the others is worth a look."
    return Picture("layers", "Layer by layer", caption, figure)


def _median(values: Sequence[float]) -> float | None:
    known = [value for value in values if not math.isnan(value)]
    return median(known) if known else None
