"""Audit: one result for weights and runs, how two of them become one, and what print and a notebook show."""

import json
import math
import re
from itertools import product
from pathlib import Path

import pytest
import torch
from checkpoint_zoo import built, saved

import rootdk
from rootdk.audit import Audit, Finding, LayerAudit, read_checkpoint, verdict_of
from rootdk.audit.result import SEVERITIES, VERDICTS, worst_first
from rootdk.audit.running import demonstrate, run_checkpoint

pytestmark = pytest.mark.usefixtures("one_thread")
KEYS = {"schema_version", "verdict", "phase", "model", "layers", "findings", "unknown", "unread"}
EVIL = "<script>alert('x')</script>"


def finding(severity: str, layer: str = "a", head: int | None = None, value: float = 2.0) -> Finding:
    return Finding(layer, head, "max_logit", severity, value, 1.0, "source", "remedy")  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(built("llama"), tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def both(folder: Path) -> tuple[Audit, Audit]:
    return read_checkpoint(folder), run_checkpoint(folder, tokens=64)


def watched() -> Audit:
    torch.manual_seed(0)
    model = torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 3)
    with rootdk.watch(model) as watch:
        model(torch.randn(1, 32, 16))
    return watch.report("init")


def test_a_verdict_is_the_worst_severity() -> None:
    for first, second in product(SEVERITIES, repeat=2):
        worst = SEVERITIES[min(SEVERITIES.index(first), SEVERITIES.index(second))]
        assert verdict_of([finding(first), finding(second)]) == ("healthy" if worst == "note" else worst)
        assert finding(first).worse_than(finding(second)) == (first == worst != second)
        assert worst_first([finding(first), finding(second)])[0].severity == worst
    assert (*SEVERITIES[:2], "unjudged", "healthy") == VERDICTS


def test_weights_and_runs_have_one_form(both: tuple[Audit, Audit]) -> None:
    for audit in (*both, both[0].merge(both[1]), watched(), demonstrate()):
        assert isinstance(audit, Audit)
        data = json.loads(json.dumps(audit.to_dict(), allow_nan=False))
        assert set(data) == KEYS
        assert all({"name", "heads", "baseline"} <= set(layer) for layer in data["layers"])
        assert [len(layer.of("nothing")) for layer in audit.layers] == [len(layer.heads) for layer in audit.layers]


def test_merged_layers_have_the_numbers_of_both(both: tuple[Audit, Audit]) -> None:
    weights, run = both
    merged = weights.merge(run)
    assert [layer.name for layer in merged.layers] == [layer.name for layer in weights.layers]
    for layer, of_weights, of_run in zip(merged.layers, weights.layers, run.layers, strict=True):
        assert layer.of("predicted_deviation") == of_weights.of("predicted_deviation")
        assert layer.of("max_logit") == of_run.of("max_logit")
        assert layer.facts == of_run.facts
        assert layer.baseline == of_run.baseline
    assert (merged.model, merged.unknown, merged.phase) == (weights.model, weights.unknown, run.phase)


def test_no_finding_comes_twice_and_that_of_the_run_counts() -> None:
    weights = Audit([], [finding("warning", "a", 0, 5.0), finding("critical", "b"), finding("note", "c")])
    run = Audit([], [finding("note", "a", 0, 7.0), finding("warning", "c", 1)], "trained", unread={"d": "why"})
    merged = weights.merge(run)
    assert [(finding.severity, finding.layer, finding.head) for finding in merged.findings] == [
        ("critical", "b", None), ("warning", "c", 1), ("note", "a", 0), ("note", "c", None),
    ]  # fmt: skip
    assert merged.findings[2].value == 7.0
    assert (merged.verdict, merged.phase, merged.unread) == ("critical", "trained", {"d": "why"})
    assert merged.flagged == ["b", "c"]


