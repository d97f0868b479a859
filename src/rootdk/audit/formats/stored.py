"""Tensors as they lie in files, whatever the format: read slice by slice, as float64, and never mapped.

The cost of a slice is that of its own numbers, not of the whole tensor, so a model of any size is read in the memory of
a few heads. If another process shortens a mapped file, a signal ends the reader; here that is an error, and so is a
file that changes while it is read.

Safetensors is the plainest of the formats: eight bytes with the length of a JSON object, {name: {"dtype", "shape",
data_offsets"}}, and numbers. https://github.com/huggingface/safetensors says that these follow without gaps, and a file
with gaps is refused, as it is by its library. That library maps files into memory, so a few lines here read them
instead.
"""

import math
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from rootdk.audit.limits import LARGEST_INDEX, LONGEST_NAME, MOST_PARTS, MOST_RANK, MOST_TENSORS, came
from rootdk.errors import ArgumentError
from rootdk.files import open_regular, parse_json, shown_text

Floats = NDArray[np.float64]

# {name of a type in safetensors: NumPy type of one number}. BF16 is the upper half of a float32; float8 is decoded by a
# table, and means nothing without the scales that lie beside it.
NUMPY = {
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "BF16": "<u2",
    "I64": "<i8",
    "U64": "<u8",
    "I32": "<i4",
    "U32": "<u4",
    "I16": "<i2",
    "U16": "<u2",
    "I8": "i1",
    "U8": "u1",
    "BOOL": "u1",
    "F8_E4M3": "u1",
    "F8_E5M2": "u1",
}
# Types whose numbers are plain floating point: the model multiplies with exactly these numbers.
READABLE = frozenset({"F64", "F32", "F16", "BF16"})
_LONGEST_FILE = 255  # bytes of a name, the limit of common file systems


class NotThisError(Exception):
    """A file whose content does not fit its format; the message is the reason alone."""


class NotReadError(NotThisError):
    """A file that may be complete, but of a kind that is not read."""


def check_name(name: str) -> None:
    """Limit the work that a name can cause."""
    if len(name) > LONGEST_NAME or name.count(".") >= MOST_PARTS:
        raise NotThisError(
            f"the name of a tensor must have at most {LONGEST_NAME} characters and {MOST_PARTS} parts, got "
            f"{len(name)} and {name.count('.') + 1} ({shown_text(name, 60)})"
        )


def is_file_name(text: str) -> bool:
    """Whether a text from a file can name a file of the same folder, and no other place."""
    return text not in ("", ".", "..") and not {"/", "\\", "\0"} & set(text) and len(text.encode()) <= _LONGEST_FILE


