"""The header of a safetensors file: which tensors it holds, of which type and shape, and where; all of it checked.

Eight bytes give the length of a JSON object, {name: {"dtype", "shape", "data_offsets"}}; the numbers follow it without
gaps. https://github.com/huggingface/safetensors says so, and a file that is otherwise is refused, as it is by its
library. That library maps files into memory, where a file that is cut short by another process ends the reader with a
signal; so the few lines that reading takes are here.
"""

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rootdk.errors import ArgumentError
from rootdk.untrusted import JsonError, open_regular, parse_json, shown_text

from .fields import came
from .limits import LARGEST_INDEX, LONGEST_NAME, MOST_PARTS, MOST_RANK, MOST_TENSORS

# Types whose numbers are plain floating point, and their bytes. All others are packed, or no weights.
READABLE = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
_BYTES = READABLE | {"I64": 8, "U64": 8, "C64": 8, "I32": 4, "U32": 4, "I16": 2, "U16": 2, "I8": 1, "U8": 1, "BOOL": 1,
                     "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1}  # fmt: skip
_PICKLE = (b"PK\x03\x04", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")


class PickleError(ArgumentError):
    """The file is a pickle, whatever its name says."""


class _LieError(Exception):
    """A header that does not fit its file; the message is the reason alone."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where the numbers of one tensor lie in its file."""

    dtype: str
    shape: tuple[int, ...]
    start: int

    @property
    def itemsize(self) -> int:
        """Bytes of one number."""
        return READABLE[self.dtype]


@dataclass(frozen=True, slots=True)
class Header:
    """The tensors of one file, the bytes of its header, and what the system says of it: a change of that is noticed."""

    tensors: Mapping[str, Place]
    length: int
    mark: tuple[int, ...]


def read_header(path: Path) -> Header:
    """The header of a file, checked against its size; an error in one line if it lies."""
    name = shown_text(path.name)
    try:
        with os.fdopen(open_regular(path), "rb", buffering=0) as file:
            found = os.fstat(file.fileno())
            start = read_exactly(file, 0, min(8, found.st_size))
            try:
                text = _header_text(file, start, found.st_size)
                tensors = _places(text, found.st_size - 8 - len(text))
            except (_LieError, JsonError) as error:
                if bytes(start).startswith(_PICKLE):
                    raise PickleError(f"path: {name} is a pickle") from None
                raise ArgumentError(
                    f"path: {name} is no whole safetensors file ({error}; {found.st_size} bytes): truncated, corrupt, "
                    "too large or of another kind; fetch or write it again"
                ) from None
    except OSError as error:
        raise ArgumentError(f"path: {name} cannot be read: {error.strerror or error}") from error
    return Header(tensors, len(text), mark_of(found))


def mark_of(found: os.stat_result) -> tuple[int, ...]:
    """By what a file is known again."""
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def read_exactly(file: Any, start: int, size: int) -> bytearray:
    """Bytes from a place on; an OSError if the file ends before."""
    found = bytearray(size)
    rest = memoryview(found)
    file.seek(start)
    while rest:
        count = file.readinto(rest)
        if not count:
            raise OSError(f"it ends before byte {start + size}: it was truncated while it was read")
        rest = rest[count:]
    return found


def _header_text(file: Any, start: bytearray, size: int) -> bytes:
    if len(start) < 8:
        raise _LieError("no room for the length of a header")
    length = int.from_bytes(start, "little")
    if length > size - 8:
        raise _LieError(f"its header should have {length} bytes")
    if length > LARGEST_INDEX:
        raise _LieError(f"its header has {length} bytes, more than {LARGEST_INDEX}")
    text = bytes(read_exactly(file, 8, length))
    if not text.startswith(b"{"):
        raise _LieError("its header is no JSON object")
    return text


def _places(text: bytes, size: int) -> dict[str, Place]:
    header = parse_json(text, unique=True)
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict):
        raise _LieError(f"__metadata__ must be an object, got {came(metadata)}")
    if len(header) > MOST_TENSORS:
        raise _LieError(f"it names {len(header)} tensors, more than {MOST_TENSORS}")
    found, spans = {}, []
    for name, entry in header.items():
        check_name(name)
        dtype, shape, start, end = _described(name, entry)
        found[name] = Place(dtype, shape, 8 + len(text) + start)
        spans.append((start, end))
    at = 0
    for start, end in sorted(spans):
        if start != at:
            raise _LieError(f"its tensors overlap or leave a gap at byte {at}")
        at = end
    if at != size:
        raise _LieError(f"its tensors have {at} bytes, the file {size}")
    return found


def check_name(name: str) -> None:
    """A bound for the work that a name can cause."""
    if len(name) > LONGEST_NAME or name.count(".") >= MOST_PARTS:
        raise JsonError(
            f"the name of a tensor must have at most {LONGEST_NAME} characters and {MOST_PARTS} parts, got "
            f"{len(name)} and {name.count('.') + 1} ({shown_text(name, 60)})"
        )


def _described(name: str, entry: Any) -> tuple[str, tuple[int, ...], int, int]:
    """Type, shape, start and end of one tensor."""
    if not isinstance(entry, dict):
        raise _LieError(f"{shown_text(name)} must be an object, got {came(entry)}")
    values: list[Any] = [entry.get(key) for key in ("dtype", "shape", "data_offsets")]
    dtype, shape, offsets = values
    if not isinstance(dtype, str) or len(dtype) > 32:
        raise _LieError(f"dtype of {shown_text(name)} must be a name, got {came(dtype)}")
    if not _are_counts(shape) or len(shape) > MOST_RANK:
        raise _LieError(
            f"shape of {shown_text(name)} must be a list of at most {MOST_RANK} integers, got {came(shape)}"
        )
    if not _are_counts(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise _LieError(f"data_offsets of {shown_text(name)} must be two integers in order, got {came(offsets)}")
    start, end = offsets
    size = _BYTES.get(dtype)
    if size is not None and math.prod(shape) * size != end - start:
        raise _LieError(f"{shown_text(name)} must have {came(math.prod(shape) * size)} bytes, got {end - start}")
    return dtype, tuple(shape), start, end


def _are_counts(values: Any) -> bool:
    return isinstance(values, list) and all(type(one) is int and 0 <= one < 2**63 for one in values)
