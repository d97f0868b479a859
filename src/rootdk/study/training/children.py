"""The processes that this one has started, directly or through others: to find them, and to end those that stay.

By /proc, which Linux has; elsewhere nothing is found, and what ends them is left to those who started them.
"""

import contextlib
import os
import signal
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

_ROUNDS = 20  # a process that is about to be ended may have started another
_ENDED = "ZX"  # states of a process that only its parent has not taken note of yet


class Process(NamedTuple):
    """A number alone may be another process a moment later; with the time of its start it is one for good."""

    number: int
    started: str


def below(root: int, mark: str | None = None) -> set[Process]:
    """All that run below a process; with a mark, a `NAME=value`, those that were started with it and all below them."""
    parents = dict(_all())
    found = {
        process
        for process, parent in parents.items()
        if (parent == root if mark is None else process.number != root and _environment_has(process, mark))
    }
    front = {process.number for process in found}
    while front:
        more = {process for process, parent in parents.items() if parent in front} - found
        front = {process.number for process in more}
        found |= more
    return found


def end(processes: Iterable[Process], root: int, mark: str | None = None) -> None:
    """End these at once, and what is found below as `below` finds it, until nothing is."""
    known = set(processes)
    for _ in range(_ROUNDS):
        running = {process for process, _ in _all()}
        known = (known & running) | below(root, mark)
        if not known:
            return
        for process in known:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(process.number, signal.SIGKILL)


def _all() -> list[tuple[Process, int]]:
    """Every process that runs, with its parent's number."""
    found = []
    for file in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it is gone
            # The name of a program may hold anything, so count from its last bracket.
            fields = file.read_text(errors="replace").rpartition(")")[2].split()
            if fields[0] not in _ENDED:
                found.append((Process(int(file.parent.name), fields[19]), int(fields[1])))
    return found


def _environment_has(process: Process, mark: str) -> bool:
    try:
        return mark.encode() in Path(f"/proc/{process.number}/environ").read_bytes().split(b"\0")
    except OSError:  # gone, or somebody else's
        return False
