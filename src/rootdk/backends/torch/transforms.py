"""The operators under torch.func and under tangents: their derivatives, forward and back, and their rules for vmap.

torch.func does not look into a registered operator, so these are autograd.Functions out of what operators.py has:

FunctionalAttention    the output. Forward it leads to FunctionalTangent, back to FunctionalPullback.
FunctionalPullback     the gradients, linear in d_out. Both ways lead to FunctionalSecond.
FunctionalTangent      d_out, linear in the tangents. Back, in those, to FunctionalPullback; else to FunctionalSecond.
FunctionalSecond       the gradient of <d_out, tangent of the output>. It holds the scores, and has no derivative.
"""

from typing import Any

import torch
from torch import Tensor

from ...options import Problem, Tangents
from . import eager, second
from .batched import each, is_batched
from .forward_mode import primal
from .operators import (
    NOTHING,
    Operands,
    apart,
    backward_values,
    forward_values,
    keep,
    keep_call,
    keep_second,
    kept,
    problem_of,
    pull_back,
    pull_back_twice,
    refuse_derivative,
    tangent_values,
)


class FunctionalAttention(torch.autograd.Function):  # type: ignore[misc]
    """attention_forward."""

    @staticmethod
    def forward(*arguments: Any) -> tuple[Tensor, ...]:
        return forward_values(*arguments)

    setup_context = staticmethod(keep)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        return pull_back(FunctionalPullback.apply, ctx, *grads)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> tuple[Any, ...]:
        *operands, _measured = tangents
        _, call = kept(ctx)
        call = Operands._make(map(primal, call))
        moved = Operands._make(operands).tangents()
        if is_batched(*moved):
            (d_out,) = each(lambda *entry: (FunctionalTangent.apply(*entry, *call),), *moved)
        else:
            d_out = FunctionalTangent.apply(*moved, *call)
        return d_out, None, None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *arguments: Any) -> tuple[Any, Any]:
        *operands, measured = arguments
        *dims, _ = in_dims
        call, along = Operands._make(operands), Operands._make(dims)
        if _only_one_by_one(call, along):
            return _one_by_one(FunctionalAttention, info, in_dims, arguments)
        mapped = _mapped(along, call, info.batch_size)
        return FunctionalAttention.apply(*mapped, measured), (0, 1, 1 if measured else None, 0 if measured else None)


class FunctionalPullback(torch.autograd.Function):  # type: ignore[misc]
    """attention_backward."""

    @staticmethod
    def forward(*arguments: Any) -> tuple[Tensor, ...]:
        return backward_values(*arguments)

    setup_context = staticmethod(keep_second)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        if not torch._C._are_functorch_transforms_active():  # noqa: SLF001
            return pull_back_twice(ctx, *grads)  # plain operations, which can be differentiated again
        (d_out, _out, _row_state), call = kept(ctx)
        _d_out, _out, _row_state, *asked, _bias_learned = ctx.needs_input_grad
        grads = tuple(None if g is not None and g.shape == (0,) else g for g in grads)
        d_d_out, pulled = _second(d_out, Tangents._make(grads), call, bool(Operands._make(asked).bias))
        return (d_d_out, None, None, *pulled, None)

    @staticmethod
    def jvp(ctx: Any, d_out_moved: Any, _out: Any, _row_state: Any, *tangents: Any) -> tuple[Any, ...]:
        """The gradient of a number is symmetric in what it is differentiated by, forward or back: FunctionalSecond."""
        if is_batched(d_out_moved, *tangents):
            moved = d_out_moved, None, None, *tangents
            return each(lambda *entry: FunctionalPullback.jvp(ctx, *entry), *moved)
        *operands, _bias_learned = tangents
        (d_out, out, row_state), call = kept(ctx)
        d_out, out, call = primal(d_out), primal(out), Operands._make(map(primal, call))
        moved = Operands._make(operands).tangents()
        total = [None] * len(eager.Gradients._fields)
        if any(t is not None for t in moved):
            _, pulled = _second(d_out, moved, call, ctx.bias_learned)
            total = list(eager.Gradients(**pulled.learnable()))
        if d_out_moved is not None:
            first = FunctionalPullback.apply(d_out_moved, out, row_state, *call, ctx.bias_learned)
            total = [f if t is None else f + t for f, t in zip(first, total, strict=True)]
        return tuple(total)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *arguments: Any) -> tuple[Any, Any]:
        d_out, out, row_state, *operands, bias_learned = arguments
        d_out_dim, out_dim, state_dim, *rest, _ = in_dims
        size, call, dims = info.batch_size, Operands._make(operands), Operands._make(rest)
        if _only_one_by_one(call, dims) or call.sinks is not None or call.learned is not None:
            return _one_by_one(FunctionalPullback, info, in_dims, arguments)
        state = _front(row_state, state_dim, size).movedim(0, 1).contiguous()
        call, dims = _own(call, dims, size, bias_learned)
        mapped = _mapped(dims, call, size)
        front = _front(d_out, d_out_dim, size), _front(out, out_dim, size)
        pulled = eager.Gradients._make(FunctionalPullback.apply(*front, state, *mapped, bias_learned))
        pulled, along = _own_shapes(pulled, call, bias_learned)
        return tuple(pulled), tuple(along)


