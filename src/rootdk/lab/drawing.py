"""Figures as plain dictionaries, as in plotly's JSON: for the report, the explorer and the experiments.

Without plotly's own classes: these check every field and take several milliseconds a figure, too long while a knob is
dragged. Colours of text, grid and background come from the page, which has a light and a dark mode.

Also pages of figures, with tables and cards: one text that contains plotly.js, style and figures, and fetches nothing.
A content security policy in its head forbids every request, so that this does not depend on what plotly.js does.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import numpy as np

from rootdk.errors import RootdkError

from .first_look import RULE_WORDS

if TYPE_CHECKING:
    from .checks.comparison import Comparison

# Distinct on white and on black, and for people who do not distinguish red from green.
COLOURS = {
    "none": "#e0662f",
    "sqrt": "#2b8cd0",
    "dk": "#1fa37a",
    "t5": "#b58a1b",
    "entropy_invariant": "#9b6bd6",
    "llama4": "#d6609a",
    "additive": "#8a7f6d",
}
HUES = ("#2b8cd0", "#e0662f", "#1fa37a", "#9b6bd6", "#b58a1b", "#d6609a")
GREY = "#8a93a0"
# Below 0, 0, above 0: a value of 0 is transparent, on a white page or a black one.
_EITHER_SIDE = [[0.0, "#d1495b"], [0.5, "rgba(209, 73, 91, 0)"], [0.5, "rgba(43, 140, 208, 0)"], [1.0, "#2b8cd0"]]
_SHADES = [[0.0, "rgba(43, 140, 208, 0)"], [1.0, "#2b8cd0"]]
POWERS = {"type": "log", "dtick": 1, "exponentformat": "power"}
# A logarithmic axis with ticks at 1 and 3 of every decade, for data that span one to four of them.
ONES_AND_THREES = {
    "type": "log",
    "tickvals": [digit * 10.0**power for power in range(-6, 7) for digit in (1, 3)],
    "ticktext": [f"{digit * 10.0**power:g}" for power in range(-6, 7) for digit in (1, 3)],
}


@dataclass(frozen=True, slots=True)
class Picture:
    """A figure in plotly's JSON, with the texts above and below it."""

    name: str
    title: str
    caption: str
    figure: dict[str, Any]


def colour_of(name: object, number: int) -> str:
    """The colour of a rule, or of the number-th of other things."""
    return COLOURS.get(str(name), HUES[number % len(HUES)])


def short(values: Any) -> list[Any]:
    """Seven digits, as many as a picture can use and half as many as float64 has: the page is that much shorter.

    >>> short(np.array([[1 / 3, 1e-9]])), short([64, 512]), short([0.5, None]), short(["none"])
    ([[0.3333333, 1e-09]], [64, 512], [0.5, None], ['none'])
    """
    array = np.asarray(values)
    if array.dtype.kind in "iubU":
        return list(array.tolist())
    if array.ndim > 1:
        return [short(row) for row in array]
    return [None if value is None else float(f"{value:.7g}") for value in array.tolist()]


def line(
    x: Any, y: Any, name: str, colour: str, dash: str = "solid", shape: str = "linear", **more: Any
) -> dict[str, Any]:
    """A curve: the prediction of theory. shape "hv" makes steps."""
    style = {"color": colour, "width": 2, "dash": dash, "shape": shape}
    return {"type": "scatter", "mode": "lines", "x": short(x), "y": short(y), "name": name, "line": style} | more


def points(x: Any, y: Any, name: str, colour: str, errors: Any = None, **more: Any) -> dict[str, Any]:
    """Markers: what was measured, with two standard errors where given."""
    bar = {}
    if errors is not None:
        bar = {"error_y": {"type": "data", "array": short(2 * np.asarray(errors)), "color": colour}}
    marker = {"color": colour, "size": 8}
    trace = {"type": "scatter", "mode": "markers", "x": short(x), "y": short(y), "name": name, "marker": marker}
    return trace | bar | more


def bars(x: Any, y: Any, name: str, colour: str, **more: Any) -> dict[str, Any]:
    """Bars over numbers or over names."""
    return {"type": "bar", "x": short(x), "y": short(y), "name": name, "marker": {"color": colour}} | more


def heat(z: Any, limits: tuple[float, float], both_sides: bool = False, **more: Any) -> dict[str, Any]:
    """A map of a matrix, first row on top; 0 shows the page. both_sides: blue above 0 and red below."""
    shades = _EITHER_SIDE if both_sides else _SHADES
    bar = {"thickness": 10, "outlinewidth": 0}
    shown = {"zmin": limits[0], "zmax": limits[1], "colorscale": shades, "colorbar": bar}
    return {"type": "heatmap", "z": short(z)} | shown | more


