"""How a command ends before it is done: by Ctrl-C, or because nobody takes what it prints.

Ctrl-C is a KeyboardInterrupt, which undoes what is half done on its way up, such as a bar on the terminal. It may take
long: native code cannot be interrupted by it, a `finally` may wait for a thread, and an exception inside a callback is
printed and lost. So a thread of its own waits for the signal too. If the command still runs most of a second
later, the thread ends the process: children first, then files that are half written.
"""

import contextlib
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, NoReturn, TextIO

import click

from rootdk import files, processes
from rootdk._starting import end_at_once

# 128 and the number of the signal, as shells have it.
INTERRUPTED = 128 + signal.SIGINT
_GRACE = 0.7

_interrupted = threading.Event()
_ending = threading.Lock()
_words = ["interrupted"]


class Interrupted(click.exceptions.Exit):
    """What a KeyboardInterrupt becomes inside click, which would call it "Aborted!" and an ordinary failure."""

    def __init__(self) -> None:
        super().__init__(INTERRUPTED)


@contextlib.contextmanager
def last_words(text: str) -> Iterator[None]:
    """What is said of a Ctrl-C inside this block, in place of the one word."""
    _words.append(text)
    yield
    _words.pop()  # not after an exception: then the text is still needed, where the command ends


class OutputError(click.ClickException):
    """Standard output takes no more: a full disk, or a pipe that is closed."""


def supervised(command: Callable[[], Any]) -> Any:
    """Run a command line as a process of its own; after Ctrl-C it ends with 130 and one line, within a second."""
    if threading.current_thread() is not threading.main_thread():
        return command()  # only the main thread receives signals
    receiver, sender = socket.socketpair()
    sender.setblocking(False)
    signal.set_wakeup_fd(sender.fileno(), warn_on_full_buffer=False)
    # The thread holds both ends: they live as long as the process.
    threading.Thread(target=_wait_for_ctrl_c, args=(receiver, sender), daemon=True).start()
    if signal.getsignal(signal.SIGINT) in (signal.default_int_handler, end_at_once):  # and not ignored, as under nohup
        signal.signal(signal.SIGINT, _interrupt)
    sys.unraisablehook = _leave_if_interrupted
    output = sys.stdout
    if output is not None:
        sys.stdout = _Output(output)  # it has all that a stream has
    try:
        return command()
    except SystemExit as end:
        if end.code == INTERRUPTED or _interrupted.is_set():
            # With another exit code the command has printed its own message.
            _leave(silent=end.code != INTERRUPTED)
        raise
    except BaseException:
        # Some libraries turn KeyboardInterrupt into an exception of their own.
        if _interrupted.is_set():
            _leave()
        raise
    finally:
        if signal.getsignal(signal.SIGINT) is _interrupt:
            # While Python shuts down, an exception would be printed as a traceback.
            signal.signal(signal.SIGINT, lambda *_: _leave())
        sys.stdout = output
        if output is not None:
            _discard_unwritten(output)


class _Output:
    """Standard output; what it does not take is an error of the package, which click and rich hand on."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """As a stream's."""
        try:
            return self._stream.write(text)
        except OSError as error:
            raise _no_output(error) from error

    def flush(self) -> None:
        """As a stream's."""
        try:
            self._stream.flush()
        except OSError as error:
            raise _no_output(error) from error


def _no_output(error: OSError) -> OutputError:
    return OutputError(f"standard output: cannot be written: {error.strerror or error}")


def _discard_unwritten(output: TextIO) -> None:
    """What could not be written is still in the buffer, and would be an error again when Python ends."""
    try:
        output.flush()
    except OSError:
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), output.fileno())


def _interrupt(*signal_and_frame: Any) -> None:
    _interrupted.set()
    signal.default_int_handler(*signal_and_frame)


def _wait_for_ctrl_c(receiver: socket.socket, _sender: socket.socket) -> None:
    while signal.SIGINT not in receiver.recv(4096):
        pass
    _interrupted.set()
    # A second Ctrl-C need not wait.
    receiver.settimeout(_GRACE)
    with contextlib.suppress(TimeoutError):
        while signal.SIGINT not in receiver.recv(4096):
            pass
    _leave()


def _leave_if_interrupted(lost: Any) -> None:
    """For an exception that nobody can catch, as in a finaliser: a KeyboardInterrupt is not lost there."""
    if isinstance(lost.exc_value, KeyboardInterrupt):
        _leave()
    sys.__unraisablehook__(lost)


def _leave(*, silent: bool = False) -> NoReturn:
    """End the process, leaving nothing behind. Not by an exception: threads that compute would be waited for."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    _ending.acquire()  # never released: a second thread waits here until the process ends
    processes.end_all()
    files.remove_unfinished()
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sys.stdout.flush()
    with contextlib.suppress(OSError):
        # A bar that was cut off has hidden the cursor.
        os.write(2, b"\x1b[?25h" * os.isatty(2) + f"{_words[-1]}\n".encode() * (not silent))
    os._exit(INTERRUPTED)
