"""Attention on a ring of processes: keys and values travel, queries stay where they are.

In step t rank r works on the block that rank r - t brought, while that block goes on to rank r + 1 and the next one
comes in from rank r - 1. After R - 1 hops every rank has seen every block.

    forward    one message per hop: keys and values of a block, one after the other, in their own type
    backward   the same, and the gradient of a block, which follows one step behind, grows on every rank, and is back on
               its own rank after R hops

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

Blocks. The whole call is resolved as on one machine, by the same checks, on tensors of the whole shape that hold one
number. A block is then a Problem of its own: the rows of a piece of queries against a piece of keys, with the offset
between the two. Causal and window limits and slopes stay as they are: they depend on the distance p - j of query and
key alone.

A softmax over the union of disjoint sets A and B of keys follows from the two softmaxes. With m the largest logit of a
row (in units of log2), l = sum of 2^(s - m) and o the output, each over one set:

    m = max(m_A, m_B)      w_A = l_A 2^(m_A - m)      w_B = l_B 2^(m_B - m)
    l = w_A + w_B          o = (w_A o_A + w_B o_B) / l

This is exact; rounding comes from one product and one sum per block. m and l are what the kernel saves for its
backward pass, so the merged pair is what the backward pass of the whole row needs.

A sink is a key without a value: m = sink, l = 1, o = 0. A set in which a row sees nothing is m = -inf, l = 0, o = 0.

The fields of a Reading merge by Reading.merge: extremes by max and min, mean and variance by counts (Chan, Golub and
LeVeque), entropy and the powers of the weights by the shares w_A/l and w_B/l.
"""

from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..backends.torch import kernel as torch_kernel
from ..backends.torch.eager import sinks_gradient
from ..options import Problem
from ..reading import Reading, converted, reading_of, reading_of_nothing
from . import Piece, joined, pieces
from .peers import BLOCK, GRADIENT, Message, Peers, agree

_LOG2_E = 1.4426950408889634
# Facts for which it does not matter where queries and keys stand. The offset alone changes nothing.
_PLACELESS = frozenset({"query", "key", "value", "scale", "softcap", "query_offset", "sinks", "dropout", "seed"})


class Plan(NamedTuple):
    """What a rank needs to know.

    problem     of the whole call; its query, key and value have the whole shape and no content
    queries     the pieces of query rows on this rank
    keys        the pieces of keys, rank by rank
    row_scale   None, or float64 (batch, n): the factors of the query rows on this rank
    """

    peers: Peers
    problem: Problem
    queries: tuple[Piece, ...]
    keys: list[tuple[Piece, ...]]
    row_scale: Any

    def key_count(self, rank: int) -> int:
        """How many keys that rank brought."""
        return sum(piece.length for piece in self.keys[rank])


def plan_of(peers: Peers, problem: Problem, query_lengths: list[int], key_lengths: list[int], layout: str) -> Plan:
    """The plan, from the resolved call and the lengths of all shards."""
    held = joined(pieces(query_lengths, layout)[peers.rank])
    row_scale = problem.row_scale
    if row_scale is not None:
        row_scale = np.concatenate([row_scale[:, p.first : p.first + p.length] for p in held], axis=1)
        problem = problem._replace(row_scale=None)
    keys = [joined(of_rank) for of_rank in pieces(key_lengths, layout)]
    if all(getattr(problem, name) is None for name in Problem._fields if name not in _PLACELESS):
        # Every query sees every key, so it does not matter where they stand: one block per rank.
        held = (Piece(0, 0, query_lengths[peers.rank]),)
        keys = [(Piece(0, 0, length),) for length in key_lengths]
    return Plan(peers, problem, held, keys, row_scale)


