"""An audit in a terminal and in a notebook, from the dictionary that is also its JSON.

Both show the verdict, the layers, what was found and what to do. Layers are a table, with the prediction of theory
below each line, or, in a terminal, maps of every head: darker is larger, in signs as well as in colours.
"""

import math
import textwrap
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from html import escape
from typing import Any

import numpy as np
from rich import box
from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderResult
from rich.table import Table
from rich.text import Text

from rootdk import rendering
from rootdk.files import shown_text, shown_values

from .layer import MIN_KEYS, MIN_ROWS
from .metrics import METRICS, FindingGroup, Metric, counted, grid, grouped, named, present, short_names
from .result import SEVERITIES, WORDS

STYLES = {"healthy": "green", "unjudged": "dim", "note": "cyan", "warning": "yellow", "critical": "bold red"}
# Heading, metric, how the heads of a layer are combined, and what it means; for a run, else for weights alone.
_MEASURED: tuple[tuple[str, str, Any, str], ...] = (
    ("score std", "logit_deviation", np.median, "standard deviation of the scores inside a row"),
    ("largest score", "max_logit", np.max, "of any row"),
    ("entropy share", "entropy_ratio", np.median, "1 is equal weights, 0 is one key"),
    ("rows of one key", "saturated", np.median, "one key has over 99 % of the weight"),
    ("Jacobian trace", "jacobian_trace", np.median, "near 0 no gradient passes"),
    ("sink weight", "sink_mass", np.max, "of the first key, or of a learned sink"),
)
_OF_WEIGHTS: tuple[tuple[str, str, Any, str], ...] = (
    (
        "predicted std",
        "predicted_deviation",
        np.median,
        "standard deviation of the scores by theory, median of the heads",
    ),
    ("largest", "predicted_deviation", np.max, "the same, largest head"),
    ("bound", "spectral_bound", np.max, "no input gives a larger logit"),
    ("by gains", "gain_bound", np.max, "the same after QK-norm"),
)
# Width in columns of a layer's name, beside numbers of weights and beside those of a run.
_NAME, _SHORT_NAME = 16, 12
_HEADING = 8
SEEN = "In these lines `seen` is the watch: with rootdk.watch(model) as seen: model(...)"
# How many maps a terminal shows; the page has all of them.
_MAPS = 4
_GAP = 2
_LABEL = 20
_UNKNOWN = 6
_LONGEST = 120
# Read without colours too, on paper or by someone who sees few of them.
_SIGNS = "·░▒▓█"
_COLOURS = ("#4575b4", "#74add1", "#e6c34a", "#f46d43", "#d73027")
# Heads of one layer that differ by less are shown alike: rounding must not look like a difference.
_LEAST_FACTOR, _LEAST_SHARE = 4.0, 0.1
_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:75rem;padding:0 1rem}"
    ":root{color-scheme:light dark}caption{text-align:left;font-weight:600}"
    "table{border-collapse:collapse;margin:1rem 0;display:block;overflow-x:auto}"
    "th,td{padding:.25rem .75rem;border-bottom:1px solid #8884;text-align:left;vertical-align:top}"
)


def view(audit: Mapping[str, Any], maps: bool = False) -> ConsoleRenderable:
    """What `rich` prints of an audit, as wide as the terminal is; layers as a table, or as maps of their heads."""
    return _View(audit, maps)


def view_html(audit: Mapping[str, Any]) -> str:
    """What a notebook shows of an audit: the table of layers and that of findings."""
    audit = shown_values(audit)
    layers = rendering.html_table(headline(audit).plain, *_layer_table(audit))
    findings = [
        [group.severity, group.metric, group.value, group.limit, group.places, group.remedy, group.source]
        for group in grouped(audit)
    ]
    columns = ["severity", "metric", "value", "limit", "where", "what to do", "source"]
    table = rendering.html_table("findings", columns, findings) if findings else "<p>Nothing found.</p>"
    seen = [SEEN] if ", seen" in table else []
    answer = _paragraphs([_answer(audit)] if _answer(audit) else [])
    legend = _paragraphs([_words(audit)] if audit["layers"] else [])
    return "".join([answer, layers, legend, table, _paragraphs([*_not_read(audit), *seen])])


