"""Cutting a sequence into the shards of the ranks, and putting it together again."""

from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from ..errors import ArgumentError, ArgumentTypeError
from ..reading import FIELDS, Reading
from .agreement import agree
from .layout import Layout, check_layout, lengths_of, positions_of
from .peers import BLOCK, Peers

Whole = TypeVar("Whole", Tensor, Reading)


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
    check_layout(layout)
    peers = Peers(group)
    held = positions_of(peers.rank, lengths_of(n, peers.size), layout)
    return torch.cat([torch.arange(rows.start, rows.stop) for rows in held])


def shard(tensor: Tensor, group: Any = None, *, axis: int = -2, layout: Layout = "contiguous") -> Tensor:
    """This rank's rows of a tensor that every rank has whole; differentiable, and no message is sent.

    axis   that of the sequence. Where its length is no multiple of the ranks, the first ones get one row more.
    """
    if not isinstance(tensor, Tensor):
        raise ArgumentTypeError(f"tensor: must be a torch tensor, got {type(tensor).__name__}")
    _check_axis(axis, tensor.dim())
    rows = positions(tensor.shape[axis], group, layout=layout)
    return tensor.index_select(axis, rows.to(tensor.device))


def unshard(
    shard: Whole, group: Any = None, *, axis: int | None = None, layout: Layout = "contiguous", timeout: Any = None
) -> Whole:
    """The whole of what every rank has a shard of, on every rank: a tensor, or a Reading. Detached.

    axis   that of the sequence; -2 for a tensor, where it may be another, and always the rows of a Reading

    Every rank sends its shard to every other and needs memory for the whole: for results that are to be looked at.
    """
    check_layout(layout)
    if isinstance(shard, Reading):
        fields = torch.stack([getattr(shard, name).double() for name in (*FIELDS, "keys")])
        whole = unshard(fields, group, axis=-1, layout=layout, timeout=timeout)
        columns = {name: whole[i].to(shard.variance.dtype) for i, name in enumerate(FIELDS)}
        return Reading(**columns, keys=whole[-1].to(torch.int64), has_sinks=shard.has_sinks)
    if not isinstance(shard, Tensor):
        raise ArgumentTypeError(f"shard: must be a torch tensor or a Reading, got {type(shard).__name__}")
    place = -2 if axis is None else axis
    _check_axis(place, shard.dim())
    peers = Peers(group, timeout, shard.device)
    mine: Tensor = shard.detach().movedim(place, 0).contiguous()
    note = {"call": "rootdk.distributed.unshard", "dtype": str(mine.dtype), "layout": layout, "axis": place}
    notes = agree(peers, note | {"shard": [len(mine), *mine.shape[1:]]})
    lengths = [one["shard"][0] for one in notes]
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


def _check_axis(axis: Any, dim: int) -> None:
    if isinstance(axis, bool) or not isinstance(axis, int):
        raise ArgumentTypeError(f"axis: must be an int, got {axis!r}")
    if not -dim <= axis < dim:
        raise ArgumentError(f"axis: must be from {-dim} to {dim - 1} for a tensor of {dim} axes, got {axis}")
