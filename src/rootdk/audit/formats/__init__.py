"""The file formats of models: the format of a path, and the tensors in it.

The first bytes of a file decide what it is, not its name. Every format is read here in bounded memory, without the
library that wrote it and without running anything. For a file that is not read, the error says what it is and what to
give instead.
"""

import os
import re
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from rootdk.audit.limits import LARGEST_HEADERS, LARGEST_INDEX, MOST_SHARDS, MOST_TENSORS, came
from rootdk.errors import ArgumentError
from rootdk.files import JsonError, kind_of, read_json, shown_text

from .archives import read_npz
from .gguf import read_gguf
from .onnx import read_onnx
from .pickles import ForeignError, read_old_torch, read_torch_archive
from .stored import Contents, NotReadError, NotThisError, Source, Tensors, check_name, is_file_name, read_safetensors

__all__ = ["Tensors", "find_tensors", "weights_in"]

Progress = Callable[[str, float], None]
_MOST_FOLDERS = 200  # how many folders are searched for weights


@dataclass(frozen=True, slots=True)
class Format:
    """A kind of file: its name in errors, the suffixes of file names, and the function that reads it."""

    name: str
    suffixes: tuple[str, ...]
    read: Callable[[Source], Contents]


_PICKLED = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")
SAFETENSORS = Format("safetensors", (".safetensors",), read_safetensors)
GGUF = Format("GGUF", (".gguf",), read_gguf)
TORCH = Format("torch", _PICKLED, read_torch_archive)
OLD_TORCH = Format("torch", _PICKLED, read_old_torch)
NPZ = Format("npz", (".npz",), read_npz)
ONNX = Format("ONNX", (".onnx",), read_onnx)
_SUFFIXES = tuple(suffix for kind in (SAFETENSORS, GGUF, TORCH, NPZ, ONNX) for suffix in kind.suffixes)
_INDICES = (".safetensors.index.json", ".bin.index.json")
# In the order in which a folder is searched; transformers too takes safetensors first, and one file before shards.
_PREFERRED = (
    *("model.safetensors", *_INDICES[:1], ".safetensors", "pytorch_model.bin", *_INDICES[1:], ".bin", ".gguf"),
    *("model.onnx", ".onnx", "weights.npz", ".npz", *_PICKLED[1:]),
)
# Files that lie beside the weights in a folder and are no weights.
_NO_MODEL = re.compile(
    r"training_args|optimizer|scheduler|rng_state|scaler|mmproj|adapter_model|imatrix", re.IGNORECASE
)
# "bert-base-uncased" or "meta-llama/Llama-3.1-8B", but no file with a suffix of letters.
_HUB_NAME = re.compile(r"(?!.*\.[a-z]+$)[\w-]+(/[\w.-]+)?")
# A file that was cut by size, as some upload it.
_CUT = re.compile(r"^(.+)[.-]part[-_]?\w{1,4}$")
_PART = re.compile(r"^(.*)-(\d{5})-of-(\d{5})\.(\w+)$")
_CONVERT = (
    "nothing of it is run here; where you trust it, convert it once: model.save_pretrained(folder) of a transformers "
    "model, or safetensors.torch.save_file(torch.load(file, weights_only=True), 'model.safetensors')"
)
# Files that are no weights: their first bytes, what each is, and what to do.
_OTHERS = (
    (b"version https://git-lfs", "a pointer of Git LFS and not the file itself", "fetch it with `git lfs pull`"),
    (b"\x89HDF\r\n", "HDF5, as Keras writes", "convert it to safetensors"),
    (b"ggjt", "GGML of before GGUF", "convert it to GGUF with llama.cpp"),
    (b"\x1f\x8b", "compressed with gzip", "unpack it first"),
    (b"<!DOCTYPE", "a web page", "fetch the file itself"),
    (b"<html", "a web page", "fetch the file itself"),
)


def find_tensors(path: Path, progress: Progress | None = None) -> Tensors:
    """The tensors of a model's file, of an index of shards, or of a folder that holds either."""
    if _is_folder(path):
        path = weights_in(path)
    if path.suffix == ".json":
        return _sharded(path, progress)
    files = list(_read_all(_parts(path), path, progress))
    stored = {name: tensor for _, contents in files for name, tensor in contents.tensors.items()}
    if len(stored) != sum(len(contents.tensors) for _, contents in files):
        raise ArgumentError(f"path: the parts of {shown_text(path.name)} hold a tensor twice")
    sources = [source for file, contents in files for source in (file, *contents.sources)]
    return Tensors(stored, sources, files[0][1].config)


