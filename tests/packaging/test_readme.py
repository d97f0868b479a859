"""What README and guide show is what happens: examples run, the table is measured, links lead somewhere."""

import doctest
import re
from pathlib import Path

import pytest

from rootdk.lab.first_look import RULES, look, rule_label

ROOT = Path(__file__).parents[2]
README, GUIDE, QUICKSTART = ROOT / "README.md", ROOT / "docs" / "guide.md", ROOT / "docs" / "quickstart.md"
GPU = ROOT / "docs" / "gpu.md"


@pytest.mark.parametrize(
    ("page", "examples"),
    [(README, 9), (GUIDE, 30), (QUICKSTART, 15), (GPU, 4)],
    ids=lambda given: getattr(given, "name", ""),
)
def test_examples_run(page: Path, examples: int) -> None:
    result = doctest.testfile(str(page), module_relative=False, encoding="utf-8")
    assert result.attempted >= examples
    assert result.failed == 0


def test_the_readme_is_read_in_a_minute() -> None:
    assert len(README.read_text("utf-8").splitlines()) < 150


@pytest.mark.parametrize("page", [README, *sorted((ROOT / "docs").rglob("*.md"))], ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text("utf-8")):
        assert "://" in target or (page.parent / target).exists(), target


def test_the_report_of_the_readme_is_what_is_printed() -> None:
    import torch

    import rootdk

    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, num_layers=2)
    with torch.no_grad():
        model.layers[1].self_attn.in_proj_weight[:64] *= 40
    with rootdk.watch(model) as watch:
        model(torch.randn(2, 48, 64))
    printed = [line.rstrip() for line in str(watch.report(phase="init")).splitlines()]
    shown = README.read_text("utf-8").partition("```\nattention: critical")[2].partition("```")[0].rstrip()
    assert printed[: len(shown.splitlines())] == f"attention: critical{shown}".splitlines()


def test_table_is_measured() -> None:
    """To the digits shown, give or take one in the last: kernel targets round differently."""
    shown = re.findall(
        r"^ +(\d+) +(none|1/\S+) +(\S+) +(\S+) +(\S+) +(\S+)% +(\S+)$", GUIDE.read_text("utf-8"), re.MULTILINE
    )
    looks = look([64, 512], RULES, keys=1024, rows=1024, seed=0)
    assert [(int(d_k), rule) for d_k, rule, *_ in shown] == [(look.d_k, rule_label(look.rule)) for look in looks]
    for (_, _, *numbers), one in zip(shown, looks, strict=True):
        saturated = 100 * one.saturated
        measured = [one.score_variance, one.entropy_ratio, one.effective_keys, saturated, one.jacobian_trace]
        for text, value in zip(numbers, measured, strict=True):
            last_digit = 10.0 ** -len(text.partition(".")[2])
            assert float(text) == pytest.approx(value, abs=1.5 * last_digit)
