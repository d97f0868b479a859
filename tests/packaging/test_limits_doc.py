"""docs/limits.md: the tests that it names exist, and the sizes that it states are those of the code."""

import re
from pathlib import Path
from typing import Any

import pytest

import rootdk
from rootdk import files
from rootdk._kernel import most_threads
from rootdk.audit import limits
from rootdk.lab.explorer.endpoints import AT_ONCE
from rootdk.lab.explorer.server import MOST_CONNECTIONS, SECONDS_FOR_A_REQUEST
from rootdk.lab.explorer.values import LARGEST_BODY, MOST_CELLS, MOST_FINDINGS
from rootdk.options import scale_number

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "limits.md").read_text("utf-8")


def mebibytes(size: int) -> str:
    return f"{size / 2**20:g} MiB"


SIZES = {
    "of a checkpoint": {
        "config.json": mebibytes(limits.LARGEST_CONFIG),
        "depth of JSON": f"{files.DEEPEST} levels",
        "values of one JSON file": f"{files.MOST_VALUES:,}",
        "an index of shards, or the header, pickle or graph of one file": mebibytes(limits.LARGEST_INDEX),
        "all headers together": mebibytes(limits.LARGEST_HEADERS),
        "shards": f"{limits.MOST_SHARDS:,}",
        "tensors": f"{limits.MOST_TENSORS:,}",
        "modules of attention": f"{limits.MOST_LAYERS:,}",
        "heads of a module": f"{limits.MOST_HEADS:,}",
        "heads in all": f"{limits.MOST_HEADS_IN_ALL:,}",
        "d_k": f"{limits.LARGEST_HEAD:,}",
        "inputs of a projection": f"{limits.LARGEST_WIDTH:,}",
        "rank of a latent": f"{limits.LARGEST_RANK:,}",
        "query and key weights": f"{limits.MOST_BYTES / 2**30:g} GiB",
        "multiply-adds": f"{limits.MOST_WORK:g}".replace("e+", "e"),
        "`--text`": f"{limits.LARGEST_TEXT:,} characters",
        "numbers of a model that is run, for each number of its weights": f"{limits.MOST_GROWTH:g}",
    },
    "of the page": {
        "an audit": mebibytes(LARGEST_BODY),
        "cells of its map": f"{MOST_CELLS:,}",
        "findings": f"{MOST_FINDINGS:,}",
        "time for a request to arrive": f"{SECONDS_FOR_A_REQUEST:g} s",
        "connections": f"{MOST_CONNECTIONS:,}",
        "views that are computed at once, and audits that are held": f"{AT_ONCE}",
    },
}


def named_files(text: str) -> set[str]:
    return set(re.findall(r"\btests/[\w/.]+\.(?:py|cc)\b", text))


def absent(text: str) -> list[str]:
    return sorted(name for name in named_files(text) if not (ROOT / name).is_file())


def table(text: str, heading: str) -> dict[str, str]:
    lines = text.partition(f"| {heading} | at most |\n|---|---|\n")[2].partition("\n\n")[0].splitlines()
    cells = [line.strip("| ").split(" | ") for line in lines]
    return {row[0]: row[1] for row in cells}


def test_every_test_that_is_named_exists() -> None:
    assert len(named_files(PAGE)) > 25
    assert absent(PAGE) == []


def test_every_promise_names_a_test() -> None:
    promises = [line for line in PAGE.splitlines() if line.startswith("| **")]
    assert len(promises) > 15
    assert [line for line in promises if not named_files(line.split(" | ")[-1])] == []


@pytest.mark.parametrize("heading", SIZES)
def test_sizes_are_those_of_the_code(heading: str) -> None:
    assert table(PAGE, heading) == SIZES[heading]


def test_the_two_tests_above_can_fail() -> None:
    assert absent("kept by `tests/audit/test_gone.py`") == ["tests/audit/test_gone.py"]
    assert (
        table(PAGE.replace("| shards | 1,024 |", "| shards | 1,023 |"), "of a checkpoint") != SIZES["of a checkpoint"]
    )


def test_the_trials_are_those_of_the_test() -> None:
    judge = (ROOT / "tests" / "audit" / "test_hostile_checkpoints.py").read_text("utf-8")
    assert "at most 10 s and 512 MB" in PAGE
    assert "SECONDS, MEMORY = 10.0, 512 * 2**20" in judge
    assert "over 700 files" in PAGE
    assert "len(cases) > 700" in judge
    assert "150 good ones" in PAGE
    assert "mutated(150)" in judge
    assert "4,000 more" in PAGE
    assert "range(1, 5)" in judge
    assert "mutated(1000, seed)" in judge
    assert "over 500 built, 200 damaged, 6,000 more" in PAGE
    assert "len(cases) > 500" in judge
    assert "mutated_formats(200)" in judge
    assert "range(1, 4)" in judge
    assert "mutated_formats(2000, seed)" in judge


def refused(given: Any) -> bool:
    try:
        scale_number(given)
    except rootdk.ArgumentError:
        return True
    return False


def test_numbers_of_the_operator() -> None:
    assert f"take 1 to {most_threads};" in PAGE
    assert "`scale` is at most 1e19 in size" in PAGE
    assert (refused(1e19), refused(1.001e19)) == (False, True)
