"""Arrays of jax in, arrays of jax out, under jit, grad, vmap and shard_map alike.

jax may follow every call: an array may be a tracer, which has a shape and no values. Known values are checked and
resolved as for NumPy; the others become operands of the compiled program, and the kernel checks them.
"""

import math
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ... import options as _options
from ...checks import float_type, shown, three_floats, type_name
from ...errors import ArgumentError, ArgumentTypeError
from ...options import ROWS, Learnable, Options, Problem, segment_pair, with_rows
from ...reading import FIELDS, Reading, reading_of
from ...scaling import ScaleRule, rule
from .primitives import Facts, bind, forward_p, gradients, read_p, real_type, tangent_p, weights_p


def holds(array: Any) -> bool:
    """True for every array of jax, a tracer too."""
    return isinstance(array, jax.Array)


def traced(*arguments: Any) -> bool:  # noqa: ARG001 -- every call is made of primitives, which jax follows by itself
    return False


def known(*_: Any) -> None:
    """Jax itself keeps the calls that it has traced."""


def plain(argument: str, given: Any) -> Any:
    """An array as NumPy takes it; a tracer has no numbers yet."""
    if not holds(given):
        return given.item() if isinstance(given, np.ndarray) and given.ndim == 0 else given
    if _is_traced(given):
        raise ArgumentError(f"{argument}: must be known when the call is traced, got {given.aval.str_short()}")
    return np.asarray(given) if given.ndim else np.asarray(given).item()


def new_seed() -> int:
    raise ArgumentError(
        "seed: must be given for dropout on arrays of jax, got None (jax.random.bits(key) makes one of a key)"
    )


def inputs(query: Any, key: Any, value: Any) -> tuple[Any, Any, Any]:
    return three_floats(floats, query, key, value)


def broadcast(argument: str, array: Any, shape: tuple[int, ...], boolean: bool) -> Any:
    """With all its axes, of size 1 where the kernel reads one number for all: nothing is expanded."""
    array = _array(argument, array)
    if boolean and array.dtype != jnp.bool_:
        raise ArgumentTypeError(f"{argument}: must be bool, True keeps a pair, got {array.dtype}")
    if not boolean:
        float_type(argument, array.dtype.name)
    if array.ndim > len(shape) or any(
        size not in (1, wanted) for size, wanted in zip(array.shape[::-1], shape[::-1], strict=False)
    ):
        raise ArgumentError(
            f"{argument}: must broadcast to (..., heads, n_query, n_key) = {tuple(shape)}, got {array.shape}"
        )
    return array.reshape((1,) * (len(shape) - array.ndim) + array.shape)


def facts(shape: tuple[int, ...], n_key: int, one_head: bool, options: Options) -> Problem:
    """A Problem without its arrays. Options that are traced are checked by shape and type, and stay as they are."""
    leading, heads, n_query = tuple(shape)[:-3], shape[-3], shape[-2]
    batch = math.prod(leading)
    unknown: dict[str, Any] = {}
    for name in ("scale", "query_offset", "key_lengths", "sinks", "alibi", "segments", "seed"):
        given = getattr(options, name)
        parts = given if name == "segments" and isinstance(given, tuple) else (given,)
        if any(_is_traced(part) for part in parts) or (name == "seed" and holds(given)):
            unknown[name] = given
    known = options._replace(**dict.fromkeys(unknown))
    if "seed" in unknown:
        known = known._replace(seed=0)
    problem = _options.facts(sys.modules[__name__], shape, n_key, one_head, known)
    if not unknown:
        return problem
    fields: dict[str, Any] = {}
    for name, given in unknown.items():
        if name == "seed":
            fields[name] = _traced_seed(given)
        elif name in ("key_lengths", "query_offset"):
            fields[name] = _entries(name, given, leading).reshape(batch)
        elif name == "sinks":
            sinks = _numbers(name, given)
            fields[name] = sinks = sinks[None] if one_head and sinks.ndim == 0 else sinks
            if sinks.shape != (heads,):
                raise ArgumentError(f"sinks: must have shape ({heads},), one per query head, got {sinks.shape}")
        elif name == "alibi":
            fields[name] = _spread(name, _numbers(name, given), (*leading, heads), "(..., heads)")
        elif name == "scale":
            fields[name] = _numbers(name, given)
            if fields[name].ndim:
                raise ArgumentTypeError(
                    "scale: must be None, a number, an array without axes, a name or a rule from rootdk.scaling, "
                    f"got an array of shape {given.shape}"
                )
        else:
            of_queries, of_keys = segment_pair(given, n_query, n_key)
            fields["query_segments"] = _segments(of_queries, (*leading, n_query)).reshape(batch, n_query)
            fields["key_segments"] = _segments(of_keys, (*leading, n_key)).reshape(batch, n_key)
    if "key_lengths" in fields and options.query_offset is None:
        fields["query_offset"] = None  # the kernel computes it from the lengths
    if by_row := _rule_by_row(options.scale, unknown):
        raise ArgumentError(
            f"scale: a rule must not vary from row to row where {by_row} is traced, got {options.scale!r}; "
            "multiply the query by the factors of its rows instead"
        )
    return problem._replace(**fields)


