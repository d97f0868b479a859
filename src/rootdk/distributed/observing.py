"""Who wants to know of calls on a ring: rootdk.watch puts itself here while it is open."""

from collections.abc import Callable
from typing import Any, NamedTuple

# Asked before a call whether it shall be measured, and notified afterwards: on_call(Measured).
Observer = tuple[Callable[[], bool], Callable[[Any], None]]
observers: list[Observer] = []


class Measured(NamedTuple):
    """One call on a ring as one rank sees it; tensors are detached and have an axis of heads.

    query       (..., heads, n, d_k), the rows of this rank
    positions   (n,) where these rows stand in the whole sequence
    first_key   (..., kv_heads, 1, d_k) of the whole sequence; None if it has no keys
    problem     of the whole call: sizes and options, no content
    row_scale   None, or float64 (batch, n)
    """

    query: Any
    positions: Any
    first_key: Any
    problem: Any
    row_scale: Any
    reading: Any


def listening() -> list[Callable[[Any], None]]:
    """Those who want the call that is made now to be measured."""
    return [on_call for wanted, on_call in tuple(observers) if wanted()] if observers else []
