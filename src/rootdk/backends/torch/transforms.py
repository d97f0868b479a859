"""What autograd does with the operator: what is kept, how it is pulled back, and what vmap makes of it.

Kept are query, key, value, the output, two numbers per row and the options: all of it grows with n, not with n x n.
Attention and Pullback are the same two operators for torch.func, which does not look into an operator's derivative.
"""

from typing import Any

import torch
from torch import Tensor

from .._backends import torch_composite
from .._backends.problem import Problem
from .._backends.torch_batched import each, is_batched
from .._backends.torch_forward_mode import refuse_tangent
from .values import backward_values, forward_values, problem_of

# Positions of the arguments of forward_values that are tensors; the others are numbers.
_TENSORS = (0, 1, 2, 4, 5, 10, 11, 12, 13, 14, 16)
_LEARNED, _ROW_SCALE, _OFFSET, _LENGTHS, _MASK, _BIAS, _SINKS, _SEED = _TENSORS[3:]
_COUNT = 17
_DIFFERENTIABLE = {0: "query", 1: "key", 2: "value", _LEARNED: "scale", _BIAS: "bias", _SINKS: "sinks"}


def keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    """Note what pull_back needs."""
    out, row_state, _, _ = output
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(out, row_state, *(inputs[i] for i in _TENSORS))
    ctx.numbers = [None if i in _TENSORS else inputs[i] for i in range(_COUNT)]


def pull_back(run: Any, ctx: Any, d_out: Any, *_: Any) -> tuple[Any, ...]:
    """The gradients of the arguments of forward_values; `run` is the operator that computes them."""
    if is_batched(d_out):
        return each(lambda one: pull_back(run, ctx, one), d_out)
    gradients: list[Any] = [None] * (_COUNT + 1)
    if d_out is None:
        return tuple(gradients)
    out, row_state, *tensors = ctx.saved_tensors
    arguments = _together(ctx.numbers, tensors)
    # The one gradient that may be of size n x n is made only for a bias that asks for it.
    bias_learned = bool(ctx.needs_input_grad[_BIAS])
    d_query, d_key, d_value, d_sinks, d_scale, d_bias = run(d_out, out, row_state, *arguments, bias_learned)
    gradients[:3] = d_query, d_key, d_value
    gradients[_LEARNED] = None if arguments[_LEARNED] is None else d_scale
    gradients[_SINKS] = None if arguments[_SINKS] is None else d_sinks
    gradients[_BIAS] = d_bias if bias_learned else None
    return tuple(gradients)


def keep_second(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:  # noqa: ARG001
    """Note what second needs. The output and the state of the rows follow from the rest."""
    d_out, _, _, *arguments = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(d_out, *(arguments[i] for i in _TENSORS))
    ctx.numbers = [None if i in _TENSORS else arguments[i] for i in range(_COUNT)]


def second(ctx: Any, *grads: Any) -> tuple[Any, ...]:
    """The derivative of the derivative, out of plain tensor operations that hold all scores at once."""
    if torch._C._are_functorch_transforms_active():  # noqa: SLF001
        raise RuntimeError(
            "rootdk: torch.func reaches the first derivative of attention only; "
            "for the second use torch.autograd.grad with create_graph=True"
        )
    if is_batched(*grads):
        return each(lambda *one: second(ctx, *one), *grads)
    d_out, *tensors = ctx.saved_tensors
    arguments = _together(ctx.numbers, tensors)
    leaves = {"query": 0, "key": 1, "value": 2, "sinks": _SINKS, "scale": _LEARNED}
    if ctx.needs_input_grad[3 + _BIAS]:
        leaves["bias"] = _BIAS
    given = {name: arguments[i] for name, i in leaves.items()}
    found = torch_composite.second_derivative(grads, d_out, problem_of(*arguments), given)
    gradients: list[Any] = [None] * (3 + _COUNT + 1)
    gradients[0] = found.get("d_out")
    for name, i in leaves.items():
        gradients[3 + i] = found.get(name)
    return tuple(gradients)


def _together(numbers: list[Any], tensors: list[Any]) -> list[Any]:
    arguments = list(numbers)
    for i, tensor in zip(_TENSORS, tensors, strict=True):
        arguments[i] = tensor
    return arguments


class Pullback(torch.autograd.Function):  # type: ignore[misc]
    """attention_backward under torch.func."""

    @staticmethod
    def forward(*arguments: Any) -> tuple[Tensor, ...]:
        return backward_values(*arguments)

    setup_context = staticmethod(keep_second)
    backward = staticmethod(second)

    @staticmethod
    def jvp(_ctx: Any, d_out: Any, _out: Any, _row_state: Any, *tangents: Any) -> Any:
        _refuse_first(d_out=d_out, **{name: tangents[i] for i, name in _DIFFERENTIABLE.items()})

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *arguments: Any) -> tuple[Any, Any]:
        d_out, out, row_state, *rest, bias_learned = arguments
        size, dims = info.batch_size, list(in_dims[3:-1])
        if rest[_SINKS] is not None or rest[_LEARNED] is not None:
            raise RuntimeError("sinks, scale: torch.func.vmap has no rule for their gradients; map over a leading axis")
        state = row_state.expand(size, *row_state.shape) if in_dims[2] is None else row_state.movedim(in_dims[2], 0)
        front = [_front(t, dim, size) for t, dim in zip((d_out, out), in_dims, strict=False)]
        if bias_learned:  # its gradient differs from entry to entry, even where one bias serves all
            rest[_BIAS], dims[_BIAS] = _front(rest[_BIAS], dims[_BIAS], size), 0
        mapped = _mapped(tuple(dims), rest, size)
        *results, d_bias = Pullback.apply(*front, state.movedim(0, 1).contiguous(), *mapped, bias_learned)
        if bias_learned:
            d_bias = d_bias.reshape(rest[_BIAS].shape)
        return (*results, d_bias), (0, 0, 0, None, None, 0 if bias_learned else None)


