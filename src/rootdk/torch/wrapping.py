"""One attribute of another library, wrapped by several blocks at once that may end in any order.

Other libraries wrap it too, before, meanwhile and afterwards, and expect to find their own wrapper. So the attribute is
one function of ours that looks up the open blocks when it is called: without any it only passes calls on, wherever it
is by then, and it is removed only if it is still the attribute itself.
"""

from collections.abc import Callable
from functools import update_wrapper
from threading import RLock
from types import FunctionType
from typing import Any

Make = Callable[[Any], Any]

# Reentrant: the garbage collector may close a block in the middle of an opening, in the thread that holds the lock.
_lock = RLock()


class Wrapped:
    """The value of `owner.name` while blocks are open: the original inside every wrapper, the observers outermost.

    The last block to end restores what the first one found, unless another library has put its own function there
    since: that one stays, and ours, which it may call, only passes calls on.

    >>> import types
    >>> library = types.SimpleNamespace(f=lambda: "f")
    >>> place, twice = Wrapped(library, "f"), lambda inner: lambda: inner() + inner()
    >>> place.open(twice); library.f()
    'ff'
    >>> ours = library.f
    >>> library.f = lambda: ours() + "!"
    >>> place.close(twice); library.f()
    'f!'
    """

    def __init__(self, owner: Any, name: str) -> None:
        self._owner, self._name = owner, name
        self._open: list[tuple[Make, _StandIn]] = []

    def open(self, make: Make, observer: bool = False) -> None:
        """Wrap it once more; `make` gets the present function and returns the new one."""
        with _lock:
            stand_in = _StandIn.at(self._owner, self._name)
            self._open.append((make, stand_in))
            (stand_in.observers if observer else stand_in.wrappers).append(make)
            stand_in.compose()
            setattr(self._owner, self._name, stand_in.function)

    def close(self, make: Make) -> None:
        """Remove one such wrapper."""
        with _lock:
            stand_in = self._stand_in_of(make)
            self._open.remove((make, stand_in))
            (stand_in.wrappers if make in stand_in.wrappers else stand_in.observers).remove(make)
            stand_in.compose()
            unused = not (stand_in.wrappers or stand_in.observers)
            if unused and vars(self._owner).get(self._name) is stand_in.function:
                stand_in.put_back()

    def raise_observer(self, make: Make) -> None:
        """Put an observer that is open on top again, where another library has wrapped the attribute since."""
        with _lock:
            stand_in = self._stand_in_of(make)
            if vars(self._owner).get(self._name) is not stand_in.function:
                self.close(make)
                self.open(make, observer=True)

    def _stand_in_of(self, make: Make) -> "_StandIn":
        return next(stand_in for opened, stand_in in self._open if opened == make)


class _StandIn:
    """The function that is put into the attribute, and what it calls."""

    def __init__(self, owner: Any, name: str) -> None:
        self.owner, self.name = owner, name
        self.inherited = name not in vars(owner)
        self.original = self._inherited if self.inherited else vars(owner)[name]
        self.wrappers: list[Make] = []
        self.observers: list[Make] = []
        self.call = self.original

        def stand_in(*args: Any, **kwargs: Any) -> Any:
            return self.call(*args, **kwargs)

        update_wrapper(stand_in, getattr(owner, name))
        vars(stand_in)["_rootdk"] = self  # by which it is recognised
        self.function = stand_in

    @staticmethod
    def at(owner: Any, name: str) -> "_StandIn":
        """The stand-in that is there, or a new one for the function that is."""
        current = vars(owner).get(name)
        known = vars(current).get("_rootdk") if isinstance(current, FunctionType) else None
        # A function that another library has made to look like ours has its attributes too.
        if isinstance(known, _StandIn) and known.function is current:
            return known
        return _StandIn(owner, name)

    def compose(self) -> None:
        call = self.original
        for make in (*self.wrappers, *self.observers):
            call = make(call)
        self.call = call

    def put_back(self) -> None:
        if self.inherited:
            delattr(self.owner, self.name)
        else:
            setattr(self.owner, self.name, self.original)

    def _inherited(self, instance: Any, /, *args: Any, **kwargs: Any) -> Any:
        # Looked up when it is called: the class that has it may be patched too.
        return getattr(super(self.owner, instance), self.name)(*args, **kwargs)
