"""A server of the explorer in a process of its own, as a person would start it."""

import re
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Self

STAND_IN = (str(Path(__file__).with_name("explorer_stand_in.py")),)


def explore(port: int, *options: str) -> tuple[str, ...]:
    return ("-m", "rootdk", "explore", "--no-browser", "--port", str(port), *options)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Served:
    """Started when entered; the address is known once it is printed."""

    def __init__(self, *arguments: str) -> None:
        self.arguments = arguments
        self.said = ""

    def __enter__(self) -> "Self":
        pipe = subprocess.PIPE
        self.process = subprocess.Popen([sys.executable, *self.arguments], stdout=pipe, stderr=pipe, text=True)
        assert self.process.stdout is not None
        self.said = self.process.stdout.readline()
        match = re.search(r"http://127\.0\.0\.1:(\d+)/", self.said)
        if not match:
            self.process.kill()
            raise AssertionError(f"no address: {self.said!r} {self.process.communicate()}")
        self.address, self.port = match[0], int(match[1])
        return self

    def stop(self, sign: signal.Signals = signal.SIGINT) -> tuple[int, str]:
        """The exit code, and what was said on standard error."""
        self.process.send_signal(sign)
        _, errors = self.process.communicate(timeout=20)
        return self.process.returncode, errors

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()

    def raw(self, request: bytes) -> bytes:
        """What comes back for these bytes; a client of a library would mend them first."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=10) as connection:
            parts = []
            with suppress(ConnectionError, OSError):  # it need not read to the end of what it refuses
                connection.sendall(request)
                connection.shutdown(socket.SHUT_WR)
            with suppress(ConnectionError):
                while part := connection.recv(65536):
                    parts.append(part)
        return b"".join(parts)
