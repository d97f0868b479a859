"""Run the bench in a process of its own, with every library's number of threads set before it is loaded.

A BLAS reads its number once, when it is loaded, and by the time a command line is parsed NumPy is there already.
"""

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

# By number: a test runner may have put an object without one in the place of sys.stderr.
ERROR_STREAM = 2


class BenchError(Exception):
    """The bench could not run; the message says why."""


@dataclass(frozen=True, slots=True)
class Options:
    """What to run. No peers named means: all that are installed."""

    sections: tuple[str, ...]
    peers: tuple[str, ...]
    threads: int
    quick: bool


def environment(threads: int) -> dict[str, str]:
    """Variables for the child: the same number of threads for all."""
    names = (
        "ROOTDK_NUM_THREADS",
        "OMP_NUM_THREADS",
        "OPENBLAS_NUM_THREADS",
        "MKL_NUM_THREADS",
        "VECLIB_MAXIMUM_THREADS",
    )
    # OpenBLAS lets its workers spin for 100 ms after a call; 2^20 cycles is under one, and timing.py need not wait so
    # long.
    return dict(os.environ) | {name: str(threads) for name in names} | {"OPENBLAS_THREAD_TIMEOUT": "20"}


def run(options: Options) -> dict[str, Any]:
    """Start the child, let it show its progress on the error stream, and return its report."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [sys.executable, "-m", "rootdk.bench.child", json.dumps(asdict(options)), str(report)]
        # Some libraries write to the output stream on their own; that stream is the report's, so theirs goes to the
        # error stream.
        finished = subprocess.run(  # noqa: S603 - our own interpreter and our own module
            command, env=environment(options.threads), stdout=ERROR_STREAM, check=False
        )
        if finished.returncode != 0 or not report.exists():
            raise BenchError(f"the measuring process ended with code {finished.returncode}; its message is above")
        result: dict[str, Any] = json.loads(report.read_text())
        return result