def _read_all(files: Sequence[Path], whole: Path, progress: Progress | None) -> Iterator[tuple[Source, Contents]]:
    """Several files that belong together; the sum of their headers is limited."""
    length = 0
    for number, file in enumerate(files):
        if progress is not None and len(files) > 1:
            progress(shown_text(file.name, 40), number / len(files))
        source, contents = _read(file)
        length += contents.length
        if length > LARGEST_HEADERS:
            raise ArgumentError(
                f"path: the shards of {shown_text(whole.name)} must have headers of at most {LARGEST_HEADERS} bytes"
            )
        yield source, contents


def _read(path: Path) -> tuple[Source, Contents]:
    """One file, read in its format; an error in one line if its content does not fit the format."""
    source = Source(path)
    name, size = shown_text(path.name), source.size
    with closing(source):
        kind = _kind(source, path)
        try:
            return source, kind.read(source)
        except ForeignError as error:
            raise ArgumentError(f"path: {name} is not read: it is {error}; {_CONVERT}") from None
        except NotReadError as error:
            raise ArgumentError(f"path: {name} is not read: {error}") from None
        except (NotThisError, JsonError) as error:
            raise ArgumentError(
                f"path: {name} is no whole {kind.name} file ({error}; {size} bytes): truncated, corrupt or too large; "
                "fetch or write it again"
            ) from None