class Attention(torch.autograd.Function):  # type: ignore[misc]
    """attention_forward under torch.func."""

    @staticmethod
    def forward(*arguments: Any) -> tuple[Tensor, ...]:
        return forward_values(*arguments)

    setup_context = staticmethod(keep)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        return pull_back(Pullback.apply, ctx, *grads)

    @staticmethod
    def jvp(_ctx: Any, *tangents: Any) -> Any:
        _refuse_first(**{name: tangents[i] for i, name in _DIFFERENTIABLE.items()})

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *arguments: Any) -> tuple[Any, Any]:
        measured = arguments[-1]
        mapped = _mapped(in_dims[:_COUNT], arguments[:_COUNT], info.batch_size)
        return Attention.apply(*mapped, measured), (0, 1, 1 if measured else None, 0 if measured else None)


def _refuse_first(**tangents: Any) -> None:
    refuse_tangent(next(name for name, tangent in tangents.items() if tangent is not None))


def followed(
    problem: Problem, d_out: Tensor, out: Tensor, row_state: Tensor,
    sinks: Any = None, learned: Any = None, bias: Any = None,
) -> tuple[Any, ...]:  # fmt: skip
    """torch_autograd.gradients() through Pullback: a Problem is taken apart again into what torch can follow."""
    query = problem.query
    batch = tuple(query.shape[:-3]) or (1,)
    signed = problem.seed - 2**64 if problem.seed >= 2**63 else problem.seed
    *found, d_bias = Pullback.apply(
        d_out,
        out,
        row_state,
        query,
        problem.key,
        problem.value,
        problem.scale if learned is None else None,
        learned,
        _as_tensor(problem.row_scale, (*query.shape[:-3], query.shape[-2])),
        problem.softcap,
        problem.left,
        problem.right,
        None,
        _as_tensor(problem.query_offset, batch),
        _as_tensor(problem.key_lengths, batch),
        problem.mask,
        problem.bias if bias is None else bias,
        _as_tensor(problem.sinks, query.shape[-3:-2]) if sinks is None else sinks,
        problem.dropout,
        None if problem.dropout == 0.0 else torch.tensor([signed], device="cpu"),
        bias is not None,
    )
    d_query, d_key, d_value, d_sinks, d_scale = found
    return (
        d_query,
        d_key,
        d_value,
        None if sinks is None else d_sinks,
        None if learned is None else d_scale,
        None if bias is None else d_bias,
    )


def _as_tensor(array: Any, shape: tuple[int, ...]) -> Any:
    return None if array is None else torch.tensor(array, device="cpu").reshape(shape)


def _mapped(in_dims: tuple[Any, ...], arguments: Any, size: int) -> list[Any]:
    """The same call with the mapped axis as one more leading axis."""
    for name, i in (("sinks", _SINKS), ("scale", _LEARNED), ("dropout", _SEED)):
        if in_dims[i] is not None or (i == _SEED and arguments[i] is not None):
            raise RuntimeError(f"{name}: torch.func.vmap has no rule for it; map over a leading axis instead")
    mapped = list(arguments)
    for i in range(3):
        mapped[i] = _front(arguments[i], in_dims[i], size)
    leading = mapped[0].shape[:-3]
    for i, shape in ((_ROW_SCALE, (*leading, mapped[0].shape[-2])), (_OFFSET, leading), (_LENGTHS, leading)):
        if arguments[i] is not None:
            mapped[i] = _aligned(arguments[i], in_dims[i], len(shape)).expand(shape)
    for i in (_MASK, _BIAS):
        if in_dims[i] is not None:
            mapped[i] = _aligned(arguments[i], in_dims[i], len(leading) + 3)
    return mapped


def _front(tensor: Tensor, dim: int | None, size: int) -> Tensor:
    return tensor.expand(size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)


def _aligned(tensor: Tensor, dim: int | None, axes: int) -> Tensor:
    """With the mapped axis first and axes of length 1 after it, so that the rest broadcasts from the right."""
    if dim is None:
        return tensor
    tensor = tensor.movedim(dim, 0)
    return tensor.reshape(tensor.shape[0], *(1,) * (axes - tensor.dim()), *tensor.shape[1:])
