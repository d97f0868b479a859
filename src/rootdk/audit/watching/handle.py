"""Watch: the handle that rootdk.watch returns."""

import copy
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from threading import Lock, local
from typing import Any
from weakref import ref

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from rootdk.audit.health import Trend, audit_of_watch
from rootdk.audit.layer import LayerReading
from rootdk.audit.projections import modules_of
from rootdk.audit.result import Audit, Phase
from rootdk.audit.watching import taps
from rootdk.audit.watching.call import Call, UnreadableError
from rootdk.audit.watching.read import check_readable, read, read_logits, read_ring
from rootdk.audit.watching.rows import Scale, Sight, scale_of, sight_of
from rootdk.checks import count
from rootdk.errors import ArgumentTypeError
from rootdk.torch.wrapping import Wrapped

_FUSED = (torch.nn.TransformerEncoderLayer, torch.nn.MultiheadAttention)
# -1 outside of a backward pass; a forward inside one recomputes a checkpoint, which was read already.
_backward = torch._C._current_graph_task_id  # noqa: SLF001 -- torch.utils.checkpoint asks the same


@dataclass(eq=False, slots=True)
class _Step:
    """One forward of the model, or the calls outside of any forward that count as one. It belongs to one thread."""

    number: int  # counted over all threads
    wanted: bool  # whether its calls are read
    readings: dict[str, LayerReading] = field(default_factory=dict)
    called: set[str] = field(default_factory=set)  # the paths of the modules that called, read or not
    sights: dict[Any, tuple[Any, Sight]] = field(default_factory=dict)  # for the masks that its layers share


class _ThreadState(local):
    step: _Step | None = None  # the current one
    running = False  # whether that is a forward of the model