def forward(problem: Problem, options: Options | None = None, rows_first: bool = False) -> Any:  # noqa: ARG001
    arrays, numbers = operands(problem, rows_first)
    return bind(forward_p, arrays, ("out",), numbers)[0]


def measure(
    problem: Problem,
    options: Options | None,  # noqa: ARG001
    per_key: bool,
    rows_first: bool = False,
) -> tuple[Any, Reading]:
    arrays, numbers = operands(problem, rows_first)
    results = ("out", "reading", "keys", *(("row_state",) if per_key else ()))
    out, block, keys, *state = bind(forward_p, arrays, results, numbers)
    reading = reading_of(block, keys, problem.sinks is not None)
    if per_key:
        shape = (*keys.shape[:-1], 1, problem.key.shape[-3 if rows_first else -2])
        received = _weights(arrays, numbers, state[0], shape)[..., 0, :]
        reading.__dict__["received"] = jax.lax.stop_gradient(received)
    return out, reading


def weights(problem: Problem, options: Options, rows: Any) -> Any:  # noqa: ARG001
    problem = problem if rows is None else _with_rows(problem, rows)
    arrays, numbers = operands(problem)
    (row_state,) = bind(forward_p, arrays, ("out", "row_state"), numbers)[1:]
    return _weights(arrays, numbers, row_state, (*problem.query.shape[:-1], problem.key.shape[-2]))


def _weights(arrays: dict[str, Any], numbers: Facts, row_state: Any, shape: tuple[int, ...]) -> Any:
    needed = {name: array for name, array in arrays.items() if name not in ("value", "seed")}
    return bind(weights_p, needed | {"row_state": row_state}, ("weights",), numbers._replace(dropout=0.0), shape)[0]


def elsewhere(query: Any) -> None:  # noqa: ARG001 -- another device is refused by name
    return None


def read(problem: Problem, rows: Any) -> Reading:
    problem = problem if rows is None else _with_rows(problem, rows)
    arrays, numbers = operands(problem._replace(value=None))
    block, keys = bind(read_p, arrays, ("reading", "keys"), numbers)
    return reading_of(block, keys, problem.sinks is not None)


def vjp(problem: Problem) -> tuple[Any, Callable[[Any], tuple[Any, Any, Any]]]:
    arrays, numbers = operands(problem)
    out, row_state = bind(forward_p, arrays, ("out", "row_state"), numbers)

    def pull_back(d_out: Any) -> tuple[Any, Any, Any]:
        wanted = {f"d_{name}": arrays[name] for name in ROWS}
        pulled = gradients(d_out, arrays | {"out": out, "row_state": row_state}, numbers, wanted)
        return pulled["d_query"], pulled["d_key"], pulled["d_value"]

    return out, pull_back


