"""What single values must be, each with an error that names the argument, what was expected and what came."""

import math
import operator
from collections.abc import Callable
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import ArgumentError, ArgumentTypeError

Integers = NDArray[np.int64]

# Further than any key: a limit is clipped to this so that position + limit cannot overflow 64 bits.
FAR = 2**61
# The element types of the operator, as NumPy names them.
FLOATS = ("float32", "float64", "float16", "bfloat16")
HALVES = FLOATS[2:]


def type_name(value: Any) -> str:
    """The name of a value's type, for errors."""
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def shown(given: Any) -> str:
    """For errors: a short value as it is, a long int by its size, anything else by its type."""
    if type(given) is int and abs(given) >= 10**60:
        return f"an int near {'-' if given < 0 else ''}1e{math.log10(abs(given)):.0f}"
    text = repr(given)
    return text if len(text) <= 60 and "\n" not in text else type_name(given)


def float_type(
    argument: str, name: str, wanted: str | None = None, *, like: str = "query", cache: bool = False
) -> None:
    """The element type of an array, by its name in NumPy: a float that the operator takes, and the one that is wanted.

    cache   a half type is allowed with float32 queries
    """
    if name not in FLOATS:
        raise ArgumentTypeError(f"{argument}: must be {', '.join(FLOATS[:-1])} or {FLOATS[-1]}, got {name}")
    if wanted is not None and name != wanted and not (cache and wanted == "float32" and name in HALVES):
        raise ArgumentTypeError(f"{argument}: must be {wanted} to match {like}, got {name}")


def three_floats(check: Callable[..., Any], query: Any, key: Any, value: Any) -> tuple[Any, Any, Any]:
    """The arrays of a call as a library's `check` gives them: key of query's type or a cache, value of key's type."""
    query = check("query", query)
    key = check("key", key, query.dtype, cache=True)
    if key.dtype == query.dtype:
        return query, key, check("value", value, query.dtype)
    return query, key, check("value", value, key.dtype, like="key")


def axis(given: Any, shape: tuple[int, ...], of: str) -> int:
    """An axis of that shape, counted from either end."""
    number = index(given)
    if number is None:
        raise ArgumentTypeError(f"axis: must be an int, got {given!r}")
    if not -len(shape) <= number < len(shape):
        raise ArgumentError(f"axis: must be from {-len(shape)} to {len(shape) - 1} for {of}, got {number}")
    return number


def truth(argument: str, given: Any) -> bool:
    """True or False, of Python or of NumPy."""
    if not isinstance(given, (bool, np.bool_)):
        raise ArgumentTypeError(f"{argument}: must be True or False, got {shown(given)}")
    return bool(given)


def real(argument: str, given: Any, expected: str) -> float:
    """Any real number but a bool; one beyond the range of a float is infinite."""
    if type(given) is float:  # the common case; asking the abstract Real takes longer than the rest of a call
        return given
    if isinstance(given, (bool, np.bool_)) or not isinstance(given, Real):
        raise ArgumentTypeError(f"{argument}: must be {expected}, got {shown(given)}")
    try:
        return float(given)
    except OverflowError:  # an int of hundreds of digits: too large for any use
        return math.inf if given > 0 else -math.inf  # type: ignore[operator]


def positive(argument: str, given: Any) -> float:
    """A finite number > 0."""
    number = real(argument, given, "a number > 0")
    if not (number > 0 and math.isfinite(number)):
        raise ArgumentError(f"{argument}: must be a finite number > 0, got {shown(given)}")
    return number


def share(argument: str, given: Any) -> float:
    """A number from 0 to below 1."""
    number = real(argument, given, "a number from 0 to below 1")
    if not 0 <= number < 1:
        raise ArgumentError(f"{argument}: must be at least 0 and below 1, got {shown(given)}")
    return number


def index(given: Any) -> int | None:
    """The int that Python itself would take as an index, of any library; None for anything else, a bool too."""
    try:
        return None if isinstance(given, (bool, np.bool_, np.ma.MaskedArray)) else operator.index(given)
    except TypeError:
        return None


def count(argument: str, given: Any, most: int = 2**31 - 1) -> int:
    """How many heads, threads, numbers: an int from 1 on."""
    number = index(given)
    expected = f"{argument}: must be an int from 1 to {most}, got"
    if number is None:
        raise ArgumentTypeError(f"{expected} {shown(given)}")
    if not 1 <= number <= most:
        raise ArgumentError(f"{expected} {shown(number)}")
    return number


def is_int(given: Any) -> bool:
    """Whether it is an int of Python or NumPy, and no bool."""
    return isinstance(given, (int, np.integer)) and not isinstance(given, bool)


def whole_seed(given: Any) -> int:
    """A seed for dropout: 64 bits."""
    if not is_int(given):
        raise ArgumentTypeError(f"seed: must be an int, got {shown(given)}")
    if not 0 <= given < 2**64:
        raise ArgumentError(f"seed: must be at least 0 and below 2**64, got {shown(given)}")
    return int(given)


def integers(argument: str, given: Any, leading: tuple[int, ...], low: int, high: int) -> Integers:
    """One integer per batch entry, flat; a single integer counts for all."""
    array = numbers(argument, given)
    if array.dtype == object and all(is_int(number) for number in array.flat):  # beyond 64 bits
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


def row_numbers(given: Any, n_query: int) -> Integers:
    """Which of the query rows: an int, ints counted from either end, or a slice."""
    if isinstance(given, slice):
        return np.array(np.arange(n_query)[given])  # torch takes no index with a negative stride
    chosen = numbers("rows", given.detach() if hasattr(given, "detach") else given)
    if chosen.ndim > 1 or (chosen.dtype.kind not in "iu" and chosen.size):
        raise ArgumentTypeError(f"rows: must be an int, ints or a slice, got {shown(given)}")
    chosen = np.atleast_1d(chosen).astype(np.int64)
    if chosen.size and not (-n_query <= chosen.min() and chosen.max() < n_query):
        raise ArgumentError(f"rows: must be from {-n_query} to {n_query - 1}, got {shown(given)}")
    return chosen % max(n_query, 1)


def window_limits(window: Any) -> tuple[int | None, int | None]:
    """Left and right limit; None is no limit on that side."""
    pair = window if isinstance(window, (tuple, list)) else (window, window)
    if len(pair) != 2:
        raise ArgumentError(f"window: must be an int or (left, right), got {shown(window)}")
    return _distance(pair[0], window), _distance(pair[1], window)


def _distance(side: Any, window: Any) -> int | None:
    if side is None:
        return None
    expected = "window: must be an int >= 0 or a pair of them (None for no limit), got"
    distance = index(side)
    if distance is None:
        raise ArgumentTypeError(f"{expected} {shown(window)}")
    if distance < 0:
        raise ArgumentError(f"{expected} {shown(distance if side is window else window)}")
    return min(distance, FAR)


def numbers(argument: str, given: Any) -> NDArray[Any]:
    """The given value as a NumPy array."""
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
