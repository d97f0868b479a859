"""What a peer is to the bench: a name, a version, and a way to get ready for one shape."""

from collections.abc import Callable
from dataclasses import dataclass

from rootdk.bench.shapes import Inputs
from rootdk.bench.timing import Call


class UnsupportedError(Exception):
    """This peer cannot do what was asked; the message says why, and is shown."""


@dataclass(frozen=True, slots=True)
class Peer:
    """One library, set to the run's number of threads.

    `prepare` does everything that a user of the library would do once (layout, graph, compilation); the call that it
    returns does the attention, waits for the result and returns it as something that NumPy reads, (batch, heads, n, d).
    `prepare_backward` likewise for forward and gradient in one call, or None where the bench does not compare it.
    """

    name: str
    version: str
    prepare: Callable[[Inputs], Call]
    prepare_backward: Callable[[Inputs], Call] | None = None
