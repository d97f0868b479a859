"""A stand-in for the compiled kernel, for tests of what is handed down to it."""

import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rootdk import backends


class RecordingKernel(types.ModuleType):
    """Takes the place of the compiled module and keeps the arguments of the last call."""

    def __init__(self) -> None:
        super().__init__("rootdk._kernel")
        self.forward_arguments: tuple[object, ...] = ()
        self.backward_arguments: tuple[object, ...] = ()
        self.threads = 3

    def forward(self, *arguments: object) -> None:
        self.forward_arguments = arguments

    def backward(self, *arguments: object) -> None:
        self.backward_arguments = arguments

    @property
    def problem(self) -> Any:
        return self.forward_arguments[0]

    most_threads = 1024

    def num_threads(self) -> int:
        return self.threads

    def set_num_threads(self, n: int) -> None:
        self.threads = n


@contextmanager
def counted_passes() -> Iterator[dict[str, int]]:
    """How often each pass of the kernel runs inside the block, by name."""
    compiled, passes = backends.kernel(), {}
    before = {name: getattr(compiled, name) for name in ("forward", "backward", "tangent")}

    def counting(name: str) -> Any:
        def run(*arguments: Any) -> Any:
            passes[name] = passes.get(name, 0) + 1
            return before[name](*arguments)

        return run

    for name in before:
        setattr(compiled, name, counting(name))
    try:
        yield passes
    finally:
        for name, function in before.items():
            setattr(compiled, name, function)
