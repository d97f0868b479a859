"""What is served: the files of the page, the chapters, a view of one, and a view of an audit that is sent along.

The files are read once, from the package and from plotly, and no path of a request is ever opened. Every computation
runs in a thread, so that the event loop goes on answering, and its parameters were checked by `read_values`, whose
bounds keep it short.

Before that, the requests that are refused. The server listens on 127.0.0.1, but every page in the reader's browser can
send requests there. Three rules keep those pages out:

- The Host header must name this machine and the right port. A foreign name that is made to resolve to 127.0.0.1 (DNS
  rebinding) still carries its own name there.
- A request that the browser marks as coming from another site gets nothing from /api.
- A POST must carry the Origin of this page.
"""

import asyncio
import base64
import hashlib
import json
import re
import sys
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rootdk.errors import RootdkError
from rootdk.lab.drawing import check_plotly
from rootdk.version import __version__

from .chapter import Chapter
from .values import BodyError, parsed, read_body, read_values

_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_LONGEST_QUERY = 8192
# More at once would only make each of them slower on few cores.
AT_ONCE = 2


def answer(content: Any, status: int = 200) -> Response:
    """JSON that any browser reads: never NaN or Infinity. Not cached: the page shows what was computed now."""
    text = json.dumps(content, allow_nan=False, separators=(",", ":"), ensure_ascii=False)
    return Response(text, status, {"Cache-Control": "no-store"}, "application/json")


def refusal(status: int, error: str, name: str = "") -> Response:
    """{"error": what is wrong and what was expected, "name": the parameter}."""
    return answer({"error": error, "name": name}, status)


@cache
def plotly_js() -> str:
    """plotly.js from the installed plotly."""
    check_plotly()
    from plotly.offline import get_plotlyjs

    return str(get_plotlyjs())


@cache
def static_text() -> Mapping[str, str]:
    """Every file of the page by its name; the colours are the report's."""
    folder = files(__package__).joinpath("static")
    texts = {file.name: file.read_text("utf-8") for file in folder.iterdir() if file.name.endswith(tuple(_TYPES))}
    return {**texts, "palette.css": files("rootdk.lab").joinpath("palette.css").read_text("utf-8")}


def static_routes() -> list[Route]:
    """The files of the page, each under the path that it is served at."""
    texts = {f"/static/{name}": text for name, text in static_text().items()}
    routes = [_file("/", texts.pop("/static/index.html"), ".html"), _file("/plotly.js", plotly_js(), ".js")]
    return routes + [_file(path, text, f".{path.rpartition('.')[2]}") for path, text in texts.items()]


def _file(path: str, text: str, suffix: str) -> Route:
    content = text.encode()
    tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    # Asked for again each time, so that a newer rootdk on the same port is seen.
    headers = {"ETag": tag, "Cache-Control": "no-cache"}

    async def serve(request: Request) -> Response:
        if request.headers.get("if-none-match") == tag:
            return Response(None, 304, headers)  # the browser has it already
        return Response(content, 200, headers, f"{_TYPES[suffix]}; charset=utf-8")

    return Route(path, serve)