def _kind(source: Source, path: Path) -> Format:
    """The format, from the first bytes; an error if the name contradicts it, or if such files are not read."""
    head, name = bytes(source.read(0, min(source.size, 4096))), shown_text(path.name)
    for start, other_kind, instead in _OTHERS:
        if head.startswith(start):
            raise ArgumentError(f"path: {name} is {other_kind}; {instead}")
    if (cut := _CUT.match(path.name)) is not None:
        whole = shown_text(cut[1])
        raise ArgumentError(f"path: {name} is a piece of {whole}; put the pieces together, in order, and give {whole}")
    if re.match(rb".\0\0\0.\0\w+Spec\0", head, re.DOTALL):
        raise ArgumentError(
            f"path: {name} is a model of CTranslate2 (faster-whisper), which is not read; give the model that it was "
            "made from"
        )
    kind = None
    if head.startswith(b"GGUF"):
        kind = GGUF
    elif head.startswith(b"PK\x03\x04"):
        kind = NPZ if b".npy" in head[:300] else TORCH
    elif head[:1] == b"\x80" and head[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05"):
        kind = OLD_TORCH
    elif head[8:9] == b"{" and int.from_bytes(head[:8], "little") <= source.size:
        kind = SAFETENSORS
    elif head[:1] == b"\x08" and head[1:2] < b"\x20" and head[2:3] in (b"\x12", b"\x1a", b"\x22", b"\x3a", b"\x42"):
        kind = ONNX  # begins with its version, and then a field
    named = next((kind for kind in (SAFETENSORS, GGUF, OLD_TORCH, NPZ, ONNX) if path.suffix in kind.suffixes), None)
    if kind is None:
        if named is None:
            raise ArgumentError(
                f"path: {name} is no file that is read: give {', '.join(_SUFFIXES)}, an index of shards or a folder"
            )
        return named
    if named is not None and named.name != kind.name:
        raise ArgumentError(
            f"path: {name} is {'an' if kind in (NPZ, ONNX) else 'a'} {kind.name} file, whatever its name says; "
            f"rename it to {shown_text(path.stem)}{kind.suffixes[0]}"
        )
    return kind


def _parts(path: Path) -> list[Path]:
    """The files that belong together: all parts of a GGUF file that was split; else the file itself, if it is whole."""
    split = _PART.match(path.name)
    if split is None or not int(split[3]):
        return [path]
    stem, number, count, suffix = split.groups()
    if suffix == "gguf" and int(count) <= MOST_SHARDS:
        parts = [path.with_name(f"{stem}-{part:05}-of-{count}.gguf") for part in range(1, int(count) + 1)]
        absent = next((part.name for part in parts if kind_of(part) != "file"), None)
        if absent is not None:
            raise ArgumentError(
                f"path: {shown_text(path.name)} is one of {int(count)} parts, and {shown_text(absent)} is absent: the "
                "download is not complete"
            )
        return parts
    index = next((name for name in _names(path.parent) if name.endswith(_INDICES)), None)
    if index is None:
        instead = "the index of its shards, *.index.json, is absent: fetch it, and the other parts, too"
    else:
        instead = f"give the folder, or {shown_text(index)}"
    raise ArgumentError(f"path: {shown_text(path.name)} is part {int(number)} of {int(count)} of a model; {instead}")


def _is_folder(path: Path) -> bool:
    """Whether the path is a folder; an error if nothing is there or the path cannot be read."""
    try:
        return stat.S_ISDIR(path.stat().st_mode)
    except FileNotFoundError:
        shown = shown_text(path)
        if _HUB_NAME.fullmatch(str(path)) and not path.is_symlink():
            raise ArgumentError(
                f"path: there is no {shown} here, and nothing is downloaded: give the folder that holds the model. If "
                f"{shown} is a name on a hub, `hf download {shown}` prints that folder"
            ) from None
        raise ArgumentError(
            f"path: must be a model folder, a file ({', '.join(_SUFFIXES)}) or an index of shards, "
            f"{shown} is absent{' (a link to nothing)' if path.is_symlink() else ''}"
        ) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ArgumentError(f"path: {shown_text(path)} cannot be read: {reason}") from error


def _names(folder: Path) -> list[str]:
    try:
        return sorted(entry.name for entry in folder.iterdir())
    except OSError as error:
        raise ArgumentError(f"path: {shown_text(folder)} cannot be read: {error.strerror or error}") from error


def weights_in(folder: Path) -> Path:
    """What to read of a folder; a single file counts before an index, as in transformers."""
    names = [name for name in _names(folder) if not _NO_MODEL.search(name)]
    for wanted in _PREFERRED:
        files = [name for name in names if (name.endswith(wanted) if wanted.startswith(".") else name == wanted)]
        parts = [match for name in files if (match := _PART.match(name)) is not None]
        if files and (len(files) == 1 or (len(parts) == len(files) and len({match[1] for match in parts}) == 1)):
            return folder / files[0]
        if files:
            listed = ", ".join(shown_text(name, 80) for name in files[:4])
            raise ArgumentError(
                f"path: {shown_text(folder)} has {len(files)} {wanted.lstrip('.')} files ({listed}); name one of them"
            )
    raise ArgumentError(f"path: {shown_text(folder)} has no weights ({', '.join(_SUFFIXES)}){_hint(folder, names)}")


def _hint(folder: Path, names: list[str]) -> str:
    """For a folder without weights: what it holds instead, or where weights are."""
    for place, _, files in islice(os.walk(folder), _MOST_FOLDERS):
        weights = next((file for file in sorted(files) if file.endswith((*_SUFFIXES, *_INDICES))), None)
        if weights is not None and not _NO_MODEL.search(weights):
            inner = shown_text(Path(place).relative_to(folder))
            return f"; they are deeper, in {inner}, as {shown_text(weights)}: give that folder"
    if any(name.startswith(("tokenizer", "vocab")) for name in names):
        return "; it has a tokenizer alone: give the folder of the model"
    other = next((name for name in names if name.endswith((".h5", ".msgpack", ".tflite", ".pb"))), None)
    return "" if other is None else f"; {shown_text(other)} is of a kind that is not read: convert it to safetensors"


def _sharded(index: Path, progress: Progress | None) -> Tensors:
    """The tensors that an index names, each from the file that the index gives."""
    places = _weight_map(index)
    shards: dict[str, list[str]] = {}
    for name, file in places.items():
        shards.setdefault(file, []).append(name)
    if len(shards) > MOST_SHARDS:
        raise ArgumentError(f"path: {shown_text(index.name)} must name at most {MOST_SHARDS} shards, got {len(shards)}")
    files = sorted(shards)
    for file in files:
        _check_shard(index, file)
    stored, sources = {}, []
    read = _read_all([index.parent / file for file in files], index, progress)
    for file, (source, contents) in zip(files, read, strict=True):
        absent = next((name for name in shards[file] if name not in contents.tensors), None)
        if absent is not None:
            raise ArgumentError(
                f"path: {shown_text(index.name)} says that {shown_text(absent)} is in {shown_text(file)}, "
                "and it is not there"
            )
        stored.update({name: contents.tensors[name] for name in shards[file]})
        sources.append(source)
    return Tensors({name: stored[name] for name in places}, sources)


def _weight_map(index: Path) -> dict[str, str]:
    """{tensor: file}, as listed in the index."""
    name = shown_text(index.name)
    wrong = f"path: {name} is no index of shards (a JSON object with weight_map)"
    if index.name.startswith(("tokenizer", "vocab", "config")):
        wrong = f"path: {name} belongs to a model and holds no weights; give its folder"
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
        except NotThisError as error:
            raise ArgumentError(f"path: {name}: {error}") from None
        if not isinstance(file, str):
            raise ArgumentError(f"path: {name}: the file of {shown_text(tensor)} must be a text, got {came(file)}")
    return places


def _check_shard(index: Path, file: str) -> None:
    """An error unless the file exists in the same folder."""
    name, shown = shown_text(index.name), shown_text(file, 80)
    if not is_file_name(file):
        raise ArgumentError(f"path: {name} must name files of its own folder, got '{shown}'")
    try:
        (index.parent / file).stat()
    except FileNotFoundError:
        raise ArgumentError(f"path: {name} names {shown}, which is absent: the download is not complete") from None
    except OSError as error:
        raise ArgumentError(f"path: {name} names {shown}, which cannot be read: {error.strerror or error}") from error
