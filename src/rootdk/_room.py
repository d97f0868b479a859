"""Room for what the kernel writes of a Reading: one piece of bytes, cut into arrays when somebody looks.

The parts begin at lines of the cache, because the kernel writes whole lines past it. NumPy promises 16 bytes only, and
to look for the next line and cut views takes longer than a small call should notice: so the kernel finds the line from
the address, and so does the cut, later. bindings/module.cc lays it out in the same way.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

_LINE = 64
_KEY = 8  # bytes of an int64
_BYTE = np.dtype(np.uint8)


def empty_room(fields: int, rows: tuple[int, ...], real_bytes: int) -> NDArray[np.uint8]:
    """Bytes for `fields` floats and one int64 per row, wherever the next line begins."""
    count = math.prod(rows)
    return np.empty(_LINE + -(-fields * count * real_bytes // _LINE) * _LINE + count * _KEY, _BYTE)


def cut(
    room: NDArray[np.uint8], fields: int, rows: tuple[int, ...], real: Any
) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """The arrays in the room: (fields, *rows) of type `real`, and the keys, of shape `rows`. Both keep it alive."""
    start = -room.ctypes.data % _LINE
    block: NDArray[Any] = np.ndarray((fields, *rows), real, room, start)
    return block, np.ndarray(rows, np.int64, room, start + -(-block.nbytes // _LINE) * _LINE)
