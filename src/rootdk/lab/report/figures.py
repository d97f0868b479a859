"""One function per picture: a Result in, a plotly figure out. Lines are theory, markers and bars were measured."""

import math
from collections.abc import Callable, Sequence
from typing import Any

from rootdk.lab.checks.result import Comparison, Result, Series

from .drawing import (
    COLOURS,
    EITHER_SIDE,
    HUES,
    POWERS,
    Picture,
    by,
    colour_of,
    figure_of,
    level,
    lines,
    ticks,
    ticks_at,
)


def pictures(result: Result) -> list[Picture]:
    """All pictures of one result, none for an experiment without."""
    return [make(result) for make in _PICTURES.get(result.experiment, ())] + [
        make for makes in _SEVERAL.get(result.experiment, ()) for make in makes(result)
    ]


def _variance(result: Result) -> Picture:
    import plotly.graph_objects as go

    chosen = result.select("score variance")
    sizes = sorted({float(one.setting["d_k"]) for one in chosen})
    traces = [go.Scatter(x=sizes, y=sizes, name="theory: d_k", mode="lines", line={"color": "#8a93a0", "width": 2})]
    for number, (law, some) in enumerate(by(chosen, "law").items()):
        marker = {"color": HUES[number], "size": 7 + 5 * number, "symbol": "circle-open", "line": {"width": 2}}
        x, y = [one.setting["d_k"] for one in some], [one.measured for one in some]
        traces.append(go.Scatter(x=x, y=y, name=law, mode="markers", marker=marker, hovertemplate="measured %{y:.4g}"))
    figure = figure_of(traces, "d<sub>k</sub>", "variance of q·k", xaxis=ticks_at(sizes), yaxis=POWERS)
    caption = "Line: theory. Rings: random pairs with components of four laws, one inside the other."
    return Picture("variance", "Variance of a score", caption, figure)


def _variance_ratio(result: Result) -> Picture:
    import plotly.graph_objects as go

    traces = []
    chosen = result.select("score variance")
    for number, (law, some) in enumerate(by(chosen, "law").items()):
        sizes = [float(one.setting["d_k"]) for one in some]
        # Side by side, so that the bars of error can be told apart.
        x = [size * 1.12 ** (number - 1.5) for size in sizes]
        y = [(one.measured or 0.0) / size for one, size in zip(some, sizes, strict=True)]
        bars = [2 * (one.standard_error or 0.0) / size for one, size in zip(some, sizes, strict=True)]
        marker = {"color": HUES[number], "size": 7}
        traces.append(
            go.Scatter(
                x=x, y=y, name=law, mode="markers", marker=marker, hovertemplate="measured %{y:.4f}",
                error_y={"type": "data", "array": bars, "color": HUES[number]},
            )
        )  # fmt: skip
    axis = ticks_at(float(one.setting["d_k"]) for one in chosen)
    figure = figure_of(traces, "d<sub>k</sub>", "variance / d<sub>k</sub>", xaxis=axis)
    figure["layout"]["shapes"] = [level(1.0)]
    return Picture("variance-ratio", "The same, over d_k", "Measured, with two standard errors. Theory: 1.", figure)


def _histogram(rule: str, title: str, caption: str) -> Callable[[Result], Picture]:
    def make(result: Result) -> Picture:
        import plotly.graph_objects as go

        traces: list[Any] = []
        chosen = [one for one in result.series if one.setting["rule"] == rule]
        widest = max((one.setting["d_k"] for one in chosen), default=1)
        for number, one in enumerate(some for some in chosen if some.kind == "measured"):
            name, colour = f"d_k = {one.setting['d_k']}", HUES[number % len(HUES)]
            (told,) = (s for s in chosen if s.kind == "theory" and s.setting == one.setting)
            traces.append(
                go.Bar(
                    x=one.x, y=one.y, name=name, legendgroup=name, marker={"color": colour}, opacity=0.4,
                    hovertemplate="measured %{y:.3g}", width=one.x[1] - one.x[0], showlegend=False,
                )
            )  # fmt: skip
            traces.append(
                go.Scatter(
                    x=told.x, y=told.y, name=name, legendgroup=name, mode="lines", line={"color": colour, "width": 2},
                    hovertemplate="theory %{y:.3g}",
                )
            )  # fmt: skip
        reach = 4.5 * float(widest) ** 0.5 if rule == "none" else 4.5
        figure = figure_of(
            traces,
            "score",
            "density",
            barmode="overlay",
            bargap=0,
            xaxis={"range": [-reach, reach]},
            yaxis=POWERS | {"range": [-5, 0]} if rule == "none" else {"rangemode": "tozero"},
        )
        return Picture(f"scores-{rule}", title, caption, figure)

    return make


