"""Figures as plain dictionaries, the way plotly's JSON knows them.

Without plotly's own classes: they check every field and take several milliseconds a figure, and a knob is dragged.
Colours of text, grid and ground come from the page, which knows light and dark.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from rootdk.lab.report.drawing import COLOURS, EITHER_SIDE, HUES, POWERS, level, ticks_at

__all__ = [
    "COLOURS",
    "EITHER_SIDE",
    "GREY",
    "HUES",
    "ONES_AND_THREES",
    "POWERS",
    "bars",
    "heat",
    "level",
    "line",
    "plot",
    "points",
    "short",
    "ticks_at",
    "upright",
]

GREY = "#8a93a0"
# A logarithmic axis with ticks at 1 and 3 of every decade, for what spans one to four of them.
ONES_AND_THREES = {
    "type": "log",
    "tickvals": [digit * 10.0**power for power in range(-6, 7) for digit in (1, 3)],
    "ticktext": [f"{digit * 10.0**power:g}" for power in range(-6, 7) for digit in (1, 3)],
}
_SHADES = [[0.0, "rgba(43, 140, 208, 0)"], [1.0, "#2b8cd0"]]


def short(values: Any) -> list[Any]:
    """Seven digits, as many as a picture can use and half as many as float64 has: the answer is that much shorter.

    >>> short(np.array([[1 / 3, 1e-9]]))
    [[0.3333333, 1e-09]]
    """
    array = np.asarray(values)
    if array.dtype.kind in "iub":
        return list(array.tolist())
    if array.ndim > 1:
        return [short(row) for row in array]
    return [float(f"{one:.7g}") for one in array.tolist()]


def line(
    x: Any, y: Any, name: str, colour: str, dash: str = "solid", shape: str = "linear", **more: Any
) -> dict[str, Any]:
    """A curve: what theory says. shape "hv" makes steps."""
    drawn = {"color": colour, "width": 2, "dash": dash, "shape": shape}
    return {"type": "scatter", "mode": "lines", "x": short(x), "y": short(y), "name": name, "line": drawn} | more


def points(x: Any, y: Any, name: str, colour: str, errors: Any = None, **more: Any) -> dict[str, Any]:
    """Markers: what was measured, with two standard errors where given."""
    bar = (
        {} if errors is None else {"error_y": {"type": "data", "array": short(2 * np.asarray(errors)), "color": colour}}
    )
    marker = {"color": colour, "size": 8}
    return (
        {"type": "scatter", "mode": "markers", "x": short(x), "y": short(y), "name": name, "marker": marker}
        | bar
        | more
    )


def bars(x: Any, y: Any, name: str, colour: str, **more: Any) -> dict[str, Any]:
    """Bars over numbers or over names."""
    places = list(x) if len(x) and isinstance(x[0], str) else short(x)
    return {"type": "bar", "x": places, "y": short(y), "name": name, "marker": {"color": colour}} | more


def heat(z: Any, limits: tuple[float, float], both_sides: bool = False, **more: Any) -> dict[str, Any]:
    """A map of a matrix, first row on top; 0 shows the page. both_sides: blue above 0 and red below."""
    shades = EITHER_SIDE if both_sides else _SHADES
    bar = {"thickness": 10, "outlinewidth": 0}
    shown = {"zmin": limits[0], "zmax": limits[1], "colorscale": shades, "colorbar": bar}
    return {"type": "heatmap", "z": short(z)} | shown | more


def plot(data: Sequence[dict[str, Any]], x: str, y: str, **layout: Any) -> dict[str, Any]:
    """Axis titles and the room they take; `xaxis` and `yaxis` in layout add to them."""
    axes = {
        "xaxis": {"title": {"text": x, "standoff": 8}, "zeroline": False},
        "yaxis": {"title": {"text": y, "standoff": 8}, "zeroline": False, "automargin": True},
    }
    shared = {
        "margin": {"l": 44, "r": 12, "t": 8, "b": 48},
        "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0, "font": {"size": 12}},
        "hoverlabel": {"namelength": -1},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
    }
    axes = {name: axis | layout.pop(name, {}) for name, axis in axes.items()}
    return {"data": list(data), "layout": shared | axes | layout}


def upright(x: float) -> dict[str, Any]:
    """A dotted line from bottom to top."""
    place = {"yref": "paper", "y0": 0, "y1": 1, "x0": x, "x1": x}
    return {"type": "line", **place, "line": {"color": GREY, "dash": "dot"}}
