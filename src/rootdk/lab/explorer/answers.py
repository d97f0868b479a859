"""Answers as JSON: a view, or an error that names what is wrong with the request."""

import json
from typing import Any

from starlette.responses import Response


def answer(found: Any, status: int = 200) -> Response:
    """JSON that any browser reads: never NaN or Infinity. Nothing is kept: what is shown is what was computed now."""
    text = json.dumps(found, allow_nan=False, separators=(",", ":"), ensure_ascii=False)
    return Response(text, status, {"Cache-Control": "no-store"}, "application/json")


def refusal(status: int, error: str, name: str = "") -> Response:
    """{"error": what is wrong and what was expected, "name": the parameter}."""
    return answer({"error": error, "name": name}, status)
