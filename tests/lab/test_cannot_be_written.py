"""Places that take nothing: a destination is refused before the work; standard output; a home that is not there."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from rootdk import files
from rootdk.cli import main

COMMANDS = {
    "main": ("--quick", "--no-cache", "--out"),
    "audit": ("audit", "--out"),
    "explore": ("explore", "--export"),
    "train-study --out": ("train-study", "--quick", "--out"),
    "train-study --report": ("train-study", "--quick", "--report"),
}


@pytest.fixture
def no_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """What each command would spend its time on is a failure."""

    def worked(*_: object, **__: object) -> None:
        raise AssertionError("it worked before it knew where to write")

    for place in (
        "rootdk.cli.main_job.work",
        "rootdk.cli.audit.audit_of",
        "rootdk.cli.explore.export_to",
        "rootdk.lab.training.sweep.sweep",
    ):
        monkeypatch.setattr(place, worked)


def unwritable(folder: Path) -> dict[str, Path]:
    """Places where nothing can be written, whoever asks: root may write into a folder that is closed to others."""
    (folder / "file").touch()
    (folder / "dangling").symlink_to(folder / "no" / "such")
    (folder / "circle").symlink_to(folder / "circle")
    os.mkfifo(folder / "pipe")
    return {
        "no folder": folder / "no" / "report.html",
        "folder": folder,
        "below a file": folder / "file" / "report.html",
        "dangling link": folder / "dangling",
        "circle of links": folder / "circle",
        "device": Path("/dev/null"),
        "pipe": folder / "pipe",
        "long name": folder / ("n" * 300),
        "system": Path("/proc/report.html"),
    }


@pytest.mark.parametrize("kind", ["no folder", "folder", "below a file", "dangling link", "circle of links", "device",
                                  "pipe", "long name", "system"])  # fmt: skip
@pytest.mark.parametrize("command", COMMANDS)
def test_a_destination_is_tried_before_the_work(tmp_path: Path, no_work: None, command: str, kind: str) -> None:
    path = unwritable(tmp_path)[kind]
    before = sorted(tmp_path.rglob("*"))
    result = CliRunner().invoke(main, [*COMMANDS[command], str(path)])
    assert result.exit_code == 2, result.output
    option = COMMANDS[command][-1]
    assert result.output.splitlines()[-1].startswith(f"Error: Invalid value for '{option}': ")
    assert "Traceback" not in result.output
    assert sorted(tmp_path.rglob("*")) == before


def test_a_name_as_long_as_names_may_be_is_written(tmp_path: Path) -> None:
    path = tmp_path / ("n" * 255)
    files.check_destination(path)
    assert list(tmp_path.iterdir()) == []
    files.write_atomically(path, "whole")
    assert [file.read_text() for file in tmp_path.iterdir()] == ["whole"]


def test_what_cannot_be_written_whole_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "report.html"
    path.write_text("before")

    def fill(_self: Path, _content: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", fill)
    with pytest.raises(OSError, match="No space left"):
        files.write_atomically(path, "after")
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("report.html", "before")]


def test_two_threads_do_not_take_each_others_mask(tmp_path: Path) -> None:
    """The system tells the mask in exchange for another: who asks in between would be told that one, and keep it."""
    import threading

    before = os.umask(0o022)
    try:
        many = [
            threading.Thread(target=lambda n=n: [files.write_atomically(tmp_path / f"{n}", "x") for _ in range(100)])
            for n in range(8)
        ]
        for thread in many:
            thread.start()
        for thread in many:
            thread.join()
        modes = {stat.S_IMODE(file.stat().st_mode) for file in tmp_path.iterdir()}
        assert (modes, os.umask(0o022)) == ({0o644}, 0o022)
    finally:
        os.umask(before)


PRINTING = {
    "info": ("info",),
    "info --json": ("info", "--json"),
    "look": ("look", "--keys", "16", "--rows", "8", "--d-k", "4"),
    "predict": ("predict", "--d-k", "64", "--keys", "128"),
    "prove": ("prove",),
    "claims": ("claims", "--id", "1"),
    "plan": ("plan", "--tokens", "64", "--ranks", "2", "--flops", "1e9", "--bandwidth", "1e9"),
    "audit": ("audit",),
    "--help": ("--help",),
    "look --help": ("look", "--help"),
    "--version": ("--version",),
}


def printed(name: str, output: int, *, buffered: bool) -> tuple[int, str]:
    """The exit code, and what was said on standard error."""
    command = [sys.executable, "-m", "rootdk", *PRINTING[name]]
    environment = {**os.environ, "PYTHONUNBUFFERED": "" if buffered else "1"}
    done = subprocess.run(command, stdout=output, stderr=subprocess.PIPE, env=environment, text=True, check=False)
    return done.returncode, done.stderr


# One place answers for all commands; each meets one failure, buffered or not, and the next three the other ways.
NAMES = list(PRINTING)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
@pytest.mark.parametrize("name", NAMES[::2])
def test_a_full_disk_is_one_line(name: str) -> None:
    with Path("/dev/full").open("w") as full:
        outcome = printed(name, full.fileno(), buffered=NAMES.index(name) % 4 == 0)
    assert outcome == (1, "Error: standard output: cannot be written: No space left on device\n")


@pytest.mark.parametrize("name", NAMES[1::2])
def test_a_closed_pipe_is_one_line(name: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        outcome = printed(name, writing, buffered=NAMES.index(name) % 4 == 1)
    finally:
        os.close(writing)
    assert outcome == (1, "Error: standard output: cannot be written: Broken pipe\n")


def test_no_home_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user who has a number and no name, as in a container, and no HOME."""
    for name in ("HOME", "ROOTDK_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)

    def nobody(_number: int) -> None:
        raise KeyError("no such user")

    monkeypatch.setattr("pwd.getpwuid", nobody)
    monkeypatch.chdir(tmp_path)
    for command in (["--quick"], ["train-study", "--quick"]):
        result = CliRunner().invoke(main, command)
        assert result.exit_code == 1
        assert result.output == (
            "Error: ROOTDK_CACHE: must name a folder for results, as this user has no home folder\n"
        )
    assert list(tmp_path.iterdir()) == []
    result = CliRunner().invoke(main, ["predict", "--d-k", "4", "--keys", "8"])
    assert result.exit_code == 0
