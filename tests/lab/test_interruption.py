"""Ctrl-C, sent to real processes: 130, one line, and nothing left behind, whatever the command is at."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

# Generous: it says that a process hangs, not how long it takes.
GUARD = 60
RING = ("plan", "--tokens", "64", "--ranks", "2", "--flops", "1e9", "--bandwidth", "1e9", "--validate")
COMMANDS = {
    "main": ("--full", "--no-cache"),
    "look": ("look", "--keys", "262144", "--rows", "65536"),
    "predict": ("predict", "--d-k", "64", "--keys", "1024"),
    "prove": ("prove", "--d", "1000000"),
    "claims": ("claims", "--rows", "1000000"),
    "export": ("explore", "--export", "page.html"),
    "plan": (*RING, "--validate-tokens", "16384"),
    "info": ("info",),
    "audit": ("audit",),
    "figures": ("figures", "figures", "--size", "full", "--seed", "7"),
}
# The real command line, and a note when it has taken over the signal. Before that Python itself answers to it.
PROGRAM = """
import pathlib, sys, rootdk.cli
real = rootdk.cli._Commands.main
def noted(*arguments, **options):
    pathlib.Path("ready").touch()
    real(*arguments, **options)
rootdk.cli._Commands.main = noted
{more}
if __name__ == "__main__":
    rootdk.cli.main({arguments!r})
