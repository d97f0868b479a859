"""A running command: its progress, and how it ends early.

Progress: bars on standard error, only on a terminal; they disappear when the command is done.

It ends early by Ctrl-C, or because nobody reads its output. Ctrl-C is a KeyboardInterrupt, and code on its way up
cleans up, for example a bar on the terminal. That may take long: native code cannot be interrupted by it, a `finally`
may wait for a thread, and an exception inside a callback is printed and lost. So a separate thread waits for the signal
too. If the command still runs most of a second later, this thread ends child processes, removes half-written files, and
ends the process.
"""

import contextlib
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Hashable, Iterator
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

import click

from rootdk import files, processes
from rootdk._starting import end_at_once
from rootdk.files import shown_text

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import TaskID

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
    """The text that is printed after Ctrl-C inside this block, in place of the usual word."""
    _words.append(text)
    yield
    _words.pop()  # not after an exception: then the text is still needed, where the command ends


class OutputError(click.ClickException):
    """Standard output cannot be written: a full disk, or a pipe that is closed."""


def supervised(command: Callable[[], Any]) -> Any:
    """Run a command line as a process of its own; after Ctrl-C it ends with 130 and one line, within a second."""
    if threading.current_thread() is not threading.main_thread():
        return command()  # only the main thread receives signals
    receiver, sender = socket.socketpair()
    sender.setblocking(False)
    signal.set_wakeup_fd(sender.fileno(), warn_on_full_buffer=False)
    # The thread keeps both ends, so they stay open as long as the process runs.
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
    """Standard output; a write that fails is an error of the package, which click and rich pass on."""

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
    """Discard what is still in the buffer: it would cause the error again when Python ends."""
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
    """End the process, leaving nothing behind. Not by an exception, which would wait for threads that compute."""
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


_LONGEST = 100


class Bars:
    """A bar, a percentage, the time so far and a text; one row, and more where a command names them.

    Called with a text and the share that is done, from any thread. Other output meanwhile goes through `console`, which
    writes it above the bars.
    """

    def __init__(self, console: "Console | None" = None) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
        from rich.table import Column

        self.console = console or Console(stderr=True)
        self._drawn = Progress(
            BarColumn(20),
            TextColumn("{task.percentage:>3.0f}%"),
            TimeElapsedColumn(),
            # A text may be the name of a layer in a file of unknown origin, so it is not markup.
            TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis")),
            console=self.console,
            transient=True,
            disable=not self.console.is_terminal,
        )
        self._rows: dict[Hashable, TaskID] = {"": self._drawn.add_task("starting", total=1.0)}

    def __enter__(self) -> "Bars":  # noqa: PYI034 -- typing.Self came with Python 3.11
        self._drawn.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self._drawn.stop()

    def __call__(self, text: str, share: float, row: Hashable = "") -> None:
        """Update a row; a name that is new adds one."""
        shown = shown_text(text, _LONGEST)
        if row not in self._rows:
            self._rows[row] = self._drawn.add_task(shown, total=1.0)
        self._drawn.update(self._rows[row], completed=share, description=shown)

    def drop(self, row: Hashable) -> None:
        """Take a row away, if it is there."""
        if row in self._rows:
            self._drawn.remove_task(self._rows.pop(row))
