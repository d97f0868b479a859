"""ONNX: a graph of operations and its initializers, read from the file's protobuf without loading the weights.

The fields that are read are those of https://github.com/onnx/onnx/blob/main/onnx/onnx.proto, by their numbers. Weights
stay in the file, or in the files beside it that it names. Attention is recognised by the structure of the graph, since
exporters rename weights: see `traced`.
"""

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rootdk.audit.limits import LARGEST_INDEX, MOST_RANK, MOST_TENSORS, came
from rootdk.files import MOST_VALUES, shown_text

from .stored import NUMPY, Contents, NotThisError, Plain, Source, is_file_name

_TYPES = {
    1: "F32",
    2: "U8",
    3: "I8",
    4: "U16",
    5: "I16",
    6: "I32",
    7: "I64",
    9: "BOOL",
    10: "F16",
    11: "F64",
    12: "U32",
    13: "U64",
    16: "BF16",
    17: "F8_E4M3",
    19: "F8_E5M2",
}
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_CHUNK = 4096  # bytes that are read at once; between two initializers lie their numbers
MOST_SMALL = 4096  # bytes of an initializer whose numbers are used: shapes, scales, axes
_DEEPEST = 8  # graphs inside graphs
_LONGEST_TEXT = 512
Place = tuple[int, int]  # from byte to byte


@dataclass(frozen=True, slots=True)
class Node:
    """One operation."""

    kind: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: dict[str, Any]


@dataclass(slots=True)
class Graph:
    """Operations by the value that they make, and initializers; those of the enclosing graph are included."""

    nodes: list[Node] = field(default_factory=list)
    initializers: dict[str, Plain] = field(default_factory=dict)
    inner: list["Graph"] = field(default_factory=list)


def read_onnx(source: Source) -> Contents:
    """The attention of a graph, as query and key projections with the names that other files give them."""
    from .traced import attention_of  # it needs the classes of this file

    message = _Message(source)
    graph = None
    for number, kind, value in message.fields(0, source.size):
        if number == 7 and kind == _BYTES:
            graph = _graph(message, value)
    if graph is None:
        raise NotThisError("it has no graph")
    tensors, config = attention_of(graph)
    return Contents(tensors, message.length, config, tuple(message.beside.values()))


class _Message:
    """Protobuf messages, given as byte ranges of the file; only requested parts are read."""

    def __init__(self, source: Source) -> None:
        self.source, self.length, self._steps = source, 0, 0
        self._held, self._from = b"", 0
        self.beside: dict[str, Source] = {}

    def fields(self, start: int, end: int) -> Iterator[tuple[int, int, Any]]:
        """(number, kind, value) of a message; the value of bytes is where they start and end."""
        at = start
        while at < end:
            tag, at = self.varint(at, end)
            number, kind = tag >> 3, tag & 7
            if kind == _VARINT:
                value, at = self.varint(at, end)
                yield number, kind, value
                continue
            size, at = self.varint(at, end) if kind == _BYTES else ({_FIXED64: 8, _FIXED32: 4}.get(kind, -1), at)
            if size < 0 or at + size > end:
                raise NotThisError(f"its protobuf breaks off at byte {at}")
            yield number, kind, (at, at + size)
            at += size

    def bytes(self, start: int, end: int) -> bytes:
        """The bytes between two places, for parts that are used and not skipped."""
        if not self._from <= start <= end <= self._from + len(self._held):
            self._from = start
            self._held = bytes(self.source.read(start, min(max(_CHUNK, end - start), self.source.size - start)))
            self.length += len(self._held)
            if self.length > LARGEST_INDEX:
                raise NotThisError(f"more than {LARGEST_INDEX} bytes beside its numbers")
        return self._held[start - self._from : end - self._from]

    def text(self, start: int, end: int) -> str:
        return self.bytes(start, min(end, start + _LONGEST_TEXT)).decode("utf-8", "replace")

    def varint(self, at: int, end: int) -> tuple[int, int]:
        self._steps += 1
        if self._steps > MOST_VALUES:
            raise NotThisError(f"more than {MOST_VALUES:,} fields")
        raw = self.bytes(at, min(at + 10, end))
        value = 0
        for place, byte in enumerate(raw):
            value |= (byte & 127) << (7 * place)
            if byte < 128:
                return value, at + place + 1
        raise NotThisError(f"its protobuf breaks off at byte {at}")


def _graph(message: _Message, place: Place, depth: int = 0) -> Graph:
    if depth > _DEEPEST:
        raise NotThisError(f"graphs nested deeper than {_DEEPEST}")
    graph = Graph()
    for number, kind, value in message.fields(*place):
        if kind != _BYTES:
            continue
        if number == 1:
            graph.nodes.append(_node(message, value, graph, depth))
        elif number == 5:
            name, tensor = _tensor(message, value)
            graph.initializers[name] = tensor
        if len(graph.initializers) > MOST_TENSORS:
            raise NotThisError(f"it names more than {MOST_TENSORS} tensors")
    return graph


