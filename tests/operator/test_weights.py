"""Weights of chosen rows, and what each key received: against the definition, on every target."""

import pickle
from typing import Any

import numpy as np
import pytest
import torch
from budgets import assert_within, compute_type, judge_type, logit_error, unit_roundoff
from judge import TARGETS, target, threads
from problems import option_sets, random_arrays
from tensors import DTYPES, array, tensor, tensor_options

import rootdk
from rootdk.backends import problem_of, reference

NAMES = list(option_sets(np.random.default_rng(0)))


def budget(arrays: Any, options: dict[str, Any], rows: Any = slice(None)) -> tuple[Any, float]:
    """What the weights must be, and how far from it: the plain version's error, and rounding as for an output."""
    problem = problem_of(*arrays, **options)
    expected, plain = (reference.weights(problem, of(arrays[0].dtype)) for of in (judge_type, compute_type))
    rounding = 2 * logit_error(problem) + unit_roundoff(compute_type(arrays[0].dtype))
    return expected[..., rows, :], 2 * (float(np.nanmax(np.abs(plain - expected), initial=0.0)) + rounding)


def without_dropout(rng: np.random.Generator, name: str, **sizes: Any) -> dict[str, Any]:
    options = option_sets(rng, **sizes)[name]
    return {option: value for option, value in options.items() if option not in {"dropout", "seed"}}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_equal_the_definition(rng: np.random.Generator, dtype: str, name: str) -> None:
    sizes = {"n_query": 37, "n_key": 141}
    options = without_dropout(rng, name, **sizes)
    arrays = random_arrays(rng, **sizes, dtype=DTYPES[dtype][1])
    rows = [3, 0, 36, -1, 3]
    for chosen, index in (
        (rows, rows),
        (None, slice(None)),
        (slice(5, 9), slice(5, 9)),
        (slice(None, None, -7),) * 2,
        (4, [4]),
    ):
        expected, bound = budget(arrays, options, index)
        for where in TARGETS if chosen is rows else TARGETS[:1]:
            with target(where):
                weights = rootdk.weights(*arrays[:2], rows=chosen, **options)
                assert weights.dtype == compute_type(arrays[0].dtype)
                assert_within(weights, expected, bound, where)
        on_tensors = rootdk.weights(*(tensor(a) for a in arrays[:2]), rows=chosen, **tensor_options(options))
        assert_within(array(on_tensors), expected, bound)


@pytest.mark.parametrize(
    "sizes", [(1, 1), (1, 1500), (5, 300), (16, 128), (130, 129), (200, 3), (0, 4), (4, 0)], ids=str
)
def test_every_length(rng: np.random.Generator, sizes: tuple[int, int]) -> None:
    arrays = random_arrays(rng, n_query=sizes[0], n_key=sizes[1], dtype=np.float32)
    expected, bound = budget(arrays, {"causal": True})
    received = expected.sum(axis=-2)
    for where in TARGETS:
        with target(where):
            assert_within(rootdk.weights(*arrays[:2], causal=True), expected, bound)
            out, reading = rootdk.measure(*arrays, causal=True, per_key=True)
            assert_within(reading.received, received, (sizes[0] + 1) * bound, "received")
            np.testing.assert_array_equal(out, rootdk.attention(*arrays, causal=True))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_what_each_key_received(rng: np.random.Generator, dtype: str, name: str) -> None:
    sizes = {"n_query": 70, "n_key": 141}
    options = option_sets(rng, **sizes)[name]
    arrays = random_arrays(rng, **sizes, dtype=DTYPES[dtype][1])
    expected, bound = budget(arrays, options)
    expected = expected.sum(axis=-2)
    bound = bound * sizes["n_query"] + unit_roundoff(compute_type(arrays[0].dtype)) * sizes["n_query"] * float(
        expected.max()
    )
    reading = rootdk.measure(*arrays, **options, per_key=True)[1]
    assert_within(reading.received, expected, bound)
    plain = rootdk.measure(*arrays, **options)[1]
    assert plain.received is None
    for field in (*reference.FIELDS, "keys"):
        np.testing.assert_array_equal(getattr(reading, field), getattr(plain, field))
    for grad in (False, True):
        tensors = [tensor(a).requires_grad_(grad) for a in arrays]
        _, read = rootdk.measure(*tensors, **tensor_options(options), per_key=True)
        assert not read.received.requires_grad
        np.testing.assert_array_equal(array(read.received), reading.received)


def test_the_same_bits_on_any_number_of_threads(rng: np.random.Generator) -> None:
    arrays = random_arrays(rng, leading=(), heads=1, kv_heads=1, n_query=300, n_key=1100, dtype=np.float32)
    pairs = []
    for n in (1, 2, 3):
        with threads(n):
            pairs.append(
                (rootdk.measure(*arrays, per_key=True)[1].received, rootdk.weights(*arrays[:2], rows=slice(0, 40)))
            )
    for received, weights in pairs[1:]:
        np.testing.assert_array_equal(received, pairs[0][0])
        np.testing.assert_array_equal(weights, pairs[0][1])


