"""Autograd for plain eager calls: resolved once, then straight to the kernel, forward and back.

The operators of operators.py compute the same, in a form that a compiler and torch.func can carry. To convert a call to
that form, and to resolve it again at every step, costs several times as much as a small call itself.
"""

import math
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from ...options import HEADS, LEARNED, PAIRS, Learnable, Options, Problem, check_one_type
from . import kernel
from .kernel import each, has_memory, is_batched, tangents, transformed

_HEADS_AT = tuple(map(LEARNED.index, HEADS))
_OVER_PAIRS = ("mask", *PAIRS)
_NO_PAIRS: dict[str, Any] = dict.fromkeys(_OVER_PAIRS)
_kept_options = itemgetter(*map(Options._fields.index, (*LEARNED, "mask")))
_LOG2_E = 1.4426950408889634
# A scale within a factor of 2**24 of 1 leaves d_query in the range of float32, for every gradient that matters.
_MODEST = 2.0**-24


def attend(problem: Problem, options: Options, reading: Any = None, keys: Any = None, row_state: Any = None) -> Tensor:
    """The output, differentiable if autograd asks for any of the tensors; the last three are filled if given.

    The options are as the caller gave them: those that are LEARNED and are tensors have gradients.
    """
    if not torch.is_grad_enabled():
        return kernel.forward(problem, row_state, reading, keys)
    tensors: tuple[Any, ...] = (problem.query, problem.key, problem.value)
    for option in _kept_options(options):
        # Most often there is none, and every argument of an autograd.Function costs time.
        if option is not None and type(option) is not float:
            tensors += _tensors(options)
            break
    for tensor in tensors:
        if tensor is not None and tensor.requires_grad:
            check_one_type(problem.query, problem.key, "a gradient")
            out: Tensor = _eager_attention(problem, (row_state, reading, keys), *tensors)
            return out
    return kernel.forward(problem, row_state, reading, keys)


def given(problem: Problem, options: Options) -> Learnable:
    """The tensors of a call that may have a gradient, as before broadcasting."""
    *learned, _mask = _tensors(options)
    return Learnable(problem.query, problem.key, problem.value, *learned)


def _tensors(options: Options) -> tuple[Any, ...]:
    """The options in LEARNED and the mask, None where one is no tensor."""
    tensors = [o if o is None or isinstance(o, Tensor) else None for o in _kept_options(options)]
    for place in _HEADS_AT:
        if tensors[place] is not None:
            tensors[place] = torch.atleast_1d(tensors[place])
    return tuple(tensors)


class EagerAttention(torch.autograd.Function):  # type: ignore[misc]
    """The output of a Problem as a function of its tensors, which are passed once more by themselves.

    They are query, key, value or, if there is more than these, all of Learnable and the mask. Autograd keeps all of
    them, notices a change in place and shows them to hooks, mask and bias as they were before broadcasting; of the
    Problem only the numbers stay.
    """

    @staticmethod
    def forward(ctx: Any, problem: Problem, filled: tuple[Any, Any, Any], *tensors: Any) -> Tensor:
        row_state, *of_reading = filled
        if row_state is None:
            row_state = kernel.empty_row_state(problem.query, eager=True)
        out = kernel.forward(problem, row_state, *of_reading)
        ctx.save_for_backward(out, row_state, *tensors)
        _query, _key, _value, *options = tensors
        facts = problem._replace(**_NO_PAIRS) if options else problem
        ctx.facts = facts.with_arrays(None, None, None)
        return out

    @staticmethod
    def backward(ctx: Any, d_out: Tensor) -> tuple[Any, ...]:
        if not has_memory(d_out) and is_batched(d_out):
            return each(lambda entry: EagerAttention.backward(ctx, entry), d_out)
        out, row_state, query, key, value, *options = ctx.saved_tensors
        problem = ctx.facts.with_arrays(query, key, value)
        # create_graph=True, vmap over d_out, or a tangent of it: the gradient must itself be differentiable.
        differentiable = torch.is_grad_enabled() or transformed()
        if forward_ad._current_level >= 0 and tangents(d_out=d_out):  # noqa: SLF001
            differentiable = True
        if not (options or differentiable):
            pulled = kernel.backward(problem, out, row_state, d_out)
            return None, None, pulled.query, pulled.key, pulled.value
        wanted = Learnable(query, key, value)
        if options:
            *learned, mask = options
            saved = Learnable(query, key, value, *learned)
            spread = {name: _spread(problem, getattr(saved, name, mask)) for name in _OVER_PAIRS}
            problem = problem._replace(**spread)
            # Only what is asked for: the gradient of a bias may be of size n x n.
            _problem, _filled, *needed, _mask = ctx.needs_input_grad
            wanted = Learnable._make(t if w else None for t, w in zip(saved, needed, strict=True))
        if differentiable:
            from .transforms import differentiable_gradients

            pulled = differentiable_gradients(problem, d_out, out, row_state, wanted)
        else:
            pulled = gradients(problem, d_out, out, row_state, wanted)
        if not options:
            return None, None, pulled.query, pulled.key, pulled.value
        return (None, None, *pulled, None)


