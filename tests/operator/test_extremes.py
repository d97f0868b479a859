"""Numbers at the end of the range of float32, which the kernel multiplies by log2(e): finite must stay finite."""

from collections.abc import Iterator

import numpy as np
import pytest
from helpers import assert_within, measure_budget, random_arrays
from judge import DTYPES, TARGETS, Judge, target

import rootdk
from rootdk.backends import problem_of

LOWEST = np.finfo(np.float32).min


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
