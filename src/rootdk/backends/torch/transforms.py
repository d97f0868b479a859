"""The operators under torch.func and under tangents: their derivatives, forward and back, and their rules for vmap.

torch.func does not look into a registered operator, so these are autograd.Functions built from operators.py:

FunctionalAttention    the output. Its forward derivative is FunctionalTangent, its backward one FunctionalPullback.
FunctionalPullback     the gradients, linear in d_out. Both derivatives are FunctionalSecond.
FunctionalTangent      d_out, linear in the tangents. Backward, in those, FunctionalPullback; else FunctionalSecond.
FunctionalSecond       the gradient of <d_out, tangent of the output>. It holds the scores, and has no derivative.
"""

from typing import Any

import torch
from torch import Tensor

from ...options import ENTRIES, HEADS, NUMBERS, PAIRS, ROWS, Learnable, Problem
from . import kernel, second
from .kernel import each, is_batched, primal, transformed
from .operators import (
    NO_FACTS,
    Facts,
    Operands,
    among,
    asked,
    asks_for_pairs,
    backward_values,
    forward_values,
    keep,
    keep_call,
    keep_second,
    kept,
    operands,
    problem_of,
    pull_back,
    pull_back_twice,
    refuse_derivative,
    split_tangents,
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
        *flat_operands, _measured = tangents
        _, call = kept(ctx)
        call, given_tangents = _primal(call), operands(flat_operands).given
        if is_batched(*given_tangents):
            (d_out,) = each(
                lambda *entry: (FunctionalTangent.apply(*entry, *call.given, *call.facts),), *given_tangents
            )
        else:
            d_out = FunctionalTangent.apply(*given_tangents, *call.given, *call.facts)
        return d_out, None, None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *arguments: Any) -> tuple[Any, Any]:
        *flat_operands, measured = arguments
        *dims, _ = in_dims
        call, along = operands(flat_operands), operands(dims)
        if _only_one_by_one(call, along):
            return _one_by_one(FunctionalAttention, info, in_dims, arguments)
        given, facts = _mapped(along, call, info.batch_size)
        out_dims = (0, 1, 1, 0) if measured else (0, 1, None, None)
        return FunctionalAttention.apply(*given, *facts, measured), out_dims


class FunctionalPullback(torch.autograd.Function):  # type: ignore[misc]
    """attention_backward."""

    @staticmethod
    def forward(*arguments: Any) -> tuple[Tensor, ...]:
        return backward_values(*arguments)

    setup_context = staticmethod(keep_second)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        if not transformed():
            return pull_back_twice(ctx, *grads)  # plain operations, which can be differentiated again
        (d_out, _out, _row_state), call = kept(ctx)
        _d_out, _out, _row_state, *wanted, _pairs_asked = ctx.needs_input_grad
        grads = tuple(None if g is not None and g.shape == (0,) else g for g in grads)
        d_d_out, pulled = _second(d_out, Learnable._make(grads), call, asks_for_pairs(operands(wanted).given))
        return (d_d_out, None, None, *pulled, *NO_FACTS, None)

    @staticmethod
    def jvp(ctx: Any, d_out_tangent: Any, _out: Any, _row_state: Any, *tangents: Any) -> tuple[Any, ...]:
        """Second derivatives of a number are symmetric, so forward and backward give the same: FunctionalSecond."""
        if is_batched(d_out_tangent, *tangents):
            given_tangents = d_out_tangent, None, None, *tangents
            return each(lambda *entry: FunctionalPullback.jvp(ctx, *entry), *given_tangents)
        *flat_operands, _pairs_asked = tangents
        (d_out, out, row_state), call = kept(ctx)
        d_out, out, call, given_tangents = primal(d_out), primal(out), _primal(call), operands(flat_operands).given
        total: Any = Learnable()
        if any(t is not None for t in given_tangents):
            _, total = _second(d_out, given_tangents, call, ctx.pairs_asked)
        if d_out_tangent is not None:
            first = FunctionalPullback.apply(d_out_tangent, out, row_state, *call.given, *call.facts, ctx.pairs_asked)
            total = [f if t is None else f + t for f, t in zip(first, total, strict=True)]
        return tuple(total)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *arguments: Any) -> tuple[Any, Any]:
        d_out, out, row_state, *flat_operands, pairs_asked = arguments
        d_out_dim, out_dim, state_dim, *rest, _ = in_dims
        size, call, dims = info.batch_size, operands(flat_operands), operands(rest)
        if _only_one_by_one(call, dims) or _has_shared(call.given):
            return _one_by_one(FunctionalPullback, info, in_dims, arguments)
        state = _front(row_state, state_dim, size).movedim(0, 1).contiguous()
        call, dims = _own(call, dims, size, pairs_asked)
        given, facts = _mapped(dims, call, size)
        front = _front(d_out, d_out_dim, size), _front(out, out_dim, size)
        pulled = FunctionalPullback.apply(*front, state, *given, *facts, pairs_asked)
        return _own_shapes(pulled, call.given, pairs_asked)


