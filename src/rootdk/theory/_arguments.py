"""What a function of the theory accepts: numbers or arrays of them, inside its range, or an error that says so."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rootdk import checks
from rootdk.errors import ArgumentError, ArgumentTypeError

Floats = NDArray[np.float64]

MOST_KEYS = 1e15  # n - 1 and n - 2 are exact in float64 up to 9e15


def numbers(
    argument: str, given: Any, *, least: float = -math.inf, most: float = math.inf, above: float = -math.inf
) -> Floats:
    """A float64 array of finite numbers with least <= x <= most and x > above."""
    array = checks.numbers(argument, given)
    if array.dtype.kind not in "fiu" and array.dtype.name != "bfloat16":
        raise ArgumentTypeError(f"{argument}: must be numbers, got {checks.shown(given)}")
    array = array.astype(np.float64)
    bad = ~(np.isfinite(array) & (array >= least) & (array <= most) & (array > above))
    if bad.any():
        raise ArgumentError(f"{argument}: must be {_range(least, most, above)}, got {_first(array, bad)}")
    return array


def result(values: Any) -> Floats:
    """What a function returns: an array or, for one setting, a float64 of NumPy, which has the methods of an array."""
    returned: Floats = np.asarray(values)[()]
    return returned


def whole(argument: str, given: Any, least: int, most: float) -> Floats:
    """The same for whole numbers, which may come as floats: 1e9 keys."""
    array = numbers(argument, given)
    bad = (array != np.floor(array)) | (array < least) | (array > most)
    if bad.any():
        raise ArgumentError(f"{argument}: must be whole numbers from {least} to {most:g}, got {_first(array, bad)}")
    return array


def number(argument: str, given: Any, **limits: float) -> float:
    """One number, within the limits of `numbers`."""
    return _one(argument, numbers(argument, given, **limits))


def count(argument: str, given: Any, least: int, most: int) -> int:
    """One whole number."""
    return int(_one(argument, whole(argument, given, least, most)))


def keys_of(given: Any, least: int = 2) -> Floats:
    """Numbers of keys."""
    return whole("keys", given, least, MOST_KEYS)


def sigmas(given: Any) -> Floats:
    """Standard deviations."""
    return numbers("sigma", given, least=0.0, most=1e100)


def keys_and_sigma(keys: Any, sigma: Any, most: float = 1e100) -> tuple[Floats, ...]:
    """Numbers of keys and standard deviations from 0 to `most`, of one shape."""
    return broadcast(keys=keys_of(keys), sigma=numbers("sigma", sigma, least=0.0, most=most))


def broadcast(**arrays: Floats) -> tuple[Floats, ...]:
    """All to one shape."""
    try:
        return np.broadcast_arrays(*arrays.values())
    except ValueError:
        shapes = ", ".join(f"{name} {array.shape}" for name, array in arrays.items())
        raise ArgumentError(f"{' and '.join(arrays)}: must have shapes that broadcast, got {shapes}") from None


def probabilities(given: Any) -> Floats:
    """Weights p >= 0 along the last axis that add up to 1, give or take the rounding of float32."""
    array = numbers("p", given, least=0.0, most=1.0 + 1e-6)
    if array.ndim == 0 or array.shape[-1] == 0:
        raise ArgumentError(f"p: must have at least one weight along its last axis, got shape {array.shape}")
    total = array.sum(axis=-1)
    bad = np.abs(total - 1.0) > 1e-5
    if bad.any():
        raise ArgumentError(f"p: must add up to 1 along the last axis, got a sum of {_first(total, bad)}")
    return array


def _one(argument: str, array: Floats) -> float:
    if array.ndim:
        raise ArgumentError(f"{argument}: must be one number, got shape {array.shape}")
    return float(array)


def _range(least: float, most: float, above: float) -> str:
    if above > -math.inf:
        return f"finite numbers > {above:g}"
    if least == -math.inf:
        return "finite numbers"
    return f"finite numbers >= {least:g}" if most == math.inf else f"numbers from {least:g} to {most:g}"


def _first(array: Floats, bad: NDArray[np.bool_]) -> float:
    return float(array[bad].flat[0])
