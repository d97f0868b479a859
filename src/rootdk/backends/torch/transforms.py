"""The operators under torch.func, which does not look into a registered operator: its derivative and its rule for vmap.

Attention and its pull-back as two autograd.Functions, each out of the functions of operators.py.
"""

from typing import Any

import torch
from torch import Tensor

from ...options import Problem
from . import eager
from .forward_mode import refuse_tangent
from .operators import (
    Operands,
    backward_values,
    forward_values,
    keep,
    keep_second,
    pull_back,
    pull_back_twice,
)


class FunctionalAttention(torch.autograd.Function):  # type: ignore[misc]
    """attention_forward under torch.func."""

    @staticmethod
    def forward(*arguments: Any) -> tuple[Tensor, ...]:
        return forward_values(*arguments)

    setup_context = staticmethod(keep)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        return pull_back(FunctionalPullback.apply, ctx, *grads)

    @staticmethod
    def jvp(_ctx: Any, *tangents: Any) -> Any:
        *operands, _measured = tangents
        _refuse_first(**Operands._make(operands).learnable())

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *arguments: Any) -> tuple[Any, Any]:
        *operands, measured = arguments
        *dims, _ = in_dims
        mapped = _mapped(Operands._make(dims), Operands._make(operands), info.batch_size)
        return FunctionalAttention.apply(*mapped, measured), (0, 1, 1 if measured else None, 0 if measured else None)


class FunctionalPullback(torch.autograd.Function):  # type: ignore[misc]
    """attention_backward under torch.func."""

    @staticmethod
    def forward(*arguments: Any) -> tuple[Tensor, ...]:
        return backward_values(*arguments)

    setup_context = staticmethod(keep_second)
    backward = staticmethod(pull_back_twice)

    @staticmethod
    def jvp(_ctx: Any, d_out: Any, _out: Any, _row_state: Any, *tangents: Any) -> Any:
        *operands, _bias_learned = tangents
        _refuse_first(d_out=d_out, **Operands._make(operands).learnable())

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *arguments: Any) -> tuple[Any, Any]:
        d_out, out, row_state, *operands, bias_learned = arguments
        d_out_dim, out_dim, state_dim, *rest, _ = in_dims
        size, call, dims = info.batch_size, Operands._make(operands), Operands._make(rest)
        if call.sinks is not None or call.learned is not None:
            raise RuntimeError("sinks, scale: torch.func.vmap has no rule for their gradients; map over a leading axis")
        state = _front(row_state, state_dim, size).movedim(0, 1).contiguous()
        # Their gradients differ from entry to entry, even where one tensor serves all.
        if bias_learned:
            call, dims = call._replace(bias=_front(call.bias, dims.bias, size)), dims._replace(bias=0)
        if call.alibi is not None:
            call, dims = call._replace(alibi=_front(call.alibi, dims.alibi, size)), dims._replace(alibi=0)
        mapped = _mapped(dims, call, size)
        front = _front(d_out, d_out_dim, size), _front(out, out_dim, size)
        pulled = eager.Gradients._make(FunctionalPullback.apply(*front, state, *mapped, bias_learned))
        if bias_learned:
            pulled = pulled._replace(bias=pulled.bias.reshape(call.bias.shape))
        if call.alibi is not None:
            pulled = pulled._replace(alibi=pulled.alibi.reshape(call.alibi.shape))
        along = eager.Gradients(
            query=0, key=0, value=0, bias=0 if bias_learned else None, alibi=None if call.alibi is None else 0
        )
        return tuple(pulled), tuple(along)


def _refuse_first(**tangents: Any) -> None:
    refuse_tangent(next(name for name, tangent in tangents.items() if tangent is not None))


def differentiable_gradients(
    problem: Problem, d_out: Tensor, out: Tensor, row_state: Tensor,
    sinks: Any = None, learned: Any = None, bias: Any = None, alibi: Any = None,
) -> eager.Gradients:  # fmt: skip
    """eager.gradients() as a function that torch can differentiate: a Problem becomes Operands again."""
    query = problem.query
    batch = tuple(query.shape[:-3]) or (1,)
    signed_seed = problem.seed - 2**64 if problem.seed >= 2**63 else problem.seed
    call = Operands(**{name: getattr(problem, name, None) for name in Operands._fields})._replace(
        scale=problem.scale if learned is None else None,
        learned=learned,
        row_scale=_as_tensor(problem.row_scale, (*query.shape[:-3], query.shape[-2])),
        query_offset=_as_tensor(problem.query_offset, batch),
        query_segments=_as_tensor(problem.query_segments, (*query.shape[:-3], query.shape[-2])),
        key_segments=_as_tensor(problem.key_segments, (*query.shape[:-3], problem.key.shape[-2])),
        query_positions=_as_tensor(problem.query_positions, (*query.shape[:-3], query.shape[-2])),
        key_lengths=_as_tensor(problem.key_lengths, batch),
        bias=problem.bias if bias is None else bias,
        sinks=_as_tensor(problem.sinks, query.shape[-3:-2]) if sinks is None else sinks,
        alibi=_as_tensor(problem.alibi, query.shape[:-2]) if alibi is None else alibi,
        seed=None if problem.dropout == 0.0 else torch.tensor([signed_seed], device="cpu"),
    )
    pulled = eager.Gradients._make(FunctionalPullback.apply(d_out, out, row_state, *call, bias is not None))
    return pulled._replace(
        sinks=None if sinks is None else pulled.sinks,
        scale=None if learned is None else pulled.scale,
        bias=None if bias is None else pulled.bias,
        alibi=None if alibi is None else pulled.alibi,
    )


def _as_tensor(array: Any, shape: tuple[int, ...]) -> Any:
    return None if array is None else torch.tensor(array, device="cpu").reshape(shape)


def _mapped(dims: Operands, call: Operands, size: int) -> Operands:
    """The same call with the mapped axis as one more leading axis."""
    unmapped = {"sinks": dims.sinks is None, "scale": dims.learned is None, "dropout": call.seed is None}
    for name, fine in unmapped.items():
        if not fine:
            raise RuntimeError(f"{name}: torch.func.vmap has no rule for it; map over a leading axis instead")
    query = _front(call.query, dims.query, size)
    leading = query.shape[:-3]
    changed = {"query": query, "key": _front(call.key, dims.key, size), "value": _front(call.value, dims.value, size)}
    for name, shape in (
        ("row_scale", (*leading, query.shape[-2])),
        ("query_segments", (*leading, query.shape[-2])),
        ("key_segments", (*leading, changed["key"].shape[-2])),
        ("query_positions", (*leading, query.shape[-2])),
        ("query_offset", leading),
        ("key_lengths", leading),
    ):
        given = getattr(call, name)
        if given is not None:
            changed[name] = _aligned(given, getattr(dims, name), len(shape)).expand(shape)
    for name, axes in (("mask", 3), ("bias", 3), ("alibi", 1)):
        if getattr(dims, name) is not None:
            changed[name] = _aligned(getattr(call, name), getattr(dims, name), len(leading) + axes)
    return call._replace(**changed)


def _front(tensor: Tensor, dim: int | None, size: int) -> Tensor:
    return tensor.expand(size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)


def _aligned(tensor: Tensor, dim: int | None, axes: int) -> Tensor:
    """With the mapped axis first and axes of length 1 after it, so that the rest broadcasts from the right."""
    if dim is None:
        return tensor
    tensor = tensor.movedim(dim, 0)
    return tensor.reshape(tensor.shape[0], *(1,) * (axes - tensor.dim()), *tensor.shape[1:])
