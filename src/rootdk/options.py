"""From what a caller wrote to a Problem: every check and every default of the operator."""

import math
import operator
from functools import lru_cache
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ._backends import Backend, backend_of, type_name
from ._backends.problem import Problem
from .errors import ArgumentError, ArgumentTypeError
from .scaling import SQRT, ScaleRule, rule

Integers = NDArray[np.int64]

# Further than any key: a limit is cut to this so that position + limit cannot overflow 64 bits.
_FAR = 2**61

# Far beyond any use. The kernel multiplies it into the query, and with numbers as large there it is still a float32.
_LARGEST_SCALE = 1e19


def resolve(
    query: Any,
    key: Any,
    value: Any,
    scale: Any,
    causal: Any,
    mask: Any,
    bias: Any,
    window: Any,
    query_offset: Any,
    key_lengths: Any,
    softcap: Any,
    sinks: Any,
    dropout: Any,
    seed: Any,
) -> tuple[Backend, Problem, bool]:
    """The adapter, the Problem, and whether the caller's arrays had no head axis (so that the result has none)."""
    backend = backend_of("query", query)
    query, key, value = backend.inputs(query, key, value)
    try:
        shape, key_shape, value_shape = query.shape, key.shape, value.shape
    except RuntimeError:  # to ask every array first would take time from every call
        backend.refuse_shapeless(query=query, key=key, value=value)
        raise
    if not (shape == key_shape == value_shape) or len(shape) < 2 or shape[-1] == 0:
        check_shapes(tuple(shape), tuple(key_shape), tuple(value_shape))
    one_head = len(shape) == 2
    if one_head:
        query, key, value = query[None], key[None], value[None]
        shape, key_shape = query.shape, key.shape
    n_key = key_shape[-2]
    if (
        mask is bias is window is key_lengths is softcap is sinks is seed is None
        and (scale is None or (type(scale) is float and scale != 0.0))  # -0.0 == 0.0: one key, two scales
        and (causal is False or causal is True)
        and (query_offset is None or type(query_offset) is int)
        and type(dropout) is float
        and dropout == 0.0
    ):
        options = _usual(backend, shape, n_key, scale, causal, query_offset)  # type: ignore[arg-type]  # modules do hash
    else:
        options = _options(
            backend, shape, n_key, one_head, scale, causal, mask, bias, window, query_offset, key_lengths, softcap,
            sinks, dropout, seed,
        )  # fmt: skip
    return backend, Problem._make((query, key, value, *options)), one_head


@lru_cache(maxsize=256)
def _usual(
    backend: Backend, shape: tuple[int, ...], n_key: int, scale: float | None, causal: bool, query_offset: int | None
) -> tuple[Any, ...]:
    """The options of nearly every call: numbers only, and the same ones again and again, so they are kept."""
    absent = None, None, None, query_offset, None, None, None, 0.0, None
    return _options(backend, shape, n_key, False, scale, causal, *absent)


