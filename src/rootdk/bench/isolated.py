"""A race in a process of its own, for contestants that may die: an illegal instruction cannot be caught.

The process notes in a file whose first call comes next. When it dies, the race is run again with a narrower
instruction set for the library behind torch: AMX is an instruction that a virtual machine may list and still refuse.
Only if that does not help is the contestant out. Either way the row says so.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

Task = dict[str, Any]
Row = dict[str, Any]
# Called with a contestant's name before its first call, and with TIMING when all of them have answered.
Note = Callable[[str], Any]
TIMING = "the timing"
# Everything that oneDNN knows for x86 short of AMX; other machines do not read it.
NARROWER = {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"}


def race(module: str, task: Task) -> Row:
    """`rootdk.bench.<module>.race(task, note)` elsewhere; task["without"] names those who died.

    Dead contestants are in the row's "left_out", those that NARROWER helped in its "notes". If rootdk itself dies, or
    nobody knows who did, "seconds" is empty.
    """
    dead: dict[str, str] = {}
    helped: dict[str, str] = {}
    while True:
        row, who, how = _once(module, task | {"without": sorted(dead)}, NARROWER if helped else {})
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


def _once(module: str, task: Task, environment: dict[str, str]) -> tuple[Row | None, str, str]:
    """The row; or whose turn it was and how the process ended."""
    with tempfile.TemporaryDirectory() as folder:
        report, noted = Path(folder) / "row.json", Path(folder) / "noted"
        command = [sys.executable, "-m", "rootdk.bench.isolated", module, json.dumps(task), folder]
        ended = subprocess.run(  # noqa: S603 - our own interpreter and our own module
            command,
            env=os.environ | environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            check=False,
        )
        if ended.returncode == 0 and report.exists():
            row: Row = json.loads(report.read_text())
            return row, "", ""
        return None, noted.read_text() if noted.exists() else "", how_it_ended(ended.returncode, ended.stderr)


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


if __name__ == "__main__":
    module_name, given, place = sys.argv[1:]
    found = import_module(f"rootdk.bench.{module_name}").race(json.loads(given), (Path(place) / "noted").write_text)
    (Path(place) / "row.json").write_text(json.dumps(found))
