"""Watch: the handle that rootdk.watch returns."""

import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from rootdk.audit.layer import LayerReading
from rootdk.audit.trend import Trend
from rootdk.audit.watching import taps
from rootdk.audit.watching.call import Call, UnreadableError, split
from rootdk.audit.watching.read import check_readable, read
from rootdk.audit.watching.ringed import read_ring
from rootdk.audit.watching.scale import Scale, scale_of
from rootdk.audit.watching.written_out import read_logits
from rootdk.errors import ArgumentError, ArgumentTypeError

_FUSED = (torch.nn.TransformerEncoderLayer, torch.nn.MultiheadAttention)
# -1 outside of a backward pass; a forward inside one is a checkpoint computed anew, which was read already.
_backward = torch._C._current_graph_task_id  # noqa: SLF001 -- torch.utils.checkpoint asks the same


class Watch:
    """Reads the attention of a model for as long as it is open. `rootdk.watch` explains it.

    readings   {module path: LayerReading} of the last forward that was read
    unread     {module path: why} for calls that could not be read
    step       how many forwards there were
    seconds    how long reading has taken so far
    paused     set it to True and forwards are counted but not read, until it is False again
    """

    def __init__(self, model: Any, every: int = 1, rows: int | None = None) -> None:
        if not isinstance(model, torch.nn.Module):
            raise ArgumentTypeError(f"model: must be a torch.nn.Module, got {type(model).__name__}")
        compiled = [name for name, module in model.named_modules() if hasattr(module, "_orig_mod")]
        if compiled:
            where = f" ({compiled[0]})" if compiled[0] else ""
            raise ArgumentError(
                f"model: must run eagerly, got one that torch.compile made{where}: its attention is inside compiled "
                "code; watch the module that was given to torch.compile"
            )
        self.model = model
        self.every, self.rows = _count("every", every), None if rows is None else _count("rows", rows)
        self.unread: dict[str, str] = {}
        self.step = 0
        self.seconds = 0.0
        self.paused = False
        self.trend = Trend()
        self.open = True
        self._modules = dict(model.named_modules())  # kept, so that no other module gets the id of one of them
        self._names = {id(module): name or type(model).__name__ for name, module in self._modules.items()}
        for name, module in self._modules.items():
            if isinstance(module, torch.nn.TransformerEncoderLayer):  # its fused path attends in its own frame
                self._names[id(module)] = f"{name}.self_attn".lstrip(".")
        self._scales: dict[str, Scale] = {}
        self._masks: dict[Any, tuple[Tensor, tuple[Tensor | None, Tensor | None]]] = {}
        self._outside: set[str] = set()
        self._fresh: dict[str, LayerReading] = {}
        self._last: dict[str, LayerReading] = {}
        self._running = self._reading = self._mode = False
        self._hooks: list[Any] = []
        if not isinstance(model, _FUSED):  # with a hook on it a layer does not take its fused path
            self._hooks = [
                model.register_forward_pre_hook(_Hook(self._begin)),
                model.register_forward_hook(_Hook(self._end), always_call=True),
            ]
        taps.listen(self)

    @property
    def readings(self) -> dict[str, LayerReading]:
        """Of the last forward that was read; of parts that are called alone, what was read so far."""
        return self._fresh if self._fresh and not self._running else self._last

    def close(self) -> None:
        """Stop watching; readings stay. Closing twice is no error."""
        if not self.open:
            return
        self.open = False
        self._finish()
        taps.unlisten(self)
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def __enter__(self) -> "Watch":  # noqa: PYI034 -- typing.Self came with Python 3.11
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "open" if self.open else "closed"
        return f"Watch({type(self.model).__name__}, {len(self.readings)} layers, step {self.step}, {state})"

    def report(self, phase: Any = "any", total_steps: int | None = None) -> Any:
        """Judge the last readings and the trend: a rootdk.audit.Report.

        phase         "init" for a model that was not trained yet: then theory is a gate. "trained" for one that was.
                      "any" where neither is known; rows of thresholds that need to know are left out.
        total_steps   how many forwards the run will have, for what the trend extrapolates to
        """
        from rootdk.audit.report import report_of

        return report_of(self, phase, total_steps)

    # What torch and the taps call.

    @property
    def attentive(self) -> bool:
        """Whether a call that is made now may have to be read."""
        return (self._reading or not self._running) and _backward() == -1

    def hear(self, make: taps.Make) -> None:
        """Read a call if a module of this model made it."""
        self._hear(lambda name: self._read(name, make()))

    def hear_softmax(self, logits: Tensor) -> None:
        """Read the logits of a softmax that a module of this model took."""
        self._hear(lambda name: read_logits(name, self.step - 1, logits, self.rows))

    def hear_ring(self, measured: Any) -> None:
        """Take the readings of a call on a ring of processes that a module of this model made."""
        self._hear(lambda name: read_ring(name, self.step - 1, measured))

    def _hear(self, reading: Callable[[str], LayerReading]) -> None:
        started = time.perf_counter()
        name = self._place()
        if name is not None and self._listens(name):
            # A layer that runs more than once in a forward (shared weights) is told apart by a number.
            again = sum(known.partition("#")[0] == name for known in self._fresh)
            name = f"{name}#{again + 1}" if again else name
            try:
                self._fresh[name] = reading(name)
            except UnreadableError as reason:
                self.unread[name] = str(reason)
            except Exception as error:  # noqa: BLE001 -- a reading that fails must not end a training run; it is told
                self.unread[name] = f"{type(error).__name__}: {error}"
        self.seconds += time.perf_counter() - started

    def _begin(self) -> None:
        if _backward() != -1:
            return
        self._finish()  # of calls outside of any forward, or of a forward that was interrupted
        self._start()
        self._running = True
        if self._reading and not self._fuses():
            self._mode = True
            taps.enter_mode()

    def _end(self) -> None:
        if _backward() == -1:
            self._finish()

    def _start(self) -> None:
        self._reading = not self.paused and self.step % self.every == 0
        self.step += 1

    def _finish(self) -> None:
        if self._mode:
            self._mode = False
            taps.leave_mode()
        if self._fresh:
            started = time.perf_counter()
            self._last, self._fresh = self._fresh, {}
            self.trend.add(self._last.values())
            self.seconds += time.perf_counter() - started
        self._running = self._reading = False
        self._masks.clear()
        self._outside.clear()

    def _fuses(self) -> bool:
        """Whether torch may take a fused path, which it does not under a function mode: the output would change."""
        return torch.backends.mha.get_fastpath_enabled() and any(
            isinstance(module, _FUSED) and not module.training for module in self.model.modules()
        )

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

    def _listens(self, name: str) -> bool:
        """Whether a call is read: inside a forward, if that is. Outside, calls are a step until one comes back."""
        if not self._running:
            if not self._outside or name in self._outside:
                self._finish()
                self._start()
            self._outside.add(name)
        return self._reading

    def _read(self, name: str, call: Call) -> LayerReading:
        check_readable(call)
        place = call.query.device.type
        if torch.is_autocast_enabled(place) and call.query.dtype == torch.float32:
            # What the operator itself does with its arguments there.
            low = torch.get_autocast_dtype(place)
            call = replace(call, query=call.query.to(low), key=call.key.to(low), value=call.value.to(low))
        with torch.autocast(place, enabled=False):
            scale = self._scales.get(name)
            if scale is None or scale.given != call.scale:
                scale = self._scales[name] = scale_of(call)
            return read(name, self.step - 1, call, scale, self._split(call.added), self.rows)

    def _split(self, added: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
        """split(), once for all layers that share a mask; the tensor is kept so that no other takes its place."""
        if added is None:
            return None, None
        version = 0 if added.is_inference() else added._version  # noqa: SLF001 -- what autograd itself goes by
        key = (added.data_ptr(), added.shape, added.stride(), added.dtype, version)
        if key not in self._masks:
            self._masks[key] = (added, split(added))
        return self._masks[key][1]


class _Hook:
    """A hook that does not go along when the model is copied or pickled: a copy is another model."""

    def __init__(self, act: Callable[[], None] | None = None) -> None:
        self._act = act

    def __call__(self, *_: Any) -> None:
        if self._act is not None:
            self._act()

    def __reduce__(self) -> tuple[Any, ...]:
        return _Hook, ()


def _count(argument: str, given: Any) -> int:
    if isinstance(given, bool) or not isinstance(given, int):
        raise ArgumentTypeError(f"{argument}: must be an int of at least 1, got {given!r}")
    if given < 1:
        raise ArgumentError(f"{argument}: must be an int of at least 1, got {given}")
    return given
