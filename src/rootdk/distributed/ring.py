"""The two passes round the ring: keys and values travel, queries stay where they are.

In step t rank r works on the block that rank r - t brought, while that block goes on to rank r + 1 and the next one
comes in from rank r - 1. After R - 1 hops every rank has seen every block.

    forward    one message per hop: keys and values of a block, one after the other, in their own type
    backward   the same, and the gradient of a block, which follows it one step behind, growing on every rank, and
               after R hops is home again

The backward pass of a block needs nothing but the row's merged maximum m and sum l, the whole output and its gradient:

    P = 2^(s - m) / l      delta = <d_out, out>      dS = P * (d_out V' - delta)
    d_value = P' d_out     d_key = dS' Q             d_query = sum over blocks of dS K

P, with m and l of the whole row, are the weights of the whole row, and delta = sum over *all* keys of P * (d_out V'),
because out is the output over all keys. So what the kernel computes for one block, when it is given these in place of
the block's own, is that block's part of the whole gradient, exactly: nothing is rescaled or corrected afterwards.

Half types are widened to float32 block by block: partial outputs and gradients would lose bits in every merge. They
travel as they are; gradients travel in float32.

autograd keeps the shards themselves, the output and two numbers per row; blocks of other ranks travel again in the
backward pass. It has to run on every rank, in the same order.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..backends.torch import kernel as torch_kernel
from ..backends.torch.eager import sinks_gradient
from .blocks import Plan, Rows, block, sees
from .peers import BLOCK, GRADIENT, Message, agree


class _Carrier:
    """Blocks of keys and values in flat memory: one for the present step, one that fills up for the next."""

    def __init__(self, plan: Plan, key: Tensor, value: Tensor) -> None:
        self.plan, self._key, self._value = plan, key, value
        size = max(self._size(rank) for rank in range(plan.peers.size)) if plan.peers.size > 1 else 0
        self._here, self._next = key.new_empty(size), key.new_empty(size)
        if size:
            own_key, own_value = self.parts(plan.peers.rank, self._here)
            own_key.copy_(key)
            own_value.copy_(value)

    def _shapes(self, rank: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        count = self.plan.key_count(rank)
        key, value = self._key.shape, self._value.shape
        return (*key[:-2], count, key[-1]), (*value[:-2], count, value[-1])

    def _size(self, rank: int) -> int:
        return sum(torch.Size(shape).numel() for shape in self._shapes(rank))

    def parts(self, rank: int, flat: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of that rank's block, as views of flat memory."""
        key_shape, value_shape = self._shapes(rank)
        size = torch.Size(key_shape).numel()
        return flat[:size].view(key_shape), flat[size : self._size(rank)].view(value_shape)

    def present(self, rank: int) -> tuple[Tensor, Tensor]:
        """Keys and values at hand, in the type that is computed with."""
        own = rank == self.plan.peers.rank
        key, value = (self._key, self._value) if own else self.parts(rank, self._here)
        return _wide(key), _wide(value)

    def pass_on(self, rank: int, coming: int) -> list[Message]:
        """Begin to send the block at hand, which `rank` brought, and to receive the one that `coming` brought."""
        peers = self.plan.peers
        return peers.post(
            (dist.isend, self._here[: self._size(rank)], (peers.rank + 1) % peers.size, BLOCK),
            (dist.irecv, self._next[: self._size(coming)], (peers.rank - 1) % peers.size, BLOCK),
        )

    def swap(self) -> None:
        """What came in is at hand now."""
        self._here, self._next = self._next, self._here

    def no_gradient(self, rank: int, like: Tensor) -> Tensor:
        """Zeros for the gradient of that rank's block."""
        return like.new_zeros(self._size(rank))


