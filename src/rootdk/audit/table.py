"""A Report in a terminal: one line per layer with the theory beneath, then what was found and what to do."""

from typing import TYPE_CHECKING, Any

import numpy as np
from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from rootdk.untrusted import shown_text

if TYPE_CHECKING:
    from rootdk.audit.finding import Finding
    from rootdk.audit.result import LayerReport, Report

_STYLE = {"healthy": "green", "note": "cyan", "warning": "yellow", "critical": "bold red"}
# Heading, metric, and what the heads of a layer become.
_COLUMNS: tuple[tuple[str, str, Any], ...] = (
    ("std", "logit_deviation", np.nanmedian),
    ("max", "max_logit", np.nanmax),
    ("H/ln n", "entropy_ratio", np.nanmedian),
    ("sat.", "saturated", np.nanmedian),
    ("tr J", "jacobian_trace", np.nanmedian),
    ("sink", "sink_mass", np.nanmax),
)
_SHOWN = 12
_NAME = 16


def view(report: "Report") -> Group:
    """What a Report shows of itself."""
    title = Text.assemble("attention: ", (report.verdict, _STYLE[report.verdict]))
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("layer, theory", overflow="fold", min_width=_NAME)
    for heading in ("scale", *(column[0] for column in _COLUMNS), "verdict"):
        table.add_column(heading, justify="right", no_wrap=True)
    for layer in report.layers:
        verdict = report.verdict_on(layer.name)
        scale, said = _short(layer.facts.get("scale")), Text(verdict, _STYLE[verdict])
        table.add_row(Text(_end(shown_text(layer.name))), scale, *_measured(layer), said)
        if layer.baseline:
            predicted = [_cell(layer.baseline.get(metric)) for _, metric, _ in _COLUMNS]
            table.add_row("", "", *predicted, "", style="dim")
    lines: list[Any] = [table]
    grave = [one for one in report.findings if one.severity != "note"]
    lines += [_line(one) for one in grave[:_SHOWN]]
    if len(grave) > _SHOWN:
        lines.append(Text(f"and {len(grave) - _SHOWN} more in .findings"))
    lines += _notes([one for one in report.findings if one.severity == "note"])
    lines += [
        Text(f"not read: {shown_text(name)}: {shown_text(why, 400)}", style="yellow")
        for name, why in report.unread.items()
    ]
    return Group(*lines)


def _line(one: "Finding") -> Text:
    said = f" {_place(one)}: {one.metric} {_short(one.value)}, limit {_short(one.threshold)}. {one.remedy}. "
    return Text.assemble((one.severity, _STYLE[one.severity]), said, (shown_text(one.source, 400), "dim"))


def _place(one: "Finding") -> str:
    return shown_text(one.layer) + ("" if one.head is None else f", head {one.head}")


def _notes(notes: "list[Finding]") -> list[Text]:
    """One line for all notes of one kind."""
    kinds = {(one.metric, one.source): [other for other in notes if other.source == one.source] for one in notes}
    lines = []
    for (metric, source), found in kinds.items():
        layers = dict.fromkeys(one.layer for one in found)
        where = _place(found[0]) if len(found) == 1 else f"{len(found)} times in {len(layers)} layers"
        said = f" {metric}, {where}: "
        lines.append(Text.assemble(("note", _STYLE["note"]), said, (shown_text(source, 400), "dim")))
    return lines


def _measured(layer: "LayerReport") -> list[str]:
    cells = []
    for _, metric, fold in _COLUMNS:
        values = [head[metric] for head in layer.heads if metric in head and not np.isnan(head[metric])]
        cells.append(_cell(float(fold(values))) if values else "-")
    return cells


def _end(name: str) -> str:
    return name if len(name) <= _NAME else "…" + name[1 - _NAME :]


def _cell(value: Any) -> str:
    """A number in five places, six with a sign: nine columns stand in a terminal of 80."""
    if value is None or np.isnan(value):
        return "-"
    size = abs(value)
    if size >= 99_999.5:
        return f"{value:.0e}"
    return _short(value) if size < 5e-4 or 0.1 <= size < 999.5 else f"{value:.{3 if size < 1 else 0}f}"


def _short(value: Any) -> str:
    if value is None or np.isnan(value):
        return "-"
    return "0" if abs(value) < 5e-4 else f"{value:.3g}"
