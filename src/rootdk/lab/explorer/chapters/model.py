"""Your model: an audit as maps of layers and heads beside theory, and findings with remedies.

Without an audit, it shows that of a small example in the package.
"""

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from statistics import median
from typing import Any

from rootdk.audit.metrics import METRICS, Metric, grid, grouped, present
from rootdk.audit.result import SEVERITIES
from rootdk.audit.running import demonstrate
from rootdk.errors import ArgumentError
from rootdk.files import printable
from rootdk.lab.explorer.chapter import Chapter, Figure, Table, Values, View, choice, number, written
from rootdk.lab.explorer.values import TEXTS, checked_audit
from rootdk.lab.formulas import FREEZING
from rootdk.lab.report.audit_page import map_picture, spread_picture

FIRST = "first"
# Rows that a browser still lays out quickly, and more than a person reads.
MOST_ROWS = 500
_HEADINGS = ("severity", "metric", "value", "limit", "where", "what to do", "source")
# Computed from weights and gains, without a run.
_OF_WEIGHTS = ("predicted_deviation", "spectral_bound", "gain_bound")
_FROM_FILE = 'import json\n\naudit = json.load(open("audit.json"))    # what `rootdk audit --json` wrote'
_READ = """\
import json
import subprocess
import sys

# An example: a small random model under three scales. The exit code says that something was found.
command = [sys.executable, "-m", "rootdk", "audit", "--json"]
audit = json.loads(subprocess.run(command, capture_output=True, text=True, check=False).stdout)"""


def compute(values: Values) -> View:
    """The view of the example; for the audit of a model call `model_view`."""
    return _view(values["metric"])


@lru_cache(maxsize=16)
def _view(metric: str) -> View:
    return model_view(_example(), {"metric": metric}, _READ)


_example = lru_cache(maxsize=1)(lambda: demonstrate().to_dict())


def model_view(audit: Mapping[str, Any], values: Values, read: str = _FROM_FILE) -> View:
    """What the chapter "your model" shows.

    audit    what `rootdk audit --json` writes, or to_dict() of an audit; checked, and an error names what is wrong
    values   "metric": a name of rootdk.audit.metrics, or "first" for the first that the audit has
    read     Python lines that leave the same dictionary in `audit`
    """
    audit = _readable(checked_audit(audit))
    layers = audit["layers"]
    metric = _chosen(present(layers), values["metric"])
    known = [value for row in grid(layers, metric.name) for value in row if math.isfinite(value)]
    baselines = [value for layer in layers if (value := layer.get("baseline", {}).get(metric.name)) is not None]
    counts = {kind: sum(finding["severity"] == kind for finding in audit["findings"]) for kind in SEVERITIES}
    kind = "" if metric.name in _OF_WEIGHTS else "measured"
    numbers = [
        number("verdict", "verdict", audit["verdict"]),
        number("layers", "layers", len(layers)),
        number("heads", "heads", sum(len(layer["heads"]) for layer in layers)),
        *(number(severity, f"findings: {severity}", count) for severity, count in counts.items()),
        number("smallest", f"{metric.short}, smallest", min(known), kind),
        number("middle", f"{metric.short}, median of the heads", median(known), kind),
        number("largest", f"{metric.short}, largest", max(known), kind),
    ]
    if baselines:
        numbers.append(number("theory", f"{metric.short}, median of the layers", median(baselines), "theory"))
    picture = map_picture(metric, layers)
    figures = [Figure(picture.name, picture.title, picture.figure, _map_text(metric, layers))]
    if len(layers) > 1:
        picture = spread_picture(metric, layers)
        figures.append(Figure(picture.name, picture.title, picture.figure, _layers_text(metric, layers, baselines)))
    return View(tuple(figures), tuple(numbers), _python(read, metric.name, bool(baselines)), _table(audit))


def _readable(audit: Mapping[str, Any]) -> Mapping[str, Any]:
    """With control codes escaped in everything that is shown; the page itself never reads a text as HTML."""
    layers = [{**layer, "name": printable(layer["name"])} for layer in audit["layers"]]
    findings = [{**finding, **{name: printable(finding[name]) for name in TEXTS}} for finding in audit["findings"]]
    return {**audit, "layers": layers, "findings": findings}


