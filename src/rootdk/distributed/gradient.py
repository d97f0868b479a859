"""The ring as autograd sees it: query, key, value and sinks in, the output of this rank's rows out.

Kept are the shards themselves, the output and two numbers per row; blocks of other ranks travel again in the backward
pass. It has to run on every rank, in the same order.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..backends.torch.eager import sinks_gradient
from . import ring
from .agreement import agree
from .blocks import Plan


class RingAttention(torch.autograd.Function):  # type: ignore[misc]
    """forward(plan, number, found, query, key, value, sinks); what was measured, if anything, is put into `found`."""

    @staticmethod
    def forward(
        ctx: Any, plan: Plan, number: int, found: dict[str, Any] | None, query: Tensor, key: Tensor, value: Tensor,
        sinks: Any,
    ) -> Tensor:  # fmt: skip
        """The pass round the ring, and what its way back needs."""
        out, row_state = run(plan, found, query, key, value)
        ctx.plan, ctx.number = plan, number
        ctx.save_for_backward(query, key, value, sinks, out, row_state)
        return out

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, d_out: Tensor) -> tuple[Any, ...]:
        """Agree that this is the pass that all ranks mean, and go round once more."""
        query, key, value, sinks, out, row_state = ctx.saved_tensors
        peers = ctx.plan.peers
        agree(peers, {"call": f"the backward pass of call {ctx.number}"})
        with peers.together():
            d_query, d_key, d_value = ring.backward(ctx.plan, query, key, value, out, row_state, d_out)
            peers.part()
        d_sinks = None
        if sinks is not None and ctx.needs_input_grad[6]:
            d_sinks = sinks_gradient(d_out, out, row_state, sinks)
        return None, None, None, d_query.to(query.dtype), d_key.to(key.dtype), d_value.to(value.dtype), d_sinks


def run(plan: Plan, found: dict[str, Any] | None, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """The forward pass alone: the output and the row state."""
    with plan.peers.together():
        out, row_state, reading, first_key = ring.forward(plan, query, key, value, found is not None)
        plan.peers.part()
    if found is not None:
        found |= {"reading": reading, "first_key": first_key}
    return out, row_state