def square_map(z: Any, limits: tuple[float, float], x: str, y: str, hover: str, **more: Any) -> dict[str, Any]:
    """A figure of a square matrix: rows and columns count from 1, and a cell is as high as it is wide."""
    places = list(range(1, len(z) + 1))
    cells = heat(z, limits, both_sides=True, x=places, y=places, hovertemplate=f"{hover}<extra></extra>", **more)
    # Labels that do not touch in the narrowest figure; lines of a grid would be drawn over the cells.
    step = next(step for most, step in ((8, 1), (16, 3), (len(places), 5)) if len(places) <= most)
    across = {"constrain": "domain", "showgrid": False, "tick0": 1, "dtick": step}
    return plot([cells], x, y, xaxis=across, yaxis=across | {"autorange": "reversed", "scaleanchor": "x"})


def plot(data: Sequence[dict[str, Any]], x: str, y: str, **layout: Any) -> dict[str, Any]:
    """Axis titles and the space they take; `xaxis` and `yaxis` in layout add to them. d_k gets its subscript."""
    axes = {
        "xaxis": {"title": {"text": with_subscript(x), "standoff": 8}, "zeroline": False},
        "yaxis": {"title": {"text": with_subscript(y), "standoff": 8}, "zeroline": False, "automargin": True},
    }
    data = [trace | {"name": with_subscript(_words(trace["name"]))} if trace.get("name") else trace for trace in data]
    shared = {
        "margin": {"l": 44, "r": 12, "t": 8, "b": 48},
        "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0, "font": {"size": 12}},
        "hoverlabel": {"namelength": -1},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
    }
    axes = {name: axis | layout.pop(name, {}) for name, axis in axes.items()}
    return {"data": data, "layout": shared | axes | layout}


def _words(name: str) -> str:
    """A rule as a person writes it, alone or before a comma: 1/√d_k for sqrt."""
    rule, comma, rest = name.partition(",")
    return f"{RULE_WORDS.get(rule, rule)}{comma}{rest}"


def with_subscript(text: str) -> str:
    """The text with the subscript in plotly's notation."""
    return text.replace("d_k", "d<sub>k</sub>")


_DOTTED = {"type": "line", "line": {"color": GREY, "dash": "dot"}}


def upright(x: float) -> dict[str, Any]:
    """A dotted line from bottom to top."""
    return _DOTTED | {"yref": "paper", "y0": 0, "y1": 1, "x0": x, "x1": x}


def level(y: float) -> dict[str, Any]:
    """A dotted line across the picture."""
    return _DOTTED | {"xref": "paper", "x0": 0, "x1": 1, "y0": y, "y1": y}


def ticks_at(values: Iterable[float | str]) -> dict[str, Any]:
    """A logarithmic axis with ticks where something was measured, and not at 2, 5 and 10 of every decade."""
    # Ticks closer than a factor of 1.9 would run into each other on a narrow screen.
    ticks: list[float] = []
    for tick in sorted({float(value) for value in values}):
        if not ticks or tick >= 1.9 * ticks[-1]:
            ticks.append(tick)
    return {"type": "log", "tickvals": ticks, "ticktext": [f"{tick:g}" for tick in ticks]}


def ticks_along(comparisons: "Iterable[Comparison]", along: str) -> dict[str, Any]:
    """`ticks_at` for what was measured along one entry of the settings."""
    return ticks_at(comparison.setting[along] for comparison in comparisons if comparison.measured is not None)


def grouped_by(comparisons: "Sequence[Comparison]", entry: str) -> "dict[str, Sequence[Comparison]]":
    """The comparisons by one entry of their settings, in the order in which they come."""
    groups: dict[str, list[Comparison]] = {}
    for comparison in comparisons:
        groups.setdefault(str(comparison.setting[entry]), []).append(comparison)
    return dict(groups)


def predicted_and_measured(groups: "Mapping[str, Sequence[Comparison]]", along: str) -> list[dict[str, Any]]:
    """Per group a line through what theory says and markers, with two standard errors, where it was measured."""
    traces = []
    for number, (name, comparisons) in enumerate(groups.items()):
        colour = colour_of(name, number)
        ordered = sorted(comparisons, key=lambda comparison: float(comparison.setting[along]))
        x, theory = [each.setting[along] for each in ordered], [each.predicted for each in ordered]
        traces.append(line(x, theory, name, colour, legendgroup=name, hovertemplate="theory %{y:.4g}"))
        compared = [each for each in ordered if each.measured is not None]
        x, measured = [each.setting[along] for each in compared], [each.measured for each in compared]
        errors = [each.standard_error or 0.0 for each in compared]
        hidden = {"legendgroup": name, "showlegend": False, "hovertemplate": "measured %{y:.4g}"}
        traces.append(points(x, measured, f"{name}, measured", colour, errors, **hidden))
    return traces


