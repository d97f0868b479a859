"""`rootdk` without a command, and `rootdk predict` and `prove`: what they print and write, and what bad input gets."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from rootdk import theory
from rootdk.cli import main, main_job
from rootdk.errors import ArgumentError
from rootdk.files import write_atomically
from rootdk.lab.checks import LEDGER
from rootdk.lab.first_look import rule_label
from rootdk.lab.proof import prove
from rootdk.lab.recommendation import recommend

SMALL = ("--quick", "--d-k", "16", "--keys", "64")


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One cache for all tests of this file, so that the study runs once."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def rootdk(kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The command line in an empty folder, with two claims in place of all: the ledger has tests of its own."""

    def few(_job: Any, progress: Any) -> list[dict[str, Any]]:
        progress("claims", 1.0)
        return [record.to_dict() for record in LEDGER.check([7, 8])]

    monkeypatch.setattr(main_job, "_checked_claims", few)
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str, columns: int = 80) -> Result:
        return CliRunner().invoke(main, list(arguments), env={"COLUMNS": str(columns), "ROOTDK_CACHE": str(kept)})

    return run


def test_summary_and_report(rootdk: Any, tmp_path: Path) -> None:
    result = rootdk(*SMALL)
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[-1] == "Report: rootdk-report.html"
    assert "Of 2 claims 1 hold: 8; 1 do not hold: 7." in " ".join(result.output.split())
    assert "0.25 at d_k = 16" in result.output
    assert [file.name for file in tmp_path.iterdir()] == ["rootdk-report.html"]
    assert (tmp_path / "rootdk-report.html").read_text("utf-8").startswith("<!DOCTYPE html>")


def test_numbers_of_the_summary_are_those_of_the_results(rootdk: Any) -> None:
    printed = json.loads(rootdk(*SMALL, "--json").output)
    lines = rootdk(*SMALL, "--no-report", columns=60).output.splitlines()
    rows = {cells[1]: cells for line in lines if (cells := line.split())[:1] == ["16"]}
    assert set(rows) == {"none", "1/sqrt(d_k)", "1/d_k"}
    wide = [line.split() for line in rootdk(*SMALL, "--no-report").output.splitlines() if line.startswith("  16 ")]
    (rules,) = (result for result in printed["results"] if result["experiment"] == "rules")
    for rule, both in zip(("none", "sqrt", "dk"), wide, strict=True):
        (share,) = (
            comparison
            for comparison in rules["comparisons"]
            if comparison["quantity"] == "entropy share"
            and comparison["setting"] == {"d_k": 16, "rule": rule, "keys": 64}
        )
        assert float(both[-4]) == pytest.approx(share["predicted"], abs=6e-4)
        assert float(both[-3]) == pytest.approx(share["measured"], abs=6e-4)
        assert float(rows[rule_label(rule)][3]) == pytest.approx(share["measured"], abs=6e-4)


def test_the_answer_comes_first_with_the_users_own_numbers(rootdk: Any) -> None:
    text = " ".join(rootdk(*SMALL, "--no-report").output.partition("\n\n")[0].split())
    assert text.startswith("Because q.k is a sum of d_k products: its variance is d_k, and dividing by sqrt(d_k) makes")
    printed = json.loads(rootdk(*SMALL, "--json").output)
    (rules,) = (result for result in printed["results"] if result["experiment"] == "rules")
    entropy = {
        comparison["setting"]["rule"]: comparison["predicted"]
        for comparison in rules["comparisons"]
        if comparison["quantity"] == "entropy share" and comparison["setting"]["d_k"] == 16
    }
    none, scaled = (f"{100 * entropy[rule]:.0f} %" for rule in ("none", "sqrt"))
    assert f"at d_k = 16 keep {none} of the largest entropy they could have; with it, {scaled}." in text
    # Without the two rules that it compares it has theory's numbers.
    alone = rootdk(*SMALL, "--rule", "dk", "--no-report").output
    assert alone.startswith("Because")


@pytest.mark.parametrize("columns", [60, 72, 100, 140])
def test_it_fits_the_terminal_and_cuts_no_number(rootdk: Any, columns: int) -> None:
    output = rootdk(*SMALL, "--no-report", columns=columns).output
    lines = output.splitlines()
    assert max(map(len, lines)) <= columns
    assert "…" not in output
    assert not any(re.search(r"=$|^%", line) for line in lines)
    # The picture and theory come where there is room for them.
    assert ("of one row" in output) == (columns >= 79)
    assert ("theory" in output) == (columns >= 64)


