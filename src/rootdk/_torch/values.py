"""The two passes as functions of tensors and plain numbers, which is what torch can follow.

Options arrive unresolved; None is the default of rootdk.attention(). Two differ from there: `learned` is a scale that
is a tensor, `row_scale` one factor per query row, of shape (*leading, n_query).
"""

from typing import Any, Optional

import torch
from torch import Tensor

from .._arguments import resolve
from .._backends import torch_backend
from .._backends.problem import Problem
from . import composite

_LOG2_E = 1.4426950408889634


# The types are read by torch to make the operator's schema, and not every version of it reads `Tensor | None`.
# ruff: noqa: UP045
def forward_values(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scale: Optional[float],
    learned: Optional[Tensor],
    row_scale: Optional[Tensor],
    softcap: Optional[float],
    left: Optional[int],
    right: Optional[int],
    offset: Optional[int],
    query_offset: Optional[Tensor],
    key_lengths: Optional[Tensor],
    mask: Optional[Tensor],
    bias: Optional[Tensor],
    sinks: Optional[Tensor],
    dropout: float,
    seed: Optional[Tensor],
    measured: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The output, the state of every row, and the fields and keys of a Reading (empty if not measured)."""
    problem = problem_of(
        query, key, value, scale, learned, row_scale, softcap, left, right, offset, query_offset, key_lengths, mask,
        bias, sinks, dropout, seed,
    )  # fmt: skip
    row_state = torch_backend.empty_row_state(query)
    reading, keys = empty_reading(query, measured)
    filled = (reading, keys) if measured else (None, None)
    return torch_backend.forward_state(problem, row_state, *filled), row_state, reading, keys


def backward_values(
    d_out: Tensor,
    out: Tensor,
    row_state: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scale: Optional[float],
    learned: Optional[Tensor],
    row_scale: Optional[Tensor],
    softcap: Optional[float],
    left: Optional[int],
    right: Optional[int],
    offset: Optional[int],
    query_offset: Optional[Tensor],
    key_lengths: Optional[Tensor],
    mask: Optional[Tensor],
    bias: Optional[Tensor],
    sinks: Optional[Tensor],
    dropout: float,
    seed: Optional[Tensor],
    bias_learned: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """d_query, d_key, d_value, d_sinks, d_scale, d_bias; the last three are empty where there is nothing learned."""
    problem = problem_of(
        query, key, value, scale, learned, row_scale, softcap, left, right, offset, query_offset, key_lengths, mask,
        bias, sinks, dropout, seed,
    )  # fmt: skip
    found = gradients(problem, d_out, out, row_state, sinks, learned, bias if bias_learned else None)
    return tuple(query.new_empty(0) if gradient is None else gradient for gradient in found)  # type: ignore[return-value]


def gradients(
    problem: Problem, d_out: Tensor, out: Tensor, row_state: Tensor, sinks: Any, learned: Any, bias: Any
) -> tuple[Any, ...]:
    """d_query, d_key, d_value, d_sinks, d_scale, d_bias; None for a gradient of the last three that is not asked for.

    `learned` is the scale as a tensor, `bias` the bias before it was broadcast.
    """
    d_query, d_key, d_value, d_bias = torch_backend.backward(problem, out, row_state, d_out, bias)
    d_sinks = None if sinks is None else _sinks_gradient(d_out, out, row_state, sinks)
    if learned is None:
        d_scale = None
    elif problem.scale == 0.0:
        # <d_query, query>/scale is 0/0 here: the one scale whose gradient is computed from the scores themselves.
        d_scale = composite.scale_gradient(d_out, problem, learned)
    else:
        d_scale = (d_query.to(row_state.dtype) * problem.query).sum(dtype=torch.float64) / problem.scale
        d_scale = d_scale.to(learned.dtype)
    return d_query, d_key, d_value, d_sinks, d_scale, d_bias


def problem_of(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scale: Any,
    learned: Any,
    row_scale: Any,
    softcap: Any,
    left: Any,
    right: Any,
    offset: Any,
    query_offset: Any,
    key_lengths: Any,
    mask: Any,
    bias: Any,
    sinks: Any,
    dropout: float,
    seed: Any,
) -> Problem:
    """Everything checked and resolved, as for a NumPy call."""
    factor = 1.0 if row_scale is not None else scale if learned is None else learned
    window = None if left is None and right is None else (left, right)
    where = query_offset if offset is None else offset
    drawn = None if seed is None else int(seed) % 2**64
    options = (where, key_lengths, softcap, sinks, dropout, drawn)
    _, problem, _ = resolve(query, key, value, factor, False, mask, bias, window, *options)
    if row_scale is None:
        return problem
    rows = row_scale.detach().double().reshape(len(problem.query_offset), query.shape[-2])
    return problem._replace(row_scale=rows.contiguous().numpy())


def _sinks_gradient(d_out: Tensor, out: Tensor, row_state: Tensor, sinks: Tensor) -> Tensor:
    """-sum over rows of sink_weight * <d_out, out>: the sink has no value, it only takes weight from the keys."""
    maximum, total = row_state.unbind(0)
    weight = torch.exp2(sinks.to(row_state.dtype)[:, None] * _LOG2_E - maximum) / total
    pulled = (d_out.to(row_state.dtype) * out).sum(dim=-1)
    per_head = (weight * pulled).sum(dim=-1)
    return -per_head.reshape(-1, per_head.shape[-1]).sum(dim=0).to(sinks.dtype)


def empty_reading(query: Tensor, measured: bool) -> tuple[Tensor, Tensor]:
    if measured:
        return torch_backend.empty_reading(query)
    return query.new_empty(0), query.new_empty(0, dtype=torch.int64)
