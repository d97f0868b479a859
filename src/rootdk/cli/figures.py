"""`rootdk figures`: every figure of the report for a paper, drawn by matplotlib in the width of a column.

A Picture holds what plotly's JSON holds; this draws the part of it that pictures of this package use, and refuses the
rest.
"""

import math
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rootdk.errors import RootdkError
from rootdk.files import write_atomically
from rootdk.rendering import csv_text

from . import options

if TYPE_CHECKING:
    from rootdk.lab.checks import Result
    from rootdk.lab.drawing import Picture


FORMATS = ("svg", "pdf", "png")


@click.command()
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@click.option(
    "--size",
    type=click.Choice(["quick", "default", "full"]),
    default="default",
    help="How much is measured: as rootdk --quick, rootdk, rootdk --full.",
)
@options.d_k()
@options.keys()
@options.rule()
@options.seed("Seed of the random numbers.")
@click.option(
    "--width", type=click.FloatRange(1.5, 12.0), default=3.4, help="Width in inches; 3.4 is one column of a paper."
)
@click.option(
    "--format",
    "formats",
    type=click.Choice(FORMATS),
    multiple=True,
    default=("svg",),
    help="File format; can be repeated.",
)
def figures(
    folder: Path,
    size: str,
    d_k: tuple[int, ...],
    keys: int,
    rule: tuple[str, ...],
    seed: int,
    width: float,
    formats: tuple[str, ...],
) -> None:
    """Write figures for a paper, each with its data.

    Every figure goes into FOLDER, with its data as CSV beside it.
    The figures of the study are measured now. Those of training come from runs that are part of the package. FOLDER is
    created if it does not exist; files with the same names are replaced.
    """
    from rootdk.lab.checks import Cache, plan, run

    from .lifetime import Bars

    check_matplotlib()
    specs = plan(size, d_k=d_k, keys=keys, rules=rule, seed=seed)
    try:
        existing = next(place for place in (folder.absolute(), *folder.absolute().parents) if place.exists())
        if not (existing.is_dir() and os.access(existing, os.W_OK)):  # an error now, before the long work
            raise click.BadParameter(f"cannot write to {existing}", param_hint="'FOLDER'")
        with Bars() as bars:
            results = []
            for number, spec in enumerate(specs):
                results.append(run(spec, cache=Cache()))
                bars("measuring", 0.5 * (number + 1) / len(specs))
            pictures = list(_pictures(results))
            folder.mkdir(parents=True, exist_ok=True)
            for number, picture in enumerate(pictures):
                write_figure(picture, folder, width, tuple(dict.fromkeys(formats)))
                bars("drawing", 0.5 + 0.5 * (number + 1) / len(pictures))
        listed = (f"- {picture.name}: {picture.title}. {picture.caption}\n" for picture in pictures)
        options.write(folder / "figures.md", "".join(listed), "FOLDER")
    except OSError as error:
        raise click.ClickException(f"FOLDER: cannot write to {folder}: {error.strerror or error}") from error
    click.echo(f"{len(pictures)} figures in {folder}, each with its data; figures.md says what they show.")


def _pictures(results: "Sequence[Result]") -> "Iterator[Picture]":
    from rootdk.lab.answer import rows_pictures
    from rootdk.lab.checks import EXPERIMENTS
    from rootdk.lab.report.training_page import chapters
    from rootdk.lab.training import shipped

    yield from rows_pictures()
    for result in results:
        yield from EXPERIMENTS[result.experiment].pictures(result)
    for _, pictures in chapters(shipped()):
        yield from pictures


_STYLE = {
    "font.size": 8.0,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.linewidth": 0.4,
    "grid.color": "#dddddd",
    "axes.axisbelow": True,
    "legend.frameon": False,
    "legend.handlelength": 1.6,
    "svg.fonttype": "none",  # text stays text: it can be searched, and takes the fonts of the paper
    "svg.hashsalt": "rootdk",  # the same figure is the same file
    "pdf.fonttype": 42,
    "figure.dpi": 200,
}
# Plotly's names for a line's dashes, and how matplotlib writes them.
_DASHES: dict[str, Any] = {
    "solid": "-", "dot": ":", "dash": "--", "dashdot": "-.", "longdash": (0, (8, 3)), "longdashdot": (0, (8, 3, 1, 3)),
}  # fmt: skip


