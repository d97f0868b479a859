"""How exact the kernel's exponential, hyperbolic tangent, sums and roundings are, seen through the operator."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from budgets import assert_within, compute_type, forward_budget, gradient_budget, measure_budget, unit_roundoff
from judge import DTYPES, TARGETS, Judge, target

import rootdk
from rootdk.backends import problem_of, reference

HALVES = {name: DTYPES[name] for name in ("float16", "bfloat16")}
LN2 = math.log(2)  # as a scale it makes the kernel's own unit: the logit of key k is k*ln 2, without rounding


@pytest.fixture(params=TARGETS, autouse=True)
def each_target(request: pytest.FixtureRequest) -> Iterator[str]:
    with target(request.param):
        yield request.param


# Values come through as they are


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_single_key_returns_its_value(rng: np.random.Generator, dtype: str) -> None:
    kind = DTYPES[dtype]
    smallest, largest = np.log2(np.finfo(kind).tiny), np.log2(np.finfo(kind).max) - 1
    value = (rng.choice([-1, 1], (40, 1, 33)) * 2 ** rng.uniform(smallest, largest, (40, 1, 33))).astype(kind)
    query, key = (rng.standard_normal((40, 5 if i == 0 else 1, 16)).astype(kind) * 10 for i in range(2))
    out = rootdk.attention(query, key, value)
    np.testing.assert_array_equal(out, np.broadcast_to(value, out.shape))


@pytest.mark.parametrize("dtype", HALVES)
def test_every_half_comes_back(dtype: str) -> None:
    """All 65536 bit patterns, through widening, a weight of one, and rounding."""
    value = np.arange(2**16, dtype=np.uint16).view(HALVES[dtype]).reshape(64, 1, 1024)
    zeros = np.zeros((64, 1, 1), HALVES[dtype])
    out = rootdk.attention(zeros, zeros, value).astype(np.float64)
    with np.errstate(invalid="ignore"):  # a signalling NaN is among them
        expected = value.astype(np.float64)
    # A bfloat16 below 2^-126 is below float32's normal numbers too, and the kernel flushes those to zero.
    expected = np.where(np.abs(expected) < np.finfo(np.float32).tiny, 0, expected)
    np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("dtype", HALVES)
def test_halves_round_to_nearest_and_ties_to_even(dtype: str) -> None:
    """Two keys of equal weight, three and five of them: midpoints and points beside them."""
    first = np.arange(0x0400, 0x7B00, dtype=np.uint16)  # positive and normal, and so is the next one
    low, high = first.view(HALVES[dtype]), (first + 1).astype(np.uint16).view(HALVES[dtype])
    for lows, highs in ((1, 1), (2, 1), (1, 2), (4, 1)):
        value = np.stack([low] * lows + [high] * highs)
        zeros = np.zeros((lows + highs, 1), HALVES[dtype])
        out = rootdk.attention(zeros[:1], zeros, value)[0]
        share = highs / (lows + highs)
        exact = low.astype(np.float64) + (high.astype(np.float64) - low.astype(np.float64)) * share
        expected = exact.astype(HALVES[dtype])
        normal = exact >= np.finfo(np.float32).tiny
        np.testing.assert_array_equal(out[normal], expected[normal], err_msg=f"{lows} to {highs}")


# The exponential


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_two_weights_to_a_few_ulp(dtype: str) -> None:
    """Weights of two keys whose logits differ by x*ln 2, up to where one vanishes, each relative to itself."""
    kind, u = DTYPES[dtype], unit_roundoff(DTYPES[dtype])
    whole = np.arange(0, 126, dtype=kind)
    x = np.concatenate([whole + kind(f) for f in (0, 1 / 4, 3 / 8, 1 / 2, 2**-8, 127 / 128, 5 / 16)])
    x = np.concatenate([x, np.arange(0, 4, 2**-9, dtype=kind), 2.0 ** np.arange(-20, 0, dtype=kind)])
    x = x[x <= 126]
    key = np.zeros((len(x), 2, 1), kind)
    key[:, 1, 0] = -x
    value = np.broadcast_to(np.eye(2, dtype=kind), (len(x), 2, 2))
    out = rootdk.attention(np.ones((len(x), 1, 1), kind), key, value, scale=LN2)[:, 0].astype(np.longdouble)
    small = np.exp2(-x.astype(np.longdouble))
    expected = np.stack([1 / (1 + small), small / (1 + small)], axis=-1)
    error = np.abs(out - expected) / expected
    # exp2: its polynomial 2 u, its last steps 2 u; then the sum, the inverse, and the product. float64 cannot hold
    # ln 2 * log2(e) = 1 exactly: the logit itself is off by u*x.
    bound = 8 * u + (0 if dtype == "float32" else 2 * u * x[:, None])
    assert (error <= bound).all(), f"{float(error.max() / u):.1f} u at x = {x[error.max(axis=-1).argmax()]}"


def test_weights_that_vanish() -> None:
    """Beyond the range of the type a weight is zero, never NaN and never something that stays."""
    x = np.array([127, 128, 150, 1e3, 1e10, 1e30, 3e38], np.float32)
    key = np.zeros((len(x), 2, 1), np.float32)
    key[:, 1, 0] = -x
    value = np.broadcast_to(np.eye(2, dtype=np.float32), (len(x), 2, 2))
    out, reading = rootdk.measure(np.ones((len(x), 1, 1), np.float32), key, value, scale=LN2)
    assert (out[:, 0, 0] == 1).all()
    assert (out[:, 0, 1] <= 2.0**-126).all()
    assert (out[:, 0, 1] >= 0).all()
    assert (reading.entropy >= 0).all()
    assert (reading.entropy < 1e-30).all()
    assert (reading.log_sum_exp == 0).all()


# The cap


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("cap", [0.7, 50.0, 1e4, 1e8])
def test_a_capped_logit_keeps_its_digits(dtype: str, cap: float) -> None:
    """cap * tanh(x / cap) relative to itself, also where x is a millionth of the cap and 1 - exp(-2x) would lose it."""
    kind, u = DTYPES[dtype], unit_roundoff(DTYPES[dtype])
    x = np.geomspace(1e-6, 20, 4001) * cap
    x = np.concatenate([-x, x]).astype(kind)
    ones = np.ones((1, 1), kind)
    reading = rootdk.measure(x[:, None], ones, ones, scale=1.0, softcap=cap)[1]
    expected = cap * np.tanh(x.astype(np.longdouble) / cap)
    error = np.abs(reading.max.astype(np.longdouble) - expected) / np.abs(expected)
    # x/cap, the exponential, its difference from 1, the quotient, and the way to base 2 and back: 12 roundings at most.
    assert error.max() <= 12 * u, f"{float(error.max() / u):.1f} u at {x[error.argmax()] / cap:.3g} caps"
    np.testing.assert_array_equal(reading.max[:4001], -reading.max[4001:])


# Sums


def shifted_logits(rng: np.random.Generator, level: float, dtype: Any, n_key: int = 1000) -> tuple[list[Any], Any]:
    """Logits of deviation 1 around `level`, and no other: key and query are zero."""
    bias = (level + rng.standard_normal((3, n_key))).astype(dtype)
    return [np.zeros((3, 4), dtype), np.zeros((n_key, 4), dtype), rng.standard_normal((n_key, 5)).astype(dtype)], bias


@pytest.mark.parametrize("level", [0.0, 1e4, -1e4])
@pytest.mark.parametrize("n_key", [5, 128, 129, 1000])
def test_variance_far_from_zero(rng: np.random.Generator, level: float, n_key: int) -> None:
    arrays, bias = shifted_logits(rng, level, np.float32, n_key)
    reading = rootdk.measure(*arrays, bias=bias)[1]
    for field, (expected, bound) in measure_budget(problem_of(*arrays, bias=bias)).items():
        assert_within(getattr(reading, field), expected[0], bound, field)
    # A logit of 1e4 in float32 is known to 1e-3, and so is a deviation of 1.
    np.testing.assert_allclose(reading.variance, bias.astype(np.float64).var(axis=-1), rtol=1e-5 + 2e-7 * abs(level))


def test_raw_sums_would_fail_there(rng: np.random.Generator) -> None:
    """Mean of squares minus square of mean, in float32: the bound above tells it from the real thing."""
    arrays, bias = shifted_logits(rng, 1e4, np.float32)
    expected, bound = measure_budget(problem_of(*arrays, bias=bias))["variance"]
    raw = (bias * bias).mean(axis=-1) - bias.mean(axis=-1) ** 2
    assert np.abs(raw - expected[0]).max() > bound


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_entropy_near_saturation(dtype: str) -> None:
    """One key takes nearly all: what is left is small, right, and not below zero."""
    kind, u = DTYPES[dtype], unit_roundoff(DTYPES[dtype])
    gap = np.linspace(0, 60, 2401)
    key = np.zeros((len(gap), 2, 1), kind)
    key[:, 1, 0] = -gap
    reading = rootdk.measure(np.ones((len(gap), 1, 1), kind), key, key, scale=1.0)[1]
    exact = -key[:, 1, 0].astype(np.longdouble)
    # In forms that lose nothing where longdouble is float64 too, as on Windows and on ARM: ln p = -log1p(e^-gap).
    odds = np.exp(-exact)
    expected = (np.log1p(odds) + odds * (exact + np.log1p(odds))) / (1 + odds)
    entropy = reading.entropy[:, 0]
    assert (entropy >= 0).all()
    # log(sum) is near 0 and moves by u; the moment by (gap + 4) u of itself.
    assert (np.abs(entropy - expected) <= 2 * u + 4 * u * (gap + 2) * expected).all()
    assert (reading.p_squared <= 1 + 4 * u).all()
    assert (reading.jacobian_trace >= 0).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_long_sums(rng: np.random.Generator, dtype: str) -> None:
    """20000 keys: the error of the sums must not grow with their length beyond the budget of a plain program."""
    kind = DTYPES[dtype]
    query, key, value = (rng.standard_normal((n, 16)).astype(kind) for n in (3, 20_000, 20_000))
    problem = problem_of(query, key, value + kind(1))
    out, reading = rootdk.measure(query, key, value + kind(1))
    expected, bound = forward_budget(problem)
    assert_within(out, expected[0], bound)
    for field, (row, limit) in measure_budget(problem).items():
        assert_within(getattr(reading, field), row[0], limit, field)
    assert (reading.keys == 20_000).all()
    d_out = rng.standard_normal((3, 16)).astype(kind)
    gradients = rootdk.attention_vjp(query, key, value + kind(1))[1](d_out)
    for name, gradient, (wanted, limit) in zip("qkv", gradients, gradient_budget(problem, d_out[None]), strict=True):
        assert_within(gradient, wanted[0], limit, f"d_{name}")


def test_long_equal_sums() -> None:
    """The worst case for a running sum: every weight and every value alike."""
    n_key = 20_000
    value = np.full((n_key, 3), 0.1, np.float32)
    out, reading = rootdk.measure(np.ones((1, 4), np.float32), np.ones((n_key, 4), np.float32), value)
    # Blocks of 128 added one after the other, 157 of them: sqrt of either by chance, 128 + 157 if all err to one side.
    u = 2.0**-24
    np.testing.assert_allclose(out, value[:1], rtol=2 * (128 + 157) * u)
    np.testing.assert_allclose(reading.entropy, math.log(n_key), rtol=1e-5)
    np.testing.assert_allclose(reading.effective_keys, n_key, rtol=1e-4)


# Dropout


@pytest.mark.parametrize("rate", [1e-3, 0.3, 0.5, 0.97])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("seed", [0, 12345, 2**64 - 1])
def test_dropout_pair_by_pair(dtype: str, rate: float, seed: int) -> None:
    """Equal weights and the identity as value: the output is the pattern of kept pairs, and so is d_value."""
    kind, n_query, n_key = DTYPES[dtype], 21, 200
    query, key = np.zeros((2, 2, n_query, 3), kind), np.zeros((2, 1, n_key, 3), kind)
    value = np.broadcast_to(np.eye(n_key, dtype=kind), (2, 1, n_key, n_key))
    options = {"dropout": rate, "seed": seed}
    out, pull_back = rootdk.attention_vjp(query, key, value, **options)
    problem = problem_of(query, key, value, **options)
    gone = np.stack([[reference.dropped(problem, b, h) for h in range(2)] for b in range(2)])
    np.testing.assert_array_equal(out == 0, gone)
    kept = out[~gone].astype(np.float64)
    u = unit_roundoff(kind) + 4 * unit_roundoff(compute_type(kind))
    np.testing.assert_allclose(kept, 1 / (n_key * (1 - rate)), rtol=u)

    d_out = np.zeros((2, 2, n_query, n_key), kind)
    d_out[..., 0] = 2.0 ** -np.arange(n_query) if dtype == "float64" else np.arange(1, n_query + 1)
    d_value = pull_back(d_out)[2][..., 0].astype(np.float64)
    expected = np.where(gone, 0, d_out[..., :1].astype(np.float64)).sum(axis=(1, 2)) / (n_key * (1 - rate))
    np.testing.assert_allclose(d_value[:, 0], expected, rtol=u * 8, atol=1e-12)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_dropout_with_everything_else(rng: np.random.Generator, dtype: str) -> None:
    kind = DTYPES[dtype]
    arrays = [rng.standard_normal(shape).astype(kind) for shape in ((2, 40, 8), (1, 140, 8), (1, 140, 6), (2, 40, 6))]
    options = {"dropout": 0.4, "seed": 3, "causal": True, "softcap": 2.0, "sinks": [0.1, 2.0]}
    Judge(arrays[:3], arrays[3], options).check()