def jvp(problem: Problem, tangents: Learnable) -> tuple[Any, Any]:
    arrays, numbers = operands(problem)
    real = real_type(problem.query.dtype)
    given_tangents = {f"d_{name}": tangent for name, tangent in tangents._asdict().items() if tangent is not None}
    leading = problem.query.shape[:-3]
    for name in ("d_sinks", "d_scale", "d_alibi"):
        if name in given_tangents:
            numbers_of = np.asarray(given_tangents[name], real)
            given_tangents[name] = numbers_of.reshape(*leading, -1) if name == "d_alibi" else numbers_of
    (out,) = bind(forward_p, arrays, ("out",), numbers)
    if not given_tangents:
        return out, jnp.zeros_like(out)
    return out, bind(tangent_p, given_tangents | arrays, ("d_out",), numbers)[0]


def operands(problem: Problem, rows_first: bool = False) -> tuple[dict[str, Any], Facts]:
    """The arrays of the compiled call by name, as primitives.py lays them out, and its numbers."""
    query = problem.query
    leading = query.shape[:-3]
    n_query, n_key = (array.shape[-3 if rows_first else -2] for array in (query, problem.key))
    real = real_type(query.dtype)
    lengths, offset = problem.key_lengths, problem.query_offset

    def per_entry(array: Any) -> Any:
        return None if array is None else _narrow(array.reshape((*leading, *array.shape[1:])))

    def reals(array: Any, *shape: int) -> Any:
        return None if array is None else array.astype(real).reshape(*shape)

    if offset is not None and not (_is_traced(lengths) or _is_traced(offset)):
        # Offsets that the kernel finds by itself are no operand.
        follows = (n_key if lengths is None else lengths) - n_query
        offset = None if (offset == follows).all() else offset
    traced_scale = _is_traced(problem.scale)
    arrays = {
        "query": query,
        "key": problem.key,
        "value": problem.value,
        "scale": jnp.asarray(problem.scale, real) if traced_scale else None,
        "row_scale": reals(problem.row_scale, *leading, n_query),
        "query_offset": None if problem.query_positions is not None else per_entry(offset),
        "key_lengths": per_entry(lengths),
        "query_segments": per_entry(problem.query_segments),
        "key_segments": per_entry(problem.key_segments),
        "query_positions": per_entry(problem.query_positions),
        "mask": problem.mask,
        "bias": problem.bias,
        "sinks": reals(problem.sinks, query.shape[-2 if rows_first else -3]),
        "alibi": reals(problem.alibi, *leading, query.shape[-2 if rows_first else -3]),
        "seed": _seed(problem.seed) if problem.dropout > 0 else None,
    }
    for name, fact in problem._asdict().items():
        if fact is not None and name not in arrays and name not in (*Facts._fields, "key_positions"):
            raise ArgumentError(f"{name}: must be None for arrays of jax, got {shown(fact)}")
    numbers = Facts(
        scale=0.0 if traced_scale else float(problem.scale),
        softcap=problem.softcap or 0.0,
        left=-1 if problem.left is None else problem.left,
        right=-1 if problem.right is None else problem.right,
        dropout=problem.dropout,
        rows_first=rows_first,
    )
    return {name: array for name, array in arrays.items() if array is not None}, numbers


def _is_traced(array: Any) -> bool:
    return isinstance(array, jax.core.Tracer)


def _narrow(array: Any) -> Any:
    """Integers in a type that jax has: beyond 32 bits as two of them."""
    if not isinstance(array, np.ndarray) or jax.config.jax_enable_x64:
        return array
    low, high = np.iinfo(np.int32).min, np.iinfo(np.int32).max
    if array.size == 0 or (low <= array.min() and array.max() <= high):
        return array.astype(np.int32)
    return np.ascontiguousarray(array).view(np.uint32).reshape(*array.shape, 2)


def _seed(seed: Any) -> Any:
    return seed if holds(seed) else np.array([seed & 0xFFFFFFFF, seed >> 32], np.uint32)


def _traced_seed(given: Any) -> Any:
    """Two halves of a seed, the lower first."""
    if given.ndim or not jnp.issubdtype(given.dtype, jnp.integer):
        raise ArgumentTypeError(f"seed: must be an int or an integer array without axes, got {given.aval.str_short()}")
    wide = given.dtype.itemsize == 8
    halves = [given.astype(jnp.uint32), (given >> 32).astype(jnp.uint32) if wide else jnp.zeros((), jnp.uint32)]
    return jnp.stack(halves)