def sees(problem: Problem, queries: Piece, keys: Piece) -> bool:
    """Whether any row of the one sees any key of the other; a block in which none does is passed on and not computed.

    >>> from types import SimpleNamespace
    >>> causal = SimpleNamespace(left=None, right=0, query_offset=np.array([0]), key_lengths=None)
    >>> sees(causal, Piece(8, 0, 4), Piece(0, 0, 4)), sees(causal, Piece(0, 0, 4), Piece(8, 0, 4))
    (True, False)
    """
    first = problem.query_offset + queries.first
    last = first + queries.length - 1
    end = np.full_like(first, keys.first + keys.length)
    if problem.key_lengths is not None:
        end = np.minimum(end, problem.key_lengths)
    visible = (end > keys.first) & (queries.length > 0)
    if problem.right is not None:
        visible &= last + problem.right >= keys.first
    if problem.left is not None:
        visible &= first - problem.left < end
    return bool(visible.any())


def block(plan: Plan, query: Tensor, key: Tensor, value: Tensor, queries: Piece, keys: Piece) -> Problem:
    """The Problem of one piece of queries against one piece of keys; the three tensors are whole shards."""
    problem = plan.problem
    rows, columns = (slice(p.at, p.at + p.length) for p in (queries, keys))
    lengths = problem.key_lengths
    if lengths is not None:
        lengths = np.clip(lengths - keys.first, 0, keys.length)
    return problem._replace(
        query=query[..., rows, :],
        key=key[..., columns, :],
        value=value[..., columns, :],
        row_scale=None if plan.row_scale is None else np.ascontiguousarray(plan.row_scale[:, rows]),
        query_offset=problem.query_offset + (queries.first - keys.first),
        key_lengths=lengths,
        sinks=None,  # it belongs to a row and not to a block: Rows counts it once
    )


class Rows:
    """The running state of the rows of a shard, (*leading, heads, n).

    out       (..., n, d_v) in the type that is computed with, normalised over the keys seen so far
    maximum   the largest logit in log2 units
    total     the sum of 2^(s - maximum), in float64: it is rounded once, at the end
    """

    def __init__(self, problem: Problem, query: Tensor, d_v: int, held: tuple[Piece, ...], measured: bool) -> None:
        shape = tuple(query.shape[:-1])
        self.out = query.new_zeros((*shape, d_v))
        self.maximum = query.new_full(shape, -torch.inf)
        self.total = query.new_zeros(shape, dtype=torch.float64)
        sinks = None if problem.sinks is None else torch.from_numpy(problem.sinks).to(query.device)
        if sinks is not None:
            self.maximum[:] = (sinks * _LOG2_E).to(query.dtype)[:, None]
            # Not 1: the maximum was rounded, and the sum corrects for that.
            self.total[:] = torch.exp2(sinks[:, None] * _LOG2_E - self.maximum.double())
        # In the order of the rows.
        self._readings = {piece: _unread((*shape[:-1], piece.length), query, sinks) for piece in held if measured}

    def add(self, piece: Piece, out: Tensor, row_state: Tensor, block: Any = None, keys: Any = None) -> None:
        """Merge what the kernel computed for the rows of a piece over one more block of keys."""
        rows = slice(piece.at, piece.at + piece.length)
        maximum, total = self.maximum[..., rows], self.total[..., rows]
        higher = torch.maximum(maximum, row_state[0])
        level = torch.where(higher == -torch.inf, 0.0, higher).double()  # nothing seen: -inf - -inf would be NaN
        before = total * torch.exp2(maximum.double() - level)
        added = row_state[1].double() * torch.exp2(row_state[0].double() - level)
        total.copy_(before + added)
        whole = torch.where(total == 0.0, 1.0, total)
        merged = self.out[..., rows, :]
        merged.mul_((before / whole).to(merged.dtype)[..., None])
        merged.addcmul_(out, (added / whole).to(merged.dtype)[..., None])
        maximum.copy_(higher)
        if block is not None:
            self._readings[piece] = self._readings[piece].merge(reading_of(block.double(), keys, False))

    def row_state(self) -> Tensor:
        """Maximum and sum as the kernel's backward pass takes them, (2, *leading, heads, n)."""
        return torch.stack([self.maximum, self.total.to(self.maximum.dtype)])

    def reading(self) -> Reading:
        """One Reading of all rows of the shard, in their order."""
        whole = Reading.concatenate(self._readings.values())
        return converted(whole, lambda column: column.to(self.out.dtype) if column.is_floating_point() else column)