def forward(
    plan: Plan, measured: dict[str, Any] | None, query: Tensor, key: Tensor, value: Tensor
) -> tuple[Tensor, Tensor]:
    """The output of this rank's rows and their row state; Reading and first key of the sequence go into `measured`."""
    with plan.peers.together():
        peers, wide = plan.peers, _wide(query)
        rows = Rows(plan.problem, wide, value.shape[-1], plan.queries, measured is not None)
        carrier = _Carrier(plan, key, value)
        beginning = next((rank for rank in range(peers.size) if plan.key_count(rank)), None)
        first_key = None
        for step in range(peers.size):
            owner, coming = (peers.rank - step) % peers.size, (peers.rank - step - 1) % peers.size
            under_way = carrier.pass_on(owner, coming) if step < peers.size - 1 else []
            keys, values = carrier.present(owner)
            if owner == beginning and measured is not None:
                first_key = keys[..., :1, :].clone()
            for queries, piece in _pairs(plan, owner):
                problem = block(plan, wide, keys, values, queries, piece)
                state = torch_kernel.empty_row_state(problem.query)
                reading = (None, None) if measured is None else torch_kernel.empty_reading(problem.query)
                rows.add(queries, torch_kernel.forward(problem, state, *reading), state, *reading)
            peers.wait(reversed(under_way))
            carrier.swap()
        if measured is not None:
            measured |= {"reading": rows.reading(), "first_key": first_key}
        out, row_state = rows.out.to(query.dtype), rows.row_state()
        peers.part()
    return out, row_state


def backward(
    plan: Plan, query: Tensor, key: Tensor, value: Tensor, out: Tensor, row_state: Tensor, d_out: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """d_query, d_key, d_value of this rank's rows and keys, in the type that is computed with."""
    peers = plan.peers
    query, out, d_out = _wide(query), _wide(out), _wide(d_out)
    d_query = torch.zeros_like(query, memory_format=torch.contiguous_format)
    carrier = _Carrier(plan, key, value)
    before, after = (peers.rank - 1) % peers.size, (peers.rank + 1) % peers.size
    gone: list[Message] = []
    gradient = query.new_empty(0)
    for step in range(peers.size):
        owner, coming = (peers.rank - step) % peers.size, (peers.rank - step - 1) % peers.size
        gradient = carrier.no_gradient(owner, query)
        so_far = torch.empty_like(gradient)
        # In this order: what comes first was also sent first, for backends that do not tell messages apart by a tag.
        growing = peers.post((dist.irecv, so_far, before, GRADIENT)) if step else []
        under_way = carrier.pass_on(owner, coming) if step < peers.size - 1 else []
        keys, values = carrier.present(owner)
        d_key, d_value = carrier.parts(owner, gradient)
        for queries, piece in _pairs(plan, owner):
            problem = block(plan, query, keys, values, queries, piece)
            rows, columns = (slice(p.at, p.at + p.length) for p in (queries, piece))
            here = out[..., rows, :], row_state[..., rows], d_out[..., rows, :]
            part = torch_kernel.backward(problem, *here)
            d_query[..., rows, :] += part.query
            d_key[..., columns, :] += part.key
            d_value[..., columns, :] += part.value
        peers.wait(growing)
        if step:
            gradient += so_far
        peers.wait([*gone, *reversed(under_way)])
        carrier.swap()
        if peers.size > 1:
            gone = peers.post((dist.isend, gradient, after, GRADIENT))
    if peers.size > 1:
        gradient = carrier.no_gradient(peers.rank, query)
        peers.wait([*peers.post((dist.irecv, gradient, before, GRADIENT)), *gone])
    return (d_query, *carrier.parts(peers.rank, gradient))


class RingAttention(torch.autograd.Function):  # type: ignore[misc]
    """forward(plan, number, measured, query, key, value, sinks); a Reading, if asked for, is put into `measured`."""

    @staticmethod
    def forward(
        ctx: Any, plan: Plan, number: int, measured: dict[str, Any] | None, query: Tensor, key: Tensor, value: Tensor,
        sinks: Any,
    ) -> Tensor:  # fmt: skip
        """The pass round the ring, and what its way back needs."""
        out, row_state = forward(plan, measured, query, key, value)
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
            d_query, d_key, d_value = backward(ctx.plan, query, key, value, out, row_state, d_out)
            peers.part()
        d_sinks = None
        if sinks is not None and ctx.needs_input_grad[6]:
            d_sinks = sinks_gradient(d_out, out, row_state, sinks)
        return None, None, None, d_query.to(query.dtype), d_key.to(key.dtype), d_value.to(value.dtype), d_sinks


def _pairs(plan: Plan, owner: int) -> list[tuple[Any, Any]]:
    """The pieces of queries here and of keys there of which at least one pair is visible."""
    return [(q, k) for q in plan.queries for k in plan.keys[owner] if sees(plan.problem, q, k)]


def _wide(tensor: Tensor) -> Tensor:
    return tensor if tensor.dtype in (torch.float32, torch.float64) else tensor.float()
