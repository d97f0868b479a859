"""The chapter of the reader's own model: an audit shown, and what is no audit refused by its place."""

import json
import math
import re

import pytest
from explorer_views import compare, values_of, view

from rootdk.audit.running import demonstrate
from rootdk.errors import ArgumentError
from rootdk.lab.explorer.chapters.model import model_view
from rootdk.lab.explorer.values import MOST_CELLS, checked_audit


def audit() -> dict[str, object]:
    heads = [{"logit_deviation": 1.0 + head, "entropy_ratio": None} for head in range(3)]
    finding = {
        "layer": "a.0", "head": 2, "metric": "logit_deviation", "severity": "warning", "value": 3.0, "threshold": 2.5,
        "source": "theory", "remedy": "look",
    }  # fmt: skip
    layers = [
        {"name": "a.0", "heads": heads, "baseline": {"logit_deviation": 1.5}},
        {"name": "a.1", "heads": heads[:2], "baseline": {}},
    ]
    return {"verdict": "warning", "layers": layers, "findings": [finding]}


def test_an_audit_is_shown_with_its_theory_and_its_findings(tmp_path, monkeypatch) -> None:
    shown = model_view(audit(), {"metric": "first"})
    assert values_of(shown) == {
        "verdict": "warning", "layers": 2, "heads": 5, "critical": 0, "warning": 1, "note": 0,
        "smallest": 1.0, "middle": 2.0, "largest": 3.0, "theory": 1.5,
    }  # fmt: skip
    assert shown.table.rows == (("warning", "logit_deviation", "3", "2.5", "a.0, head 2", "look", "theory"),)
    assert "1 (a.0, head 0) to 3 (a.0, head 2)" in shown.figures[0].text
    json.dumps(shown.to_dict(), allow_nan=False)
    (tmp_path / "audit.json").write_text(json.dumps(audit()))
    monkeypatch.chdir(tmp_path)
    compare(shown)


def test_an_audit_of_one_layer_has_no_picture_along_layers() -> None:
    single = audit() | {"layers": audit()["layers"][:1], "findings": []}
    shown = model_view(single, {"metric": "logit_deviation"})
    assert [figure.id for figure in shown.figures] == ["map-logit_deviation"]
    assert shown.table is None


def test_the_example_is_the_demonstration() -> None:
    audit = demonstrate().to_dict()
    assert view("model").to_dict()["numbers"] == model_view(audit, {"metric": "first"}).to_dict()["numbers"]


def test_a_metric_that_the_audit_has_not_is_refused() -> None:
    with pytest.raises(ArgumentError, match="metric: must be one that this audit has, logit_deviation, got"):
        model_view(audit(), {"metric": "saturated"})


def _changed(*path: object, to: object) -> dict[str, object]:
    whole = audit()
    place = whole
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = to
    return whole


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([], "audit: must be the object"),
        (None, "audit: must be the object"),
        ({}, "audit.verdict: must be one of"),
        (_changed("verdict", to="good"), "one of healthy, unjudged, warning, critical, got 'good'"),
        (_changed("layers", to={}), "audit.layers: must be a list, got an object"),
        (_changed("layers", to=[]), "audit.layers: must hold at least one layer"),
        (_changed("layers", 0, to=3), "audit.layers[0]: must be an object with name and heads, got 3"),
        (_changed("layers", 0, "name", to=None), "audit.layers[0].name: must be a text"),
        (_changed("layers", 0, "name", to="a" * 2000), "audit.layers[0].name: must be a text of at most 1000"),
        (_changed("layers", 1, "heads", to="x"), "audit.layers[1].heads: must be a list, got a text"),
        (_changed("layers", 0, "heads", to=[{}] * (MOST_CELLS + 1)), "audit.layers: must make a map of 1 to 32768"),
        (_changed("layers", 0, "heads", 1, to=[]), "layers[0].heads[1]: must be an object of numbers, got a list"),
        (_changed("layers", 0, "heads", 1, "saturated", to="1"), "heads[1].saturated: must be a finite number or null"),
        (_changed("layers", 0, "heads", 1, "saturated", to=True), "heads[1].saturated: must be a finite number"),
        (_changed("layers", 0, "heads", 1, "saturated", to=math.nan), "heads[1].saturated: must be a finite number"),
        (_changed("layers", 0, "baseline", to=[1]), "audit.layers[0].baseline: must be an object of numbers"),
        (_changed("findings", to=None), "audit.findings: must be a list, got nothing"),
        (_changed("findings", 0, to="x"), "audit.findings[0]: must be an object, got a text"),
        (_changed("findings", 0, "severity", to="bad"), "audit.findings[0].severity: must be one of"),
        (_changed("findings", 0, "remedy", to=1), "audit.findings[0].remedy: must be a text"),
        (_changed("findings", 0, "head", to=1.5), "audit.findings[0].head: must be a whole number below"),
        (_changed("findings", 0, "threshold", to="x"), "audit.findings[0].threshold: must be a finite number, got"),
    ],
)  # fmt: skip
def test_what_is_no_audit_is_refused_by_place(given: object, message: str) -> None:
    with pytest.raises(ArgumentError, match=re.escape(message)):
        checked_audit(given)
