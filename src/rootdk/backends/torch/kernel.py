"""Tensors to the kernel and back: a Problem on tensors, computed by their values alone.

The kernel reads the tensors' own memory: any strides with a contiguous last axis in place, other tensors as a copy.

Some tensors are more than their numbers: they carry a tangent, or stand for a batch of tensors.
torch.autograd.grad(is_grads_batched=True) and torch.autograd.functional.jacobian(vectorize=True) ask for many gradients
at once, in tensors that have no memory of their own. That is an older vmap than torch.func's, which has a rule for
every function (transforms.py); here every entry is computed by itself.
"""

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.autograd import forward_ad

from rootdk.errors import DerivativeError
from rootdk.options import ENTRIES, PAIRS, ROWS, Learnable, Problem
from rootdk.reading import FIELDS

from .. import kernel

FLOATS = frozenset({torch.float32, torch.float64, torch.float16, torch.bfloat16})
# How many threads torch's team has. 0 would mean the kernel's own threads, which only the benchmark asks for.
team = torch.get_num_threads
# The binding's alike() for three tensors of one type and one shape, each in C order.
_DENSE = 2


def forward(problem: Problem, row_state: Any, reading: Any, keys: Any) -> Tensor:
    """Run the kernel forward; whatever of the three tensors is given is filled."""
    library, query, value = kernel(), problem.query, problem.value
    dense = library.alike(query, problem.key, value) == _DENSE
    out = torch.empty_like(query) if dense else empty_out(query, value)
    library.forward(_walked(problem, dense), out, row_state, reading, keys, team())
    return out


def read(problem: Problem) -> tuple[Tensor, Tensor]:
    """The fields of a Reading and the number of keys, without an output."""
    block, keys = empty_reading(problem.query, eager=True)
    key = _walkable(problem.key)
    kernel().read(problem.with_arrays(_walkable(problem.query), key, key), block, keys, team())
    return block, keys


def backward(
    problem: Problem, out: Tensor, row_state: Tensor, d_out: Tensor, wanted: Learnable | None = None
) -> Learnable:
    """Run the kernel backward: the gradients of query, key and value, and of pairs and entries that are asked for.

    `wanted` holds them as they were before broadcasting, and their gradients have the same shapes.
    """
    library, query, key, value = kernel(), problem.query, problem.key, problem.value
    dense = library.alike(query, key, value) == _DENSE
    if dense:
        rows = torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)
    else:
        rows = empty_gradients(query, key, value)
    row_state = row_state if row_state.is_contiguous() else row_state.contiguous()
    arguments = _walked(problem, dense), _walkable(out), _walkable(d_out), row_state
    if wanted is None:
        gradients = Learnable(*rows)
        library.backward(*arguments, gradients, team())
        return gradients
    # The kernel adds to these in its own type; a number that many pairs read is one number here too.
    wide = _compute_type(query.dtype)
    pairs = {name: query.new_zeros(t.shape, dtype=wide) for name, t in present(wanted, PAIRS)}
    entries = {name: query.new_zeros(query.shape[:-2], dtype=wide) for name, t in present(wanted, ENTRIES)}
    spread = {name: total.expand(getattr(problem, name).shape) for name, total in pairs.items()}
    library.backward(*arguments, Learnable(*rows)._replace(**(spread | entries)), team())
    of_shape = {name: total.sum_to_size(getattr(wanted, name).shape) for name, total in (pairs | entries).items()}
    return Learnable(*rows, **{name: total.to(getattr(wanted, name).dtype) for name, total in of_shape.items()})


def present(given: Learnable, names: tuple[str, ...]) -> Iterator[tuple[str, Tensor]]:
    """The names whose tensor is given, with that tensor."""
    return ((name, getattr(given, name)) for name in names if getattr(given, name) is not None)


def weights(problem: Problem, row_state: Tensor, per_key: bool = False) -> Tensor:
    """The weight of every pair, (..., heads, n_query, n_key), or with their sum per key (..., heads, n_key)."""
    query, n_key = problem.query, problem.key.shape[-2]
    shape = (*query.shape[:-2], n_key) if per_key else (*query.shape[:-1], n_key)
    received_or_weights = query.new_zeros(shape, dtype=_compute_type(query.dtype))
    spread = received_or_weights[..., None, :].expand(*query.shape[:-1], n_key) if per_key else received_or_weights
    kernel().weights(_walked(problem, dense=False), row_state, spread, team())
    return received_or_weights


def tangent(problem: Problem, given_tangents: Learnable, out: Any = None) -> Tensor:
    """Run the kernel's forward derivative; `out` is filled if given."""
    d_out = empty_out(problem.query, problem.value)
    given_tangents = given_tangents._replace(**{name: _walkable(t) for name, t in present(given_tangents, ROWS)})
    kernel().tangent(_walked(problem, dense=False), out, d_out, given_tangents, team())
    return d_out


