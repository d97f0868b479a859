"""Room for a Reading in one piece: kernel and cut agree on where the parts lie, and nothing is written elsewhere."""

import copy
import pickle
from typing import Any

import numpy as np
import pytest
from helpers import problem_of, random_arrays

import rootdk
from rootdk import _kernel
from rootdk._room import cut, empty_room
from rootdk.reading import FIELDS

LINE = 64


def arrays(rng: np.random.Generator, heads: int, rows: int, dtype: Any) -> list[np.ndarray]:
    return [rng.standard_normal((2, heads, rows, 8)).astype(dtype) for _ in range(3)]


@pytest.mark.parametrize("real", [np.float32, np.float64])
@pytest.mark.parametrize(("heads", "rows"), [(1, 1), (3, 7), (2, 16), (1, 129), (4, 160), (0, 5)])
def test_a_room_holds_what_two_arrays_hold(rng: np.random.Generator, heads: int, rows: int, real: Any) -> None:
    """Bit by bit, at every distance from a line, with bytes around it that must stay what they are."""
    q, k, v = arrays(rng, heads, rows, real)
    shape = q.shape[:-1]
    block, keys, out = np.empty((len(FIELDS), *shape), real), np.empty(shape, np.int64), np.empty_like(q)
    _kernel.forward(problem_of(q, k, v, causal=True), out, None, block, keys)
    size = empty_room(len(FIELDS), shape, np.dtype(real).itemsize).size
    for distance in (0, 8, 16, 48, 56):
        around = np.full(size + 4 * LINE, 171, np.uint8)
        start = -around.ctypes.data % LINE + LINE + distance
        room = around[start : start + size]
        _kernel.forward(problem_of(q, k, v, causal=True), out, None, room, None)
        found, found_keys = cut(room, len(FIELDS), shape, real)
        np.testing.assert_array_equal(found, block)
        np.testing.assert_array_equal(found_keys, keys)
        assert found.size == 0 or found.ctypes.data % LINE == found_keys.ctypes.data % LINE == 0
        assert (around[:start] == 171).all()
        assert (around[start + size :] == 171).all()


@pytest.mark.parametrize("name", [target for target in _kernel.targets() if target != "plain"])
def test_lines_written_past_the_cache_are_there_for_every_thread(rng: np.random.Generator, name: str) -> None:
    """Enough rows that all threads write, read at once by the caller, many times over."""
    q, k, v = arrays(rng, 8, 128, np.float32)
    kept, threads = _kernel.target(), rootdk.num_threads()
    _kernel.set_target(name)
    try:
        rootdk.set_num_threads(1)
        _, alone = rootdk.measure(q, k, v)
        rootdk.set_num_threads(4)
        for _ in range(30):
            _, reading = rootdk.measure(q, k, v)
            for field in (*FIELDS, "keys"):
                np.testing.assert_array_equal(getattr(reading, field), getattr(alone, field), err_msg=field)
    finally:
        _kernel.set_target(kept)
        rootdk.set_num_threads(threads)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda size: np.empty(size - 1, np.uint8),
        lambda size: np.empty(size + 1, np.uint8),
        lambda size: np.empty(size, np.int8),
        lambda size: np.empty((1, size), np.uint8),
        lambda size: np.empty(2 * size, np.uint8)[::2],
    ],
)
def test_a_room_of_another_size_is_refused(rng: np.random.Generator, wrong: Any) -> None:
    q, k, v = arrays(rng, 2, 3, np.float32)
    size = empty_room(len(FIELDS), q.shape[:-1], 4).size
    with pytest.raises(ValueError, match="kernel: a room must be as many bytes"):
        _kernel.forward(problem_of(q, k, v), np.empty_like(q), None, wrong(size), None)
    with pytest.raises(ValueError, match="kernel: keys belong to a reading"):
        _kernel.forward(problem_of(q, k, v), np.empty_like(q), None, None, np.empty(q.shape[:-1], np.int64))


@pytest.mark.parametrize("moved", [copy.copy, copy.deepcopy, lambda reading: pickle.loads(pickle.dumps(reading))])
def test_a_reading_that_nobody_looked_at_can_be_moved(rng: np.random.Generator, moved: Any) -> None:
    """A room is cut by where it lies, and a copy lies elsewhere."""
    q, k, v = random_arrays(rng)
    looked_at = rootdk.measure(q, k, v, causal=True)[1]
    fields = {name: getattr(looked_at, name) for name in (*FIELDS, "keys")}
    for _ in range(20):  # wherever it may come to lie
        reading = moved(rootdk.measure(q, k, v, causal=True)[1])
        for name, expected in fields.items():
            np.testing.assert_array_equal(getattr(reading, name), expected, err_msg=name)
