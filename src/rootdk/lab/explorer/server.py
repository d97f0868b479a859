"""The server of the page: which address answers with what, and a run of it until Ctrl-C.

GET  /                    the page
GET  /static/<file>       its parts, those that the package has and no other
GET  /plotly.js           from the installed plotly
GET  /api/chapters        texts and knobs
GET  /api/view/<chapter>  figures and numbers for the knobs' values; 422 names a value that cannot be used
POST /api/model           the same for an audit that is sent along
"""

import asyncio
import socket
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from .answers import refusal
from .assets import Asset, plotly_js, static_assets
from .chapter import Chapter, View
from .connections import MOST_CONNECTIONS, SECONDS_FOR_A_REQUEST, BoundedProtocol, say_once
from .endpoints import Api, ModelView
from .security import App, Guard, policy


def shown_audit(audit: Mapping[str, Any], values: Mapping[str, Any]) -> View:
    """The chapter of the reader's own model; loaded when there is one."""
    from .model_view import model_view

    return model_view(audit, values)


def application(
    port: int,
    chapters: tuple[Chapter, ...] | None = None,
    model_view: ModelView = shown_audit,
    audit: Mapping[str, Any] | None = None,
) -> App:
    """The ASGI application for a server on that port; by default with all chapters."""
    from .chapters import CHAPTERS

    api = Api(CHAPTERS if chapters is None else chapters, model_view, audit)
    routes = [Route(path, _served(found)) for path, found in static_assets().items()]
    routes += [
        Route("/api/chapters", api.list_chapters),
        Route("/api/view/{chapter}", api.view),
        Route("/api/model", api.model, methods=["POST"]),
    ]
    app = Starlette(routes=routes, exception_handlers={HTTPException: _said})
    app.router.redirect_slashes = False
    return Guard(app, port, policy(plotly_js()))


def run(app: App, listening: socket.socket, patience: float = SECONDS_FOR_A_REQUEST) -> None:
    """Serve until Ctrl-C, a KeyboardInterrupt. A request must come within `patience` seconds."""
    config = uvicorn.Config(
        app,
        http=partial(BoundedProtocol, patience=patience),
        # Faults are told by the guard, a line each; what is left are tracebacks of requests that Ctrl-C cut short.
        log_level="critical",
        access_log=False,
        backlog=MOST_CONNECTIONS,
        server_header=False,
        lifespan="off",
        ws="none",
        # A page that is open holds its connection, and a computation has nobody to show it to: neither is waited for.
        timeout_graceful_shutdown=0,
    )

    async def serve() -> None:
        server, said = uvicorn.Server(config), set[str]()
        # While it ends, what is cut off is no news.
        asyncio.get_running_loop().set_exception_handler(
            lambda _, context: None if server.should_exit else say_once(said, context)
        )
        await server.serve(sockets=[listening])

    asyncio.run(serve())


def _served(found: Asset) -> Callable[[Request], Any]:
    async def serve(request: Request) -> Response:
        return found.response(request)

    return serve


async def _said(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101 -- what the handler is registered for
    if error.status_code == 405:
        found = refusal(405, f"method: {request.method} is not for {request.url.path[:80]}", "method")
    else:
        found = refusal(error.status_code, f"path: there is nothing at {request.url.path[:80]}", "path")
    for name, value in (error.headers or {}).items():
        found.headers[name] = value
    return found
