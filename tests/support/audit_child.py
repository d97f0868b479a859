"""Run `rootdk audit` on many folders in one process, and tell of each how it ended."""

import json
import re
import resource
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from rootdk.cli import main

# Time is counted on the processor, since a busy machine is no defect; what waits for something ends by the clock.
_CLOCK = 10
# So that a defect ends in a MemoryError and not in a machine without memory; what is promised is measured below.
_ADDRESS_SPACE = 3 * 2**30


class TooLongError(BaseException):
    """Past the time that a case may take; no `except Exception` can swallow it."""


def _stop(_signal: int, _frame: Any) -> None:
    raise TooLongError


def _peak() -> int:
    return 1024 * int(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1])  # type: ignore[index]


def run(arguments: list[str], seconds: float) -> dict[str, Any]:
    """One command: exit code, what it printed, the exception that it did not handle, time and largest memory."""
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    start = time.monotonic()
    signal.setitimer(signal.ITIMER_PROF, seconds)
    signal.setitimer(signal.ITIMER_REAL, _CLOCK * seconds)
    try:
        result = CliRunner().invoke(main, ["audit", *arguments], env={"COLUMNS": "200"})
    except TooLongError:
        return {"code": None, "error": f"took more than {seconds} s", "out": "", "err": "", "peak": _peak()}
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
    error = result.exception
    unhandled = None if error is None or isinstance(error, SystemExit) else "".join(traceback.format_exception(error))
    return {
        "code": result.exit_code,
        "error": unhandled,
        "out": result.stdout_bytes.decode("latin-1"),
        "err": result.stderr_bytes.decode("latin-1"),
        "seconds": time.monotonic() - start,
        "peak": _peak(),
    }


def work() -> None:
    """A list of argument lists comes as JSON, a line of JSON goes out for each."""
    resource.setrlimit(resource.RLIMIT_AS, (_ADDRESS_SPACE, _ADDRESS_SPACE))
    signal.signal(signal.SIGPROF, _stop)
    signal.signal(signal.SIGALRM, _stop)
    seconds, commands = json.load(sys.stdin)
    out = sys.stdout
    for arguments in commands:
        out.write(json.dumps(run(arguments, seconds)) + "\n")
        out.flush()


if __name__ == "__main__":
    work()
