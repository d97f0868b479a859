"""The door to the kernel: what would read or write out of bounds is refused, whoever calls."""

from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from problems import random_arrays

import rootdk
from rootdk import _kernel
from rootdk.backends import problem_of
from rootdk.options import Learnable, Options, Problem
from rootdk.reading import FIELDS

ROWS = (2, 4, 7)
OUT = (*ROWS, 5)


def problem(**changed: Any) -> Problem:
    q, k, v = np.ones((2, 4, 7, 8), np.float32), np.ones((2, 2, 9, 8), np.float32), np.ones((2, 2, 9, 5), np.float32)
    return problem_of(q, k, v, mask=np.ones(9, bool), bias=np.ones(9, np.float32), key_lengths=9)._replace(**changed)


def forward(given: Any = None, out: Any = None, state: Any = None, reading: Any = None, keys: Any = None) -> Any:
    out = np.zeros(OUT, np.float32) if out is None else out
    _kernel.forward(given or problem(), out, state, reading, keys)
    return np.asarray(out)


def test_what_fits_is_taken() -> None:
    """Every value is 1, and so is every mean of them, whichever way the arrays come."""
    state, keys = np.zeros((2, *ROWS), np.float32), np.zeros(ROWS, np.int64)
    ways = (
        forward(state=state),
        forward(reading=np.zeros((len(FIELDS), *ROWS), np.float32), keys=keys),
        forward(out=torch.zeros(OUT)),
    )
    for out in ways:
        np.testing.assert_allclose(out, 1, rtol=1e-6)
    assert (state[1] > 0).all()
    assert (keys == 9).all()


@pytest.mark.parametrize("made", [np.asarray, torch.from_numpy])
@pytest.mark.parametrize("ones", [3, 4, 20, 60 if int(np.__version__.partition(".")[0]) >= 2 else 30])  # NumPy 1 has 32
def test_any_number_of_axes(rng: np.random.Generator, made: Any, ones: int) -> None:
    q, k, v = random_arrays(rng)
    lengths = rng.integers(1, 9, 2)
    expected = rootdk.attention(q, k, v, key_lengths=lengths)
    more = [made(np.swapaxes(a, 1, 2).copy()).swapaxes(1, 2) for a in (q, k, v)]
    more = [a.reshape((2,) + (1,) * (ones - 3) + tuple(a.shape[1:])) for a in more]
    out = rootdk.attention(*more, key_lengths=lengths.reshape((2,) + (1,) * (ones - 3)))
    np.testing.assert_array_equal(np.asarray(out).reshape(expected.shape), expected)


@pytest.mark.parametrize(
    "changed",
    [
        {"query": np.ones((2, 4, 7, 8))},
        {"query": np.ones((2, 4, 7, 8), np.int32)},
        {"query": np.ones((2, 4, 7, 8), ">f4")},
        {"query": np.ones((7, 8), np.float32)},
        {"key": np.ones((2, 2, 9, 8), np.float16)},
        {"key": np.ones((2, 2, 9, 7), np.float32)},
        {"key": np.ones((2, 3, 9, 8), np.float32)},
        {"key": np.ones((2, 2, 9, 16), np.float32)[..., ::2]},
        {"value": np.ones((2, 2, 8, 5), np.float32)},
        {"value": np.ones((1, 2, 9, 5), np.float32)},
        {"value": torch.ones(2, 2, 9, 5, dtype=torch.int32)},
        {"value": torch.ones(2, 2, 9, 5, dtype=torch.float64)},
        {"row_scale": np.ones((2, 7), np.float32)},
        {"query_offset": np.zeros(1, np.int64)},
        {"query_offset": np.zeros(2, np.int32)},
        {"query_offset": np.zeros(2)},
        {"key_lengths": np.array([9, 10])},
        {"mask": np.ones((2, 4, 7, 9), np.uint8)},
        {"mask": np.ones((4, 7, 9), bool)},
        {"bias": np.ones((2, 4, 7, 9), np.int32)},
        {"bias": np.ones((2, 4, 7, 8), np.float32)},
        {"sinks": np.ones(3)},
    ],
    ids=lambda changed: ", ".join(f"{name} {array.dtype} {tuple(array.shape)}" for name, array in changed.items()),
)
def test_a_problem_that_does_not_fit(changed: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"^kernel: "):
        forward(problem(**changed))


@pytest.mark.parametrize(
    "filled",
    [
        {"out": np.empty(OUT)},
        {"out": np.empty(OUT[1:], np.float32)},
        {"out": torch.empty(OUT, dtype=torch.int32)},
        {"state": np.empty((2, *ROWS))},
        {"state": np.empty((2, *ROWS), np.int32)},
        {"state": np.empty((1, *ROWS), np.float32)},
        {"reading": np.empty((len(FIELDS), *ROWS), np.float32)},
        {"reading": np.empty((len(FIELDS), *ROWS), np.float32), "keys": np.empty(ROWS)},
        {"reading": np.empty((len(FIELDS) - 1, *ROWS), np.float32), "keys": np.empty(ROWS, np.int64)},
    ],
)
def test_memory_that_does_not_fit(filled: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"^kernel: "):
        forward(**filled)


def test_what_is_no_problem_and_no_memory() -> None:
    with pytest.raises(ValueError, match="a named tuple"):
        forward(tuple(problem()))
    with pytest.raises(ValueError, match="number of fields"):
        forward(tuple.__new__(Problem, problem()[:-1]))
    with pytest.raises(ValueError, match="lacks a field"):
        forward(Options())
    forward(problem())
    with pytest.raises(ValueError, match="lacks a field"):
        forward(Learnable(*problem()[:3]))  # some of its fields stand in other places
    wider = NamedTuple("wider", [(name, Any) for name in (*Problem._fields, "new")])
    with pytest.raises(ValueError, match="unknown field"):
        forward(wider(*problem(), None))
    forward(problem())
    with pytest.raises(TypeError):
        forward(list(problem()))
    with pytest.raises(AttributeError):
        forward(problem(query=object()))
    read_only = np.empty(OUT, np.float32)
    read_only.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        forward(out=read_only)
