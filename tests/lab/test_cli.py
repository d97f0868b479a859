"""The command line: what it prints, that it fits a terminal, and what it says to bad input."""

import json
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import rootdk
from rootdk import backends
from rootdk.cli import main
from rootdk.lab.first_look import Look, look, meaning, rule_label

SMALL = ["--keys", "128", "--rows", "64"]


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments), env={"COLUMNS": "80"})


def test_first_look_shows_every_rule_at_every_d_k() -> None:
    result = run("look")
    assert result.exit_code == 0, result.output
    rows = re.findall(r"^\s+(\d+)\s+(none|1/\S+)\s", result.output, re.MULTILINE)
    assert rows == [(d_k, rule) for d_k in ("64", "512") for rule in ("none", "1/sqrt(d_k)", "1/d_k")]


EVERY_RULE = [argument for name in rootdk.scaling.rules() for argument in ("--rule", name)]


@pytest.mark.parametrize(
    "arguments",
    [("look",), ("look", *EVERY_RULE, "--d-k", "8192", *SMALL), ("info",)],
    ids=" ".join,
)
def test_fits_80_columns(arguments: tuple[str, ...]) -> None:
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    assert max(map(len, result.output.splitlines())) <= 80
    assert "…" not in result.output


def test_nothing_is_cut_or_broken_apart() -> None:
    """Names and formulas stand in one piece, however many rules there are."""
    output = run("look", *EVERY_RULE, "--d-k", "8192", *SMALL).output
    for name, rule in rootdk.scaling.rules().items():
        # What everybody knows stands by its formula, the others by a name that is explained above.
        known = rule_label(name) != name or name == "none"
        assert known or f"{name} = {rule.formula}" in output
        assert re.search(rf"^ *8192 {re.escape(rule_label(name))} +[\d.e+-]+ ", output, re.MULTILINE)


def test_json_of_the_first_look() -> None:
    result = run("look", "--json", "--seed", "3", *SMALL)
    assert result.exit_code == 0, result.output
    report = json.loads(result.output)
    assert set(report) == {"seed", "looks", "meaning"}
    assert report["seed"] == 3
    assert [set(look) for look in report["looks"]] == [set(Look.__dataclass_fields__)] * 6
    assert {(look["keys"], look["rows"]) for look in report["looks"]} == {(128, 64)}


def test_numbers_agree_with_theory() -> None:
    """Scores of unit-variance q and k have variance d_k; 1/sqrt(d_k) makes it 1, 1/d_k makes it 1/d_k."""
    by_rule = {seen.rule: seen for seen in look([256], ["none", "sqrt", "dk"], keys=1024, rows=512, seed=0)}
    # The mean of |q|^2 over 512 rows has a relative standard error of sqrt(2/256/512) = 0.4 %, the row variances over
    # 1024 shared keys add about as much: 2.5 % is four to five of them.
    for rule, expected in (("none", 256.0), ("sqrt", 1.0), ("dk", 1 / 256)):
        assert by_rule[rule].score_variance == pytest.approx(expected, rel=0.025)
    assert by_rule["none"].saturated > 0.3
    assert by_rule["sqrt"].saturated == by_rule["dk"].saturated == 0
    # The mean, as in every table. A trace lies between 0 and 1, so that of 512 rows has an error of at most 0.022.
    expected_trace = rootdk.predict(256, 1024, "none").mean_jacobian_trace[0]
    assert by_rule["none"].jacobian_trace == pytest.approx(expected_trace, abs=4 * 0.022)
    assert by_rule["sqrt"].jacobian_trace > 0.99
    assert by_rule["dk"].entropy_ratio > 0.999 > by_rule["sqrt"].entropy_ratio > by_rule["none"].entropy_ratio


def test_one_d_k_does_not_depend_on_the_others() -> None:
    assert look([16, 64], ["sqrt"], 64, 32, seed=1)[1] == look([64], ["sqrt"], 64, 32, seed=1)[0]
    assert look([64], ["sqrt"], 64, 32, seed=1) != look([64], ["sqrt"], 64, 32, seed=2)


def made_up(rule: str = "x", d_k: int = 64, **changes: float) -> Look:
    facts = {
        "score_variance": 1.0,
        "entropy_ratio": 0.9,
        "effective_keys": 400.0,
        "saturated": 0.0,
        "jacobian_trace": 0.99,
    }
    return Look(d_k=d_k, rule=rule, keys=1024, rows=10, **(facts | changes))


def test_meaning_follows_the_numbers_and_not_the_name() -> None:
    start = "Where the weight goes at d_k = 64:"
    assert meaning([made_up("none")]) == f"{start} 400.0 keys share it (none)."
    assert meaning([made_up("none", entropy_ratio=0.995)]) == f"{start} all keys share it nearly equally (none)."
    frozen = made_up("sqrt", entropy_ratio=0.03, saturated=0.62, effective_keys=1.02)
    assert meaning([frozen]) == f"{start} one key has over 99 % of it in 62.0% of rows (1/sqrt(d_k))."
    sharp = made_up("sqrt", entropy_ratio=0.2, saturated=0.1, effective_keys=1.84)
    assert meaning([sharp]) == f"{start} only 1.8 keys share it (1/sqrt(d_k))."


def test_meaning_is_about_the_largest_d_k_and_names_each_rule_once() -> None:
    looks = [made_up("a", d_k=512), made_up("a", d_k=512), made_up("b", d_k=64), made_up("c", 512, effective_keys=2.5)]
    assert meaning(looks) == "Where the weight goes at d_k = 512: 2.5-400.0 keys share it (a, c)."