def _paragraphs(lines: Sequence[str]) -> str:
    return "".join(f"<p>{escape(line)}</p>" for line in lines)


def page_html(audit: Mapping[str, Any]) -> str:
    """A page that holds the same, and opens offline."""
    title = escape(headline(shown_values(audit)).plain)
    return (
        f"<!doctype html><html lang='en'><head><meta charset='utf-8'><title>{title}</title>"
        f"<meta name='viewport' content='width=device-width'><style>{_STYLE}</style></head>"
        f"<body>{view_html(audit)}</body></html>"
    )


class _View:
    def __init__(self, audit: Mapping[str, Any], maps: bool) -> None:
        # Names and model types come from files: none of them may reach the terminal unchanged.
        self._audit, self._with_maps = shown_values(audit), maps

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield headline(self._audit)
        if answer := _answer(self._audit):
            yield Text(answer)
        yield Text()
        if self._with_maps:
            yield from _maps(self._audit, options.max_width)
        elif self._audit["layers"]:
            yield from (_table(self._audit), Text(_words(self._audit), style="dim"), Text())
        yield from _findings(self._audit)
        if any(", seen" in finding["remedy"] for finding in self._audit["findings"]):
            yield Text(SEEN, style="dim")
        for line in _not_read(self._audit):
            yield Text(line, style="yellow")


def headline(audit: Mapping[str, Any]) -> Text:
    """One line: what was audited, and the verdict."""
    model = shown_values(audit.get("model") or {}, _LONGEST)
    layers = audit["layers"]
    heads = max((len(layer["heads"]) for layer in layers), default=0)
    facts = [f"{counted(len(layers), 'layer')} of {counted(heads, 'head')}"]
    if model.get("d_k"):
        facts.append(f"d_k {model['d_k']}")
    if model.get("scale"):
        facts.append(f"scale {rendering.short(model['scale'])} ({model['scale_source']})")
    if model.get("softcap"):
        facts.append(f"softcap {rendering.short(model['softcap'])}")
    name = model.get("model_type") or "attention"
    verdict = Text(WORDS.get(audit["verdict"], audit["verdict"]), style=STYLES[audit["verdict"]])
    return Text.assemble((name, "bold"), ": ", verdict, "  (", ", ".join(facts), ")")


def _answer(audit: Mapping[str, Any]) -> str:
    """Which layers are not healthy, and the worst number; empty where the headline has said it all."""
    ill = [layer["name"] for layer, mark in zip(audit["layers"], _marks(audit), strict=True) if mark in SEVERITIES]
    if not ill:
        return ""
    worst = grouped(audit)[0]
    short = next((metric.short for metric in METRICS if metric.name == worst.metric), worst.metric.replace("_", " "))
    return (
        f"Not healthy: {len(ill)} of {counted(len(audit['layers']), 'layer')}, {named(ill)}. "
        f"The worst: {short} {worst.value}, limit {worst.limit}. What to do is below the table."
    )


def _table(audit: Mapping[str, Any]) -> Table:
    """A line for each layer; what theory predicts for random q and k is below it."""
    columns, rows = _layer_table(audit)
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False, pad_edge=False)
    table.add_column(columns[0], overflow="fold")
    measured = _MEASURED[0][0] in columns
    for heading in columns[1:]:
        shown = "\n".join(textwrap.wrap(heading, _HEADING)) if measured else heading
        table.add_column(shown, justify="right", no_wrap=True)
    names = iter(short_names([layer["name"] for layer in audit["layers"]], _SHORT_NAME if measured else _NAME))
    for _, *cells, verdict in rows:
        name, style = (next(names), "") if verdict else ("", "dim")
        table.add_row(Text(name), *cells, Text(verdict, STYLES.get(verdict, "")), style=style)
    return table


def _words(audit: Mapping[str, Any]) -> str:
    """What the headings mean."""
    headings, rows = _layer_table(audit)
    text = "; ".join(f"{head}: {meaning}" for head, _, _, meaning in (*_MEASURED, *_OF_WEIGHTS) if head in headings)
    beneath = any(not verdict for *_, verdict in rows)
    return f"{text}. The lower number is that of theory, for random q and k." if beneath else f"{text}."