class MatplotlibMissingError(RootdkError, ImportError):
    """Figures for a paper need matplotlib, which is an extra."""


def check_matplotlib() -> None:
    """An error that says how to get matplotlib, if it is missing."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise MatplotlibMissingError(
            "figures: needs matplotlib, which is not installed; get it with: pip install 'rootdk[figures]'"
        ) from error


def write_figure(picture: "Picture", folder: Path, width: float = 3.4, formats: Sequence[str] = ("svg",)) -> list[Path]:
    """The picture in each format, `width` inches wide, and its data as CSV; the paths of what was written."""
    import io

    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(width, 0.72 * width), layout="constrained")
        _draw(figure, picture.figure)
        paths = []
        for form in formats:
            page = io.BytesIO()
            # Without a date, the same figure is the same file.
            figure.savefig(page, format=form, metadata={"Date": None} if form == "svg" else None)
            paths.append(folder / f"{picture.name}.{form}")
            write_atomically(paths[-1], page.getvalue())
    paths.append(folder / f"{picture.name}.csv")
    write_atomically(paths[-1], csv_text(rows_of(picture)))
    return paths


def rows_of(picture: "Picture") -> Iterator[dict[str, Any]]:
    """The data as rows of a table: a point each, with the name of its line; for a map, a cell each.

    >>> from rootdk.lab.drawing import Picture, line, plot
    >>> shown = Picture("p", "", "", plot([line([4, 8], [1.0, 2.0], "theory", "#000")], "d_k", "y"))
    >>> list(rows_of(shown))[1]
    {'name': 'theory', 'x': 8, 'y': 2.0, 'value': None, 'two standard errors': None}
    """
    for trace in picture.figure["data"]:
        name = plain_text(trace.get("name", ""))
        if trace["type"] == "heatmap":
            for y, row in zip(trace["y"], trace["z"], strict=True):
                for x, value in zip(trace["x"], row, strict=True):
                    yield {"name": name, "x": x, "y": y, "value": value, "two standard errors": None}
            continue
        errors = trace.get("error_y", trace.get("error_x", {})).get("array") or [None] * len(trace["x"])
        for x, y, error in zip(trace["x"], trace["y"], errors, strict=True):
            yield {"name": name, "x": x, "y": y, "value": None, "two standard errors": error}


def plain_text(text: str) -> str:
    """The text without HTML tags.

    >>> plain_text("d<sub>k</sub>"), plain_text("|do/dq|")
    ('d_k', '|do/dq|')
    """
    return re.sub(r"<[^>]*>", "", text.replace("<sub>", "_"))


def _typeset(text: str) -> str:
    return re.sub(r"\b([A-Za-z])_([a-z])\b", r"$\1_\2$", plain_text(text).replace("$", r"\$"))


def _colour(text: str) -> Any:
    if text.startswith("rgba"):
        *rgb, alpha = (float(part) for part in re.findall(r"[\d.]+", text))
        return (*(part / 255 for part in rgb), alpha)
    return text


def _draw(figure: Any, drawn: dict[str, Any]) -> None:
    axes, layout = figure.add_subplot(), drawn["layout"]
    grouped = [trace for trace in drawn["data"] if trace["type"] == "bar"] if layout.get("barmode") == "group" else []
    for trace in drawn["data"]:
        shown = trace.get("showlegend", layout.get("showlegend", True)) and trace.get("name")
        label = _typeset(trace["name"]) if shown else "_"
        if trace["type"] == "heatmap":
            _map(figure, axes, trace)
        elif trace["type"] == "bar":
            _bars(axes, trace, label, (grouped.index(trace), len(grouped)) if grouped else (0, 1))
        elif trace["type"] == "scatter":
            _curve(axes, trace, label)
        else:
            raise RootdkError(f"figures: must be of lines, bars and maps, got a trace of type {trace['type']!r}")
    for shape in layout.get("shapes", ()):
        _line_across(axes, shape)
    for axis, name in ((axes.xaxis, "x"), (axes.yaxis, "y")):
        _axis(axes, axis, name, layout[f"{name}axis"])
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        columns = max(1, min(len(labels), 3 if max(map(len, labels)) < 16 else 2))
        figure.legend(handles, labels, loc="outside upper left", ncols=columns, fontsize=7)


def _curve(axes: Any, trace: dict[str, Any], label: str) -> None:
    line, marker, mode = trace.get("line", {}), trace.get("marker", {}), trace.get("mode", "lines")
    colour = _colour(line.get("color") or marker.get("color") or "#444444")
    if trace.get("fill"):
        axes.fill(trace["x"], trace["y"], color=_colour(trace["fillcolor"]), linewidth=0)
        return
    look = {
        "color": colour,
        "alpha": trace.get("opacity", marker.get("opacity")),
        "linestyle": _DASHES[line.get("dash", "solid")] if "lines" in mode else "",
        "linewidth": 0.55 * line.get("width", 2),
        "drawstyle": "steps-post" if line.get("shape") == "hv" else "default",
        "marker": "o" if "markers" in mode else "",
        "markersize": 0.45 * marker.get("size", 6),
        "markerfacecolor": "white" if str(marker.get("symbol")).endswith("-open") else colour,
        "label": label,
    }
    errors = {f"{axis}err": trace[f"error_{axis}"]["array"] for axis in "xy" if f"error_{axis}" in trace}
    x, y = ([math.nan if entry is None else entry for entry in trace[axis]] for axis in "xy")
    if errors:
        axes.errorbar(x, y, **errors, elinewidth=0.7, capsize=1.5, **look)
    else:
        axes.plot(x, y, **look)


def _bars(axes: Any, trace: dict[str, Any], label: str, place: tuple[int, int]) -> None:
    look = {"color": _colour(trace["marker"]["color"]), "alpha": trace.get("opacity"), "label": label}
    if trace.get("orientation") == "h":
        axes.barh(trace["y"], trace["x"], **look)
        return
    number, count = place
    width = trace.get("width", 0.8 / count)
    x = trace["x"] if count == 1 else [entry + (number - (count - 1) / 2) * width for entry in trace["x"]]
    axes.bar(x, trace["y"], width, **look)


def _map(figure: Any, axes: Any, trace: dict[str, Any]) -> None:
    from matplotlib.colors import LinearSegmentedColormap

    stops = [(place, _colour(colour)) for place, colour in trace["colorscale"]]
    shades = LinearSegmentedColormap.from_list("shades", stops)
    cells = axes.pcolormesh(trace["x"], trace["y"], trace["z"], cmap=shades, vmin=trace["zmin"], vmax=trace["zmax"])
    axes.set_aspect("equal")
    axes.grid(visible=False)
    figure.colorbar(cells, ax=axes, shrink=0.8)


def _line_across(axes: Any, shape: dict[str, Any]) -> None:
    look = {"color": shape["line"]["color"], "linestyle": _DASHES[shape["line"].get("dash", "solid")], "linewidth": 0.8}
    if shape.get("yref") == "paper":
        axes.axvline(shape["x0"], **look)
    else:
        axes.axhline(shape["y0"], **look)


def _axis(axes: Any, axis: Any, name: str, wanted: dict[str, Any]) -> None:
    axis.set_label_text(_typeset(wanted["title"]["text"]))
    log = wanted.get("type") == "log"
    if log:
        getattr(axes, f"set_{name}scale")("log")
    if "range" in wanted:
        low, high = (10.0**end if log else end for end in wanted["range"])
        getattr(axes, f"set_{name}lim")(low, high)
    elif wanted.get("rangemode") == "tozero":
        getattr(axes, f"set_{name}lim")(**{"bottom" if name == "y" else "left": 0})
    if "tickvals" in wanted:
        low, high = sorted(axis.get_view_interval())
        ticks = [pair for pair in zip(wanted["tickvals"], wanted["ticktext"], strict=True) if low <= pair[0] <= high]
        axis.set_ticks([tick for tick, _ in ticks], labels=[_typeset(text) for _, text in ticks])
        axis.set_ticks([], minor=True)
    if wanted.get("autorange") == "reversed":
        axis.set_inverted(True)
