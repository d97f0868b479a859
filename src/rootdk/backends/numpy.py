"""NumPy arrays in, NumPy arrays out: views, copies where the kernel cannot walk the memory, and the call.

The kernel walks any strides as long as the last axis of query, key, value is contiguous and elements lie at multiples
of their size. bfloat16 travels as uint16, because the buffer protocol has no name for it.
"""

from collections.abc import Callable
from os import urandom
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..checks import FLOATS, float_type, three_floats, type_name
from ..errors import ArgumentError, ArgumentTypeError
from ..options import PAIRS, ROWS, Learnable, Options, Problem, with_rows
from ..reading import Reading
from . import kernel

Array = NDArray[Any]

# NumPy's own three. bfloat16 is recognised by its name: ml_dtypes is never imported here.
_NATIVE = frozenset(np.dtype(name) for name in FLOATS if name != "bfloat16")


def holds(array: Any) -> bool:
    """True for every ndarray but a masked one, whose mask would silently be lost."""
    return isinstance(array, np.ndarray) and not isinstance(array, np.ma.MaskedArray)


def traced(*arguments: Any) -> bool:  # noqa: ARG001 -- nothing follows a NumPy call
    return False


def known(*_: Any) -> None:
    """None: arrays are resolved in little time."""


def plain(argument: str, given: Any) -> Any:  # noqa: ARG001 -- NumPy reads its own numbers
    return given


def new_seed() -> int:
    return int.from_bytes(urandom(8), "little")


def inputs(query: Any, key: Any, value: Any) -> tuple[Array, Array, Array]:
    # Nearly every call: three plain arrays of one type. All other calls are converted or refused below.
    if type(query) is type(key) is type(value) is np.ndarray:
        dtype = query.dtype
        if dtype is key.dtype and dtype is value.dtype and dtype in _NATIVE:
            return query, key, value
    return three_floats(floats, query, key, value)


def broadcast(argument: str, array: Any, shape: tuple[int, ...], boolean: bool) -> Array:
    if not holds(array):
        raise ArgumentTypeError(f"{argument}: must be a NumPy array like query, got {type_name(array)}")
    if boolean:
        if array.dtype != np.bool_:
            raise ArgumentTypeError(f"{argument}: must be bool, True keeps a pair, got {array.dtype}")
    else:
        array = floats(argument, array)
        array = array if array.flags.aligned else array.copy()  # here, before the view has n_query x n_key elements
    try:
        return np.broadcast_to(array, shape)
    except ValueError:
        raise ArgumentError(
            f"{argument}: must broadcast to (..., heads, n_query, n_key) = {shape}, got {array.shape}"
        ) from None


def forward(problem: Problem, options: Options) -> Array:  # noqa: ARG001 -- arrays have no gradients
    return _forward(problem)[0]


def measure(problem: Problem, options: Options, per_key: bool) -> tuple[Array, Reading]:  # noqa: ARG001
    row_state = _row_state(problem) if per_key else None
    out, handed_down, _raw_out, reading = _forward(problem, row_state, kind=Reading)
    if per_key:
        received = np.zeros(problem.query.shape[:-2] + problem.key.shape[-2:-1], _compute_type(problem.query))
        *heads, of_key = received.strides
        shape = (*received.shape[:-1], problem.query.shape[-2], received.shape[-1])
        # All queries add to one row of sums.
        shared = np.lib.stride_tricks.as_strided(received, shape, (*heads, 0, of_key), writeable=True)
        kernel().weights(handed_down, row_state, shared)
        reading.__dict__["received"] = received
    return out, reading


def weights(problem: Problem, options: Options, rows: Any) -> Array:  # noqa: ARG001
    problem = problem if rows is None else with_rows(problem, rows)
    row_state = _row_state(problem)
    _out, handed_down, _raw_out, _ = _forward(problem, row_state)
    weights_of_rows = np.zeros(problem.query.shape[:-1] + problem.key.shape[-2:-1], _compute_type(problem.query))
    kernel().weights(handed_down, row_state, weights_of_rows)
    return weights_of_rows


def elsewhere(query: Any) -> None:  # noqa: ARG001 -- NumPy has one place
    return None


def read(problem: Problem, rows: Any) -> Reading:
    problem = problem if rows is None else with_rows(problem, rows)
    without_values = problem.with_arrays(problem.query, problem.key, problem.key)
    reading: Reading = kernel().read(_walked(without_values), Reading, None)
    return reading