def _unread(shape: tuple[int, ...], query: Tensor, sinks: Tensor | None) -> Reading:
    """Rows that have seen no key yet, in float64."""
    keys = query.new_zeros(shape, dtype=torch.int64)
    sink_rows = None if sinks is None else sinks[:, None].expand(shape)
    return reading_of_nothing(lambda number: query.new_full(shape, number, dtype=torch.float64), keys, sink_rows)


class _Carrier:
    """Blocks of keys and values in flat memory: one for the present step, one that fills up for the next."""

    def __init__(self, plan: Plan, key: Tensor, value: Tensor) -> None:
        self.plan, self._key, self._value = plan, key, value
        size = max(self.size(rank) for rank in range(plan.peers.size)) if plan.peers.size > 1 else 0
        self._here, self._next = key.new_empty(size), key.new_empty(size)
        if size:
            own_key, own_value = self.parts(plan.peers.rank, self._here)
            own_key.copy_(key)
            own_value.copy_(value)

    def _shapes(self, rank: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        count = self.plan.key_count(rank)
        key, value = self._key.shape, self._value.shape
        return (*key[:-2], count, key[-1]), (*value[:-2], count, value[-1])

    def size(self, rank: int) -> int:
        """How many numbers the keys and values of that rank's block are."""
        return sum(torch.Size(shape).numel() for shape in self._shapes(rank))

    def parts(self, rank: int, flat: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of that rank's block, as views of flat memory."""
        key_shape, value_shape = self._shapes(rank)
        size = torch.Size(key_shape).numel()
        return flat[:size].view(key_shape), flat[size : self.size(rank)].view(value_shape)

    def present(self, rank: int) -> tuple[Tensor, Tensor]:
        """Keys and values of the present block, in the type of the computation."""
        is_own = rank == self.plan.peers.rank
        key, value = (self._key, self._value) if is_own else self.parts(rank, self._here)
        return _wide(key), _wide(value)

    def pass_on(self, rank: int, coming: int) -> list[Message]:
        """Begin to send the present block, which `rank` brought, and to receive the one that `coming` brought."""
        peers = self.plan.peers
        return peers.post(
            (dist.isend, self._here[: self.size(rank)], (peers.rank + 1) % peers.size, BLOCK),
            (dist.irecv, self._next[: self.size(coming)], (peers.rank - 1) % peers.size, BLOCK),
        )

    def swap(self) -> None:
        """The received block becomes the present one."""
        self._here, self._next = self._next, self._here


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
        gradient = query.new_zeros(carrier.size(owner))
        so_far = torch.empty_like(gradient)
        # In this order: what comes first was also sent first, for backends that do not distinguish messages by a tag.
        growing = peers.post((dist.irecv, so_far, before, GRADIENT)) if step else []
        under_way = carrier.pass_on(owner, coming) if step < peers.size - 1 else []
        keys, values = carrier.present(owner)
        d_key, d_value = carrier.parts(owner, gradient)
        for queries, piece in _pairs(plan, owner):
            problem = block(plan, query, keys, values, queries, piece)
            rows, columns = (slice(p.at, p.at + p.length) for p in (queries, piece))
            row_tensors = out[..., rows, :], row_state[..., rows], d_out[..., rows, :]
            part = torch_kernel.backward(problem, *row_tensors)
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
        gradient = query.new_zeros(carrier.size(peers.rank))
        peers.wait([*peers.post((dist.irecv, gradient, before, GRADIENT)), *gone])
    return (d_query, *carrier.parts(peers.rank, gradient))


class RingAttention(torch.autograd.Function):  # type: ignore[misc]
    """forward(plan, number, measured, query, key, value, sinks); a Reading, if asked for, is put into `measured`."""

    @staticmethod
    def forward(
        ctx: Any, plan: Plan, number: int, measured: dict[str, Any] | None, query: Tensor, key: Tensor, value: Tensor,
        sinks: Any,
    ) -> Tensor:  # fmt: skip
        """The pass round the ring, and what its backward pass needs."""
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
