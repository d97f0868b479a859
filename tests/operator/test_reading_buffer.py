"""The buffer of a Reading: its parts lie where the binding says, and nothing is written elsewhere."""

import copy
import dataclasses
import pickle
from typing import Any

import numpy as np
import pytest
from problems import random_arrays

import rootdk
from rootdk import _kernel
from rootdk.backends import problem_of
from rootdk.reading import FIELDS, Reading

LINE = 64


def arrays(rng: np.random.Generator, heads: int, rows: int, dtype: Any) -> list[np.ndarray]:
    return [rng.standard_normal((2, heads, rows, 8)).astype(dtype) for _ in range(3)]


@pytest.mark.parametrize("real", [np.float32, np.float64])
@pytest.mark.parametrize(("heads", "rows"), [(1, 1), (3, 7), (2, 16), (1, 129), (4, 160), (0, 5)])
def test_a_buffer_holds_what_two_arrays_hold(rng: np.random.Generator, heads: int, rows: int, real: Any) -> None:
    """Bit by bit, wherever it comes to lie."""
    q, k, v = arrays(rng, heads, rows, real)
    shape = q.shape[:-1]
    block, keys, out = np.empty((len(FIELDS), *shape), real), np.empty(shape, np.int64), np.empty_like(q)
    assert _kernel.forward(problem_of(q, k, v, causal=True), out, None, block, keys) is None
    kept = []
    for _ in range(10):
        reading = _kernel.forward(problem_of(q, k, v, causal=True), out, None, Reading, None)
        buffer, fields_at, keys_at, rows, double, has_sinks = vars(reading)["_buffer"]
        assert (rows, double, has_sinks) == (shape, real is np.float64, False)
        kept.append(buffer)  # so that the next one lies elsewhere
        for place, name in enumerate(FIELDS):
            np.testing.assert_array_equal(getattr(reading, name), block[place])
        np.testing.assert_array_equal(reading.keys, keys)
        assert fields_at + block.nbytes <= keys_at
        assert keys_at + keys.nbytes <= len(buffer)
        begin = np.frombuffer(buffer, np.uint8).ctypes.data
        assert (begin + fields_at) % LINE == (begin + keys_at) % LINE == 0


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


def test_a_buffer_is_asked_for_alone(rng: np.random.Generator) -> None:
    q, k, v = arrays(rng, 2, 3, np.float32)
    keys = np.empty(q.shape[:-1], np.int64)
    for reading, given in ((Reading, keys), (None, keys), (np.empty((len(FIELDS), *q.shape[:-1]), np.float32), None)):
        with pytest.raises(ValueError, match="kernel: reading and keys go together"):
            _kernel.forward(problem_of(q, k, v), np.empty_like(q), None, reading, given)
    with pytest.raises((TypeError, AttributeError)):
        _kernel.forward(problem_of(q, k, v), np.empty_like(q), None, False, keys)
    with pytest.raises(AttributeError):
        _kernel.forward(problem_of(q, k, v), np.empty_like(q), None, int, None)  # has no place for a buffer


@pytest.mark.parametrize("moved", [copy.copy, copy.deepcopy, lambda reading: pickle.loads(pickle.dumps(reading))])
def test_a_reading_that_nobody_looked_at_can_be_moved(rng: np.random.Generator, moved: Any) -> None:
    """A buffer has its parts where it lies, and a copy lies elsewhere."""
    q, k, v = random_arrays(rng)
    looked_at = rootdk.measure(q, k, v, causal=True)[1]
    fields = {name: getattr(looked_at, name) for name in (*FIELDS, "keys")}
    for _ in range(20):  # wherever it may come to lie
        reading = moved(rootdk.measure(q, k, v, causal=True)[1])
        for name, expected in fields.items():
            np.testing.assert_array_equal(getattr(reading, name), expected, err_msg=name)


def test_the_kernel_writes_the_fields_that_the_class_lists_in_their_order() -> None:
    assert _kernel.reading_fields() == list(FIELDS)


def test_the_table_is_the_docstring_and_says_what_an_empty_row_has(rng: np.random.Generator) -> None:
    q, k, v = arrays(rng, 1, 3, np.float32)
    nothing = rootdk.measure(q, k[..., :0, :], v[..., :0, :])[1]
    for entry in dataclasses.fields(Reading):
        assert f"    {entry.name:13} {entry.metadata['doc']}\n" in (Reading.__doc__ or "")
        if "empty" in entry.metadata:
            assert (getattr(nothing, entry.name) == entry.metadata["empty"]).all(), entry.name
