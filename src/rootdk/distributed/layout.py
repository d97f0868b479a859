"""Which rows of the whole sequence a rank holds; cutting a sequence into shards, and putting it together again.

contiguous   rank r holds one piece, and the pieces follow each other in the order of the ranks
balanced     the sequence is cut into 2R chunks and rank r holds chunks r and 2R - 1 - r, one from each end

Under a causal mask row i has i + 1 keys to look at. Contiguous shards leave the first rank nearly idle and give the
last one nearly twice the average; in a balanced layout an early chunk and a late one add up to the same on every rank.

    4 ranks, 8 chunks       0  1  2  3  4  5  6  7
    held by rank            0  1  2  3  3  2  1  0

The functions with tensors load torch when they are called: the model of the cost asks for the layouts alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

from ..checks import axis as check_axis
from ..errors import ArgumentError, ArgumentTypeError
from ..reading import FIELDS, Reading

if TYPE_CHECKING:
    from torch import Tensor

    Whole = TypeVar("Whole", Tensor, Reading)

Layout = Literal["contiguous", "balanced"]
LAYOUTS = ("contiguous", "balanced")


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
    if layout not in LAYOUTS:
        raise ArgumentError(f"layout: must be 'contiguous' or 'balanced', got {layout!r}")


def pieces(lengths: Sequence[int], layout: str) -> list[tuple[Piece, ...]]:
    """Of each rank the pieces that it holds; `lengths` has the number of rows of every rank, which may differ.

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


def positions_of(rank: int, lengths: Sequence[int], layout: str) -> list[range]:
    """Where the rows of a rank stand in the whole sequence, piece by piece.

    >>> positions_of(0, [3, 2], "balanced")
    [range(0, 2), range(4, 5)]
    """
    return [range(piece.first, piece.first + piece.length) for piece in pieces(lengths, layout)[rank]]


def _lengths(n: Any, ranks: int) -> list[int]:
    """The lengths that `n` stands for: of an even cut if it is one number, else one number per rank."""
    if isinstance(n, int) and not isinstance(n, bool):
        if n < 0:
            raise ArgumentError(f"n: must be at least 0, got {n}")
        return even_lengths(n, ranks)
    if not isinstance(n, Sequence) or not all(isinstance(length, int) for length in n):
        raise ArgumentTypeError(f"n: must be an int or one int per rank, got {n!r}")
    if len(n) != ranks or min(n, default=0) < 0:
        raise ArgumentError(f"n: must be {ranks} ints of at least 0, one per rank, got {list(n)!r}")
    return list(n)


def positions(n: Any, group: Any = None, *, layout: Layout = "contiguous") -> Tensor:
    """Where the rows of this rank stand in the whole sequence, (n_r,) of int64: for rotary positions, labels, masks.

    n   how many rows there are in all, cut as `shard` does; or one number per rank where the shards have other lengths

    >>> import tempfile, torch.distributed as dist
    >>> where = f"file://{tempfile.mkdtemp()}/meet"
    >>> dist.init_process_group("gloo", init_method=where, rank=0, world_size=1)
    >>> positions(4, layout="balanced").tolist()
    [0, 1, 2, 3]
    >>> dist.destroy_process_group()
    """
    from .peers import Peers

    check_layout(layout)
    peers = Peers(group)
    return row_positions(peers.rank, _lengths(n, peers.size), layout)


def row_positions(rank: int, lengths: Sequence[int], layout: str) -> Tensor:
    """`positions_of` as one tensor."""
    import torch

    return torch.cat([torch.arange(rows.start, rows.stop) for rows in positions_of(rank, lengths, layout)])


def shard(tensor: Tensor, group: Any = None, *, axis: int = -2, layout: Layout = "contiguous") -> Tensor:
    """This rank's rows of a tensor that every rank has whole; differentiable, and no message is sent.

    axis   that of the sequence. Where its length is no multiple of the ranks, the first ones get one row more.
    """
    from torch import Tensor

    if not isinstance(tensor, Tensor):
        raise ArgumentTypeError(f"tensor: must be a torch tensor, got {type(tensor).__name__}")
    axis = check_axis(axis, tuple(tensor.shape), f"a tensor of {tensor.dim()} axes")
    rows = positions(tensor.shape[axis], group, layout=layout)
    return tensor.index_select(axis, rows.to(tensor.device))


def unshard(
    shard: Whole, group: Any = None, *, axis: int | None = None, layout: Layout = "contiguous", timeout: Any = None
) -> Whole:
    """The whole of what every rank has a shard of, on every rank: a tensor, or a Reading. Detached.

    axis   that of the sequence; -2 for a tensor, where it may be another, and always the rows of a Reading

    Every rank sends its shard to every other and needs memory for the whole: for results that are to be looked at.
    """
    import torch
    import torch.distributed as dist

    from .peers import BLOCK, Peers, agree

    check_layout(layout)
    if isinstance(shard, Reading):
        fields = torch.stack([getattr(shard, name).double() for name in (*FIELDS, "keys")])
        whole = unshard(fields, group, axis=-1, layout=layout, timeout=timeout)
        columns = {name: whole[i].to(shard.variance.dtype) for i, name in enumerate(FIELDS)}
        return Reading(**columns, keys=whole[-1].to(torch.int64), has_sinks=shard.has_sinks)
    if not isinstance(shard, torch.Tensor):
        raise ArgumentTypeError(f"shard: must be a torch tensor or a Reading, got {type(shard).__name__}")
    place = check_axis(-2 if axis is None else axis, tuple(shard.shape), f"a tensor of {shard.dim()} axes")
    peers = Peers(group, timeout, shard.device)
    mine: Tensor = shard.detach().movedim(place, 0).contiguous()
    note = {"call": "rootdk.distributed.unshard", "dtype": str(mine.dtype), "layout": layout, "axis": place}
    notes = agree(peers, note | {"shard": [len(mine), *mine.shape[1:]]})
    lengths = [theirs["shard"][0] for theirs in notes]
    parts = {peer: mine.new_empty((lengths[peer], *mine.shape[1:])) for peer in peers.others}
    with peers.together():
        if parts:
            operations = [(dist.isend, mine, peer, BLOCK) for peer in peers.others]
            operations += [(dist.irecv, parts[peer], peer, BLOCK) for peer in peers.others]
            peers.wait(reversed(peers.post(*operations)))
            peers.part()
    parts[peers.rank] = mine
    together = mine.new_empty((sum(lengths), *mine.shape[1:]))
    for rank, part in parts.items():
        begin = 0
        for rows in positions_of(rank, lengths, layout):
            together[rows.start : rows.stop] = part[begin : begin + len(rows)]
            begin += len(rows)
    return together.movedim(0, place)
