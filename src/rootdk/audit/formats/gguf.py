"""GGUF, the files of llama.cpp: metadata, a list of tensors, and their numbers, most of them in blocks of few bits.

https://github.com/ggml-org/ggml/blob/master/docs/gguf.md describes it. The package gguf can convert each type of block
to numbers, and is imported when a file has such blocks; its own reader maps files into memory, so the header is read
here. Metadata hold what config.json holds in other formats, and are turned into a config. The rows of a llama's queries
and keys are stored in another order, the same in both, so products do not change.
"""

import math
import struct
from collections.abc import Callable, Mapping
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np

from rootdk.audit.limits import LARGEST_INDEX, MOST_TENSORS, came
from rootdk.errors import RootdkError
from rootdk.files import MOST_VALUES, shown_text

from .stored import NUMPY, Contents, Floats, NotReadError, NotThisError, Plain, Source, Stored, Unpacked, check_name

_PLAIN = {0: "F32", 1: "F16", 28: "F64", 30: "BF16", 24: "I8", 25: "I16", 26: "I32", 27: "I64"}
# Types of metadata: how struct unpacks them, 8 is a text and 9 a list.
_VALUES = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_TEXT, _LIST = 8, 9
_LONGEST_LIST = 4096  # no longer lists of metadata are kept: no vocabulary, but numbers per layer
_CHUNK = 4 * 2**20


class GgufMissingError(RootdkError, ImportError):
    """Weights in blocks of few bits need the package gguf."""