def _rule_by_row(scale: Any, unknown: dict[str, Any]) -> str:
    """The traced option whose value a scale rule would need; empty if there is none."""
    scale_rule = rule(scale) if isinstance(scale, str) else scale
    if not isinstance(scale_rule, ScaleRule):
        return ""
    looks = {"keys": ("key_lengths", "segments"), "position": ("key_lengths", "segments", "query_offset")}
    names = [name for varies in scale_rule.varies for name in looks[varies] if name in unknown]
    return names[0] if names else ""


def _with_rows(problem: Problem, rows: Any) -> Problem:
    if problem.query_positions is None:
        if problem.query_segments is not None:
            raise ArgumentError("rows: must be None where segments are traced, got rows")
        if problem.query_offset is None:  # the kernel would compute it from the lengths, for all rows
            problem = problem._replace(query_offset=problem.key_lengths - problem.query.shape[-2])
    return with_rows(problem, rows, lambda array, *_: array if array.shape[-2] == 1 else array[..., rows, :])


def _array(argument: str, array: Any) -> Any:
    """An array of jax on the CPU; a NumPy array counts as a constant, as everywhere in jax."""
    if isinstance(array, np.ndarray) and not isinstance(array, np.ma.MaskedArray):
        array = jnp.asarray(array)
    if not holds(array):
        raise ArgumentTypeError(f"{argument}: must be an array of jax like query, got {type_name(array)}")
    if not _is_traced(array):
        for device in array.devices():
            if device.platform != "cpu":
                raise ArgumentTypeError(
                    f"{argument}: must be on a CPU device, got one on {device} "
                    "(rootdk computes on the CPU only: jax.nn.dot_product_attention runs there)"
                )
    return array


def floats(argument: str, array: Any, dtype: Any = None, *, like: str = "query", cache: bool = False) -> Any:
    array = _array(argument, array)
    float_type(argument, array.dtype.name, None if dtype is None else dtype.name, like=like, cache=cache)
    return array


def _numbers(argument: str, given: Any) -> Any:
    if not jnp.issubdtype(given.dtype, jnp.floating) and not jnp.issubdtype(given.dtype, jnp.integer):
        raise ArgumentTypeError(f"{argument}: must be numbers, got {shown(given)}")
    return given


def _entries(argument: str, given: Any, leading: tuple[int, ...]) -> Any:
    if not jnp.issubdtype(given.dtype, jnp.integer):
        raise ArgumentTypeError(f"{argument}: must be integers, got {given.aval.str_short()}")
    expected = leading or (1,)
    if given.shape not in ((), expected):
        raise ArgumentError(f"{argument}: must be an int or ints of shape {expected}, got shape {given.shape}")
    return jnp.broadcast_to(_signed(given), expected)


def _segments(given: Any, shape: tuple[int, ...]) -> Any:
    array = given if holds(given) else jnp.asarray(given)
    if not jnp.issubdtype(array.dtype, jnp.integer):
        raise ArgumentTypeError(f"segments: must be integers of at most 64 bits, got {array.dtype}")
    return _spread("segments", _signed(array), shape, "(..., n)")


def _signed(array: Any) -> Any:
    return array.astype(jnp.int64 if array.dtype.itemsize == 8 else jnp.int32)


def _spread(argument: str, array: Any, shape: tuple[int, ...], words: str) -> Any:
    try:
        return jnp.broadcast_to(array, shape)
    except ValueError:
        raise ArgumentError(f"{argument}: must broadcast to {words} = {shape}, got shape {array.shape}") from None


def _flatten_with_keys(reading: Reading) -> tuple[Any, bool]:
    names = (*FIELDS, "keys", "received")
    return [(jax.tree_util.GetAttrKey(name), getattr(reading, name)) for name in names], reading.has_sinks


def _unflatten(has_sinks: bool, leaves: Any) -> Reading:
    return Reading(**dict(zip((*FIELDS, "keys", "received"), leaves, strict=True)), has_sinks=has_sinks)


jax.tree_util.register_pytree_with_keys(Reading, _flatten_with_keys, _unflatten)
