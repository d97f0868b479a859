"""A rule of one's own, a number or a rule with parameters: in the commands, the study, the page and a training run."""

import csv
import io
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from explorer_views import compare

import rootdk
from rootdk import ArgumentError, ScaleRule, scaling
from rootdk.cli import main
from rootdk.lab.checks import EXPERIMENTS, Cache, run
from rootdk.lab.checks.sampler import factor_of
from rootdk.lab.explorer.chapters import CHAPTERS
from rootdk.lab.explorer.shared import RULES, with_rules
from rootdk.lab.explorer.values import read_values
from rootdk.lab.training import RunSpec
from rootdk.lab.training.engine import LocalEngine
from rootdk.lab.training.store import Store
from rootdk.lab.training.sweep import sweep

MODULE = """
from rootdk.scaling import ScaleRule

mine = ScaleRule("mine", "ln n/d_k", lambda d_k, keys, position: keys**0.1 / d_k, varies=frozenset({"keys"}))
"""
TEXTS = ("own_rules:mine", "0.2", "mup(64)", "ssmax", "qwen_log_n(512)")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder, with a module that has a rule."""
    (tmp_path / "own_rules.py").write_text(MODULE, "utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield tmp_path
    sys.modules.pop("own_rules", None)
    if "mine" in scaling.rules():
        scaling.unregister("mine")


def invoke(*arguments: str, code: int = 0) -> Result:
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == code, result.output
    return result


def rules_of(*texts: str) -> list[str]:
    return [argument for text in texts for argument in ("--rule", text)]


@pytest.mark.skipif(sys.platform == "win32", reason="the current folder of a process cannot be removed there")
def test_in_a_folder_that_was_removed_a_module_is_looked_for_where_it_still_can_be(folder: Path) -> None:
    removed = folder / "removed"
    removed.mkdir()
    os.chdir(removed)
    removed.rmdir()
    try:
        assert "own_rules_of_nobody" in invoke("look", "--rule", "own_rules_of_nobody:mine", code=2).output
        assert "cannot write to new" in invoke("figures", "new", "--size", "quick", code=1).output
    finally:
        os.chdir(folder)


def test_look_and_predict_take_every_kind_of_rule(folder: Path) -> None:
    looks = json.loads(invoke("look", "--d-k", "16", "--rows", "64", "--json", *rules_of(*TEXTS)).output)["looks"]
    assert [look["rule"] for look in looks] == ["mine", "0.2", "mup(64)", "ssmax", "qwen_log_n(512)"]
    for text, factor in (("own_rules:mine", 1024**0.1 / 16), ("0.2", 0.2), ("mup(64)", 8 / 16)):
        plain = json.loads(invoke("predict", "--d-k", "16", "--keys", "1024", "--rule", text, "--json").output)
        assert plain["scale"] == pytest.approx(factor, rel=1e-15)


@pytest.mark.parametrize(
    "lines",
    ["mine = register(ScaleRule('mine', '2/d_k', lambda d_k, keys, position: 2 / d_k))",
     "mine = ScaleRule('mine', '2/d_k', lambda d_k, keys, position: 2 / d_k)\nregister(mine)"],
)  # fmt: skip
def test_a_module_may_register_its_rule_itself(folder: Path, lines: str) -> None:
    (folder / "own_rules.py").write_text(f"from rootdk.scaling import ScaleRule, register\n{lines}\n", "utf-8")
    for _ in range(2):
        invoke("look", "--rule", "own_rules:mine", "--d-k", "8", "--keys", "16", "--rows", "4")
    rule = scaling.rule("mine")
    assert rule.factor(8, 16, 15) == 0.25
    # Another process imports the module, which registers the rule again.
    code = (
        "import pickle, sys; from rootdk import scaling\n"
        "sys.path.append('.'); rule = scaling.register(pickle.load(sys.stdin.buffer)); print(rule.factor(8, 16, 15))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], input=pickle.dumps(rule), capture_output=True, check=True, cwd=folder
    )
    assert ran.stdout.strip() == b"0.25"
    with pytest.raises(ArgumentError, match="must have a name that is free"):
        scaling.register(ScaleRule("mine", "3/d_k", lambda d_k, keys, position: 3 / d_k))


def test_predict_over_several_d_k_labels_its_rows(folder: Path) -> None:
    lines = invoke("predict", "--d-k", "64", "--d-k", "512", "--keys", "1024", "--rule", "none").output.splitlines()
    rows = [line.split() for line in lines if line.endswith("frozen")]
    theory = rootdk.predict([64, 512], 1024, "none")
    assert [row[0] for row in rows] == ["64", "512"]
    assert [row[5] for row in rows] == [f"{100 * share:.1f}%" for share in theory.saturated]
    assert max(map(len, lines)) <= 80


def test_the_study_takes_it_and_keeps_no_result_of_another_rule_of_that_name(folder: Path) -> None:
    spec = EXPERIMENTS["rules"].spec
    small = {"d_k": (16,), "curve": (16,), "computed": (16,), "keys": 32, "groups": 2, "rows": 2}
    cache = Cache(folder / "cache")
    factors = (0.1, 0.3)
    for factor in factors:
        scaling.register(ScaleRule("mine", "", lambda d_k, keys, position, factor=factor: factor))
        try:
            result = run(spec(rules=("mine", "mup(64)"), **small), cache=cache)
        finally:
            scaling.unregister("mine")
        predicted = [comparison.predicted for comparison in result.select("score variance", rule="mine")]
        assert predicted == pytest.approx([16 * factor**2 * 31 / 32])
    assert len(list((folder / "cache").iterdir())) == 2


@pytest.mark.parametrize(
    ("factor", "came"),
    [
        (lambda d_k, keys, position: {64: 1.0}[d_k], "KeyError: 16"),
        (lambda d_k, keys, position: float("nan"), "nan"),
        (lambda d_k, keys, position: "wide", "ValueError: could not convert string to float: 'wide'"),
    ],
)
def test_what_a_rule_cannot_do_is_said_before_anything_runs(factor: object, came: str) -> None:
    scaling.register(ScaleRule("mine", "", factor))
    try:
        with pytest.raises(ArgumentError) as caught:
            EXPERIMENTS["rules"].spec(d_k=(64, 16), rules=("mine",))
    finally:
        scaling.unregister("mine")
    d_k = 16 if came.startswith("KeyError") else 64
    assert str(caught.value) == f"rule: 'mine' must give one number at d_k = {d_k} and 1024 keys, got {came}"


def test_a_rule_for_vectors_of_length_1_is_refused() -> None:
    for command in (("look",), ("predict", "--d-k", "8", "--keys", "8"), ("train-study",), ("explore",), ()):
        output = invoke(*command, "--rule", "cosine(1, 100)", code=2).output
        assert "must be a rule for q and k as they are, got cosine(1, 100), which wants them of length 1" in output


def test_the_page_offers_it_and_its_lines_run(folder: Path) -> None:
    sys.path.append(str(folder))
    names = [scaling.load("own_rules:mine").name, "mup(64)"]
    for chapter in with_rules(CHAPTERS, names):
        if RULES.name not in [control.name for control in chapter.controls]:
            continue
        for name in names:
            shown = chapter.compute(read_values(chapter, {"rule": name}))
            compare(shown)
            numbers = {number.id: number.value for number in shown.numbers}
            if chapter.id == "formula":
                assert numbers["factor"] == factor_of(name, 4, 3)
    assert with_rules(CHAPTERS, ["sqrt"]) == CHAPTERS


def test_chapters_that_compare_rules_show_it_beside_the_usual_ones(folder: Path) -> None:
    sys.path.append(str(folder))
    names = [scaling.load("own_rules:mine").name, "mup(64)"]
    shown = {
        chapter.id: chapter.compute(read_values(chapter, {}))
        for chapter in with_rules(CHAPTERS, names)
        if chapter.adds_rules
    }
    assert set(shown) == {"answer", "choosing", "context"}
    for view in shown.values():
        compare(view)
        drawn = {trace["name"]: trace for trace in view.figures[0].plot["data"]}
        assert drawn.keys() >= set(names)
    # 512 components: mup(64) is 8/512, so that its scores have the standard deviation 8/sqrt(512).
    numbers = {number.id: number.value for number in shown["answer"].numbers}
    assert numbers["variance_mup(64)"] == pytest.approx(64 / 512, rel=0.05)
    assert numbers["variance_sqrt"] == pytest.approx(1, rel=0.05)


def test_a_rule_that_fails_inside_the_page_is_an_error_before_it_opens() -> None:
    scaling.register(ScaleRule("mine", "", lambda d_k, keys, position: {64: 1.0}[d_k]))
    try:
        with pytest.raises(ArgumentError, match="rule: 'mine' must give one number at d_k = 4 and 1024 keys"):
            with_rules(CHAPTERS, ["mine"])
    finally:
        scaling.unregister("mine")


def test_a_training_run_takes_it_into_its_process(folder: Path) -> None:
    tiny = {"steps": 2, "d_k": 4, "width": 8, "heads": 1, "layers": 1}
    sys.path.append(str(folder))
    scaling.load("own_rules:mine")
    mine, number = sweep(
        [RunSpec(rule="mine", **tiny), RunSpec(rule=str(24**0.1 / 4), **tiny)], Store(folder / "runs"), LocalEngine(1)
    )
    # Sequences of recall have 24 keys, so that both runs are the same.
    assert mine.last == number.last
    assert not list((folder / "runs").glob("*(*"))
    scaling.unregister("mine")
    scaling.register(ScaleRule("mine", "", lambda d_k, keys, position: 1.0))
    assert Store(folder / "runs").get(RunSpec(rule="mine", **tiny)) is None
    with pytest.raises(ArgumentError, match="rule: 'mine' must go to other processes: make its factor a function"):
        sweep([RunSpec(rule="mine", **tiny)], Store(folder / "runs"), LocalEngine(1))


def test_on_a_cluster_its_code_goes_along(folder: Path) -> None:
    """A worker has no module of the person who asks. Two copies of a rule are one, or a second run would be refused."""
    from rootdk.lab.training.ray_engine import carried

    sys.path.append(str(folder))
    there = [pickle.dumps(carried(scaling.load("own_rules:mine"))) for _ in range(2)]
    program = (
        "import pickle, sys; from rootdk import scaling; one, other = pickle.load(sys.stdin.buffer); "
        "scaling.register(one); scaling.register(other); print(one.factor(16, 9, 8), 'own_rules' in sys.modules)"
    )
    asked = pickle.dumps([pickle.loads(data) for data in there])  # as Ray sends them, from another folder
    done = subprocess.run([sys.executable, "-c", program], input=asked, capture_output=True, cwd="/", check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(9**0.1 / 16).encode(), b"False"]


@pytest.mark.slow
def test_a_run_on_ray_takes_it(folder: Path) -> None:
    program = """
