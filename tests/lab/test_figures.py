"""Figures for a paper: every picture of the report in the width that was asked for, each with its data."""

import csv
import sys
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from click.testing import CliRunner

from rootdk.cli import main
from rootdk.cli.figures import plain_text, rows_of, write_figure
from rootdk.errors import RootdkError
from rootdk.lab.answer import rows_as_widths_grow, rows_pictures
from rootdk.lab.checks import EXPERIMENTS, plan, run_all
from rootdk.lab.drawing import Picture
from rootdk.lab.report import training_pictures
from rootdk.lab.report.training_page import chapters
from rootdk.lab.training import shipped

BLANKS = str.maketrans("", "", " \n\u00a0")
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def pictures() -> list[Picture]:
    study = [
        picture for result in run_all(plan("quick")) for picture in EXPERIMENTS[result.experiment].pictures(result)
    ]
    # Of the many of training one of each kind: they differ in their data alone.
    kinds = {picture.name.partition("-")[0]: picture for _, drawn in chapters(shipped()) for picture in drawn}
    return [*rows_pictures(), *study, *kinds.values()]


def texts(path: Path) -> str:
    """All of it without blanks: letters of a formula stand apart."""
    return "".join("".join(part.itertext()) for part in ET.parse(path).iter(f"{SVG}text")).translate(BLANKS)


def test_every_picture_is_drawn_in_the_width_of_a_column(pictures: list[Picture], tmp_path: Path) -> None:
    assert len({picture.name for picture in pictures}) == len(pictures) > 25
    for picture in pictures:
        drawn, data = write_figure(picture, tmp_path, width=3.4)
        root = ET.parse(drawn).getroot()
        assert float(root.get("width").removesuffix("pt")) == pytest.approx(72 * 3.4)
        label = plain_text(picture.figure["layout"]["yaxis"]["title"]["text"])
        assert label.replace("_", "").translate(BLANKS) in texts(drawn)
        with data.open(newline="") as file:
            rows = list(csv.DictReader(file))
        sizes = [len(trace["x"]) * (len(trace["y"]) if trace["type"] == "heatmap" else 1)
                 for trace in picture.figure["data"]]  # fmt: skip
        assert len(rows) == sum(sizes)


def test_every_kind_of_line_can_be_drawn(tmp_path: Path) -> None:
    """Those that the curves of training may have, of which the runs at hand need some."""
    picture = next(plot for _, drawn in chapters(shipped()) for plot in drawn if plot.name.startswith("curves"))
    first = next(trace for trace in picture.figure["data"] if trace.get("line") and not trace.get("fill"))
    for dash in training_pictures._DASHES:
        line = {**first, "mode": "lines", "line": {**first["line"], "dash": dash}}
        drawn, _ = write_figure(replace(picture, figure={**picture.figure, "data": [line]}), tmp_path, width=3.4)
        assert ("stroke-dasharray" in drawn.read_text("utf-8")) == (dash != "solid"), dash


def test_the_data_is_that_of_the_picture(tmp_path: Path) -> None:
    row = rows_as_widths_grow()[512]
    rows = list(rows_of(rows_pictures()[-1]))
    assert [row["y"] for row in rows if row["name"] == "none"] == pytest.approx(row["none"].tolist(), abs=1e-7)
    assert [row["name"] for row in rows[::16]] == ["none", "1/√d_k", "1/d_k"]


def test_the_same_figure_is_the_same_file(tmp_path: Path) -> None:
    picture = rows_pictures()[0]
    (tmp_path / "a").mkdir()
    first, second = (write_figure(picture, folder)[0].read_bytes() for folder in (tmp_path, tmp_path / "a"))
    assert first == second


def test_formats_and_what_cannot_be_drawn(tmp_path: Path) -> None:
    picture = rows_pictures()[0]
    pdf, png, _ = write_figure(picture, tmp_path, 6.0, ("pdf", "png"))
    assert pdf.read_bytes().startswith(b"%PDF")
    assert png.read_bytes().startswith(b"\x89PNG")
    picture.figure["data"][0]["type"] = "pie"
    with pytest.raises(RootdkError, match="must be of lines, bars and maps, got a trace of type 'pie'"):
        write_figure(picture, tmp_path)


def test_the_command_writes_all_of_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("rootdk.cli.figures._pictures", lambda results: iter(rows_pictures()))
    monkeypatch.setattr("rootdk.lab.checks.run", lambda spec, cache: None)
    done = CliRunner().invoke(main, ["figures", str(tmp_path / "new"), "--format", "svg", "--format", "pdf"])
    assert done.exit_code == 0, done.output
    names = {file.name for file in (tmp_path / "new").iterdir()}
    assert names == {"figures.md"} | {f"one-row-{d_k}.{end}" for d_k in (4, 64, 512) for end in ("svg", "pdf", "csv")}
    assert "one-row-4: The weights of one row, d_k = 4." in (tmp_path / "new" / "figures.md").read_text("utf-8")


def test_what_stands_in_the_way_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = CliRunner().invoke(main, ["figures", str(tmp_path / "file" / "below")])
    assert done.exit_code == 2
    assert f"'FOLDER': cannot write to {tmp_path / 'file'}" in done.output
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    done = CliRunner().invoke(main, ["figures", str(tmp_path)])
    assert done.exit_code == 1
    assert (
        "figures: needs matplotlib, which is not installed; get it with: pip install 'rootdk[figures]'" in done.output
    )