class FunctionalTangent(torch.autograd.Function):  # type: ignore[misc]
    """attention_tangent."""

    @staticmethod
    def forward(*arguments: Any) -> Tensor:
        return tangent_values(*arguments)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG004
        given_tangents, call = split_tangents(inputs)
        keep_call(ctx, call, *given_tangents)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> tuple[Any, ...]:
        if is_batched(grad):
            return each(lambda entry: FunctionalTangent.backward(ctx, entry), grad)
        saved, call = kept(ctx)
        given_tangents = Learnable._make(saved)
        wanted_tangents, wanted = split_tangents(ctx.needs_input_grad)
        pulled, in_call = Learnable(), Learnable()
        if any(wanted_tangents):
            out, row_state, _, _ = FunctionalAttention.apply(*call.given, *call.facts, False)
            pairs_asked = asks_for_pairs(wanted_tangents)
            gradients = FunctionalPullback.apply(grad, out, row_state, *call.given, *call.facts, pairs_asked)
            pulled = Learnable._make(g if w else None for g, w in zip(gradients, wanted_tangents, strict=True))
        if any(wanted.given):
            _, in_call = _second(grad, given_tangents, call, asks_for_pairs(wanted.given))
        return (*pulled, *in_call, *NO_FACTS)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:  # noqa: ARG004
        refuse_derivative("forward of a forward derivative (jacfwd of jacfwd; jacfwd of jacrev works)")

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *arguments: Any) -> tuple[Any, Any]:
        (given_tangents, call), (tangent_dims, dims) = split_tangents(arguments), split_tangents(in_dims)
        if _only_one_by_one(call, dims) or _has_shared(tangent_dims):
            return _one_by_one(FunctionalTangent, info, in_dims, arguments)
        given, facts = _mapped(dims, call, info.batch_size)
        tangents = _mapped_learnable(given_tangents, tangent_dims, info.batch_size, given.query.dim() - 3)
        return FunctionalTangent.apply(*tangents, *given, *facts), 0


class FunctionalSecond(torch.autograd.Function):  # type: ignore[misc]
    """The gradient of <d_out, tangent of the output> in d_out and in every operand: zeros where it is constant.

    The arguments are d_out, tangents, Operands, and whether gradients over pairs are wanted; the results are those for
    d_out and for Learnable.
    """

    @staticmethod
    def forward(d_out: Tensor, *arguments: Any) -> tuple[Tensor, ...]:
        *flat, pairs_asked = arguments
        given_tangents, call = split_tangents(flat)
        given = asked(call.given, pairs_asked or _has_pairs(given_tangents))
        d_d_out, pulled = second.second_derivative(given_tangents, d_out, problem_of(call), given)
        results = ((d_out, d_d_out), *zip(given, pulled, strict=True))
        return tuple(d_out.new_empty(0) if t is None else torch.zeros_like(t) if p is None else p for t, p in results)

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
        d_out, *flat, pairs_asked = arguments
        d_out_dim, *flat_dims, _ = in_dims
        (given_tangents, call), (tangent_dims, dims) = split_tangents(flat), split_tangents(flat_dims)
        if _only_one_by_one(call, dims) or _has_shared(call.given):
            return _one_by_one(FunctionalSecond, info, in_dims, arguments)
        size, with_pairs = info.batch_size, pairs_asked or _has_pairs(given_tangents)
        call, dims = _own(call, dims, size, with_pairs)
        given, facts = _mapped(dims, call, size)
        tangents = _mapped_learnable(given_tangents, tangent_dims, size, given.query.dim() - 3)
        front = _front(d_out, d_out_dim, size)
        d_d_out, *rest = FunctionalSecond.apply(front, *tangents, *given, *facts, pairs_asked)
        pulled, along = _own_shapes(rest, call.given, with_pairs)
        return (d_d_out, *pulled), (0, *along)


def _second(d_out: Tensor, given_tangents: Learnable, call: Operands, pairs_asked: bool) -> tuple[Tensor, Learnable]:
    """FunctionalSecond's results for d_out and for what is learnable, None where an input is absent."""
    d_d_out, *rest = FunctionalSecond.apply(d_out, *given_tangents, *call.given, *call.facts, pairs_asked)
    return d_d_out, among(rest, asked(call.given, pairs_asked))


def differentiable_gradients(
    problem: Problem, d_out: Tensor, out: Tensor, row_state: Tensor, wanted: Learnable
) -> Learnable:
    """eager.gradients() as a function that torch can differentiate: a Problem becomes Operands again."""
    leading, heads = problem.query.shape[:-3], problem.query.shape[-3:-2]
    learned = {name: getattr(problem, name) for name in (*ROWS, *PAIRS)}
    learned |= {name: _as_tensor(getattr(problem, name), heads) for name in HEADS}
    learned |= {name: _as_tensor(getattr(problem, name), (*leading, *heads)) for name in ENTRIES}
    learned |= dict(kernel.present(wanted, wanted._fields))
    signed_seed = problem.seed - 2**64 if problem.seed >= 2**63 else problem.seed
    facts = Facts(**{name: getattr(problem, name, None) for name in Facts._fields})._replace(
        **{name: _as_tensor(getattr(problem, name), shape or (1,)) for name, shape in _fact_shapes(problem).items()},
        factor=problem.scale if wanted.scale is None else None,
        seed=None if problem.dropout == 0.0 else torch.tensor([signed_seed], device="cpu"),
    )
    call = (*Learnable(**learned), *facts)
    return among(FunctionalPullback.apply(d_out, out, row_state, *call, _has_pairs(wanted)), wanted)


