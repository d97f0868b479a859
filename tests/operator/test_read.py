"""rootdk.read: the Reading of measure() bit by bit, out of query and key alone, of all rows or of chosen ones."""

from typing import Any

import numpy as np
import pytest
import torch
from judge import DTYPES, TARGETS, target, threads
from problems import option_sets, random_arrays
from tensors import tensor, tensor_options

import rootdk
from rootdk import ArgumentError, ArgumentTypeError
from rootdk.reading import FIELDS

NAMES = list(option_sets(np.random.default_rng(0)))
# (n_query, n_key): a panel and more, a few rows over several chunks, blocks that end everywhere, nothing to see.
SHAPES = {"rows": (37, 300), "few": (2, 1100), "one": (1, 1), "no keys": (5, 0), "no rows": (0, 7)}


def assert_same(reading: Any, expected: Any) -> None:
    assert reading.has_sinks == expected.has_sinks
    for name in (*FIELDS, "keys"):
        np.testing.assert_array_equal(getattr(reading, name), getattr(expected, name), err_msg=name)


def logit_options(rng: np.random.Generator, name: str, n_query: int, n_key: int) -> dict[str, Any]:
    options = option_sets(rng, n_query=n_query, n_key=n_key)[name]
    return {key: value for key, value in options.items() if key not in ("dropout", "seed")}


@pytest.mark.parametrize("on", TARGETS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", NAMES)
def test_read_is_the_reading_of_measure_to_the_bit(rng: np.random.Generator, name: str, dtype: str, on: str) -> None:
    for n_query, n_key in SHAPES.values():
        q, k, v = random_arrays(rng, n_query=n_query, n_key=n_key, d_k=24, dtype=DTYPES[dtype])
        options = logit_options(rng, name, n_query, n_key)
        with target(on):
            assert_same(rootdk.read(q, k, **options), rootdk.measure(q, k, v, **options)[1])


@pytest.mark.parametrize("on", TARGETS)
@pytest.mark.parametrize("name", NAMES)
def test_chosen_rows_read_as_they_do_among_all(rng: np.random.Generator, name: str, on: str) -> None:
    """Many rows or few, in any order, more than once: each keeps its position, segment, mask, bias and scale."""
    n_query, n_key = 37, 300
    q, k, _ = random_arrays(rng, n_query=n_query, n_key=n_key, d_k=24)
    options = logit_options(rng, name, n_query, n_key)
    with target(on):
        whole = rootdk.read(q, k, **options)
        for rows in ([36, 0, 5, 5, -37, 17], list(range(37))[::-1], [-1]):
            reading = rootdk.read(q, k, rows=rows, **options)
            np.testing.assert_array_equal(reading.keys, whole.keys[..., rows])
            for field in FIELDS:  # other rows share a panel, so sums may round otherwise
                expected = getattr(whole, field)[..., rows]
                np.testing.assert_allclose(getattr(reading, field), expected, rtol=1e-12, atol=1e-12)
        assert rootdk.read(q, k, rows=[], **options).shape == (2, 4, 0)
        third = rootdk.read(q, k, rows=slice(None, None, -3), **options)
        assert_same(third, rootdk.read(q, k, rows=list(range(36, -1, -3)), **options))
        assert_same(rootdk.read(q, k, rows=-1, **options), rootdk.read(q, k, rows=[36], **options))


@pytest.mark.parametrize("name", NAMES)
def test_tensors_read_as_arrays(rng: np.random.Generator, name: str) -> None:
    q, k, _ = random_arrays(rng, n_query=37, n_key=300, dtype=np.float32)
    options = logit_options(rng, name, 37, 300)
    given = tensor_options(options)
    reading = rootdk.read(tensor(q).requires_grad_(), tensor(k), **given)
    assert isinstance(reading.mean, torch.Tensor)
    assert not reading.mean.requires_grad
    assert_same(reading, rootdk.read(q, k, **options))
    chosen = rootdk.read(tensor(q), tensor(k), rows=torch.tensor([3, -1]), **given)
    assert_same(chosen, rootdk.read(q, k, rows=[3, -1], **options))


def test_the_number_of_threads_changes_no_bit(rng: np.random.Generator) -> None:
    q, k, _ = random_arrays(rng, n_query=300, n_key=500, d_k=32, dtype=np.float32)
    with threads(1):
        alone = rootdk.read(q, k, causal=True)
    with threads(3):
        assert_same(rootdk.read(q, k, causal=True), alone)


def test_strides_leading_axes_and_a_single_head(rng: np.random.Generator) -> None:
    q, k, v = random_arrays(rng, (2, 3), n_query=7, n_key=9)
    turned = (np.moveaxis(q, -1, 0).copy(), np.moveaxis(k, -1, 0).copy())
    expected = rootdk.measure(q, k, v)[1]
    assert_same(rootdk.read(*(np.moveaxis(a, 0, -1) for a in turned)), expected)
    assert_same(rootdk.read(*(tensor(a).movedim(0, -1) for a in turned)), expected)
    single, whole = rootdk.read(q[0, 0, 0], k[0, 0, 0], rows=[6, 2]), rootdk.read(q[0, 0, 0], k[0, 0, 0])
    assert single.shape == (2,)
    np.testing.assert_allclose(single.mean, whole.mean[[6, 2]], rtol=1e-12)


def test_what_is_not_finite_is_read_as_measured(rng: np.random.Generator) -> None:
    q, k, v = random_arrays(rng, n_query=40, n_key=300, dtype=np.float32)
    q[0, 1, 3], k[1, 0, 7, 2], k[0, 1, 290, 0] = np.nan, np.inf, -np.inf
    for options in ({}, {"causal": True}, {"key_lengths": [200, 5]}):
        assert_same(rootdk.read(q, k, **options), rootdk.measure(q, k, v, **options)[1])


@pytest.mark.parametrize(
    ("rows", "error", "words"),
    [
        ([[1]], ArgumentTypeError, "rows: must be an int, ints or a slice, got [[1]]"),
        ([0.5], ArgumentTypeError, "rows: must be an int, ints or a slice, got [0.5]"),
        ([True], ArgumentTypeError, "rows: must be an int, ints or a slice, got [True]"),
        ("last", ArgumentTypeError, "rows: must be an int, ints or a slice, got 'last'"),
        ([7], ArgumentError, "rows: must be from -7 to 6, got [7]"),
        ([-8], ArgumentError, "rows: must be from -7 to 6, got [-8]"),
    ],
)
def test_rows_that_are_none(rng: np.random.Generator, rows: Any, error: Any, words: str) -> None:
    q, k, _ = random_arrays(rng)
    with pytest.raises(error) as caught:
        rootdk.read(q, k, rows=rows)
    assert str(caught.value) == words
    with pytest.raises(error) as caught:
        rootdk.read(tensor(q), tensor(k), rows=rows)
    assert str(caught.value) == words


def test_errors_name_key_and_never_a_value(rng: np.random.Generator) -> None:
    q, k, _ = random_arrays(rng)
    for bad in (k[..., :3], k[0], k.astype(np.float32)):
        with pytest.raises((ArgumentError, ArgumentTypeError), match=r"^key: "):
            rootdk.read(q, bad)
    with pytest.raises(TypeError):
        rootdk.read(q, k, dropout=0.5)  # type: ignore[call-arg]