def vjp(problem: Problem) -> tuple[Array, Callable[[Any], tuple[Array, Array, Array]]]:
    row_state = _row_state(problem)
    out, handed_down, raw_out, _ = _forward(problem, row_state)
    raw_out = raw_out.copy()  # the caller may go on with `out += ...`, and the gradient needs the old values

    def pull_back(d_out: Any) -> tuple[Array, Array, Array]:
        # With the shapes and the type of the inputs, in C order, whatever the strides of the inputs were.
        d_query = np.empty(problem.query.shape, problem.query.dtype)
        d_key = np.empty(problem.key.shape, problem.key.dtype)
        d_value = np.empty(problem.value.shape, problem.value.dtype)
        gradients = Learnable(_raw(d_query), _raw(d_key), _raw(d_value))
        kernel().backward(handed_down, raw_out, _walkable(d_out), row_state, gradients)
        return d_query, d_key, d_value

    return out, pull_back


def jvp(problem: Problem, tangents: Learnable) -> tuple[Array, Array]:
    query = problem.query
    out, d_out = (np.empty(query.shape[:-1] + problem.value.shape[-1:], query.dtype) for _ in range(2))
    given_tangents = {name: tangent for name, tangent in tangents._asdict().items() if tangent is not None}
    handed_down = {name: _walkable(given_tangents[name]) for name in ROWS if name in given_tangents}
    handed_down |= {name: _raw(given_tangents[name]) for name in PAIRS if name in given_tangents}
    kernel().tangent(_walked(problem), _raw(out), _raw(d_out), tangents._replace(**handed_down))
    return out, d_out


def _forward(
    problem: Problem, row_state: Array | None = None, kind: type[Reading] | None = None
) -> tuple[Array, Problem, Array, Any]:
    """Run the kernel. Returns the output, the Problem and the output as the kernel got them, and one of `kind`."""
    query = problem.query
    out = np.empty(query.shape[:-1] + problem.value.shape[-1:], query.dtype)
    raw_out, handed_down = _raw(out), _walked(problem)
    reading = kernel().forward(handed_down, raw_out, row_state, kind, None)
    return out, handed_down, raw_out, reading


def _walked(problem: Problem) -> Problem:
    """The Problem as the kernel takes it."""
    query, key, value, bias = problem.query, problem.key, problem.value, problem.bias
    # Nearly every call, with one check for each array: carray is in C order, aligned and writeable.
    in_c_order = query.flags.carray and key.flags.carray and value.flags.carray
    if in_c_order and bias is None and query.dtype in _NATIVE and key.dtype in _NATIVE:
        return problem
    if bias is not None:
        problem = problem._replace(bias=_raw(bias))
    walkable_query, walkable_key = _walkable(query), _walkable(key)
    walkable_value = walkable_key if value is key else _walkable(value)
    if walkable_query is query and walkable_key is key and walkable_value is value:
        return problem
    return problem.with_arrays(walkable_query, walkable_key, walkable_value)


def _walkable(array: Array) -> Array:
    """The array itself if the kernel can walk it, else a copy in C order."""
    flags = array.flags
    contiguous = flags.c_contiguous or array.shape[-1] <= 1 or array.strides[-1] == array.itemsize
    return _raw(array if contiguous and flags.aligned else np.array(array, order="C"))


def _raw(array: Array) -> Array:
    return array if array.dtype in _NATIVE else array.view(np.uint16)


def floats(argument: str, array: Any, dtype: Any = None, *, like: str = "query", cache: bool = False) -> Array:
    """A plain ndarray of a supported type in the byte order of this machine."""
    if not holds(array):
        raise ArgumentTypeError(f"{argument}: must be a NumPy array like query, got {type_name(array)}")
    plain: Array = np.asarray(array)
    # By name, so that foreign byte orders and the bfloat16 of ml_dtypes are recognised without importing anything.
    float_type(argument, plain.dtype.name, None if dtype is None else dtype.name, like=like, cache=cache)
    return plain.astype(plain.dtype.newbyteorder("="), copy=False)


def _compute_type(query: Array) -> Any:
    return np.float64 if query.dtype == np.float64 else np.float32


def _row_state(problem: Problem) -> Array:
    return np.empty((2, *problem.query.shape[:-1]), _compute_type(problem.query))
