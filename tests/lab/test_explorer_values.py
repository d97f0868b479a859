"""What the page sends: every way to write a value, and what is refused, by name."""

import re
from pathlib import Path

import pytest
from explorer_views import BY_ID, view

from rootdk.errors import ArgumentError
from rootdk.lab.explorer.chapter import Control
from rootdk.lab.explorer.chapters import CHAPTERS
from rootdk.lab.explorer.values import RefusedValueError, read_value, read_values, started_at


@pytest.mark.parametrize(
    ("chapter", "raw", "name", "words"),
    [
        ("growth", {"dk": "64"}, "dk", "must be one of d_k, rule"),
        ("growth", {"d_k": "x"}, "d_k", "must be a whole number from 4 to 1024"),
        ("growth", {"d_k": ""}, "d_k", "must be a whole number"),
        ("growth", {"d_k": "64.5"}, "d_k", "must be a whole number"),
        ("growth", {"d_k": "1_000"}, "d_k", "must be a whole number"),
        ("growth", {"d_k": "٦٤"}, "d_k", "must be a whole number"),
        ("growth", {"d_k": "3"}, "d_k", "from 4 to 1024"),
        ("growth", {"d_k": "1025"}, "d_k", "from 4 to 1024"),
        ("growth", {"d_k": "9" * 1999}, "d_k", "from 4 to 1024"),
        ("growth", {"d_k": "9" * 100_000}, "d_k", "at most 2000 characters"),
        ("growth", {"mean_query": "nan"}, "mean_query", "must be a number from -2 to 2"),
        ("growth", {"mean_query": "inf"}, "mean_query", "must be a number from -2 to 2"),
        ("growth", {"mean_query": "1e999"}, "mean_query", "must be a number from -2 to 2"),
        ("growth", {"mean_query": "-2.01"}, "mean_query", "from -2 to 2"),
        ("growth", {"mean_query": "٢"}, "mean_query", "must be a number"),
        ("growth", {"mean_query": "0x1"}, "mean_query", "must be a number"),
        ("growth", {"rule": "cube"}, "rule", "must be one of sqrt, none, dk"),
        ("growth", {"seed": "-1"}, "seed", "from 0 to 999"),
        ("sharpening", {"sorted": "maybe"}, "sorted", "must be true or false"),
        ("formula", {"query": ""}, "query", "at least one number"),
        ("formula", {"query": "1 2; 3 4"}, "query", "at most 1 rows"),
        ("formula", {"keys": "1 2; 3"}, "keys", "rows of one length"),
        ("formula", {"keys": "1 2 3 4 5 6 7 8 9"}, "keys", "at most 8 numbers in a row"),
        ("formula", {"keys": "1 2 x 4"}, "keys", "must be a number from -1000 to 1000"),
        ("formula", {"keys": "1 2 1001 4"}, "keys", "from -1000 to 1000"),
        ("formula", {"example": "claim"}, "example", "must be one of own, four"),
    ],
)
def test_bad_values_are_refused_by_name(chapter: str, raw: dict[str, str], name: str, words: str) -> None:
    with pytest.raises(RefusedValueError) as caught:
        read_values(BY_ID[chapter], raw)
    assert caught.value.name == name
    assert str(caught.value).startswith(f"{name}: ")
    assert words in str(caught.value)
    assert len(str(caught.value)) < 250


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"query": "1 2"}, "keys: must have 2 numbers in a row like the query, got 4"),
        ({"values": "1 0; 0 1"}, "values: must have 3 rows, one for each key, got 2"),
    ],
)
def test_knobs_that_do_not_fit_each_other_are_refused(raw: dict[str, str], message: str) -> None:
    with pytest.raises(ArgumentError, match=re.escape(message)):
        view("formula", **raw)


def test_what_is_not_sent_is_the_default_or_what_a_choice_sets() -> None:
    values = read_values(BY_ID["formula"], {"example": "sixty-four", "zeros": "7"})
    assert values["query"] == ((2.0,),)
    assert values["zeros"] == 7
    assert read_values(BY_ID["growth"], {}) | {"d_k": 0} == read_values(BY_ID["growth"], {"d_k": "4"}) | {"d_k": 0}


def test_every_way_to_write_a_number_is_read() -> None:
    knob = Control("a", "a", "numbers", "1", -10, 10, rows=2, columns=3)
    assert read_value(knob, " 1,2 -3 ;\n .5 +1. 1e-1 \n") == ((1.0, 2.0, -3.0), (0.5, 1.0, 0.1))
    assert read_value(Control("s", "s", "flag", False), "TRUE") is True


def test_a_knob_without_bounds_still_refuses_what_is_not_finite() -> None:
    with pytest.raises(RefusedValueError, match="a: must be a number, got '1e999'"):
        read_value(Control("a", "a", "float", 0.0), "1e999")


def links_in_docs() -> list[str]:
    root = Path(__file__).parents[2]
    texts = [file.read_text("utf-8") for file in (root / "README.md", *(root / "docs").rglob("*.md"))]
    return [link for text in texts for link in re.findall(r"(?:#|--at ')([a-z-]+\?[^`'\s)]+)", text)]


def test_every_link_to_a_view_in_the_docs_opens() -> None:
    links = links_in_docs()
    assert len(links) >= 2
    for link in links:
        chapter, moved = started_at(CHAPTERS, link)
        (shown,) = (candidate for candidate in moved if candidate.id == chapter)
        assert shown.compute(read_values(shown, {})).numbers
    with pytest.raises(ArgumentError, match="scale: must be one of d_k, rule"):
        started_at(CHAPTERS, "growth?d_k=512&scale=none")
