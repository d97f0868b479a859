"""`make calibrate`: every trained model, good and broken in twelve ways, through the audit; what it says goes to files.

src/rootdk/audit/calibration.json has the results, docs/audit.md the tables made of them. Part of a name as argument
takes the models whose names have it and writes nothing: python -m benchmarks.calibration MiniLM
"""

import copy
import json
import math
import statistics
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers

import rootdk
from benchmarks.calibration.faults import FAULTS, broken
from benchmarks.calibration.models import MODELS, ROOT, Inputs
from benchmarks.calibration.tables import RESULTS, written
from rootdk.audit import THRESHOLDS, Audit, Threshold, checkpoint, health, read_checkpoint, siblings, thresholds

DOCUMENT = ROOT / "docs" / "audit.md"


def audits(model: Any, inputs: Inputs) -> tuple[Audit, Audit | None]:
    """Of a run, and of the weights alone, as safetensors with a config; None where they are not understood."""
    with torch.no_grad(), rootdk.watch(model) as seen:
        model(**inputs)
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        try:
            return seen.report(), read_checkpoint(folder)
        except rootdk.ArgumentError:
            return seen.report(), None


def flagged(audit: Audit | None) -> list[str] | None:
    """The thresholds that say more than a note."""
    return (
        None if audit is None else sorted({finding.metric for finding in audit.findings if finding.severity != "note"})
    )


def _predicted(run: Audit, weights: Audit | None) -> list[float]:
    """The least and the greatest ratio of predicted to measured deviation, by the medians of layers that both know."""
    measured = {layer.name: layer.of("score_deviation") for layer in run.layers}
    ratios = [
        statistics.median(layer.of("predicted_deviation")) / statistics.median(measured[layer.name])
        for layer in (weights.layers if weights else ())
        if layer.name in measured
    ]
    return [float(f"{ratio:.2g}") for ratio in (min(ratios), max(ratios))] if ratios else []


class Nearest:
    """Of every threshold that can flag a trained model, the good number that came nearest to it.

    A number of a layer that is told as a note, for a reason that the table does not know, is none of those.
    """

    def __init__(self) -> None:
        self._found: dict[str, dict[str, Any]] = {}
        self._judged: list[tuple[str, Threshold, Any, int]] = []

    @contextmanager
    def during(self) -> Iterator[None]:
        """Note what is judged inside."""
        inner = thresholds.judge
        self._judged = []

        def judge(layer: str, head: int | None, metric: str, value: Any, keys: int, *rest: Any) -> Any:
            for row in THRESHOLDS:
                of_scope = row.scope in ("either", "layer" if head is None else "head")
                if row.metric == metric and row.severity != "note" and row.phase != "init" and of_scope:
                    self._judged.append((layer, row, value, keys))
            return inner(layer, head, metric, value, keys, *rest)

        places: list[Any] = [health, siblings, checkpoint]
        for place in places:
            place.judge = judge
        try:
            yield
        finally:
            for place in places:
                place.judge = inner

    def keep(self, model: str, *model_audits: Audit | None) -> None:
        """What was judged, of the model whose audits these are."""
        noted = {
            (finding.layer, finding.metric)
            for audit in model_audits
            for finding in (audit.findings if audit else ())
            if finding.severity == "note"
        }
        for layer, row, value, keys in self._judged:
            number, limit = row.number(value), row.limit_for(keys)
            if math.isnan(number) or (row.crossed(number, keys) and (layer, row.metric) in noted):
                continue
            # 1 is the limit, 0.5 half way to it; where it is 0, being at it is all there is.
            reached = (number / limit if limit else number) if row.direction == "above" else limit / max(number, 1e-300)
            key = f"{row.metric} {row.severity}"
            if key not in self._found or reached > self._found[key]["reached"]:
                self._found[key] = {"reached": reached, "value": number, "limit": limit, "model": model}

    def to_dict(self) -> dict[str, Any]:
        """By threshold, three digits."""
        rounded = {"reached", "value", "limit"}
        return {
            key: {name: float(f"{value:.3g}") if name in rounded else value for name, value in entry.items()}
            for key, entry in sorted(self._found.items())
        }


def calibrate(wanted: str, say: Callable[[str], None]) -> dict[str, Any]:
    """All that goes to the file."""
    nearest, good = Nearest(), {}
    by_fault: dict[str, dict[str, dict[str, Any]]] = {fault: {"run": {}, "weights": {}} for fault in FAULTS}
    for trained in MODELS:
        if wanted not in trained.name:
            continue
        model, inputs = trained.load()
        model.eval()
        with nearest.during():
            run, weights = audits(model, inputs)
        nearest.keep(trained.name, run, weights)
        heads = max(len(layer.heads) for layer in run.layers)
        good[trained.name] = {
            "origin": trained.origin, "kind": trained.kind, "layers": len(run.layers), "heads": heads,
            "largest_logit": float(f"{max(max(layer.of('max_logit')) for layer in run.layers):.3g}"),
            "predicted_over_measured": _predicted(run, weights), "run": flagged(run), "weights": flagged(weights),
        }  # fmt: skip
        say(f"{trained.name}: {run.verdict}, {flagged(run)} | {flagged(weights)}")
        for fault in FAULTS:
            ill = copy.deepcopy(model)
            if broken(ill, inputs, fault):
                for way, audit in zip(("run", "weights"), audits(ill, inputs), strict=True):
                    by_fault[fault][way][trained.name] = flagged(audit)
                say(f"  {fault}: {by_fault[fault]['run'][trained.name]} | {by_fault[fault]['weights'][trained.name]}")
    return {"models": good, "faults": by_fault, "thresholds": nearest.to_dict()}


def main() -> None:
    """Do it, and write it down."""
    wanted = sys.argv[1] if len(sys.argv) > 1 else ""
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    warnings.simplefilter("ignore")
    torch.backends.mha.set_fastpath_enabled(False)  # faults are made of what the modules of attention are given
    results = calibrate(wanted, lambda line: print(line, flush=True))
    if wanted:
        return
    before = json.loads(RESULTS.read_text("utf-8")).get("before") if RESULTS.exists() else None
    RESULTS.write_text(
        json.dumps(results | ({"before": before} if before else {}), indent=1) + "\n", "utf-8", newline="\n"
    )
    DOCUMENT.write_text(written(DOCUMENT.read_text("utf-8")), "utf-8", newline="\n")
    print(f"{Path(RESULTS).relative_to(ROOT)} and {DOCUMENT.relative_to(ROOT)} written")


if __name__ == "__main__":
    main()