def read_gguf(source: Source) -> Contents:
    """Metadata as a config, and the tensors."""
    header = _Cursor(source)
    if header.take(4) != b"GGUF":
        raise NotThisError("it does not begin with GGUF")
    version = header.number("I")
    if version not in (2, 3):
        raise NotReadError(f"its version must be 2 or 3, got {version}; convert the model again with llama.cpp")
    count, pairs = header.number("Q"), header.number("Q")
    if count > MOST_TENSORS:
        raise NotThisError(f"it names {count} tensors, more than {MOST_TENSORS}")
    metadata: dict[str, Any] = {}
    for _ in range(header.checked(pairs)):
        key = header.text()
        metadata[key] = header.value(header.number("I"))
    described: dict[str, tuple[tuple[int, ...], int, int]] = {}
    for _ in range(count):
        name = header.text()
        check_name(name)
        rank = header.number("I")
        if rank > 4 or name in described:
            raise NotThisError(f"{shown_text(name)} comes twice or has {rank} axes, more than 4")
        shape = tuple(header.number("Q") for _ in range(rank))[::-1]
        described[name] = (shape, header.number("I"), header.number("Q"))
    alignment = metadata.get("general.alignment", 32)
    if type(alignment) is not int or not 1 <= alignment <= 2**20:
        raise NotThisError(f"general.alignment must be one integer from 1 to {2**20}, got {came(alignment)}")
    begin = -(-header.at // alignment) * alignment
    tensors = {name: _tensor(source, name, begin, *about) for name, about in described.items()}
    return Contents(tensors, header.at, _config(metadata))


class _Cursor:
    """The header, read from its beginning on in pieces, as far as it is needed."""

    def __init__(self, source: Source) -> None:
        self._source, self._held, self.at, self._values = source, bytearray(), 0, 0

    def take(self, size: int) -> bytes:
        self._skip(size)
        return bytes(self._held[self.at - size : self.at])

    def number(self, kind: str) -> Any:
        return struct.unpack(f"<{kind}", self.take(struct.calcsize(kind)))[0]

    def checked(self, count: int) -> int:
        """The count itself; an error once all counts of the file together are too large."""
        self._values += count
        if self._values > MOST_VALUES:
            raise NotThisError(f"more than {MOST_VALUES:,} values")
        return count

    def text(self) -> str:
        try:
            return self.take(self.number("Q")).decode("utf-8")
        except UnicodeDecodeError:
            raise NotThisError(f"a text that is no UTF-8 before byte {self.at}") from None

    def value(self, kind: int) -> Any:
        """A value of metadata; None in place of a long list, and of texts in lists."""
        if kind == _TEXT:
            return self.text()
        if kind in _VALUES:
            return self.number(_VALUES[kind])
        if kind != _LIST:
            raise NotThisError(f"metadata of an unknown type {kind}")
        inner, count = self.number("I"), self.number("Q")
        if inner in _VALUES:
            size = struct.calcsize(_VALUES[inner])
            if count > _LONGEST_LIST:
                self._skip(count * size)
                return None
            return list(struct.unpack(f"<{count}{_VALUES[inner]}", self.take(count * size)))
        if inner != _TEXT:
            raise NotThisError("metadata with a list of lists")
        for _ in range(self.checked(count)):
            self._skip(self.number("Q"))
        return None

    def _skip(self, size: int) -> None:
        """Go on by that many bytes, which are held then."""
        end = self.at + size
        if end > min(self._source.size, LARGEST_INDEX):
            raise NotThisError(
                f"its header goes on to byte {came(end)}, of {self._source.size} and at most {LARGEST_INDEX}"
            )
        while len(self._held) < end:
            rest = min(_CHUNK, self._source.size - len(self._held))
            self._held += self._source.read(len(self._held), rest)
        self.at = end


def _tensor(source: Source, name: str, begin: int, shape: tuple[int, ...], kind: int, offset: int) -> Stored:
    """One tensor, inside its file."""
    numbers = math.prod(shape)
    if kind in _PLAIN:
        stored: Stored = Plain(source, _PLAIN[kind], shape, begin + offset)
        size = numbers * np.dtype(NUMPY[_PLAIN[kind]]).itemsize
    else:
        blocks = _blocks(kind)
        if numbers and shape[-1] % blocks.numbers:
            raise NotThisError(f"the rows of {shown_text(name)} must be blocks of {blocks.numbers}, got {list(shape)}")
        stored = _in_blocks(source, shape, begin + offset, blocks)
        size = numbers // blocks.numbers * blocks.bytes
    if begin + offset + size > source.size:
        raise NotThisError(f"{shown_text(name)} should end at byte {came(begin + offset + size)}")
    return stored


def _in_blocks(source: Source, shape: tuple[int, ...], start: int, blocks: Any) -> Unpacked:
    """A tensor whose rows are blocks of numbers that share their scales; only a matrix is read."""

    def read(rows: slice, columns: slice) -> Floats:
        """The blocks that hold the slice are unpacked, and no others."""
        (first, last, _), (left, right, _) = rows.indices(shape[0]), columns.indices(shape[1])
        begin, end = left // blocks.numbers, -(-right // blocks.numbers)
        stride, size = shape[1] // blocks.numbers * blocks.bytes, (end - begin) * blocks.bytes
        at = start + first * stride + begin * blocks.bytes
        if size == stride:
            raw = source.read(at, (last - first) * stride)
        else:
            raw = bytearray().join(source.read(at + row * stride, size) for row in range(last - first))
        numbers = blocks.unpack(np.frombuffer(raw, np.uint8).reshape(last - first, size))
        return np.asarray(numbers[:, left - begin * blocks.numbers : right - begin * blocks.numbers], np.float64)

    readable = blocks.unpack is not None and len(shape) == 2
    return Unpacked(blocks.name, shape, blocks.bytes / blocks.numbers if readable else 0, read)


@cache
def _blocks(kind: int) -> Any:
    """How many numbers and bytes a block of this type has, and what unpacks (rows, bytes); None if nothing can."""
    try:
        import gguf
    except ImportError as error:
        raise GgufMissingError(
            f"path: GGUF weights in blocks need the package gguf, {error.name} is not installed; get it with: "
            "pip install 'rootdk[audit]'"
        ) from error
    try:
        named = gguf.GGMLQuantizationType(kind)
        numbers, size = gguf.GGML_QUANT_SIZES[named]
    except (ValueError, KeyError):
        raise NotReadError(f"it has numbers of a type, {kind}, that the installed package gguf does not know") from None
    unpack: Callable[[Any], Any] | None = lambda packed: gguf.quants.dequantize(packed, named)  # noqa: E731
    try:
        gguf.quants.dequantize(np.zeros((1, size), np.uint8), named)
    except NotImplementedError:
        unpack = None
    return SimpleNamespace(name=named.name, numbers=numbers, bytes=size, unpack=unpack)


# ---- metadata as a config

# {architecture in llama.cpp: model type in transformers}, where the two differ.
_MODEL_TYPES = {
    "command-r": "cohere",
    "gptneox": "gpt_neox",
    "phi2": "phi",
    "gpt-oss": "gpt_oss",
    "qwen2moe": "qwen2_moe",
    "qwen3moe": "qwen3_moe",
    "modern-bert": "modernbert",
    "nomic-bert": "nomic_bert",
    "gemma-embedding": "gemma3",
    "deepseek2": "deepseek_v3",
    "jina-bert-v2": "jina_bert",
    "gemma4": "gemma4_text",
}
_FIELDS = {
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "attention.key_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "attention.layer_norm_epsilon": "layer_norm_eps",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "attention.scale": "attention_multiplier",
    "attention.clamp_kqv": "clip_qkv",
    "context_length": "max_position_embeddings",
}
_ROPE = {
    "rope.scaling.type": "rope_type",
    "rope.scaling.factor": "factor",
    "rope.scaling.attn_factor": "attention_factor",
    "rope.scaling.original_context_length": "original_max_position_embeddings",
}
# Models, by architecture and number of blocks, whose queries are scaled by width/heads and not by d_k: Gemma 2 and 3 of
# 27B. Their metadata do not show it.
_WIDE = (("gemma2", 46), ("gemma3", 62))


def _config(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """What transformers would have in config.json. `stored_gains` says that gains are stored as they are used."""
    kind = metadata.get("general.architecture")
    if not isinstance(kind, str):
        raise NotThisError(f"general.architecture must be a text, got {came(kind)}")

    def fields(names: Mapping[str, str]) -> dict[str, Any]:
        values = {name: metadata.get(f"{kind}.{key}") for key, name in names.items()}
        return {name: value for name, value in values.items() if value is not None}

    config = {"model_type": _MODEL_TYPES.get(kind, kind), "stored_gains": True, **fields(_FIELDS)}
    rope = fields(_ROPE)
    if rope.get("rope_type") == "yarn":
        rope.pop("attention_factor", None)  # llama.cpp multiplies YaRN's own factor with it, and it is 1
    if rope:
        config["rope_scaling"] = rope
    if config.get("attention_multiplier") == 0:
        del config["attention_multiplier"]  # the default of llama.cpp: 1/sqrt(d_k)
    width, heads = config.get("hidden_size"), config.get("num_attention_heads")
    if (kind, config.get("num_hidden_layers")) in _WIDE and isinstance(width, int) and isinstance(heads, int) and heads:
        config["query_pre_attn_scalar"] = width / heads
    return config
