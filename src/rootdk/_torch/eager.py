"""Autograd for plain eager calls: resolved once, then straight to the kernel, forward and back.

The operators of operators.py compute the same, in terms that a compiler and torch.func can carry. To take a call apart
into those and to resolve it again at every step costs several times as much as a small call itself.
"""

from typing import Any

import torch
from torch import Tensor

from .._backends import torch_backend
from .._backends.problem import Problem
from . import composite
from .values import gradients

# What can have a gradient, in the order of all arguments and results here.
_LEARNED = ("query", "key", "value", "sinks", "scale", "bias")

# A Problem is three tensors, numbers, mask and bias, numbers.
_MASK, _AFTER_BIAS = Problem._fields.index("mask"), Problem._fields.index("bias") + 1


class _Direct(torch.autograd.Function):  # type: ignore[misc]
    @classmethod
    def apply(cls, *arguments: Any) -> Any:
        """Straight to the engine: torch's own way there looks for transforms and binds names for 40 us first."""
        return super(torch.autograd.Function, cls).apply(*arguments)


class Attention(_Direct):
    """The output of a Problem. The tensors come once more by themselves, those without a place in it as None.

    Every tensor is kept by autograd, which notices a change in place and shows it to hooks, mask and bias as they were
    before broadcasting; of the Problem only the numbers stay. reading and keys are filled if given.
    """

    @staticmethod
    def forward(ctx: Any, problem: Problem, reading: Any, keys: Any, mask: Any, *learned: Any) -> Tensor:
        row_state = torch_backend.empty_row_state(problem.query)
        out = torch_backend.forward_state(problem, row_state, reading, keys)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(out, row_state, mask, *learned)
        ctx.numbers = problem[3:_MASK], problem[_AFTER_BIAS:]
        return out

    @staticmethod
    def backward(ctx: Any, d_out: Any) -> tuple[Any, ...]:
        if d_out is None:
            return (None,) * 10
        run = Pullback.apply if torch.is_grad_enabled() else _pull_back  # create_graph=True, or not
        return None, None, None, None, *run(ctx.numbers, ctx.needs_input_grad[4:], d_out, *ctx.saved_tensors)


class Pullback(_Direct):
    """The gradients of Attention, as a function that has a derivative itself."""

    @staticmethod
    def forward(
        ctx: Any, numbers: Any, wanted: Any, d_out: Tensor, out: Tensor, row_state: Tensor, mask: Any, *learned: Any
    ) -> tuple[Any, ...]:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(d_out, mask, *learned)
        ctx.numbers, ctx.wanted = numbers, wanted
        return _pull_back(numbers, wanted, d_out, out, row_state, mask, *learned)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        d_out, mask, *learned = ctx.saved_tensors
        given = dict(zip(_LEARNED, (*learned[:3], *_extra(learned, ctx.wanted)), strict=True))
        found = composite.second_derivative(grads, d_out, _problem(ctx.numbers, mask, *learned), given)
        return None, None, found.get("d_out"), None, None, None, *(found.get(name) for name in _LEARNED)


def _pull_back(
    numbers: Any, wanted: Any, d_out: Tensor, out: Tensor, row_state: Tensor, mask: Any, *learned: Any
) -> tuple[Any, ...]:
    problem = _problem(numbers, mask, *learned)
    return gradients(problem, d_out, out, row_state, *_extra(learned, wanted))


def _extra(learned: Any, wanted: Any) -> list[Any]:
    """sinks, scale and bias where their gradient is asked for: that of a bias may be of size n x n."""
    return [tensor if asked else None for tensor, asked in zip(learned[3:], wanted[3:], strict=True)]


def _problem(
    numbers: Any, mask: Any, query: Tensor, key: Tensor, value: Tensor, _sinks: Any, _scale: Any, bias: Any
) -> Problem:
    scores = () if mask is None and bias is None else (*query.shape[:-1], key.shape[-2])
    return Problem(
        query,
        key,
        value,
        *numbers[0],
        None if mask is None else torch_backend.broadcast("mask", mask, scores, True),
        None if bias is None else torch_backend.broadcast("bias", bias, scores, False),
        *numbers[1],
    )
