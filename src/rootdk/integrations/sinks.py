"""Sinks: where the numbers of a step go. Lines of JSON, TensorBoard, Weights & Biases, or an object of your own."""

import contextlib
import json
import math
import os
from collections.abc import Mapping, Sequence
from importlib import import_module
from os import PathLike
from pathlib import Path
from typing import Any, Protocol, TypeAlias, runtime_checkable

from rootdk.checks import shown
from rootdk.errors import ArgumentError, ArgumentTypeError, RootdkError
from rootdk.files import BINARY

# The axis of all keys below attn/ in Weights & Biases.
_STEP = "attn/step"


class PackageMissingError(RootdkError, ImportError):
    """A feature needs a package that is not installed; the message names it.

    >>> issubclass(PackageMissingError, ImportError)
    True
    """


def needed(what: str, module: str, package: str, attribute: str) -> Any:
    """`attribute` of `module`, which comes with `package`.

    The attribute is looked up here because a folder of the package's name, such as the one that wandb writes its runs
    to, can be imported as an empty package.

    >>> needed("Example", "no_such_module", "no-such-package", "thing")
    Traceback (most recent call last):
        ...
    rootdk.integrations.sinks.PackageMissingError: Example: needs no-such-package, which is not installed; get it
    with: pip install no-such-package
    """
    try:
        return getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise PackageMissingError(
            f"{what}: needs {package}, which is not installed; get it with: pip install {package}"
        ) from error


@runtime_checkable
class Sink(Protocol):
    """Three methods. Any object that has them can be a sink.

    A sink is created before it is known which process writes; only that process opens it.

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
        """All numbers of one step. A missing one is NaN. After an error there are no more calls of this."""

    def close(self) -> None:
        """After the last step. Closing twice, or without opening before, is no error."""


Sinks: TypeAlias = str | PathLike[str] | Sink | Sequence[str | PathLike[str] | Sink]


def sinks_of(sinks: Sinks) -> tuple[Sink, ...]:
    """A path (JSON lines), a sink, or several of them.

    >>> [type(sink).__name__ for sink in sinks_of("attention.jsonl")]
    ['JsonLines']
    """
    several = sinks if isinstance(sinks, Sequence) and not isinstance(sinks, (str, bytes)) else [sinks]
    if not several:
        raise ArgumentError("sinks: must be a path, a sink or several of them, got none")
    chosen: list[Sink] = []
    for each in several:
        sink = JsonLines(each) if isinstance(each, (str, PathLike)) else each
        # A class has the methods too, but is no sink.
        if isinstance(sink, type) or not isinstance(sink, Sink):
            raise ArgumentTypeError(f"sinks: must be a path or have open, write and close, got {shown(sink)}")
        chosen.append(sink)
    return tuple(chosen)


class JsonLines:
    """Lines of JSON in a file that only grows, one per step that was read.

    {"step": 100, "attn/max_logit": 7.1, "attn/layer_00/max_logit": 6.9, ...}

    path   a file; lines are added at its end, so a continued run keeps the earlier ones

    Each line is written in one piece: if the process dies, every step that was written is in the file, and no partial
    one. A number that is not finite is null. A path that cannot be written is refused when the sink is created, as far
    as can be seen without touching it, and at the latest before the first step.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     sink = JsonLines(Path(folder) / "attention.jsonl")
    ...     sink.open()
    ...     sink.write(100, {"attn/max_logit": 7.5, "attn/entropy_ratio": math.nan})
    ...     sink.close()
    ...     print(sink.path.read_text(), end="")
    {"step": 100, "attn/max_logit": 7.5, "attn/entropy_ratio": null}
    """

    def __init__(self, path: "str | os.PathLike[str]") -> None:
        self.path = Path(path)
        self._file: int | None = None
        folder = self.path.parent
        if self.path.is_dir():
            raise _unwritable(self.path, "which is a folder")
        if not folder.is_dir():
            raise _unwritable(self.path, f"and {str(folder)!r} is no folder")
        if not os.access(self.path if self.path.exists() else folder, os.W_OK):
            raise _unwritable(self.path, "which may not be written")

    def __repr__(self) -> str:
        return f"JsonLines({str(self.path)!r})"

    def open(self) -> None:
        """Open the file, or say that it cannot be written. Opening twice is no error."""
        if self._file is not None:
            return
        try:
            self._file = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | BINARY, 0o666)
        except OSError as error:
            raise _unwritable(self.path, f"which fails: {error.strerror}") from error
        if os.fstat(self._file).st_size:
            os.lseek(self._file, -1, os.SEEK_END)
            if os.read(self._file, 1) != b"\n":
                os.write(self._file, b"\n")  # an unfinished line of another program stays a line of its own

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Add one line."""
        if self._file is None:
            raise ArgumentError(f"path: must be opened before it is written, got {str(self.path)!r}, which is closed")
        plain = {key: value if math.isfinite(value) else None for key, value in values.items()}
        line = (json.dumps({"step": step, **plain}, allow_nan=False) + "\n").encode()
        before = os.fstat(self._file).st_size
        try:
            done = os.write(self._file, line)
            while done < len(line):  # a disk that is nearly full takes a part and then gives an error
                done += os.write(self._file, line[done:])
        except OSError:
            with contextlib.suppress(OSError):  # the first error is the one to raise
                os.ftruncate(self._file, before)
            raise

    def close(self) -> None:
        """Close the file; `open` adds to it again."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


def _unwritable(path: Path, reason: str) -> ArgumentError:
    return ArgumentError(f"path: must be a file that can be written, got {str(path)!r}, {reason}")


class TensorBoard:
    """Scalars under their keys, at the number of the step. Needs torch and the package tensorboard.

    where   a folder, to which an event file is added, or a SummaryWriter that is there already, such as
            `TensorBoardLogger.experiment` of Lightning; that one is flushed and left open

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     sink = TensorBoard(folder)
    ...     sink.open()
    ...     sink.write(100, {"attn/max_logit": 7.5})
    ...     sink.close()
    """

    def __init__(self, where: "str | PathLike[str] | Any") -> None:
        self._make = needed("TensorBoard", "torch.utils.tensorboard", "tensorboard", "SummaryWriter")
        if not isinstance(where, (str, PathLike)) and not hasattr(where, "add_scalar"):
            raise ArgumentTypeError(f"where: must be a folder or a SummaryWriter, got {where!r}")
        self.where = where
        self._writer: Any = None

    def __repr__(self) -> str:
        return f"TensorBoard({str(self.where) if isinstance(self.where, PathLike) else self.where!r})"

    def open(self) -> None:
        """Start an event file, unless a writer was given."""
        if self._writer is None:
            self._writer = self._make(str(self.where)) if isinstance(self.where, (str, PathLike)) else self.where

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Add the scalars of one step and bring them to the file, so that a crash does not lose them."""
        for key, value in values.items():
            self._writer.add_scalar(key, value, step)
        self._writer.flush()

    def close(self) -> None:
        """Close the event file, unless a writer was given."""
        if self._writer is not None and self._writer is not self.where:
            self._writer.close()
        self._writer = None


