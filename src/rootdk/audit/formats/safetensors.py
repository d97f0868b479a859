"""Safetensors: eight bytes with the length of a JSON object, {name: {"dtype", "shape", "data_offsets"}}, and numbers.

https://github.com/huggingface/safetensors says that these follow without gaps, and a file that is otherwise is refused,
as it is by its library. That library maps files into memory; so the few lines that reading takes are here.
"""

import math
from typing import Any

import numpy as np

from rootdk.audit.limits import LARGEST_INDEX, MOST_RANK, MOST_TENSORS, came
from rootdk.untrusted import parse_json, shown_text

from .stored import NUMPY, Contents, NotThisError, Plain, Source, check_name

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