def _table(audit: Mapping[str, Any]) -> Table | None:
    """Findings, the worst first."""
    groups = grouped(audit)
    rows = [
        (group.severity, group.metric, group.value, group.limit or "-", group.places, group.remedy, group.source)
        for group in groups[:MOST_ROWS]
    ]
    if len(groups) > MOST_ROWS:
        rows.append(("", "", "", "", f"{len(groups) - MOST_ROWS} more: rootdk audit --json", "", ""))
    return Table(_HEADINGS, tuple(rows)) if rows else None


def _chosen(metrics: Sequence[Metric], name: str) -> Metric:
    by_name = {metric.name: metric for metric in metrics}
    if not metrics:
        known = ", ".join(metric.name for metric in METRICS)
        raise ArgumentError(f"audit.layers: must have heads with one of {known}, got none")
    if name != FIRST and name not in by_name:
        raise ArgumentError(f"metric: must be one that this audit has, {', '.join(by_name)}, got {name!r}")
    return by_name.get(name, metrics[0])


def _map_text(metric: Metric, layers: Sequence[Mapping[str, Any]]) -> str:
    """Which heads stand out."""
    cells = []
    for layer, row in zip(layers, grid(layers, metric.name), strict=True):
        cells += [(value, str(layer["name"]), head) for head, value in enumerate(row) if math.isfinite(value)]
    low, high = min(cells), max(cells)
    return (
        f"Map of {metric.short} of {len(cells)} heads in {len(layers)} layers: from {written(low[0], 3)} "
        f"({low[1]}, head {low[2]}) to {written(high[0], 3)} ({high[1]}, head {high[2]})."
    )


def _layers_text(metric: Metric, layers: Sequence[Mapping[str, Any]], baselines: Sequence[float]) -> str:
    """Which layers stand out, and what theory says."""
    rows = [[value for value in row if math.isfinite(value)] for row in grid(layers, metric.name)]
    middles = [(median(row), str(layer["name"])) for layer, row in zip(layers, rows, strict=True) if row]
    low, high = min(middles), max(middles)
    theory = f"; theory from {written(min(baselines), 3)} to {written(max(baselines), 3)}" if baselines else ""
    return (
        f"Medians of the layers: {metric.short} from {written(low[0], 3)} ({low[1]}) to {written(high[0], 3)} "
        f"({high[1]}){theory}."
    )


def _python(read: str, metric: str, with_theory: bool) -> str:
    lines = f"""\
from statistics import median
{read}
heads = [head for layer in audit["layers"] for head in layer["heads"]]
known = [head["{metric}"] for head in heads if head.get("{metric}") is not None]
print("verdict", audit["verdict"])
print("layers", len(audit["layers"]))
print("heads", len(heads))
for kind in ("critical", "warning", "note"):
    print(kind, sum(finding["severity"] == kind for finding in audit["findings"]))
print("smallest", min(known))
print("middle", median(known))
print("largest", max(known))
"""
    if with_theory:
        lines += f"""\
theory = [layer.get("baseline", {{}}).get("{metric}") for layer in audit["layers"]]
print("theory", median(one for one in theory if one is not None))
"""
    return lines


CHAPTER = Chapter(
    id="model",
    title="Your model",
    formula=FREEZING,
    to_try="Drop the JSON of `rootdk audit --json` here, or start with `rootdk explore --model PATH`. Without a model "
    "you see an example: a small random model with no scale, 1/√d_k and 1/d_k, three layers each.",
    to_see="Each cell is one head. The dotted line is what theory says about random q and k with the same scale.",
    said="Attention that is far from the theory is broken.",
    true="The theory describes the start of training only. Trained heads leave it for good reasons, so each finding "
    "names its threshold, the source of that threshold, and what to do.",
    controls=(
        choice("metric", "metric", {FIRST: "first available"} | {metric.name: metric.short for metric in METRICS}),
    ),
    compute=compute,
    show_audit=model_view,
)
