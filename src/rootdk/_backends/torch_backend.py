"""CPU tensors in, CPU tensors out: the kernel walks the tensors' own memory.

Any strides with a contiguous last axis are walked as they lie; other tensors are copied. What is here knows values
only: a call that autograd, torch.compile or torch.func follows is recognised by traced() and goes through the
registered operators, which end up here again.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..errors import ArgumentError, ArgumentTypeError
from ..reading import FIELDS
from . import kernel, type_name
from .problem import Problem

# Element codes of the kernel.
_CODES = {torch.float32: 0, torch.float64: 1, torch.float16: 2, torch.bfloat16: 3}
_TYPES = "float32, float64, float16 or bfloat16"
_PLAIN = (torch.Tensor, torch.nn.Parameter)

# torch tells these three nowhere else.
_modes = torch._C._len_torch_dispatch_stack  # noqa: SLF001
transformed = torch._C._are_functorch_transforms_active  # noqa: SLF001
_tracing = torch._C._get_tracing_state  # noqa: SLF001


def holds(array: Any) -> bool:
    """True for every tensor; which device and type it may have is told later, by name."""
    return isinstance(array, Tensor)


def traced(*arguments: Any) -> bool:
    """Whether something follows this call, so that values alone are not enough."""
    if torch.compiler.is_compiling():
        return True
    for argument in arguments:
        if argument is None:
            continue
        if type(argument) in _PLAIN:
            if argument.requires_grad and torch.is_grad_enabled():
                return True
        elif isinstance(argument, Tensor):
            return True
    return _modes() > 0 or transformed() or _tracing() is not None


def dispatched(query: Any, key: Any, value: Any) -> bool:
    """Whether a compiler, a mode or a tensor type of its own must see an operator and not what it computes."""
    return (
        torch.compiler.is_compiling()
        or not (type(query) in _PLAIN and type(key) in _PLAIN and type(value) in _PLAIN)
        or _modes() > 0
        or _tracing() is not None
    )


def plain(argument: str, given: Any) -> Any:
    """A tensor of numbers as NumPy or Python takes it; anything else as it is."""
    if not isinstance(given, Tensor):
        return given
    _check_place(argument, given)
    values = given.detach()
    if values.dim() == 0:
        return values.item()
    return (values.double() if values.dtype in _CODES else values).resolve_neg().numpy()


def new_seed() -> int:
    """From torch's default generator: torch.manual_seed repeats it, and so does a recomputed checkpoint."""
    return int(torch.randint(2**63 - 1, ()))


def inputs(query: Any, key: Any, value: Any) -> tuple[Tensor, Tensor, Tensor]:
    dtype = query.dtype
    if (
        type(query) is type(key) is type(value) is Tensor
        and dtype is key.dtype
        and dtype is value.dtype
        and dtype in _CODES
        and query.is_cpu
        and key.is_cpu
        and value.is_cpu
        and query.layout is key.layout is value.layout is torch.strided
        and not torch.is_autocast_enabled("cpu")
    ):
        return query, key, value
    query, key, value = autocast(query, key, value)
    query = _floats("query", query)
    return query, _floats("key", key, query.dtype), _floats("value", value, query.dtype)


def autocast(*tensors: Any) -> tuple[Any, ...]:
    """Under torch.autocast("cpu"): floating tensors in its type, but not float64, as torch's own operator does it."""
    if not torch.is_autocast_enabled("cpu"):
        return tensors
    dtype = torch.get_autocast_dtype("cpu")
    return tuple(
        t.to(dtype) if isinstance(t, Tensor) and t.is_floating_point() and t.dtype != torch.float64 else t
        for t in tensors
    )


def broadcast(argument: str, array: Any, shape: tuple[int, ...], boolean: bool) -> Tensor:
    _check_tensor(argument, array)
    _check_place(argument, array)
    if boolean and array.dtype != torch.bool:
        raise ArgumentTypeError(f"{argument}: must be bool, True keeps a pair, got {_name(array.dtype)}")
    if not boolean and array.dtype not in _CODES:
        raise ArgumentTypeError(f"{argument}: must be {_TYPES}, got {_name(array.dtype)}")
    try:
        return array.detach().resolve_neg().expand(shape)
    except RuntimeError:
        raise ArgumentError(
            f"{argument}: must broadcast to (..., heads, n_query, n_key) = {tuple(shape)}, got {tuple(array.shape)}"
        ) from None


def gradient(array: Any, query: Any, shape: tuple[int, ...]) -> Tensor:
    grad = _floats("d_out", array, query.dtype)
    if grad.shape != shape:
        raise ArgumentError(f"d_out: must have the shape of the output {tuple(shape)}, got {tuple(grad.shape)}")
    return grad


def forward(problem: Problem) -> Tensor:
    return forward_state(problem, None, None, None)


def measure(problem: Problem) -> tuple[Tensor, dict[str, Any]]:
    reading, keys = empty_reading(problem.query)
    out = forward_state(problem, None, reading, keys)
    return out, fields_of(reading, keys)


