"""The server of the page: which address answers with what, and a run of it until Ctrl-C.

Connections are limited: to so many at once, and to so many seconds for a request. uvicorn itself waits for ever for a
request that has begun to arrive, and accepts connections until no more files can be opened; then asyncio prints a
traceback for each connection that it cannot accept.
"""

import asyncio
import errno
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol, h11

from rootdk.errors import ArgumentError

from .chapter import Chapter
from .endpoints import Api, Guard, plotly_js, policy, refusal, static_routes
from .shared import with_rules
from .values import read_values

HOST = "127.0.0.1"
PORT = 8765
_TRIES = 100
# A browser opens six to one address. Each is an open file, of which a process may have 256 on some systems, and as
# many again may come before the first is sent away.
MOST_CONNECTIONS = 64
# The largest audit, 16 MiB, comes from a page on this machine in well under a second.
SECONDS_FOR_A_REQUEST = 10.0

_TOO_SLOW = b"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
# Places of a slider that are computed ahead, at most.
_FEW = 25


def application(
    port: int,
    chapters: tuple[Chapter, ...] | None = None,
    audit: Mapping[str, Any] | None = None,
    tour: tuple[tuple[str, str], ...] = (),
    rules: Sequence[str] = (),
) -> ASGIApp:
    """The ASGI application for a server on that port; by default with all chapters and the tour through them.

    rules are offered beside the usual ones. Besides what is below, it serves the page at /, its parts under /static,
    those that the package has and no other, and the installed plotly's /plotly.js.
    """
    from .chapters import CHAPTERS, TOUR

    api = Api(with_rules(CHAPTERS, rules), audit, TOUR) if chapters is None else Api(chapters, audit, tour)
    routes = [
        *static_routes(),
        Route("/api/chapters", api.list_chapters),
        Route("/api/view/{chapter}", api.view),
        Route("/api/model", api.model, methods=["POST"]),
    ]
    app = Starlette(routes=routes, exception_handlers={HTTPException: _said})
    app.router.redirect_slashes = False
    return Guard(app, port, policy(plotly_js()))


def run(app: ASGIApp, listener: socket.socket, patience: float = SECONDS_FOR_A_REQUEST) -> None:
    """Serve until Ctrl-C, a KeyboardInterrupt. A request must come within `patience` seconds."""
    config = uvicorn.Config(
        app,
        http=partial(BoundedProtocol, patience=patience),
        # The guard prints a line for each fault; what is left are tracebacks of requests that Ctrl-C cut short.
        log_level="critical",
        access_log=False,
        backlog=MOST_CONNECTIONS,
        server_header=False,
        lifespan="off",
        ws="none",
        # Nothing is waited for at the end: an open page keeps its connection, and results of computations would not be
        # seen.
        timeout_graceful_shutdown=0,
    )
    server, printed = uvicorn.Server(config), set[str]()

    def say_once(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        # One line, once, where asyncio would print a traceback each time, such as for too many open files. Connections
        # that are cut off by the end itself are not reported.
        line = f"rootdk explore: {context.get('message')}: {context.get('exception')}"
        if line not in printed and not server.should_exit:
            printed.add(line)
            print(line, file=sys.stderr)

    async def serve() -> None:
        asyncio.get_running_loop().set_exception_handler(say_once)
        await server.serve(sockets=[listener])

    asyncio.run(serve())


async def _said(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101 -- what the handler is registered for
    if error.status_code == 405:
        response = refusal(405, f"method: {request.method} is not for {request.url.path[:80]}", "method")
    else:
        response = refusal(error.status_code, f"path: there is nothing at {request.url.path[:80]}", "path")
    response.headers.update(error.headers or {})
    return response


class BoundedProtocol(H11Protocol):  # type: ignore[misc]  # uvicorn is seen without its types
    """uvicorn's HTTP, for requests that come within `patience` seconds, head and body."""

    def __init__(self, *args: Any, patience: float = SECONDS_FOR_A_REQUEST, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.patience = patience
        self.deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Accept the connection, if there is a place left."""
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
        """Free the place of the connection."""
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


def listening(first: int = PORT) -> socket.socket:
    """A socket on `first`, or on the next port that is free.

    >>> with listening(0) as one, listening(one.getsockname()[1]) as other:
    ...     one.getsockname()[0], one.getsockname()[1] < other.getsockname()[1]
    ('127.0.0.1', True)
    """
    for port in range(first, min(first + _TRIES, 65536)):
        # TCP by name: asyncio sends small answers at once (TCP_NODELAY) on such a socket alone. Without it, head and
        # body of an answer wait 40 ms for each other.
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        # The port of a server that has just stopped is free again at once; one that still listens stays taken.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((HOST, port))
            listener.listen(128)
        except OSError as error:
            listener.close()
            if error.errno == errno.EADDRINUSE:
                continue
            raise ArgumentError(f"port: {HOST}:{port} cannot be used: {error.strerror}") from error
        return listener
    raise ArgumentError(f"port: must have a free one among {first} to {min(first + _TRIES, 65536) - 1}, all are taken")


def warm_up(stop: Callable[[], bool] = lambda: False) -> None:
    """Compute ahead what chapters keep: each chapter at its defaults, under every choice that it offers.

    A curve over d_k takes a tenth of a second or more, the ledger of claims some seconds; after that a knob costs
    milliseconds. To be run in a thread of its own while the page opens; asks `stop` between two views.
    """
    from .chapters import CHAPTERS

    for chapter in CHAPTERS:
        for raw in _ahead(chapter):
            if stop():
                return
            try:
                chapter.compute(read_values(chapter, raw))
            except ArgumentError:
                continue  # a metric that the example lacks: the reader gets this error on choosing it


def _ahead(chapter: Chapter) -> Iterator[dict[str, str]]:
    """All choices; if nothing is drawn at random, also the positions of sliders that have few: all can be kept."""
    choices = [control for control in chapter.controls if control.kind == "choice"]
    for chosen in product(*(control.choices for control in choices)):
        yield {control.name: value for control, value in zip(choices, chosen, strict=True)}
    if any(control.name == "seed" for control in chapter.controls):
        return
    for control in chapter.controls:
        if control.low is None or control.high is None or not control.step or control.log:
            continue
        count = round((control.high - control.low) / control.step)
        if control.kind == "float" and count <= _FEW:
            yield from ({control.name: f"{control.low + control.step * at:.6g}"} for at in range(count + 1))
