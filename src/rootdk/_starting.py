"""Ctrl-C while the command line still loads its libraries, where Python would answer with a traceback.

This module is loaded before anything that takes time, so it recognises the command line by how the process was started.
A program that imports the package keeps its own handling of signals.
"""

import os
import signal
import sys
import threading
from typing import Any, NoReturn


def end_at_once(*_signal_and_frame: Any) -> NoReturn:
    """End the process: no work was begun that must be undone."""
    os.write(2, b"interrupted\n")
    os._exit(128 + signal.SIGINT)


def _is_the_command() -> bool:
    """Whether this is `rootdk`, or `python -m rootdk`."""
    started = sys.argv[0] if sys.argv else ""
    if started == "-m":
        return ("-m", "rootdk") in zip(sys.orig_argv, sys.orig_argv[1:], strict=False)
    return os.path.basename(started) in ("rootdk", "rootdk.exe", "rootdk-script.py")  # noqa: PTH119 -- pathlib loads much


if (
    threading.current_thread() is threading.main_thread()
    and signal.getsignal(signal.SIGINT) is signal.default_int_handler  # and not ignored, as under nohup
    and _is_the_command()
):
    signal.signal(signal.SIGINT, end_at_once)
