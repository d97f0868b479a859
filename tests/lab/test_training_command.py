"""`rootdk train-study`: what it prints, writes and keeps, how it says how far it is, and what bad input gets."""

import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import training_stand_in as stand_in
from click.testing import CliRunner, Result
from processes import below, runs
from rich.console import Console
from training_stand_in import noted

from rootdk.cli import main, train_study
from rootdk.cli.lifetime import Bars
from rootdk.cli.train_study import _draw, lines
from rootdk.lab.training import Results, RunSpec
from rootdk.lab.training.engine import Advanced, Failed, Finished, LocalEngine
from rootdk.lab.training.sweep import Tally, cost, plan

SUPPORT = Path(__file__).parents[1] / "support"

SPECS = tuple(
    RunSpec(task=task, rule=rule, d_k=d_k, steps=10, seed=seed, learning_rate=rate)
    for task in ("recall", "digits")
    for rule in ("none", "sqrt")
    for d_k in (8, 64)
    for rate in (1e-3, 1e-2)
    for seed in (0, 1, 2)
)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes").mkdir()
    monkeypatch.setenv("TRAINING_STAND_IN", str(tmp_path / "notes"))
    monkeypatch.setenv("ROOTDK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(train_study, "start_engine", lambda _, workers, __: LocalEngine(workers, stand_in.train))
    write(SPECS)
    return tmp_path


def write(specs: Any, name: str = "spec.json") -> None:
    plain = [spec.to_dict() if isinstance(spec, RunSpec) else spec for spec in specs]
    Path(name).write_text(json.dumps(plain))


def study(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["train-study", *arguments], env={"COLUMNS": "80"})


def test_summary_results_and_what_is_kept(place: Path) -> None:
    result = study("--spec", "spec.json", "--out", "results.json")
    assert result.exit_code == 0, result.output
    assert max(map(len, result.output.splitlines())) <= 80
    assert "; 3 seeds ± 95% interval" in result.output
    assert result.output.endswith("Results: results.json\n")
    results = Results.from_dict(json.loads(Path("results.json").read_text()))
    assert results.runs == stand_in.runs(SPECS)
    assert set(results.about) >= {"rootdk", "torch", "numpy", "python", "size", "cpus", "kernel", "seconds"}
    assert results.about["size"] == "spec.json"
    assert len(list((place / "cache" / "training").iterdir())) == len(SPECS)
    steps = [noted(spec, 1) for spec in SPECS]
    again = study("--spec", "spec.json", "--out", "again.json")
    assert again.output == result.output.replace("results.json", "again.json")
    assert [noted(spec, 1) for spec in SPECS] == steps


@pytest.mark.parametrize(
    ("arguments", "size", "tasks"),
    [((), "default", ("recall", "text", "digits")), (("--quick", "--task", "digits"), "quick", ("digits",)),
     (("--task", "text", "--task", "recall"), "default", ("text", "recall"))],
)  # fmt: skip
def test_without_a_spec_the_plan_is_run(
    place: Path, monkeypatch: pytest.MonkeyPatch, arguments: Any, size: str, tasks: Any
) -> None:
    made: list[RunSpec] = []
    monkeypatch.setattr(
        "rootdk.lab.training.sweep.sweep", lambda specs, *_: made.extend(specs) or stand_in.runs(specs[:3])
    )
    result = study(*arguments, "--json")
    assert result.exit_code == 0, result.output
    results = Results.from_dict(json.loads(result.stdout))
    assert tuple(made) == plan(size, tasks)
    assert results.runs == stand_in.runs(made[:3])
    assert (results.about["size"], results.about["tasks"]) == (size, " ".join(tasks) if arguments else "all")


def test_results_are_a_spec_too(place: Path) -> None:
    study("--spec", "spec.json", "--out", "results.json", "--runs", "here")
    result = study("--spec", "results.json", "--json", "--runs", "here")
    assert result.exit_code == 0, result.output
    assert Results.from_dict(json.loads(result.stdout)).runs == stand_in.runs(SPECS)


def test_json_alone_goes_to_standard_output(place: Path) -> None:
    write(SPECS[:3])
    result = study("--spec", "spec.json", "--json", "--out", "results.json")
    assert result.exit_code == 0, result.output
    printed, written = json.loads(result.stdout), json.loads(Path("results.json").read_text())
    assert printed == written
    assert result.stderr.splitlines()[-1] == "Results: results.json"


def test_fresh_runs_again_what_was_asked_for_and_nothing_else(place: Path) -> None:
    study("--spec", "spec.json")
    write(SPECS[:1])
    assert study("--spec", "spec.json", "--fresh").exit_code == 0
    # Rates share a file of notes: ten steps for each of two rates, and ten more of the first.
    assert len(noted(SPECS[0], 1)) == len(noted(SPECS[1], 1)) + 10


def test_a_damaged_run_is_said_and_run_again(place: Path) -> None:
    write(SPECS[:2])
    study("--spec", "spec.json", "--runs", "here")
    next(Path("here").iterdir()).write_text("{")
    result = study("--spec", "spec.json", "--runs", "here")
    assert result.exit_code == 0
    assert "is damaged; running again" in result.stderr
    assert "damaged" not in study("--spec", "spec.json", "--runs", "here").output


# The summary.


def test_rows_are_at_the_best_rate_and_count_what_diverged() -> None:
    specs = [RunSpec(rule="none", d_k=64, steps=100, seed=seed, learning_rate=rate)
             for rate in (1e-3, 1e-2) for seed in (0, 1, 2)]  # fmt: skip
    runs = stand_in.runs(specs)
    assert [run.diverged for run in runs] == [False] * 3 + [True] * 3
    row = list(lines(Results(runs)))[-1]
    losses = [run.last.loss for run in runs[:3]]
    assert row.split()[:3] == ["none", "64", f"{sum(losses) / 3:.3f}"]
    assert row.split()[-4:] == ["<0.001", "3", "of", "6"]  # the lowest that was tried: a lower one may be better


def test_a_setting_that_always_diverges_says_so() -> None:
    runs = stand_in.runs([RunSpec(rule="none", d_k=64, steps=100, seed=seed, learning_rate=0.1) for seed in (0, 1)])
    assert "diverged" in list(lines(Results(runs)))[-1]
    assert "2 of 2" in list(lines(Results(runs)))[-1]


def test_what_sets_rows_apart_is_named_and_the_longest_row_fits() -> None:
    usual = RunSpec(rule="entropy_invariant", d_k=1024, steps=20)
    runs = stand_in.runs([usual, replace(usual, optimizer="sgd", qk_rate=32.0)])
    rows = list(lines(Results(runs)))
    assert [row for row in rows if row.startswith("recall")] == ["recall, 20 steps, adam", "recall, 20 steps, sgd"]
    assert rows[-2] == "entropy_invariant, qk_rate √d_k"
    assert max(map(len, rows)) <= 80


def test_one_learning_rate_is_never_called_the_best() -> None:
    """--quick has one of each: neither summary nor page may say that it is the best, or what does not follow."""
    from rootdk.lab.report import render_training

    quick = Results(stand_in.runs(plan("quick")))
    text = " ".join(" ".join(lines(quick)).split())
    assert "One learning rate each: whether another would be better, these runs do not say" in text
    assert "best" not in text
    page = render_training(quick)
    assert "est learning rate" not in page
    assert "a bad one" not in page
    several = " ".join(lines(Results(stand_in.runs(SPECS))))
    assert "of those tried, the best by the validation set" in several


def test_runs_that_end_when_they_have_learned_show_their_steps() -> None:
    specs = [RunSpec(rule="sqrt", d_k=8, steps=1000, stop="learned", seed=seed, learning_rate=rate)
             for rate in (1e-4, 1e-3) for seed in (0, 1, 2)]  # fmt: skip
    runs = stand_in.runs(specs)
    for right, steps in ((0.85, "- (0/3)"), (0.95, "1000 (3/3)")):
        early = [tuple(replace(moment, accuracy=0.5) for moment in run.moments[:-1]) for run in runs]
        changed = [replace(run, moments=(*before, replace(run.last, accuracy=right)))
                   for run, before in zip(runs, early, strict=True)]  # fmt: skip
        assert list(lines(Results(tuple(changed))))[-1].endswith(steps)


def test_missing_runs_are_those_that_are_not_shipped(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[RunSpec] = []
    monkeypatch.setattr("rootdk.lab.training.sweep.sweep", lambda specs, *_: made.extend(specs) or stand_in.runs(specs))
    asked = plan("default")
    monkeypatch.setattr("rootdk.lab.training.shipped", lambda: Results.of(stand_in.runs(asked[:-3])))
    assert study("--missing").exit_code == 0
    assert tuple(made) == asked[-3:]
    monkeypatch.setattr("rootdk.lab.training.shipped", lambda: Results.of(stand_in.runs(asked)))
    assert "Nothing is missing" in study("--missing").output


# How far it is.


def test_remaining_time_follows_the_pace() -> None:
    hands = 0.0
    first, second, kept = RunSpec(seed=0, steps=100), RunSpec(seed=1, steps=100), RunSpec(seed=2, steps=100)
    tally = Tally([first, second, kept], lambda: hands)
    tally.count(Finished(stand_in.invented(kept)))
    assert (tally.kept, tally.remaining) == (1, None)
    tally.count(Advanced(first, 1))
    hands = 10.0
    tally.count(Advanced(first, 50))
    # Half of one of two runs took 10 seconds, so there are 30 left: what was kept says nothing about the pace.
    assert tally.remaining == pytest.approx(30.0)
    assert tally.line == "1 of 3 runs, 1 of them kept before, 0:10 gone, about 0:30 left"
    tally.count(Failed(first, "why"))
    hands = 20.0
    tally.count(Advanced(second, 51))  # goes on from a state
    tally.count(Finished(stand_in.invented(second)))
    assert tally.remaining == 0.0
    assert "1 failed" in tally.line


def test_bars_show_tasks_and_what_is_under_way() -> None:
    tally = Tally(SPECS)
    tally.count(Finished(stand_in.invented(SPECS[0])))
    tally.count(Advanced(SPECS[1], 5))
    text = drawn(tally)
    assert "1 of 48 runs" in text
    assert "recall 1/24" in text
    assert "digits 0/24" in text
    assert "recall none d_k=8 rate=0.001 seed=1" in text
    assert max(map(len, text.splitlines())) <= 80
    tally.count(Finished(stand_in.invented(SPECS[1])))
    assert "seed=1" not in drawn(tally)


def drawn(tally: Tally) -> str:
    """The bars as they stand at the end, without what moves the cursor."""
    console = Console(file=io.StringIO(), width=80, force_terminal=True, color_system=None)
    with Bars(console) as bars:
        _draw(tally, bars)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text).replace("\r", "\n")


def test_cost_orders_as_time_does() -> None:
    spec = RunSpec()
    assert cost(replace(spec, rule="additive")) > cost(spec) > cost(replace(spec, task="digits"))
    assert cost(replace(spec, steps=600)) > cost(spec)


# Bad input, and sweeps that fail.


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "spec: spec.json is not JSON"),
        ("[]", 'must hold a list of runs, alone or under "runs", got an empty list'),
        ("3", "must hold a list of runs"),
        ('{"run": []}', 'alone or under "runs", got dict without it'),
        ('[{"rule": "sqrt"}, {"rule": "cube"}]', "spec: entry 1 of spec.json: rule: must be one of"),
        ('[{"d_k": 0}]', "spec: entry 0 of spec.json: d_k: must be at least 1, got 0"),
        ('[{"d_k": "8"}]', "entry 0 of spec.json: d_k: must be a whole number, got '8'"),
        ('{"runs": [{"learning_rat": 1}]}', "entry 0 of spec.json: spec: must be one of"),
        ("[7]", "entry 0 of spec.json: spec: must be an object with the fields of RunSpec, got int"),
        ('[{"seed": NaN}]', "entry 0 of spec.json: seed: must be a whole number"),
        ('[{"task": []}]', "entry 0 of spec.json: task: must be one of"),
        ('[{"rule": 3}]', "entry 0 of spec.json: rule"),
    ],
)
def test_a_bad_spec_file(place: Path, content: str, message: str) -> None:
    Path("spec.json").write_text(content)
    result = study("--spec", "spec.json")
    assert result.exit_code == 1
    assert message in result.output
    assert result.output.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--spec", "no.json"), "'--spec': File 'no.json' does not exist"),
        (("--spec", "spec.json", "--quick"), "--spec and --quick exclude each other"),
        (("--spec", "spec.json", "--task", "text"), "--spec and --task exclude each other"),
        (("--spec", "spec.json", "--missing"), "--spec and --missing exclude each other"),
        (("--full",), "No such option '--full'"),
        (("--task", "chess"), "'--task': 'chess' is not one of 'recall', 'text', 'digits'"),
        (("--workers", "0"), "'--workers': 0 is not in the range"),
        (("--engine", "slurm"), "'--engine': 'slurm' is not one of"),
        (("--address", "here:1"), "--address needs --engine ray"),
        (("--spec", "spec.json", "--out", "no/such/a.json"), "'--out': folder no/such does not exist"),
        (("--spec", "spec.json", "--report", "no/such/a.html"), "'--report': folder no/such does not exist"),
    ],
)
def test_bad_options(place: Path, arguments: Any, message: str) -> None:
    result = study(*arguments)
    assert result.exit_code == 2, result.output
    assert message in result.output
    assert not (place / "cache").exists()


