"""Numbers at the end of the range of float32, which the kernel multiplies by log2(e): finite must stay finite."""

import platform
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from budgets import assert_within, logit_error, measure_budget, tangent_budget
from judge import DTYPES, TARGETS, Judge, target
from problems import random_arrays

import rootdk
from rootdk.backends import problem_of, reference
from rootdk.options import Learnable

LOWEST = np.finfo(np.float32).min
# A processor of ARM that flushes subnormal results to zero takes subnormal inputs for zero too (docs/limits.md).
FLUSHES_INPUTS = platform.machine() in {"aarch64", "arm64"}


@pytest.fixture(params=TARGETS, autouse=True)
def every_target(request: pytest.FixtureRequest) -> Iterator[None]:
    with target(request.param):
        yield


@pytest.mark.parametrize("n_query", [1, 40])
@pytest.mark.parametrize("padding", [1, 128, 200])
@pytest.mark.parametrize("bias_value", [LOWEST, -1e37, -1e30])
def test_left_padding_by_a_finite_bias(rng: np.random.Generator, n_query: int, padding: int, bias_value: float) -> None:
    """Common practice. Weights, entropy and log-sum-exp are those of the keys behind the padding; nothing is NaN."""
    query, key, value = random_arrays(rng, (), 2, 2, n_query, 300, 16, 5, np.float32)
    bias = np.zeros(300, np.float32)
    bias[:padding] = bias_value
    out, reading = rootdk.measure(query, key, value, bias=bias)
    rest = problem_of(query, key[:, padding:], value[:, padding:])
    budget = measure_budget(rest)
    np.testing.assert_allclose(out, rootdk.attention(query, key[:, padding:], value[:, padding:]), atol=1e-6)
    for field in ("log_sum_exp", "max", "entropy", "p_squared", "p_cubed"):
        assert_within(getattr(reading, field), *budget[field], field)
    assert (reading.keys == 300).all()
    assert not reading.non_finite.any()
    np.testing.assert_allclose(reading.min, bias_value, rtol=1e-6)
    assert (reading.mean < bias_value / 300 / 2).all()
    assert (reading.variance > 1e38).all()


def test_a_row_of_the_lowest_float_is_uniform(rng: np.random.Generator) -> None:
    query, key, value = random_arrays(rng, (), 1, 1, 40, 300, 16, 5, np.float32)
    out, reading = rootdk.measure(query, key, value, bias=np.full(300, LOWEST))
    np.testing.assert_allclose(out, np.broadcast_to(value.mean(axis=1, keepdims=True), out.shape), atol=1e-6)
    np.testing.assert_allclose(reading.entropy, np.log(300), rtol=1e-6)
    np.testing.assert_allclose(reading.log_sum_exp, LOWEST, rtol=1e-6)


@pytest.mark.parametrize("n_query", [1, 40])
def test_a_sink_that_takes_nothing(rng: np.random.Generator, n_query: int) -> None:
    arrays = random_arrays(rng, (), 1, 1, n_query, 50, 16, 5, np.float32)
    plain, without = rootdk.measure(*arrays)
    out, reading = rootdk.measure(*arrays, sinks=[LOWEST])
    np.testing.assert_array_equal(out, plain)
    np.testing.assert_allclose(reading.entropy, without.entropy, rtol=1e-6)
    np.testing.assert_array_equal(reading.sink_mass, 0)


@pytest.mark.parametrize("sink", [-LOWEST, 3e38, 1e30])
@pytest.mark.parametrize("n_query", [1, 40])
def test_a_sink_that_takes_everything(rng: np.random.Generator, n_query: int, sink: float) -> None:
    arrays = random_arrays(rng, (), 1, 1, n_query, 50, 16, 5, np.float32)
    out, reading = rootdk.measure(*arrays, sinks=[sink])
    np.testing.assert_array_equal(out, 0)
    np.testing.assert_array_equal(reading.sink_mass, 1)
    np.testing.assert_array_equal(reading.entropy, 0)
    np.testing.assert_allclose(reading.log_sum_exp, sink, rtol=2.0**-23)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n_query", [1, 40])
@pytest.mark.parametrize("n_key", [1, 300, 1100])  # within a block, over blocks, over chunks
def test_small_weights_beside_a_sink(rng: np.random.Generator, n_key: int, n_query: int, dtype: Any) -> None:
    """Sums of p, p^2 and p^3 are right to rounding down to the smallest normal number; below it they read 0.

    An error delta of the logits moves a weight by 2 delta of its size, its square by 4 and its cube by 6. A weight
    below the smallest normal number counts as 0.
    """
    smallest = float(np.finfo(dtype).tiny)
    sinks = np.linspace(0.2, 1.2, 21) * -np.log(smallest)
    query, key, value = random_arrays(rng, (), len(sinks), 1, n_query, n_key, 4, 1, dtype)
    value[:] = 1
    out, reading = rootdk.measure(query, key, value, sinks=sinks)
    problem = problem_of(query, key, value, sinks=sinks)
    expected = reference.weights(problem, np.longdouble)
    delta = logit_error(problem)
    for name, sums, power in (
        ("output", out[..., 0], 1),
        ("p_squared", reading.p_squared, 2),
        ("p_cubed", reading.p_cubed, 3),
    ):
        want = (expected**power).sum(axis=-1)
        lost = n_key * smallest if power == 1 else smallest
        assert (np.abs(sums - want) <= 2 * (2 * power * delta * want) + lost).all(), name
        assert (sums[want < smallest * (1 - 4 * power * delta)] == 0).all(), name
        assert (want < smallest).any(), name
        assert (sums > 0).any(), name
    assert np.isnan(reading.effective_keys[reading.p_squared == 0]).all()


