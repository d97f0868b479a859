"""docs/statements.md: no statement is missing, every place that it names exists, and the numbers are computed there."""

import importlib
import re
import runpy
from collections.abc import Sequence
from pathlib import Path

import pytest

from rootdk.lab.checks import LEDGER, Sampling
from rootdk.lab.explorer.chapters import CHAPTERS
from rootdk.theory import exact_score_moments, predict, relative_gradient, square_term_counts

DOCS = Path(__file__).parents[2] / "docs"
TABLE = (DOCS / "statements.md").read_text("utf-8")
ROWS = {cells[0]: cells for line in TABLE.splitlines() if re.match(r"\| [A-D]\d", line)
        for cells in [[cell.strip() for cell in line.strip("| ").split(" | ")]]}  # fmt: skip
NUMBERED = {"A": 5, "B": 26, "C": 9, "D": 6}


def test_no_statement_is_missing() -> None:
    assert list(ROWS) == [f"{letter}{number}" for letter, count in NUMBERED.items() for number in range(1, count + 1)]
    assert all(len(cells) == 4 and all(cells) for cells in ROWS.values())


def anchor(heading: str) -> str:
    """As GitHub and the site make it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def places(where: str) -> list[tuple[str, str]]:
    """("claim", "3"), ("chapter", "growth"), ("name", "theory.saturation"), ("section", "why-root-dk.md#...")."""
    pairs = []
    for part in where.split("; "):
        if numbers := re.fullmatch(r"claims? (\d+(?:, \d+)*)", part):
            pairs += [("claim", number) for number in numbers[1].split(", ")]
        elif chapter := re.fullmatch(r"chapter `([\w-]+)`", part):
            pairs.append(("chapter", chapter[1]))
        elif name := re.fullmatch(r"`([\w.]+)`", part):
            pairs.append(("name", name[1]))
        else:
            link = re.fullmatch(r"\[(.+)\]\(([\w-]+\.md)#(.+)\)", part)
            assert link, f"what is this place? {part!r}"
            assert anchor(link[1]) == link[3], f"the link says {link[1]!r} and leads to {link[3]!r}"
            pairs.append(("section", f"{link[2]}#{link[1]}"))
    return pairs


def section(place: str) -> str:
    file, _, heading = place.partition("#")
    parts = re.split(r"^#+ (.+)$", (DOCS / file).read_text("utf-8"), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))[heading]


@pytest.mark.parametrize("statement", ROWS)
def test_every_place_exists(statement: str) -> None:
    named = places(ROWS[statement][3])
    assert named
    for kind, place in named:
        if kind == "claim":
            assert LEDGER[int(place)].gather is not None
        elif kind == "chapter":
            assert place in {chapter.id for chapter in CHAPTERS}
        elif kind == "name":
            module, _, name = f"rootdk.{place}".rpartition(".")
            assert hasattr(importlib.import_module(module), name), place
        else:
            assert len(section(place)) > 100


def test_a_place_that_does_not_exist_is_noticed() -> None:
    with pytest.raises(KeyError):
        section("why-root-dk.md#Why the cube of d_k")
    with pytest.raises(AssertionError, match="leads to"):
        places("[Why not 2, or 10?](why-root-dk.md#why-not-two)")
    with pytest.raises(AssertionError, match="what is this place"):
        places("somewhere")


# Of statements with numbers: what their section says, which a script computes (test_docs.py holds it to that).
SHOWN: dict[str, Sequence[str]] = {
    "B1": ("softmax(Q K' / sqrt(d_k)) V", "0 + 0 + 1 + 0 = 1", "0.5"),
    "B2": ("| 8 | 0.25 | 1 | 2.83 |",),
    "B6": ("| 4 | 0 | 1.50 |", "| 512 | 0 | 18.05 |"),
    "B7": ("5, 5.125, 5.25, 5.375, 5.5", "3, 4, 5, 6, 7", "0.0312 |", "| 2 |", "variance.svg"),
    "B11": ("If the mean is 0, the distances are the numbers themselves",),
    "B15": ("e^(x_i) / (e^(x_1) + ... + e^(x_n))", "2.718"),
    "B16": ("e^1 = 2.718", "e^5 = 148.4", "e^10 = 22,026", "e^20 = 485,165,195", "e^50 = 5.185e+21"),
    "B17": ("50, 10, 5", "1.000, 0.000, 0.000"),
    "B18": ("148.413, 2.718, 1.649 | 152.780 | 0.971, 0.018, 0.011",),
    "B21": ("mean 4, distances -2, 0, 2, squares 4, 0, 4", "2.67", "0.667", "c^2 = 4"),
    "B24": ("1,202,604, 22,026, 162,755 | 1,387,386 | 0.867, 0.016, 0.117",),
    "B25": ("5.755, 3.490, 4.482 | 13.727 | 0.419, 0.254, 0.326",),
    "C8": ("T5", "Granite", "Gemma 2", "Gemma 4", "Llama 4", "Qwen", "DeepSeek"),
}  # fmt: skip


@pytest.mark.parametrize("statement", SHOWN)
def test_the_numbers_are_shown_where_the_table_says(statement: str) -> None:
    (place,) = [place for kind, place in places(ROWS[statement][3]) if kind == "section"]
    text = " ".join(section(place).split())
    for number in SHOWN[statement]:
        assert number in text, (place, number)


# And what their claims hold against each other: the numbers of the statement are those that the claim puts in print.
PRINTED = {
    "B12": (5, {9, 3, 6}),
    "B13": (5, {4096, 64, 4032}),
    "B17": (8, {1.0, 0.0}),
    "B18": (8, {0.971, 0.018, 0.011}),
    "B21": (6, {2.67, 0.67, 4.0}),
    "B23": (9, {1.0, 0.5}),
    "B24": (10, {0.867, 0.016, 0.117}),
    "B25": (10, {1.75, 1.25, 1.5, 0.419, 0.254, 0.326}),
}


@pytest.mark.parametrize("statement", PRINTED)
def test_the_claim_computes_the_numbers_of_the_statement(statement: str) -> None:
    claim, numbers = PRINTED[statement]
    assert ("claim", str(claim)) in places(ROWS[statement][3])
    agreed = {
        comparison.predicted
        for comparison in LEDGER[claim].check(Sampling(rows=1024)).evidence
        if comparison.relation and comparison.agrees
    }
    assert numbers <= agreed


def test_numbers_of_the_table_itself() -> None:
    """Those that stand in its third column and in no claim to the same digit."""
    assert exact_score_moments(64, {-1: "1/2", 1: "1/2"})["variance"] == 64  # A3
    assert square_term_counts(64)["average_0"] == 4032  # B13
    assert f"{128**0.5:.1f}" in ROWS["B3"][2]
    assert f"{float(predict(64, 512, 'none').saturated[0]):.0%}".replace("%", " %") in ROWS["B4"][2]
    flow = [float(relative_gradient(512, d_k, d_k**-0.5)) for d_k in (4, 64, 256, 1024)]
    assert max(abs(value - 1) for value in flow) < 0.1  # C4
    lost = LEDGER[9].check().condition
    assert "19%" in lost
    assert "79% at 64" in lost
    assert "19 %" in ROWS["B23"][2]
    assert "79 %" in ROWS["B23"][2]


def test_why_root_dk_knows_of_the_table() -> None:
    made = runpy.run_path(str(DOCS / "why_root_dk.py"))["text"]()
    assert "](statements.md)" in made
