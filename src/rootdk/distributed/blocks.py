"""Plan: one call on a ring as facts, and the Problem of every block of it.

The whole call is resolved as on one machine, by the same checks, on tensors of the whole shape that hold one number. A
block is then a Problem of its own: the rows of a piece of queries against a piece of keys, with the offset between the
two. Limits need no further thought, since a query at position p sees key j by p - j alone.
"""

from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from ..options import Problem
from .layout import Piece, joined, pieces
from .peers import Peers


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
    if problem.left is None and problem.right is None and problem.key_lengths is None:
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
    some = (end > keys.first) & (queries.length > 0)
    if problem.right is not None:
        some &= last + problem.right >= keys.first
    if problem.left is not None:
        some &= first - problem.left < end
    return bool(some.any())


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
        sinks=None,  # it belongs to a row and not to a block: merging.py counts it once
    )