def _sharpness(quantities: Sequence[str], name: str, title: str, caption: str) -> Callable[[Result], Picture]:
    def make(result: Result) -> Picture:
        traces = lines({quantity: result.select(quantity) for quantity in quantities}, "sigma")
        axis = ticks(result.comparisons, "sigma")
        figure = figure_of(traces, "standard deviation σ of the logits", "", xaxis=axis)
        keys = float(result.comparisons[0].setting["keys"])
        critical = (2 * math.log(keys)) ** 0.5
        figure["layout"]["shapes"] = [
            {"type": "line", "yref": "paper", "y0": 0, "y1": 1, "x0": critical, "x1": critical,
             "line": {"color": "#8a93a0", "dash": "dot"}}
        ]  # fmt: skip
        return Picture(name, title, caption, figure)

    return make


def _lengths(some: Sequence[Comparison]) -> dict[str, Any]:
    """Every second power of ten, and room for the label of the last one."""
    ends = [math.log10(float(one.setting["keys"])) for one in some]
    room = {"range": [min(ends) - 0.3, max(ends) + 0.3]} if ends else {}
    return POWERS | {"tick0": 1, "dtick": 2} | room


def _along(quantity: str, along: str, name: str, title: str, caption: str, **axes: Any) -> Callable[[Result], Picture]:
    def make(result: Result) -> Picture:
        traces = lines(by(result.select(quantity), "rule"), along)
        label = {"d_k": "d<sub>k</sub>", "keys": "number of keys n"}[along]
        some = result.select(quantity)
        axis = _lengths(some) if along == "keys" else ticks(some, along)
        return Picture(name, title, caption, figure_of(traces, label, quantity, xaxis=axis, **axes))

    return make


def _weights(result: Result) -> list[Picture]:
    """One picture per d_k."""
    groups: dict[int, list[Series]] = {}
    for one in result.series:
        groups.setdefault(int(one.setting["d_k"]), []).append(one)
    return [_bars(d_k, some) for d_k, some in groups.items()]


def _bars(d_k: int, some: Sequence[Series]) -> Picture:
    import plotly.graph_objects as go

    traces = [
        go.Bar(
            x=one.x, y=one.y, name=str(one.setting["rule"]), marker={"color": colour_of(one.setting["rule"], number)},
            hovertemplate="%{y:.4f}",
        )
        for number, one in enumerate(some)
    ]  # fmt: skip
    caption = f"The same query over the same {len(some[0].x)} keys, largest weight first, under each rule."
    figure = figure_of(traces, "key, by weight", "weight", barmode="group", yaxis={"range": [0, 1]})
    return Picture(f"weights-{d_k}", f"Softmax weights of one query, d_k = {d_k}", caption, figure)


def _jacobians(result: Result) -> list[Picture]:
    """One heat map per sigma, each with the range of its own largest entry: the colour bar is part of the message."""
    import plotly.graph_objects as go

    found = []
    for one in (grid for grid in result.grids if grid.kind == "measured"):
        places = list(range(1, len(one.rows) + 1))
        largest = max(abs(entry) for row in one.rows for entry in row) or 1.0
        trace = go.Heatmap(
            z=one.rows, x=places, y=places, colorscale=EITHER_SIDE, zmid=0, zmin=-largest, zmax=largest,
            hovertemplate="∂p<sub>%{y}</sub>/∂z<sub>%{x}</sub> = %{z:.3g}<extra></extra>",
            colorbar={"thickness": 10, "tickformat": ".2g", "outlinewidth": 0},
        )  # fmt: skip
        sigma = one.setting["sigma"]
        axes = {
            "xaxis": {"constrain": "domain", "showgrid": False},
            "yaxis": {"autorange": "reversed", "scaleanchor": "x", "constrain": "domain", "showgrid": False},
        }
        figure = figure_of([trace], "logit, largest first", "weight", **axes)
        caption = (
            f"∂p/∂z of one row of {len(places)} logits. Largest entry {largest:.2g}; each picture has its own colours."
        )
        found.append(Picture(f"jacobian-{sigma}", f"Jacobian at σ = {sigma:g}", caption, figure))
    return found


