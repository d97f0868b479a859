"""What the server refuses before anything is computed, and what it tells the browser to refuse.

The server listens on 127.0.0.1, but every page in the reader's browser can send requests there. Three rules keep those
pages out:

- The Host header must name this machine and the right port. A foreign name that is made to resolve to 127.0.0.1 (DNS
  rebinding) still carries its own name there.
- What the browser itself says to come from another site gets nothing from /api.
- A POST must carry the Origin of this page.
"""

import base64
import hashlib
import re
import sys
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from starlette.responses import Response

from .endpoints import refusal

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

_METHODS = {"GET", "HEAD", "POST"}
# A style sheet that plotly.js writes into the page as text: that of a library of maps which it carries along.
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
    """As a policy names them.

    >>> hashes([""])
    "'sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU='"
    """
    digests = (hashlib.sha256(text.encode()).digest() for text in texts)
    return " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)


def names_of_this_machine(port: int) -> frozenset[str]:
    """What a Host header may say.

    >>> sorted(names_of_this_machine(8765))
    ['127.0.0.1:8765', '[::1]:8765', 'localhost:8765']
    """
    names = ("127.0.0.1", "localhost", "[::1]")
    return frozenset(f"{name}:{port}" for name in names) | (frozenset(names) if port == 80 else frozenset())


class Guard:
    """The outermost layer: checks where a request comes from, and puts the headers on every answer."""

    def __init__(self, app: App, port: int, content_policy: str) -> None:
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
        """Refuse, or hand on; the signature is ASGI's."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        begun = False

        async def with_headers(message: MutableMapping[str, Any]) -> None:
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
