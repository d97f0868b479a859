"""From a caller's arguments to those that an operator can carry: tensors and plain numbers.

torch.compile runs through this file, so it looks at no value of any tensor; what depends on values is checked when the
operator runs, by the same resolve() that checks a NumPy call.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from ...checks import positive, refuse_masked, share, shown, whole_seed
from ...errors import ArgumentError, ArgumentTypeError
from ...options import (
    ENTRIES,
    HEADS,
    PAIRS,
    Learnable,
    Options,
    check_one_type,
    check_shapes,
    limits,
    resolve,
    scale_number,
    segment_pair,
)
from ...reading import reading_of
from ...scaling import ScaleRule, rule
from .. import torch as adapter
from .kernel import refuse_tangent
from .operators import Facts, attention_forward, attention_tangent
from .transforms import FunctionalAttention


def call(
    query: Any, key: Any, value: Any, options: Options, measured: bool, only_reads: bool = False
) -> tuple[Tensor, Any]:
    """rootdk.attention() or rootdk.measure() for tensors that a compiler or a transform follows.

    only_reads    rootdk.read(): nothing of the values is computed, and no derivative gets lost
    """
    query, key, value = adapter.inputs(query, key, value)
    check_one_type(query, key, "torch.compile and torch.func")
    adapter.refuse_shapeless(query=query, key=key, value=value)
    check_shapes(tuple(query.shape), tuple(key.shape), tuple(value.shape))
    if only_reads:
        value = key[..., :0]
    one_head = query.dim() == 2
    if one_head:
        query, key, value = query[None], key[None], value[None]
    for name in ("mask", *PAIRS):
        tensor = getattr(options, name)
        if tensor is not None and not isinstance(tensor, Tensor):
            adapter.broadcast(name, tensor, (), boolean=False)  # raises the error that says what is wrong
    learned = {name: getattr(options, name) for name in PAIRS}
    learned |= {name: _tensor(name, getattr(options, name), torch.float64) for name in (*HEADS, *ENTRIES)}
    for name in HEADS:
        if one_head and learned[name] is not None and learned[name].dim() == 0:
            learned[name] = learned[name][None]
    left, right = limits(options)
    rate, seed = share("dropout", options.dropout), options.seed
    if rate and seed is None:
        seed = torch.randint(2**63 - 1, (1,), device="cpu")
    factor, scale, row_scale = _scale(query, key, options)
    offset = options.query_offset
    whole_offset = offset if isinstance(offset, int) and not isinstance(offset, bool) else None
    segments: tuple[Any, Any] = (None, None)
    if options.segments is not None:
        segments = segment_pair(options.segments, query.shape[-2], key.shape[-2])
    given = Learnable(query, key, value, scale=scale, **learned)
    if only_reads:
        for name, tensor in given._asdict().items():
            if tensor is not None and forward_ad.unpack_dual(tensor).tangent is not None:
                refuse_tangent(name, "in read(), whose Reading has no derivative (detach it)")
    facts = Facts(
        factor=factor, row_scale=row_scale, left=left, right=right, mask=options.mask, dropout=rate, seed=_seed(seed),
        softcap=None if options.softcap is None else positive("softcap", options.softcap),
        offset=whole_offset, query_offset=None if whole_offset is not None else _tensor("query_offset", offset),
        key_lengths=_tensor("key_lengths", options.key_lengths),
        query_segments=_tensor("segments", segments[0]), key_segments=_tensor("segments", segments[1]),
    )  # fmt: skip
    if _dispatched(query, key, value):
        out, block, keys = _operators(given, facts, measured)
    else:
        out, _row_state, block, keys = FunctionalAttention.apply(*given, *facts, measured)
    if one_head:
        out = out[0]
    if not measured:
        return out, None
    if one_head:
        block, keys = block[:, 0], keys[0]
    return out, reading_of(block.detach(), keys, options.sinks is not None)


def _operators(given: Learnable, facts: Facts, measured: bool) -> tuple[Tensor, Tensor, Tensor]:
    """The registered operators. They carry no tangent, so there is an operator for it."""
    given_tangents = [None if t is None else forward_ad.unpack_dual(t).tangent for t in given]
    if all(tangent is None for tangent in given_tangents):
        out, _row_state, block, keys = attention_forward(*given, *facts, measured)
        return out, block, keys
    plain = [forward_ad.unpack_dual(t).primal if isinstance(t, Tensor) else t for t in (*given, *facts)]
    out, _row_state, block, keys = attention_forward(*plain, measured)
    return forward_ad.make_dual(out, attention_tangent(*given_tangents, *plain)), block, keys


def _dispatched(*tensors: Tensor) -> bool:
    """Whether a compiler, a mode or a tensor subclass must see an operator and not what it computes."""
    return (
        torch.compiler.is_compiling()
        or any(type(tensor) not in (Tensor, torch.nn.Parameter) for tensor in tensors)
        or torch._C._len_torch_dispatch_stack() > 0  # noqa: SLF001 -- torch has no public name for it
        or torch._C._get_tracing_state() is not None  # noqa: SLF001
    )


def _scale(query: Tensor, key: Tensor, options: Options) -> tuple[float | None, Tensor | None, Tensor | None]:
    """A number (None is the default), a learned number, or one number per row."""
    given = options.scale
    if given is None:
        return None, None, None
    if isinstance(given, Tensor):
        if given.dim() != 0 or not given.is_floating_point():
            raise ArgumentTypeError(
                f"scale: must be None, a number, a tensor without axes, a name or a rule from rootdk.scaling, "
                f"got a tensor of shape {tuple(given.shape)}"
            )
        return None, given, None
    if isinstance(given, str):
        given = rule(given)
    if not isinstance(given, ScaleRule):
        return scale_number(given), None, None
    if "position" not in given.varies and (
        "keys" not in given.varies or options.key_lengths is options.segments is None
    ):
        keys = key.shape[-2] if "keys" in given.varies else None
        return float(given.factor(query.shape[-1], keys, None)), None, None
    if torch.compiler.is_compiling():
        raise ArgumentError(
            f"scale: inside torch.compile a rule must not vary from row to row, got {given.name!r}; "
            "multiply the query by the factors of its rows instead"
        )
    positional = ("query_offset", "key_lengths", "segments")
    positions = Options(scale=given, **{name: getattr(options, name) for name in positional})
    problem, _ = resolve(adapter, query.detach(), key.detach(), key.detach(), positions)
    rows = torch.tensor(problem.row_scale, device="cpu")
    return None, None, rows.reshape(*query.shape[:-3], query.shape[-2])


def _tensor(argument: str, given: Any, dtype: Any = None) -> Tensor | None:
    if given is None or isinstance(given, Tensor):
        return given
    refuse_masked(argument, given)
    try:
        return torch.as_tensor(given, dtype=dtype, device="cpu")
    except (ValueError, TypeError, RuntimeError, OverflowError) as error:
        if isinstance(error, OverflowError) or "Overflow" in str(error):
            raise ArgumentError(f"{argument}: must be numbers of at most 64 bits, got {shown(given)}") from None
        raise ArgumentTypeError(f"{argument}: must be numbers, got {shown(given)}") from None


def _seed(given: Any) -> Tensor | None:
    if given is None or isinstance(given, Tensor):
        return given
    seed = whole_seed(given)
    # Operators carry 64 signed bits; operators.py turns them back.
    return torch.tensor([seed - 2**64 if seed >= 2**63 else seed], device="cpu")