def _spread(problem: Problem, given: Any) -> Any:
    """A mask or a bias as a view of the shape of all scores."""
    scores = (*problem.query.shape[:-1], problem.key.shape[-2])
    return None if given is None else given.detach().resolve_neg().expand(scores)


# Directly to the engine: torch's own `apply` first spends 40 us on looking for transforms and binding names. Likewise
# on the way back, where it checks which of two names the derivative has.
_eager_attention = super(torch.autograd.Function, EagerAttention).apply
EagerAttention._backward_cls.apply = EagerAttention.backward  # noqa: SLF001


def gradients(problem: Problem, d_out: Tensor, out: Tensor, row_state: Tensor, wanted: Learnable) -> Learnable:
    """The gradients of query, key and value, and of what else is asked for, in the shapes in which these are given."""
    pulled = kernel.backward(problem, out, row_state, d_out, wanted)
    if wanted.sinks is not None:
        pulled = pulled._replace(sinks=sinks_gradient(d_out, out, row_state, wanted.sinks))
    if wanted.scale is not None:
        if pulled.query.dtype == row_state.dtype and _MODEST <= abs(problem.scale) <= 1 / _MODEST:
            total = _visible_sum(pulled.query, problem.query) / problem.scale
        else:
            total = _unscaled_gradient(problem, d_out, row_state.dtype)
        pulled = pulled._replace(scale=total.to(wanted.scale.dtype))
    return pulled


def _unscaled_gradient(problem: Problem, d_out: Tensor, wide: Any) -> Tensor:
    """The gradient of the scale where d_query cannot give it: rounded to a half type, or too small, or too large.

    d_query is scale * (dS K), and what is wanted is <dS K, query>. So the same problem is computed once more, with the
    scale in the query instead, in the type that the kernel computes with.
    """
    query, key, value, d_out = (t.to(wide) for t in (problem.query, problem.key, problem.value, d_out))
    folded = problem._replace(query=query * problem.scale, key=key, value=value, scale=1.0)
    row_state = kernel.empty_row_state(query)
    out = kernel.forward(folded, row_state, None, None)
    return _visible_sum(kernel.backward(folded, out, row_state, d_out).query, query)


def _visible_sum(d_query: Tensor, query: Tensor) -> Tensor:
    """<d_query, query>; a row that sees no key has gradient 0 and counts for 0, whatever it holds."""
    return torch.where(d_query == 0, 0.0, d_query * query).sum(dtype=torch.float64)


def sinks_gradient(d_out: Tensor, out: Tensor, row_state: Tensor, sinks: Tensor) -> Tensor:
    """-sum over rows of sink_weight * <d_out, out>: the sink has no value, it only takes weight from the keys."""
    maximum, total = row_state.unbind(0)
    # In units of log2, as in the kernel: a number beyond its type becomes the largest there is.
    largest = torch.finfo(row_state.dtype).max
    logits = (sinks.double() * _LOG2_E).clamp(-largest, largest).to(row_state.dtype)
    weight = torch.exp2(logits[:, None] - maximum) / total
    pulled = (d_out.to(row_state.dtype) * out).sum(dim=-1)
    per_head = (weight * pulled).sum(dim=-1)
    return -per_head.reshape(math.prod(per_head.shape[:-1]), len(sinks)).sum(dim=0).to(sinks.dtype)