def test_a_terminal_without_blocks_gets_letters(monkeypatch: pytest.MonkeyPatch) -> None:
    weights = (0.97, 0.02, 0.005)
    assert main_job._bars(weights) == "█▁"
    monkeypatch.setattr(main_job, "_can_print", lambda _text: False)
    assert main_job._bars(weights) == "@."


def test_json_holds_everything_and_writes_nothing(rootdk: Any, tmp_path: Path) -> None:
    result = rootdk(*SMALL, "--json", "--seed", "4")
    assert result.exit_code == 0, result.output
    printed = json.loads(result.output)
    assert (printed["size"], printed["seed"], printed["d_k"], printed["keys"]) == ("quick", 4, [16], 64)
    assert len(printed["results"]) == 8
    assert [claim["id"] for claim in printed["claims"]] == [7, 8]
    assert list(tmp_path.iterdir()) == []
    assert rootdk(*SMALL, "--json", "--out", "a.html").exit_code == 0
    assert [file.name for file in tmp_path.iterdir()] == ["a.html"]


def test_the_whole_ledger_fits_one_screen(monkeypatch: pytest.MonkeyPatch, kept: Path) -> None:
    """With every claim: 24 lines of 80 columns or of 60, the place of the report and the prompt included."""
    monkeypatch.setenv("ROOTDK_CACHE", str(kept))
    seen: dict[str, float] = {}
    asked = main_job.Job("quick", (64, 512), 1024, ("none", "sqrt", "dk"), 0)
    findings = main_job.work(asked, None, lambda name, share: seen.update({name: share}))
    for width in (80, 60):
        lines = list(main_job.summary(findings, width))
        assert len(lines) <= 22  # the place of the report and the prompt come below
        assert max(map(len, lines)) <= width
    assert [claim["id"] for claim in findings.claims] == LEDGER.ids
    assert set(seen) == {result.experiment for result in findings.results} | {"claims"}
    assert set(seen.values()) == {1.0}


def test_every_rule_fits_80_columns(rootdk: Any) -> None:
    rules = [argument for name in ("none", "entropy_invariant", "llama4") for argument in ("--rule", name)]
    result = rootdk(*SMALL, *rules, "--no-report")
    assert result.exit_code == 0, result.output
    assert max(map(len, result.output.splitlines())) <= 80


def test_a_contradiction_is_said() -> None:
    from rootdk.lab.checks import Comparison
    from rootdk.lab.checks import Result as Found

    off = Found("rules", {}, (Comparison("entropy share", 2.0, "=", 1.0, 0.1),))
    findings = main_job.Findings(main_job.Job("quick", (), 2, ("sqrt",), 0), (off,), (), 0.0)
    text = main_job._agreement(findings)
    assert "10.0 standard errors" in text
    assert "contradict each other" in text


# Without plotly.


@pytest.fixture
def no_plotly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "plotly.graph_objects", None)


