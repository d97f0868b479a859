r"""Blocks: one call on a ring cut into Problems of its own size, and their results made one again.

The whole call is resolved as on one machine, by the same checks, on tensors of the whole shape that hold one number. A
block is then a Problem of its own: the rows of a piece of queries against a piece of keys, with the offset between the
two. Causal and window limits and slopes stay as they are: they depend on the distance p - j of query and key alone.

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
from torch import Tensor

from ..options import Problem
from ..reading import Reading, converted, reading_of, reading_of_nothing
from .layout import Piece, joined, pieces
from .peers import Peers

_LOG2_E = 1.4426950408889634


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
    """From the resolved call and the lengths of all shards."""
    held = joined(pieces(query_lengths, layout)[peers.rank])
    row_scale = problem.row_scale
    if row_scale is not None:
        row_scale = np.concatenate([row_scale[:, p.first : p.first + p.length] for p in held], axis=1)
        problem = problem._replace(row_scale=None)
    keys = [joined(of_rank) for of_rank in pieces(key_lengths, layout)]
    if problem.left is problem.right is problem.key_lengths is problem.alibi is None:
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
            # Not 1: the maximum was rounded, and its sum stands for the sink as it is.
            self.total[:] = torch.exp2(sinks[:, None] * _LOG2_E - self.maximum.double())
        # In the order of the rows.
        self._readings = {piece: _unread((*shape[:-1], piece.length), query, sinks) for piece in held if measured}

    def add(self, piece: Piece, out: Tensor, row_state: Tensor, block: Any = None, keys: Any = None) -> None:
        """What the kernel computed for the rows of a piece over one more block of keys."""
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
