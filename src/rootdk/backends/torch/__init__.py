"""CPU tensors in, CPU tensors out, recorded by autograd where it asks for them.

A call that torch.compile or torch.func follows is recognised by traced() and goes through the registered operators.
"""

import sys
from collections.abc import Callable
from functools import cache, partial
from importlib.util import find_spec
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from ...checks import float_type, three_floats, type_name
from ...errors import ArgumentError, ArgumentTypeError
from ...options import LEARNED, PAIRS, ROWS, Learnable, Options, Problem, usual_facts, with_rows
from ...reading import Reading, reading_of
from .. import kernel as compiled
from . import eager, kernel
from .kernel import FLOATS, refuse_tangents, tangents, transformed

_BY_VALUE = "where tensors are taken by their values"
_learned = itemgetter(*map(Options._fields.index, LEARNED))
# Types of arguments that carry no behaviour of their own.
_PLAIN = frozenset({Tensor, torch.nn.Parameter, type(None), float})

# torch has no public names for these two.
_modes = torch._C._len_torch_dispatch_stack  # noqa: SLF001
_tracing = torch._C._get_tracing_state  # noqa: SLF001


def holds(array: Any) -> bool:
    """True for every tensor; a device or type that is not supported is an error later, by name."""
    return isinstance(array, Tensor)


def traced(*arguments: Any) -> bool:
    """Whether a compiler, a mode, a transform or a tensor subclass must see operators, not what they compute.

    A tangent must too; outside a level of dual numbers this check costs one comparison.
    """
    if torch.compiler.is_compiling() or _modes() > 0 or transformed() or _tracing() is not None:
        return True
    if arguments and type(arguments[-1]) is Options:
        arguments = arguments[:-1] + _learned(arguments[-1])
    if forward_ad._current_level >= 0 and tangents(**{str(i): a for i, a in enumerate(arguments)}):  # noqa: SLF001
        return True
    for argument in arguments:  # noqa: SIM110 -- any() would take twice the time, in every call
        if type(argument) not in _PLAIN and isinstance(argument, Tensor):
            return True
    return False


def known(query: Any, key: Any, value: Any, options: Options) -> Problem | None:
    """Look up the common case in the binding: dense tensors of one shape, plain numbers, no transform or tangent."""
    if (
        torch.compiler.is_compiling()
        or not type(query) is type(key) is type(value) is Tensor
        or _modes() > 0
        or transformed()
        or _tracing() is not None
        or forward_ad._current_level >= 0  # noqa: SLF001
        or torch.is_autocast_enabled("cpu")
    ):
        return None
    return _known()(query, key, value, options)


@cache
def _known() -> Callable[[Any, Any, Any, Options], Problem | None]:
    library = compiled()
    library.keep_known(partial(usual_facts, sys.modules[__name__]))
    return library.known  # type: ignore[no-any-return]


def plain(argument: str, given: Any) -> Any:
    """A tensor of numbers as NumPy or Python takes it; anything else unchanged."""
    if not isinstance(given, Tensor):
        return given
    _check_place(argument, given)
    values = given.detach()
    if values.dim() == 0:
        return values.item()
    return (values.double() if values.dtype in FLOATS else values).resolve_neg().numpy()


def new_seed() -> int:
    """From torch's default generator: torch.manual_seed repeats it, and so does a recomputed checkpoint."""
    return int(torch.randint(2**63 - 1, (), device="cpu"))


def inputs(query: Any, key: Any, value: Any) -> tuple[Tensor, Tensor, Tensor]:
    plain_types = type(query) is type(key) is type(value) is Tensor and not torch.compiler.is_dynamo_compiling()
    if plain_types and compiled().alike(query, key, value) and not torch.is_autocast_enabled("cpu"):
        return query, key, value
    query, key, value = autocast(query, key, value)
    return three_floats(floats, query, key, value)


def refuse_shapeless(**arrays: Any) -> None:
    """Name the nested tensor, if there is one: one of the older layout looks like any other until its shape is read."""
    for name, tensor in arrays.items():
        if isinstance(tensor, Tensor) and tensor.is_nested:
            raise ArgumentTypeError(
                f"{name}: must be a dense tensor, got a nested one "
                "(torch.nested.to_padded_tensor makes it dense; key_lengths hides the padding)"
            )


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
    return expanded(argument, array, shape, boolean)


def expanded(argument: str, array: Tensor, shape: tuple[int, ...], boolean: bool) -> Tensor:
    """broadcast() for tensors on any device."""
    if boolean and array.dtype != torch.bool:
        raise ArgumentTypeError(f"{argument}: must be bool, True keeps a pair, got {name_of(array.dtype)}")
    if not boolean and array.dtype not in FLOATS:
        float_type(argument, name_of(array.dtype))
    try:
        return array.detach().resolve_neg().expand(shape)
    except RuntimeError:
        raise ArgumentError(
            f"{argument}: must broadcast to (..., heads, n_query, n_key) = {tuple(shape)}, got {tuple(array.shape)}"
        ) from None