def _as_tensor(array: Any, shape: tuple[int, ...]) -> Any:
    return None if array is None else torch.tensor(array, device="cpu").reshape(shape)


def _fact_shapes(arrays: Problem | Learnable) -> dict[str, tuple[int, ...]]:
    """The shapes of the facts that have a number for every batch entry, or for each of its query rows or keys."""
    leading = arrays.query.shape[:-3]
    rows, keys = (*leading, arrays.query.shape[-2]), (*leading, arrays.key.shape[-2])
    shapes = dict.fromkeys(("row_scale", "query_segments", "query_positions"), rows)
    return shapes | {"key_segments": keys, "query_offset": leading, "key_lengths": leading}


def _primal(call: Operands) -> Operands:
    return Operands(Learnable._make(map(primal, call.given)), Facts._make(map(primal, call.facts)))


# How many axes follow the leading ones, for tensors that may differ between the entries of a vmap.
_AXES = dict.fromkeys(PAIRS, 3) | dict.fromkeys(ENTRIES, 1)


def _mapped(dims: Operands, call: Operands, size: int) -> Operands:
    """The same call with the mapped axis as one more leading axis."""
    given = _mapped_learnable(call.given, dims.given, size, call.given.query.dim() - 2 - (dims.given.query is not None))
    changed = {}
    for name, shape in _fact_shapes(given).items():
        if (fact := getattr(call.facts, name)) is not None:
            changed[name] = _aligned(fact, getattr(dims.facts, name), len(shape)).expand(shape)
    if call.facts.mask is not None:
        changed["mask"] = _aligned(call.facts.mask, dims.facts.mask, given.query.dim())
    return Operands(given, call.facts._replace(**changed))


def _mapped_learnable(given: Learnable, dims: Learnable, size: int, leading: int) -> Learnable:
    """Tensors or tangents with the mapped axis moved to the front; `leading` counts the leading axes after that.

    Those that all entries share are not mapped.
    """
    changed = {name: _front(t, getattr(dims, name), size) for name, t in kernel.present(given, ROWS)}
    for name, t in kernel.present(given, tuple(_AXES)):
        changed[name] = _aligned(t, getattr(dims, name), leading + _AXES[name])
    return given._replace(**changed)


def _own(call: Operands, dims: Operands, size: int, with_pairs: bool) -> tuple[Operands, Operands]:
    """Every entry gets its own view of a shared tensor, because gradients differ from entry to entry."""
    tensors = dict(kernel.present(asked(call.given, with_pairs), tuple(_AXES)))
    fronts = {name: _front(t, getattr(dims.given, name), size) for name, t in tensors.items()}
    given, along = call.given._replace(**fronts), dims.given._replace(**dict.fromkeys(tensors, 0))
    return Operands(given, call.facts), Operands(along, dims.facts)


def _own_shapes(pulled: Any, given: Learnable, with_pairs: bool) -> tuple[Learnable, Learnable]:
    """Gradients for a call that _own() made, in its shapes, and along which axis they are mapped."""
    tensors = dict(kernel.present(asked(given, with_pairs), tuple(_AXES)))
    gradients = Learnable._make(pulled)
    shaped = {name: getattr(gradients, name).reshape(t.shape) for name, t in tensors.items()}
    return gradients._replace(**shaped), Learnable(**dict.fromkeys((*ROWS, *tensors), 0))


def _only_one_by_one(call: Operands, dims: Operands) -> bool:
    """Whether entries cannot become one more leading axis: all of a call share its scale, sinks and seed."""
    return _has_shared(dims.given) or call.facts.seed is not None


def _has_shared(given: Learnable) -> bool:
    return any(getattr(given, name) is not None for name in (*HEADS, *NUMBERS))


def _has_pairs(given: Learnable) -> bool:
    return any(getattr(given, name) is not None for name in PAIRS)


def _one_by_one(function: Any, info: Any, in_dims: tuple[Any, ...], arguments: tuple[Any, ...]) -> tuple[Any, Any]:
    """Compute every entry by itself."""
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
    """The tensor with the mapped axis first and axes of length 1 after it: the rest broadcasts from the right."""
    if dim is None:
        return tensor
    tensor = tensor.movedim(dim, 0)
    return tensor.reshape(tensor.shape[0], *(1,) * (axes - tensor.dim()), *tensor.shape[1:])