class FunctionalTangent(torch.autograd.Function):  # type: ignore[misc]
    """attention_tangent."""

    @staticmethod
    def forward(*arguments: Any) -> Tensor:
        return tangent_values(*arguments)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG004
        moved, call = apart(inputs)
        keep_call(ctx, call, *moved)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> tuple[Any, ...]:
        if is_batched(grad):
            return each(lambda entry: FunctionalTangent.backward(ctx, entry), grad)
        saved, call = kept(ctx)
        moved = Tangents._make(saved)
        asked_moved, asked = apart(ctx.needs_input_grad)
        pulled, in_call = Tangents(), NOTHING
        if any(asked_moved):
            out, row_state, _, _ = FunctionalAttention.apply(*call, False)
            gradients = FunctionalPullback.apply(grad, out, row_state, *call, bool(asked_moved.bias))
            pulled = Tangents._make(g if a else None for g, a in zip(gradients, asked_moved, strict=True))
        if any(asked):
            _, in_call = _second(grad, moved, call, bool(asked.bias))
        return (*pulled, *in_call)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:  # noqa: ARG004
        refuse_derivative("forward of a forward derivative (jacfwd of jacfwd; jacfwd of jacrev works)")

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *arguments: Any) -> tuple[Any, Any]:
        (moved, call), (moved_dims, dims) = apart(arguments), apart(in_dims)
        if _only_one_by_one(call, dims) or moved_dims.sinks is not None or moved_dims.scale is not None:
            return _one_by_one(FunctionalTangent, info, in_dims, arguments)
        mapped = _mapped(dims, call, info.batch_size)
        return FunctionalTangent.apply(*_mapped_tangents(moved, moved_dims, mapped, info.batch_size), *mapped), 0


class FunctionalSecond(torch.autograd.Function):  # type: ignore[misc]
    """The gradient of <d_out, tangent of the output> in d_out and in every operand: zeros where it does not depend.

    The arguments are d_out, Tangents, Operands, and whether the bias' is wanted; the results d_out's and Gradients.
    """

    @staticmethod
    def forward(d_out: Tensor, *arguments: Any) -> tuple[Tensor, ...]:
        *both, bias_asked = arguments
        moved, call = apart(tuple(both))
        given = call.learnable()
        if not bias_asked and moved.bias is None:
            del given["bias"]
        pulled = second.second_derivative(moved, d_out, problem_of(call), given)
        wanted = {"d_out": d_out, **{name: given.get(name) for name in eager.Gradients._fields}}
        found = ((tensor, pulled.get(name)) for name, tensor in wanted.items())
        return tuple(d_out.new_empty(0) if t is None else torch.zeros_like(t) if p is None else p for t, p in found)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        """Nothing is kept."""

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:  # noqa: ARG004
        refuse_derivative("of a second derivative here (torch.autograd.grad with create_graph=True has it)")

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:  # noqa: ARG004
        refuse_derivative("forward of a second derivative")

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *arguments: Any) -> tuple[Any, Any]:
        d_out, *both, bias_asked = arguments
        d_out_dim, *both_dims, _ = in_dims
        (moved, call), (moved_dims, dims) = apart(tuple(both)), apart(tuple(both_dims))
        if _only_one_by_one(call, dims) or call.sinks is not None or call.learned is not None:
            return _one_by_one(FunctionalSecond, info, in_dims, arguments)
        size, has_bias = info.batch_size, bias_asked or moved.bias is not None
        call, dims = _own(call, dims, size, has_bias)
        mapped = _mapped(dims, call, size)
        tangents = _mapped_tangents(moved, moved_dims, mapped, size)
        d_d_out, *rest = FunctionalSecond.apply(_front(d_out, d_out_dim, size), *tangents, *mapped, bias_asked)
        pulled, along = _own_shapes(eager.Gradients._make(rest), call, has_bias)
        return (d_d_out, *pulled), (0, *along)