@pytest.mark.parametrize(("module", "package"), [("torch", "torch"), ("sklearn", "scikit-learn")])
def test_what_is_missing_is_named_before_anything_runs(
    place: Path, monkeypatch: pytest.MonkeyPatch, module: str, package: str
) -> None:
    from importlib.util import find_spec

    from rootdk.lab.training import engine

    monkeypatch.setattr(engine, "find_spec", lambda name: None if name == module else find_spec(name))
    result = study("--spec", "spec.json")
    assert result.exit_code == 1
    assert f"needs {package}, which is not installed; get it with: pip install 'rootdk[train]'" in result.output
    assert result.output.count("\n") == 1
    assert not (place / "cache").exists()
    if module == "sklearn":
        write([spec for spec in SPECS if spec.task == "recall"][:1])
        assert study("--spec", "spec.json").exit_code == 0


def test_failures_are_listed_and_the_rest_is_kept(place: Path) -> None:
    bad = replace(SPECS[0], seed=stand_in.RAISES)
    write([bad, *SPECS[:3]])
    result = study("--spec", "spec.json", "--runs", "here", "--out", "results.json")
    assert result.exit_code == 1
    assert "Error: 1 run failed; the 3 that are finished are kept and will not be run again." in result.output
    assert "seed=101: RootdkError: seed: nobody likes this one" in result.output
    assert "Traceback" not in result.output
    assert not Path("results.json").exists()
    assert len(list(Path("here").glob("*.json"))) == 3


