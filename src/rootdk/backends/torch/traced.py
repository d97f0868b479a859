"""From what a caller wrote to arguments that an operator can carry: tensors and plain numbers.

torch.compile runs through this file, so it looks at no value of any tensor; what depends on values is checked when the
operator runs, by the same resolve() that checks a NumPy call.
"""

from typing import Any

import torch
from torch import Tensor

from .._arguments import (
    check_shapes,
    positive,
    refuse_masked,
    resolve,
    scale_number,
    share,
    shown,
    truth,
    whole_seed,
    window_limits,
)
from .._backends import torch_backend
from ..errors import ArgumentError, ArgumentTypeError
from ..reading import Reading, reading_of
from ..scaling import ScaleRule, rule
from .gradient import Attention
from .operators import attention_forward


def attention(query: Any, *arguments: Any) -> Tensor:
    """rootdk.attention() for tensors that a compiler or a transform follows."""
    out, _, _, _ = _call(query, *arguments, measured=False)
    return out[0] if query.dim() == 2 else out


def measure(query: Any, *arguments: Any) -> tuple[Tensor, Reading]:
    """rootdk.measure() for the same tensors."""
    out, _, block, keys = _call(query, *arguments, measured=True)
    if query.dim() == 2:
        out, block, keys = out[0], block[:, 0], keys[0]
    return out, reading_of(block.detach(), keys, arguments[10] is not None)


def _call(
    query: Any,
    key: Any,
    value: Any,
    scale: Any,
    causal: Any,
    mask: Any,
    bias: Any,
    window: Any,
    query_offset: Any,
    key_lengths: Any,
    softcap: Any,
    sinks: Any,
    dropout: Any,
    seed: Any,
    *,
    measured: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    query, key, value = torch_backend.inputs(query, key, value)
    torch_backend.refuse_shapeless(query=query, key=key, value=value)
    check_shapes(tuple(query.shape), tuple(key.shape), tuple(value.shape))
    if query.dim() == 2:
        query, key, value = query[None], key[None], value[None]
        if isinstance(sinks, Tensor) and sinks.dim() == 0:
            sinks = sinks[None]
    for name, tensor in (("mask", mask), ("bias", bias)):
        if tensor is not None and not isinstance(tensor, Tensor):
            torch_backend.broadcast(name, tensor, (), boolean=False)  # says what is wrong with it
    left, right = (None, None) if window is None else window_limits(window)
    if truth("causal", causal):
        right = 0
    rate = share("dropout", dropout)
    if rate and seed is None:
        seed = torch.randint(2**63 - 1, (1,), device="cpu")
    factor, learned, row_scale = _scale(scale, query, key, query_offset, key_lengths)
    whole_offset = query_offset if isinstance(query_offset, int) and not isinstance(query_offset, bool) else None
    run = attention_forward if _dispatched(query, key, value) else Attention.apply
    return run(  # type: ignore[no-any-return]
        query,
        key,
        value,
        factor,
        learned,
        row_scale,
        None if softcap is None else positive("softcap", softcap),
        left,
        right,
        whole_offset,
        None if whole_offset is not None else _tensor("query_offset", query_offset),
        _tensor("key_lengths", key_lengths),
        mask,
        bias,
        _tensor("sinks", sinks, torch.float64),
        rate,
        _seed(seed),
        measured,
    )


def _dispatched(*tensors: Tensor) -> bool:
    """Whether a compiler, a mode or a tensor type of its own must see an operator and not what it computes."""
    return (
        torch.compiler.is_compiling()
        or any(type(tensor) not in (Tensor, torch.nn.Parameter) for tensor in tensors)
        or torch._C._len_torch_dispatch_stack() > 0  # noqa: SLF001 -- torch tells it nowhere else
        or torch._C._get_tracing_state() is not None  # noqa: SLF001
    )


def _scale(
    given: Any, query: Tensor, key: Tensor, query_offset: Any, key_lengths: Any
) -> tuple[float | None, Tensor | None, Tensor | None]:
    """A number (None is the default), a learned number, or one number per row."""
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
    if "position" not in given.varies and ("keys" not in given.varies or key_lengths is None):
        keys = key.shape[-2] if "keys" in given.varies else None
        return float(given.factor(query.shape[-1], keys, None)), None, None
    if torch.compiler.is_compiling():
        raise ArgumentError(
            f"scale: inside torch.compile a rule must not vary from row to row, got {given.name!r}; "
            "multiply the query by the factors of its rows instead"
        )
    return None, None, _row_scale(given, query, key, query_offset, key_lengths)


def _row_scale(given: ScaleRule, query: Tensor, key: Tensor, query_offset: Any, key_lengths: Any) -> Tensor:
    rest = (False, None, None, None, query_offset, key_lengths, None, None, 0.0, None)
    _, problem, _ = resolve(query.detach(), key.detach(), key.detach(), given, *rest)
    return torch.tensor(problem.row_scale, device="cpu").reshape(*query.shape[:-3], query.shape[-2])


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