class Source:
    """A regular file that is open only while slices are read; its file status shows whether it changed in between."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with self._named():
            status = self._opened()
        self.size, self._mark = status.st_size, _mark_of(status)

    def read(self, start: int, size: int) -> bytearray:
        """Bytes from a place on; an error in one line if they are missing or the file changed."""
        content = bytearray(size)
        rest = memoryview(content)
        with self._named():
            if self._file is None and _mark_of(self._opened()) != self._mark:
                raise OSError("it has changed since its header was read")
            self._file.seek(start)
            while rest:
                count = self._file.readinto(rest)
                if not count:
                    raise OSError(f"it ends before byte {start + size}: it was truncated while it was read")
                rest = rest[count:]
        return content

    def _opened(self) -> os.stat_result:
        self._file: Any = os.fdopen(open_regular(self.path), "rb", buffering=0)
        return os.fstat(self._file.fileno())

    @contextmanager
    def _named(self) -> Iterator[None]:
        """An OSError inside becomes one line with the name of the file."""
        try:
            yield
        except OSError as error:
            name = shown_text(self.path.name)
            raise ArgumentError(f"path: {name} cannot be read: {error.strerror or error}") from error

    def close(self) -> None:
        """Close the file; the next read opens it again."""
        if self._file is not None:
            self._file.close()
        self._file = None


def _mark_of(status: os.stat_result) -> tuple[int, ...]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


class Stored(Protocol):
    """One tensor of a file. Packed tensors, and those that are no weights, have itemsize 0 and are not read.

    inputs_first   whether a projection is kept as (inputs, outputs); most files keep (outputs, inputs)
    """

    @property
    def dtype(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def itemsize(self) -> float: ...
    @property
    def inputs_first(self) -> bool: ...
    def read(self, rows: slice, columns: slice, /) -> Floats: ...


@dataclass(frozen=True, slots=True)
class Unpacked:
    """A tensor that is packed: its facts, and what reads a slice of it as float64."""

    dtype: str
    shape: tuple[int, ...]
    itemsize: float
    read: Callable[[slice, slice], Floats]
    inputs_first: bool = False


@dataclass(frozen=True, slots=True)
class Plain:
    """Numbers one after the other in a file, row by row; column by column where it is `by_columns`."""

    source: Source
    dtype: str
    shape: tuple[int, ...]
    start: int
    by_columns: bool = False
    inputs_first: bool = False

    @property
    def itemsize(self) -> float:
        """Bytes of one number; 0 if numbers of this type are not read directly."""
        return np.dtype(NUMPY[self.dtype]).itemsize if self.dtype in READABLE else 0

    def raw(self, rows: slice = slice(None), columns: slice = slice(None)) -> NDArray[Any]:
        """A slice in the type of the file, as (rows, columns); a tensor of rank 1 is a column."""
        height, width = self.shape if len(self.shape) == 2 else (math.prod(self.shape), 1)
        (first, last, _), (left, right, _) = rows.indices(height), columns.indices(width)
        if self.by_columns:
            height, width, first, last, left, right = width, height, left, right, first, last
        kind = np.dtype(NUMPY[self.dtype])
        if (left, right) == (0, width):
            spans = [(first * width, (last - first) * width)]
        else:
            spans = [(row * width + left, right - left) for row in range(first, last)]
        parts = [self.source.read(self.start + kind.itemsize * at, kind.itemsize * count) for at, count in spans]
        numbers = np.frombuffer(parts[0] if len(parts) == 1 else b"".join(parts), kind)
        block = numbers.reshape(last - first, right - left)
        return block.T if self.by_columns else block

    def read(self, rows: slice = slice(None), columns: slice = slice(None)) -> Floats:
        """A slice as float64."""
        raw = self.raw(rows, columns)
        if self.dtype == "BF16":
            raw = (raw.astype(np.uint32) << 16).view(np.float32)
        elif self.dtype in _FLOAT8:
            raw = _FLOAT8[self.dtype][raw]
        return raw.astype(np.float64)


def _float8(exponent_bits: int, bias: int) -> Floats:
    """All 256 numbers of a type with a sign, so many bits of exponent, and the rest of mantissa."""
    mantissa_bits = 7 - exponent_bits
    code = np.arange(256)
    exponent, mantissa = (code >> mantissa_bits) & (2**exponent_bits - 1), code & (2**mantissa_bits - 1)
    normal = (1 + mantissa / 2**mantissa_bits) * 2.0 ** (exponent - bias)
    size = np.where(exponent > 0, normal, mantissa / 2**mantissa_bits * 2.0 ** (1 - bias))
    if exponent_bits == 5:  # as in IEEE 754; E4M3 has a single code for NaN
        size = np.where(exponent == 31, np.where(mantissa == 0, np.inf, np.nan), size)
    else:
        size = np.where(code & 127 == 127, np.nan, size)
    return np.where(code & 128, -size, size)


_FLOAT8 = {"F8_E4M3": _float8(4, 7), "F8_E5M2": _float8(5, 15)}


@dataclass(frozen=True, slots=True)
class Contents:
    """What one file holds.

    length    bytes that were read to find the tensors
    config    the settings, if the file itself holds what config.json holds elsewhere
    sources   other files that its tensors lie in
    """

    tensors: Mapping[str, Stored]
    length: int
    config: Mapping[str, Any] | None = None
    sources: tuple[Source, ...] = ()


class Tensors(dict[str, Stored]):
    """All tensors of a model by name, whichever file each lies in."""

    def __init__(
        self, stored: Mapping[str, Stored], sources: Collection[Source], config: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(stored)
        self._sources, self.config = sources, config

    def shape(self, name: str) -> tuple[int, ...]:
        return self[name].shape

    def readable(self, name: str) -> bool:
        return self[name].itemsize > 0

    def read(self, name: str, rows: slice = slice(None), columns: slice = slice(None)) -> Floats:
        """A slice of a tensor of rank 1 or 2, as float64."""
        block = self[name].read(rows, columns)
        return block if len(self.shape(name)) == 2 else block.ravel()

    def replaced(self, stored: Mapping[str, Stored]) -> "Tensors":
        """Other tensors in the same files."""
        return Tensors(stored, self._sources, self.config)

    def close(self) -> None:
        for source in self._sources:
            source.close()


_BYTES = {name: np.dtype(kind).itemsize for name, kind in NUMPY.items()} | {"C64": 8, "F8_E8M0": 1}


def read_safetensors(source: Source) -> Contents:
    """The header of a file, checked against its size."""
    if source.size < 8:
        raise NotThisError("no room for the length of a header")
    length = int.from_bytes(source.read(0, 8), "little")
    if length > source.size - 8:
        raise NotThisError(f"its header should have {length} bytes")
    if length > LARGEST_INDEX:
        raise NotThisError(f"its header has {length} bytes, more than {LARGEST_INDEX}")
    text = bytes(source.read(8, length))
    if not text.startswith(b"{"):
        raise NotThisError("its header is no JSON object")
    header = parse_json(text, unique=True)
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict):
        raise NotThisError(f"__metadata__ must be an object, got {came(metadata)}")
    if len(header) > MOST_TENSORS:
        raise NotThisError(f"it names {len(header)} tensors, more than {MOST_TENSORS}")
    tensors, spans = {}, []
    for name, entry in header.items():
        check_name(name)
        dtype, shape, start, end = _described(name, entry)
        tensors[name] = Plain(source, dtype, shape, 8 + length + start)
        spans.append((start, end))
    at = 0
    for start, end in sorted(spans):
        if start != at:
            raise NotThisError(f"its tensors overlap or leave a gap at byte {at}")
        at = end
    if at != source.size - 8 - length:
        raise NotThisError(f"its tensors have {at} bytes, the file {source.size - 8 - length}")
    return Contents(tensors, length)


def _described(name: str, entry: Any) -> tuple[str, tuple[int, ...], int, int]:
    """Type, shape, start and end of one tensor."""
    if not isinstance(entry, dict):
        raise NotThisError(f"{shown_text(name)} must be an object, got {came(entry)}")
    values: list[Any] = [entry.get(key) for key in ("dtype", "shape", "data_offsets")]
    dtype, shape, offsets = values
    if not isinstance(dtype, str) or len(dtype) > 32:
        raise NotThisError(f"dtype of {shown_text(name)} must be a name, got {came(dtype)}")
    if not _are_counts(shape) or len(shape) > MOST_RANK:
        raise NotThisError(
            f"shape of {shown_text(name)} must be a list of at most {MOST_RANK} integers, got {came(shape)}"
        )
    if not _are_counts(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise NotThisError(f"data_offsets of {shown_text(name)} must be two integers in order, got {came(offsets)}")
    start, end = offsets
    size = _BYTES.get(dtype)
    if size is not None and math.prod(shape) * size != end - start:
        raise NotThisError(f"{shown_text(name)} must have {came(math.prod(shape) * size)} bytes, got {end - start}")
    return dtype, tuple(shape), start, end


def _are_counts(values: Any) -> bool:
    return isinstance(values, list) and all(type(value) is int and 0 <= value < 2**63 for value in values)