@pytest.mark.parametrize("n_query", [1, 40])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("scale", "query_size", "key_size", "d_out_size"),
    [(1e19, 4e19, 0, 1e-6), (-1e19, 8e19, 0, 1e-6), (4, 1e38, 0, 1e-6), (40, 1e37, 1e-37, 1)],
)
def test_a_query_that_its_scale_carries_out_of_range(
    rng: np.random.Generator,
    scale: float,
    query_size: float,
    key_size: float,
    d_out_size: float,
    dtype: str,
    n_query: int,
) -> None:
    """The definition multiplies the product, which is 0 or small: nothing is infinite, and nothing is NaN."""
    query, key, value = random_arrays(rng, (), 1, 1, n_query, 50, 16, 5, np.float64)
    sizes = (np.clip(query, -2, 2) * query_size, key * key_size, value)
    d_out = d_out_size * rng.standard_normal((1, n_query, 5))
    query, key, value, d_out = (a.astype(DTYPES[dtype]) for a in (*sizes, d_out))
    if FLUSHES_INPUTS:
        key[np.abs(key) < ml_dtypes.finfo(key.dtype).tiny] = 0
    Judge((query, key, value), d_out, {"scale": scale}).check(tangent=False)
    # A direction of usual size takes most tangents out of the range: they are infinite, with their sign, never NaN.
    tangents = [rng.standard_normal(array.shape).astype(array.dtype) for array in (query, key, value)]
    result = np.asarray(rootdk.attention_jvp(query, key, value, *tangents, scale=scale)[1], np.float64)
    problem = problem_of(query, key, value, scale=scale)
    expected, bound = tangent_budget(problem, Learnable(*(tangent[None] for tangent in tangents)))
    largest = float(ml_dtypes.finfo(query.dtype).max)
    clear = np.abs(np.abs(expected) - largest) > bound
    assert not np.isnan(result).any()
    inside = clear & (np.abs(expected) < largest)
    assert (np.abs(result - expected)[inside] <= bound).all()
    beyond = clear & (np.abs(expected) > largest)
    np.testing.assert_array_equal(result[beyond], np.copysign(np.inf, expected[beyond]))
    assert beyond.any() or inside.any()


@pytest.mark.parametrize("n_query", [1, 40])
def test_a_row_that_sees_one_key_alone_beside_a_large_query(rng: np.random.Generator, n_query: int) -> None:
    """Its weight is 1 whatever moves, so it moves as its value does, while dS is near the end of the range."""
    query, key, value = random_arrays(rng, (), 2, 2, n_query, 50, 16, 5, np.float32)
    query = np.clip(query, -2, 2) * np.float32(1e38)
    tangents = [rng.standard_normal(array.shape).astype(np.float32) for array in (query, key, value)]
    key[:] = 0
    seen = np.zeros(50, bool)
    seen[17] = True
    d_out = rootdk.attention_jvp(query, key, value, *tangents, mask=seen)[1]
    np.testing.assert_allclose(d_out, np.broadcast_to(tangents[2][:, 17:18], d_out.shape), rtol=1e-6)


@pytest.mark.parametrize("softcap", [1e-38, 1e-40, 1e-44, 1e-300])
def test_a_softcap_below_the_normal_numbers(rng: np.random.Generator, softcap: float) -> None:
    """It makes every logit 0, those that were 0 before too."""
    arrays = random_arrays(rng, (), 1, 1, 40, 50, 16, 5, np.float32)
    arrays[1][0, 3] = 0
    Judge(arrays, np.ones((1, 40, 5), np.float32), {"softcap": softcap}).check()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("size", [1e4, 6e4])
def test_logits_beyond_what_exponents_hold(rng: np.random.Generator, dtype: str, size: float) -> None:
    """Half the last bit of a logit of 2^31 is 128, no exponent of a float: the largest key is at distance 0 still."""
    kind = DTYPES[dtype]
    query, key = (np.clip(size * rng.standard_normal((n, 64)), -6e4, 6e4).astype(kind) for n in (40, 300))
    value = rng.standard_normal((300, 5)).astype(kind)
    logits = query.astype(np.float64) @ key.astype(np.float64).T
    first, second = np.sort(logits, axis=1)[:, :-3:-1].T
    clear = first - second > 64 * 2.0**-24 * np.abs(logits).max()
    assert clear.mean() > 0.9
    out = rootdk.attention(query, key, value)
    np.testing.assert_array_equal(out[clear], value[logits.argmax(axis=1)][clear])
