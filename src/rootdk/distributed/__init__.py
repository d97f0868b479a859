"""Attention over several processes: a ring on torch.distributed, merged readings, and what it costs.

    out           = rootdk.distributed.attention(query, key, value, group, layout="balanced", causal=True)
    out, reading  = rootdk.distributed.measure(query, key, value, group, ...)

Each rank has its shard of the sequence. docs/scaling.md says how it works and how to run it on several machines.
torch is loaded when one of the names is used: the model of the cost does without.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .calls import attention, measure
    from .layout import positions, shard, unshard

_PLACES = {
    "attention": "calls",
    "measure": "calls",
    "positions": "layout",
    "shard": "layout",
    "unshard": "layout",
}

__all__ = ["attention", "measure", "positions", "shard", "unshard"]


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    function = getattr(import_module(f".{_PLACES[name]}", __name__), name)
    globals()[name] = function
    return function