"""


def start(folder: Path, arguments: tuple[str, ...], more: str = "") -> "subprocess.Popen[str]":
    program = folder.parent / f"{folder.name}.py"  # outside: what is left in the folder is looked at
    program.write_text(PROGRAM.format(more=textwrap.dedent(more), arguments=list(arguments)))
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        [sys.executable, program], cwd=folder, stdout=pipe, stderr=pipe, text=True, start_new_session=True
    )
    STARTED.append(process.pid)
    for _ in patience():
        if (folder / "ready").exists():
            (folder / "ready").unlink()
            return process
    raise AssertionError


STARTED: list[int] = []


@pytest.fixture(autouse=True)
def nothing_stays() -> Iterator[None]:
    """A command that did not end is a failed test, not a process that goes on for hours."""
    yield
    while STARTED:
        for process in processes_of(STARTED.pop()):
            with suppress(ProcessLookupError):  # it ended while we looked
                os.kill(process, signal.SIGKILL)


def patience() -> Iterator[None]:
    end = time.monotonic() + GUARD
    while time.monotonic() < end:
        yield
        time.sleep(0.01)
    pytest.fail(f"not within {GUARD} s")


def processes_of(session: int) -> list[int]:
    """Processes of the session that the command began, itself and all that it started."""
    pids = []
    for file in Path("/proc").iterdir():
        if file.name.isdigit():
            try:
                fields = (file / "stat").read_text().rpartition(")")[2].split()
            except OSError:  # it ended while we looked
                continue
            if int(fields[3]) == session and fields[0] not in "ZX":
                pids.append(int(file.name))
    return pids


def interrupted(process: "subprocess.Popen[str]", folder: Path) -> None:
    """What holds for every command."""
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: everybody in the group gets it
    output, errors = process.communicate(timeout=GUARD)
    if (process.returncode, errors) != (130, "interrupted\n"):
        # Or it was done, and Python on its way out, where it no longer hears of signals.
        assert (process.returncode in (0, -signal.SIGINT), errors) == (True, "")
        assert output.endswith("\n")
    for _ in patience():
        if not processes_of(process.pid):  # one that was killed may take a moment to be gone
            break
    assert [file.name for file in folder.iterdir()] == []


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "here").mkdir()
    return tmp_path / "here"


# While libraries are loaded, and at work; and where a command goes through stages or starts processes, late.
MOMENTS = [(name, 0.15) for name in COMMANDS]
MOMENTS += [(name, 1.0) for name in ("main", "look", "claims", "export", "plan", "audit", "figures")]
MOMENTS += [("main", 0.0), ("audit", 0.0), ("plan", 4.0)]


@pytest.mark.parametrize(("name", "moment"), MOMENTS)
def test_every_command_ends_at_once(folder: Path, name: str, moment: float) -> None:
    process = start(folder, COMMANDS[name])
    try:
        # Not before the signal is in place, and at another moment each time; what is asserted holds at all of them.
        process.wait(moment)
    except subprocess.TimeoutExpired:
        interrupted(process, folder)
    else:
        _, errors = process.communicate()
        assert (process.returncode, errors) == (0, "")  # it was done before the signal came


def test_while_libraries_are_loaded(folder: Path) -> None:
    """A numpy that takes an hour."""
    (folder.parent / "numpy.py").write_text(
        f"import pathlib, time\npathlib.Path({str(folder / 'loading')!r}).touch()\ntime.sleep(3600)\n"
    )
    command = [sys.executable, "-m", "rootdk", "info"]
    path = {**os.environ, "PYTHONPATH": str(folder.parent)}
    process = subprocess.Popen(command, cwd=folder, env=path, stderr=subprocess.PIPE, text=True, start_new_session=True)
    for _ in patience():
        if (folder / "loading").exists():
            break
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=GUARD)
    assert (process.returncode, errors) == (130, "interrupted\n")


def test_a_program_that_imports_the_package_keeps_its_signals() -> None:
    code = "import signal, rootdk.cli; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"
    for argument in ([], ["rootdk"], ["-m", "rootdk"]):
        done = subprocess.run([sys.executable, "-c", code, *argument], capture_output=True, text=True, check=True)
        assert done.stdout == "True\n"


def test_native_code_that_blocks_is_not_waited_for(folder: Path) -> None:
    """libc's sleep knows nothing of Python: for an hour no line of Python runs in the main thread.

    A signal would wake it, so the main thread takes none; others of the process do.
    """
    more = """
        import ctypes, signal
        from rootdk.cli import info
        def block(**options):
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            pathlib.Path("blocked").touch()
            while True: ctypes.CDLL(None).sleep(3600)
        info.info.callback = block
    """
    process = start(folder, ("info",), more)
    for _ in patience():
        if (folder / "blocked").exists():
            break
    (folder / "blocked").unlink()
    interrupted(process, folder)


def test_an_interrupt_that_is_swallowed_still_ends_it(folder: Path) -> None:
    more = """
        import time
        from rootdk.cli import info
        def deaf(**options):
            pathlib.Path("deaf").touch()
            while True:
                try: time.sleep(60)
                except KeyboardInterrupt: pass
        info.info.callback = deaf
    """
    process = start(folder, ("info",), more)
    for _ in patience():
        if (folder / "deaf").exists():
            break
    (folder / "deaf").unlink()
    interrupted(process, folder)


def test_an_interrupt_in_a_finaliser_is_not_lost(folder: Path) -> None:
    """Python prints such an exception and goes on."""
    more = """
        import signal, time
        from rootdk.cli import info
        class Thing:
            def __del__(self): signal.raise_signal(signal.SIGINT)
        def drop(**options):
            thing = Thing()
            del thing
            time.sleep(3600)
        info.info.callback = drop
    """
    _, errors = start(folder, ("info",), more).communicate(timeout=GUARD)
    assert errors == "interrupted\n"


def test_an_interrupt_that_a_library_calls_an_error_is_none(folder: Path) -> None:
    """As extension modules do while they are loaded."""
    more = """
        import signal
        from rootdk.cli import info
        def load(**options):
            try: signal.raise_signal(signal.SIGINT)
            except KeyboardInterrupt: raise ImportError("a string that is too long for a line of the terminal")
        info.info.callback = load
    """
    process = start(folder, ("info",), more)
    _, errors = process.communicate(timeout=GUARD)
    assert (process.returncode, errors) == (130, "interrupted\n")


def test_a_file_that_another_thread_writes_is_not_left_half(folder: Path) -> None:
    """Experiments keep their results from threads of their own, which no exception reaches."""
    more = """
        import threading, time
        from rootdk import files
        from rootdk.cli import info
        def write(path, content):
            pathlib.Path("written").touch()
            time.sleep(3600)
        pathlib.Path.write_bytes = write
        def work(**options):
            threading.Thread(target=files.write_atomically, args=(pathlib.Path("result.json"), "{}")).start()
            time.sleep(3600)
        info.info.callback = work
    """
    process = start(folder, ("info",), more)
    for _ in patience():
        if (folder / "written").exists():
            break
    (folder / "written").unlink()
    assert [file.suffix for file in folder.iterdir()] == [".part"]
    interrupted(process, folder)


def test_ranks_that_ignore_it_are_ended(folder: Path) -> None:
    """The command is blocked too, so that only the thread that hears the signal can end them."""
    more = """
        import ctypes, signal
        from rootdk import processes
        from rootdk.cli import info
        def block(**options):
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            with processes.started("signal:pause", [[], []]):
                pathlib.Path("blocked").touch()
                while True: ctypes.CDLL(None).sleep(3600)
        info.info.callback = block
    """
    process = start(folder, ("info",), more)
    for _ in patience():
        if (folder / "blocked").exists() and len(processes_of(process.pid)) == 3:
            break
    (folder / "blocked").unlink()
    process.send_signal(signal.SIGINT)  # to it alone
    _, errors = process.communicate(timeout=GUARD)
    assert (process.returncode, errors) == (130, "interrupted\n")
    for _ in patience():
        if not processes_of(process.pid):
            break


def test_what_is_ignored_stays_ignored() -> None:
    """As under nohup, or behind an & in a script."""
    command = [sys.executable, "-m", "rootdk", "info", "--json"]
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    finally:
        signal.signal(signal.SIGINT, before)
    for _ in range(20):
        os.killpg(process.pid, signal.SIGINT)
        time.sleep(0.05)
    out, _ = process.communicate(timeout=GUARD)
    assert process.returncode == 0
    assert json.loads(out)
