"""Zip archives as torch.save and mx.savez write them: members that are stored, not compressed, and read in place.

The list of members is read here, because zipfile trusts any size that the list claims.
"""

import ast
import math
import struct
from typing import TypeAlias

import numpy as np

from rootdk.audit.limits import LARGEST_INDEX, MOST_RANK, MOST_TENSORS, came
from rootdk.files import shown_text

from .stored import NUMPY, Contents, NotReadError, NotThisError, Plain, Source, check_name

_END = struct.Struct("<4s4H2IH")  # the record about the list, at the end of the file
_END_64 = struct.Struct("<4sQ2H2I4Q")
_LOCATOR = struct.Struct("<4sIQI")
_ENTRY = struct.Struct("<4s6H3I5H2I")
_LOCAL = struct.Struct("<4s5H3I2H")
_FULL = 0xFFFFFFFF
_LARGEST_NPY_HEADER = 4096
# Where bytes begin, and how many they are.
Span: TypeAlias = tuple[int, int]


def members_of(source: Source) -> tuple[dict[str, Span], int]:
    """All members by name, and how many bytes their list has. A compressed member is an error."""
    count, length, start = _list_of(source)
    if count > MOST_TENSORS + 64 or length > LARGEST_INDEX or start + length > source.size:
        raise NotThisError(f"its list of {count} members has {length} bytes at byte {start}")
    raw, at, members = bytes(source.read(start, length)), 0, {}
    for _ in range(count):
        if at + _ENTRY.size > length or raw[at : at + 4] != b"PK\x01\x02":
            raise NotThisError(f"its list of members breaks off at byte {start + at}")
        fields = _ENTRY.unpack_from(raw, at)
        method, packed, size, place = fields[4], fields[8], fields[9], fields[16]
        name_size, extra_size, comment_size = fields[10:13]
        at += _ENTRY.size
        name = raw[at : at + name_size].decode("utf-8", "replace")
        extra = raw[at + name_size : at + name_size + extra_size]
        packed, size, place = _long(extra, packed, size, place)
        if method != 0 or packed != size:
            raise NotReadError(_compressed(name))
        if name in members:
            raise NotThisError(f"{shown_text(name)} comes twice")
        members[name] = _member(source, name, place, size)
        at += name_size + extra_size + comment_size
    return members, length


def _compressed(name: str) -> str:
    """The error for a compressed member: what the archive is, and what to give instead."""
    if name.endswith(".npy"):
        return "its arrays are compressed: write it again with numpy.savez, which does not compress"
    if "code/" in name or "/.data/" in name:
        return (
            "it is a program with its weights (torch.jit.save, torch.package) and not weights alone; where you trust "
            "it, load it and save them: safetensors.torch.save_file(model.state_dict(), 'model.safetensors')"
        )
    return f"{shown_text(name)} in it is compressed, and only stored members are read: write it without compression"


def _list_of(source: Source) -> tuple[int, int, int]:
    """How many members there are, the bytes of their list, and where it begins."""
    tail = bytes(source.read(max(0, source.size - 2**16 - _END.size), min(source.size, 2**16 + _END.size)))
    at = tail.rfind(b"PK\x05\x06")
    if at < 0 or at + _END.size > len(tail):
        raise NotThisError("its list of members is missing at the end: it is cut short")
    fields = _END.unpack_from(tail, at)
    count, length, start = fields[4:7]
    locator = at - _LOCATOR.size
    if locator >= 0 and tail[locator : locator + 4] == b"PK\x06\x07":  # 64-bit sizes are in a record before it
        place = _LOCATOR.unpack_from(tail, locator)[2]
        if place + _END_64.size > source.size:
            raise NotThisError(f"its list of members should be described at byte {came(place)}")
        fields = _END_64.unpack(source.read(place, _END_64.size))
        if fields[0] != b"PK\x06\x06":
            raise NotThisError(f"its list of members is not described at byte {place}")
        count, length, start = fields[7:10]
    return count, length, start


def _long(extra: bytes, packed: int, size: int, place: int) -> tuple[int, int, int]:
    """The sizes and the place of a member, which are stored separately where 32 bits are too few."""
    at = 0
    while at + 4 <= len(extra):
        kind, length = struct.unpack_from("<2H", extra, at)
        if kind == 1:
            words = list(struct.unpack_from(f"<{min(length, len(extra) - at - 4) // 8}Q", extra, at + 4))
            size = words.pop(0) if size == _FULL and words else size
            packed = words.pop(0) if packed == _FULL and words else packed
            place = words.pop(0) if place == _FULL and words else place
        at += 4 + length
    return packed, size, place


def _member(source: Source, name: str, place: int, size: int) -> Span:
    """Where the bytes of a member begin: after a header that has extra bytes of its own."""
    if place + _LOCAL.size <= source.size:
        fields = _LOCAL.unpack(source.read(place, _LOCAL.size))
        start = place + _LOCAL.size + fields[9] + fields[10]
        if fields[0] == b"PK\x03\x04" and start + size <= source.size:
            return start, size
    raise NotThisError(f"{shown_text(name)} should have {came(size)} bytes at byte {came(place)}")


def read_npz(source: Source) -> Contents:
    """The arrays of numpy.savez and mx.savez."""
    members, length = members_of(source)
    tensors = {}
    for name, span in members.items():
        tensor = name.removesuffix(".npy")
        check_name(tensor)
        tensors[tensor] = _array(source, tensor, *span)
    return Contents(tensors, length)


_NPY = {np.dtype(kind).str: name for name, kind in NUMPY.items() if name not in ("BF16", "F8_E4M3", "F8_E5M2", "BOOL")}
_NPY |= {"|b1": "BOOL", "<V2": "BF16", "|V2": "BF16"}  # numpy has no name for bfloat16


def _array(source: Source, name: str, start: int, length: int) -> Plain:
    """One .npy file: a magic word, a version, and descr, fortran_order and shape as Python writes a dictionary."""
    wrong = NotThisError(f"{shown_text(name)} is no array of numpy")
    begin = bytes(source.read(start, min(12, length)))
    if len(begin) < 12 or begin[:6] != b"\x93NUMPY" or begin[6] not in (1, 2, 3):
        raise wrong
    at = 10 if begin[6] == 1 else 12
    size = int.from_bytes(begin[8:at], "little")
    if size > _LARGEST_NPY_HEADER or at + size > length:
        raise wrong
    text = bytes(source.read(start + at, size)).decode("latin-1").strip()
    if "\\" in text:  # Python would warn of an escape that it does not know, and show what follows
        raise wrong
    try:
        header = ast.literal_eval(text)
        descr, by_columns, shape = header["descr"], header["fortran_order"], header["shape"]
    except (ValueError, SyntaxError, TypeError, KeyError, RecursionError, MemoryError):
        raise wrong from None
    counts = isinstance(shape, tuple) and all(type(side) is int and 0 <= side < 2**63 for side in shape)
    if not counts or len(shape) > MOST_RANK or not isinstance(descr, str) or not isinstance(by_columns, bool):
        raise wrong
    dtype = _NPY.get(descr, "an unknown type")
    if dtype in NUMPY and math.prod(shape) * np.dtype(NUMPY[dtype]).itemsize != length - at - size:
        raise NotThisError(f"{shown_text(name)} must have the bytes of shape {came(shape)}, got {length}")
    return Plain(source, dtype, shape, start + at + size, by_columns and len(shape) == 2)
