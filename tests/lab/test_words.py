"""One name for each quantity, wherever a person reads it: terminal, report, page and docs."""

import re
from pathlib import Path

import pytest
from click.testing import CliRunner
from explorer_views import view

from rootdk.cli import main
from rootdk.lab.checks import EXPERIMENTS, plan, run
from rootdk.lab.explorer.shared import QUANTITIES
from rootdk.lab.formulas import WORDS
from rootdk.lab.report import render

DOCS = Path(__file__).parents[2] / "docs"
# Other names for the words of the glossary. H, J and p may be written in formulas, not in the place of a name.
OTHER_NAMES = re.compile(r"H / ln n|rows with p|trace of J\b|\btr J\b|variance of the logits\b")


def printed(*arguments: str) -> str:
    result = CliRunner().invoke(main, list(arguments), env={"COLUMNS": "100"})
    assert result.exit_code == 0, result.output
    return result.output


def chapter_words(chapter: str) -> str:
    shown = view(chapter)
    labels = [number.label for number in shown.numbers]
    return "\n".join([*labels, *(figure.title for figure in shown.figures), *(figure.text for figure in shown.figures)])


SCREENS = {
    "look": lambda: printed("look", "--keys", "64", "--rows", "16"),
    "predict": lambda: printed("predict", "--d-k", "64", "--keys", "64"),
    "predict, table": lambda: printed("predict", "--d-k", "64", "--d-k", "128", "--keys", "64"),
    "report": lambda: render([run(spec) for spec in plan("quick") if type(spec) is EXPERIMENTS["rules"].spec], []),
    "page, answer": lambda: chapter_words("answer"),
    "page, sharpening": lambda: chapter_words("sharpening"),
    "page, gradients": lambda: chapter_words("gradients"),
    "page, context": lambda: chapter_words("context"),
    "page, not-dk": lambda: chapter_words("not-dk"),
    "page, quantities": lambda: "\n".join(QUANTITIES.values()),
    "why-root-dk.md, tables": lambda: "\n".join(
        line for line in (DOCS / "why-root-dk.md").read_text("utf-8").splitlines() if line.startswith("| d_k |")
    ),
}


@pytest.mark.parametrize("screen", SCREENS)
def test_a_quantity_has_its_name(screen: str) -> None:
    text = SCREENS[screen]()
    assert OTHER_NAMES.findall(text) == []
    folded = " ".join(re.sub(r"<[^>]*>", " ", text).split())
    names = [word.name for word in WORDS if word.name != "score"]
    # Headings of a table in a terminal stand in two lines.
    assert any(name in folded or set(name.split()) <= set(folded.split()) for name in names)


def test_other_names_would_be_seen() -> None:
    assert OTHER_NAMES.findall("median of tr J, H / ln n") == ["tr J", "H / ln n"]


def test_the_glossary_is_in_the_docs_and_in_the_report() -> None:
    docs, page = (DOCS / "why-root-dk.md").read_text("utf-8"), render([], [])
    for word in WORDS:
        assert f"| {word.name} | {word.meaning.replace('|', '&#124;')} |" in docs
        assert f"<td>{word.name}</td>" in page
