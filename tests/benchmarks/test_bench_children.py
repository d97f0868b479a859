"""The processes of a run: what they import, how they are started, and what becomes of those that die."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks import children
from benchmarks.children import FOLDER, TIMING, Task, command, environment
from benchmarks.command import main
from benchmarks.section import Row
from benchmarks.sections import ring
from rootdk import backends, processes
from rootdk.distributed.cost import run_ranks


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """A folder to stand in, with files that have the names of modules and leave a trace when they are imported."""
    for name in ("numpy", "json", "torch", "rootdk", "rich"):
        trap = f"open({str(tmp_path / 'trace')!r}, 'a').write({name!r})\nraise SystemExit('imported from here')\n"
        (tmp_path / f"{name}.py").write_text(trap)
    return tmp_path


def test_the_trap_works(hostile: Path) -> None:
    """So that the tests below can fail."""
    ended = subprocess.run([sys.executable, "-c", "import numpy"], cwd=hostile, capture_output=True, check=False)
    assert ended.returncode == 1
    assert (hostile / "trace").read_text() == "numpy"


@pytest.mark.parametrize("start", [["{place}/benchmarks"], ["benchmarks"], ["-m", "benchmarks"]], ids=" ".join)
def test_a_run_imports_nothing_from_where_the_user_stands(hostile: Path, start: list[str]) -> None:
    """In the folder above benchmarks/ too, which is where `make bench` stands."""
    place = FOLDER.parent
    if start[-1] == "benchmarks":
        place = hostile
        shutil.copytree(FOLDER, place / "benchmarks", ignore=shutil.ignore_patterns("__pycache__"))
    given = [argument.format(place=place) for argument in start]
    # However it is started, it starts its children in one way: each kind of child once.
    sections = ("import", "memory", "decode") if place != hostile else ("import",)
    options = ["--quick", "--peer", "numpy", "--threads", "1"]
    for name in sections:
        options += ["--what", name]
    ended = subprocess.run([sys.executable, *given, *options], cwd=hostile, capture_output=True, text=True, check=False)
    assert not (hostile / "trace").exists()
    assert ended.returncode == 0, ended.stderr
    assert "import rootdk: " in ended.stdout
    assert ("8x1024x64 float32" in ended.stdout) == ("decode" in sections)


def test_ranks_import_nothing_from_where_the_user_stands(hostile: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(hostile)
    (used,) = run_ranks(1, ring.__name__, {"memory": 64}, package=FOLDER)
    assert used["given"] == 3 * 64 * ring.D * 4
    assert not (hostile / "trace").exists()


def test_a_package_that_is_not_installed_is_found_alone(tmp_path: Path) -> None:
    """What lies beside its folder is not."""
    (tmp_path / "parcel").mkdir()
    (tmp_path / "parcel" / "__init__.py").touch()
    (tmp_path / "parcel" / "inside.py").write_text("def say(*words): print(*words)\n")
    (tmp_path / "beside.py").touch()
    package = tmp_path / "parcel"

    def output(function: str) -> subprocess.CompletedProcess[str]:
        called = processes.command(function, "a", "b c", package=package)
        return subprocess.run(called, cwd=tmp_path, capture_output=True, text=True, check=False)

    assert output("parcel.inside:say").stdout == "a b c\n"
    assert "No module named 'beside'" in output("beside:say").stderr


def test_no_process_imports_from_the_current_folder() -> None:
    for file in FOLDER.rglob("*.py"):
        text = file.read_text("utf-8")
        assert text.count("sys.executable") == text.count('sys.executable, "-I"'), file


def test_the_package_knows_nothing_of_its_benchmarks() -> None:
    import rootdk

    for file in Path(rootdk.__file__).parent.rglob("*.py"):
        text = file.read_text("utf-8")
        assert "import benchmarks" not in text, file
        assert "from benchmarks" not in text, file


def test_the_environment_gives_everyone_the_same_threads() -> None:
    assert {environment(3)[name] for name in ("ROOTDK_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")} == {"3"}


def test_a_peer_that_was_asked_for_and_is_absent_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jax", None)
    monkeypatch.setattr(children, "_narrow_affinity", lambda threads: None)
    with pytest.raises(SystemExit, match="peer jax: not installed"):
        children.measure_all(sections=["memory"], peers=["jax"], threads=1, quick=True)


@pytest.mark.parametrize("option", ["--threads 0", "--peer abacus", "--what sideways"])
def test_bad_input_is_exit_code_2_and_says_what(option: str) -> None:
    result = CliRunner().invoke(main, option.split())
    assert result.exit_code == 2
    assert option.split(maxsplit=1)[0] in result.output
    assert "Traceback" not in result.output


@pytest.mark.parametrize("trouble", ["threads", "kernel"])
def test_trouble_with_the_kernel_is_one_line_and_exit_code_1(monkeypatch: pytest.MonkeyPatch, trouble: str) -> None:
    if trouble == "threads":
        monkeypatch.setenv("ROOTDK_NUM_THREADS", "many")
    else:
        monkeypatch.setitem(sys.modules, "rootdk._kernel", None)
    backends.kernel.cache_clear()
    try:
        result = CliRunner().invoke(main, ["--what", "memory", "--quick"])
    finally:
        backends.kernel.cache_clear()
    assert result.exit_code == 1
    expected = "Error: ROOTDK_NUM_THREADS: must be" if trouble == "threads" else "Error: rootdk._kernel: the compiled"
    assert result.output.startswith(expected)
    assert result.output.count("\n") == 1


def test_the_measuring_process_shows_no_traceback() -> None:
    """It is started after the same check, and may still find another kernel than the command did."""
    options = '{"sections": [], "peers": [], "threads": 1, "quick": true}'
    started = command("benchmarks.children:measuring_process", options, os.devnull)
    environ = os.environ | {"ROOTDK_NUM_THREADS": "many"}
    finished = subprocess.run(started, env=environ, capture_output=True, text=True, check=False)
    assert finished.returncode == 1
    assert finished.stderr == "benchmarks: ROOTDK_NUM_THREADS: must be an int from 1 to 1024, got 'many'\n"


def test_the_help_fits_80_columns() -> None:
    result = CliRunner().invoke(main, ["--help"], env={"COLUMNS": "80"})
    assert result.exit_code == 0
    assert max(map(len, result.output.splitlines())) <= 80


class Scripted:
    """Stands in for the process: dies where the script says, and keeps what it was asked."""

    def __init__(self, *ends: tuple[Row | None, str, str]) -> None:
        self.ends, self.asked = list(ends), []

    def __call__(self, function: str, task: Task, environment: dict[str, str]) -> object:
        self.asked.append((task["without"], environment))
        return self.ends.pop(0)


ROW = {"name": "x", "seconds": {"rootdk": 1}, "left_out": {"numpy": "no"}}


def race_with(script: Scripted, monkeypatch: pytest.MonkeyPatch) -> Row:
    monkeypatch.setattr(children, "_once", script)
    return children.race_alone("half:race", {"name": "x", "kind": "bfloat16"})


def test_who_dies_is_tried_again_with_fewer_instructions(monkeypatch: pytest.MonkeyPatch) -> None:
    script = Scripted((None, "torch", "died with SIGILL"), (dict(ROW), "", ""))
    row = race_with(script, monkeypatch)
    assert script.asked == [([], {}), ([], children.NARROWER)]
    assert row["notes"] == {"torch": "died with SIGILL; timed with ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16"}
    assert "torch" not in row["left_out"]


def test_who_dies_twice_is_left_out_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    dies = (None, "torch", "died with SIGILL")
    script = Scripted(dies, dies, (ROW | {"left_out": {"numpy": "no"}}, "", ""))
    row = race_with(script, monkeypatch)
    assert script.asked[-1] == (["torch"], {})
    assert row["left_out"] == {"numpy": "no", "torch": "died with SIGILL"}
    assert row["notes"] == {}


@pytest.mark.parametrize("who", ["rootdk", TIMING, ""])
def test_a_race_that_rootdk_does_not_survive_is_a_row_without_times(who: str, monkeypatch: pytest.MonkeyPatch) -> None:
    row = race_with(Scripted((None, who, "died with SIGSEGV")), monkeypatch)
    assert row["seconds"] == {}
    assert row["kind"] == "bfloat16"
    assert row["left_out"]["rootdk"].startswith("died with SIGSEGV")


def test_a_death_is_seen_from_outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A real process and a real signal: a module on the path that kills itself while torch is noted."""
    program = (
        "import os, signal\n"
        "def race(task, note):\n"
        "    for name in ('rootdk', 'torch'):\n"
        "        if name not in task['without']:\n"
        "            note(name)\n"
        "            if name == 'torch': os.kill(os.getpid(), signal.SIGILL)\n"
        "    note('the timing')\n"
        "    return {'name': 'x', 'seconds': {'rootdk': 1}, 'left_out': {}}\n"
    )
    (tmp_path / "deadly.py").write_text(program)
    monkeypatch.syspath_prepend(tmp_path)
    row = children.race_alone("deadly:race", {"name": "x"})
    assert row["left_out"] == {"torch": "died with SIGILL"}
    assert row["seconds"] == {"rootdk": 1}
