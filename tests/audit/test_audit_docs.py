"""docs/audit.md: its examples run, and what it lists is what there is."""

import doctest
import re
from pathlib import Path

import pytest
import torch
from attention_families import FAMILIES

import rootdk
from benchmarks.sections import watch

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
    x = torch.randn(1, 12, 8)
    with rootdk.watch(layer) as seen:
        layer(x, x, x)
    metrics = set(seen.readings["MultiheadAttention"].metrics)
    assert listed == metrics | {"cap_ratio", "bf16_spacing"}


def test_its_counts_and_limits() -> None:
    text = TEXT.read_text("utf-8")
    assert len(FAMILIES) == 15
    assert "fifteen kinds of models" in text
    assert [target.limit for target in watch.TARGETS] == [1.25, 1.05, 1.03]
    assert "1.25, 1.05 and\n1.03 times" in text
