"""What the kernel wrote of a Reading: one piece of bytes, cut into arrays when somebody looks.

The parts begin at lines of the cache, because the kernel writes whole lines past it, and memory promises 16 bytes only.
The kernel finds the line from the address, and so does the cut. make_reading in bindings/module.cc lays it out alike.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

_LINE = 64


def cut(room: bytearray, fields: int, rows: tuple[int, ...], real: Any) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """The arrays in the room: (fields, *rows) of type `real`, and the keys, of shape `rows`. Both keep it alive."""
    whole = np.frombuffer(room, np.uint8)
    start = -whole.ctypes.data % _LINE
    block: NDArray[Any] = np.ndarray((fields, *rows), real, whole, start)
    return block, np.ndarray(rows, np.int64, whole, start + -(-block.nbytes // _LINE) * _LINE)
