"""The tensors of a checkpoint, read slice by slice from safetensors files. Nothing is ever unpickled.

A file is mapped into memory, so a slice costs what it holds and not what its tensor holds. Pages that were read stay
mapped until the file is closed; a file is therefore closed and opened again after every _MAPPED bytes, and a model of
any size is read in the memory of a few heads.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rootdk.errors import ArgumentError, RootdkError

INDEX = "model.safetensors.index.json"
_MAPPED = 32 * 2**20
_PICKLED = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")
_CONVERT = (
    "it is a pickle, which runs code when it is opened, so it is not opened here; where you trust it, convert it once: "
    "model.save_pretrained(folder) of a transformers model, or safetensors.torch.save_file(torch.load(file, "
    "weights_only=True), 'model.safetensors')"
)
_READABLE = ("F64", "F32", "F16", "BF16")


class SafetensorsMissingError(RootdkError, ImportError):
    """Reading a checkpoint needs safetensors, and bfloat16 needs ml_dtypes: both are an extra."""


class Tensors:
    """Names, shapes and slices of all tensors of a model, whichever file each lies in."""

    def __init__(self, files: Mapping[str, Path]) -> None:
        self._files = dict(files)
        self._open: dict[Path, Any] = {}
        self._read = 0
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.types: dict[str, str] = {}
        for path in sorted(set(files.values())):
            with _opened(path) as file:
                held = set(file.keys())
                for name in (name for name, place in self._files.items() if place == path):
                    if name not in held:
                        raise ArgumentError(f"path: {INDEX} says that {name} is in {path.name}, and it is not there")
                    view = file.get_slice(name)
                    self.shapes[name] = tuple(view.get_shape())
                    self.types[name] = str(view.get_dtype())

    def __iter__(self) -> Iterator[str]:
        return iter(self.shapes)

    def __contains__(self, name: str) -> bool:
        return name in self.shapes

    def readable(self, name: str) -> bool:
        """Whether it holds plain floating-point numbers: integers and float8 need scales that lie elsewhere."""
        return self.types[name] in _READABLE

    def read(self, name: str, rows: slice = slice(None), columns: slice | None = None) -> NDArray[Any]:
        """A slice of a tensor, as float64."""
        if self.types[name] == "BF16":
            _check_bfloat16()
        view = self._file(self._files[name]).get_slice(name)
        part = view[rows] if columns is None else view[rows, columns]
        self._read += part.nbytes
        found = np.asarray(part).astype(np.float64)
        if self._read > _MAPPED:
            self.close()
        return found

    def close(self) -> None:
        """Give the mapped pages back."""
        self._open.clear()
        self._read = 0

    def _file(self, path: Path) -> Any:
        if path not in self._open:
            self._open[path] = _library()(path, framework="np")
        return self._open[path]


def find_tensors(path: Path) -> Tensors:
    """The tensors of a safetensors file, of an index of shards, or of a folder that holds either."""
    if not path.exists():
        raise ArgumentError(
            f"path: must be a model folder, a .safetensors file or an index of shards, {path} is absent"
        )
    if path.is_dir():
        path = _inside(path)
    if path.suffix in _PICKLED:
        raise ArgumentError(f"path: {path.name} is not read: {_CONVERT}")
    if path.suffix == ".json":
        return Tensors(_sharded(path))
    with _opened(path) as file:
        names = list(file.keys())
    return Tensors(dict.fromkeys(names, path))


def _inside(folder: Path) -> Path:
    """What to read of a folder; a single file counts before an index, as in transformers."""
    found = sorted(folder.glob("*.safetensors"))
    for candidate in (folder / "model.safetensors", *sorted(folder.glob("*.safetensors.index.json"))):
        if candidate.exists():
            return candidate
    if len(found) == 1:
        return found[0]
    if found:
        names = ", ".join(file.name for file in found[:4])
        raise ArgumentError(
            f"path: {folder} has {len(found)} safetensors files ({names}) and no {INDEX}; name one of them"
        )
    pickled = [file.name for file in sorted(folder.iterdir()) if file.suffix in _PICKLED]
    if pickled:
        raise ArgumentError(f"path: {folder} has no .safetensors file, and {pickled[0]} is not read: {_CONVERT}")
    raise ArgumentError(f"path: {folder} has no .safetensors file")


def _sharded(index: Path) -> dict[str, Path]:
    """The file that each tensor lies in, as the index tells it."""
    try:
        places = json.loads(index.read_text("utf-8"))["weight_map"]
        found = {str(name): str(file) for name, file in places.items()}
    except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
        raise ArgumentError(f"path: {index.name} is no index of shards (a JSON object with weight_map)") from error
    if not found:
        raise ArgumentError(f"path: {index.name} names no tensor: its weight_map is empty")
    for name in sorted(set(found.values())):
        file = index.parent / name
        if file.name != name:
            raise ArgumentError(f"path: {index.name} must name files of its own folder, got {name!r}")
        if file.suffix in _PICKLED:
            raise ArgumentError(f"path: {file.name} is not read: {_CONVERT}")
        if not file.exists():
            raise ArgumentError(f"path: {index.name} names {file.name}, which is absent: the download is not complete")
    return {name: index.parent / file for name, file in found.items()}


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """An open file whose header fits its size, or an error that says what is wrong with it."""
    library = _library()
    from safetensors import SafetensorError

    try:
        file = library(path, framework="np")
    except SafetensorError as error:
        reason = str(error).rpartition("header: ")[2]
        if _looks_pickled(path):
            raise ArgumentError(f"path: {path.name} is not read: {_CONVERT}") from error
        raise ArgumentError(
            f"path: {path.name} is no whole safetensors file ({reason}; {path.stat().st_size} bytes): truncated, "
            "corrupt or of another kind; fetch or write it again"
        ) from error
    except OSError as error:
        raise ArgumentError(f"path: {path.name} cannot be read: {error.strerror or error}") from error
    try:
        yield file
    finally:
        del file


def _looks_pickled(path: Path) -> bool:
    """torch.save writes a zip archive, before 1.6 a bare pickle; either may carry any name."""
    with path.open("rb") as file:
        start = file.read(4)
    return start.startswith((b"PK\x03\x04", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05"))


def _library() -> Any:
    try:
        from safetensors import safe_open
    except ImportError as error:
        raise SafetensorsMissingError(
            "read_checkpoint: needs safetensors, which is not installed; get it with: pip install 'rootdk[audit]'"
        ) from error
    return safe_open


def _check_bfloat16() -> None:
    """NumPy has no bfloat16; ml_dtypes teaches it one as soon as it is imported."""
    try:
        import ml_dtypes  # noqa: F401
    except ImportError as error:
        raise SafetensorsMissingError(
            "read_checkpoint: bfloat16 weights need ml_dtypes, which is not installed; get it with: "
            "pip install 'rootdk[audit]'"
        ) from error
