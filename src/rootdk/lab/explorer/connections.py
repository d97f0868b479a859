"""What a connection may take of the server: one of so many places, and so many seconds to send a request.

uvicorn itself waits for ever for a request that has begun to come, and takes as many connections as there are files to
open; what asyncio says about those that it cannot take is a traceback for each.
"""

import asyncio
import sys
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol, h11

# A browser opens six to one address. Each is an open file, of which a process may have 256 on some systems, and as
# many again may come before the first is sent away.
MOST_CONNECTIONS = 64
# An audit of 16 MiB comes from this machine in well under one.
SECONDS_FOR_A_REQUEST = 10.0

_TOO_SLOW = b"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"


class BoundedProtocol(H11Protocol):  # type: ignore[misc]  # uvicorn is seen without its types
    """HTTP as uvicorn speaks it, for requests that come within `patience` seconds, head and body."""

    def __init__(self, *args: Any, patience: float = SECONDS_FOR_A_REQUEST, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.patience = patience
        self.deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Take it, if there is a place left."""
        super().connection_made(transport)
        if len(self.connections) > MOST_CONNECTIONS:
            transport.abort()
            return
        self._wait()

    def data_received(self, data: bytes) -> None:
        """The time for the next request begins with its first byte, and ends with the last of its body."""
        super().data_received(data)
        if self.conn.their_state in (h11.IDLE, h11.SEND_BODY):
            self._wait()
        else:
            self._wait_no_more()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget it."""
        self._wait_no_more()
        super().connection_lost(exc)

    def _wait(self) -> None:
        if self.deadline is None:
            self.deadline = self.loop.call_later(self.patience, self._give_up)

    def _wait_no_more(self) -> None:
        if self.deadline is not None:
            self.deadline.cancel()
            self.deadline = None

    def _give_up(self) -> None:
        self.deadline = None
        if self.conn.our_state is h11.IDLE:  # nothing was answered yet
            self.transport.write(_TOO_SLOW)
            self.transport.close()
        else:
            self.transport.abort()


def say_once(said: set[str], context: dict[str, Any]) -> None:
    """A line for what asyncio would write a traceback for each time, such as too many open files."""
    line = f"rootdk explore: {context.get('message')}: {context.get('exception')}"
    if line not in said:
        said.add(line)
        print(line, file=sys.stderr)
