"""pytorch_model.bin and its like: what torch.save wrote, read without unpickling.

A pickle is a program that builds objects by calling what it names. Here its instructions are followed over plain
values alone: a class or a function that a list of weights needs becomes a description, nothing that the file names is
imported or called, and a name that weights do not need ends the reading. Tensors are then read in place, in an archive
as torch writes today and in the older form, where numbers follow the pickles.
"""

import math
import pickletools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from io import BytesIO
from itertools import islice
from typing import Any

import numpy as np

from rootdk.audit.limits import LARGEST_INDEX, MOST_RANK, MOST_TENSORS, came
from rootdk.files import MOST_VALUES, shown_text

from .archives import Span, members_of
from .stored import NUMPY, Contents, NotReadError, NotThisError, Plain, Source, Stored, check_name

# The first pickle of the older form: a number that marks it.
_MAGIC = 0x1950A86A20F9469CFC6C
_STORAGES = {
    "DoubleStorage": "F64",
    "FloatStorage": "F32",
    "HalfStorage": "F16",
    "BFloat16Storage": "BF16",
    "LongStorage": "I64",
    "IntStorage": "I32",
    "ShortStorage": "I16",
    "CharStorage": "I8",
    "ByteStorage": "U8",
    "BoolStorage": "BOOL",
    "Float8_e4m3fnStorage": "F8_E4M3",
    "Float8_e5m2Storage": "F8_E5M2",
}
# Names in a list of weights other than storages: they are recognised, never called.
_REBUILD = frozenset({"torch._utils _rebuild_tensor_v2", "torch._utils _rebuild_tensor"})
_PARAMETER = frozenset({"torch._utils _rebuild_parameter", "torch.nn.parameter Parameter"})
_INERT = _REBUILD | _PARAMETER | {
    *("collections OrderedDict", "torch Size", "torch device", "argparse Namespace", "builtins set", "__builtin__ set"),
    *("numpy dtype", "numpy.core.multiarray scalar", "numpy._core.multiarray scalar", "_codecs encode"),
    *(f"torch {kind}" for kind in ("float64", "float32", "float16", "bfloat16", "int64", "int32", "int8", "uint8")),
    "torch bool",
}  # fmt: skip
# The keys under which trainers save the weights.
_WEIGHTS = ("state_dict", "model_state_dict", "model", "module")


class ForeignError(NotReadError):
    """A pickle that is more than weights."""


@dataclass(frozen=True, slots=True)
class _Name:
    """A class or function, by its name; it is never imported."""

    path: str


@dataclass(frozen=True, slots=True)
class _Storage:
    key: str
    dtype: str
    count: int


@dataclass(frozen=True, slots=True)
class _Tensor:
    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def read_torch_archive(source: Source) -> Contents:
    """A file of torch.save from torch 1.6 on: data.pkl, and one member for each storage."""
    members, length = members_of(source)
    place = next((name for name in members if name.endswith("/data.pkl") or name == "data.pkl"), None)
    if place is None:
        raise NotReadError("it is an archive without the data.pkl of torch; unpack it first")
    root, (start, size) = place.removesuffix("data.pkl"), members[place]
    order = members.get(f"{root}byteorder")
    if order is not None and bytes(source.read(order[0], min(order[1], 16))) != b"little":
        raise NotReadError("its numbers are big-endian")
    if size > LARGEST_INDEX:
        raise NotThisError(f"its data.pkl has {size} bytes, more than {LARGEST_INDEX}")
    value, _ = _follow(bytes(source.read(start, size)))
    data = f"{root}data/"
    storages = {name.removeprefix(data): span for name, span in members.items() if name.startswith(data)}
    return Contents(_tensors(source, value, storages), length + size, _config(value))


def read_old_torch(source: Source) -> Contents:
    """The older form: five pickles, then every storage as a count of 8 bytes and its numbers."""
    head = bytes(source.read(0, min(source.size, LARGEST_INDEX)))
    magic, at = _follow(head)
    if magic != _MAGIC:
        raise ForeignError("a pickle that torch.save did not write")
    values = []
    for _ in range(4):  # version, machine, weights, keys of storages
        value, used = _follow(head[at:])
        values.append(value)
        at += used
    keys = values[3]
    _named(values[2])
    if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys) or len(keys) > MOST_TENSORS:
        raise NotThisError(f"its storages must be a list of texts, got {type(keys).__name__}")
    if isinstance(values[1], dict) and values[1].get("little_endian") is False:
        raise NotReadError("its numbers are big-endian")
    described = {tensor.storage.key: tensor.storage for tensor in _all_tensors(values[2])}
    storages: dict[str, Span] = {}
    for key in keys:
        storage = described.get(key)
        if storage is None or storage.dtype not in NUMPY:
            raise NotThisError(f"the storage {shown_text(key, 40)} belongs to no tensor")
        size = storage.count * np.dtype(NUMPY[storage.dtype]).itemsize
        if at + 8 + size > source.size or int.from_bytes(source.read(at, 8), "little") != storage.count:
            raise NotThisError(f"the storage {shown_text(key, 40)} should have {came(size)} bytes at byte {at + 8}")
        storages[key] = (at + 8, size)
        at += 8 + size
    return Contents(_tensors(source, values[2], storages), at)