_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data: blob:; font-src data:"
)


class PlotlyMissingError(RootdkError, ImportError):
    """The report needs plotly, which is an extra."""


def check_plotly() -> None:
    """An error that says how to get plotly, if it is missing.

    >>> check_plotly()  # it is installed here
    """
    try:
        import plotly.graph_objects  # noqa: F401
    except ImportError as error:
        raise PlotlyMissingError(
            "report: needs plotly, which is not installed; get it with: pip install 'rootdk[lab]'"
        ) from error


def document(title: str, links: Sequence[tuple[str, str]], body: Sequence[str]) -> str:
    """The whole page: a menu that stays, with (anchor, heading) for each section, beside its parts.

    plotly.js is included as text, and runs when the first figure comes into view: opening does not wait for it.
    """
    check_plotly()
    from plotly.offline import get_plotlyjs

    palette = files("rootdk.lab").joinpath("palette.css").read_text("utf-8")
    style, script = (files("rootdk.lab.report").joinpath(name).read_text("utf-8") for name in ("page.css", "page.js"))
    menu = "".join(f"<a href='#{escape(anchor)}'>{rich(heading)}</a>" for anchor, heading in links)
    return (
        "<!DOCTYPE html>\n<html lang='en'><head><meta charset='utf-8'>"
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        "<meta name='viewport' content='width=device-width, initial-scale=1'>"
        f"<link rel='icon' href='data:,'><title>{escape(title)}</title>"
        f"<style>{palette}{style}</style></head>\n<body><nav aria-label='Sections'>{menu}</nav><main>"
        + "\n".join(body)
        + f"</main>\n<script type='text/plain' id='plotly'>{script_text(get_plotlyjs())}</script>"
        f"\n<script>{script}</script></body></html>\n"
    )


def figure(picture: Picture) -> str:
    """A place for a picture, with its data beside it; page.js draws it."""
    data = json.dumps(picture.figure, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    name = escape(picture.name)
    return (
        f"<figure><h3 id='title-{name}'>{rich(picture.title)}</h3><div class='plot' id='plot-{name}' role='img' "
        f"aria-labelledby='title-{name}'></div><figcaption>{rich(picture.caption)}</figcaption>"
        f"<script type='application/json' data-plot='plot-{name}'>{data}</script></figure>"
    )


def figures(pictures: Sequence[Picture], most: int | None = None) -> str:
    """Pictures side by side where there is room; those past the first `most` are folded."""
    shown, folded = pictures[:most], pictures[len(pictures[:most]) :]
    grid = f"<div class='figures'>{''.join(map(figure, shown))}</div>"
    if folded:
        count = f"{len(folded)} more figure{'s' * (len(folded) > 1)}"
        grid += f"<details><summary>{count}</summary>{figures(folded)}</details>"
    return grid


def badge(kind: str, text: str) -> str:
    """A word in the colour of its kind: good, half, bad or open."""
    return f"<span class='badge {kind}'>{escape(text)}</span>"


def card(large: str, small: str) -> str:
    """A few words in large letters over some in small ones; both are HTML."""
    return f"<div class='card'><strong>{large}</strong><p>{small}</p></div>"


def foot(about: Mapping[str, str]) -> str:
    """Facts at the end of the page."""
    facts = " · ".join(f"{escape(name)} {escape(value)}" for name, value in about.items())
    return f"<footer>rootdk report{' · ' if facts else ''}{facts}</footer>"


def rich(text: str) -> str:
    r"""Escaped, with subscripts set as a person would write them; no line begins with % or = or ends with =.

    >>> rich("d_k < 4"), rich("49 %")
    ('<i>d<sub>k</sub></i> &lt; 4', '49\xa0%')
    """
    text = re.sub(r" (?=[=%])|(?<==) ", "\u00a0", text)
    return re.sub(r"\b([A-Za-z])_([a-z])\b", r"<i>\1<sub>\2</sub></i>", escape(text))


def script_text(text: str) -> str:
    r"""JavaScript that cannot end the element that it stands in: in its strings `<\/` is `</`."""
    return text.replace("</script", "<\\/script")


def number(value: float | None) -> str:
    """Four digits, or a dash.

    >>> number(0.000123456), number(None)
    ('0.0001235', '–')
    """
    return "–" if value is None else f"{value:.4g}"


def table(head: Sequence[str], rows: Sequence[Sequence[str]], raw: bool = False) -> str:
    """A table in a box that scrolls sideways on a narrow screen. raw: the cells are HTML already."""
    top = "".join(f"<th>{escape(name)}</th>" for name in head)
    cells = ("".join(f"<td>{cell if raw else escape(cell)}</td>" for cell in row) for row in rows)
    body = "".join(f"<tr>{row}</tr>" for row in cells)
    return f"<div class='scroll'><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>"
