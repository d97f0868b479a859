"""Processes that this package starts: Python again, ended with this one, and never with code from the current folder.

`python -m` and `python -c` look for modules where the user stands first. A file there that is called like a module, say
numpy.py in a folder of somebody else's, would run. So a child is started in isolated mode, which also drops PYTHONPATH
and the user's own packages, and then gets the places where this process finds its modules, without the current folder.
"""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_running: set["subprocess.Popen[str]"] = set()
_changing = threading.Lock()


@contextmanager
def started(function: str, argument_lists: Sequence[Sequence[str]], **options: Any) -> Iterator[list[Any]]:
    """One process for each list of arguments; those that still run when the block ends are ended.

    function   what they call with the arguments, texts all of them: "package.module:function"
    options    those of subprocess.Popen
    """
    own: list[subprocess.Popen[str]] = []
    facts = json.dumps([_current_folder(), sys.path])
    try:
        for arguments in argument_lists:
            command = [sys.executable, "-I", __file__, facts, function, *arguments]
            with _without_ctrl_c(), _changing:
                own.append(subprocess.Popen(command, text=True, **options))  # noqa: S603 -- our interpreter, our module
                _running.add(own[-1])
        yield own
    finally:
        left = [one for one in own if one.poll() is None]
        for one in left:
            one.kill()  # all of them before the first is waited for
        for one in left:
            one.communicate()
        _running.difference_update(own)


def _current_folder() -> str | None:
    try:
        return str(Path.cwd())
    except FileNotFoundError:  # it was removed: nothing can be imported from it
        return None


@contextmanager
def _without_ctrl_c() -> Iterator[None]:
    """Ctrl-C comes through when the block is done: a child that has started is one that we know of."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    heard: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: heard.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if heard:
            signal.raise_signal(signal.SIGINT)


@contextmanager
def standing_elsewhere() -> Iterator[None]:
    """For children that others start with `python -c`, such as multiprocessing's: they look where this process stands.

    The interpreter's own folder is where no user puts modules. Other threads stand there too meanwhile.
    """
    here = os.open(".", os.O_RDONLY)
    try:
        os.chdir(sys.prefix)
        try:
            yield
        finally:
            os.fchdir(here)
    finally:
        os.close(here)


def end_all() -> None:
    """End every child, before this process ends without going through the blocks that started them."""
    _changing.acquire(timeout=0.1)  # for good: none is started any more
    for one in list(_running):
        one.kill()
    if (multiprocessing := sys.modules.get("multiprocessing")) is not None:
        for one in multiprocessing.active_children():
            one.kill()


def module_path(own: Sequence[str], parent: Sequence[str], current: str | None, package_home: str) -> list[str]:
    """Where a child looks for modules: as its parent does, in that order, without the current folder.

    The current folder stays where the interpreter itself has it or this package is in it.

    >>> module_path(["/lib"], ["", "/work", "/more", "/lib"], "/work", "/lib")
    ['/more', '/lib']
    >>> module_path(["/lib"], ["/lib", "/work"], "/lib", "/work"), module_path(["/lib"], ["/work"], "/work", "/work")
    (['/lib', '/work'], ['/work'])
    """
    found = [one for one in parent if Path(one).is_absolute()]
    here = current and os.path.realpath(current)
    if here in {os.path.realpath(one) for one in (*own, package_home)}:
        return found
    return [one for one in found if os.path.realpath(one) != here]


def _be_a_child(facts: str, function: str, *arguments: str) -> None:
    from importlib import import_module

    current, parent = json.loads(facts)
    sys.path[:] = module_path(sys.path, parent, current, str(Path(__file__).resolve().parent.parent))
    module, _, name = function.partition(":")
    getattr(import_module(module), name)(*arguments)


if __name__ == "__main__":
    _be_a_child(*sys.argv[1:])
