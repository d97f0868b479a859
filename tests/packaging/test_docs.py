"""docs/why-root-dk.md, its drawings and docs/spread.svg are what their scripts compute; words follow from numbers."""

import re
import runpy
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def pages() -> dict[Path, str]:
    return dict(runpy.run_path(str(DOCS / "why_root_dk.py"))["pages"]())


@pytest.fixture(scope="module")
def made(pages: dict[Path, str]) -> str:
    return pages[DOCS / "why-root-dk.md"]


def assert_same_to_the_last_digit_but_one(written: str, made: str, script: str) -> None:
    """Other builds of NumPy and SciPy may round the other way."""
    number = re.compile(r"\d[\d,]*\.?\d*(?:e-?\d+)?")
    assert number.sub("#", written) == number.sub("#", made), f"run: python {script}"
    for old, new in zip(number.findall(written), number.findall(made), strict=True):
        a, b = (float(text.replace(",", "") or 0) for text in (old, new))
        assert a == pytest.approx(b, abs=1.01 * 10.0 ** -len(new.partition(".")[2].partition("e")[0]), rel=0)


def test_the_files_are_what_the_code_computes(pages: dict[Path, str]) -> None:
    assert {page.name for page in pages} == {"why-root-dk.md", "variance.svg", "random-walk.svg"}
    for page, made in pages.items():
        assert_same_to_the_last_digit_but_one(page.read_text("utf-8"), made, "docs/why_root_dk.py")


def test_the_figure_is_what_the_code_computes() -> None:
    figure = runpy.run_path(str(DOCS / "spread_figure.py"))["figure"]()
    assert_same_to_the_last_digit_but_one((DOCS / "spread.svg").read_text("utf-8"), figure, "docs/spread_figure.py")


def rows(text: str, heading: str) -> list[list[str]]:
    part = text.partition(f"## {heading}")[2].partition("\n## ")[0]
    lines = [line.strip("| ").split(" | ") for line in part.splitlines() if line.startswith("|")]
    return lines[2:]


def test_only_the_root_keeps_every_column(made: str) -> None:
    for scale, constant in (("1", False), ("1/sqrt(d_k)", True), ("1/d_k", False)):
        of_scale = [row for row in rows(made, "Attention, rule by rule") if row[1] == scale]
        ratio, flow = ([float(row[column]) for row in of_scale] for column in (3, 7))
        assert len(of_scale) == 4
        assert (max(flow) / min(flow) < 1.25) == constant
        assert (max(ratio) - min(ratio) < 0.01) == (scale != "1" if scale == "1/sqrt(d_k)" else False)


def test_the_norm_of_the_jacobian_rises_before_it_falls(made: str) -> None:
    norms = [float(row[5]) for row in rows(made, "What softmax does with scores that are far apart")]
    peak = norms.index(max(norms))
    assert 0 < peak < len(norms) - 1
    traces = [float(row[4]) for row in rows(made, "What softmax does with scores that are far apart")]
    assert traces == sorted(traces, reverse=True)


def test_long_rows_go_flat_under_the_root_and_sharpen_under_ln_n(made: str) -> None:
    ratios = [[float(cell) for cell in row[3:]] for row in rows(made, "Length is another matter")]
    root, log = zip(*ratios, strict=True)
    assert list(root) == sorted(root)
    assert list(log) == sorted(log, reverse=True)


def test_every_command_of_the_text_exists(made: str) -> None:
    from click.testing import CliRunner

    from rootdk.cli import main

    commands = re.findall(r"^rootdk (\w+)", made, re.MULTILINE)
    assert {"predict", "prove", "claims"} <= set(commands)
    for command in commands:
        assert CliRunner().invoke(main, [command, "--help"]).exit_code == 0
