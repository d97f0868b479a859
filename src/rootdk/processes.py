"""Processes that this package starts: Python again, ended with this one, and never with code from the current folder.

`python -m` and `python -c` look for modules in the current folder first. A file there with the name of a module, say
numpy.py in a folder of somebody else's, would run. So a child is started in isolated mode, which also drops PYTHONPATH
and the user's own packages, and then gets the places where this process finds its modules, without the current folder.

Processes are found in /proc on Linux; elsewhere ending them is left to the processes that started them.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

_running: set["subprocess.Popen[str]"] = set()
_changing = threading.Lock()
_ROUNDS = 20  # a process that is about to be ended may have started another
_ENDED = "ZX"  # states of a process that has ended and whose parent has not read its exit code yet (zombie)


def cpus_allowed() -> int:
    """How many CPUs this process may use: affinity, where the system has it, and not the size of the machine."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def command(function: str, *arguments: str, package: Path | None = None) -> list[str]:
    """The command that calls a function, written "package.module:function", with these arguments.

    package   the folder of a package that is not installed: it can be imported, and nothing that lies beside it
    """
    facts = json.dumps([current_folder(), sys.path, None if package is None else str(package)])
    return [sys.executable, "-I", __file__, facts, function, *arguments]


@contextmanager
def started(
    function: str, argument_lists: Sequence[Sequence[str]], package: Path | None = None, **options: Any
) -> Iterator[list[Any]]:
    """One process for each list of arguments; those that still run when the block ends are ended.

    function, package   as in command()
    options             those of subprocess.Popen
    """
    children: list[subprocess.Popen[str]] = []
    try:
        for arguments in argument_lists:
            line = command(function, *arguments, package=package)
            with holding_ctrl_c(), _changing:
                child = subprocess.Popen(line, text=True, **options)  # noqa: S603 -- our interpreter, our module
                children.append(child)
                _running.add(child)
        yield children
    finally:
        left = [child for child in children if child.poll() is None]
        for child in left:
            child.kill()  # all of them before the first is waited for
        for child in left:
            child.communicate()
        _running.difference_update(children)


def current_folder() -> str | None:
    """The folder that this process stands in, or None once it was removed: nothing can be imported from it."""
    try:
        return str(Path.cwd())
    except FileNotFoundError:
        return None


@contextmanager
def holding_ctrl_c() -> Iterator[None]:
    """Delay KeyboardInterrupt to the end of this block: so that every child that has started is registered."""
    usual = signal.getsignal(signal.SIGINT)
    if usual is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    held: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _: held.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, usual)
        if held:
            signal.raise_signal(signal.SIGINT)


@contextmanager
def standing_elsewhere() -> Iterator[None]:
    """For children that others start with `python -c`, such as multiprocessing's: they look in the current folder.

    Inside the block that is the interpreter's own folder, where no user puts modules; for other threads too.
    """
    with contextlib.ExitStack() as afterwards:
        previous: int | Path
        if os.chdir in os.supports_fd:
            previous = os.open(".", os.O_RDONLY)
            afterwards.callback(os.close, previous)
        else:  # Windows, where the current folder of a process cannot be removed
            previous = Path.cwd()
        os.chdir(sys.prefix)
        afterwards.callback(os.chdir, previous)
        yield


class Process(NamedTuple):
    """A process by number and start time: a number alone may be given to another process later."""

    number: int
    started: str


def below(root: int, mark: str | None = None) -> set[Process]:
    """All that run below a process; with a mark, a `NAME=value`, those that were started with it and all below them."""
    parents = dict(_all())
    known = {
        process
        for process, parent in parents.items()
        if (parent == root if mark is None else process.number != root and _environment_has(process, mark))
    }
    newest = known
    while newest:
        numbers = {process.number for process in newest}
        newest = {process for process, parent in parents.items() if parent in numbers} - known
        known = known | newest
    return known


def end(processes: Iterable[Process], root: int, mark: str | None = None) -> None:
    """End these at once, and then what `below` finds, until it finds nothing."""
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
    running = []
    for file in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it is gone
            # The name of a program may hold anything, so count from its last bracket.
            fields = file.read_text("utf-8", errors="replace").rpartition(")")[2].split()
            if fields[0] not in _ENDED:
                running.append((Process(int(file.parent.name), fields[19]), int(fields[1])))
    return running


def _environment_has(process: Process, mark: str) -> bool:
    try:
        return mark.encode() in Path(f"/proc/{process.number}/environ").read_bytes().split(b"\0")
    except OSError:  # gone, or somebody else's
        return False


def end_all() -> None:
    """End all that this process has started, before it ends without going through the blocks that started them."""
    _changing.acquire(timeout=0.1)  # never released: no process is started any more
    for child in list(_running):
        child.kill()
    if (multiprocessing := sys.modules.get("multiprocessing")) is not None:
        for child in multiprocessing.active_children():
            child.kill()
    end((), os.getpid())


def module_path(interpreter: Sequence[str], parent: Sequence[str], current: str | None, package_home: str) -> list[str]:
    """Where a child looks for modules: as its parent does, in that order, without the current folder.

    The current folder stays where the interpreter itself has it or this package is in it.

    >>> module_path(["/lib"], ["", "/work", "/more", "/lib"], "/work", "/lib")
    ['/more', '/lib']
    >>> module_path(["/lib"], ["/lib", "/work"], "/lib", "/work"), module_path(["/lib"], ["/work"], "/work", "/work")
    (['/lib', '/work'], ['/work'])
    """
    folders = [folder for folder in parent if Path(folder).is_absolute()]
    current_folder = current and os.path.realpath(current)
    if current_folder in {os.path.realpath(folder) for folder in (*interpreter, package_home)}:
        return folders
    return [folder for folder in folders if os.path.realpath(folder) != current_folder]


def _be_a_child(facts: str, function: str, *arguments: str) -> None:
    from importlib import import_module

    current, parent, package = json.loads(facts)
    sys.path[:] = module_path(sys.path, parent, current, str(Path(__file__).resolve().parent.parent))
    if package is not None:
        sys.path.insert(0, str(Path(package).parent))
        import_module(Path(package).name)
        del sys.path[0]
    module, _, name = function.partition(":")
    getattr(import_module(module), name)(*arguments)


if __name__ == "__main__":
    _be_a_child(*sys.argv[1:])
