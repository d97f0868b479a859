"""Taps on the ways in which torch code calls attention. Each leaves the call unchanged and notifies afterwards.

    F.scaled_dot_product_attention          the attribute; where it was imported by name, a function mode sees it
    F.multi_head_attention_forward          with need_weights=True it never calls the above: called once more without
    torch's fused layers for evaluation     the two functions behind nn.MultiheadAttention and TransformerEncoderLayer
    transformers: an attention function     AttentionInterface.get_interface, where models look up their function
    rootdk.distributed.attention            asks before a call whether to measure it on its way round the ring
    softmax over the last of four axes      attention that a model writes out itself: the logits are there

A call may pass several taps (a model of transformers on sdpa, a function mode over an attribute); the innermost tap
that is able to notifies, once. The attributes are wrapped while any watch is open, for all threads. A function mode
belongs to the thread that enters it: it is on only while a watched model runs and is read.

References to watches are weak here, so that a watch without other references can end.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from inspect import signature
from threading import RLock, local
from typing import TYPE_CHECKING, Any
from weakref import ref

import torch
from torch.overrides import TorchFunctionMode

from rootdk.audit.watching.call import Call, of_encoder_layer, of_multi_head, of_sdpa, of_transformers
from rootdk.distributed.calls import observers as ring_observers
from rootdk.torch.functional import SDPA
from rootdk.torch.wrapping import Wrapped

if TYPE_CHECKING:
    from rootdk.audit.watching.handle import Watch

functional = torch.nn.functional
# The function as a function mode receives it.
_SDPA_ITSELF = torch._C._nn.scaled_dot_product_attention  # noqa: SLF001 -- whatever stands at the public name now
_MULTI_HEAD_ITSELF = functional.multi_head_attention_forward
_SOFTMAX = frozenset({functional.softmax, torch.softmax, torch.Tensor.softmax})
# nn.MultiheadAttention passes so many arguments by position and the rest by name.
_BY_PLACE = 13

Make = Callable[[], Call]


class _ThreadState(local):
    muted = 0  # how many blocks are open inside of which no listener is notified
    inside = 0  # how many calls that notify by themselves are running
    notified = 0  # how many calls listeners were notified of
    by_name = False  # whether the function mode is on


_thread = _ThreadState()
# The open watches. Never changed in place: other threads may be iterating over it.
_listeners: "tuple[ref[Watch], ...]" = ()


@contextmanager
def _muted() -> Iterator[None]:
    _thread.muted += 1
    try:
        yield
    finally:
        _thread.muted -= 1


def _interested() -> "Iterator[Watch]":
    for known in _listeners:
        listener = known()
        if listener is not None and listener.interested:
            yield listener


def _listening() -> bool:
    return not torch.compiler.is_compiling() and not _thread.muted and any(True for _ in _interested())


def _notify(deliver: "Callable[[Watch], None]") -> None:
    _thread.notified += 1
    with torch.no_grad(), torch._C.DisableTorchFunction(), _muted():  # noqa: SLF001 -- the public one leaves modes on
        for listener in _interested():
            deliver(listener)


def _scaled_dot_product(inner: Any, args: Any, kwargs: Any) -> Any:
    with _muted():  # the function mode sees the same call
        out = inner(*args, **kwargs)
    _notify(lambda listener: listener.on_call(lambda: of_sdpa(out, *args, **kwargs)))
    return out


def _multi_head(inner: Any, args: Any, kwargs: Any) -> Any:
    before = _thread.notified
    _thread.inside += 1
    try:
        out = inner(*args, **kwargs)
        if _thread.notified == before:
            names = list(signature(_MULTI_HEAD_ITSELF).parameters)
            options = dict(zip(names[_BY_PLACE:], args[_BY_PLACE:], strict=False)) | kwargs
            # The same numbers reach the tap above. No dropout, so no random number is used up.
            with torch.no_grad(), torch._C.DisableTorchFunction():  # noqa: SLF001
                inner(*args[:_BY_PLACE], **options | {"need_weights": False, "training": False})
    finally:
        _thread.inside -= 1
    return out


def _fused(describe: Any) -> Any:
    def observe(inner: Any, args: Any, kwargs: Any) -> Any:
        out = inner(*args, **kwargs)
        _notify(lambda listener: listener.on_call(lambda: describe(*args, **kwargs)))
        return out

    return observe


def _tap(observe: Any) -> Callable[[Any], Any]:
    def make(inner: Any) -> Any:
        def tapped(*args: Any, **kwargs: Any) -> Any:
            return observe(inner, args, kwargs) if _listening() else inner(*args, **kwargs)

        return tapped

    return make


def _tap_interface(inner: Any) -> Any:
    def get_interface(interface: Any, attn_implementation: Any, default: Any) -> Any:
        chosen = inner(interface, attn_implementation, default)
        if not _listening():
            return chosen

        def attention(*args: Any, **kwargs: Any) -> Any:
            before = _thread.notified
            _thread.inside += 1
            try:
                out = chosen(*args, **kwargs)
            finally:
                _thread.inside -= 1
            if _thread.notified == before and _listening():
                eager = chosen is default
                _notify(lambda listener: listener.on_call(lambda: of_transformers(out, eager, *args, **kwargs)))
            return out

        return attention

    return get_interface


class _ByName(TorchFunctionMode):  # type: ignore[misc]
    """Sees functions that were imported by name, and a softmax."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is _SDPA_ITSELF and _listening():
            return _scaled_dot_product(func, args, kwargs)
        if func is _MULTI_HEAD_ITSELF and _listening():
            return _multi_head(func, args, kwargs)
        if func in _SOFTMAX and not _thread.inside and _listening():
            self._softmax(*args, **kwargs)
        return func(*args, **kwargs)

    def _softmax(self, input: Any = None, dim: Any = None, *_: Any, **__: Any) -> None:  # noqa: A002 -- torch's name
        if isinstance(input, torch.Tensor) and input.dim() == 4 and dim in (-1, 3) and input.shape[-1] > 1:
            _notify(lambda listener: listener.on_softmax(input.detach()))