def _options(
    backend: Backend, shape: tuple[int, ...], n_key: int, one_head: bool, scale: Any, causal: Any, mask: Any, bias: Any,
    window: Any, query_offset: Any, key_lengths: Any, softcap: Any, sinks: Any, dropout: Any, seed: Any,
) -> tuple[Any, ...]:  # fmt: skip
    """The fields of a Problem after query, key and value."""
    leading, n_query = tuple(shape)[:-3], shape[-2]
    lengths = None
    if key_lengths is not None:
        lengths = _integers("key_lengths", backend.plain("key_lengths", key_lengths), leading, 0, n_key)
    if type(query_offset) is int and abs(query_offset) <= _FAR // 2:
        offset = np.full(math.prod(leading), query_offset, np.int64)
    elif query_offset is not None:
        given = backend.plain("query_offset", query_offset)
        offset = _integers("query_offset", given, leading, -_FAR // 2, _FAR // 2)
    elif lengths is not None:
        offset = lengths - n_query
    else:
        offset = np.full(math.prod(leading), n_key - n_query, np.int64)

    left: int | None = None
    right: int | None = None
    if window is not None:
        left, right = window_limits(window)
    if truth("causal", causal):
        right = 0

    row_scale = None
    if scale is None:
        scale = SQRT.factor(shape[-1], None, None)
    else:
        scale, row_scale = _scale(backend.plain("scale", scale), shape[-1], n_query, n_key, lengths, offset)

    rate = share("dropout", dropout)
    scores = () if mask is None and bias is None else (*shape[:-1], n_key)
    return (
        scale,
        row_scale,
        None if softcap is None else positive("softcap", softcap),
        left,
        right,
        offset,
        lengths,
        None if mask is None else backend.broadcast("mask", mask, scores, True),
        None if bias is None else backend.broadcast("bias", bias, scores, False),
        None if sinks is None else _sinks(backend.plain("sinks", sinks), shape[-3], one_head),
        rate,
        whole_seed(seed) if seed is not None else 0 if rate == 0.0 else backend.new_seed(),
    )


def check_shapes(query: tuple[int, ...], key: tuple[int, ...], value: tuple[int, ...]) -> None:
    rank = len(query)
    if rank < 2:
        raise ArgumentError(f"query: must have at least 2 axes (n_query, d_k), got {rank} (query {query})")
    if query[-1] == 0:
        raise ArgumentError(f"query: last axis must be at least 1, got 0 (query {query})")
    for name, shape in (("key", key), ("value", value)):
        if len(shape) != rank:
            problem = f"must have {rank} axes like query, got {len(shape)}"
        elif shape[:-3] != query[:-3]:
            problem = f"leading axes must be {query[:-3]} to match query, got {shape[:-3]}"
        else:
            continue
        raise ArgumentError(f"{name}: {problem} (query {query}, {name} {shape})")
    if key[-1] != query[-1]:
        problem = f"key: last axis must be {query[-1]} to match query, got {key[-1]} (query {query}, key {key})"
    elif rank > 2 and (query[-3] % key[-3] if key[-3] else query[-3]):
        problem = f"key: heads must divide the {query[-3]} of query, got {key[-3]} (query {query}, key {key})"
    elif value[-3:-2] != key[-3:-2]:
        problem = f"value: heads must be {key[-3]} to match key, got {value[-3]} (key {key}, value {value})"
    elif value[-2] != key[-2]:
        problem = f"value: must hold {key[-2]} keys to match key, got {value[-2]} (key {key}, value {value})"
    else:
        return
    raise ArgumentError(problem)


def _integers(argument: str, given: Any, leading: tuple[int, ...], low: int, high: int) -> Integers:
    """One integer per batch entry, flat; a single integer counts for all."""
    array = _numbers(argument, given)
    if array.dtype == object and all(_is_int(number) for number in array.flat):  # beyond 64 bits
        array = np.asarray(np.clip(array, low - 1, high + 1), np.int64)
    if array.dtype.kind not in "iu" and array.size:  # an empty list has no integer type of its own
        raise ArgumentTypeError(f"{argument}: must be integers, got {shown(given)}")
    expected = leading or (1,)  # without leading axes there is one batch entry
    if array.shape not in ((), expected):
        raise ArgumentError(f"{argument}: must be an int or ints of shape {expected}, got shape {array.shape}")
    if array.size and not (low <= int(array.min()) and int(array.max()) <= high):
        raise ArgumentError(f"{argument}: must be from {low} to {high}, got {shown(given)}")
    full = np.broadcast_to(array.astype(np.int64), expected).reshape(math.prod(expected))
    return np.ascontiguousarray(full)


def window_limits(window: Any) -> tuple[int | None, int | None]:
    pair = window if isinstance(window, (tuple, list)) else (window, window)
    if len(pair) != 2:
        raise ArgumentError(f"window: must be an int or (left, right), got {shown(window)}")
    return _distance(pair[0], window), _distance(pair[1], window)


def _distance(side: Any, window: Any) -> int | None:
    if side is None:
        return None
    expected = "window: must be an int >= 0 or a pair of them (None for no limit), got"
    try:
        distance = None if isinstance(side, (bool, np.bool_, np.ma.MaskedArray)) else operator.index(side)
    except TypeError:
        distance = None
    if distance is None:
        raise ArgumentTypeError(f"{expected} {shown(window)}")
    if distance < 0:
        raise ArgumentError(f"{expected} {shown(distance if side is window else window)}")
    return min(distance, _FAR)


def truth(argument: str, given: Any) -> bool:
    if not isinstance(given, (bool, np.bool_)):
        raise ArgumentTypeError(f"{argument}: must be True or False, got {shown(given)}")
    return bool(given)


def real(argument: str, given: Any, expected: str) -> float:
    if type(given) is float:  # the common case; asking the abstract Real takes longer than the rest of a call
        return given
    if isinstance(given, (bool, np.bool_)) or not isinstance(given, Real):
        raise ArgumentTypeError(f"{argument}: must be {expected}, got {shown(given)}")
    try:
        return float(given)
    except OverflowError:  # an int of hundreds of digits: too large for whatever is asked of it
        return math.inf if given > 0 else -math.inf  # type: ignore[operator]


def positive(argument: str, given: Any) -> float:
    number = real(argument, given, "a number > 0")
    if not (number > 0 and math.isfinite(number)):
        raise ArgumentError(f"{argument}: must be a finite number > 0, got {shown(given)}")
    return number


def share(argument: str, given: Any) -> float:
    number = real(argument, given, "a number from 0 to below 1")
    if not 0 <= number < 1:
        raise ArgumentError(f"{argument}: must be at least 0 and below 1, got {shown(given)}")
    return number


def count(argument: str, given: Any) -> int:
    """How many heads, threads, numbers: an int from 1 on."""
    try:
        number = None if isinstance(given, (bool, np.bool_, np.ma.MaskedArray)) else operator.index(given)
    except TypeError:
        number = None
    expected = f"{argument}: must be an int from 1 to {2**31 - 1}, got"
    if number is None:
        raise ArgumentTypeError(f"{expected} {shown(given)}")
    if not 1 <= number < 2**31:
        raise ArgumentError(f"{expected} {shown(number)}")
    return number


def _is_int(given: Any) -> bool:
    return isinstance(given, (int, np.integer)) and not isinstance(given, bool)


def whole_seed(given: Any) -> int:
    if not _is_int(given):
        raise ArgumentTypeError(f"seed: must be an int, got {shown(given)}")
    if not 0 <= given < 2**64:
        raise ArgumentError(f"seed: must be at least 0 and below 2**64, got {shown(given)}")
    return int(given)


def _sinks(given: Any, heads: int, one_head: bool) -> NDArray[np.float64]:
    array = _numbers("sinks", given)
    if array.dtype == object:  # ints beyond 64 bits
        array = np.array([real("sinks", number, "numbers") for number in array.flat]).reshape(array.shape)
    if array.dtype.kind not in "fiu" and array.dtype.name != "bfloat16":
        raise ArgumentTypeError(f"sinks: must be numbers, got {shown(given)}")
    if one_head and array.ndim == 0:
        array = array[None]
    if array.shape != (heads,):
        raise ArgumentError(f"sinks: must have shape ({heads},), one per query head, got {array.shape}")
    array = np.ascontiguousarray(array, np.float64)
    if not np.isfinite(array).all():
        raise ArgumentError(f"sinks: must be finite, got {shown(given)}")
    return array


def _scale(
    given: Any, d_k: int, n_query: int, n_key: int, lengths: Integers | None, offset: Integers
) -> tuple[float, NDArray[np.float64] | None]:
    """One number, or one number per query row where a rule looks at lengths or positions."""
    if isinstance(given, str):
        given = rule(given)
    if not isinstance(given, ScaleRule):
        return scale_number(given), None
    by_keys, by_position = "keys" in given.varies, "position" in given.varies
    keys: Any = None
    if by_keys:
        keys = n_key if lengths is None else lengths[:, None]
    position = np.arange(n_query, dtype=np.int64) + offset[:, None] if by_position else None
    factor = _factors(given.name, given.factor(d_k, keys, position))
    if not (np.abs(factor) <= _LARGEST_SCALE).all():
        raise ArgumentError(
            f"scale: the rule {given.name!r} must give finite factors of at most {_LARGEST_SCALE:g} in size, "
            f"got {shown(factor.tolist())}"
        )
    if factor.ndim == 0:
        return float(factor), None
    rows = (len(offset), n_query)
    try:
        return 1.0, np.ascontiguousarray(np.broadcast_to(factor, rows))
    except ValueError:
        raise ArgumentError(
            f"scale: the rule {given.name!r} must give one factor per row {rows}, got shape {factor.shape}"
        ) from None


def scale_number(given: Any) -> float:
    number = real("scale", given, "None, a number, a name or a rule from rootdk.scaling")
    if not abs(number) <= _LARGEST_SCALE:
        raise ArgumentError(f"scale: must be finite and at most {_LARGEST_SCALE:g} in size, got {shown(given)}")
    return number


def _factors(name: str, given: Any) -> NDArray[np.float64]:
    """What a rule gave, as numbers; a text that reads like one is a mistake all the same."""
    try:
        array = np.asarray(given)
        lost = given is None or isinstance(given, np.ma.MaskedArray)  # NumPy takes None for a NaN and drops a mask
        if not lost and array.dtype.kind not in "USc":
            return np.asarray(array, np.float64)
    except (ValueError, TypeError, OverflowError):
        pass
    raise ArgumentTypeError(f"scale: the rule {name!r} must give numbers, got {shown(given)}")


def _numbers(argument: str, given: Any) -> NDArray[Any]:
    refuse_masked(argument, given)
    try:
        return np.asarray(given)
    except (ValueError, TypeError):
        raise ArgumentTypeError(f"{argument}: must be numbers, got {shown(given)}") from None


def refuse_masked(argument: str, given: Any) -> None:
    """A masked array of NumPy, alone or in a list: every use of it as numbers would silently lose the mask."""
    for part in given if isinstance(given, (list, tuple)) else (given,):
        if isinstance(part, np.ma.MaskedArray):
            raise ArgumentTypeError(f"{argument}: must be numbers without a mask, got {type_name(part)}")


def shown(given: Any) -> str:
    """A short value as it is, a long int by its size, anything else by its type."""
    if type(given) is int and abs(given) >= 10**60:
        return f"an int near {'-' if given < 0 else ''}1e{math.log10(abs(given)):.0f}"
    text = repr(given)
    return text if len(text) <= 60 and "\n" not in text else type_name(given)