def test_a_folder_that_cannot_be(place: Path) -> None:
    Path("taken").write_text("a file")
    result = study("--spec", "spec.json", "--runs", "taken")
    assert result.exit_code == 1
    assert "Error: runs: cannot write to taken: File exists" in result.output
    assert [noted(spec, 1) for spec in SPECS] == [[]] * len(SPECS)


def test_results_that_cannot_be_written_leave_the_runs(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("rootdk.cli.options.write_atomically", full)
    write(SPECS[:2])
    result = study("--spec", "spec.json", "--runs", "here", "--out", "results.json")
    assert result.exit_code == 1
    assert "Error: --out: cannot write results.json: No space left on device" in result.output
    assert len(list(Path("here").iterdir())) == 2


PROGRAM = f"""
import ctypes, sys
from pathlib import Path
sys.path.insert(0, {str(SUPPORT)!r})
import training_stand_in as stand_in
from rootdk.cli import main, train_study
from rootdk.lab.training.engine import LocalEngine
def stuck(tasks):
    # As in a call of C++ that takes long: a lock that is taken twice.
    for event in LocalEngine(1, stand_in.train)(tasks):
        yield event
        Path("stuck").touch()
        lock, library = ctypes.create_string_buffer(64), ctypes.CDLL(None)
        library.pthread_mutex_lock(lock)
        library.pthread_mutex_lock(lock)
if __name__ == "__main__":
    stand_in.hears_ctrl_c()
    local = lambda _, workers, __: LocalEngine(workers, stand_in.train)
    train_study.start_engine = (lambda *_: stuck) if "stuck" in sys.argv else local
    main(["train-study", "--spec", "spec.json", "--runs", "here"])
"""


def started(*arguments: str) -> "subprocess.Popen[str]":
    """The command in a process of its own, and in a group of its own, as a terminal would start it."""
    Path("program.py").write_text(PROGRAM)
    return subprocess.Popen(
        [sys.executable, "program.py", *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip


def test_interrupted_it_says_what_is_kept_and_leaves_nothing_running(place: Path) -> None:
    quick, long = replace(SPECS[0], d_k=16), replace(SPECS[0], seed=stand_in.SLOW, steps=400)
    write([quick, long])
    with started() as process:
        for _ in _patience():
            if list(Path("here").glob("recall-none-16-*.json")) and noted(long, 1):
                break
        children = below(process.pid)
        assert set(noted(long, 0)) <= set(children)
        os.killpg(process.pid, signal.SIGINT)
        out, said = process.communicate(timeout=20)
        assert (process.returncode, out) == (130, "")
        for _ in _patience():
            if not any(map(runs, children)):
                break
    assert said == "interrupted; finished runs are kept in here, and the same command continues from there\n"
    assert len(list(Path("here").glob("*.json"))) == 1
    assert not list(Path("here").glob(".lock"))


@pytest.mark.parametrize("moment", ["at once", "while it starts"])
def test_interrupted_before_the_first_step(place: Path, moment: str) -> None:
    write([replace(SPECS[0], seed=stand_in.SLOW, steps=4000)])
    with started() as process:
        for _ in _patience():
            if Path("here").exists() and (moment == "at once" or below(process.pid)):
                break
        children = below(process.pid)
        os.killpg(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=20)
        assert process.returncode == 130, said
        for _ in _patience():
            if not any(map(runs, children)):
                break
    assert said.count("\n") == 1
    assert said.startswith("interrupted; ")


def test_interrupted_where_python_does_not_hear_it(place: Path) -> None:
    long = replace(SPECS[0], seed=stand_in.SLOW, steps=4000)
    write([long])
    with started("stuck") as process:
        for _ in _patience():
            if Path("stuck").exists():
                break
        children = below(process.pid)
        assert set(noted(long, 0)) <= set(children)
        os.killpg(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=20)
        assert process.returncode == 130, said
        for _ in _patience():
            if not any(map(runs, children)):
                break
    assert said == "interrupted; finished runs are kept in here, and the same command continues from there\n"


# Two on one folder.


def test_a_second_study_on_the_folder_is_refused_and_does_no_harm(place: Path) -> None:
    long = replace(SPECS[0], seed=stand_in.SLOW, steps=60)
    write([long])
    with started() as first:
        for _ in _patience():
            if noted(long, 1):
                break
        result = study("--spec", "spec.json", "--runs", "here", "--fresh")
        steps = len(noted(long, 1))
        _, said = first.communicate(timeout=60)
    assert (first.returncode, said) == (0, "")
    assert result.exit_code == 1
    assert result.output == (
        f"Error: runs: here is in use by another training study, process {first.pid}; wait until it has ended, "
        "or keep these runs in another folder\n"
    )
    assert steps < 60
    assert noted(long, 1) == list(range(1, 61))
    assert study("--spec", "spec.json", "--runs", "here").exit_code == 0
    assert noted(long, 1) == list(range(1, 61))
    assert [file.suffix for file in Path("here").iterdir()] == [".json"]


def test_the_lock_of_a_killed_study_is_gone_with_it(place: Path) -> None:
    long = replace(SPECS[0], seed=stand_in.SLOW, steps=60)
    write([long])
    with started() as first:
        for _ in _patience():
            if noted(long, 1):
                break
        first.kill()
        first.wait(20)
        result = study("--spec", "spec.json", "--runs", "here")
    assert result.exit_code == 0, result.output
    assert sorted(set(noted(long, 1))) == list(range(1, 61))
    assert [file.suffix for file in Path("here").iterdir()] == [".json"]


def _patience() -> Iterator[None]:
    for _ in range(400):
        yield
        time.sleep(0.05)
    pytest.fail("it did not happen")
