"""The results of a calibration as the tables of docs/audit.md."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "src" / "rootdk" / "audit" / "calibration.json"
_BEGIN, _END = "<!-- make calibrate writes from here -->\n", "<!-- to here -->\n"


def tables() -> str:
    """All of them, from the file of results."""
    results = json.loads(RESULTS.read_text("utf-8"))
    return "\n".join([_faults(results), _models(results["models"]), _thresholds(results)])


def written(document: str) -> str:
    """The document with the tables of the file in their place."""
    head, _, rest = document.partition(_BEGIN)
    return head + _BEGIN + "\n" + tables() + "\n" + _END + rest.partition(_END)[2]


def _faults(results: Mapping[str, Any]) -> str:
    before, rows = results.get("before"), []
    for fault, ways in results["faults"].items():
        by = Counter(metric for metrics in ways["run"].values() for metric in metrics)
        cells = [_share(ways[way]) for way in ("run", "weights")]
        cells += [_share(before["faults"][fault][way]) for way in ("run", "weights")] if before else []
        rows.append([fault, *cells, ", ".join(f"`{metric}`" for metric, _ in by.most_common(2)) or "nothing"])
    alarms = ["good models called ill"]
    for held in (results, before) if before else (results,):
        alarms += [_share({name: model[way] for name, model in held["models"].items()}) for way in ("run", "weights")]
    rows.append([*alarms, ""])
    headings = [
        "fault",
        "run",
        "weights",
        *(["run, before", "weights, before"] if before else []),
        "mostly by, in a run",
    ]
    return _table(headings, rows)


def _share(by_model: Mapping[str, Any]) -> str:
    known = [metrics for metrics in by_model.values() if metrics is not None]
    return f"{sum(bool(metrics) for metrics in known)} of {len(known)}" if known else "-"


def _models(models: Mapping[str, Any]) -> str:
    rows = [
        [
            name, model["origin"], model["kind"], f"{model['layers']} x {model['heads']}", model["largest_logit"],
            " to ".join(str(ratio) for ratio in model["predicted_over_measured"]) or "-",
            "ill" if model["run"] or model["weights"] else "healthy",
        ]
        for name, model in models.items()
    ]  # fmt: skip
    return _table(
        ["model", "from", "kind", "layers x heads", "largest logit", "predicted / measured", "run and weights"], rows
    )


def _thresholds(results: Mapping[str, Any]) -> str:
    rows = []
    for key, held in results["thresholds"].items():
        metric, severity = key.split()
        caught = [
            fault
            for fault, ways in results["faults"].items()
            if any(metric in (metrics or ()) for way in ways.values() for metrics in way.values())
        ]
        rows.append([f"`{metric}`", severity, held["limit"], held["value"], held["model"], ", ".join(caught) or "-"])
    return _table(["threshold", "severity", "limit", "nearest good value", "of", "catches"], rows)


def _table(headings: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    lines = [headings, ["---"] * len(headings), *rows]
    return "".join(f"| {' | '.join(str(cell) for cell in line)} |\n" for line in lines)