class Watch:
    """Reads the attention of a model for as long as it is open. `rootdk.watch` explains it.

    readings   {module path: LayerReading} of the last forward that was read
    unread     {module path: why} for calls that could not be read
    step       how many forwards there were, in all threads
    seconds    how long reading has taken so far
    paused     set it to True and forwards are counted but not read, until it is False again
    """

    open = False

    def __init__(self, model: Any, every: int = 1, rows: int | None = None) -> None:
        if not isinstance(model, torch.nn.Module):
            raise ArgumentTypeError(f"model: must be a torch.nn.Module, got {type(model).__name__}")
        self.model = model
        self._compiled = any(map(is_compiled, model.modules()))
        self.every, self.rows = count("every", every), None if rows is None else count("rows", rows)
        self.unread: dict[str, str] = {}
        self.step = 0
        self.seconds = 0.0
        self.paused = False
        self.trend = Trend()
        self.readings: dict[str, LayerReading] = {}
        self._modules = modules_of(model)  # kept, so that no other module gets the id of one of them
        root = type(self._modules[""]).__name__
        self._names = {id(module): name or root for name, module in self._modules.items()}
        for name, module in self._modules.items():
            if isinstance(module, torch.nn.TransformerEncoderLayer):  # its fused path attends in its own frame
                self._names[id(module)] = f"{name}.self_attn".lstrip(".")
        self._scales: dict[str, Scale] = {}
        self._mine = _ThreadState()
        self._lock = Lock()  # for what all threads write: step, seconds, readings, trend
        self._latest = -1  # the number of the step that readings are of
        # On the class, where Python looks for it. Nothing is put on the model itself: torch looks for hooks there,
        # copies and pickles would include it, and a hook would not see an interrupt.
        self._call, self._around = Wrapped(type(model), "__call__"), _around(ref(self))
        self._call.open(self._around, observer=True)
        self.open = True
        taps.subscribe(self)

    def close(self) -> None:
        """Stop watching; readings stay. Closing twice is no error. A RuntimeWarning says so where nothing was read.

        A forward that is running in another thread goes on as if it were not watched.
        """
        self._close()

    def _close(self, silent: bool = False) -> None:
        if not self.open:
            return
        self._end()
        self.open = False
        taps.unsubscribe(self)
        self._call.close(self._around)
        if silent or self.readings or self.paused:
            return
        kind = type(self.model).__name__
        if self.unread:
            why = "; ".join(f"{name}: {reason}" for name, reason in self.unread.items())
        elif self.step:
            why = f"{kind} attends in no way that is known, or inside compiled code"
        else:
            why = f"{kind} did not run while it was watched; of a compiled model, watch what torch.compile returned"
        warnings.warn(f"rootdk: no attention was read: {why}", RuntimeWarning, stacklevel=3)

    def __enter__(self) -> "Watch":  # noqa: PYI034 -- typing.Self came with Python 3.11
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._close(silent=kind is not None)

    def __del__(self) -> None:
        if self.open:
            # A ResourceWarning, which Python hides unless run with -X dev: no readings are lost that anybody still
            # held.
            warnings.warn(f"unclosed {self!r}; it is closed now", ResourceWarning, stacklevel=2)
            self._close(silent=True)

    def __repr__(self) -> str:
        state = "open" if self.open else "closed"
        return f"Watch({type(self.model).__name__}, {len(self.readings)} layers, step {self.step}, {state})"

    def report(self, phase: Phase = "any", total_steps: int | None = None) -> Audit:
        """Judge the last readings and the trend: a rootdk.audit.Audit.

        phase         "init" for a model that was not trained yet: it must agree with theory. "trained" for one that
                      was. "any" where neither is known; thresholds for only one of the two are then left out.
        total_steps   how many forwards the run will have: the trend is extrapolated to there
        """
        return audit_of_watch(self, phase, total_steps)

    # Called by the model's class and by the taps.

    def run(self, forward: Callable[[], Any], replay: Callable[[], Any]) -> Any:
        """Run a forward of the model, count it and, if it is due, read it. A forward inside another is a part of it.

        replay   the same on copies of its arguments, for a model with compiled parts
        """
        mine = self._mine
        if mine.running or _backward() != -1:
            return forward()
        self._end()  # ends the step of calls outside of any forward
        step = self._begin()
        if self._compiled:
            if step.wanted:
                self._read_eagerly(step, replay)
            step = _Step(step.number, wanted=False)
        try:
            mine.step, mine.running = step, True
            with self._tap_by_name() if step.wanted else nullcontext():
                return forward()
        finally:
            self._end()

    def _read_eagerly(self, step: _Step, replay: Callable[[], Any]) -> None:
        """One more forward before that of compiled code, which cannot be observed; other code would give other bits.

        torch runs it eagerly: without gradients, with copies of the arguments, and with random numbers and buffers put
        back.
        """
        started = time.perf_counter()
        try:
            self._mine.step, self._mine.running = step, True
            eager, tap = torch.compiler.set_stance("force_eager"), self._tap_by_name()
            with _as_it_was(self.model), torch.no_grad(), eager, tap:
                replay()
        except Exception as error:  # noqa: BLE001 -- the model itself must run; `unread` says it
            self.unread[type(self.model).__name__] = f"its eager run: {type(error).__name__}: {error}"
        finally:
            self._end()
            with self._lock:
                self.seconds += time.perf_counter() - started

    @property
    def interested(self) -> bool:
        """Whether a call that is made now, in this thread, may have to be read."""
        mine = self._mine
        return self.open and _backward() == -1 and (not mine.running or mine.step is None or mine.step.wanted)

    def on_call(self, make: taps.Make) -> None:
        """Read a call if a module of this model made it."""
        self._observe(lambda name, step: self._read(name, step, make()))

    def on_softmax(self, logits: Tensor) -> None:
        """Read the logits of a softmax that a module of this model computed."""
        self._observe(lambda name, step: read_logits(name, step.number, logits, self.rows))

    def on_ring(self, measured: Any) -> None:
        """Take the readings of a call on a ring of processes that a module of this model made."""
        self._observe(lambda name, step: read_ring(name, step.number, measured))

    def _observe(self, read_call: Callable[[str, _Step], LayerReading]) -> None:
        """Read a call as part of the current forward. Outside of forwards a step lasts until a module calls again."""
        started = time.perf_counter()
        name = self._place()
        if name is not None:
            mine = self._mine
            if mine.step is None or (not mine.running and name in mine.step.called):
                mine.step = self._begin()
            mine.step.called.add(name)
            if mine.step.wanted:
                self._take(mine.step, name, read_call)
        with self._lock:
            self.seconds += time.perf_counter() - started

    def _take(self, step: _Step, name: str, read_call: Callable[[str, _Step], LayerReading]) -> None:
        # A layer that runs more than once in a forward (shared weights) gets a number.
        again = sum(known.partition("#")[0] == name for known in step.readings)
        name = f"{name}#{again + 1}" if again else name
        try:
            step.readings[name] = read_call(name, step)
        except UnreadableError as reason:
            self.unread[name] = str(reason)
        except Exception as error:  # noqa: BLE001 -- a reading that fails must not end a training run; `unread` says it
            self.unread[name] = f"{type(error).__name__}: {error}"
        else:
            if not self._mine.running:  # the end of such a step is unknown, so its readings are shown at once
                self._show(step, step.readings[name])

    def _begin(self) -> _Step:
        with self._lock:
            number = self.step
            self.step += 1
            return _Step(number, not self.paused and number % self.every == 0)

    def _end(self) -> None:
        """End the current step of this thread, if there is one."""
        mine = self._mine
        step, running = mine.step, mine.running
        mine.step, mine.running = None, False
        if step is not None and running:
            self._show(step, *step.readings.values())

    def _show(self, step: _Step, *fresh: LayerReading) -> None:
        """Make readings visible to others; a step older than the visible one only adds to the trend."""
        if not fresh:
            return
        with self._lock:
            if not self.open:
                return
            started = time.perf_counter()
            if step.number >= self._latest:
                self._latest, self.readings = step.number, dict(step.readings)
            for reading in fresh:
                self.trend.note(reading.name, reading.step, *reading.digest)
            self.seconds += time.perf_counter() - started

    def _tap_by_name(self) -> Any:
        """The function mode; none where torch may take a fused path, which a mode would switch off: other bits."""
        fuses = torch.backends.mha.get_fastpath_enabled() and any(
            isinstance(module, _FUSED) and not module.training for module in self.model.modules()
        )
        return nullcontext() if fuses else taps.by_name()

    def _place(self) -> str | None:
        """The path of the innermost module of this model that is running: the first argument of a frame."""
        frame = sys._getframe(1)  # noqa: SLF001 -- the documented way to the caller's frame
        while frame is not None:
            code = frame.f_code
            if code.co_argcount and isinstance(owner := frame.f_locals.get(code.co_varnames[0]), torch.nn.Module):
                name = self._names.get(id(owner))
                if name is not None:
                    return name
            frame = frame.f_back  # type: ignore[assignment]
        return None

    def _read(self, name: str, step: _Step, call: Call) -> LayerReading:
        check_readable(call)
        place = call.query.device.type
        if torch.is_autocast_enabled(place) and call.query.dtype == torch.float32:
            # The operator itself converts its arguments like this.
            low = torch.get_autocast_dtype(place)
            call = replace(call, query=call.query.to(low), key=call.key.to(low), value=call.value.to(low))
        with torch.autocast(place, enabled=False):
            scale = self._scales.get(name)
            if scale is None or scale.given != call.scale:
                scale = self._scales[name] = scale_of(call)
            # Once for all layers that share masks; the tensors are kept so that no others take their place.
            masks = (call.mask, call.added)
            key = (call.query.shape[:-3], *map(_identity, masks))
            if key not in step.sights:
                step.sights[key] = (masks, sight_of(call))
            return read(name, step.number, call, scale, step.sights[key][1], self.rows)


