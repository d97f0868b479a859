"""JsonLines: one line of JSON per step, in a file that only grows."""

import contextlib
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path

from rootdk.errors import ArgumentError


class JsonLines:
    """{"step": 100, "attn/max_logit": 7.1, "attn/layer_00/max_logit": 6.9, ...}, one such line per step that was read.

    path   a file; lines are added at its end, so a run that goes on finds those of before

    A line is handed to the system whole and at once: when the process dies, every step that was written is in the file
    and no half one is. A number that is not finite is null. A path that cannot be written is refused when the sink is
    made, as far as can be seen without touching it, and at the latest before the first step.

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
            self._file = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise _unwritable(self.path, f"which fails: {error.strerror}") from error
        size = os.fstat(self._file).st_size
        if size and os.pread(self._file, 1, size - 1) != b"\n":
            os.write(self._file, b"\n")  # what another program left unfinished stays a line of its own

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
            with contextlib.suppress(OSError):  # the first error is the one to tell
                os.ftruncate(self._file, before)
            raise

    def close(self) -> None:
        """Close the file; `open` adds to it again."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


def _unwritable(path: Path, reason: str) -> ArgumentError:
    return ArgumentError(f"path: must be a file that can be written, got {str(path)!r}, {reason}")