def _layer_table(audit: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Headings and cells of the table of layers."""
    layers = audit["layers"]
    names = {metric.name for metric in present(layers)}
    measured = any(metric in names for _, metric, _, _ in _MEASURED)
    chosen = _MEASURED if measured else tuple(column for column in _OF_WEIGHTS if column[1] in names)
    rows = []
    for layer, mark in zip(layers, _marks(audit), strict=True):
        scales = [layer.get("scale"), *(head.get("scale") for head in layer["heads"][:1])]
        scale = next((scale for scale in scales if scale is not None), None)
        cells = [_cell(_folded(fold, layer["heads"], metric)) for _, metric, fold, _ in chosen]
        rows.append([layer["name"], _short(scale), *cells, mark or "healthy"])
        if measured and layer.get("baseline"):
            rows.append(["", "", *(_cell(layer["baseline"].get(metric)) for _, metric, _, _ in chosen), ""])
    first = "layer, theory" if measured else "layer"
    return [first, "scale", *(heading for heading, *_ in chosen), "verdict"], rows


def _folded(fold: Any, heads: Sequence[Mapping[str, Any]], metric: str) -> float | None:
    values = [head[metric] for head in heads if head.get(metric) is not None]
    return float(fold(values)) if values else None


def _cell(value: float | None) -> str:
    """A number in five places, six with a sign: so nine columns fit into a terminal of 80."""
    size = 0.0 if value is None else abs(value)
    if value is None or size < 5e-4 or 0.1 <= size < 999.5:
        return _short(value)
    return f"{value:.0e}" if size >= 99_999.5 else f"{value:.{3 if size < 1 else 0}f}"


def _short(value: float | None) -> str:
    if value is None:
        return "-"
    return "0" if abs(value) < 5e-4 else f"{value:.3g}"


def _maps(audit: Mapping[str, Any], width: int) -> Iterator[Any]:
    """The first few metrics, two beside each other where they fit; the first in a row marks the unhealthy layers."""
    layers = audit["layers"]
    names = short_names([layer["name"] for layer in layers], _LABEL)
    marks, none = _marks(audit), [""] * len(layers)
    chosen = present(layers)[:_MAPS]
    for start in range(0, len(chosen), 2):
        pair = chosen[start : start + 2]
        beside = [
            heat_map(metric, grid(layers, metric.name), names, none if number else marks, width // 2)
            for number, metric in enumerate(pair)
        ]
        widths = [max(map(len, drawn.plain.splitlines())) for drawn in beside]
        if sum(widths) + _GAP <= width:
            table = Table.grid(padding=(0, _GAP, 0, 0))
            table.add_row(*beside)
            yield from (table, Text())
        else:
            for metric in pair:
                yield from (heat_map(metric, grid(layers, metric.name), names, marks, width), Text())


def _marks(audit: Mapping[str, Any]) -> list[str]:
    """The worst finding in each layer, if it is more than a note."""
    worst: dict[str, str] = {}
    for severity in ("warning", "critical"):
        worst |= {finding["layer"]: severity for finding in audit["findings"] if finding["severity"] == severity}
    return [worst.get(layer["name"], "" if layer.get("enough", True) else "unjudged") for layer in audit["layers"]]


def _findings(audit: Mapping[str, Any]) -> list[Any]:
    if not audit["findings"]:
        return [] if audit["verdict"] == "unjudged" else [Text("Nothing found.")]
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column()
    before = ""
    for group in grouped(audit):
        repeated = replace(group, remedy="as above") if group.remedy == before else group
        table.add_row(Text(group.severity, style=STYLES[group.severity]), _finding_text(repeated))
        before = group.remedy
    return [table]


def _finding_text(group: FindingGroup) -> Text:
    limit = f", limit {group.limit}" if group.limit else ""
    text = Text.assemble((group.metric, "bold"), f" {group.value}{limit}: {group.places}.")
    text.append(f" [{group.source}]", style="dim")
    return text.append(f"\nTo do: {group.remedy}")


def _not_read(audit: Mapping[str, Any]) -> list[str]:
    """What could not be judged: layers that ran on too little, tensors not understood, calls that were not read."""
    lines = []
    few = [layer for layer in audit["layers"] if not layer.get("enough", True)]
    if few:
        keys, rows = (max(int(layer[name]) for layer in few) for name in ("keys", "rows"))
        which = "every layer" if len(few) == len(audit["layers"]) else f"{len(few)} of {len(audit['layers'])} layers"
        lines.append(
            f"Too little to judge in {which}: at most {rows} rows that see {keys} keys. A verdict needs {MIN_ROWS} "
            f"rows that see {MIN_KEYS} keys or more: give it a longer text."
        )
    if unknown := audit.get("unknown") or []:
        listed = ", ".join(shown_text(name, _LONGEST) for name in unknown[:_UNKNOWN])
        more = f" and {len(unknown) - _UNKNOWN} more" if len(unknown) > _UNKNOWN else ""
        lines.append(f"Not understood, so not read: {listed}{more}")
    return lines + [f"Not read: {name}: {why}" for name, why in (audit.get("unread") or {}).items()]


def borders_of(metric: Metric, values: Sequence[float]) -> list[float]:
    """Where one of the five signs ends and the next begins, from low to high; two if all numbers are equal.

    The steps from the smallest number to the largest are even in factors or in differences.
    """
    known = [value for value in values if math.isfinite(value)]
    low, high = min(known, default=0.0), max(known, default=1.0)
    count = len(_SIGNS)
    if low == high:
        return [low] * 2  # the middle sign for all
    if not metric.share and low > 0.0:
        left, right = math.sqrt(low), math.sqrt(high)  # the product of the two may overflow float64
        middle, reach = left * right, max(right / left, math.sqrt(_LEAST_FACTOR))
        return [middle * reach ** (2 * step / count - 1) for step in range(1, count)]
    middle = (low + high) / 2
    half = max((high - low) / 2, _LEAST_SHARE / 2 if metric.share else 1e-12)
    return [middle + half * (2 * step / count - 1) for step in range(1, count)]


def heat_map(
    metric: Metric, rows: Sequence[Sequence[float]], names: Sequence[str], marks: Sequence[str], width: int
) -> Text:
    """Heading, what the signs mean, a line per layer; marks stand at the ends of lines.

    Two columns for a head where there is room, else one; heads that do not fit go on in the next line.
    """
    label = max(5, *map(len, names))
    borders = borders_of(metric, [value for row in rows for value in row])
    heads = max(map(len, rows))
    columns = max(8, width - label - 2 - max((len(mark) + 1 for mark in marks), default=0))
    size = 2 if 2 * heads <= columns else 1
    text = Text(metric.short, style="bold").append("\n").append_text(_legend(borders))
    text.append(f"\n{'layer':{label}}  {_ruler(min(heads, columns // size), size)}", style="dim")
    for row, name, mark in zip(rows, names, marks, strict=True):
        for start in range(0, len(row), columns // size):
            shown = name if start == 0 else ""
            text.append(f"\n{shown:{label}}  ")
            for value in row[start : start + columns // size]:
                if math.isnan(value):
                    text.append(" " * size)
                else:
                    place = bisect_right(borders, value)
                    text.append(_SIGNS[place] * size, style=_COLOURS[place])
            if mark and start == 0:
                text.append(f" {mark}", style="bold")
    return text


def _legend(borders: Sequence[float]) -> Text:
    """Each sign with the number that it begins at."""
    text = Text()
    if len(borders) == 2:
        return text.append(_SIGNS[2] * 2, style=_COLOURS[2]).append(f" {rendering.brief(borders[0])} everywhere")
    bounds = ["", *(f" {rendering.brief(border)} " for border in borders)]
    for sign, colour, bound in zip(_SIGNS, _COLOURS, bounds, strict=True):
        text.append(bound).append(sign * 2, style=colour)
    return text


def _ruler(heads: int, size: int) -> str:
    """Numbers of heads, every fourth, or every eighth where a head is one column."""
    step, line = (4 if size == 2 else 8), ""
    for head in range(0, heads, step):
        line = line.ljust(head * size) + str(head)
    return line.ljust(heads * size) + "  head"
