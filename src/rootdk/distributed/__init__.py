"""Attention over several processes: a ring on torch.distributed, merged readings, and what it costs.

    out           = rootdk.distributed.attention(query, key, value, group, layout="balanced", causal=True)
    out, reading  = rootdk.distributed.measure(query, key, value, group, ...)

Each rank has its shard of the sequence. docs/scaling.md says how it works and how to run it on several machines.
torch is loaded when one of the names is used: the cost model does not need it.

Layouts: which rows of the whole sequence a rank holds.

contiguous   rank r holds one piece, and the pieces follow each other in the order of the ranks
balanced     the sequence is cut into 2R chunks and rank r holds chunks r and 2R - 1 - r, one from each end

Under a causal mask row i has i + 1 keys to look at. Contiguous shards leave the first rank nearly idle and give the
last one nearly twice the average; in a balanced layout an early chunk and a late one add up to the same on every rank.

    4 ranks, 8 chunks       0  1  2  3  4  5  6  7
    held by rank            0  1  2  3  3  2  1  0
"""

from collections.abc import Sequence
from importlib import import_module
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

from ..errors import ArgumentError, require_torch

if TYPE_CHECKING:
    from .calls import attention, measure, positions, shard, unshard

__all__ = ["attention", "measure", "positions", "shard", "unshard"]


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        require_torch(f"rootdk.distributed.{name}")
        return getattr(import_module(".calls", __name__), name)


Layout = Literal["contiguous", "balanced"]


class Piece(NamedTuple):
    """Rows that lie side by side in the whole sequence and in the shard.

    first    where they begin in the whole sequence
    at       where they begin in the shard
    length   how many there are
    """

    first: int
    at: int
    length: int


def check_layout(layout: Any) -> None:
    """An error for anything that is no name of a layout."""
    if layout not in get_args(Layout):
        raise ArgumentError(f"layout: must be 'contiguous' or 'balanced', got {layout!r}")


def pieces(lengths: Sequence[int], layout: str) -> list[tuple[Piece, ...]]:
    """The pieces that each rank holds; `lengths` has the number of rows of every rank, which may differ.

    In a balanced layout the first half of a shard (the larger one, if its length is odd) is its early chunk.

    >>> pieces([2, 3], "contiguous")
    [(Piece(first=0, at=0, length=2),), (Piece(first=2, at=0, length=3),)]
    >>> pieces([4, 3], "balanced")[1]
    (Piece(first=2, at=0, length=2), Piece(first=4, at=2, length=1))
    """
    if layout == "contiguous":
        firsts = accumulate(lengths, initial=0)
        return [(Piece(first, 0, length),) for first, length in zip(firsts, lengths, strict=False)]
    early = [length - length // 2 for length in lengths]
    late = [length // 2 for length in lengths]
    early_first = list(accumulate(early, initial=0))
    # The late chunks come in the opposite order: that of the last rank follows its early one.
    late_first = list(accumulate(reversed(late), initial=early_first[-1]))[:-1][::-1]
    return [(Piece(early_first[r], 0, early[r]), Piece(late_first[r], early[r], late[r])) for r in range(len(lengths))]


def joined(held: tuple[Piece, ...]) -> tuple[Piece, ...]:
    """One piece where two follow each other in the sequence too, as on the last rank: one block in place of four.

    >>> joined(pieces([4, 4], "balanced")[1]), len(joined(pieces([4, 4], "balanced")[0]))
    ((Piece(first=2, at=0, length=4),), 2)
    """
    if len(held) == 2 and held[0].first + held[0].length == held[1].first:
        return (Piece(held[0].first, held[0].at, held[0].length + held[1].length),)
    return held


def even_lengths(n: int, ranks: int) -> list[int]:
    """n rows over the ranks, as evenly as it goes, the longer shards first.

    >>> even_lengths(10, 4)
    [3, 3, 2, 2]
    """
    return [n // ranks + (rank < n % ranks) for rank in range(ranks)]
