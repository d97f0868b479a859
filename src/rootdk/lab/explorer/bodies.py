"""The one body that the server takes, read with a bound."""

from typing import Any

from starlette.requests import Request

from rootdk.errors import RootdkError
from rootdk.untrusted import JsonError, parse_json

# An audit of 100 layers of 128 heads is near 8 MB.
LARGEST_BODY = 16 * 2**20


class BodyError(RootdkError):
    """A body that is too large, of another type, or no JSON object; `status` is HTTP's."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"audit: {message}")
        self.status = status


async def read_body(request: Request) -> bytes:
    """The text of a JSON object, at most LARGEST_BODY bytes. What is too large is not read to its end."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise BodyError(415, f"must come as application/json, got {kind[:60] or 'no content type'}")
    if int(request.headers.get("content-length", "0")) > LARGEST_BODY:
        raise _too_large()
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > LARGEST_BODY:
            raise _too_large()
    return bytes(body)


def parsed(body: bytes) -> dict[str, Any]:
    """The object in the text of at most LARGEST_BODY bytes; numbers must be finite, as JSON has it.

    >>> parsed(b'{"verdict": "healthy"}')
    {'verdict': 'healthy'}
    """
    if len(body) > LARGEST_BODY:
        raise _too_large()
    try:
        found = parse_json(body, constants=False)
    except JsonError as error:
        raise BodyError(422, f"must be JSON: {error}") from error
    if not isinstance(found, dict):
        raise BodyError(422, f"must be a JSON object, got {type(found).__name__}")
    return found


def _too_large() -> BodyError:
    return BodyError(413, f"must be at most {LARGEST_BODY} bytes long")
