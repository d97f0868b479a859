"""What all pictures share: colours, axes, and a line of theory with the markers of what was measured."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from rootdk.lab.checks.result import Comparison

# Told apart on white and on black, and by people who see red and green alike.
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


@dataclass(frozen=True, slots=True)
class Picture:
    """A figure as plotly's JSON knows it, with what is written above and below."""

    name: str
    title: str
    caption: str
    figure: dict[str, Any]


def colour_of(name: object, number: int) -> str:
    """The colour of a rule, or of the number-th of other things."""
    return COLOURS.get(str(name), HUES[number % len(HUES)])


def figure_of(traces: Sequence[Any], x: str, y: str, **layout: Any) -> dict[str, Any]:
    """Axis titles and the room they take; colours of text and grid come from the page, which knows light and dark."""
    import plotly.graph_objects as go

    figure = go.Figure(data=list(traces), layout=go.Layout(template=go.layout.Template(), **layout))
    figure.update_layout(
        margin={"l": 44, "r": 12, "t": 8, "b": 48},
        legend={"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0, "font": {"size": 12}},
        hoverlabel={"namelength": -1},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
    )
    figure.update_xaxes(title_text=x, title_standoff=8, zeroline=False)
    figure.update_yaxes(title_text=y, title_standoff=8, zeroline=False, automargin=True)
    found: dict[str, Any] = figure.to_plotly_json()
    found["layout"].pop("template", None)
    return found


def lines(groups: dict[str, Sequence[Comparison]], along: str) -> list[Any]:
    """Per group a line through what theory says and markers, with two standard errors, where it was measured."""
    import plotly.graph_objects as go

    traces = []
    for number, (name, some) in enumerate(groups.items()):
        ordered = sorted(some, key=lambda one: float(one.setting[along]))
        colour = colour_of(name, number)
        traces.append(
            go.Scatter(
                x=[one.setting[along] for one in ordered],
                y=[one.theory for one in ordered],
                name=name,
                legendgroup=name,
                mode="lines",
                line={"color": colour, "width": 2},
                hovertemplate="theory %{y:.4g}",
            )
        )
        seen = [one for one in ordered if one.measured is not None]
        traces.append(
            go.Scatter(
                x=[one.setting[along] for one in seen],
                y=[one.measured for one in seen],
                error_y={"type": "data", "array": [2 * (one.standard_error or 0.0) for one in seen], "color": colour},
                name=f"{name}, measured",
                legendgroup=name,
                showlegend=False,
                mode="markers",
                marker={"color": colour, "size": 8},
                hovertemplate="measured %{y:.4g}",
            )
        )
    return traces


def by(comparisons: Sequence[Comparison], key: str) -> dict[str, Sequence[Comparison]]:
    """Grouped by one entry of their settings, in the order in which they come."""
    found: dict[str, list[Comparison]] = {}
    for one in comparisons:
        found.setdefault(str(one.setting[key]), []).append(one)
    return dict(found)


# Below 0, 0, above 0: what is 0 shows the page, be it white or black.
EITHER_SIDE = [[0.0, "#d1495b"], [0.5, "rgba(209, 73, 91, 0)"], [0.5, "rgba(43, 140, 208, 0)"], [1.0, "#2b8cd0"]]
POWERS = {"type": "log", "dtick": 1, "exponentformat": "power"}


def ticks_at(values: Iterable[float | str]) -> dict[str, Any]:
    """A logarithmic axis with ticks where something was measured, and not at 2, 5 and 10 of every decade."""
    ticks = sorted({float(one) for one in values})
    # Ticks closer than a factor of 1.9 would run into each other on a narrow screen.
    kept: list[float] = []
    for one in ticks:
        if not kept or one >= 1.9 * kept[-1]:
            kept.append(one)
    return {"type": "log", "tickvals": kept, "ticktext": [f"{one:g}" for one in kept]}


def ticks(comparisons: Iterable[Comparison], along: str) -> dict[str, Any]:
    """`ticks_at` for what was measured along one entry of the settings."""
    return ticks_at(one.setting[along] for one in comparisons if one.measured is not None)


def level(y: float) -> dict[str, Any]:
    """A dotted line across the picture."""
    return {
        "type": "line",
        "xref": "paper",
        "x0": 0,
        "x1": 1,
        "y0": y,
        "y1": y,
        "line": {"color": "#8a93a0", "dash": "dot"},
    }
