"""Files of the other formats that lie, overflow, or are broken: GGUF, torch's, npz, ONNX, and packed safetensors."""

import io
import json
import os
import pickle
import random
import struct
import zipfile
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
import torch
from checkpoint_formats import PACKINGS, gguf_file, model, npz, onnx_file, packed_file, torch_file, with_config
from hostile_checkpoints import CODES, Case
from onnx import TensorProto, helper

Make = Callable[[Path], None]


def constructed_formats() -> Iterator[Case]:
    """Every kind of lie that we could think of."""
    yield from _pickles()
    yield from _archives()
    yield from _ggufs()
    yield from _arrays()
    yield from _graphs()
    yield from _names()


def _file(name: str, content: bytes) -> Make:
    def make(place: Path) -> None:
        (place / name).write_bytes(content)
        with_config(place)

    return make


# ---- pickles

_START = b"\x80\x02"
_MAGIC, _VERSION = pickle.dumps(0x1950A86A20F9469CFC6C, 2), pickle.dumps(1001, 2)


def _old(weights: bytes, keys: bytes = pickle.dumps(["0"], 2), data: bytes = b"") -> bytes:
    machine = pickle.dumps({"protocol_version": 1001, "little_endian": True}, 2)
    return _MAGIC + _VERSION + machine + weights + keys + data


def _new(weights: bytes, members: dict[str, bytes] | None = None, method: int = zipfile.ZIP_STORED) -> bytes:
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w", method) as archive:
        archive.writestr("archive/data.pkl", weights)
        for name, content in (members or {"archive/data/0": bytes(64 * 64 * 4)}).items():
            archive.writestr(name, content)
    return held.getvalue()


def _text(text: str) -> bytes:
    raw = text.encode("utf-8", "surrogatepass")
    return b"X" + struct.pack("<I", len(raw)) + raw


