"""Attention over several processes: a ring on torch.distributed, merged readings, and what it costs.

    out           = rootdk.distributed.attention(query, key, value, group, layout="balanced", causal=True)
    out, reading  = rootdk.distributed.measure(query, key, value, group, ...)

Each rank has its shard of the sequence. docs/scaling.md says how it works and how to run it on several machines.
torch is loaded when one of the names is used: the model of the cost does without.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ..errors import require_torch

if TYPE_CHECKING:
    from .calls import attention, measure, positions, shard, unshard

__all__ = ["attention", "measure", "positions", "shard", "unshard"]


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        require_torch(f"rootdk.distributed.{name}")
        return getattr(import_module(".calls", __name__), name)
