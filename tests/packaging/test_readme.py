"""What the README shows is what happens: its examples run, and its table is what the first look measures."""

import doctest
import re
from pathlib import Path

import pytest

from rootdk.lab.first_look import RULES, look

README = Path(__file__).parents[2] / "README.md"


def test_examples_run() -> None:
    result = doctest.testfile(str(README), module_relative=False, encoding="utf-8")
    assert result.attempted > 10
    assert result.failed == 0


def test_table_is_measured() -> None:
    """To the digits shown, give or take one in the last: kernel targets round differently."""
    shown = re.findall(
        r"^ +(\d+) +(none|sqrt|dk) +(\S+) +(\S+) +(\S+) +(\S+)% +(\S+)$", README.read_text("utf-8"), re.MULTILINE
    )
    looks = look([64, 512], RULES, keys=1024, rows=1024, seed=0)
    assert [(int(d_k), rule) for d_k, rule, *_ in shown] == [(one.d_k, one.rule) for one in looks]
    for (_, _, *numbers), one in zip(shown, looks, strict=True):
        saturated = 100 * one.saturated
        measured = [one.score_variance, one.entropy_ratio, one.effective_keys, saturated, one.jacobian_trace]
        for text, value in zip(numbers, measured, strict=True):
            last_digit = 10.0 ** -len(text.partition(".")[2])
            assert float(text) == pytest.approx(value, abs=1.5 * last_digit)
