"""One attribute of another library, wrapped by several blocks at once that may end in any order."""

from collections.abc import Callable
from threading import Lock
from typing import Any

Make = Callable[[Any], Any]


class Wrapped:
    """What stands at `owner.name` while blocks are open: the original inside every wrapper, the observers outermost.

    The last block out puts back what the first one in found.

    >>> import types
    >>> library = types.SimpleNamespace(f=lambda: "f")
    >>> place, twice = Wrapped(library, "f"), lambda inner: lambda: inner() + inner()
    >>> place.open(twice); library.f()
    'ff'
    >>> place.close(twice); library.f()
    'f'
    """

    def __init__(self, owner: Any, name: str) -> None:
        self._owner, self._name = owner, name
        self._lock = Lock()
        self._found: Any = None
        self._wrappers: list[Make] = []
        self._observers: list[Make] = []

    def open(self, make: Make, observer: bool = False) -> None:
        """Wrap it once more; `make` is given what is there and returns what is to be there."""
        with self._lock:
            if not self._wrappers and not self._observers:
                self._found = vars(self._owner)[self._name]
            (self._observers if observer else self._wrappers).append(make)
            self._compose()

    def close(self, make: Make) -> None:
        """Take one such wrapper out again."""
        with self._lock:
            kind = self._wrappers if make in self._wrappers else self._observers
            kind.remove(make)
            self._compose()

    def _compose(self) -> None:
        made = self._found
        for make in (*self._wrappers, *self._observers):
            made = make(made)
        setattr(self._owner, self._name, made)