def _second(d_out: Tensor, moved: Tangents, call: Operands, bias_asked: bool) -> tuple[Tensor, Operands]:
    """FunctionalSecond's results in d_out and in the operands, None where there is no such operand."""
    d_d_out, *rest = FunctionalSecond.apply(d_out, *moved, *call, bias_asked)
    pulled = eager.Gradients._make(rest)
    return d_d_out, NOTHING._replace(
        query=pulled.query,
        key=pulled.key,
        value=pulled.value,
        learned=None if call.learned is None else pulled.scale,
        sinks=None if call.sinks is None else pulled.sinks,
        alibi=None if call.alibi is None else pulled.alibi,
        bias=pulled.bias if bias_asked else None,
    )


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


def _mapped_tangents(moved: Tangents, dims: Tangents, mapped: Operands, size: int) -> Tangents:
    """The tangents for a call that _mapped() made. Those of sinks and scale are not mapped."""
    rows = {name: getattr(moved, name) for name in ("query", "key", "value")}
    changed = {name: _front(t, getattr(dims, name), size) for name, t in rows.items() if t is not None}
    for name, axes in (("bias", 0), ("alibi", 2)):
        if getattr(moved, name) is not None:
            changed[name] = _aligned(getattr(moved, name), getattr(dims, name), mapped.query.dim() - axes)
    return moved._replace(**changed)


def _own(call: Operands, dims: Operands, size: int, with_bias: bool) -> tuple[Operands, Operands]:
    """A bias, if asked, and slopes for every entry: gradients differ from entry to entry, even where one serves all."""
    if with_bias:
        call, dims = call._replace(bias=_front(call.bias, dims.bias, size)), dims._replace(bias=0)
    if call.alibi is not None:
        call, dims = call._replace(alibi=_front(call.alibi, dims.alibi, size)), dims._replace(alibi=0)
    return call, dims


def _own_shapes(pulled: eager.Gradients, call: Operands, with_bias: bool) -> tuple[eager.Gradients, eager.Gradients]:
    """Gradients for a call that _own() made, in its shapes, and along which axis they are mapped."""
    along = eager.Gradients(query=0, key=0, value=0)
    if with_bias:
        pulled, along = pulled._replace(bias=pulled.bias.reshape(call.bias.shape)), along._replace(bias=0)
    if call.alibi is not None:
        pulled, along = pulled._replace(alibi=pulled.alibi.reshape(call.alibi.shape)), along._replace(alibi=0)
    return pulled, along


def _only_one_by_one(call: Operands, dims: Operands) -> bool:
    """Whether entries cannot become one more leading axis: all share sinks, scale and the seed there."""
    return dims.sinks is not None or dims.learned is not None or call.seed is not None


def _one_by_one(function: Any, info: Any, in_dims: tuple[Any, ...], arguments: tuple[Any, ...]) -> tuple[Any, Any]:
    """Every entry by itself."""
    pairs = list(zip(arguments, in_dims, strict=True))
    entries = [
        function.apply(*(a if dim is None else a.select(dim, i) for a, dim in pairs)) for i in range(info.batch_size)
    ]
    if isinstance(entries[0], Tensor):
        return torch.stack(entries), 0
    return tuple(torch.stack(parts) for parts in zip(*entries, strict=True)), (0,) * len(entries[0])


def _front(tensor: Tensor, dim: int | None, size: int) -> Tensor:
    return tensor.expand(size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)


def _aligned(tensor: Tensor, dim: int | None, axes: int) -> Tensor:
    """With the mapped axis first and axes of length 1 after it, so that the rest broadcasts from the right."""
    if dim is None:
        return tensor
    tensor = tensor.movedim(dim, 0)
    return tensor.reshape(tensor.shape[0], *(1,) * (axes - tensor.dim()), *tensor.shape[1:])