class WeightsAndBiases:
    """Rows under their keys, over `attn/step`. Needs the package wandb.

    run        a run that is there already; that one is left open
    settings   without a run, what `wandb.init` is given, such as project="..." or mode="offline". A run that is active
               in the process when training starts is used in place of a new one, if there are no settings.

    The step is a value of each row, and the axis of all keys below `attn/`: a run with other writers too counts rows by
    its own step, and drops rows with a lower one.

        WeightsAndBiases(project="pretraining")
        WeightsAndBiases(wandb_logger.experiment)       # of Lightning

    >>> sink = WeightsAndBiases(mode="disabled")
    >>> sink.open()
    >>> sink.write(100, {"attn/max_logit": 7.5})
    >>> sink.close()
    """

    def __init__(self, run: Any = None, **settings: Any) -> None:
        self._init = needed("WeightsAndBiases", "wandb", "wandb", "init")
        self.run, self.settings = run, settings
        self._open: Any = None
        self._own = False

    def __repr__(self) -> str:
        return "WeightsAndBiases()"  # its settings may hold a secret key

    def open(self) -> None:
        """Find or start the run."""
        import wandb

        if self._open is not None:
            return
        running = self.run if self.run is not None else None if self.settings else wandb.run
        self._own = running is None
        self._open = self._init(**self.settings) if running is None else running
        self._open.define_metric(_STEP)
        self._open.define_metric("attn/*", step_metric=_STEP)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Add one row."""
        self._open.log({_STEP: step, **values})

    def close(self) -> None:
        """Finish a run that was started here."""
        if self._open is not None and self._own:
            self._open.finish()
        self._open = None
