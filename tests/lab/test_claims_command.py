"""`rootdk claims`: what it prints, that it fits a terminal, and what it says to bad input."""

import json
import sys

import pytest
from click.testing import CliRunner, Result

from rootdk import backends
from rootdk.cli import main
from rootdk.lab.checks import LEDGER, VERDICTS, CheckedClaim


def run(*arguments: str, columns: int = 80) -> Result:
    return CliRunner().invoke(main, ["claims", *arguments], env={"COLUMNS": str(columns)})


@pytest.fixture(scope="module")
def whole() -> Result:
    return run("--rows", "1024", "--evidence")


def test_without_options_it_says_what_is_true_and_what_is_not() -> None:
    result = run("--rows", "1024")
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert lines[0].startswith(f"{len(LEDGER)} claims: holds ")
    assert max(map(len, lines)) <= 80
    assert [line for line in lines if line.capitalize() in map(str.capitalize, VERDICTS)] == [
        "Holds", "Holds under a condition", "Does not hold", "Not reproduced here", "Undecided"
    ]  # fmt: skip
    flat = " ".join(result.output.split())
    assert all(" ".join(claim.statement.split()) in flat for claim in LEDGER)
    assert "Why: the mean of q.k is 0 at every d_k" in flat
    assert "our choice" not in flat
    assert len(lines) < 160


def test_every_claim_is_shown_and_fits_80_columns(whole: Result) -> None:
    assert whole.exit_code == 0, whole.output
    assert max(map(len, whole.output.splitlines())) <= 80
    flat = " ".join(whole.output.split())
    for claim in LEDGER:
        assert " ".join(claim.statement.split()) in flat
        assert claim.source in flat
    counts = "holds 8, holds under a condition 15, does not hold 7, not reproduced here 2, undecided 1"
    assert f"33 claims: {counts}" in flat


def test_help_fits_80_columns() -> None:
    result = run("--help")
    assert result.exit_code == 0
    assert max(map(len, result.output.splitlines())) <= 80


def test_one_claim_shows_evidence_verdict_and_reason() -> None:
    output = run("--id", "7").output
    assert output.startswith("  7 does not hold\n")
    assert "5,184,705,528,587,072,464,087" in output
    assert "1 claim: does not hold 1" in output


def test_some_claims_in_the_order_asked_for_and_each_once() -> None:
    output = run("--id", "10", "--id", "8", "--id", "10", columns=120).output
    assert [line for line in output.splitlines() if line[:3].strip().isdigit()] == [" 10 holds", "  8 holds"]


def test_json_is_the_records() -> None:
    result = run("--json", "--id", "7", "--id", "16", "--id", "3", "--rows", "1024", "--seed", "4")
    assert result.exit_code == 0, result.output
    report = json.loads(result.output)
    assert set(report) == {"rows", "seed", "verdicts", "claims"}
    assert (report["rows"], report["seed"]) == (1024, 4)
    assert set(report["verdicts"]) == set(VERDICTS)
    assert sum(report["verdicts"].values()) == 3
    records = [CheckedClaim.from_dict(claim) for claim in report["claims"]]
    assert [record.id for record in records] == [7, 16, 3]
    assert [record.verdict for record in records] == ["does not hold", "holds under a condition", "holds"]
    assert any(comparison.standard_error for comparison in records[2].evidence)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--id", "34"], "must be one of 1-33, got 34"),
        (["--id", "0"], "must be one of 1-33, got 0"),
        (["--id", "seven"], "--id"),
        (["--rows", "1000"], "--rows"),
        (["--seed", "-1"], "--seed"),
        (["--seed", str(2**63)], "--seed"),
        (["--shout"], "--shout"),
    ],
)
def test_bad_input_is_exit_code_2_and_says_what(arguments: list[str], message: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())
    assert "Traceback" not in result.output


def test_trouble_with_the_kernel_is_one_line_and_exit_code_1(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rootdk._kernel", None)
    backends.kernel.cache_clear()
    try:
        result, without = run("--id", "1"), run("--id", "7")
    finally:
        backends.kernel.cache_clear()
    assert result.exit_code == 1
    assert result.output.startswith("Error: rootdk._kernel: the compiled")
    assert result.output.count("\n") == 1
    assert without.exit_code == 0, "arithmetic needs no kernel"