@pytest.mark.usefixtures("no_plotly")
def test_without_plotly_the_summary_and_how_to_get_the_report(rootdk: Any, tmp_path: Path) -> None:
    result = rootdk(*SMALL)
    assert result.exit_code == 1
    assert result.output.startswith("Because q.k")
    assert result.output.splitlines()[-1] == (
        "Error: report: needs plotly, which is not installed; get it with: pip install 'rootdk[lab]'"
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("no_plotly")
def test_without_plotly_a_report_by_name_is_an_error_at_once(rootdk: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rootdk.cli.main_job.work", None)
    result = rootdk("--out", "a.html")
    assert result.exit_code == 1
    assert result.output.count("\n") == 1
    assert "rootdk[lab]" in result.output


@pytest.mark.usefixtures("no_plotly")
def test_without_plotly_and_without_a_report_nothing_is_missing(rootdk: Any) -> None:
    assert rootdk(*SMALL, "--no-report").exit_code == 0
    assert rootdk(*SMALL, "--json").exit_code == 0


# Bad input, and runs that fail.


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("--d-k", "0"), 2, "'--d-k': 0 is not in the range"),
        (("--keys", "1"), 2, "'--keys': 1 is not in the range"),
        (("--keys", "nan"), 2, "'--keys': 'nan' is not a valid integer"),
        (("--rule", "cube"), 2, "'--rule': must be one of the names 'none', 'sqrt', "),
        (("--seed", "-1"), 2, "'--seed'"),
        (("--out", "no/such/folder/a.html"), 2, "'--out': folder no/such/folder does not exist"),
        (("--out", "."), 2, "'--out'"),
        (("--out", "a.html", "--no-report"), 2, "--out and --no-report exclude each other"),
        (("--quick", "--full"), 2, "--quick and --full exclude each other"),
        (("--d-k", "8192", "--keys", "262144"), 1, "keys: must be at most 16384 at d_k = 8192, got 262144"),
        (("predict", "--d-k", "0", "--keys", "9"), 2, "'--d-k': 0 is not in the range"),
        (("predict", "--d-k", "9", "--keys", "1"), 2, "'--keys': 1 is not in the range"),
        (("predict", "--keys", "9"), 2, "Missing option '--d-k'"),
        (("predict", "--d-k", "9", "--keys", "9", "--sigma", "-1"), 2, "'--sigma': must be a number above 0"),
        (("predict", "--d-k", "9", "--keys", "9", "--sigma", "nan"), 2, "'--sigma': must be a number above 0"),
        (("predict", "--d-k", "9", "--keys", "9", "--rule", "nan"), 2, "'--rule': must be one of the names 'none'"),
        (("predict", "--d-k", "9", "--keys", "9", "--rule", "cube"), 2, "'--rule': must be one of the names 'none'"),
        (("predict", "--d-k", "9", "--keys", "9", "--rule", "1000", "--sigma", "1000"), 1, "rule: must be numbers"),
        (("prove", "--d", "0"), 2, "'--d': 0 is not in the range"),
        (("prove", "--d", "nan"), 2, "'--d': 'nan' is not a valid integer"),
        (("prove", "--d", "1000001"), 2, "'--d'"),
    ],
)
def test_bad_input(rootdk: Any, monkeypatch: pytest.MonkeyPatch, arguments: Any, code: int, message: str) -> None:
    monkeypatch.setattr("rootdk.cli.main_job.work", None)
    result = rootdk(*arguments)
    assert result.exit_code == code, result.output
    assert message in result.output.replace("\n", " ")
    assert "Traceback" not in result.output


def test_a_folder_in_the_way_of_the_default_report(rootdk: Any, tmp_path: Path) -> None:
    (tmp_path / "rootdk-report.html").mkdir()
    result = rootdk(*SMALL)
    assert result.exit_code == 2
    assert "rootdk-report.html is a folder" in result.output


