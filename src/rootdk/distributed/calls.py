"""attention() and measure() on a ring of ranks: check, agree, resolve, run."""

from typing import Any

import torch
from torch import Tensor

from ..backends import torch as adapter
from ..errors import ArgumentError, ArgumentTypeError
from ..options import Options, check_shapes, resolve
from ..reading import Reading, converted
from ..scaling import ScaleRule
from ..version import __version__
from . import observing
from .blocks import plan_of
from .layout import Layout, check_layout, row_positions
from .peers import Peers, agree, digest
from .ring import RingAttention, forward


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
                  2R chunks, so that all ranks have equal work under a causal mask; rootdk.distributed.shard cuts so.
    timeout       seconds that this rank waits for any other at any one point; None is the timeout of the group

    The others are the options of rootdk.attention, for the whole sequence: key_lengths count its keys, and the last
    query of all is aligned with the last key of all. They must be the same on every rank.

    Keys and values travel round the ring while the kernel works on the block at hand, so a rank needs memory for two
    blocks beside its own shards, and for two gradients of blocks more on the way back. Gradients reach query, key,
    value and sinks; the gradient of `sinks` is that of this rank's rows, as for any weight that all ranks share.
    Backward has to run on every rank.

    Exact to rounding: see rootdk.distributed.blocks for how blocks become one softmax and rootdk.distributed.ring for
    the gradient. mask, bias and dropout are not there.

    Errors: ArgumentError on every rank, before work starts, where the ranks' arguments do not fit each other. RankError
    on every rank where one died or fell silent; the group is of no use then.

    >>> import tempfile, rootdk, torch, torch.distributed as dist
    >>> where = f"file://{tempfile.mkdtemp()}/meet"
    >>> dist.init_process_group("gloo", init_method=where, rank=0, world_size=1)
    >>> q = torch.randn(2, 16, 8)
    >>> bool(torch.allclose(attention(q, q, q, causal=True), rootdk.attention(q, q, q, causal=True)))
    True
    >>> dist.destroy_process_group()
    """
    options = _options(locals())
    listeners = observing.listening()
    measured: dict[str, Any] | None = {} if listeners else None
    out = _call("attention", query, key, value, group, layout, timeout, options, measured)
    for on_call in listeners:
        on_call(measured["call"])  # type: ignore[index]  # measured where somebody listens
    return out


def measure(
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
    timeout: Any = None,
) -> tuple[Tensor, Reading]:
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
    options = _options(locals())
    measured: dict[str, Any] = {}
    out = _call("measure", query, key, value, group, layout, timeout, options, measured)
    return out, measured["reading"]


def _options(arguments: dict[str, Any]) -> Options:
    """The options among the arguments of a call. For those that a ring does not have, the default."""
    return Options(**{name: arguments[name] for name in Options._fields if name in arguments})


def _call(
    name: str, query: Any, key: Any, value: Any, group: Any, layout: Any, timeout: Any, options: Options,
    measured: dict[str, Any] | None,
) -> Tensor:  # fmt: skip
    """The output; with a dictionary, its Reading and the call as one rank sees it are put there."""
    peers = Peers(group, timeout, getattr(query, "device", "cpu"))
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

    # From here on all ranks know the same, so what is refused is refused by all of them.
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
        positions = row_positions(peers.rank, query_lengths, layout)
        measured["call"] = observing.Measured(
            query.detach(), positions, measured["first_key"], problem, plan.row_scale, measured["reading"]
        )
        if one_head:
            measured["reading"] = converted(measured["reading"], lambda column: column[0])
    return out[0] if one_head else out


def _checked(query: Any, key: Any, value: Any, options: Options) -> tuple[Tensor, Tensor, Tensor]:
    if not isinstance(query, Tensor):
        raise ArgumentTypeError(f"query: must be a torch tensor, got {type(query).__name__}")
    query, key, value = adapter.inputs(query, key, value)
    check_shapes(tuple(query.shape), tuple(key.shape), tuple(value.shape))
    if isinstance(options.scale, Tensor) and options.scale.requires_grad:
        raise ArgumentError("scale: must not require a gradient on a ring, got a tensor that does")
    return query, key, value


def _shape_of(tensor: Tensor, rows: int) -> Tensor:
    """Of the whole shape, with one number in memory."""
    return tensor.new_empty(()).expand(*tensor.shape[:-2], rows, tensor.shape[-1])