def _tensors(source: Source, value: Any, storages: Mapping[str, Span]) -> dict[str, Stored]:
    """Every tensor with its place in the file; one stored neither by rows nor by columns is not read."""
    stored: dict[str, Stored] = {}
    for name, tensor in _named(value).items():
        check_name(name)
        key = tensor.storage.key
        if key not in storages:
            raise NotThisError(f"the storage {shown_text(key, 40)} is missing")
        start, size = storages[key]
        dtype, shape = tensor.storage.dtype, tensor.shape
        itemsize = np.dtype(NUMPY[dtype]).itemsize if dtype in NUMPY else 1
        last = sum((side - 1) * stride for side, stride in zip(shape, tensor.strides, strict=True))
        if math.prod(shape) and (tensor.offset + last + 1) * itemsize > size:
            raise NotThisError(f"{shown_text(name)} goes beyond its storage of {size} bytes")
        steps = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
        by_columns = len(shape) == 2 and tensor.strides == (1, shape[0])
        by_rows = all(
            side == 1 or stride == step for side, stride, step in zip(shape, tensor.strides, steps, strict=True)
        )
        if not by_rows and not by_columns:
            dtype = f"{dtype} with gaps"
        stored[name] = Plain(source, dtype, shape, start + tensor.offset * itemsize, by_columns and not by_rows)
    return stored


def _named(value: Any) -> dict[str, _Tensor]:
    """The tensors of a state dictionary, or of the one inside what a trainer saved."""
    for _ in range(4):
        if not isinstance(value, dict):
            break
        tensors = {name: tensor for name, tensor in value.items() if isinstance(tensor, _Tensor)}
        if tensors:
            return {name: tensor for name, tensor in tensors.items() if isinstance(name, str)}
        value = next((value[name] for name in _WEIGHTS if isinstance(value.get(name), dict)), None)
    raise ForeignError("a pickle without a dictionary of tensors")


def _config(value: Any) -> dict[str, Any] | None:
    """The config that Whisper as first published stores beside its weights, in the names of transformers."""
    dims = value.get("dims") if isinstance(value, dict) else None
    names = {
        "n_audio_state": "d_model",
        "n_audio_head": "encoder_attention_heads",
        "n_text_head": "decoder_attention_heads",
    }
    if not isinstance(dims, dict) or not all(isinstance(dims.get(name), int) for name in names):
        return None
    return {"model_type": "whisper", **{ours: dims[theirs] for theirs, ours in names.items()}}


def _all_tensors(value: Any) -> Iterator[_Tensor]:
    """Every tensor at any depth; a shared object is visited once."""
    waiting, known = [value], set()
    while waiting:
        value = waiting.pop()
        if isinstance(value, _Tensor):
            yield value
        elif isinstance(value, (dict, list, tuple)) and id(value) not in known:
            known.add(id(value))
            waiting += value.values() if isinstance(value, dict) else value


# ---- the instructions of a pickle

