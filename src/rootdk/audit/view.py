"""A Report in a terminal: one line per layer with the theory beneath, then what was found and what to do."""

from typing import TYPE_CHECKING, Any

import numpy as np
from rich import box
from rich.console import Group
from rich.markup import escape
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from rootdk.audit.report import LayerReport, Report

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


def view(report: "Report") -> Group:
    """What a Report shows of itself."""
    title = Text.assemble("attention: ", (report.verdict, _STYLE[report.verdict]))
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("layer (then theory)", overflow="fold", min_width=16)
    for heading in ("scale", *(column[0] for column in _COLUMNS), "verdict"):
        table.add_column(heading, justify="right", no_wrap=True)
    for layer in report.layers:
        verdict = report.verdict_on(layer.name)
        scale, said = _short(layer.facts.get("scale")), Text(verdict, _STYLE[verdict])
        table.add_row(escape(layer.name), scale, *_measured(layer), said)
        if layer.baseline:
            predicted = [_short(layer.baseline.get(metric)) for _, metric, _ in _COLUMNS]
            table.add_row("", "", *predicted, "", style="dim")
    lines: list[Any] = [table]
    for one in report.findings[:_SHOWN]:
        place = escape(one.layer) + ("" if one.head is None else f", head {one.head}")
        lines.append(
            Text.from_markup(
                f"[{_STYLE[one.severity]}]{one.severity}[/] {place}: {one.metric} {_short(one.value)}, "
                f"limit {_short(one.threshold)}. {escape(one.remedy)}. [dim]{escape(one.source)}[/]"
            )
        )
    if len(report.findings) > _SHOWN:
        lines.append(Text(f"and {len(report.findings) - _SHOWN} more in .findings"))
    lines += [Text(f"not read: {name}: {why}", style="yellow") for name, why in report.unread.items()]
    return Group(*lines)


def _measured(layer: "LayerReport") -> list[str]:
    cells = []
    for _, metric, fold in _COLUMNS:
        values = [head[metric] for head in layer.heads if metric in head and not np.isnan(head[metric])]
        cells.append(_short(float(fold(values))) if values else "-")
    return cells


def _short(value: Any) -> str:
    if value is None or np.isnan(value):
        return "-"
    return "0" if abs(value) < 5e-4 else f"{value:.3g}"