def traced_call(
    query: Any, key: Any, value: Any, options: Options, measured: bool, only_reads: bool = False
) -> tuple[Tensor, Any]:
    from .call import call  # it registers the operators, which takes time, and most programs never need them

    return call(query, key, value, options, measured, only_reads)


forward = eager.attend


def measure(problem: Problem, options: Options, per_key: bool) -> tuple[Tensor, Reading]:
    block, keys = kernel.empty_reading(problem.query, eager=True)
    reading = reading_of(block, keys, problem.sinks is not None)
    if not per_key:
        return eager.attend(problem, options, block, keys), reading
    row_state = kernel.empty_row_state(problem.query)
    out = eager.attend(problem, options, block, keys, row_state)
    with torch.no_grad():
        reading.__dict__["received"] = kernel.weights(problem, row_state, per_key=True)
    return out, reading


def weights(problem: Problem, options: Options, rows: Any) -> Tensor:
    given = eager.given(problem, options)._replace(value=None)
    refuse_tangents("in weights(), whose derivative goes backward only", **given._asdict())
    if rows is not None:
        spread = {name: t.expand(getattr(problem, name).shape) for name, t in kernel.present(given, PAIRS)}
        problem = with_rows(problem, rows)
        given = given._replace(query=problem.query, **{name: t[..., rows, :] for name, t in spread.items()})
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in given):
        from . import second

        return second.weights(problem, given)
    row_state = kernel.empty_row_state(problem.query)
    with torch.no_grad():
        kernel.forward(problem, row_state, None, None)
        return kernel.weights(problem, row_state)


def has_kernel(query: Tensor) -> bool:
    """Whether read() takes tensors of this type on this device."""
    if query.is_cpu or not query.is_cuda:
        return query.is_cpu and query.dtype in FLOATS
    return query.dtype in FLOATS - {torch.float64} and find_spec("triton") is not None


def elsewhere(query: Any) -> Any:
    if not query.is_cuda:
        return None  # other devices are refused by name
    from . import gpu

    return gpu


def read(problem: Problem, rows: Any) -> Reading:
    problem = problem if rows is None else with_rows(problem, rows)
    block, keys = kernel.read(problem)
    return reading_of(block, keys, problem.sinks is not None)


def vjp(problem: Problem) -> tuple[Tensor, Callable[[Any], tuple[Tensor, Tensor, Tensor]]]:
    refuse_tangents(_BY_VALUE, query=problem.query, key=problem.key, value=problem.value)
    row_state = kernel.empty_row_state(problem.query, eager=True)
    out = kernel.forward(problem, row_state, None, None)
    out_copy = out.clone()  # the caller may go on with `out += ...`, and the gradient needs the old values

    def pull_back(d_out: Any) -> tuple[Tensor, Tensor, Tensor]:
        refuse_tangents(_BY_VALUE, d_out=d_out)
        pulled = kernel.backward(problem, out_copy, row_state, d_out)
        return pulled.query, pulled.key, pulled.value

    return out, pull_back


def jvp(problem: Problem, tangents: Learnable) -> tuple[Tensor, Tensor]:
    refuse_tangents(_BY_VALUE, **{name: getattr(problem, name) for name in ROWS})
    refuse_tangents(_BY_VALUE, **{f"d_{name}": getattr(tangents, name) for name in ROWS})
    out = kernel.empty_out(problem.query, problem.value)
    return out, kernel.tangent(problem, tangents, out)


def floats(argument: str, tensor: Any, dtype: Any = None, *, like: str = "query", cache: bool = False) -> Tensor:
    _check_tensor(argument, tensor)
    _check_place(argument, tensor)
    if tensor.dtype not in FLOATS or dtype not in (None, tensor.dtype):  # names take longer to compare than types
        float_type(argument, name_of(tensor.dtype), None if dtype is None else name_of(dtype), like=like, cache=cache)
    return tensor


def _check_tensor(argument: str, tensor: Any) -> None:
    if not isinstance(tensor, Tensor):
        raise ArgumentTypeError(f"{argument}: must be a torch tensor like query, got {type_name(tensor)}")


def _check_place(argument: str, tensor: Tensor) -> None:
    refuse_shapeless(**{argument: tensor})
    if tensor.device.type != "cpu" or tensor.layout != torch.strided:
        hint = "rootdk computes on the CPU only: move it with tensor.cpu()"
        if tensor.is_cuda:
            hint = (
                "on a GPU use torch.nn.functional.scaled_dot_product_attention; rootdk.read and rootdk.measure read it"
            )
        layout = "" if tensor.layout == torch.strided else f" with layout {name_of(tensor.layout)}"
        raise ArgumentTypeError(
            f"{argument}: must be a dense tensor on the CPU, got one on device '{tensor.device}'{layout} ({hint})"
        )


def name_of(of: Any) -> str:
    """The name of a type of torch as NumPy has it, such as float32."""
    return str(of).removeprefix("torch.")
