"""What each rank of a ring calls: attention() and measure(); positions(), shard() and unshard() around them.

A call is checked on each rank, the ranks agree on it, the whole call is resolved, and then it goes round the ring.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from ..backends import torch as adapter
from ..backends.torch.kernel import tangents
from ..checks import axis as check_axis
from ..checks import index
from ..errors import ArgumentError, ArgumentTypeError
from ..options import LEARNED, Options, Problem, check_one_type, check_shapes, given_options, resolve, takes
from ..reading import FIELDS, Reading, converted
from ..scaling import ScaleRule
from ..version import __version__
from . import Layout, check_layout, even_lengths, pieces
from .peers import BLOCK, Peers, agree, digest
from .ring import RingAttention, forward, plan_of

Whole = TypeVar("Whole", Tensor, Reading[Tensor])


class Measured(NamedTuple):
    """One call on a ring as one rank sees it; tensors are detached and have an axis of heads.

    query       (..., heads, n, d_k), the rows of this rank
    positions   (n,) where these rows stand in the whole sequence
    first_key   (..., kv_heads, 1, d_k) of the whole sequence; None if it has no keys
    problem     of the whole call: sizes and options, no content
    row_scale   None, or float64 (batch, n)
    """

    query: Tensor
    positions: Tensor
    first_key: Tensor | None
    problem: Problem
    row_scale: Any
    reading: Reading[Tensor]


# Pairs (wanted, on_call): wanted() says before a call whether to measure it, on_call(measured) gets the result.
# rootdk.watch adds itself here while it is open.
observers: list[tuple[Callable[[], bool], Callable[[Measured], None]]] = []


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    group: Any = None,
    *,
    layout: Layout = "contiguous",
    scale: float | str | ScaleRule | None = None,
    causal: bool = False,
    window: int | tuple[int | None, int | None] | None = None,
    query_offset: Any = None,
    key_lengths: Any = None,
    softcap: float | None = None,
    sinks: Any = None,
    alibi: Any = None,
    timeout: Any = None,
) -> Tensor:
    """rootdk.attention() of a sequence that is spread over the ranks of a process group: this rank's rows of it.

    With Q_r, K_r, V_r the rows that rank r holds, and Q, K, V all rows in the order of the sequence:

        out_r = the rows of rank r of  softmax(scale * Q K') V

    query         (..., heads, n_r, d_k), the rows of this rank; how many they are may differ from rank to rank
    key, value    (..., kv_heads, m_r, d_k) and (..., kv_heads, m_r, d_v), likewise
    group         a process group of torch.distributed; None is the default group. Every rank of it makes the call.
    layout        which rows a rank holds. "contiguous": the shards follow each other in the order of the ranks.
                  "balanced": the first half of the shard of rank r is chunk r and the second half chunk 2R - 1 - r of
                  2R chunks, so that all ranks have equal work under a causal mask; rootdk.distributed.shard does this.
    timeout       seconds that this rank waits for any other at any one point; None is the timeout of the group

    The others are the options of rootdk.attention, for the whole sequence: key_lengths count its keys, and the last
    query of all is aligned with the last key of all. They must be the same on every rank.

    Keys and values travel round the ring while the kernel works on the present block, so a rank needs memory for two
    blocks besides its own shards, and for two gradients of blocks more on the way back. Gradients reach query, key,
    value and sinks; the gradient of `sinks` is that of this rank's rows, as for any weight that all ranks share.
    Backward has to run on every rank.

    Exact to rounding: see rootdk.distributed.ring for how blocks become one softmax and for the gradient. mask, bias,
    segments, dropout and per_key are not supported.

    Errors: ArgumentError on every rank, before work starts, if the ranks' arguments do not fit each other. RankError on
    every rank if one died or stopped answering; the group cannot be used afterwards.

    >>> import tempfile, rootdk, torch, torch.distributed as dist
    >>> where = f"file://{tempfile.mkdtemp()}/meet"
    >>> dist.init_process_group("gloo", init_method=where, rank=0, world_size=1)
    >>> q = torch.randn(2, 16, 8)
    >>> bool(torch.allclose(attention(q, q, q, causal=True), rootdk.attention(q, q, q, causal=True)))
    True
    >>> dist.destroy_process_group()
    """
    arguments = locals()
    listeners = [on_call for wanted, on_call in tuple(observers) if wanted()]
    measured: dict[str, Any] = {}
    out = _call("attention", arguments, measured if listeners else None)
    for on_call in listeners:
        on_call(measured["call"])
    return out


@takes(attention)
def measure(arguments: dict[str, Any]) -> tuple[Tensor, Reading[Tensor]]:
    """attention() and the Reading of this rank's rows, over the keys of all ranks: what one process would read there.

    The fields of all blocks are merged in float64 and rounded once. `unshard` makes one Reading of all ranks' rows.

    >>> import tempfile, torch, torch.distributed as dist
    >>> where = f"file://{tempfile.mkdtemp()}/meet"
    >>> dist.init_process_group("gloo", init_method=where, rank=0, world_size=1)
    >>> q = torch.zeros(1, 4, 8)
    >>> measure(q, q, q, causal=True)[1].effective_keys.tolist()
    [[1.0, 2.0, 3.0, 4.0]]
    >>> dist.destroy_process_group()
    """
    measured: dict[str, Any] = {}
    out = _call("measure", arguments, measured)
    return out, measured["reading"]


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
    return _positions(peers.rank, _lengths(n, peers.size), layout)


def shard(tensor: Tensor, group: Any = None, *, axis: int = -2, layout: Layout = "contiguous") -> Tensor:
    """This rank's rows of a tensor that every rank has whole; differentiable, and no message is sent.

    axis   that of the sequence. Where its length is no multiple of the ranks, the first ones get one row more.

    >>> import tempfile, torch, torch.distributed as dist
    >>> dist.init_process_group("gloo", init_method=f"file://{tempfile.mkdtemp()}/meet", rank=0, world_size=1)
    >>> shard(torch.arange(4.0).reshape(4, 1)).flatten().tolist()  # one rank has all of it
    [0.0, 1.0, 2.0, 3.0]
    >>> dist.destroy_process_group()
    """
    if not isinstance(tensor, Tensor):
        raise ArgumentTypeError(f"tensor: must be a torch tensor, got {type(tensor).__name__}")
    axis = check_axis(axis, tuple(tensor.shape), f"a tensor of {tensor.dim()} axes")
    rows = positions(tensor.shape[axis], group, layout=layout)
    return tensor.index_select(axis, rows.to(tensor.device))


def unshard(
    shard: Whole, group: Any = None, *, axis: int | None = None, layout: Layout = "contiguous", timeout: Any = None
) -> Whole:
    """The whole tensor, or the whole Reading, on every rank, joined from the shards of all ranks. Detached.

    axis   that of the sequence; -2 for a tensor, where it may be another, and always the rows of a Reading

    Every rank sends its shard to every other and needs memory for the whole: use it for results to be inspected.

    >>> import tempfile, torch, torch.distributed as dist
    >>> dist.init_process_group("gloo", init_method=f"file://{tempfile.mkdtemp()}/meet", rank=0, world_size=1)
    >>> unshard(shard(torch.ones(4, 2))).shape
    torch.Size([4, 2])
    >>> dist.destroy_process_group()
    """
    check_layout(layout)
    if isinstance(shard, Reading):
        if shard.received is not None:
            raise ArgumentError("shard: must be measured without per_key, got a Reading with what each key received")
        fields = torch.stack([getattr(shard, name).double() for name in (*FIELDS, "keys")])
        whole = unshard(fields, group, axis=-1, layout=layout, timeout=timeout)
        columns = dict(zip(FIELDS, whole[:-1].to(shard.variance.dtype), strict=True))
        return Reading(**columns, keys=whole[-1].to(torch.int64), has_sinks=shard.has_sinks)
    if not isinstance(shard, Tensor):
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
            peers.exchange(mine, parts, BLOCK)
            peers.part()
    parts[peers.rank] = mine
    together = mine.new_empty((sum(lengths), *mine.shape[1:]))
    for rank, part in parts.items():
        together[_positions(rank, lengths, layout)] = part
    return together.movedim(0, place)


def _call(name: str, arguments: dict[str, Any], measured: dict[str, Any] | None) -> Tensor:
    """The output; with a dictionary, its Reading and the call as one rank sees it are put there."""
    options = given_options(arguments)
    query, key, value, layout = (arguments[each] for each in ("query", "key", "value", "layout"))
    peers = Peers(arguments["group"], arguments["timeout"], getattr(query, "device", "cpu"))
    note: dict[str, Any] = {}
    wrong = None
    sinks = options.sinks
    try:
        query, key, value = _checked(query, key, value, options)
        check_layout(layout)
        learned = torch.is_grad_enabled() and any(
            isinstance(tensor, Tensor) and tensor.requires_grad for tensor in (query, key, value, sinks)
        )
        note = {
            "call": f"rootdk.distributed.{name}",
            "query": list(query.shape),
            "key": list(key.shape),
            "value": list(value.shape),
            "dtype": str(query.dtype).removeprefix("torch."),
            "layout": layout,
            "requires_grad": learned,
            **{option: digest(setting) for option, setting in options._asdict().items()},
            "rootdk": __version__,
        }
    except (ArgumentError, ArgumentTypeError) as error:
        wrong = error
    except Exception as error:  # noqa: BLE001 -- whatever it is, the others must not wait for this rank
        wrong = ArgumentError(f"arguments: cannot be used, {type(error).__name__}: {error}")
        wrong.__cause__ = error
    notes = agree(peers, note, wrong)

    # From here on all ranks have the same facts, so they all refuse the same calls.
    one_head = query.dim() == 2
    query_lengths, key_lengths = ([theirs[name][-2] for theirs in notes] for name in ("query", "key"))
    whole_query = _shape_of(query, sum(query_lengths))
    whole_key, whole_value = (_shape_of(tensor, sum(key_lengths)) for tensor in (key, value))
    problem, _ = resolve(adapter, whole_query, whole_key, whole_value, options)
    if one_head:
        query, key, value = query[None], key[None], value[None]
    plan = plan_of(peers, problem, query_lengths, key_lengths, layout)
    if note["requires_grad"]:
        sinks = torch.atleast_1d(sinks) if isinstance(sinks, Tensor) else None
        out = RingAttention.apply(plan, notes[0]["number"], measured, query, key, value, sinks)
    else:
        out, _ = forward(plan, measured, query, key, value)
    if measured is not None:
        positions = _positions(peers.rank, query_lengths, layout)
        measured["call"] = Measured(
            query.detach(), positions, measured["first_key"], problem, plan.row_scale, measured["reading"]
        )
        if one_head:
            measured["reading"] = converted(measured["reading"], lambda column: column[0])
    return out[0] if one_head else out


def _checked(query: Any, key: Any, value: Any, options: Options) -> tuple[Tensor, Tensor, Tensor]:
    if not isinstance(query, Tensor):
        raise ArgumentTypeError(f"query: must be a torch tensor, got {type(query).__name__}")
    query, key, value = adapter.inputs(query, key, value)
    check_one_type(query, key, "a ring")
    check_shapes(tuple(query.shape), tuple(key.shape), tuple(value.shape))
    learned = {name: getattr(options, name) for name in LEARNED}
    for name, option in learned.items():
        if name != "sinks" and isinstance(option, Tensor) and option.requires_grad:
            raise ArgumentError(f"{name}: must not require a gradient on a ring, got a tensor that does")
    for name in tangents(query=query, key=key, value=value, **learned):
        raise ArgumentError(f"{name}: must have no tangent on a ring, got one")
    return query, key, value


def _shape_of(tensor: Tensor, rows: int) -> Tensor:
    """A tensor of the whole shape with one number in memory."""
    return tensor.new_empty(()).expand(*tensor.shape[:-2], rows, tensor.shape[-1])


def _lengths(n: Any, ranks: int) -> list[int]:
    """The lengths that `n` stands for: of an even cut if it is one number, else one number per rank."""
    whole = index(n)
    if whole is not None:
        if whole < 0:
            raise ArgumentError(f"n: must be at least 0, got {n}")
        return even_lengths(whole, ranks)
    if not isinstance(n, Sequence) or any(index(length) is None for length in n):
        raise ArgumentTypeError(f"n: must be an int or one int per rank, got {n!r}")
    if len(n) != ranks or min(n, default=0) < 0:
        raise ArgumentError(f"n: must be {ranks} ints of at least 0, one per rank, got {list(n)!r}")
    return list(n)


def _positions(rank: int, lengths: Sequence[int], layout: str) -> Tensor:
    """Where the rows of a rank stand in the whole sequence."""
    return torch.cat([torch.arange(first, first + length) for first, _, length in pieces(lengths, layout)[rank]])