import sys; sys.path.append(".")
from pathlib import Path
from rootdk import scaling
from rootdk.lab.training import RunSpec
from rootdk.lab.training.ray_engine import RayEngine
from rootdk.lab.training.store import Store
from rootdk.lab.training.sweep import sweep
if __name__ == "__main__":
    scaling.load("own_rules:mine")
    tiny = {"steps": 2, "d_k": 4, "width": 8, "heads": 1, "layers": 1}
    specs = [RunSpec(rule="mine", **tiny), RunSpec(rule="mine", seed=1, **tiny), RunSpec(rule=str(24**0.1 / 4), **tiny)]
    runs = sweep(specs, Store(Path("runs")), RayEngine(workers=1))
    print(runs[0].last == runs[2].last, runs[0].last == runs[1].last)
"""
    (folder / "asks.py").write_text(program, "utf-8")
    done = subprocess.run([sys.executable, "asks.py"], capture_output=True, text=True, cwd=folder, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["True", "False"]


def test_a_plan_of_these_rules_alone() -> None:
    from rootdk.lab.training.sweep import plan

    assert {spec.rule for spec in plan("quick", ("text",), ("mup(64)", "0.2"))} == {"mup(64)", "0.2"}


def test_in_a_process_of_its_own_the_module_is_found_in_the_current_folder_last(folder: Path) -> None:
    """The folder is behind everything else: a file there cannot take the place of an installed module."""
    (folder / "difflib.py").write_text("raise SystemExit('the wrong module')\n")
    command = [sys.executable, "-I", "-c", "from rootdk.cli import main; main()"]
    done = subprocess.run([*command, "predict", "--d-k", "16", "--keys", "9", "--rule", "own_rules:mine", "--csv"],
                          capture_output=True, text=True, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr
    row = next(csv.DictReader(io.StringIO(done.stdout)))
    assert (row["rule"], float(row["scale"])) == ("mine", pytest.approx(9**0.1 / 16))
    np.testing.assert_allclose(float(row["predicted.mean_variance"]), 16 * float(row["scale"]) ** 2 * 8 / 9)
