"""Sink: where the numbers of a step go."""

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any, Protocol, runtime_checkable

from rootdk.errors import ArgumentError, ArgumentTypeError
from rootdk.integrations.jsonl import JsonLines


@runtime_checkable
class Sink(Protocol):
    """Three verbs. Any object that has them will do.

    A sink is made before it is known which process writes; only in that one is it opened.

    >>> class Printed:
    ...     def open(self): pass
    ...     def write(self, step, values): print(step, values["attn/max_logit"])
    ...     def close(self): pass
    >>> isinstance(Printed(), Sink)
    True
    """

    def open(self) -> None:
        """Before the first step; an error here ends a run that has not begun."""

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """All numbers of one step. One that is not there is NaN. After an error there are no more calls of this."""

    def close(self) -> None:
        """After the last step. Closing twice, or what was never opened, is no error."""


def sinks_of(given: Any) -> tuple[Sink, ...]:
    """A path (JSON lines), a sink, or several of them.

    >>> [type(sink).__name__ for sink in sinks_of("attention.jsonl")]
    ['JsonLines']
    """
    several = given if isinstance(given, Sequence) and not isinstance(given, (str, bytes)) else [given]
    if not several:
        raise ArgumentError("sinks: must be a path, a sink or several of them, got none")
    return tuple(_sink(one) for one in several)


def _sink(given: Any) -> Sink:
    if isinstance(given, (str, PathLike)):
        return JsonLines(given)
    # A class has the verbs too, but nothing to open.
    if isinstance(given, type) or not isinstance(given, Sink):
        raise ArgumentTypeError(f"sinks: must be a path or have open, write and close, got {given!r}")
    return given
