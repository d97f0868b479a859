"""Who wants to know of calls on a ring: rootdk.watch puts itself here while it is open."""

from collections.abc import Callable
from typing import Any

# Asked before a call whether it shall be measured; told after it: told(query, key, output, reading, options).
Observer = tuple[Callable[[], bool], Callable[..., None]]
observers: list[Observer] = []


def listening() -> list[Callable[..., None]]:
    """Those who want the call that is made now to be measured."""
    return [told for asked, told in tuple(observers) if asked()] if observers else []


def tell(listeners: list[Callable[..., None]], *facts: Any) -> None:
    """Of a call that was measured for them."""
    for told in listeners:
        told(*facts)