def test_a_device_is_not_replaced_by_a_file(rootdk: Any, tmp_path: Path) -> None:
    """A rename would do that, and quietly; a link is followed, so that the file is written that it leads to."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "pipe")
    for name in ("pipe", "link"):
        result = rootdk(*SMALL, "--out", name)
        assert result.exit_code == 2
        assert f"{name} is not a regular file" in result.output
        with pytest.raises(OSError, match="not a regular file"):
            write_atomically(tmp_path / name, "text")
    assert (tmp_path / "pipe").is_fifo()
    (tmp_path / "to").symlink_to(tmp_path / "real.html")
    write_atomically(tmp_path / "to", "text")
    assert (tmp_path / "to").is_symlink()
    assert (tmp_path / "real.html").read_text() == "text"


def test_a_report_that_cannot_be_written_leaves_nothing(
    rootdk: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.html").write_text("the one before")

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pathlib.Path.replace", full)
    result = rootdk(*SMALL, "--out", "a.html")
    assert result.exit_code == 1
    assert "Error: --out: cannot write a.html: No space left on device" in result.output
    assert [file.name for file in tmp_path.iterdir()] == ["a.html"]
    assert (tmp_path / "a.html").read_text() == "the one before"


@pytest.mark.parametrize("where", ["rootdk.cli.main_job.render", "rootdk.cli.main_job._checked_claims"])
def test_a_run_that_fails_leaves_nothing(
    rootdk: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise ArgumentError("keys: must be odd, got 64")

    monkeypatch.setattr(where, broken)
    result = rootdk(*SMALL)
    assert result.exit_code == 1
    assert "Error: keys: must be odd, got 64" in result.output
    assert list(tmp_path.iterdir()) == []


def test_no_cache_reads_and_writes_none(rootdk: Any, kept: Path) -> None:
    rootdk(*SMALL, "--no-report")
    before = list(kept.iterdir())
    assert before
    for file in before:
        file.write_text("damaged")
    plain = rootdk(*SMALL, "--no-report", "--no-cache")
    assert plain.exit_code == 0
    assert "damaged" not in plain.output
    assert {file.read_text() for file in before} == {"damaged"}
    again = rootdk(*SMALL, "--no-report")
    assert again.exit_code == 0
    assert again.output.count("is damaged; running again") == 8  # one per experiment
    assert "is damaged" not in rootdk(*SMALL, "--no-report").output


def test_an_interrupt_is_no_traceback(tmp_path: Path) -> None:
    code = "import rootdk.cli.main_job as j, rootdk.cli as c\n"
    code += "def stop(*a): raise KeyboardInterrupt\nj._checked_claims = stop\nc.main(['--quick', '--no-cache'])"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=dict(os.environ), capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")
    assert list(tmp_path.iterdir()) == []


# predict


def test_predict_says_what_theory_says(rootdk: Any) -> None:
    result = rootdk("predict", "--d-k", "128", "--keys", "8192", "--rule", "sqrt", "--json")
    assert result.exit_code == 0, result.output
    printed = json.loads(result.output)
    assert printed["scale"] == pytest.approx(128**-0.5)
    assert printed["relative_gradient"] == pytest.approx(theory.relative_gradient(8192, 128, 128**-0.5))
    assert printed["predicted"]["mean_jacobian_trace"] == pytest.approx(
        theory.attention_moments(8192, 128, 128**-0.5).jacobian_trace
    )
    assert printed["state"] == "healthy"
    text = rootdk("predict", "--d-k", "128", "--keys", "8192").output
    assert max(map(len, text.splitlines())) <= 80
    assert "0.945" in text


@pytest.mark.parametrize(
    ("rule", "sigma", "state"),
    [
        ("none", 1.0, "frozen"),
        ("sqrt", 1.0, "healthy"),
        ("dk", 1.0, "flat"),
        (0.25, 1.0, "sharp"),
        ("sqrt", 3.0, "frozen"),
    ],
)
def test_state_follows_the_numbers(rule: Any, sigma: float, state: str) -> None:
    report = recommend(128, 8192, rule, sigma)
    assert report.state == state
    assert (f"{128**-0.5 / sigma**2:.4g}" in report.advice) == (state != "healthy")


def test_sigma_is_a_scale_of_its_own() -> None:
    """q and k twice as wide are the scale four times as large, and the gradient to q half of that."""
    wide, plain = recommend(64, 512, 0.01, 2.0), recommend(64, 512, 0.04)
    assert wide.predicted == plain.predicted
    assert wide.relative_gradient == pytest.approx(plain.relative_gradient / 2)


def test_every_rule_can_be_predicted(rootdk: Any) -> None:
    from rootdk.scaling import rules

    for name in rules():
        assert rootdk("predict", "--d-k", "64", "--keys", "1000000000", "--rule", name).exit_code == 0


# prove


@pytest.mark.parametrize("d", [1, 2, 3, 6, 7, 64, 401, 20_000])
def test_prove(rootdk: Any, d: int) -> None:
    text = rootdk("prove", "--d", str(d)).output
    assert max(map(len, text.splitlines())) <= 80
    printed = json.loads(rootdk("prove", "--d", str(d), "--json").output)
    assert (printed["terms"], printed["ones"], printed["zeros"], printed["total"]) == (d * d, d, d * (d - 1), d)
    assert printed["exact"] == (str(d) if d <= 400 else None)
    assert f"= {d:,}. Exact" in " ".join(text.split())
    assert (len(printed["squares"]), len(printed["crosses"])) == ((d, d * (d - 1)) if d <= 6 else (0, 0))
    for term in (*printed["squares"], *printed["crosses"]):
        assert term in text
    expected = [1.0, *([0.0] if d > 1 else []), d, 1.0]
    for measured, predicted in zip(printed["measured"].values(), expected, strict=True):
        assert abs(measured["mean"] - predicted) < 4 * measured["standard_error"]


def test_prove_is_seeded() -> None:
    assert prove(5, seed=1) == prove(5, seed=1)
    assert prove(5, seed=1).measured != prove(5, seed=2).measured
    with pytest.raises(ArgumentError, match="d: must be whole numbers from 1"):
        prove(0)
