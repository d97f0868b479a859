"""Autograd for plain eager calls: resolved once, then straight to the kernel, forward and back.

The operators of _torch/operators.py compute the same, in terms that a compiler and torch.func can carry. To take a call
apart into those and to resolve it again at every step costs several times as much as a small call itself.
"""

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from . import torch_kernel
from .problem import Problem
from .torch_batched import each, is_batched
from .torch_forward_mode import refuse_tangents

_LOG2_E = 1.4426950408889634
# Within a factor of 2**24 of 1 a scale leaves d_query in the range of float32, whatever gradient is worth the name.
_MODEST = 2.0**-24
_transformed = torch._C._are_functorch_transforms_active  # noqa: SLF001 -- torch tells it nowhere else


def attend(
    problem: Problem, scale: Any, mask: Any, bias: Any, sinks: Any, reading: Any = None, keys: Any = None
) -> Tensor:
    """The output, followed by autograd if it asks for any of the tensors; reading and keys are filled if given.

    scale, mask, bias and sinks are what the caller gave before it became part of the Problem.
    """
    if forward_ad._current_level >= 0:  # noqa: SLF001 -- asked here as well, because a call costs more than the question
        refuse_tangents(query=problem.query, key=problem.key, value=problem.value, scale=scale, bias=bias, sinks=sinks)
    if not torch.is_grad_enabled():
        return torch_kernel.forward(problem, None, reading, keys)
    tensors: tuple[Any, ...] = problem[:3]
    if scale is not None and not isinstance(scale, Tensor):
        scale = None
    if sinks is not None:
        sinks = torch.atleast_1d(sinks) if isinstance(sinks, Tensor) else None
    if not (sinks is scale is bias is mask is None):  # every argument of an autograd.Function takes its time
        tensors += sinks, scale, bias, mask
    for tensor in tensors:
        if tensor is not None and tensor.requires_grad:
            out: Tensor = _attention(problem, (reading, keys), *tensors)
            return out
    return torch_kernel.forward(problem, None, reading, keys)


class Attention(torch.autograd.Function):  # type: ignore[misc]
    """The output of a Problem as a function of its tensors, which come once more by themselves.

    They are query, key, value and, if there is one of them, sinks, scale, bias, mask. All are kept by autograd, which
    notices a change in place and shows them to hooks, mask and bias as they were before broadcasting; of the Problem
    only the numbers stay.
    """

    @staticmethod
    def forward(ctx: Any, problem: Problem, filled: tuple[Any, Any], *tensors: Any) -> Tensor:
        row_state = torch_kernel.empty_row_state(problem.query, eager=True)
        out = torch_kernel.forward(problem, row_state, *filled)
        ctx.save_for_backward(out, row_state, *tensors)
        ctx.numbers = (problem._replace(mask=None, bias=None) if len(tensors) > 3 else problem)[3:]
        return out

    @staticmethod
    def backward(ctx: Any, d_out: Tensor) -> tuple[Any, ...]:
        refuse_tangents(d_out=d_out)
        if is_batched(d_out):
            return each(lambda one: Attention.backward(ctx, one), d_out)
        out, row_state, query, key, value, *rest = ctx.saved_tensors
        problem = Problem._make((query, key, value, *ctx.numbers))
        # create_graph=True, or vmap over d_out: the gradient is something that torch must be able to follow.
        follow = torch.is_grad_enabled() or _transformed()
        if not (rest or follow):
            return None, None, *torch_kernel.backward(problem, out, row_state, d_out)[:3]
        learned: list[Any] = []
        if rest:
            problem = problem._replace(**_broadcast(problem, *rest))
            # Only what is asked for: the gradient of a bias may be of size n x n.
            asked = zip(rest[:3], ctx.needs_input_grad[5:8], strict=True)
            learned = [tensor if wanted else None for tensor, wanted in asked]
        if follow:
            from .._torch.gradient import followed

            found = followed(problem, d_out, out, row_state, *learned)
        else:
            found = gradients(problem, d_out, out, row_state, *learned)
        return (None, None, *found, None)[: 5 + len(rest)]


def _broadcast(problem: Problem, _sinks: Any, _scale: Any, bias: Any, mask: Any) -> dict[str, Any]:
    scores = (*problem.query.shape[:-1], problem.key.shape[-2])
    given = {"bias": bias, "mask": mask}
    return {name: None if t is None else t.detach().resolve_neg().expand(scores) for name, t in given.items()}


# Straight to the engine: torch's own `apply` looks for transforms and binds names for 40 us first.
_attention = super(torch.autograd.Function, Attention).apply


def gradients(
    problem: Problem,
    d_out: Tensor,
    out: Tensor,
    row_state: Tensor,
    sinks: Any = None,
    learned: Any = None,
    bias: Any = None,
) -> tuple[Any, ...]:
    """d_query, d_key, d_value, d_sinks, d_scale, d_bias; None for a gradient of the last three that is not asked for.

    `learned` is the scale as a tensor, `bias` the bias before it was broadcast.
    """
    d_query, d_key, d_value, d_bias = torch_kernel.backward(problem, out, row_state, d_out, bias)
    d_sinks = None if sinks is None else sinks_gradient(d_out, out, row_state, sinks)
    d_scale = None
    if learned is not None:
        if d_query.dtype == row_state.dtype and _MODEST <= abs(problem.scale) <= 1 / _MODEST:
            total = _visible_sum(d_query, problem.query) / problem.scale
        else:
            total = _unscaled_gradient(problem, d_out, row_state.dtype)
        d_scale = total.to(learned.dtype)
    return d_query, d_key, d_value, d_sinks, d_scale, d_bias


def _unscaled_gradient(problem: Problem, d_out: Tensor, wide: Any) -> Tensor:
    """The gradient in the scale where d_query cannot tell it: rounded to a half type, or too small, or too large.

    d_query is scale * (dS K), and what is wanted is <dS K, query>. So the same problem is computed once more, with the
    scale in the query instead, in the type that the kernel computes with.
    """
    query, key, value, d_out = (t.to(wide) for t in (problem.query, problem.key, problem.value, d_out))
    folded = problem._replace(query=query * problem.scale, key=key, value=value, scale=1.0)
    row_state = torch_kernel.empty_row_state(query)
    out = torch_kernel.forward(folded, row_state, None, None)
    return _visible_sum(torch_kernel.backward(folded, out, row_state, d_out)[0], query)


def _visible_sum(d_query: Tensor, query: Tensor) -> Tensor:
    """<d_query, query>; a row that sees no key has gradient 0 and counts for 0, whatever it holds."""
    return torch.where(d_query == 0, 0.0, d_query * query).sum(dtype=torch.float64)


def sinks_gradient(d_out: Tensor, out: Tensor, row_state: Tensor, sinks: Tensor) -> Tensor:
    """-sum over rows of sink_weight * <d_out, out>: the sink has no value, it only takes weight from the keys."""
    maximum, total = row_state.unbind(0)
    # In units of log2, as the kernel has them: a number beyond its type is the largest there is.
    largest = torch.finfo(row_state.dtype).max
    logits = (sinks.double() * _LOG2_E).clamp(-largest, largest).to(row_state.dtype)
    weight = torch.exp2(logits[:, None] - maximum) / total
    pulled = (d_out.to(row_state.dtype) * out).sum(dim=-1)
    per_head = (weight * pulled).sum(dim=-1)
    return -per_head.reshape(math.prod(per_head.shape[:-1]), len(sinks)).sum(dim=0).to(sinks.dtype)
