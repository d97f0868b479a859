"""Processes that commands start: none of them runs code from the folder in which the user stands."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rootdk import processes

# What Python and the package import, early and late, in whichever process.
MODULES = (
    "collections", "ctypes", "importlib", "json", "multiprocessing", "numpy", "pickle", "random", "rootdk", "scipy",
    "selectors", "signal", "socket", "struct", "subprocess", "tempfile", "threading", "torch",
)  # fmt: skip
# As pip writes it: run as a file, it does not look where the user stands.
SCRIPT = "import sys\nfrom rootdk.cli import main\n{more}if __name__ == '__main__':\n    sys.exit(main())\n"
# One ring is enough: every rank imports torch, which takes longer than all that it does.
ONE_RING = "from rootdk.distributed import cost\ncost.RANKS = (2,)\n"


@pytest.fixture
def script(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    path = tmp_path_factory.mktemp("bin") / "rootdk"
    path.write_text(SCRIPT.format(more=getattr(request, "param", "")))
    return path


@pytest.fixture
def trap(tmp_path: Path) -> Path:
    """A folder whose modules leave a note when they are imported."""
    for name in MODULES:
        (tmp_path / f"{name}.py").write_text(
            f"import os\nos.close(os.open({str(tmp_path / name)!r} + '-ran', os.O_CREAT))\nraise SystemExit(99)\n"
        )
    return tmp_path


def notes(trap: Path) -> list[str]:
    return sorted(file.name for file in trap.glob("*-ran"))


def run(script: Path, trap: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, script, *arguments]
    return subprocess.run(command, cwd=trap, capture_output=True, text=True, check=False)


def test_the_trap_works(trap: Path) -> None:
    for start in (["-m", "rootdk", "info"], ["-c", "import numpy"]):
        subprocess.run([sys.executable, *start], cwd=trap, capture_output=True, check=False)
    assert notes(trap)


SIZES = ("--tokens", "64", "--ranks", "2", "--flops", "1e9", "--bandwidth", "1e9", "--validate-tokens", "16")


@pytest.mark.parametrize("script", [ONE_RING], indirect=True, ids=["one ring"])
def test_ranks_run_nothing_from_the_current_folder(script: Path, trap: Path) -> None:
    done = run(script, trap, "plan", *SIZES, "--validate", "--json")
    assert done.returncode == 0, done.stderr
    assert [row["ranks"] for row in json.loads(done.stdout)["validation"]["rows"]] == [2, 2]
    assert notes(trap) == []


@pytest.mark.parametrize("engine", ["local", "ray"])
def test_runs_run_nothing_from_the_current_folder(script: Path, trap: Path, engine: str) -> None:
    from rootdk.lab.training import RunSpec

    spec = RunSpec(task="recall", rule="sqrt", d_k=8, steps=2, learning_rate=1e-3)
    (trap / "spec.json").write_text(json.dumps([spec.to_dict()]))
    asked = ("--spec", "spec.json", "--runs", "here", "--workers", "1", "--engine", engine)
    done = run(script, trap, "train-study", *asked)
    assert done.returncode == 0, done.stderr
    assert len(list((trap / "here").glob("*.json"))) == 1
    assert notes(trap) == []


def test_a_child_finds_what_its_parent_finds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Isolated mode alone would drop PYTHONPATH."""
    (tmp_path / "packages").mkdir()
    (tmp_path / "packages" / "far_away.py").write_text("def write(to, text):\n    open(to, 'w').write(text)\n")
    monkeypatch.syspath_prepend(tmp_path / "packages")
    with processes.started("far_away:write", [[str(tmp_path / "note"), "found"]]) as [child]:
        assert child.wait(60) == 0
    assert (tmp_path / "note").read_text() == "found"


def test_a_child_that_still_runs_is_ended() -> None:
    with processes.started("signal:pause", [[], []]) as waiting:
        pass
    assert [child.returncode for child in waiting] == [-signal.SIGKILL] * 2


def test_the_current_folder_may_be_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with processes.started("os:getpid", [[]]) as [child]:
        assert child.wait(60) == 0
    with processes.standing_elsewhere():
        assert Path.cwd() == Path(sys.prefix)
    with pytest.raises(FileNotFoundError):
        Path.cwd()
