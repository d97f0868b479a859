"""Checkpoints that lie, overflow, or are broken: made by construction and by mutation of good ones.

Every case is a folder, or a path in it, for `rootdk audit`. Files are written byte by byte, since no library writes
what no library should read; a file of 200 GB is sparse and takes no room.
"""

import json
import math
import os
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

PREFIX = "model.layers.0.self_attn."
WQ, WK = f"{PREFIX}q_proj.weight", f"{PREFIX}k_proj.weight"
CONFIG: dict[str, Any] = {
    "model_type": "qwen3", "hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "rms_norm_eps": 1e-6,
}  # fmt: skip
INDEX = "model.safetensors.index.json"
# What a terminal would obey: clear the screen, colour, title, bell, backspace, C1, direction of text, rich's markup.
CODES = "\x1b[2J\x1b[31m\x1b]0;owned\x07\b\r\n\x9b5m\u202e\u2066\u200f[/red][bold]:smile:\x00\x7f"

Make = Callable[[Path], None]


@dataclass(frozen=True)
class Case:
    """make() writes into an empty folder; `path` inside it is audited, "" for the folder itself."""

    name: str
    make: Make
    path: str = ""


def good_tensors(seed: int = 0, layers: int = 1) -> dict[str, Any]:
    """Queries and keys of four and two heads of 8, with biases and QK-norms in every second layer."""
    rng, tensors = np.random.default_rng(seed), {}
    for layer in range(layers):
        place = PREFIX.replace(".0.", f".{layer}.")
        for part, rows in (("q_proj", 32), ("k_proj", 16)):
            tensors[f"{place}{part}.weight"] = (rng.standard_normal((rows, 32)) / 6).astype(np.float32)
            if layer % 2:
                tensors[f"{place}{part}.bias"] = rng.standard_normal(rows).astype(np.float16)
                tensors[f"{place}{part[0]}_norm.weight"] = np.ones(8, np.float64)
        tensors[f"{place}v_proj.weight"] = np.ones((16, 32), np.float32)
    return tensors


_NAMES = {"float64": "F64", "float32": "F32", "float16": "F16", "int8": "I8", "int64": "I64", "bool": "BOOL"}


def packed(tensors: Mapping[str, Any]) -> tuple[dict[str, Any], bytes]:
    """The header as a dictionary, and the bytes that it describes. A pair (type, shape, bytes) is taken as it is."""
    header, data = {}, b""
    for name, tensor in tensors.items():
        kind, shape, raw = (
            tensor if isinstance(tensor, tuple) else (_NAMES[tensor.dtype.name], list(tensor.shape), tensor.tobytes())
        )
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    return header, data


