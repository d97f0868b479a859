"""The tensors of a checkpoint, read slice by slice from safetensors files. Nothing is ever unpickled, or mapped.

A file begins with eight bytes that give the length of a JSON object, {name: {"dtype", "shape", "data_offsets"}}; the
numbers follow it without gaps. https://github.com/huggingface/safetensors says so, and a file that is otherwise is
refused, as it is by its library. That library maps files into memory, where a file that is cut short by another process
ends the reader with a signal; so the few lines that reading takes are here.

A slice costs what it holds and not what its tensor holds, so a model of any size is read in the memory of a few heads.
A file that changes while it is read is an error.
"""

import math
import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rootdk.errors import ArgumentError
from rootdk.untrusted import JsonError, open_regular, parse_json, read_json, shown_text

from .limits import LARGEST_HEADERS, LARGEST_INDEX, LONGEST_NAME, MOST_PARTS, MOST_RANK, MOST_SHARDS, MOST_TENSORS, came

# Types whose numbers are plain floating point, and their bytes. All others are packed, or no weights.
READABLE = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
_BYTES = READABLE | {"I64": 8, "U64": 8, "C64": 8, "I32": 4, "U32": 4, "I16": 2, "U16": 2, "I8": 1, "U8": 1, "BOOL": 1,
                     "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1}  # fmt: skip
_PICKLE = (b"PK\x03\x04", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")


INDEX = "model.safetensors.index.json"
_PICKLED = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")
_CONVERT = (
    "it is a pickle, which runs code when it is opened, so it is not opened here; where you trust it, convert it once: "
    "model.save_pretrained(folder) of a transformers model, or safetensors.torch.save_file(torch.load(file, "
    "weights_only=True), 'model.safetensors')"
)
_LONGEST_FILE = 255  # bytes, as the file systems have it
_TYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}
Progress = Callable[[str, float], None]


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
            status = os.fstat(file.fileno())
            start = read_exactly(file, 0, min(8, status.st_size))
            try:
                text = _header_text(file, start, status.st_size)
                tensors = _places(text, status.st_size - 8 - len(text))
            except (_LieError, JsonError) as error:
                if bytes(start).startswith(_PICKLE):
                    raise PickleError(f"path: {name} is a pickle") from None
                raise ArgumentError(
                    f"path: {name} is no whole safetensors file ({error}; {status.st_size} bytes): truncated, corrupt, "
                    "too large or of another kind; fetch or write it again"
                ) from None
    except OSError as error:
        raise ArgumentError(f"path: {name} cannot be read: {error.strerror or error}") from error
    return Header(tensors, len(text), mark_of(status))


def mark_of(status: os.stat_result) -> tuple[int, ...]:
    """By what a file is known again."""
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def read_exactly(file: Any, start: int, size: int) -> bytearray:
    """Bytes from a place on; an OSError if the file ends before."""
    content = bytearray(size)
    rest = memoryview(content)
    file.seek(start)
    while rest:
        count = file.readinto(rest)
        if not count:
            raise OSError(f"it ends before byte {start + size}: it was truncated while it was read")
        rest = rest[count:]
    return content


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
    places, spans = {}, []
    for name, entry in header.items():
        check_name(name)
        dtype, shape, start, end = _described(name, entry)
        places[name] = Place(dtype, shape, 8 + len(text) + start)
        spans.append((start, end))
    at = 0
    for start, end in sorted(spans):
        if start != at:
            raise _LieError(f"its tensors overlap or leave a gap at byte {at}")
        at = end
    if at != size:
        raise _LieError(f"its tensors have {at} bytes, the file {size}")
    return places


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
    return isinstance(values, list) and all(type(value) is int and 0 <= value < 2**63 for value in values)


class Tensors:
    """Names, shapes and slices of all tensors of a model, whichever file each lies in."""

    def __init__(self, files: Mapping[Path, Header], names: Mapping[str, Path]) -> None:
        self._headers, self._files = files, names
        held: dict[str, Place] = {name: place for header in files.values() for name, place in header.tensors.items()}
        self._places = {name: held[name] for name in names}
        self._open: dict[Path, Any] = {}

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __contains__(self, name: str) -> bool:
        return name in self._places

    def shape(self, name: str) -> tuple[int, ...]:
        """Of one tensor."""
        return self._places[name].shape

    def dtype(self, name: str) -> str:
        """Its type as the file calls it."""
        return self._places[name].dtype

    def readable(self, name: str) -> bool:
        """Whether it holds plain floating-point numbers: integers and float8 need scales that lie elsewhere."""
        return self._places[name].dtype in READABLE

    def itemsize(self, name: str) -> int:
        """Bytes of one number of a tensor that is readable."""
        return self._places[name].itemsize

    def read(self, name: str, rows: slice | None = None, columns: slice | None = None) -> NDArray[Any]:
        """A slice of a tensor of rank 1 or 2, as float64."""
        place = self._places[name]
        height, width = place.shape if len(place.shape) == 2 else (int(np.prod(place.shape)), 1)
        first, last, _ = (rows or slice(None)).indices(height)
        left, right, _ = (columns or slice(None)).indices(width)
        if (left, right) == (0, width):
            spans = [(first * width, (last - first) * width)]
        else:
            spans = [(row * width + left, right - left) for row in range(first, last)]
        numbers = self._numbers(name, place, spans)
        return numbers.reshape((last - first, right - left) if len(place.shape) == 2 else (last - first,))

    def _numbers(self, name: str, place: Place, spans: Sequence[tuple[int, int]]) -> NDArray[np.float64]:
        """As many numbers as each span says, from where it says, one after the other."""
        path = self._files[name]
        try:
            file = self._file(path)
            parts = [
                read_exactly(file, place.start + place.itemsize * at, place.itemsize * count) for at, count in spans
            ]
        except OSError as error:
            raise ArgumentError(f"path: {shown_text(path.name)} cannot be read: {error.strerror or error}") from error
        raw = np.frombuffer(parts[0] if len(parts) == 1 else b"".join(parts), _TYPES[place.dtype])
        if place.dtype == "BF16":  # the upper half of a float32
            raw = (raw.astype(np.uint32) << 16).view(np.float32)
        return raw.astype(np.float64)

    def close(self) -> None:
        """Let go of the files that are open."""
        for file in self._open.values():
            file.close()
        self._open.clear()

    def _file(self, path: Path) -> Any:
        if path not in self._open:
            file = os.fdopen(open_regular(path), "rb", buffering=0)
            self._open[path] = file
            if mark_of(os.fstat(file.fileno())) != self._headers[path].mark:
                raise OSError("it has changed since its header was read")
        return self._open[path]


def find_tensors(path: Path, progress: Progress | None = None) -> Tensors:
    """The tensors of a safetensors file, of an index of shards, or of a folder that holds either."""
    if _is_folder(path):
        path = _inside(path)
    if path.suffix in _PICKLED:
        raise ArgumentError(f"path: {shown_text(path.name)} is not read: {_CONVERT}")
    if path.suffix == ".json":
        return _sharded(path, progress)
    header = _header(path)
    return Tensors({path: header}, dict.fromkeys(header.tensors, path))


def _is_folder(path: Path) -> bool:
    """Whether the path is a folder; an error if nothing is there, or nothing can be."""
    try:
        return stat.S_ISDIR(path.stat().st_mode)
    except FileNotFoundError:
        raise ArgumentError(
            "path: must be a model folder, a .safetensors file or an index of shards, "
            f"{shown_text(path)} is absent{' (a link to nothing)' if path.is_symlink() else ''}"
        ) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ArgumentError(f"path: {shown_text(path)} cannot be read: {reason}") from error


def _inside(folder: Path) -> Path:
    """What to read of a folder; a single file counts before an index, as in transformers."""
    try:
        names = sorted(entry.name for entry in folder.iterdir())
    except OSError as error:
        raise ArgumentError(f"path: {shown_text(folder)} cannot be read: {error.strerror or error}") from error
    files = [name for name in names if name.endswith(".safetensors")]
    for candidate in ("model.safetensors", *(name for name in names if name.endswith(".safetensors.index.json"))):
        if candidate in names:
            return folder / candidate
    if len(files) == 1:
        return folder / files[0]
    if files:
        listed = ", ".join(shown_text(name, 80) for name in files[:4])
        raise ArgumentError(
            f"path: {shown_text(folder)} has {len(files)} safetensors files ({listed}) and no {INDEX}; name one of them"
        )
    pickled = [name for name in names if name.endswith(_PICKLED)]
    if pickled:
        raise ArgumentError(
            f"path: {shown_text(folder)} has no .safetensors file, and {shown_text(pickled[0])} is not read: {_CONVERT}"
        )
    raise ArgumentError(f"path: {shown_text(folder)} has no .safetensors file")


def _sharded(index: Path, progress: Progress | None) -> Tensors:
    """The tensors that an index names, each in the file that it says."""
    places = _weight_map(index)
    shards: dict[str, list[str]] = {}
    for name, file in places.items():
        shards.setdefault(file, []).append(name)
    if len(shards) > MOST_SHARDS:
        raise ArgumentError(f"path: {shown_text(index.name)} must name at most {MOST_SHARDS} shards, got {len(shards)}")
    for file in sorted(shards):
        _check_shard(index, file)
    headers, length = {}, 0
    paths = {file: index.parent / file for file in shards}
    for number, (file, names) in enumerate(sorted(shards.items())):
        if progress is not None:
            progress(shown_text(file, 40), number / len(shards))
        header = _header(paths[file])
        length += header.length
        if length > LARGEST_HEADERS:
            raise ArgumentError(
                f"path: the shards of {shown_text(index.name)} must have headers of at most {LARGEST_HEADERS} bytes"
            )
        absent = next((name for name in names if name not in header.tensors), None)
        if absent is not None:
            raise ArgumentError(
                f"path: {shown_text(index.name)} says that {shown_text(absent)} is in {shown_text(file)}, "
                "and it is not there"
            )
        headers[paths[file]] = header
    return Tensors(headers, {name: paths[file] for name, file in places.items()})


def _weight_map(index: Path) -> dict[str, str]:
    """{tensor: file} as the index tells it."""
    name = shown_text(index.name)
    wrong = f"path: {name} is no index of shards (a JSON object with weight_map)"
    try:
        content = read_json(index, LARGEST_INDEX, unique=True)
    except OSError as error:
        raise ArgumentError(f"path: {name} cannot be read: {error.strerror or error}") from error
    except JsonError as error:
        raise ArgumentError(f"{wrong}: {error}") from error
    places = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(places, dict):
        raise ArgumentError(f"{wrong}, got {came(content if places is None else places)}")
    if not places:
        raise ArgumentError(f"path: {name} names no tensor: its weight_map is empty")
    if len(places) > MOST_TENSORS:
        raise ArgumentError(f"path: {name} must name at most {MOST_TENSORS} tensors, got {len(places)}")
    for tensor, file in places.items():
        try:
            check_name(tensor)
        except JsonError as error:
            raise ArgumentError(f"path: {name}: {error}") from None
        if not isinstance(file, str):
            raise ArgumentError(f"path: {name}: the file of {shown_text(tensor)} must be a text, got {came(file)}")
    return places


def _check_shard(index: Path, file: str) -> None:
    """A file of the same folder, that is there."""
    name, shown = shown_text(index.name), shown_text(file, 80)
    inside = file not in ("", ".", "..") and not {"/", "\\", "\0"} & set(file)
    if not inside or len(os.fsencode(file)) > _LONGEST_FILE:
        raise ArgumentError(f"path: {name} must name files of its own folder, got '{shown}'")
    if file.endswith(_PICKLED):
        raise ArgumentError(f"path: {shown} is not read: {_CONVERT}")
    try:
        (index.parent / file).stat()
    except FileNotFoundError:
        raise ArgumentError(f"path: {name} names {shown}, which is absent: the download is not complete") from None
    except OSError as error:
        raise ArgumentError(f"path: {name} names {shown}, which cannot be read: {error.strerror or error}") from error


def _header(path: Path) -> Header:
    try:
        return read_header(path)
    except PickleError as error:
        raise ArgumentError(f"path: {shown_text(path.name)} is not read: {_CONVERT}") from error
