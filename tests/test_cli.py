"""The command line: what it prints, that it fits a terminal, and what it says to bad input."""

import json
import re
import subprocess
import sys

import pytest
from click.testing import CliRunner, Result

import rootdk
from rootdk.cli import main
from rootdk.first_look import Look, look, meaning

SMALL = ["--keys", "128", "--rows", "64"]


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments), env={"COLUMNS": "80"})


def test_first_look_shows_every_rule_at_every_d_k() -> None:
    result = run()
    assert result.exit_code == 0, result.output
    rows = re.findall(r"^\s+(\d+)\s+(none|sqrt|dk)\s", result.output, re.MULTILINE)
    assert rows == [(d_k, rule) for d_k in ("64", "512") for rule in ("none", "sqrt", "dk")]


@pytest.mark.parametrize(
    "arguments", [(), ("--rule", "entropy_invariant", "--d-k", "8192", *SMALL), ("info",), ("bench", "--help")]
)
def test_fits_80_columns(arguments: tuple[str, ...]) -> None:
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    assert max(map(len, result.output.splitlines())) <= 80


def test_json_of_the_first_look() -> None:
    result = run("--json", "--seed", "3", *SMALL)
    assert result.exit_code == 0, result.output
    report = json.loads(result.output)
    assert set(report) == {"seed", "looks", "meaning"}
    assert report["seed"] == 3
    assert [set(one) for one in report["looks"]] == [set(Look.__dataclass_fields__)] * 6
    assert {(one["keys"], one["rows"]) for one in report["looks"]} == {(128, 64)}


def test_numbers_agree_with_theory() -> None:
    """Scores of unit-variance q and k have variance d_k; 1/sqrt(d_k) makes it 1, 1/d_k makes it 1/d_k."""
    by_rule = {one.rule: one for one in look([256], ["none", "sqrt", "dk"], keys=1024, rows=512, seed=0)}
    # The mean of |q|^2 over 512 rows has a relative standard error of sqrt(2/256/512) = 0.4 %, the row variances over
    # 1024 shared keys add about as much: 2.5 % is four to five of them.
    for rule, expected in (("none", 256.0), ("sqrt", 1.0), ("dk", 1 / 256)):
        assert by_rule[rule].score_variance == pytest.approx(expected, rel=0.025)
    assert by_rule["none"].saturated > 0.3
    assert by_rule["sqrt"].saturated == by_rule["dk"].saturated == 0
    assert by_rule["none"].jacobian_trace < 0.2 < 0.99 < by_rule["sqrt"].jacobian_trace
    assert by_rule["dk"].entropy_ratio > 0.999 > by_rule["sqrt"].entropy_ratio > by_rule["none"].entropy_ratio


def test_one_d_k_does_not_depend_on_the_others() -> None:
    assert look([16, 64], ["sqrt"], 64, 32, seed=1)[1] == look([64], ["sqrt"], 64, 32, seed=1)[0]
    assert look([64], ["sqrt"], 64, 32, seed=1) != look([64], ["sqrt"], 64, 32, seed=2)


def made_up(rule: str = "x", **changes: float) -> Look:
    facts = {
        "score_variance": 1.0,
        "entropy_ratio": 0.9,
        "effective_keys": 400.0,
        "saturated": 0.0,
        "jacobian_trace": 0.99,
    }
    return Look(d_k=64, rule=rule, keys=1024, rows=10, **(facts | changes))


def test_meaning_follows_the_numbers_and_not_the_name() -> None:
    assert "every row still answers" in meaning([made_up("none")])
    assert "all but uniform" in meaning([made_up("none", entropy_ratio=0.995)])
    frozen = meaning([made_up("sqrt", entropy_ratio=0.03, saturated=0.62, jacobian_trace=0.02)])
    assert "62%" in frozen
    assert "hardly answer" in frozen
    sharp = meaning([made_up("sqrt", entropy_ratio=0.2, saturated=0.1, jacobian_trace=0.4)])
    assert "hardly answer" not in sharp
    assert "one or two keys" in sharp


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--keys", "1"], "--keys"),
        (["--keys", "many"], "--keys"),
        (["--d-k", "0"], "--d-k"),
        (["--rows", "-5"], "--rows"),
        (["--seed", "-1"], "--seed"),
        (["--rule", "cube"], "scale: must be one of the names"),
        (["--keys", "9", "info"], "--keys belongs to the first look"),
        (["launch"], "No such command"),
        (["bench", "--threads", "0"], "--threads"),
        (["bench", "--peer", "abacus"], "--peer"),
        (["bench", "--what", "sideways"], "--what"),
    ],
)
def test_bad_input_is_exit_code_2_and_says_what(arguments: list[str], message: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert message in result.output
    assert "Traceback" not in result.output


def test_info() -> None:
    facts = json.loads(run("info", "--json").output)
    assert facts["rootdk"] == rootdk.__version__
    assert facts["kernel target"] in facts["targets available"]
    assert "plain" in facts["targets available"]
    assert facts["threads"] == rootdk.num_threads()
    lines = run("info").output
    for name in facts:
        assert re.search(rf"^{name}  ", lines, re.MULTILINE)


@pytest.mark.parametrize("command", [[sys.executable, "-m", "rootdk"], ["rootdk"]])
def test_both_ways_to_start(command: list[str]) -> None:
    if command == ["rootdk"]:
        from pathlib import Path

        command = [str(Path(sys.executable).with_name("rootdk"))]
    finished = subprocess.run([*command, "--version"], capture_output=True, text=True, check=True)
    assert finished.stdout.strip() == f"rootdk {rootdk.__version__}"