def write(path: Path, header: Any, data: bytes = b"", length: int | None = None, size: int | None = None) -> None:
    """A safetensors file; header may be any bytes, length what the first eight say, size that of a sparse file."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    with path.open("wb") as file:
        file.write((len(text) if length is None else length).to_bytes(8, "little") + text + data)
        if size is not None:
            file.truncate(8 + len(text) + size)


def folder(place: Path, tensors: Mapping[str, Any] | None = None, config: Any = CONFIG) -> None:
    """A checkpoint of one file; config as bytes is written as it is."""
    write(place / "model.safetensors", *packed(good_tensors() if tensors is None else tensors))
    (place / "config.json").write_bytes(config if isinstance(config, bytes) else json.dumps(config).encode())


def constructed() -> Iterator[Case]:
    """Every kind of lie that we could think of."""
    yield from _config_fields()
    yield from _configs()
    yield from _tensor_names()
    yield from _tensors()
    yield from _headers()
    yield from _indices()
    yield from _places()
    yield from _sizes()


# ---- config.json

_FIELDS: dict[str, tuple[str, ...]] = {
    "heads": ("num_attention_heads",),
    "key heads": ("num_key_value_heads",),
    "width": ("hidden_size",),
    "d_k": ("head_dim",),
    "scalar": ("query_pre_attn_scalar",),
    "multiplier": ("attention_multiplier",),
    "softcap": ("attn_logit_softcapping",),
    "clip": ("clip_qkv",),
    "epsilon": ("rms_norm_eps",),
    "softmax scale": ("attn_config", "softmax_scale"),
    "nested key heads": ("attn_config", "kv_n_heads"),
    "rope factor": ("rope_scaling", "factor"),
    "attention factor": ("rope_scaling", "attention_factor"),
    "original length": ("rope_scaling", "original_max_position_embeddings"),
    "length": ("max_position_embeddings",),
    "inverse layers": ("scale_attn_by_inverse_layer_idx",),
    "shared keys": ("num_kv_shared_layers",),
    "layers": ("per_layer_config",),
    "one layer": ("per_layer_config", "0"),
    "latent": ("qk_nope_head_dim",),
    "wide heads": ("global_head_dim",),
    "bits": ("quantization", "bits"),
    "part": ("text_config",),
    "rope": ("rope_parameters",),
    "nested": ("attn_config",),
}
_VALUES: dict[str, str] = {
    "400 digits": "1" + "0" * 400,
    "minus 400 digits": "-1" + "0" * 400,
    "5000 digits": "7" * 5000,
    "1e200": "1e200",
    "1e400": "1e400",
    "tiny": "5e-324",
    "text": '"four"',
    "codes": json.dumps(CODES),
    "list": "[1, 2]",
    "object": '{"a": {"b": []}}',
    "true": "true",
    "NaN": "NaN",
    "Infinity": "-Infinity",
    "half": "2.5",
    "zero": "0",
    "deep": "[" * 500 + "]" * 500,
}


def _config_fields() -> Iterator[Case]:
    """Every number that a config may hold, times everything that it may be instead."""
    for field, path in _FIELDS.items():
        for words, value in _VALUES.items():
            text = _config_with(path, value)
            yield Case(f"config: {field} is {words}", lambda place, text=text: folder(place, config=text.encode()))


def _config_with(path: tuple[str, ...], value: str) -> str:
    config = {**CONFIG}
    mark = "a place for the value"
    if len(path) == 1:
        config[path[0]] = mark
    else:
        rope = {"rope_type": "longrope", "original_max_position_embeddings": 16} if path[0] == "rope_scaling" else {}
        config[path[0]] = {**rope, path[1]: mark}
    if path[-1] == "max_position_embeddings":
        config["rope_scaling"] = {"rope_type": "longrope", "original_max_position_embeddings": 16}
    return json.dumps(config).replace(json.dumps(mark), value)


def _configs() -> Iterator[Case]:
    good = json.dumps(CONFIG).encode()
    texts: dict[str, bytes] = {
        "nothing": b"",
        "deep lists": b"[" * 100_000,
        "deep objects": b'{"a":' * 100_000,
        "deep and closed": b'{"a":' * 990 + b"1" + b"}" * 990,
        "a field that is deep": good[:-1] + b', "x": ' + b"[" * 200 + b"]" * 200 + b"}",
        "a list": b"[1]",
        "a number": b"1",
        "a text": b'"x"',
        "null": b"null",
        "UTF-16": good.decode().encode("utf-16"),
        "UTF-8 with a mark": b"\xef\xbb\xbf" + good,
        "no UTF-8": b'{"model_type": "\xff\xfe"}',
        "NUL": good + b"\0",
        "two objects": good + good,
        "a comma too many": good[:-1] + b",}",
        "codes outside": CODES.encode() + good,
        "a key twice": good[:-1] + b', "num_attention_heads": 3}',
        "a million empty lists": good[:-1] + b', "x": [' + b"[]," * 3_000_000 + b"1]}",
        "a long text": good[:-1] + b', "x": "' + b"\xf0\x9f\x98\x80" * 3_000_000 + b'"}',
        "17 MB of spaces": b" " * (17 * 2**20) + good,
        "a number of a million digits": good[:-1] + b', "x": ' + b"9" * 1_000_000 + b"}",
        "params": b"{}",
    }
    for words, text in texts.items():
        yield Case(f"config: {words}", lambda place, text=text: folder(place, config=text))
    types = {"codes": CODES, "long": "x" * 100_000, "a number": 5, "a list": ["llama"], "an object": {}, "null": None,
             "a lone surrogate": "\ud800", "markup": "[/]", "quotes": "a'b\"c\\"}  # fmt: skip
    for words, kind in types.items():
        yield Case(
            f"model_type: {words}", lambda place, kind=kind: folder(place, config={**CONFIG, "model_type": kind})
        )
    for part in ("text_config", "vision_config"):
        inner = {"model_type": part, part: {**CONFIG, "model_type": CODES}}
        yield Case(f"config: codes in {part}", lambda place, inner=inner: folder(place, config=inner))


# ---- names of tensors


def _tensor_names() -> Iterator[Case]:
    names = {
        "superscript": "layers.²",
        "other digits": "layers.٣",
        "5000 digits": "layers." + "9" * 5000,
        "300 digits": "layers." + "9" * 300,
        "codes": f"layers.{CODES}",
        "escape": "layers.\x1b[31mred",
        "title": "layers.\x1b]0;title\x07",
        "bell": "layers.\a\a\a",
        "new lines": "layers.\n\n\r\nError: all is well",
        "NUL": "layers.\0",
        "C1": "layers.\x9b31m",
        "bidi": "layers.\u202eevil\u202c",
        "separators": "layers.\u2028\u2029\u0085",
        "markup": "layers.[/red][link=http://example.org]x",
        "markup end": "layers.[bold]\\",
        "emoji code": "layers.:bomb:",
        "tags": "layers.<script>alert(1)</script><a href='http://example.org'>x</a>",
        "template": "layers.%{customdata}{0!r}%s",
        "empty": "",
        "dots": "....",
        "many parts": ".".join("a" * 400),
        "600 characters": "a" * 600,
        "a million characters": "a" * 1_000_000,
        "wide": "layers." + "\u6ce8" * 100,
        "combining": "layers.a" + "\u0301" * 200,
        "path": "../../../../etc/passwd",
        "negative": "layers.-1",
        "a lone surrogate": "layers.\ud800",
    }
    for words, name in names.items():
        good = good_tensors()
        tensors = {f"{name}.q_proj.weight": good[WQ], f"{name}.k_proj.weight": good[WK]}
        yield Case(f"name: {words}", lambda place, tensors=tensors: folder(place, tensors))
        strange = {**good, f"{name}.attn.temperature": np.ones(1)}
        yield Case(f"not understood: {words}", lambda place, tensors=strange: folder(place, tensors))
        twisted = {f"{name}.q_proj.weight": good[WQ], f"{name}.k_proj.weight": np.ones((5, 5))}
        yield Case(f"name of another shape: {words}", lambda place, tensors=twisted: folder(place, tensors))
    nested = {f"{'a.' * depth}{part}_proj.weight": np.ones((rows, 4), np.float32)
              for depth in range(60) for part, rows in (("q", 32), ("k", 16))}  # fmt: skip
    yield Case("name: modules inside modules", lambda place: folder(place, nested))


# ---- shapes, types and values


def _tensors() -> Iterator[Case]:
    good = good_tensors()
    shapes: dict[str, Any] = {
        "of another size": np.ones(31),
        "of no size": np.ones(0),
        "of rank 0": np.ones(()),
        "of rank 2": np.ones((32, 1)),
        "of rank 3": np.ones((2, 4, 4)),
        "of integers": np.ones(32, np.int8),
        "of truths": np.ones(32, np.bool_),
        "of float8": ("F8_E4M3", [32], bytes(32)),
        "of 4 bits": ("F4", [32], bytes(16)),
        "of its own kind": ("Q17", [32], bytes(32)),
        "of NaN": np.full(32, np.nan),
        "of 1e300": np.full(32, 1e300),
    }
    for words, tensor in shapes.items():
        bias = {**good, f"{PREFIX}q_proj.bias": tensor}
        yield Case(f"bias {words}", lambda place, tensors=bias: folder(place, tensors))
        key_bias = {**good, f"{PREFIX}k_proj.bias": tensor}
        yield Case(f"bias of keys {words}", lambda place, tensors=key_bias: folder(place, tensors))
        norm = {**good, f"{PREFIX}q_norm.weight": tensor, f"{PREFIX}k_norm.weight": np.ones(8)}
        yield Case(f"norm {words}", lambda place, tensors=norm: folder(place, tensors))
        shift = {**good, f"{PREFIX}q_norm.weight": np.ones(8), f"{PREFIX}k_norm.weight": np.ones(8),
                 f"{PREFIX}k_norm.bias": tensor}  # fmt: skip
        yield Case(f"shift {words}", lambda place, tensors=shift: folder(place, tensors))
        key = {**good, WK: tensor}
        yield Case(f"keys {words}", lambda place, tensors=key: folder(place, tensors))
    for value in (np.nan, np.inf, -np.inf, 1e300, -1e300, 3e38, 1e160, 1e-160, 1e-300, 5e-324, 0.0):
        both = {WQ: np.full((32, 32), value), WK: np.full((16, 32), value)}
        yield Case(f"weights of {value}", lambda place, tensors=both: folder(place, tensors))
        normed = {**both, f"{PREFIX}q_norm.weight": np.ones(8), f"{PREFIX}k_norm.weight": np.ones(8)}
        yield Case(f"normed weights of {value}", lambda place, tensors=normed: folder(place, tensors))
        together = {**good, f"{PREFIX}q_norm.weight": np.full(32, value), f"{PREFIX}k_norm.weight": np.full(16, value)}
        yield Case(f"gains of {value}", lambda place, tensors=together: folder(place, tensors))
        query = good[WQ].astype(np.float64)
        query[9, 3] = value
        yield Case(f"one weight of {value}", lambda place, query=query: folder(place, {**good, WQ: query}))
    yield Case("no columns", lambda place: folder(place, {WQ: np.ones((32, 0)), WK: np.ones((16, 0))}))
    yield Case("no tensors", lambda place: folder(place, {}))
    yield Case("nothing of attention", lambda place: folder(place, {f"a{CODES}": np.ones(3)}))


# ---- headers


def _headers() -> Iterator[Case]:
    header, data = packed(good_tensors())
    text = json.dumps(header).encode()

    def entry(**change: Any) -> dict[str, Any]:
        return {**header, WQ: {**header[WQ], **change}}

    size = 32 * 32 * 4
    lies: dict[str, Any] = {
        "offsets backwards": entry(data_offsets=[size, 0]),
        "offsets negative": entry(data_offsets=[-size, 0]),
        "offsets past the end": entry(data_offsets=[10**9, 10**9 + size]),
        "offsets of 2^63": entry(data_offsets=[2**63, 2**63 + size]),
        "offsets of 400 digits": entry(data_offsets=[0, 10**400]),
        "offsets of halves": entry(data_offsets=[0.0, float(size)]),
        "offsets of truths": entry(data_offsets=[False, True]),
        "offsets of text": entry(data_offsets=["0", str(size)]),
        "one offset": entry(data_offsets=[0]),
        "three offsets": entry(data_offsets=[0, size, size]),
        "no offsets": entry(data_offsets=None),
        "offsets that overlap": {**header, WK: {**header[WK], "data_offsets": [0, 16 * 32 * 4]}},
        "offsets with a hole": {name: fields for name, fields in header.items() if name != WK},
        "shape negative": entry(shape=[-32, -32]),
        "shape too large": entry(shape=[2**62, 2**62]),
        "shape of 400 digits": entry(shape=[10**400, 32]),
        "shape of halves": entry(shape=[32.0, 32]),
        "shape of truths": entry(shape=[True, True]),
        "shape of text": entry(shape="32x32"),
        "shape of lists": entry(shape=[[32], [32]]),
        "shape none": entry(shape=None),
        "shape of rank 1000": entry(shape=[1] * 1000),
        "shape other": entry(shape=[64, 32]),
        "type a number": entry(dtype=5),
        "type unknown": entry(dtype="F31"),
        "type with codes": entry(dtype=CODES),
        "type none": entry(dtype=None),
        "type wider": entry(dtype="F64"),
        "more fields": entry(more=[1, 2, {"x": CODES}]),
        "entry a list": {**header, WQ: [1]},
        "entry none": {**header, WQ: None},
        "metadata a list": {"__metadata__": [1], **header},
        "metadata deep": {"__metadata__": {"a": {"b": 1}}, **header},
        "metadata codes": {"__metadata__": {CODES: CODES}, **header},
        "a list": [header],
        "a text": "header",
        "nothing": {},
    }
    for words, lie in lies.items():
        yield Case(f"header: {words}", lambda place, lie=lie: _with_header(place, lie, data))
    twice = text[:-1] + b"," + json.dumps({WQ: header[WQ]}).encode()[1:]
    raw: dict[str, tuple[bytes, int | None]] = {
        "length 0": (text, 0),
        "length 1": (text, 1),
        "length past the end": (text, 10**6),
        "length 2^63": (text, 2**63),
        "length 2^64 - 1": (text, 2**64 - 1),
        "length 200 MB": (text, 200 * 2**20),
        "length one less": (text, len(text) - 1),
        "length one more": (text, len(text) + 1),
        "spaces before": (b"   " + text, None),
        "spaces after": (text + b" " * 64, None),
        "a name twice": (twice, None),
        "deep": (b'{"a":' * 100_000, None),
        "deep lists": (b"[" * 100_000, None),
        "no UTF-8": (b'{"\xff": 1}', None),
        "codes": (CODES.encode(), None),
        "a pickle": (b"\x80\x04\x95", None),
        "a number of 5000 digits": (text.replace(b"[32, 32]", b"[" + b"9" * 5000 + b", 1]"), None),
        "a million empty lists": (b'{"x": [' + b"[]," * 3_000_000 + b"1]}", None),
        "40 MB": (b"{" + b" " * (40 * 2**20) + b"}", None),
    }
    for words, (lie, length) in raw.items():
        yield Case(f"header: {words}", lambda place, lie=lie, n=length: _with_header(place, lie, data, length=n))
    for cut in (0, 3, 8, 9, 100, len(text) + 8, len(text) + 9, len(text) + 7 + len(data)):
        yield Case(f"file of {cut} bytes", lambda place, cut=cut: _cut(place, cut))
    yield Case("file with more behind it", lambda place: _with_header(place, header, data + b"more"))


def _with_header(place: Path, header: Any, data: bytes, **options: Any) -> None:
    folder(place)
    write(place / "model.safetensors", header, data, **options)


def _cut(place: Path, size: int) -> None:
    folder(place)
    os.truncate(place / "model.safetensors", size)


# ---- indices of shards


def sharded(place: Path, shards: int = 3) -> dict[str, str]:
    """A good model of as many shards; gives its weight_map."""
    places = {}
    for number in range(shards):
        tensors = {name.replace(".0.", f".{number}."): tensor for name, tensor in good_tensors(number).items()}
        file = f"model-{number:05}.safetensors"
        write(place / file, *packed(tensors))
        places |= dict.fromkeys(tensors, file)
    (place / "config.json").write_text(json.dumps(CONFIG))
    (place / INDEX).write_text(json.dumps({"weight_map": places}))
    return places


def _indices() -> Iterator[Case]:
    shard_names: dict[str, Any] = {
        "up": "../outside.safetensors",
        "absolute": "/etc/passwd",
        "device": "/dev/zero",
        "here": ".",
        "parent": "..",
        "empty": "",
        "in a folder": "a/b.safetensors",
        "backslash": "..\\b.safetensors",
        "NUL": "model\0.safetensors",
        "too long": "a" * 5000 + ".safetensors",
        "a million characters": "a" * 1_000_000,
        "codes": f"{CODES}.safetensors",
        "new lines": "a\n\nError: b.safetensors",
        "a lone surrogate": "\ud800.safetensors",
        "a pickle": "model.bin",
        "the index": INDEX,
        "the config": "config.json",
        "a number": 5,
        "a list": ["model-00000.safetensors"],
        "null": None,
        "an object": {},
        "a link to a device": "zero.safetensors",
        "a link to itself": "loop.safetensors",
        "a pipe": "pipe.safetensors",
        "a folder": "folder.safetensors",
        "a link to nowhere": "nowhere.safetensors",
    }
    for words, name in shard_names.items():
        yield Case(f"shard: {words}", lambda place, name=name: _with_shard(place, name))
    texts = {
        "nothing": b"",
        "no JSON": b"not json",
        "a list": b"[]",
        "no weight_map": b"{}",
        "weight_map a list": b'{"weight_map": [1]}',
        "weight_map a number": b'{"weight_map": 1}',
        "weight_map empty": b'{"weight_map": {}}',
        "weight_map null": b'{"weight_map": null}',
        "deep": b'{"weight_map": ' + b"[" * 100_000,
        "deep object": b'{"weight_map":' * 100_000,
        "a name twice": b'{"weight_map": {"a": "model-00000.safetensors", "a": "model-00001.safetensors"}}',
        "another tensor": b'{"weight_map": {"absent \\u001b[31m": "model-00000.safetensors"}}',
        "2000 shards": json.dumps({"weight_map": {f"a{i}": f"{i}.safetensors" for i in range(2000)}}).encode(),
        "40 MB": b'{"weight_map": {' + b" " * (40 * 2**20) + b"}}",
        "400000 tensors": json.dumps(
            {"weight_map": {f"a{i}": "model-00000.safetensors" for i in range(400_000)}}
        ).encode(),
    }
    for words, text in texts.items():
        yield Case(f"index: {words}", lambda place, text=text: _with_index(place, text))
        yield Case(f"index by name: {words}", lambda place, text=text: _with_index(place, text), INDEX)


def _with_shard(place: Path, name: Any) -> None:
    places = sharded(place)
    (place / "zero.safetensors").symlink_to("/dev/zero")
    (place / "loop.safetensors").symlink_to("loop.safetensors")
    (place / "nowhere.safetensors").symlink_to("absent")
    (place / "folder.safetensors").mkdir()
    os.mkfifo(place / "pipe.safetensors")
    (place / INDEX).write_text(json.dumps({"weight_map": {**places, WQ: name}}))


def _with_index(place: Path, text: bytes) -> None:
    sharded(place)
    (place / INDEX).write_bytes(text)


# ---- what stands where a file should


def _places() -> Iterator[Case]:
    for name in ("config.json", "model.safetensors", INDEX):
        for words, put in _KINDS.items():
            yield Case(f"{name} is {words}", lambda place, name=name, put=put: _replaced(place, name, put))
            yield Case(
                f"{name}, named, is {words}", lambda place, name=name, put=put: _replaced(place, name, put), name
            )
    yield Case("a path that is too long", lambda _place: None, "a" * 5000)
    yield Case("a path that is absent", lambda _place: None, "absent")
    yield Case("a path with codes", lambda _place: None, "codes\x1b[31m\x07\n")
    yield Case("an empty folder", lambda _place: None)
    yield Case("a folder with a pickle of a strange name", _strange_pickle)
    yield Case("two files of strange names", _two_strange)


def _pipe(path: Path) -> None:
    os.mkfifo(path)


_KINDS: dict[str, Make] = {
    "a pipe": _pipe,
    "a folder": Path.mkdir,
    "a link to a device": lambda path: path.symlink_to("/dev/zero"),
    "a link to a terminal": lambda path: path.symlink_to("/dev/tty"),
    "a link to itself": lambda path: path.symlink_to(path.name),
    "a link to nowhere": lambda path: path.symlink_to("absent"),
    "a link to the process": lambda path: path.symlink_to("/proc/self/mem"),
    "a gigabyte of nothing": lambda path: (path.touch(), os.truncate(path, 2**30))[0],
}


def _replaced(place: Path, name: str, put: Make) -> None:
    if name == INDEX:
        sharded(place)
    else:
        folder(place)
    (place / name).unlink()
    put(place / name)


def _strange_pickle(place: Path) -> None:
    (place / "\x1b[31mred\n.bin").write_bytes(b"\x80\x04.")


def _two_strange(place: Path) -> None:
    for name in ("\x1b[31mred\n.safetensors", "[bold].safetensors"):
        (place / name).write_bytes(b"")


# ---- sizes


def _sizes() -> Iterator[Case]:
    def huge(heads: int, d_k: int, width: int, layers: int = 1, dtype: str = "F16", **more: Any) -> Make:
        shapes = {}
        for layer in range(layers):
            for part in ("q_proj", "k_proj"):
                shapes[f"model.layers.{layer}.self_attn.{part}.weight"] = (heads * d_k, width)
        config = {"model_type": "llama", "hidden_size": heads * d_k, "num_attention_heads": heads, **more}
        return lambda place: write_sparse(place, shapes, config, dtype)

    yield Case("size: one head 60,000 wide", huge(1, 60_000, 60_000))
    yield Case("size: one head 60,000 wide with one column", huge(1, 60_000, 1))
    yield Case("size: 4,000 heads of 256", huge(4000, 256, 64))
    yield Case("size: 4,000 heads of 256, wide", huge(4000, 256, 100_000))
    yield Case("size: 200 GB in one row", huge(1, 1, 10**11))
    yield Case("size: 200 GB in many rows", huge(1000, 100, 10**6))
    yield Case("size: 20,000 layers", huge(1, 1, 1, layers=20_000))
    yield Case("size: 3,000 layers", huge(1, 1, 1, layers=3000))
    yield Case("size: a million heads", huge(1000, 1, 1, layers=1000))
    yield Case("size: work without end", huge(1000, 1000, 100_000))
    yield Case("size: bytes without end", huge(1000, 1, 10**6, layers=100, dtype="F64"))
    turned = {"h.0.attn.c_attn.weight": (1_000_000, 3000)}
    gpt2 = {"model_type": "gpt2", "n_embd": 1000, "n_head": 1}
    yield Case("size: a turned head", lambda place: write_sparse(place, turned, {**gpt2, "n_head": 4}, "F16"))
    yield Case("size: 300,000 tensors", _many_tensors)
    yield Case("size: 163 shards of 94,001 tensors", _many_in_shards)
    yield Case("size: 2,000 shards", lambda place: sharded(place, 2000) and None)


def write_sparse(place: Path, shapes: Mapping[str, tuple[int, ...]], config: Any, dtype: str = "F16") -> None:
    """Tensors of zeros that take no room on the disk."""
    header, end = {}, 0
    for name, shape in shapes.items():
        start, end = end, end + {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}[dtype] * math.prod(shape)
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [start, end]}
    write(place / "model.safetensors", header, size=end)
    (place / "config.json").write_text(json.dumps(config))


def large(place: Path, name: str = "model.layers.{}.self_attn") -> None:
    """Some minutes of work, within all limits, in a file that takes no room."""
    shapes = {f"{name.format(i)}.{part}_proj.weight": (128 * 128, 16_384) for i in range(8) for part in "qk"}
    write_sparse(place, shapes, {"model_type": "llama", "hidden_size": 128 * 128, "num_attention_heads": 128})


def _many_tensors(place: Path) -> None:
    folder(place, {f"a{number}": ("U8", [0], b"") for number in range(300_000)} | good_tensors())


def _many_in_shards(place: Path) -> None:
    """As a published model has them; all but its first layer are empty."""
    names = [f"model.layers.{expert % 61}.mlp.experts.{expert // 61}.up_proj.weight" for expert in range(94_001 - 3)]
    places = {name: f"model-{number % 163:05}.safetensors" for number, name in enumerate(names)}
    (place / "config.json").write_text(json.dumps(CONFIG))
    for number in range(163):
        inside: dict[str, Any] = dict.fromkeys(names[number::163], ("U8", [0], b""))
        if number == 0:
            inside |= good_tensors()
            places |= dict.fromkeys(good_tensors(), "model-00000.safetensors")
        write(place / f"model-{number:05}.safetensors", *packed(inside))
    (place / INDEX).write_text(json.dumps({"weight_map": places}))


# ---- mutations


def mutated(count: int, seed: int = 0) -> Iterator[Case]:
    """Good checkpoints with a few bytes, or a few values of their JSON, replaced; a name makes always the same case."""
    for number in range(count):
        yield Case(
            f"mutation {seed}.{number}", lambda place, number=number: _mutate(place, random.Random(f"{seed}.{number}"))
        )


def _mutate(place: Path, draw: random.Random) -> None:
    if draw.random() < 0.3:
        sharded(place, 2)
        file = place / draw.choice([INDEX, "config.json", "model-00000.safetensors"])
    else:
        folder(place, good_tensors(layers=2))
        file = place / draw.choice(["config.json", "model.safetensors"])
    whole = file.read_bytes()
    change = draw.choice([_bytes, _cut_or_spliced, _values])
    if file.suffix == ".json":
        file.write_bytes(change(whole, draw))
        return
    length = int.from_bytes(whole[:8], "little")
    header = change(whole[8 : 8 + length], draw)
    said = len(header) if draw.random() < 0.8 else length
    file.write_bytes(said.to_bytes(8, "little") + header + whole[8 + length :])


def _bytes(whole: bytes, draw: random.Random) -> bytes:
    data = bytearray(whole)
    for _ in range(draw.choice([1, 1, 3, 20])):
        data[draw.randrange(len(data))] = draw.choice([draw.randrange(256), 0, 0x1B, 0x22, 0x5B, 0x7B])
    return bytes(data)


def _cut_or_spliced(whole: bytes, draw: random.Random) -> bytes:
    start, end = sorted(draw.randrange(len(whole) + 1) for _ in range(2))
    return draw.choice(
        [whole[:start], whole[:start] + whole[end:], whole[:end] + whole[start:], whole[:start] + b"[" * 2000]
    )


_POOL: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2, 3, 7, 8, 64, 1e200, 1e-200, 0.5, 2**31, 2**64, 10**400,
    float("nan"), float("inf"), "", "x", CODES,
    [], [1], [[]], {}, {"a": 1}, "F8_E4M3", "BF16", "F64", "gpt2", "t5", "falcon", "mpt", "gemma3", "olmo2", "yarn",
)  # fmt: skip


def _values(whole: bytes, draw: random.Random) -> bytes:
    """One or a few values, or keys, of the JSON are others."""
    tree = json.loads(whole)
    for _ in range(draw.choice([1, 1, 2, 4])):
        _change(tree, draw)
    return json.dumps(tree).encode()


def _change(tree: Any, draw: random.Random) -> None:
    inside = tree
    while True:
        keys = list(inside) if isinstance(inside, dict) else list(range(len(inside)))
        if not keys:
            return
        key = draw.choice(keys)
        if isinstance(inside[key], (dict, list)) and inside[key] and draw.random() < 0.85:
            inside = inside[key]
            continue
        if isinstance(inside, dict) and draw.random() < 0.25:
            inside[draw.choice([CODES, "", "model.layers.1.self_attn.k_proj.weight", "head_dim", "²", "a" * 2000])] = (
                inside.pop(key)
            )
        elif draw.random() < 0.15:
            del inside[key]
        else:
            inside[key] = draw.choice(_POOL)
        return