_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_EMPTY: dict[str, Callable[[], Any]] = {"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple, "EMPTY_SET": list}
_VALUES = frozenset(
    [
        *("BININT", "BININT1", "BININT2", "LONG1", "LONG4", "INT", "LONG", "BINFLOAT", "FLOAT", "BINUNICODE"),
        *("SHORT_BINUNICODE", "BINUNICODE8", "UNICODE", "BINBYTES", "SHORT_BINBYTES", "BINSTRING", "SHORT_BINSTRING"),
        "STRING",
    ]
)


def _follow(text: bytes) -> tuple[Any, int]:
    """The value that a pickle would build, of plain values and descriptions, and the bytes that it takes."""
    stack: list[Any] = []
    marks: list[int] = []  # the height of the stack at each mark
    memo: dict[int, Any] = {}
    try:
        for step, argument, at in islice(pickletools.genops(BytesIO(text)), 2 * MOST_VALUES):
            name = step.name
            if name == "STOP":
                return stack.pop(), (at or 0) + 1
            if name in _VALUES:
                stack.append(argument)
            elif name in _CONSTANTS:
                stack.append(_CONSTANTS[name])
            elif name in _EMPTY:
                stack.append(_EMPTY[name]())
            elif name == "MARK":
                marks.append(len(stack))
            elif name in ("BINPUT", "LONG_BINPUT", "PUT"):
                memo[int(argument or 0)] = stack[-1]
            elif name == "MEMOIZE":
                memo[len(memo)] = stack[-1]
            elif name in ("BINGET", "LONG_BINGET", "GET"):
                stack.append(memo[int(argument or 0)])
            elif name in ("PROTO", "FRAME"):
                pass
            else:
                _build(name, argument, stack, marks)
    except NotThisError:
        raise
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise NotThisError(f"a pickle that breaks off ({type(error).__name__})") from None
    raise NotThisError("a pickle without an end, or of more steps than weights take")


def _build(name: str, argument: Any, stack: list[Any], marks: list[int]) -> None:
    """The instructions that put values together."""
    if name in ("TUPLE", "LIST", "DICT", "SETITEMS", "APPENDS", "ADDITEMS", "FROZENSET"):
        at = marks.pop()
        items = stack[at:]
        del stack[at:]
        if name == "SETITEMS":
            _checked(stack[-1], dict).update(zip(items[::2], items[1::2], strict=True))
        elif name in ("APPENDS", "ADDITEMS"):
            _checked(stack[-1], list).extend(items)
        elif name == "DICT":
            stack.append(dict(zip(items[::2], items[1::2], strict=True)))
        else:
            stack.append(tuple(items) if name == "TUPLE" else items)
    elif name in ("TUPLE1", "TUPLE2", "TUPLE3"):
        count = int(name[-1])
        stack[-count:] = [tuple(stack[-count:])]
    elif name == "SETITEM":
        value, key = stack.pop(), stack.pop()
        _checked(stack[-1], dict)[key] = value
    elif name == "APPEND":
        value = stack.pop()
        _checked(stack[-1], list).append(value)
    elif name in ("GLOBAL", "STACK_GLOBAL"):
        if name == "STACK_GLOBAL":
            second, first = stack.pop(), stack.pop()
            argument = f"{first} {second}"
        stack.append(_known(argument))
    elif name == "BINPERSID":
        stack.append(_storage(stack.pop()))
    elif name in ("REDUCE", "NEWOBJ"):
        arguments, called = stack.pop(), stack.pop()
        stack.append(_called(called, arguments))
    elif name in ("BUILD", "POP"):
        stack.pop()  # to build is to set the state of an object: attributes of a dictionary, or of what is not made
    else:
        raise ForeignError(f"a pickle with a step that weights do not need ({name})")


def _checked(value: Any, kind: type) -> Any:
    if not isinstance(value, kind):
        raise TypeError
    return value


def _known(path: str) -> _Name:
    """A name of the file, if weights need it."""
    module, _, last = path.partition(" ")
    if path in _INERT or (module == "torch" and last.endswith("Storage")):
        return _Name(path)
    raise ForeignError(f"a pickle that would call {shown_text(path.replace(' ', '.'), 80)}")


def _storage(given: Any) -> _Storage:
    """("storage", class, key, device, count), as torch writes it; the older form has one more for views."""
    if not (isinstance(given, tuple) and len(given) in (5, 6) and given[0] == "storage"):
        raise TypeError
    _, kind, key, _, count = given[:5]
    if not isinstance(kind, _Name) or type(key) is not str or type(count) is not int or not 0 <= count < 2**60:
        raise TypeError
    if len(given) == 6 and given[5] is not None:
        raise NotThisError("a storage that is a part of another")
    last = kind.path.partition(" ")[2]
    return _Storage(key, _STORAGES.get(last, shown_text(last, 40)), count)


def _called(called: Any, arguments: Any) -> Any:
    """What stands for the result of a call, which is never made: a value, a description, or None for other objects."""
    if not isinstance(called, _Name) or not isinstance(arguments, tuple):
        raise TypeError
    if called.path in _REBUILD:
        storage, offset, shape, strides = arguments[:4]
        if not isinstance(storage, _Storage) or len(shape) != len(strides) or len(shape) > MOST_RANK:
            raise TypeError
        if not all(type(count) is int and 0 <= count < 2**60 for count in (offset, *shape, *strides)):
            raise TypeError
        return _Tensor(storage, offset, tuple(shape), tuple(strides))
    if called.path in _PARAMETER:
        return arguments[0]
    if called.path == "collections OrderedDict":
        if arguments not in ((), ([],)):
            raise TypeError  # its members follow, as steps
        return {}
    if called.path == "torch Size" and isinstance(arguments[0], tuple):
        return arguments[0]
    return None
