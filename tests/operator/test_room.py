"""Room for a Reading in one piece: kernel and cut agree on where the parts lie, and nothing is written elsewhere."""

import copy
import pickle
from typing import Any

import numpy as np
import pytest
from helpers import problem_of, random_arrays

import rootdk
from rootdk import _kernel
from rootdk._room import cut
from rootdk.reading import FIELDS, Reading

LINE = 64


def arrays(rng: np.random.Generator, heads: int, rows: int, dtype: Any) -> list[np.ndarray]:
    return [rng.standard_normal((2, heads, rows, 8)).astype(dtype) for _ in range(3)]


@pytest.mark.parametrize("real", [np.float32, np.float64])
@pytest.mark.parametrize(("heads", "rows"), [(1, 1), (3, 7), (2, 16), (1, 129), (4, 160), (0, 5)])
def test_a_room_holds_what_two_arrays_hold(rng: np.random.Generator, heads: int, rows: int, real: Any) -> None:
    """Bit by bit, wherever it comes to lie."""
    q, k, v = arrays(rng, heads, rows, real)
    shape = q.shape[:-1]
    block, keys, out = np.empty((len(FIELDS), *shape), real), np.empty(shape, np.int64), np.empty_like(q)
    assert _kernel.forward(problem_of(q, k, v, causal=True), out, None, block, keys) is None
    kept = []
    for _ in range(10):
        reading = _kernel.forward(problem_of(q, k, v, causal=True), out, None, Reading, None)
        room, rows, double, has_sinks = vars(reading)["_room"]
        assert (rows, double, has_sinks) == (shape, real is np.float64, False)
        kept.append(room)  # so that the next one lies elsewhere
        found, found_keys = cut(room, len(FIELDS), rows, real)
        np.testing.assert_array_equal(found, block)
        np.testing.assert_array_equal(found_keys, keys)
        last = found_keys.ctypes.data + found_keys.nbytes
        assert last <= np.frombuffer(room, np.uint8).ctypes.data + len(room)
        assert found.size == 0 or found.ctypes.data % LINE == found_keys.ctypes.data % LINE == 0


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


def test_a_room_is_asked_for_alone(rng: np.random.Generator) -> None:
    q, k, v = arrays(rng, 2, 3, np.float32)
    keys = np.empty(q.shape[:-1], np.int64)
    for reading, given in ((Reading, keys), (None, keys), (np.empty((9, *q.shape[:-1]), np.float32), None)):
        with pytest.raises(ValueError, match="kernel: reading and keys go together"):
            _kernel.forward(problem_of(q, k, v), np.empty_like(q), None, reading, given)
    with pytest.raises((TypeError, AttributeError)):
        _kernel.forward(problem_of(q, k, v), np.empty_like(q), None, False, keys)
    with pytest.raises(AttributeError):
        _kernel.forward(problem_of(q, k, v), np.empty_like(q), None, int, None)  # has no place for a room


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