def test_layers_that_only_one_of_them_knows_or_with_other_heads_stay_apart() -> None:
    weights = Audit([LayerAudit("a", [{"x": 1.0}]), LayerAudit("b", [{"x": 1.0}])], [])
    run = Audit([LayerAudit("c", [{"y": 2.0}]), LayerAudit("b", [{"y": 2.0}, {"y": 3.0}])], [])
    merged = weights.merge(run)
    assert [(layer.name, len(layer.heads)) for layer in merged.layers] == [("a", 1), ("b", 1), ("b", 2), ("c", 1)]


def test_print_shows_a_line_for_each_layer_and_no_dataclass(both: tuple[Audit, Audit], monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for audit, heading in ((watched(), "entropy"), (both[0], "predicted std"), (both[0].merge(both[1]), "entropy")):
        lines = str(audit).splitlines()
        assert f": {audit.verdict}" in lines[0]
        assert heading in lines[2]
        ends = [line.split()[-1] for line in lines if re.match(r"\d+ ", line)]
        assert ends == [audit.verdict_on(layer.name) for layer in audit.layers]
        assert max(map(len, lines)) <= 80
        assert "LayerAudit" not in str(audit)
        assert "\x1b" not in str(audit)
    assert repr(Audit([], [finding("critical")])) == "Audit(critical, 0 layers, 1 finding)"


def test_layers_with_a_long_path_are_told_apart() -> None:
    layers = [LayerAudit(f"encoder.layer.{i}.attention.self", [{"predicted_deviation": 1.0}]) for i in range(12)]
    starts = [line.split()[0] for line in str(Audit(layers, [])).splitlines() if line.endswith("healthy")]
    assert starts == [str(i) for i in range(12)]


def test_a_notebook_shows_the_same_table_and_escapes_everything() -> None:
    layers = [LayerAudit(EVIL, [{"max_logit": 140.0}, {"max_logit": math.nan}], {"max_logit": 3.25}, {"scale": 0.125})]
    audit = Audit(layers, [finding("critical", EVIL, 0)], unknown=(EVIL,), unread={EVIL: EVIL})
    page = audit._repr_html_()
    assert EVIL not in page
    for shown in ("critical", "140", "3.25", "0.125", "max_logit", "remedy", "source", "Not understood", "Not read"):
        assert shown in page
    assert "Nothing found." in Audit(layers, [])._repr_html_()


def test_beside_a_run_a_prediction_is_a_note_that_says_what_was_measured() -> None:
    """A bound of 3510 beside a largest logit of 43, as in a model with QK-norm that is good."""
    doubt = [Finding("a", None, metric, "warning", 3510.0, 100.0, "s", "watch the model") for metric in
             ("gain_bound", "predicted_over_others", "typical_prediction")]  # fmt: skip
    weights = Audit([LayerAudit("a", [{"gain_bound": 3510.0}])], [*doubt, finding("warning")])
    for enough, severity in ((True, "note"), (False, "warning")):
        run = Audit([LayerAudit("a", [{"max_logit": 43.0}], facts={"enough": enough, "keys": 64, "rows": 64})], [])
        merged = {finding.metric: finding for finding in weights.merge(run).findings}
        assert {merged[finding.metric].severity for finding in doubt} == {severity}
        assert merged["max_logit"].severity == "warning"
        assert ("largest logit of the run is 43" in merged["gain_bound"].remedy) is enough
        assert ("watch the model" in merged["gain_bound"].remedy) is not enough


def test_saved_as_page_and_as_json(tmp_path: Path) -> None:
    report = watched()
    report.save(tmp_path / "audit.json")
    assert json.loads((tmp_path / "audit.json").read_text()) == report.to_dict()
    report.save(tmp_path / "audit.html")
    page = (tmp_path / "audit.html").read_text("utf-8")
    assert report._repr_html_() in page
    assert not re.search(r"(?:src|href)=", page)
    with pytest.raises(rootdk.ArgumentError, match=r"path: must end in .html or .json, got 'audit.pdf'"):
        report.save("audit.pdf")
