"""The two passes as functions of tensors and plain numbers, which is what torch can follow.

Both take the arguments of problem_of(). Options arrive unresolved; None is the default of rootdk.attention(). Two
differ from there: `learned` is a scale that is a tensor, `row_scale` one factor per query row, (*leading, n_query).
"""

from typing import Any

import torch
from torch import Tensor

from .._arguments import resolve
from .._backends import torch_autograd, torch_kernel
from .._backends.problem import Problem
from .._backends.torch_forward_mode import refuse_tangents

_ARGUMENTS = (
    "Tensor query, Tensor key, Tensor value, float? scale, Tensor? learned, Tensor? row_scale, float? softcap, "
    "SymInt? left, SymInt? right, SymInt? offset, Tensor? query_offset, Tensor? key_lengths, Tensor? mask, "
    "Tensor? bias, Tensor? sinks, float dropout, Tensor? seed"
)
FORWARD = f"({_ARGUMENTS}, bool measured) -> (Tensor, Tensor, Tensor, Tensor)"
BACKWARD = (
    f"(Tensor d_out, Tensor out, Tensor row_state, {_ARGUMENTS}, bool bias_learned) "
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)"
)


def forward_values(query: Tensor, *arguments: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The output, the state of every row, and the fields and keys of a Reading (empty if not measured)."""
    *options, measured = arguments
    key, value, _, learned, *_, bias, sinks, _, _ = options
    refuse_tangents(query=query, key=key, value=value, scale=learned, bias=bias, sinks=sinks)
    row_state = torch_kernel.empty_row_state(query)
    reading, keys = empty_reading(query, measured)
    filled = (reading, keys) if measured else (None, None)
    return torch_kernel.forward(problem_of(query, *options), row_state, *filled), row_state, reading, keys


def backward_values(
    d_out: Tensor, out: Tensor, row_state: Tensor, *arguments: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """d_query, d_key, d_value, d_sinks, d_scale, d_bias; the last three are empty where there is nothing learned."""
    *options, bias_learned = arguments
    refuse_tangents(d_out=d_out)
    query, _, _, _, learned, *_, bias, sinks, _, _ = options
    found = torch_autograd.gradients(
        problem_of(*options), d_out, out, row_state, sinks, learned, bias if bias_learned else None
    )
    return tuple(query.new_empty(0) if gradient is None else gradient for gradient in found)


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


def empty_reading(query: Tensor, measured: bool) -> tuple[Tensor, Tensor]:
    if measured:
        return torch_kernel.empty_reading(query)
    return query.new_empty(0), query.new_empty(0, dtype=torch.int64)
