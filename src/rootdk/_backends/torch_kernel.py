"""Tensors to the kernel and back: a Problem on tensors, computed by their values alone.

The kernel walks the tensors' own memory: any strides with a contiguous last axis as they lie, other tensors as a copy.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..reading import FIELDS
from . import kernel
from .problem import Problem

# Element codes of the kernel.
CODES = {torch.float32: 0, torch.float64: 1, torch.float16: 2, torch.bfloat16: 3}
# How many threads torch's team has. 0 would mean the kernel's own threads, which only the benchmark asks for.
team = torch.get_num_threads
_IN_NUMPY = {torch.float32: np.float32, torch.float64: np.float64, torch.int64: np.int64}


def forward(problem: Problem, row_state: Any, reading: Any, keys: Any) -> Tensor:
    """Run the kernel forward; whatever of the three tensors is given is filled."""
    query, value = problem.query, problem.value
    element = CODES[query.dtype]
    out = empty_out(query, value)
    kernel().forward(
        element,
        _walkable(query),
        _walkable(problem.key),
        _walkable(value),
        _memory(out),
        *_options(problem, element),
        None if row_state is None else _memory(row_state),
        None if reading is None else _memory(reading),
        None if keys is None else _memory(keys),
        team(),
    )
    return out


def backward(
    problem: Problem, out: Tensor, row_state: Tensor, d_out: Tensor, learned_bias: Any = None
) -> tuple[Tensor, Tensor, Tensor, Any]:
    """Run the kernel backward. `learned_bias` is the bias before it was broadcast, where its gradient is wanted."""
    query, key, value = problem.query, problem.key, problem.value
    element = CODES[query.dtype]
    gradients = empty_gradients(query, key, value)
    d_bias = room = None
    if learned_bias is not None:
        # The kernel adds to it in its own type; a number that many pairs read is one number here too.
        d_bias = query.new_zeros(learned_bias.shape, dtype=_compute_type(query))
        room = _memory(d_bias.expand(problem.bias.shape))
    kernel().backward(
        element,
        _walkable(query),
        _walkable(key),
        _walkable(value),
        _walkable(out),
        _walkable(d_out),
        _memory(row_state.contiguous()),
        *map(_memory, gradients),
        *_options(problem, element),
        room,
        team(),
    )
    return *gradients, None if d_bias is None else d_bias.to(learned_bias.dtype)


def empty_out(query: Tensor, value: Tensor) -> Tensor:
    """Room for the output, in the order in which query lies: heads inside rows stay heads inside rows.

    So that the usual out.transpose(1, 2).reshape(batch, n, heads * d) after (batch, n, heads, d).transpose(1, 2) costs
    no copy.
    """
    if query.is_contiguous() and (value is query or value.shape[-1] == query.shape[-1]):
        return torch.empty_like(query)
    *leading, heads, rows, _ = query.shape
    if heads > 1 and rows > 1 and query.stride(-3) < query.stride(-2):
        return query.new_empty((*leading, rows, heads, value.shape[-1])).transpose(-2, -3)
    return query.new_empty((*leading, heads, rows, value.shape[-1]))


def empty_gradients(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Room for d_query, d_key, d_value, each in the order of its own tensor."""
    return empty_out(query, query), empty_out(key, key), empty_out(value, value)


def empty_row_state(query: Tensor, eager: bool = False) -> Tensor:
    """Room for two numbers per row: its maximum in log2 units, and its sum."""
    return _empty(query, (2, *tuple(query.shape)[:-1]), _compute_type(query), eager)


def empty_reading(query: Tensor, eager: bool = False) -> tuple[Tensor, Tensor]:
    """Room for the fields of a Reading, and for the number of keys."""
    rows = tuple(query.shape)[:-1]
    return _empty(query, (len(FIELDS), *rows), _compute_type(query), eager), _empty(query, rows, torch.int64, eager)


def _empty(query: Tensor, shape: tuple[int, ...], dtype: Any, eager: bool) -> Tensor:
    # Through NumPy it takes half the time, which a small call notices; a compiler would not see it.
    return torch.from_numpy(np.empty(shape, _IN_NUMPY[dtype])) if eager else query.new_empty(shape, dtype=dtype)


def _options(problem: Problem, element: int) -> tuple[Any, ...]:
    bias = problem.bias
    bias_element = element if bias is None else CODES[bias.dtype]
    return (
        problem.scale,
        problem.row_scale,
        0.0 if problem.softcap is None else problem.softcap,
        -1 if problem.left is None else problem.left,
        -1 if problem.right is None else problem.right,
        problem.query_offset,
        problem.key_lengths,
        None if problem.mask is None else _memory(problem.mask),
        None if bias is None else _memory(bias),
        bias_element,
        problem.sinks,
        problem.dropout,
        problem.seed,
    )


def _walkable(tensor: Tensor) -> Any:
    """The tensor's own memory if the kernel can walk it, else that of a copy in C order."""
    if not tensor.is_contiguous() and tensor.stride(-1) != 1 and tensor.shape[-1] > 1:
        tensor = tensor.contiguous()
    return _memory(tensor.resolve_neg() if tensor.is_neg() else tensor)


def _addressed(tensor: Tensor) -> tuple[Any, ...]:
    return tensor.data_ptr(), tensor.element_size(), tensor.shape, tensor.stride(), tensor


def _itself(tensor: Tensor) -> Tensor:
    return tensor


# A tensor as the kernel takes it. Where torch offers DLPack's table of C functions the kernel asks the tensor itself.
_memory: Callable[[Tensor], Any] = _itself if hasattr(Tensor, "__dlpack_c_exchange_api__") else _addressed


def _compute_type(query: Tensor) -> Any:
    return torch.float64 if query.dtype == torch.float64 else torch.float32
