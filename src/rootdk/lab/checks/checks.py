"""What a spec may hold. Each experiment checks its own when it is made, so that a bad one never starts."""

from typing import Any

from rootdk.errors import ArgumentError, ArgumentTypeError
from rootdk.scaling import rule
from rootdk.theory._arguments import count, numbers


def counts(argument: str, given: Any, least: int, most: int) -> tuple[int, ...]:
    """Whole numbers, at least one of them."""
    return tuple(count(argument, one, least, most) for one in _several(argument, given))


def positive(argument: str, given: Any) -> tuple[float, ...]:
    """Finite numbers above 0."""
    return tuple(float(numbers(argument, one, above=0.0)) for one in _several(argument, given))


def names(argument: str, given: Any, known: Any) -> tuple[str, ...]:
    """Names out of a list."""
    for one in _several(argument, given):
        if one not in known:
            raise ArgumentError(f"{argument}: must be some of {', '.join(map(repr, known))}, got {one!r}")
    return tuple(given)


def rules(given: Any) -> tuple[str, ...]:
    """Names of scale rules for q and k as they are."""
    for one in _several("rules", given):
        rule(one)
    return tuple(given)


def seed(given: Any) -> int:
    """A seed of the random numbers."""
    return count("seed", given, 0, 2**63 - 1)


def _several(argument: str, given: Any) -> tuple[Any, ...]:
    if not isinstance(given, (tuple, list)):
        raise ArgumentTypeError(f"{argument}: must be a tuple, got {given!r}")
    if not given:
        raise ArgumentError(f"{argument}: must hold at least one entry, got none")
    return tuple(given)