def vjp(problem: Problem) -> tuple[Tensor, Callable[[Any], tuple[Tensor, Tensor, Tensor]]]:
    row_state = empty_row_state(problem.query)
    out = forward_state(problem, row_state, None, None)
    kept = out.clone()  # the caller may go on with `out += ...`, and the gradient needs what it was

    def pull_back(d_out: Any) -> tuple[Tensor, Tensor, Tensor]:
        return backward(problem, kept, row_state, d_out)[:3]

    return out, pull_back


def forward_state(problem: Problem, row_state: Any, reading: Any, keys: Any) -> Tensor:
    """Run the kernel forward; whatever of the three tensors is given is filled."""
    query, value = problem.query, problem.value
    element = _CODES[query.dtype]
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
        torch.get_num_threads(),
    )
    return out


def backward(
    problem: Problem, out: Tensor, row_state: Tensor, d_out: Tensor, learned_bias: Any = None
) -> tuple[Tensor, Tensor, Tensor, Any]:
    """Run the kernel backward. `learned_bias` is the bias before it was broadcast, where its gradient is wanted."""
    query, key, value = problem.query, problem.key, problem.value
    element = _CODES[query.dtype]
    gradients = empty_gradients(query, key, value)
    arrays = [_walkable(tensor) for tensor in (query, key, value, out, d_out)]
    arrays += [_memory(tensor) for tensor in (row_state.contiguous(), *gradients)]
    # The kernel adds to it in its own type; a number that many pairs read is one number here too.
    d_bias = None
    if learned_bias is not None:
        d_bias = query.new_zeros(learned_bias.shape, dtype=_compute_type(query))
    spread = None if d_bias is None else _memory(d_bias.expand(problem.bias.shape))
    kernel().backward(element, *arrays, *_options(problem, element), spread, torch.get_num_threads())
    return *gradients, None if d_bias is None else d_bias.to(learned_bias.dtype)


def empty_out(query: Tensor, value: Tensor) -> Tensor:
    """Room for the output, in the order in which query lies: heads inside rows stay heads inside rows.

    So that the usual out.transpose(1, 2).reshape(batch, n, heads * d) after (batch, n, heads, d).transpose(1, 2) costs
    no copy.
    """
    if query.shape[-1] == value.shape[-1] and query.is_contiguous():
        return torch.empty_like(query)
    *leading, heads, rows, _ = query.shape
    if heads > 1 and rows > 1 and query.stride(-3) < query.stride(-2):
        return query.new_empty((*leading, rows, heads, value.shape[-1])).transpose(-2, -3)
    return query.new_empty((*leading, heads, rows, value.shape[-1]))


def empty_gradients(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Room for d_query, d_key, d_value, each in the order of its own tensor."""
    return empty_out(query, query), empty_out(key, key), empty_out(value, value)


def empty_row_state(query: Tensor) -> Tensor:
    """Room for two numbers per row: its maximum in log2 units, and its sum."""
    return query.new_empty((2, *query.shape[:-1]), dtype=_compute_type(query))


def empty_reading(query: Tensor) -> tuple[Tensor, Tensor]:
    """Room for the fields of a Reading, and for the number of keys."""
    shape = query.shape[:-1]
    reading = query.new_empty((len(FIELDS), *shape), dtype=_compute_type(query))
    return reading, query.new_empty(shape, dtype=torch.int64)


def fields_of(reading: Tensor, keys: Tensor) -> dict[str, Any]:
    return {**dict(zip(FIELDS, reading.detach().unbind(0), strict=True)), "keys": keys}


def _options(problem: Problem, element: int) -> tuple[Any, ...]:
    bias = problem.bias
    bias_element = element if bias is None else _CODES[bias.dtype]
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


def _floats(argument: str, tensor: Any, dtype: Any = None) -> Tensor:
    _check_tensor(argument, tensor)
    _check_place(argument, tensor)
    if tensor.dtype not in _CODES:
        raise ArgumentTypeError(f"{argument}: must be {_TYPES}, got {_name(tensor.dtype)}")
    if dtype is not None and tensor.dtype != dtype:
        raise ArgumentTypeError(f"{argument}: must be {_name(dtype)} to match query, got {_name(tensor.dtype)}")
    return tensor


def _check_tensor(argument: str, tensor: Any) -> None:
    if not isinstance(tensor, Tensor):
        raise ArgumentTypeError(f"{argument}: must be a torch tensor like query, got {type_name(tensor)}")


def _check_place(argument: str, tensor: Tensor) -> None:
    if tensor.device.type != "cpu" or tensor.layout != torch.strided:
        layout = "" if tensor.layout == torch.strided else f" with layout {_name(tensor.layout)}"
        raise ArgumentTypeError(
            f"{argument}: must be a dense tensor on the CPU, got one on device '{tensor.device}'{layout} "
            "(rootdk computes on the CPU only: move it with tensor.cpu())"
        )


def _name(of: Any) -> str:
    """torch.float32 as NumPy would say it."""
    return str(of).removeprefix("torch.")


def _compute_type(query: Tensor) -> Any:
    return torch.float64 if query.dtype == torch.float64 else torch.float32
