"""The files of the page: read once, from the package and from plotly, and served by name. No path is ever looked up."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from starlette.requests import Request
from starlette.responses import Response

from rootdk.lab.report.document import check_plotly

_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}


@dataclass(frozen=True, slots=True)
class Asset:
    """A file in memory, with the tag by which a browser knows that it has it already."""

    content: bytes
    media_type: str
    tag: str

    def response(self, request: Request) -> Response:
        """The file, or 304 for who has it."""
        # Asked for again each time, so that a newer rootdk on the same port is seen.
        headers = {"ETag": self.tag, "Cache-Control": "no-cache"}
        if request.headers.get("if-none-match") == self.tag:
            return Response(None, 304, headers)
        return Response(self.content, 200, headers, self.media_type)


def asset(content: bytes, suffix: str) -> Asset:
    """With the media type of the suffix."""
    return Asset(content, f"{_TYPES[suffix]}; charset=utf-8", f'"{hashlib.sha256(content).hexdigest()[:32]}"')


@cache
def plotly_js() -> str:
    """plotly.js as the installed plotly brings it."""
    check_plotly()
    from plotly.offline import get_plotlyjs

    found: str = get_plotlyjs()
    return found


@cache
def static_text() -> Mapping[str, str]:
    """Every file of the page by its name; the colours are the report's."""
    here = files(__package__).joinpath("static")
    found = {one.name: one.read_text("utf-8") for one in here.iterdir() if one.name.endswith(tuple(_TYPES))}
    return {**found, "palette.css": files("rootdk.lab").joinpath("palette.css").read_text("utf-8")}


def static_assets() -> dict[str, Asset]:
    """By the path under which each is served."""
    found = {
        f"/static/{name}": asset(text.encode(), f".{name.rpartition('.')[2]}") for name, text in static_text().items()
    }
    found["/"] = found.pop("/static/index.html")
    found["/plotly.js"] = asset(plotly_js().encode(), ".js")
    return found