@contextmanager
def by_name() -> Iterator[None]:
    """See functions by name inside this block, in this thread. One mode serves all watches."""
    if _thread.by_name:
        yield
        return
    mode = _ByName()
    try:
        _thread.by_name = True
        mode.__enter__()
        yield
    finally:
        _take_off(mode)
        _thread.by_name = False


def _take_off(mode: Any) -> None:
    """Leave this mode and no other: a plain exit removes the top mode, which may be one that the model has left on."""
    above = []
    while torch._C._len_torch_function_stack():  # noqa: SLF001 -- torch has no other way to the stack
        top = torch._C._pop_torch_function_stack()  # noqa: SLF001
        if top is mode:
            break
        above.append(top)
    for other in reversed(above):
        torch._C._push_on_torch_function_stack(other)  # noqa: SLF001


# Reentrant: the garbage collector may end a watch while another one begins.
_lock = RLock()
_taps: list[tuple[Wrapped, Any]] = [
    (SDPA, _tap(_scaled_dot_product)),
    (Wrapped(functional, "multi_head_attention_forward"), _tap(_multi_head)),
    (Wrapped(torch, "_transformer_encoder_layer_fwd"), _tap(_fused(of_encoder_layer))),
    (Wrapped(torch, "_native_multi_head_attention"), _tap(_fused(of_multi_head))),
]
_open: list[tuple[Wrapped, Any]] = []
_RING = (_listening, lambda measured: _notify(lambda listener: listener.on_ring(measured)))


def subscribe(listener: "Watch") -> None:
    """Notify this listener of calls, in every thread; the first one puts the taps in place."""
    global _listeners  # noqa: PLW0603 -- one process has one torch
    with _lock:
        _listeners = (*_listeners, ref(listener))  # first, so that a watch that ends meanwhile is not the last
        wanted = [] if _open else list(_taps)
        # Looked up each time: the library may have been loaded since.
        interface = getattr(sys.modules.get("transformers.modeling_utils"), "AttentionInterface", None)
        if interface is not None and all(make is not _tap_interface for _, make in _open):
            wanted.append((Wrapped(interface, "get_interface"), _tap_interface))
        for place, make in _open:
            place.raise_observer(make)
        for place, make in wanted:
            place.open(make, observer=True)
            _open.append((place, make))
        if _RING not in ring_observers:
            ring_observers.append(_RING)


def unsubscribe(listener: "Watch") -> None:
    """Stop notifying it; the last listener to leave removes the taps."""
    global _listeners  # noqa: PLW0603
    with _lock:
        # When the garbage collector ends a watch its weak reference is already dead: remove dead references too.
        _listeners = tuple(known for known in _listeners if known() not in (None, listener))
        if _listeners:
            return
        while _open:
            place, make = _open.pop()
            place.close(make)
        if _RING in ring_observers:
            ring_observers.remove(_RING)