def _whole(number: int) -> bytes:
    raw = number.to_bytes((number.bit_length() + 8) // 8, "little", signed=True)
    return b"\x8a" + bytes([len(raw)]) + raw


def _tensor(shape: Any = (64, 64), strides: Any = (64, 1), offset: int = 0, count: int = 4096, key: str = "0",
            kind: str = "FloatStorage") -> bytes:  # fmt: skip
    def counts(numbers: Any) -> bytes:
        return b"(" + b"".join(map(_whole, numbers)) + b"t"

    storage = b"(" + _text("storage") + f"ctorch\n{kind}\n".encode() + _text(key) + _text("cpu") + _whole(count) + b"tQ"
    rest = _whole(offset) + counts(shape) + counts(strides) + b"\x89ccollections\nOrderedDict\n)R"
    return b"ctorch._utils\n_rebuild_tensor_v2\n(" + storage + rest + b"tR"


_WQ, _WK = (f"model.layers.0.self_attn.{part}_proj.weight" for part in "qk")


def _dict(*tensors: bytes) -> bytes:
    names = (_WQ, _WK, "c", "d")
    items = b"".join(_text(name) + tensor for name, tensor in zip(names, tensors, strict=False))
    return _START + b"}(" + items + b"u."


def _pickles() -> Iterator[Case]:
    good = _dict(_tensor(), _tensor((32, 64)))
    call = b"(" + _text("touch exploded") + b"tR"
    programs: dict[str, bytes] = {
        "good": good,
        "os.system": _START + b"cos\nsystem\n" + call + b".",
        "os.system among weights": _START + b"}(" + _text("a") + b"cos\nsystem\n" + call + b"u.",
        "os.system on the stack": b"\x80\x04" + _text("os") + _text("system") + b"\x93" + call + b".",
        "an instance": _START + b"(" + _text("x") + b"ios\nsystem\n.",
        "an object": _START + b"(cos\nsystem\n" + _text("x") + b"o.",
        "an extension": _START + b"\x82\x01.",
        "a great bytearray": _START + b"c__builtin__\nbytearray\n(" + _whole(10**11) + b"tR.",
        "a great bytearray, new": b"\x80\x05\x96" + struct.pack("<Q", 2**62) + b".",
        "a great text": b"\x80\x04\x8d" + struct.pack("<Q", 2**62) + b"x.",
        "a great frame": b"\x80\x04\x95" + struct.pack("<Q", 2**62) + b"N.",
        "a great place of the memo": _START + b"Nr" + struct.pack("<I", 2**32 - 1) + b".",
        "an absent place of the memo": _START + b"j" + struct.pack("<I", 5) + b".",
        "a great number": _START + b"\x8b" + struct.pack("<i", 20 * 2**20) + b"\x01" * (20 * 2**20) + b".",
        "many digits": _START + b"L" + b"9" * 100_000 + b"L\n.",
        "deep tuples": _START + b")" + b"\x85" * 200_000 + b".",
        "deep lists": _START + b"]" * 200_000 + b"a" * 199_999 + b".",
        "many marks": _START + b"(" * 1_000_000 + b".",
        "marks and tuples": _START + b"(" * 500_000 + b"t" * 500_000 + b".",
        "doubled and doubled": _START + b")" + b"q\x00h\x00\x86" * 100 + b".",
        "doubled in a dictionary": _START + b"}(" + _text("a") + b")" + b"q\x00h\x00\x86" * 60 + b"u.",
        "a list of itself": _START + b"]q\x00h\x00a.",
        "a dictionary of itself": _START + b"}q\x00(" + _text("state_dict") + b"h\x00u.",
        "500 dictionaries": _START + (b"}(" + _text("state_dict")) * 500 + b"}" + b"u" * 500 + b".",
        "a key that is a list": _START + b"}(]Nu.",
        "a key that is a tensor": _START + b"}(" + _tensor() + _tensor() + b"u.",
        "keys that are numbers": _START + b"}(" + _whole(10**300) + _tensor() + b"u.",
        "nothing": b"",
        "no end": good[:-1],
        "two ends": good + b".",
        "an empty stack": _START + b".",
        "too many pops": _START + b"0000.",
        "a storage of nothing": _START + b"NQ.",
        "a storage that is text": _START + _text("x") + b"Q.",
        "a call of a number": _START + _whole(3) + b")R.",
        "a state of nothing": _START + b"Nb.",
        "many copies": _START + b"}q\x00(" + b"ccollections\nOrderedDict\nh\x00\x85R" * 100 + b"t.",
        "an OrderedDict with members": _START + b"ccollections\nOrderedDict\n(]](" + _text("a") + b"NeatR.",
        "codes": _dict(_tensor(key=CODES), _tensor()),
        "codes as name": _START + b"c" + CODES.replace("\n", "").encode() + b"\nx\n.",
        "half a pair": _START + b"}(" + _text("\ud800") + _tensor() + b"u.",
        "40 MB": _START + b"N0" * (18 * 2**20) + b".",
    }  # fmt: skip
    tensors: dict[str, dict[str, Any]] = {
        "negative shape": {"shape": (-64, -64)},
        "great shape": {"shape": (2**59, 2**59)},
        "shape of 400 digits": {"shape": (10**75, 64)},
        "17 axes": {"shape": (1,) * 17, "strides": (1,) * 17},
        "axes that differ": {"shape": (64, 64), "strides": (1,)},
        "negative strides": {"strides": (-64, -1)},
        "great strides": {"strides": (2**50, 1)},
        "strides of 0": {"strides": (0, 0)},
        "beyond its storage": {"offset": 1},
        "a great offset": {"offset": 2**59},
        "a negative offset": {"offset": -1},
        "a great storage": {"count": 2**59},
        "a storage of nothing": {"count": 0},
        "an absent storage": {"key": "9"},
        "a storage above": {"key": "../../etc/passwd"},
        "a storage of another type": {"kind": "ComplexFloatStorage"},
        "a storage of an unknown type": {"kind": "StrangeStorage"},
        "wider numbers": {"kind": "DoubleStorage"},
        "bytes": {"kind": "ByteStorage", "count": 16384},
    }
    programs |= {f"tensor of {words}": _dict(_tensor(**lie), _tensor((32, 64))) for words, lie in tensors.items()}
    for words, program in programs.items():
        yield Case(f"pickle: {words}", _file("pytorch_model.bin", _new(program)))
        data = struct.pack("<Q", 4096) + bytes(4096 * 4)
        yield Case(f"old pickle: {words}", _file("pytorch_model.bin", _old(program, data=data)))
    lists = {
        "none": [],
        "twice": ["0", "0"],
        "a text": "0",
        "a number": 10**5000,
        "many": ["0"] * 300_000,
    }
    for words, keys in lists.items():
        data = struct.pack("<Q", 4096) + bytes(16384)
        yield Case(f"old pickle: keys {words}", _file("a.bin", _old(good, pickle.dumps(keys, 2), data)))
    for count in (0, 1, 4095, 2**63):
        data = struct.pack("<Q", count) + bytes(16384)
        yield Case(f"old pickle: a count of {count}", _file("a.bin", _old(good, data=data)))


# ---- archives


def _archives() -> Iterator[Case]:
    good = _new(_dict(_tensor(), _tensor((32, 64))))
    end = good.rindex(b"PK\x05\x06")
    entry = good.index(b"PK\x01\x02")

    def changed(at: int, raw: bytes) -> bytes:
        return good[:at] + raw + good[at + len(raw) :]

    full = b"\xff" * 8
    files = {
        "good": good,
        "compressed": _new(_dict(_tensor()), method=zipfile.ZIP_DEFLATED),
        "a bomb": _new(_START + b"N0" * (10 * 2**20) + b".", method=zipfile.ZIP_DEFLATED),
        "no data.pkl": _new(b"", {"archive/other": b"x"}).replace(b"data.pkl", b"fata.pkl"),
        "big-endian": _new(_dict(_tensor()), {"archive/byteorder": b"big"}),
        "a long byteorder": _new(_dict(_tensor()), {"archive/byteorder": b"x" * 100_000}),
        "many members promised": changed(end + 8, b"\xff\xff\xff\xff"),
        "a list without end": changed(end + 12, b"\xff" * 4),
        "a list at the end of the world": changed(end + 16, b"\xff" * 4),
        "a member past the end": changed(entry + 42, b"\xff\xff\xff\x7f"),
        "a member of 4 GB": changed(entry + 20, full),
        "a name without end": changed(entry + 28, b"\xff\xff"),
        "extra bytes without end": changed(entry + 30, b"\xff\xff"),
        "64 bits that are not there": good[:end] + struct.pack("<4sIQI", b"PK\x06\x07", 0, 2**63, 1) + good[end:],
        "64 bits that point back": good[:end] + struct.pack("<4sIQI", b"PK\x06\x07", 0, 0, 1) + good[end:],
        "a comment": changed(end + 20, b"\xff\xff") + b"x" * 65535,
        "names with codes": _new(_dict(_tensor()), {f"archive/{CODES}".replace("\0", ""): b"x"}),
        "300,000 members": _new(_dict(_tensor()), {f"{number}": b"" for number in range(300_000)}),
    }
    for words, content in files.items():
        yield Case(f"archive: {words}", _file("pytorch_model.bin", content))
    for cut in (4, 30, 100, entry, entry + 10, end, len(good) - 1):
        yield Case(f"archive of {cut} bytes", _file("pytorch_model.bin", good[:cut]))


# ---- GGUF


def _name(text: str | bytes) -> bytes:
    raw = text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
    return struct.pack("<Q", len(raw)) + raw


def _value(value: Any) -> bytes:
    if isinstance(value, bytes):  # as it stands
        return value
    if isinstance(value, str):
        return struct.pack("<I", 8) + _name(value)
    return struct.pack("<If", 6, value) if isinstance(value, float) else struct.pack("<Iq", 11, value)


def _gguf(metadata: dict[str, Any] | None = None, kind: int = 0, shape: tuple[int, ...] = (64, 64), offset: int = 0,
          name: str | bytes = "blk.0.attn_q.weight", **head: Any) -> bytes:  # fmt: skip
    given = {"general.architecture": "llama", "llama.attention.head_count": 4, "llama.embedding_length": 64}
    given |= metadata or {}
    pairs = b"".join(_name(key) + _value(value) for key, value in given.items())
    tensors = b""
    for own, at, sides in ((name, offset, shape), ("blk.0.attn_k.weight", 0, (64, 64))):
        sizes = b"".join(struct.pack("<Q", side) for side in sides)
        tensors += _name(own) + struct.pack("<I", head.get("rank", len(sides))) + sizes + struct.pack("<IQ", kind, at)
    start = struct.pack("<4sIQQ", b"GGUF", head.get("version", 3), head.get("count", 2), head.get("pairs", len(given)))
    whole = start + pairs + tensors
    return whole + bytes(-len(whole) % 32) + bytes(64 * 64 * 4)


def _list(inner: int, count: int, content: bytes) -> bytes:
    return struct.pack("<IIQ", 9, inner, count) + content


def _ggufs() -> Iterator[Case]:
    heads = "llama.attention.head_count"
    files: dict[str, bytes] = {
        "good": _gguf(),
        **{f"version {version}": _gguf(version=version) for version in (0, 1, 4, 2**32 - 1, 3 << 24)},
        **{f"{count} tensors": _gguf(count=count) for count in (0, 1, 3, 300_000, 2**63)},
        **{f"{count} pairs": _gguf(pairs=count) for count in (0, 1, 9, 3_000_000, 2**63)},
        **{f"{rank} axes": _gguf(rank=rank) for rank in (0, 1, 5, 2**31)},
        **{f"type {kind}": _gguf(kind=kind) for kind in (2, 3, 4, 5, 9, 12, 15, 16, 24, 28, 30, 39, 99, 2**31)},
        **{f"shape {shape}": _gguf(shape=shape) for shape in ((0, 64), (2**62, 2**62), (2**63, 1), (63, 64))},
        **{f"blocks of {shape}": _gguf(shape=shape, kind=2) for shape in ((31, 64), (0, 0), (2**40, 64))},
        **{f"offset {offset}": _gguf(offset=offset) for offset in (1, 31, 2**14, 2**63)},
        **{f"alignment {size}": _gguf({"general.alignment": size}) for size in (0, 1, 3, -8, 2**31, 2**62)},
        "alignment a text": _gguf({"general.alignment": "x"}),
        **{f"architecture {words}": _gguf({"general.architecture": value})
           for words, value in {"number": 5, "codes": CODES, "long": "x" * 100_000, "empty": ""}.items()},
        **{f"heads {value!r:.20}": _gguf({heads: value}) for value in (0, -1, 3, 2**40, 0.5, "four", float("nan"))},
        "heads a list": _gguf({heads: _list(4, 3, struct.pack("<3I", 4, 4, 4))}),
        "heads an empty list": _gguf({heads: _list(4, 0, b"")}),
        "heads a list of texts": _gguf({heads: _list(8, 1, _name("x"))}),
        "a list of lists": _gguf({"a": _list(9, 1, _list(4, 0, b""))}),
        "a list without end": _gguf({"a": _list(4, 2**62, b"")}),
        "a list of texts without end": _gguf({"a": _list(8, 2**62, b"")}),
        "a list of empty texts": _gguf({"a": _list(8, 3_000_000, bytes(8 * 3_000_000))}),
        "a list of an unknown type": _gguf({"a": _list(77, 1, b"")}),
        "an unknown type": _gguf({"a": struct.pack("<I", 77)}),
        "a great list of numbers": _gguf({"a": _list(4, 10_000_000, bytes(4 * 10_000_000))}),
        "a great list of great numbers": _gguf({"a": _list(10, 10_000_000, bytes(8 * 10_000_000))}),
        "a key that is no UTF-8": _gguf().replace(b"general", b"g\xffneral"),
        "a text of 2^63": _gguf().replace(struct.pack("<Q", 20), struct.pack("<Q", 2**63)),
        "a scale of infinity": _gguf({"llama.attention.scale": float("inf")}),
        "a scale of 0": _gguf({"llama.attention.scale": 0.0}),
        "layers a list": _gguf({"llama.block_count": _list(4, 2, struct.pack("<2I", 1, 1))}),
        "rope": _gguf({"llama.rope.scaling.type": "yarn", "llama.rope.scaling.factor": 1e38}),
        "rope of nothing": _gguf({"llama.rope.scaling.type": "yarn", "llama.rope.scaling.factor": -1.0}),
        "a name twice": _gguf(name="blk.0.attn_k.weight"),
        "a name with codes": _gguf(name=f"blk.0.attn_{CODES}.weight"),
        "a name of 100,000": _gguf(name="a" * 100_000),
        "a name of many parts": _gguf(name="a." * 400),
        "27B without heads": _gguf({"general.architecture": "gemma2", "gemma2.block_count": 46,
                                    "gemma2.attention.head_count": 0, "gemma2.embedding_length": 64}),
    }  # fmt: skip
    for words, content in files.items():
        yield Case(f"GGUF: {words}", _file("m.gguf", content))
    for cut in (0, 3, 4, 8, 23, 24, 60, 200, 300, len(_gguf()) - 1):
        yield Case(f"GGUF of {cut} bytes", _file("m.gguf", _gguf()[:cut]))
    for words, put in _PUT.items():
        yield Case(f"m.gguf is {words}", lambda place, put=put: put(place / "m.gguf"))
        yield Case(f"m.gguf, named, is {words}", lambda place, put=put: put(place / "m.gguf"), "m.gguf")


def _sparse(path: Path) -> None:
    path.write_bytes(b"GGUF")
    os.truncate(path, 2**40)


_PUT: dict[str, Make] = {
    "a device": lambda path: path.symlink_to("/dev/zero"),
    "a pipe": os.mkfifo,
    "a folder": Path.mkdir,
    "a terabyte": _sparse,
}


# ---- arrays of numpy


def _npy(header: str | bytes, data: bytes = bytes(64 * 64 * 4), version: int = 1) -> bytes:
    raw = header if isinstance(header, bytes) else header.encode()
    size = struct.pack("<H" if version == 1 else "<I", len(raw))
    return b"\x93NUMPY" + bytes([version, 0]) + size + raw + data


def _arrays() -> Iterator[Case]:
    said = "{{'descr': {}, 'fortran_order': {}, 'shape': {}}}"
    headers: dict[str, bytes] = {
        "good": _npy(said.format("'<f4'", "False", "(64, 64)")),
        "code": _npy("__import__('os').system('touch exploded')"),
        "an object": _npy(said.format("'|O'", "False", "(64, 64)")),
        "a strange type": _npy(said.format(repr("\x1b[31m"), "False", "(64, 64)")),
        "a record": _npy(said.format("[('a', '<f4')]", "False", "(64, 64)")),
        "a great shape": _npy(said.format("'<f4'", "False", f"({2**62}, {2**62})")),
        "a negative shape": _npy(said.format("'<f4'", "False", "(-64, -64)")),
        "a shape of truths": _npy(said.format("'<f4'", "False", "(True, 4096)")),
        "a shape of halves": _npy(said.format("'<f4'", "False", "(64.0, 64)")),
        "a list as shape": _npy(said.format("'<f4'", "False", "[64, 64]")),
        "a thousand axes": _npy(said.format("'<f4'", "False", f"({'1,' * 1000})")),
        "another order": _npy(said.format("'<f4'", "'x'", "(64, 64)")),
        "deep": _npy("(" * 3000),
        "deep and closed": _npy("[" * 1500 + "]" * 1500),
        "digits": _npy("9" * 4000),
        "nothing": _npy(""),
        "a header without end": b"\x93NUMPY\x02\x00\xff\xff\xff\xff",
        "a header of 60,000": _npy(" " * 60_000),
        "version 9": _npy(said.format("'<f4'", "False", "(64, 64)"), version=9),
        "big-endian": _npy(said.format("'>f4'", "False", "(64, 64)")),
        "short": b"\x93NU",
    }
    for words, header in headers.items():
        held = io.BytesIO()
        with zipfile.ZipFile(held, "w") as archive:
            for name in (_WQ, _WQ.replace("q_proj", "v_proj")):
                archive.writestr(f"{name}.npy", header)
            archive.writestr(f"{_WK}.npy", _npy(said.format("'<f4'", "False", "(32, 64)"), bytes(32 * 64 * 4)))
        yield Case(f"npz: {words}", _file("weights.npz", held.getvalue()))


# ---- graphs


def _node(kind: str, given: Any, made: Any, **options: Any) -> Any:
    return helper.make_node(kind, list(given), list(made), **options)


def _graph(nodes: list[Any], held: list[Any] | None = None) -> bytes:
    graph = helper.make_graph(nodes, "g", [], [], held or [])
    return bytes(helper.make_model(graph).SerializeToString())


def _graphs() -> Iterator[Case]:
    weight = onnx.numpy_helper.from_array(np.ones((64, 64), np.float32), "w")
    soft = _node("Softmax", ["a0"], ["p"])
    product = _node("MatMul", ["q", "k"], ["a0"])

    def outside(**said: str) -> bytes:
        tensor = TensorProto(name="w", data_type=1, dims=[64, 64], data_location=1)
        for key, value in said.items():
            tensor.external_data.add(key=key, value=value)
        return _graph([soft, product], [tensor])

    chain = [_node("Add", [f"a{n + 1}", f"a{n + 1}"], [f"a{n}"]) for n in range(300)]
    long = [_node("Cast", [f"a{n + 1}"], [f"a{n}"], to=1) for n in range(30_000)]
    doubled = [_node("Add", [f"q{n + 1}", f"q{n + 1}"], [f"q{n}"]) for n in range(60)]
    inner = helper.make_graph([soft], "inner", [], [])
    for _ in range(12):
        inner = helper.make_graph([_node("If", ["x"], ["y"], then_branch=inner)], "inner", [], [])
    codes = [_node("Softmax", [CODES], [CODES]), _node("MatMul", ["w", "w"], [CODES])]

    def raw(kind: int, dims: list[int]) -> bytes:
        return _graph([soft, product], [TensorProto(name="w", data_type=kind, dims=dims, raw_data=b"x" * 16)])

    def cut(*nodes: Any, **held: Any) -> bytes:
        """Queries and keys that are parts of one projection."""
        fused = onnx.numpy_helper.from_array(np.ones((64, 48), np.float32), "all")
        whole = [fused, *(onnx.numpy_helper.from_array(np.array(numbers), name) for name, numbers in held.items())]
        return _graph([soft, product, _node("MatMul", ["x", "all"], ["f"]), *nodes], whole)

    eight, scale = (onnx.numpy_helper.from_array(numbers, name) for name, numbers in
                    (("e", np.ones((64, 64), np.int8)), ("s", np.float32(1))))  # fmt: skip
    size = 3 * 2**20
    text = b"\x3a" + _varint(size + 9) + b"\x0a" + _varint(size + 4) + b"\x0a" + _varint(size) + b"x" * size
    shapes = {"negative": [-64, -64], "great": [2**62, 2**62], "of 17 axes": [1] * 17, "of nothing": [0, 64]}
    files: dict[str, bytes] = {
        "nothing": b"",
        "an empty model": onnx.ModelProto().SerializeToString(),
        "an empty graph": _graph([]),
        "a softmax alone": _graph([soft]),
        "a softmax of nothing": _graph([_node("Softmax", [], [])]),
        "a product of nothing": _graph([soft, _node("MatMul", ["q"], ["a0"])]),
        "a circle": _graph([_node("Softmax", ["a"], ["p"]), _node("Add", ["a", "b"], ["a"])]),
        "a circle of two": _graph([soft, _node("Add", ["b"], ["a0"]), _node("Add", ["a0"], ["b"])]),
        "doubled and doubled": _graph([soft, *chain]),
        "doubled queries": _graph([soft, _node("MatMul", ["q0", "q0"], ["a0"]), *doubled]),
        "a long chain": _graph([soft, *long]),
        "many softmaxes": _graph([*(_node("Softmax", ["a0"], [f"p{n}"]) for n in range(5_000)), *chain]),
        "graphs in graphs": _graph([_node("If", ["x"], ["y"], then_branch=inner)]),
        "names with codes": _graph(codes, [weight]),
        "a scale of 0": _graph([soft, _node("Div", ["m", "z"], ["a0"]), _node("MatMul", ["q", "k"], ["m"])],
                               [onnx.numpy_helper.from_array(np.float32(0), "z")]),
        "fused heads of 0": _graph([_node("MultiHeadAttention", ["q", "k"], ["p"], num_heads=0)]),
        "fused heads": _graph([_node("MultiHeadAttention", ["q", "q"], ["p"], num_heads=2**40, scale=-1.0),
                               _node("MatMul", ["x", "w"], ["q"])], [weight]),
        "a split in a number": cut(_node("Split", ["f"], ["q", "k"], split=5)),
        "a split in a tensor": cut(_node("Split", ["f"], ["q", "k"], split=weight)),
        "a split in fewer parts": cut(_node("Split", ["f"], ["q", "k"], split=[48])),
        "a split in more parts": cut(_node("Split", ["f"], ["q", "k"], split=[16, 16, 16])),
        "axes in a number": cut(_node("Reshape", ["f", "five"], ["r"]), _node("Transpose", ["r"], ["q"], perm=2),
                                _node("Identity", ["q"], ["k"]), five=[0, 0, 3, 2, 8]),
        "bounds in numbers": cut(_node("Slice", ["f"], ["q"], starts=0, ends=16, axes=2),
                                 _node("Slice", ["f"], ["k"], starts=16, ends=32, axes=2)),
        "a scale of eight bits too many": _graph(
            [soft, _node("MatMul", ["x", "d"], ["a"]), _node("MatMul", ["a", "a"], ["a0"]),
             _node("DequantizeLinear", ["e", "s", "s", "s", "s"], ["d"])], [eight, scale]),
        "a file above": outside(location="../../etc/passwd"),
        "an absolute file": outside(location="/etc/passwd"),
        "an absent file": outside(location="absent"),
        "no file": outside(length="5"),
        "itself": outside(location="model.onnx", offset="0", length="16384"),
        "a negative offset": outside(location="model.onnx", offset="-5"),
        "a great offset": outside(location="model.onnx", offset="9" * 30),
        "an offset of 5000 digits": outside(location="model.onnx", offset="9" * 5000),
        "an offset in words": outside(location="model.onnx", offset="five"),
        "a name with codes": outside(location=CODES),
        "a name of 100,000": outside(location="x" * 100_000),
        **{f"a shape {words}": raw(1, dims) for words, dims in shapes.items()},
        **{f"type {kind}": raw(kind, [4]) for kind in (0, 8, 14, 99, 2**31 - 1)},
        "a number without end": b"\x08" + b"\xff" * 100,
        "a length without end": b"\x3a" + b"\xff" * 9 + b"\x01" + b"x" * 100,
        "an unknown kind of field": b"\x3b\x00",
        "a great text": text,
        "many fields": b"\x3a" + _varint(1_000_000) + b"\x08\x01" * 500_000,
        "very many fields": b"\x08\x01" * 3_000_000,
    }  # fmt: skip
    for words, content in files.items():
        yield Case(f"ONNX: {words}", _file("model.onnx", content))
    yield Case("ONNX: a device beside it", _device)
    yield Case("ONNX: the file beside it is absent", lambda place: _beside(place).unlink())
    yield Case("ONNX: the file beside it is cut", lambda place: os.truncate(_beside(place), 100))


def _varint(number: int) -> bytes:
    data = b""
    while number > 127:
        data, number = data + bytes([number & 127 | 128]), number >> 7
    return data + bytes([number])


def _beside(place: Path) -> Path:
    onnx_file(place / "model.onnx", model(), "outside")
    return place / "model.onnx.data"


def _device(place: Path) -> None:
    file = _beside(place)
    file.unlink()
    file.symlink_to("/dev/zero")


# ---- one kind with the name of another


def _names() -> Iterator[Case]:
    for kind, content in good_files().items():
        for suffix in (".safetensors", ".gguf", ".bin", ".npz", ".onnx", ".h5", ".json", ""):
            yield Case(f"{kind} as {suffix or 'nothing'}", _file(f"model{suffix}", content), f"model{suffix}")
    others = {"LFS": b"version https://git-lfs.github.com/spec/v1\n", "a page": b"<!DOCTYPE html>", "zip": b"PK\3\4"}
    others |= {"HDF5": b"\x89HDF\r\n\x1a\n", "text": CODES.encode()}
    for words, content in others.items():
        for suffix in (".safetensors", ".gguf", ".bin", ".npz", ".onnx"):
            yield Case(f"{words} as {suffix}", _file(f"model{suffix}", content))


# ---- mutations


@cache
def good_files() -> dict[str, bytes]:
    """A small good file of every kind, by its name."""
    with TemporaryDirectory() as folder:
        place = Path(folder)
        torch_file(place, model(), "new.bin")
        torch_file(place, model(), "old.bin", old=True)
        npz(place, model()).joinpath("weights.npz").rename(place / "weights.npz")
        gguf_file(place / "plain.gguf", model())
        gguf_file(place / "few.gguf", model(), "Q4_1")
        for style in ("plain", "integers", "branch"):
            onnx_file(place / f"{style}.onnx", model(), style)
        for packing in PACKINGS:
            packed_file(place, model(), packing)
            (place / "model.safetensors").rename(place / f"{packing}.safetensors")
        torch.save({"state_dict": {"a": torch.zeros(3)}, "epoch": 1}, place / "trainer.bin")
        return {path.name: path.read_bytes() for path in sorted(place.iterdir()) if path.suffix != ".json"}


def mutated_formats(count: int, seed: int = 0) -> Iterator[Case]:
    """Good files with a few bytes replaced, cut or repeated; a name makes always the same case."""
    for number in range(count):
        yield Case(f"mutation {seed}.{number}", partial(_mutate, seed=f"formats {seed}.{number}"))


def _mutate(place: Path, seed: str) -> None:
    draw = random.Random(seed)
    name = draw.choice(list(good_files()))
    whole = bytearray(good_files()[name])
    # Where a format keeps what it says of itself: at the beginning, and of archives at the end.
    ends = [(0, min(4000, len(whole)))]
    if name.endswith((".bin", ".npz")):
        ends.append((max(0, len(whole) - 3000), len(whole)))
    for _ in range(draw.choice([1, 1, 2, 8, 40])):
        start, end = draw.choice(ends)
        at = draw.randrange(start, max(start + 1, min(end, len(whole))))
        change = draw.random()
        if change < 0.7:
            whole[at : at + 1] = bytes([draw.choice([draw.randrange(256), 0, 1, 127, 128, 255, whole[at] ^ 1])])
        elif change < 0.8:
            whole[at : at + 8] = draw.choice([b"\xff" * 8, bytes(8), b"\x00" * 7 + b"\x80", b"\x01" + bytes(7)])
        elif change < 0.9:
            del whole[at : at + draw.choice([1, 4, 100])]
        else:
            whole[at:at] = whole[at : at + draw.choice([1, 4, 100])]
        if not whole:
            break
    (place / name).write_bytes(bytes(whole))
    quantization = {"quantization": {"group_size": 32, "bits": draw.choice([4, 4, 8, 3, 0])}}
    (place / "config.json").write_text(json.dumps({"model_type": "llama", "hidden_size": 64, "num_attention_heads": 4,
                                                   "num_key_value_heads": 2, **quantization}))  # fmt: skip