def empty_out(query: Tensor, value: Tensor) -> Tensor:
    """Memory for the output, in the order in which query lies: heads inside rows stay heads inside rows.

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
    """Memory for d_query, d_key, d_value, each in the order of its own tensor."""
    return empty_out(query, query), empty_out(key, key), empty_out(value, value)


def empty_row_state(query: Tensor, eager: bool = False) -> Tensor:
    """Memory for two numbers per row: its maximum in log2 units, and its sum."""
    if eager:
        return torch.empty_like(_row_state_pattern(query.shape, query.dtype))
    return query.new_empty((2, *query.shape[:-1]), dtype=_compute_type(query.dtype))


def empty_reading(query: Tensor, eager: bool = False) -> tuple[Tensor, Tensor]:
    """Memory for the fields of a Reading, and for the number of keys."""
    rows = tuple(query.shape)[:-1]
    fields = (len(FIELDS), *rows)
    if eager:
        numbers = torch.empty_like(_pattern(fields, _compute_type(query.dtype)))
        return numbers, torch.empty_like(_pattern(rows, torch.int64))
    return query.new_empty(fields, dtype=_compute_type(query.dtype)), query.new_empty(rows, dtype=torch.int64)


# empty_like of a kept tensor is faster than empty of a shape, measurably in a small call; a compiler cannot follow
# that.
@lru_cache(maxsize=256)
def _pattern(shape: tuple[int, ...], dtype: Any) -> Tensor:
    """A tensor of that shape with one number in memory."""
    return torch.empty((), dtype=dtype, device="cpu").expand(shape)


@lru_cache(maxsize=256)
def _row_state_pattern(shape: tuple[int, ...], dtype: Any) -> Tensor:
    return _pattern((2, *shape[:-1]), _compute_type(dtype))


def _walked(problem: Problem, dense: bool) -> Problem:
    query, key, value = problem.query, problem.key, problem.value
    if dense and not (query.is_neg() or key.is_neg() or value.is_neg()):
        return problem
    return problem.with_arrays(_walkable(query), _walkable(key), _walkable(value))


def _walkable(tensor: Tensor) -> Tensor:
    """The tensor itself if the kernel can walk its memory, else a copy in C order."""
    if not tensor.is_contiguous() and tensor.stride(-1) != 1 and tensor.shape[-1] > 1:
        tensor = tensor.contiguous()
    return tensor.resolve_neg() if tensor.is_neg() else tensor


def _compute_type(dtype: Any) -> Any:
    return torch.float64 if dtype == torch.float64 else torch.float32


def tangents(**tensors: Any) -> dict[str, Tensor]:
    """The tangents of those that carry one, by the names given. Outside forward_ad.dual_level() none does."""
    if forward_ad._current_level < 0:  # noqa: SLF001 -- torch tells it nowhere else in so little time
        return {}
    # Inside an operator torch may have switched off the support for tangents.
    with torch._C._SetExcludeDispatchKeyGuard(torch._C.DispatchKey.ADInplaceOrView, False):  # noqa: SLF001
        by_name = {name: forward_ad.unpack_dual(t).tangent for name, t in tensors.items() if isinstance(t, Tensor)}
    return {name: tangent for name, tangent in by_name.items() if tangent is not None}


def primal(given: Any) -> Any:
    """A tensor without its tangent; anything else as it is."""
    return forward_ad.unpack_dual(given).primal if isinstance(given, Tensor) else given


def refuse_tangents(where: str, **tensors: Any) -> None:
    """Raise if one of them carries a tangent, which would be lost."""
    for name in tangents(**tensors):
        refuse_tangent(name, where)


def refuse_tangent(name: str, where: str) -> NoReturn:
    raise DerivativeError(f"{name}: must have no tangent {where}, got one")


# torch has no public names for these two.
transformed = torch._C._are_functorch_transforms_active  # noqa: SLF001
has_memory = torch._C._has_storage  # noqa: SLF001


def is_batched(*tensors: Any) -> bool:
    """Whether one of them stands for a batch of tensors, outside torch.func."""
    return not transformed() and any(isinstance(t, Tensor) and not has_memory(t) for t in tensors)


def each(run: Callable[..., tuple[Any, ...]], *tensors: Any) -> tuple[Any, ...]:
    """run(*tensors) for every entry, and the tensors of its results put together as torch expects them."""
    level = torch._C._vmapmode_increment_nesting() - 1  # noqa: SLF001
    torch._C._vmapmode_decrement_nesting()  # noqa: SLF001
    stacked = [torch._remove_batch_dim(t, level, 0, 0) if is_batched(t) else t for t in tensors]  # noqa: SLF001
    many = [is_batched(t) for t in tensors]
    size = next(t.shape[0] for t, batched in zip(stacked, many, strict=True) if batched)
    entries = [run(*(t[i] if batched else t for t, batched in zip(stacked, many, strict=True))) for i in range(size)]
    together = (None if parts[0] is None else torch.stack(parts) for parts in zip(*entries, strict=True))
    return tuple(None if t is None else torch._add_batch_dim(t, 0, level) for t in together)  # noqa: SLF001