@dataclass
class Api:
    """The chapters, and the audit that was named on the command line."""

    chapters: tuple[Chapter, ...]
    audit: Mapping[str, Any] | None = None
    tour: tuple[tuple[str, str], ...] = ()
    computing: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(AT_ONCE))
    uploads: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(AT_ONCE))
    # Not asyncio's own threads, which it waits for when the server ends.
    threads: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(AT_ONCE))

    def described(self) -> dict[str, Any]:
        """What the page needs to know at its start."""
        chapters = [chapter.to_dict() for chapter in self.chapters]
        tour = [{"address": f"#{address}", "text": text} for address, text in self.tour]
        return {"version": __version__, "model": self.audit is not None, "chapters": chapters, "tour": tour}

    def shown(self, chapter: Chapter, raw: Mapping[str, str], audit: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The view for the values of a query, as the page gets it."""
        values = read_values(chapter, raw)
        audit = self.audit if audit is None else audit
        if chapter.show_audit is not None and audit is not None:
            return chapter.show_audit(audit, values).to_dict()
        return chapter.compute(values).to_dict()

    async def list_chapters(self, request: Request) -> Response:  # noqa: ARG002 -- the signature is Starlette's
        """GET /api/chapters: texts and knobs."""
        return answer(self.described())

    async def view(self, request: Request) -> Response:
        """GET /api/view/<chapter>?name=value: figures and numbers; 422 names a value that cannot be used."""
        by_id = {chapter.id: chapter for chapter in self.chapters}
        chapter = by_id.get(request.path_params["chapter"])
        if chapter is None:
            return refusal(404, f"chapter: must be one of {', '.join(by_id)}", "chapter")
        return await self._compute(request, chapter)

    async def model(self, request: Request) -> Response:
        """POST /api/model?name=value with an audit as its body. The server keeps nothing of it."""
        chapter = next((chapter for chapter in self.chapters if chapter.show_audit), None)
        if chapter is None:
            return refusal(404, "chapter: this server has no chapter for a model", "chapter")
        # At most AT_ONCE bodies are in memory: other uploads wait here before they are read.
        async with self.uploads:
            try:
                body = await read_body(request)
            except BodyError as error:
                return refusal(error.status, str(error), "audit")
            except ClientDisconnect:
                return _gone()
            return await self._compute(request, chapter, body)

    async def _compute(self, request: Request, chapter: Chapter, body: bytes | None = None) -> Response:
        if len(request.url.query) > _LONGEST_QUERY:
            return refusal(422, f"query: must be at most {_LONGEST_QUERY} characters long", "query")
        raw = dict(request.query_params)
        for name, count in Counter(name for name, _ in request.query_params.multi_items()).items():
            if count > 1:
                return refusal(422, f"{name[:40]}: must be given once", name[:40])

        def work() -> Response:
            try:
                return answer(self.shown(chapter, raw, None if body is None else parsed(body)))
            except BodyError as error:
                return refusal(error.status, str(error), "audit")
            except RootdkError as error:
                return refusal(422, str(error), str(error).partition(":")[0])
            except Exception as error:  # noqa: BLE001 -- a fault of ours: the page gets a sentence, the terminal the kind
                print(f"rootdk explore: {chapter.id}: {type(error).__name__}: {error}", file=sys.stderr)
                return refusal(500, f"chapter: {chapter.id} could not be computed: {type(error).__name__}", "chapter")

        async with self.computing:
            # The page has moved on while this one waited: nobody would see the answer.
            if body is None and await request.is_disconnected():
                return _gone()
            return await asyncio.get_running_loop().run_in_executor(self.threads, work)


def _gone() -> Response:
    return refusal(499, "the page no longer waits for this", "")


_METHODS = {"GET", "HEAD", "POST"}
# A style sheet that plotly.js writes into the page as text: it belongs to a library of maps that plotly.js contains.
_SHEET_AS_TEXT = re.compile(r"\.textContent='([^'\\]*\{[^'\\]*)'")


def policy(plotly_js: str) -> str:
    """The content security policy of the page: nothing from elsewhere, no script and no style sheet in the page itself.

    What plotly.js needs, and no more than that:

    style-src-elem   It writes one style sheet into the page as text, which is allowed by its hash. Its own rules go
                     through `insertRule` into the sheet with the id "plotly.js-style-global", which the page links, so
                     they need no permission.
    style-src-attr   It sets style attributes on the elements that it draws.
    img-src          A heat map is an image that it makes itself, a data: address.

    `new Function`, which its WebGL traces call, is not allowed: no chapter draws with WebGL.
    """
    sheets = f"'self' {hashes(sheets_in(plotly_js))}".rstrip()
    return (
        f"default-src 'none'; script-src 'self'; style-src-elem {sheets}; style-src-attr 'unsafe-inline'; "
        "img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


def sheets_in(plotly_js: str) -> list[str]:
    """The style sheets that plotly.js writes as text. Another release may have none: then there is nothing to allow."""
    return _SHEET_AS_TEXT.findall(plotly_js)


def hashes(texts: list[str]) -> str:
    """The hashes of these texts as a policy lists them.

    >>> hashes([""])
    "'sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU='"
    """
    digests = (hashlib.sha256(text.encode()).digest() for text in texts)
    return " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)


def names_of_this_machine(port: int) -> frozenset[str]:
    """The values that a Host header may have.

    >>> sorted(names_of_this_machine(8765))
    ['127.0.0.1:8765', '[::1]:8765', 'localhost:8765']
    """
    names = ("127.0.0.1", "localhost", "[::1]")
    return frozenset(f"{name}:{port}" for name in names) | (frozenset(names) if port == 80 else frozenset())


class Guard:
    """The outermost layer: checks where a request comes from, and puts the headers on every answer."""

    def __init__(self, app: ASGIApp, port: int, content_policy: str) -> None:
        self.app = app
        self.hosts = names_of_this_machine(port)
        self.headers = [
            (b"content-security-policy", content_policy.encode()),
            (b"x-content-type-options", b"nosniff"),
            (b"referrer-policy", b"no-referrer"),
            (b"x-frame-options", b"DENY"),
            (b"cross-origin-resource-policy", b"same-origin"),
            (b"cross-origin-opener-policy", b"same-origin"),
        ]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse, or pass on; the signature is ASGI's."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        begun = False

        async def with_headers(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", []), *self.headers]
                begun = True
            await send(message)

        try:
            await (self._refused(scope) or self.app)(scope, receive, with_headers)
        except Exception as error:  # noqa: BLE001 -- the last place where a fault can become an answer
            print(f"rootdk explore: {type(error).__name__}: {error}", file=sys.stderr)
            if not begun:
                fault = refusal(500, f"server: a fault of its own, {type(error).__name__}", "server")
                await fault(scope, receive, with_headers)

    def _refused(self, scope: Scope) -> Response | None:
        headers: dict[bytes, list[str]] = {}
        for name, value in scope["headers"]:
            headers.setdefault(name.lower(), []).append(value.decode("latin-1").lower())
        host = headers.get(b"host", [])
        if len(host) != 1 or host[0] not in self.hosts:
            return refusal(421, f"Host: must be one of {', '.join(sorted(self.hosts))}", "Host")
        method = scope["method"]
        if method not in _METHODS:
            return refusal(405, f"method: must be GET, HEAD or POST, got {method[:20]}", "method")
        from_elsewhere = set(headers.get(b"sec-fetch-site", [])) - {"same-origin", "none"}
        if scope["path"].startswith("/api") and from_elsewhere:
            return refusal(403, "Sec-Fetch-Site: only this server's own page may ask", "Sec-Fetch-Site")
        if method == "POST" and headers.get(b"origin") != [f"http://{host[0]}"]:
            return refusal(403, f"Origin: must be http://{host[0]}", "Origin")
        return None