def test_meaning_fits_three_lines_of_80_columns() -> None:
    """Every named rule at once, with numbers as long as the largest options make them."""
    frozen = {"entropy_ratio": 0.01, "saturated": 0.886, "effective_keys": 1.0}
    changes: dict[str, dict[str, float]] = {
        "none": frozen,
        "sqrt": {"effective_keys": 101234.5},
        "dk": {"entropy_ratio": 1.0},
        "t5": frozen,
        "entropy_invariant": {"effective_keys": 22345.6},
        "ssmax": {"effective_keys": 22345.6},
        "llama4": {"effective_keys": 99999.9},
    }
    assert changes.keys() == rootdk.scaling.rules().keys()
    sentence = meaning([made_up(rule, 8192, **facts) for rule, facts in changes.items()])
    assert len(textwrap.wrap(sentence, 80)) <= 3


def test_meaning_repeats_the_digits_of_the_table() -> None:
    output = run("look").output
    sentence, _, table = output.partition("\n\n")
    assert output.startswith("Where the weight goes at d_k = 512: "), "the answer comes first"
    numbers = re.findall(r"\d+\.\d+%?", sentence)
    assert len(numbers) >= 2
    assert set(numbers) <= set(table.split())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["look", "--keys", "1"], "--keys"),
        (["look", "--keys", "many"], "--keys"),
        (["look", "--d-k", "0"], "--d-k"),
        (["look", "--rows", "-5"], "--rows"),
        (["look", "--seed", "-1"], "--seed"),
        (["look", "--rule", "cube"], "'--rule': must be one of the names 'none', 'sqrt', "),
        (["--keys", "9", "info"], "--keys belongs to rootdk without a command, not to 'info'"),
        (["launch"], "No such command"),
        (["explor"], "No such command 'explor'. Did you mean 'explore'?"),
        (["train_study"], "Did you mean 'train-study'?"),
    ],
)
def test_bad_input_is_exit_code_2_and_says_what(arguments: list[str], message: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert message in result.output
    assert "Traceback" not in result.output


COMMANDS = [
    [],
    ["--json"],
    ["look"],
    ["look", "--json"],
    ["info"],
    ["info", "--json"],
]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
@pytest.mark.parametrize("trouble", ["threads", "kernel"])
def test_trouble_with_the_kernel_is_one_line_and_exit_code_1(
    monkeypatch: pytest.MonkeyPatch, command: list[str], trouble: str
) -> None:
    if trouble == "threads":
        monkeypatch.setenv("ROOTDK_NUM_THREADS", "many")
    else:
        monkeypatch.setitem(sys.modules, "rootdk._kernel", None)
    backends.kernel.cache_clear()
    try:
        result = run(*command)
    finally:
        backends.kernel.cache_clear()
    assert result.exit_code == 1
    expected = "Error: ROOTDK_NUM_THREADS: must be" if trouble == "threads" else "Error: rootdk._kernel: the compiled"
    assert result.output.startswith(expected)
    assert result.output.count("\n") == 1


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
        command = [str(Path(sys.executable).with_name("rootdk"))]
    finished = subprocess.run([*command, "--version"], capture_output=True, text=True, check=True)
    assert finished.stdout.strip() == f"rootdk {rootdk.__version__}"


def test_every_file_of_commands_is_a_command_of_its_name() -> None:
    """A file that nobody lists is a command that nobody finds."""
    import pkgutil

    import click

    from rootdk import cli

    shared = {"lifetime", "main_job", "options"}
    files = {module.name for module in pkgutil.iter_modules(cli.__path__)} - shared
    assert files == {name.replace("-", "_") for name in cli.NAMES}
    for name in cli.NAMES:
        command = main.get_command(click.Context(main), name)
        assert command is not None
        assert command.name == name
    assert run("no-such-command").exit_code == 2


def test_a_command_loads_no_other_command() -> None:
    code = "import sys\nfrom rootdk.cli import main\nmain(['info', '--json'], standalone_mode=False)\n"
    code += "print(*sorted(name for name in sys.modules if name.startswith('rootdk.cli.')), file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.split() == ["rootdk.cli.info", "rootdk.cli.lifetime", "rootdk.cli.options"]


@pytest.mark.slow
def test_a_plan_is_held_against_runs_here() -> None:
    sizes = ["--tokens", "4096", "--ranks", "2", "--flops", "1e11", "--bandwidth", "1e9"]
    result = CliRunner().invoke(main, ["plan", *sizes, "--validate", "--validate-tokens", "512", "--json"])
    assert result.exit_code == 0, result.output
    printed = json.loads(result.output)["validation"]
    assert printed["tokens"] == 512
    assert [(row["ranks"], row["pass"]) for row in printed["rows"]] == [
        (ranks, direction) for ranks in (1, 2, 4) for direction in ("forward", "backward")
    ]
    for row in printed["rows"]:
        assert row["error"] == pytest.approx(row["predicted"] / row["measured"] - 1)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_works_as_documented(shell: str) -> None:
    guide = (Path(__file__).parents[2] / "docs" / "guide.md").read_text("utf-8")
    assert f"_ROOTDK_COMPLETE={shell}_source rootdk" in guide
    result = CliRunner().invoke(main, [], env={"_ROOTDK_COMPLETE": f"{shell}_source"}, prog_name="rootdk")
    assert "_ROOTDK_COMPLETE" in result.output
    words = {"COMP_WORDS": "rootdk exp", "COMP_CWORD": "1" if shell != "fish" else "exp"}
    result = CliRunner().invoke(main, [], env={"_ROOTDK_COMPLETE": f"{shell}_complete", **words}, prog_name="rootdk")
    assert "explore" in result.output
    assert "audit" not in result.output
