"""Pictures of an audit: a heat map of layers and heads for each metric, and how the heads of each layer spread."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from rootdk import _views
from rootdk.audit.metrics import Metric, grid, present, short_names

from .drawing import COLOURS, HUES, POWERS, Picture, figure_of

_LABEL = 14
# Told apart on white and on black, and by people who see few colours.
_SCALE = "Viridis"


def audit_pictures(audit: Mapping[str, Any]) -> list[Picture]:
    """One map for each metric that the audit has numbers for."""
    layers = audit["layers"]
    return [map_picture(one, layers) for one in present(layers)]


def spread_pictures(audit: Mapping[str, Any]) -> list[Picture]:
    """The first metric along the layers: every head, the median, and what theory says of random q and k."""
    layers = audit["layers"]
    return [spread_picture(one, layers) for one in present(layers)[:1] if len(layers) > 1]


def map_picture(metric: Metric, layers: Sequence[Mapping[str, Any]]) -> Picture:
    """Every head of every layer; colours from the smallest number to the largest."""
    import plotly.graph_objects as go

    rows = grid(layers, metric.name)
    known = [value for row in rows for value in row if math.isfinite(value)]
    logarithmic = metric.spread and min(known) > 0.0
    shown = [[_placed(value, logarithmic) for value in row] for row in rows]
    names = [str(layer["name"]) for layer in layers]
    trace = go.Heatmap(
        z=shown, x=list(range(len(rows[0]))), y=list(range(len(names))), colorscale=_SCALE,
        customdata=[[[_number(value), name] for value in row] for row, name in zip(rows, names, strict=True)],
        hovertemplate="%{customdata[1]}, head %{x}<br>%{customdata[0]}<extra></extra>", xgap=1, ygap=1,
        colorbar={"thickness": 10, "outlinewidth": 0, **_ticks(known, logarithmic, metric.share)},
        **_range(known, logarithmic, metric.share),
    )  # fmt: skip
    heads = {"dtick": 1 if len(rows[0]) <= 8 else 2} if len(rows[0]) <= 16 else {}
    figure = figure_of(
        [trace], "head", "", xaxis={**heads, "showgrid": False, "tickangle": 0}, yaxis=_layer_axis(names)
    )
    figure["layout"]["margin"] = {"l": 8, "r": 8, "t": 8, "b": 48}
    return Picture(f"map-{metric.name}", metric.short[:1].upper() + metric.short[1:], metric.words, figure)


def _layer_axis(names: Sequence[str]) -> dict[str, Any]:
    """First layer on top; as many names as there is room for."""
    short = short_names(names, _LABEL)
    every = max(1, math.ceil(len(names) / 20))
    places = list(range(0, len(names), every))
    return {
        "autorange": "reversed", "showgrid": False, "tickvals": places, "ticktext": [short[place] for place in places],
    }  # fmt: skip


def _placed(value: float, logarithmic: bool) -> float | None:
    if not math.isfinite(value):
        return None
    return math.log10(value) if logarithmic else value


def _range(known: Sequence[float], logarithmic: bool, share: bool) -> dict[str, float]:
    """At least a factor of 4, or a tenth of the whole: colours must not make a drama of rounding."""
    low, high = min(known), max(known)
    if logarithmic:
        middle, half = math.log10(low * high) / 2, max(math.log10(high / low), math.log10(4)) / 2
    else:
        middle, half = (low + high) / 2, max(high - low, 0.1 if share else 1e-12) / 2
    return {"zmin": middle - half, "zmax": middle + half}


def _ticks(known: Sequence[float], logarithmic: bool, share: bool) -> dict[str, Any]:
    """The bar of a logarithmic map shows the numbers themselves."""
    if not logarithmic:
        return {"tickformat": ".2f" if share else ".3g"}
    bounds = _range(known, logarithmic, share)
    places = [bounds["zmin"] + (bounds["zmax"] - bounds["zmin"]) * part / 4 for part in range(5)]
    return {"tickvals": places, "ticktext": [_number(10**place) for place in places]}


def _number(value: float) -> str:
    return _views.brief(value)


def spread_picture(metric: Metric, layers: Sequence[Mapping[str, Any]]) -> Picture:
    """One metric along the layers: every head, the median, and what theory says of random q and k."""
    import plotly.graph_objects as go

    rows = grid(layers, metric.name)
    names = short_names([str(layer["name"]) for layer in layers])
    places = list(range(len(names)))
    dots = [(place, value) for place, row in zip(places, rows, strict=True) for value in row if math.isfinite(value)]
    middles = [_median([value for value in row if math.isfinite(value)]) for row in rows]
    traces = [
        go.Scatter(
            x=[place for place, _ in dots], y=[value for _, value in dots], mode="markers", name="one head",
            text=[names[place] for place, _ in dots], hovertemplate="%{text}<br>%{y:.3g}<extra></extra>",
            marker={"color": HUES[0], "size": 6, "opacity": 0.45},
        ),
        go.Scatter(
            x=places, y=middles, mode="lines+markers", name="median of the layer", connectgaps=False,
            line={"color": COLOURS["none"], "width": 2}, hovertemplate="median %{y:.3g}<extra></extra>",
        ),
    ]  # fmt: skip
    told = [layer.get("baseline", {}).get(metric.name) for layer in layers]
    if any(one is not None for one in told):
        traces.append(
            go.Scatter(
                x=places, y=told, mode="lines", name="theory, random q and k", line={"color": "#8a93a0", "dash": "dot"},
                hovertemplate="theory %{y:.3g}<extra></extra>",
            )
        )  # fmt: skip
    every = max(1, math.ceil(len(names) / 12))
    # Long names would run into each other; the hover has them.
    labels = names if max(map(len, names)) <= 3 else [str(place) for place in places]
    known = [value for _, value in dots]
    axis: dict[str, Any] = {}
    if metric.spread and min(known) > 0.0:
        axis = {"type": "log", "dtick": "D2"} if max(known) / min(known) < 200 else POWERS
    figure = figure_of(
        traces, "layer", metric.short, yaxis=axis,
        xaxis={"tickvals": places[::every], "ticktext": labels[::every], "tickangle": 0},
    )  # fmt: skip
    caption = f"{metric.words} A layer that stands out from the others is worth a look."
    return Picture("layers", "Layer by layer", caption, figure)


def _median(values: Sequence[float]) -> float | None:
    ordered = sorted(values)
    if not ordered:
        return None
    return (ordered[len(ordered) // 2] + ordered[(len(ordered) - 1) // 2]) / 2
