"""The processes of a run. None of them imports from the folder that the user stands in: see rootdk.processes.

One process measures: every library's number of threads is set before it is loaded, because a BLAS reads its number
once, when it is loaded, and by the time a command line is parsed NumPy is there already.

Some races have a process of their own, for contestants that may die: an illegal instruction cannot be caught. Such a
process notes in a file whose first call comes next. When it dies, the race is run again with a narrower instruction set
for the library behind torch: AMX is an instruction that a virtual machine may list and still refuse. Only if that does
not help is the contestant out. Either way the row says so.
"""

import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Callable
from datetime import datetime, timezone
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.peers import OPEN, open_peers
from benchmarks.section import Report, Row, Setting
from benchmarks.sections import all_sections, judge
from rootdk import processes
from rootdk.backends import kernel
from rootdk.cli.info import describe
from rootdk.cli.lifetime import Bars
from rootdk.errors import RootdkError

FOLDER = Path(__file__).resolve().parent
# By number: a test runner may have put an object without one in the place of sys.stderr.
ERROR_STREAM = 2

Task = dict[str, Any]
# Called with a contestant's name before its first call, and with TIMING when all of them have answered.
Note = Callable[[str], Any]
TIMING = "the timing"
# Everything that oneDNN knows for x86 short of AMX; other machines do not read it.
NARROWER = {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"}


class BenchError(Exception):
    """The bench could not run; the message says why."""


def command(function: str, *arguments: str) -> list[str]:
    """The command that calls 'module:name' in a process where `benchmarks` can be imported."""
    return processes.command(function, *arguments, package=FOLDER)


def environment(threads: int) -> dict[str, str]:
    """Variables for the measuring process: the same number of threads for all."""
    names = (
        "ROOTDK_NUM_THREADS",
        "OMP_NUM_THREADS",
        "OPENBLAS_NUM_THREADS",
        "MKL_NUM_THREADS",
        "VECLIB_MAXIMUM_THREADS",
    )
    # OpenBLAS lets its workers spin for 100 ms after a call; 2^20 cycles is under one, and race.py need not wait so
    # long.
    return dict(os.environ) | {name: str(threads) for name in names} | {"OPENBLAS_THREAD_TIMEOUT": "20"}


def run(sections: tuple[str, ...], peers: tuple[str, ...], threads: int, quick: bool) -> Report:
    """Start the measuring process, let it show its progress on the error stream, and return its report.

    No peers named means: all that are installed.
    """
    options = json.dumps({"sections": sections, "peers": peers, "threads": threads, "quick": quick})
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "report.json"
        # Some libraries write to the output stream on their own; that stream is the report's, so theirs goes to the
        # error stream.
        finished = subprocess.run(  # noqa: S603 - our own interpreter and our own module
            command("benchmarks.children:measuring_process", options, str(file)),
            env=environment(threads),
            stdout=ERROR_STREAM,
            check=False,
        )
        if finished.returncode != 0 or not file.exists():
            raise BenchError(f"the measuring process ended with code {finished.returncode}; its message is above")
        report: Report = json.loads(file.read_text("utf-8"))
        return report


def measuring_process(options: str, file: str) -> None:
    """What it does."""
    try:
        report = measure_all(**json.loads(options))
    except RootdkError as error:
        raise SystemExit(f"benchmarks: {error}") from None
    Path(file).write_text(json.dumps(report), "utf-8", newline="\n")


def measure_all(sections: list[str], peers: list[str], threads: int, quick: bool) -> Report:
    """Run the sections that were asked for, and return the report."""
    _narrow_affinity(threads)
    kernel().set_num_threads(threads)
    ready, absent = open_peers(peers or list(OPEN), threads)
    if peers and absent:
        raise SystemExit("\n".join(f"peer {name}: {reason}" for name, reason in absent.items()))

    setting = Setting(frozenset(sections), ready, threads, quick)
    chosen = [section for name, section in all_sections().items() if name in setting.sections]
    report: Report = {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "machine": describe(),
        "threads": threads,
        "load_before": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "quick": quick,
        "sections": [section.name for section in chosen],
        "peers": {peer.name: peer.version for peer in ready},
        "absent": absent,
    }
    steps = [step for section in chosen for step in section.steps(setting)]
    with Bars() as bars:
        for number, step in enumerate(steps):
            bars(f"{number + 1} of {len(steps)}: {step.label}", number / len(steps))
            result = step.run()
            if step.whole:
                report[step.key] = result
            else:
                report.setdefault(step.key, []).append(result)
    report["targets"] = judge(report)
    return report


def _narrow_affinity(threads: int) -> None:
    """Leave as many CPUs as threads: some libraries have no setting and take every CPU that they may use."""
    if hasattr(os, "sched_setaffinity"):
        allowed = sorted(os.sched_getaffinity(0))
        if threads < len(allowed):
            os.sched_setaffinity(0, allowed[:threads])


def race_alone(function: str, task: Task) -> Row:
    """`function(task, note)`, written 'module:name', in a process of its own; task["without"] names those who died.

    The process gets the variables of task["environment"], if there are any. Dead contestants are in the row's
    "left_out", those that NARROWER helped in its "notes". If rootdk itself dies, or nobody knows who did, "seconds" is
    empty.
    """
    dead: dict[str, str] = {}
    helped: dict[str, str] = {}
    while True:
        more = (NARROWER if helped else {}) | task.get("environment", {})
        row, who, how = _once(function, task | {"without": sorted(dead)}, more)
        if row is not None:
            row["left_out"] |= dead
            row["notes"] = helped
            return row
        blamed = who if who not in ("", TIMING) else "rootdk"
        if blamed == "rootdk" or blamed in dead:
            during = "" if who == "rootdk" else f" during {who or 'its start'}"
            return task | {"notes": {}, "seconds": {}, "left_out": dead | {"rootdk": how + during}}
        if helped or not how.startswith("died"):
            dead[blamed] = how
            helped = {}
        else:
            setting = " ".join(f"{name}={value}" for name, value in NARROWER.items())
            helped[blamed] = f"{how}; timed with {setting}"


def _once(function: str, task: Task, more: dict[str, str]) -> tuple[Row | None, str, str]:
    """The row; or whose turn it was and how the process ended. Its numbers of threads come with the environment."""
    with tempfile.TemporaryDirectory() as folder:
        file, noted = Path(folder) / "row.json", Path(folder) / "noted"
        ended = subprocess.run(  # noqa: S603 - our own interpreter and our own module
            command("benchmarks.children:racing_process", function, json.dumps(task), folder),
            env=os.environ | more,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            check=False,
        )
        if ended.returncode == 0 and file.exists():
            row: Row = json.loads(file.read_text("utf-8"))
            return row, "", ""
        return None, noted.read_text("utf-8") if noted.exists() else "", how_it_ended(ended.returncode, ended.stderr)


def racing_process(function: str, task: str, folder: str) -> None:
    """What it does."""
    module, _, name = function.partition(":")
    row = getattr(import_module(module), name)(json.loads(task), (Path(folder) / "noted").write_text)
    (Path(folder) / "row.json").write_text(json.dumps(row), "utf-8", newline="\n")


def how_it_ended(code: int, errors: str) -> str:
    r"""In words.

    >>> how_it_ended(-4, "")
    'died with SIGILL'
    >>> how_it_ended(1, "Traceback ...\nValueError: no")
    'ended with code 1: ValueError: no'
    """
    if code < 0:
        return f"died with {signal.Signals(-code).name}"
    last = (errors.strip().splitlines() or ["no message"])[-1]
    return f"ended with code {code}: {last}"