def _identity(tensor: Tensor | None) -> Any:
    if tensor is None:
        return None
    version = 0 if tensor.is_inference() else tensor._version  # noqa: SLF001 -- what autograd itself goes by
    return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype, version


def _around(watch: "ref[Watch]") -> Callable[[Any], Any]:
    """Wraps __call__ of the model's class, which other models may share, for one watch."""

    def make(inner: Any) -> Any:
        def called(module: Any, /, *args: Any, **kwargs: Any) -> Any:
            watching = None if torch.compiler.is_compiling() else watch()
            if watching is None or watching.model is not module or not watching.open:
                return inner(module, *args, **kwargs)

            def replay() -> Any:
                again, named = copied((args, kwargs))
                return module(*again, **named)

            return watching.run(lambda: inner(module, *args, **kwargs), replay)

        return called

    return make


def is_compiled(module: Any) -> bool:
    """Whether torch.compile made it, or `module.compile()` was called."""
    return hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None


@contextmanager
def _as_it_was(model: torch.nn.Module) -> Iterator[None]:
    """Restore random numbers and buffers, such as a running mean, at the end."""
    copies = [(buffer, buffer.clone()) for buffer in model.buffers() if not buffer.is_meta]
    with torch.random.fork_rng(enabled=True):
        try:
            yield
        finally:
            with torch.no_grad():
                for buffer, before in copies:
                    buffer.copy_(before)


def copied(arguments: Any) -> Any:
    """Tensors without their history, and copies of what a forward may change, such as a cache."""

    def one(value: Any) -> Any:
        if isinstance(value, Tensor):
            return value.detach()
        try:
            return copy.deepcopy(value)
        except Exception:  # noqa: BLE001 -- what cannot be copied is handed on
            return value

    return tree_map(one, arguments)