def _node(message: _Message, place: Place, graph: Graph, depth: int) -> Node:
    texts: dict[int, list[str]] = {1: [], 2: [], 3: [""], 4: [""]}
    attributes: dict[str, Any] = {}
    for number, kind, value in message.fields(*place):
        if kind == _BYTES and number in texts:
            texts[number].append(message.text(*value))
        elif kind == _BYTES and number == 5:
            name, content = _attribute(message, value, graph, depth)
            attributes[name] = content
    node = Node(texts[4][-1], texts[3][-1], tuple(texts[1]), tuple(texts[2]), attributes)
    if node.kind == "Constant" and isinstance(attributes.get("value"), Plain) and node.outputs:
        graph.initializers[node.outputs[0]] = attributes["value"]
    return node


def _attribute(message: _Message, place: Place, graph: Graph, depth: int) -> tuple[str, Any]:
    """A name, and a number, a list of integers or a tensor."""
    name, content, integers = "", None, []
    for number, kind, value in message.fields(*place):
        if number == 1 and kind == _BYTES:
            name = message.text(*value)
        elif number == 2 and kind == _FIXED32:
            content = struct.unpack("<f", message.bytes(*value))[0]
        elif number == 3 and kind == _VARINT:
            content = _signed(value)
        elif number == 5 and kind == _BYTES:
            content = _tensor(message, value)[1]
        elif number == 6 and kind == _BYTES:
            graph.inner.append(_graph(message, value, depth + 1))
        elif number == 8:
            integers += _integers(message, kind, value)
    return name, integers or content


def _integers(message: _Message, kind: int, value: Any) -> list[int]:
    """One integer of a repeated field, or all of them where they are packed."""
    if kind == _VARINT:
        return [_signed(value)]
    at, end = value
    if kind != _BYTES or end - at > MOST_SMALL:
        return []
    integers = []
    while at < end:
        number, at = message.varint(at, end)
        integers.append(_signed(number))
    return integers


def _signed(value: int) -> int:
    return value - 2**64 if value >= 2**63 else value


def _tensor(message: _Message, place: Place) -> tuple[str, Plain]:
    """An initializer, where its numbers lie."""
    name, code, shape = "", 0, []
    held: Place | None = None
    listed: Place | None = None
    external: dict[str, str] = {}
    for number, kind, value in message.fields(*place):
        if number == 1:
            shape += _integers(message, kind, value)
        elif number == 2 and kind == _VARINT:
            code = value
        elif number == 8 and kind == _BYTES:
            name = message.text(*value)
        elif kind == _BYTES and (number == 9 or (number, code) in ((4, 1), (10, 11))):
            held = value  # raw, or packed numbers of 4 or 8 bytes
        elif kind == _BYTES and (number, code) in ((5, 2), (5, 3)):
            listed = value  # a list of integers; those from 0 to 127 take a byte each, as the type itself does
        elif number == 13 and kind == _BYTES:
            pair = {inner: message.text(*text) for inner, sort, text in message.fields(*value) if sort == _BYTES}
            external[pair.get(1, "")] = pair.get(2, "")
    dtype = _TYPES.get(code, f"type {code}")
    if len(shape) > MOST_RANK or not all(0 <= side < 2**48 for side in shape):
        raise NotThisError(f"the shape of {shown_text(name)} must be at most {MOST_RANK} numbers, got {came(shape)}")
    source = message.source
    if external:
        source, held = _outside(message, name, external)
    size = math.prod(shape) * np.dtype(NUMPY[dtype]).itemsize if dtype in NUMPY else 0
    if held is None and listed is not None and listed[1] - listed[0] == size:
        held = listed
    if held is None or dtype not in NUMPY:
        dtype, held = f"{dtype} in a list", (0, size)
    elif held[1] - held[0] != size:
        raise NotThisError(f"{shown_text(name)} must have {came(size)} bytes, got {held[1] - held[0]}")
    return name, Plain(source, dtype, tuple(shape), held[0])


def _outside(message: _Message, name: str, external: dict[str, str]) -> tuple[Source, Place]:
    """The file beside this one that holds the numbers of a tensor."""
    file = external.get("location", "")
    if not is_file_name(file):
        raise NotThisError(f"{shown_text(name)} must lie in a file of the same folder, got '{shown_text(file, 80)}'")
    if file not in message.beside:
        message.beside[file] = Source(message.source.path.with_name(file))
        message.beside[file].close()
    source = message.beside[file]
    try:
        start = int(external.get("offset") or 0)
        size = int(external["length"]) if "length" in external else source.size - start
    except ValueError:
        raise NotThisError(f"{shown_text(name)} must have an offset and a length in whole numbers") from None
    if start < 0 or size < 0 or start + size > source.size:
        raise NotThisError(f"{shown_text(name)} should end at byte {came(start + size)} of {shown_text(file, 80)}")
    return source, (start, start + size)
