"""From what a caller wrote to arguments that an operator can carry: tensors and plain numbers.

torch.compile runs through this file, so it looks at no value of any tensor; what depends on values is checked when the
operator runs, by the same resolve() that checks a NumPy call.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from ...checks import positive, refuse_masked, share, shown, whole_seed
from ...errors import ArgumentError, ArgumentTypeError
from ...options import Options, Tangents, check_one_type, check_shapes, limits, resolve, scale_number, segment_pair
from ...reading import reading_of
from ...scaling import ScaleRule, rule
from .. import torch as adapter
from .operators import AS_SAID, Operands, attention_forward, attention_tangent
from .transforms import FunctionalAttention


def call(query: Any, key: Any, value: Any, options: Options, measured: bool) -> tuple[Tensor, Any]:
    """rootdk.attention() or rootdk.measure() for tensors that a compiler or a transform follows."""
    query, key, value = adapter.inputs(query, key, value)
    check_one_type(query, key, "torch.compile and torch.func")
    adapter.refuse_shapeless(query=query, key=key, value=value)
    check_shapes(tuple(query.shape), tuple(key.shape), tuple(value.shape))
    sinks, one_head = options.sinks, query.dim() == 2
    if one_head:
        query, key, value = query[None], key[None], value[None]
        if isinstance(sinks, Tensor) and sinks.dim() == 0:
            sinks = sinks[None]
    for name, tensor in (("mask", options.mask), ("bias", options.bias)):
        if tensor is not None and not isinstance(tensor, Tensor):
            adapter.broadcast(name, tensor, (), boolean=False)  # says what is wrong with it
    left, right = limits(options)
    rate, seed = share("dropout", options.dropout), options.seed
    if rate and seed is None:
        seed = torch.randint(2**63 - 1, (1,), device="cpu")
    scale, learned, row_scale = _scale(query, key, options)
    offset = options.query_offset
    whole_offset = offset if isinstance(offset, int) and not isinstance(offset, bool) else None
    as_said = {name: getattr(options, name) for name in AS_SAID}
    changed = {
        "softcap": None if options.softcap is None else positive("softcap", options.softcap),
        "key_lengths": _tensor("key_lengths", options.key_lengths),
        "sinks": _tensor("sinks", sinks, torch.float64),
        "alibi": _tensor("alibi", options.alibi, torch.float64),
        "dropout": rate,
    }
    segments: tuple[Any, Any] = (None, None)
    if options.segments is not None:
        segments = segment_pair(options.segments, query.shape[-2], key.shape[-2])
    operands = Operands(
        query, key, value, scale=scale, learned=learned, row_scale=row_scale, left=left, right=right,
        offset=whole_offset, query_offset=None if whole_offset is not None else _tensor("query_offset", offset),
        query_segments=_tensor("segments", segments[0]), key_segments=_tensor("segments", segments[1]),
        query_positions=None, seed=_seed(seed), **(as_said | changed),
    )  # fmt: skip
    if _dispatched(query, key, value):
        out, block, keys = _operators(operands, measured)
    else:
        out, _row_state, block, keys = FunctionalAttention.apply(*operands, measured)
    if one_head:
        out = out[0]
    if not measured:
        return out, None
    if one_head:
        block, keys = block[:, 0], keys[0]
    return out, reading_of(block.detach(), keys, options.sinks is not None)


def _operators(operands: Operands, measured: bool) -> tuple[Tensor, Tensor, Tensor]:
    """The registered operators. They carry no tangent, so it goes through one of its own."""
    moved = {name: forward_ad.unpack_dual(t).tangent for name, t in operands.learnable().items() if t is not None}
    if all(tangent is None for tangent in moved.values()):
        out, _row_state, block, keys = attention_forward(*operands, measured)
        return out, block, keys
    plain = Operands(*[forward_ad.unpack_dual(t).primal if isinstance(t, Tensor) else t for t in operands])
    out, _row_state, block, keys = attention_forward(*plain, measured)
    return forward_ad.make_dual(out, attention_tangent(*Tangents(**moved), *plain)), block, keys


def _dispatched(*tensors: Tensor) -> bool:
    """Whether a compiler, a mode or a tensor type of its own must see an operator and not what it computes."""
    return (
        torch.compiler.is_compiling()
        or any(type(tensor) not in (Tensor, torch.nn.Parameter) for tensor in tensors)
        or torch._C._len_torch_dispatch_stack() > 0  # noqa: SLF001 -- torch tells it nowhere else
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
    said = ("query_offset", "key_lengths", "segments")
    where = Options(scale=given, **{name: getattr(options, name) for name in said})
    problem, _ = resolve(adapter, query.detach(), key.detach(), key.detach(), where)
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