def test_hidden_numbers_and_nan(rng: np.random.Generator) -> None:
    q, k, v = random_arrays(rng, leading=(), heads=2, kv_heads=2, n_query=6, n_key=6, dtype=np.float32)
    k[:, 4] = np.nan
    weights = rootdk.weights(q, k, causal=True)
    assert np.isfinite(weights[:, :4]).all()
    assert np.isnan(weights[:, 4:, :5]).all()
    assert not weights[:, 4, 5].any()
    received = rootdk.measure(q, k, v, causal=True, per_key=True)[1].received
    assert np.isnan(received[:, :5]).all()


def test_gradients_of_the_weights(rng: np.random.Generator) -> None:
    q, k, v = (torch.randn(2, 2, n, 3, dtype=torch.float64, requires_grad=True) for n in (4, 5, 5))
    bias, slopes, sinks = (
        torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in ((4, 5), (2,), (2,))
    )
    options = {
        "bias": bias,
        "alibi": slopes,
        "sinks": sinks,
        "scale": torch.tensor(0.4, dtype=torch.float64, requires_grad=True),
    }
    leaves = [q, k, *options.values()]

    def call(*leaves: Any) -> Any:
        return rootdk.weights(*leaves[:2], rows=[0, 3], causal=True, **dict(zip(options, leaves[2:], strict=True)))

    assert torch.autograd.gradcheck(call, leaves)
    assert torch.autograd.gradgradcheck(call, leaves, fast_mode=True)
    whole = rootdk.attention(q, k, v, causal=True, **options)[:, :, [0, 3]]
    torch.testing.assert_close(call(*leaves) @ v, whole)
    with torch.no_grad():
        torch.testing.assert_close(call(*leaves) @ v, whole)


def test_readings_keep_what_each_key_received(rng: np.random.Generator) -> None:
    q, k, v = random_arrays(rng)
    whole = rootdk.measure(q, k, v, per_key=True)[1]
    parts = [rootdk.measure(q[:, :, rows], k, v, per_key=True)[1] for rows in (slice(0, 3), slice(3, 7))]
    joined = rootdk.Reading.concatenate(parts)
    np.testing.assert_allclose(joined.received, whole.received, rtol=1e-12)
    batches = [rootdk.measure(q[i : i + 1], k[i : i + 1], v[i : i + 1], per_key=True)[1] for i in range(2)]
    np.testing.assert_allclose(rootdk.Reading.concatenate(batches, axis=0).received, whole.received, rtol=1e-12)
    for copy in (rootdk.Reading.from_dict(whole.to_dict()), pickle.loads(pickle.dumps(whole))):
        np.testing.assert_array_equal(copy.received, whole.received)
    assert "received" not in rootdk.measure(q, k, v)[1].to_dict()
    single = rootdk.measure(q[0, 0], k[0, 0], v[0, 0], per_key=True)[1]
    np.testing.assert_allclose(single.received, whole.received[0, 0], rtol=1e-12)
    np.testing.assert_allclose(whole.received.sum(axis=-1), 7.0)
    plain = rootdk.measure(q, k, v)[1]
    with pytest.raises(rootdk.ArgumentError, match=r"^readings: must all be measured per key or none of them"):
        rootdk.Reading.concatenate([whole, plain])
    with pytest.raises(rootdk.ArgumentError, match=r"^other: must be measured without per_key"):
        plain.merge(whole)
    with pytest.raises(rootdk.ArgumentError, match=r"^shard: must be measured without per_key"):
        rootdk.distributed.unshard(whole)


@pytest.mark.parametrize(
    ("rows", "line"),
    [
        (7, "rows: must be from -7 to 6, got 7"),
        ([0, -8], "rows: must be from -7 to 6, got [0, -8]"),
        (1.0, "rows: must be an int, ints or a slice, got 1.0"),
        ([[1]], "rows: must be an int, ints or a slice, got [[1]]"),
        (True, "rows: must be an int, ints or a slice, got True"),
    ],
)
def test_errors(rng: np.random.Generator, rows: Any, line: str) -> None:
    q, k, _ = random_arrays(rng)
    for given in ((q, k), (torch.from_numpy(q), torch.from_numpy(k))):
        with pytest.raises((rootdk.ArgumentError, rootdk.ArgumentTypeError)) as caught:
            rootdk.weights(*given, rows=rows)
        assert str(caught.value) == line


def test_what_is_refused(rng: np.random.Generator) -> None:
    q, k, v = random_arrays(rng)
    with pytest.raises(rootdk.ArgumentTypeError, match=r"^key: must be a NumPy array like query, got list"):
        rootdk.weights(q, [1.0])
    with pytest.raises(rootdk.ArgumentTypeError, match=r"^per_key: must be True or False, got 1"):
        rootdk.measure(q, k, v, per_key=1)  # type: ignore[arg-type]
    q, k, v = (torch.from_numpy(a) for a in (q, k, v))
    with pytest.raises(rootdk.ArgumentError, match=r"^rootdk.weights: must be called outside torch.compile"):
        torch.func.vmap(lambda q: rootdk.weights(q, k[0]))(q)
    with pytest.raises(rootdk.ArgumentError, match=r"^per_key: must be False inside torch.compile"):
        torch.func.vmap(lambda q: rootdk.measure(q, k[0], v[0], per_key=True)[0])(q)