def _formats(result: Result) -> Picture:
    traces = lines(by(result.select("relative error"), "format"), "sigma")
    axes = {"xaxis": POWERS, "yaxis": POWERS}
    figure = figure_of(traces, "standard deviation of the scores", "rounding error / σ", **axes)
    caption = (
        "Flat lines: a score ten or a hundred times smaller keeps the same digits, until float16 runs out of range."
    )
    return Picture("formats", "Rounding error relative to the scores", caption, figure)


def _premises(result: Result) -> Picture:
    import plotly.graph_objects as go

    chosen = result.select("variance inside a row")[::-1]
    names = [str(one.setting["premise"]) for one in chosen]
    errors = [2 * (one.standard_error or 0.0) for one in chosen]
    traces = [
        go.Bar(
            y=names, x=[one.theory for one in chosen], orientation="h", name="theory",
            marker={"color": "#8a93a0"}, opacity=0.55, hovertemplate="theory %{x:.4g}",
        ),
        go.Scatter(
            y=names, x=[one.measured for one in chosen], mode="markers", name="measured",
            marker={"color": COLOURS["sqrt"], "size": 9}, error_x={"type": "data", "array": errors},
            hovertemplate="measured %{x:.4g}",
        ),
    ]  # fmt: skip
    figure = figure_of(traces, "variance inside a row", "")
    figure["layout"]["margin"] = {"l": 8, "r": 12, "t": 8, "b": 48}
    figure["layout"]["yaxis"] |= {"automargin": True}
    caption = "Under 1/√d_k; with the premise it is 1. Correlation multiplies it, a mean of the keys leaves it alone."
    return Picture("premises", "Variance when the premise is wrong", caption, figure)


_DK = "Lines: theory. Markers: measured, with two standard errors."
_PICTURES: dict[str, Sequence[Callable[[Result], Picture]]] = {
    "variance": (_variance, _variance_ratio),
    "scores": (
        _histogram("none", "Scores without a scale", "Bars: counted. Lines: the exact density. Wider with every d_k."),
        _histogram("sqrt", "Scores times 1/√d_k", "The same counts after scaling: one width for every d_k."),
    ),
    "sharpness": (
        _sharpness(("entropy",), "entropy-sigma", "Entropy, in nats", "Dotted: σ = √(2 ln n). " + _DK),
        _sharpness(
            ("trace of J", "|J|^2", "largest weight", "rows with p > .99"),
            "trace-sigma",
            "What is left of the Jacobian",
            "The trace falls; the norm first rises and then falls. " + _DK,
        ),
    ),
    "gradient": (
        _along(
            "|do/dq| / |o|", "d_k", "flow", "Gradient that reaches the query",
            "Relative to the output. Only 1/√d_k keeps it near 1. " + _DK, yaxis=POWERS,
        ),
    ),
    "rules": (
        _along("H / ln n", "d_k", "entropy-dk", "Entropy against d_k", _DK),
        _along("trace of J", "d_k", "trace-dk", "Trace of J against d_k", _DK),
    ),
    "length": (
        _along(
            "entropy", "keys", "entropy-n", "Entropy against the number of keys",
            "In nats; to a billion keys by theory. Markers: measured.",
        ),
        _along(
            "H / ln n", "keys", "ratio-n", "The same as a share of ln n", "1 is uniform.",
        ),
    ),
    "formats": (_formats,),
    "premises": (_premises,),
}  # fmt: skip
_SEVERAL: dict[str, Sequence[Callable[[Result], list[Picture]]]] = {"rules": (_weights,), "gradient": (_jacobians,)}
