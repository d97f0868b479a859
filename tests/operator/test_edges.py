"""The edge cases of the contract and the bugs that other kernels had, each a test with its name, on every target."""

import ctypes
import math
import mmap
import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from budgets import assert_within, forward_budget, gradient_budget, measure_budget
from judge import DTYPES, TARGETS, Judge, assert_same_bits, everything, target
from problems import random_arrays

import rootdk
from rootdk import _kernel
from rootdk.backends import problem_of, reference
from rootdk.options import Learnable, Problem

BAD = [np.nan, np.inf, -np.inf]
GRADIENTS = ("d_query", "d_key", "d_value")
# More than one block of keys, more than one panel of queries, and no multiple of either.
SIZES = {"leading": (1,), "heads": 2, "kv_heads": 1, "n_query": 70, "n_key": 150, "d_k": 9, "d_v": 6}


@pytest.fixture(params=TARGETS, autouse=True)
def each_target(request: pytest.FixtureRequest) -> Iterator[str]:
    with target(request.param):
        yield request.param


def arrays_and_gradient(rng: np.random.Generator, dtype: Any = np.float32, **sizes: Any) -> tuple[list[Any], Any]:
    query, key, value = random_arrays(rng, **(SIZES | sizes), dtype=dtype)
    return [query, key, value], rng.standard_normal(query.shape[:-1] + value.shape[-1:]).astype(dtype)


def reads_nothing(reading: Any, rows: Any) -> None:
    empty = {"keys": 0, "log_sum_exp": -np.inf, "max": -np.inf, "min": np.inf}
    for name in (*reference.FIELDS, "keys"):
        assert (getattr(reading, name)[rows] == empty.get(name, 0)).all(), name


# A row with every key hidden


@pytest.mark.parametrize("how", ["mask", "bias", "lengths", "window", "causal"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_key_hidden(rng: np.random.Generator, dtype: str, how: str) -> None:
    """Contract: a row with every key hidden is zero, reads -inf and no keys, and its gradient is zero, not NaN."""
    (q, k, v), d_out = arrays_and_gradient(rng, DTYPES[dtype])
    mask = np.ones((70, 150), bool)
    mask[:40] = False
    options: dict[str, Any] = {
        "mask": {"mask": mask},
        "bias": {"bias": np.where(mask, 0.0, -np.inf)},
        "lengths": {"key_lengths": [0]},
        "window": {"window": 0, "query_offset": -40},
        "causal": {"causal": True, "query_offset": -40},
    }[how]
    hidden = slice(0, 70 if how == "lengths" else 40)
    d_out[..., hidden, :] = np.nan  # nothing of such a row may reach a gradient
    out, reading = rootdk.measure(q, k, v, **options)
    assert (out[..., hidden, :] == 0).all()
    reads_nothing(reading, (..., hidden))
    gradients = rootdk.attention_vjp(q, k, v, **options)[1](d_out)
    assert (gradients[0][..., hidden, :] == 0).all()
    d_out[..., hidden, :] = 0
    budgets = gradient_budget(problem_of(q, k, v, **options), d_out)
    for name, gradient, budget in zip(GRADIENTS, gradients, budgets, strict=True):
        assert_within(gradient, *budget, name)


def test_every_key_hidden_with_a_sink(rng: np.random.Generator) -> None:
    """Contract: the output of such a row is zero even if a sink takes the weight."""
    (q, k, v), d_out = arrays_and_gradient(rng)
    out, reading = rootdk.measure(q, k, v, key_lengths=[0], sinks=[-2.0, 300.0])
    assert (out == 0).all()
    assert (reading.sink_mass == 1).all()
    np.testing.assert_allclose(reading.log_sum_exp[0, :, 0], [-2.0, 300.0], rtol=1e-6)
    for gradient in rootdk.attention_vjp(q, k, v, key_lengths=[0], sinks=[-2.0, 300.0])[1](d_out):
        assert (gradient == 0).all()


def test_more_queries_than_keys_aligned_at_the_end(rng: np.random.Generator) -> None:
    """Bug elsewhere: with more queries than keys the first rows see nothing; they are zero and the others right."""
    (q, k, v), d_out = arrays_and_gradient(rng, n_query=150, n_key=20)
    Judge([q, k, v], d_out, {"causal": True}).check()
    out, reading = rootdk.measure(q, k, v, causal=True)
    assert (out[..., :130, :] == 0).all()
    assert (out[..., 130:, :] != 0).any(axis=-1).all()
    assert reading.keys[0, 0].tolist() == [0] * 130 + list(range(1, 21))


# Empty sizes


@pytest.mark.parametrize(
    "sizes", [{"n_key": 0}, {"n_query": 0}, {"leading": (0,)}, {"leading": (2, 0, 3)}, {"d_v": 0}, {"heads": 0}]
)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("options", [{}, {"causal": True, "softcap": 2.0, "dropout": 0.5, "seed": 1}])
def test_empty_sizes(rng: np.random.Generator, dtype: str, sizes: dict[str, Any], options: dict[str, Any]) -> None:
    """Contract: n_key = 0, n_query = 0, batch = 0 are empty or zeros, no crash."""
    arrays, d_out = arrays_and_gradient(rng, DTYPES[dtype], **sizes)
    out, reading = rootdk.measure(*arrays, **options)
    assert out.shape == d_out.shape
    assert (out == 0).all()
    assert reading.shape == arrays[0].shape[:-1]
    gradients = rootdk.attention_vjp(*arrays, **options)[1](d_out)
    for array, gradient in zip(arrays, gradients, strict=True):
        assert gradient.shape == array.shape
        assert "d_v" in sizes or (gradient == 0).all()
    if "n_key" in sizes:
        reads_nothing(reading, ...)


# NaN and infinity, visible


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("causal", [False, True])
def test_nan_in_a_query(rng: np.random.Generator, dtype: str, causal: bool) -> None:
    """Contract, and a bug elsewhere (NaN turned into zero): that row is NaN, every other row keeps its bits."""
    arrays, d_out = arrays_and_gradient(rng, DTYPES[dtype])
    clean = everything(arrays, d_out, causal=causal)
    arrays[0][0, 1, 33, 4] = np.nan
    results = everything(arrays, d_out, causal=causal)
    others = np.ones((1, 2, 70), bool)
    others[0, 1, 33] = False
    rows = {name: array for name, array in results.items() if name not in ("d_key", "d_value", "d_query")}
    assert_same_bits(rows, {name: clean[name] for name in rows}, lambda a: a[others])
    for name, array in rows.items():
        if name == "keys":
            np.testing.assert_array_equal(array, clean[name])
        else:
            assert np.isnan(array[0, 1, 33]).all(), name
    assert np.isnan(results["d_query"][0, 1, 33]).all()
    np.testing.assert_array_equal(results["d_query"][others], clean["d_query"][others])


@pytest.mark.parametrize("dtype", DTYPES)
def test_nan_in_a_visible_key(rng: np.random.Generator, dtype: str) -> None:
    """Contract: every row that sees the key is NaN; the rows before it keep their bits, backward too."""
    arrays, d_out = arrays_and_gradient(rng, DTYPES[dtype], n_query=150)
    clean = everything(arrays, d_out, causal=True)
    arrays[1][0, 0, 45, 2] = np.nan
    results = everything(arrays, d_out, causal=True)
    by_row = [name for name in results if name not in ("d_key", "d_value", "keys")]
    for name in by_row:
        assert np.isnan(results[name][0, :, 45:]).all(), name
    np.testing.assert_array_equal(results["keys"], clean["keys"])
    assert_same_bits({n: results[n] for n in by_row}, {n: clean[n] for n in by_row}, lambda a: a[:, :, :45])


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("dtype", DTYPES)
def test_nan_or_inf_in_a_visible_value(rng: np.random.Generator, dtype: str, bad: float) -> None:
    """Contract: rows that see the value carry it in its column; other rows and columns keep their bits."""
    arrays, d_out = arrays_and_gradient(rng, DTYPES[dtype], n_query=150)
    clean = rootdk.attention(*arrays, causal=True)
    arrays[2][0, 0, 45, 2] = bad
    out, reading = rootdk.measure(*arrays, causal=True)
    np.testing.assert_array_equal(out[:, :, 45:, 2].astype(np.float32), np.full((1, 2, 105), bad, np.float32))
    np.testing.assert_array_equal(out[:, :, :45], clean[:, :, :45])
    others = [0, 1, 3, 4, 5]
    np.testing.assert_array_equal(out[..., others], clean[..., others])
    assert not reading.non_finite.any()  # the logits are clean
    gradients = rootdk.attention_vjp(*arrays, causal=True)[1](d_out)
    assert np.isfinite(gradients[0][:, :, :45]).all()
    assert not np.isfinite(gradients[0][:, :, 45:].astype(np.float32)).any()


# NaN and infinity, hidden

HIDING: dict[str, dict[str, Any]] = {
    "causal": {"causal": True, "query_offset": 30},  # the last query sees keys 0 to 99
    "mask": {"mask": np.arange(150)[None, :] < 100},
    "ragged mask": {"mask": (np.arange(150)[None, :] < 100) & (np.arange(70)[:, None] * 7 % 11 != np.arange(150) % 11)},
    "lengths": {"key_lengths": [100], "query_offset": 0},
    "window": {"window": (None, 5), "query_offset": 25},
}


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("how", HIDING)
@pytest.mark.parametrize("dtype", DTYPES)
def test_hidden_nan_or_inf_has_no_effect(rng: np.random.Generator, dtype: str, how: str, bad: float) -> None:
    """Contract, and a bug elsewhere (inf in masked values leaked): keys 100 on are hidden from every row.

    To the bit, forward and backward: what is right without them, as others judge, is right with them.
    """
    arrays, d_out = arrays_and_gradient(rng, DTYPES[dtype])
    clean = everything(arrays, d_out, **HIDING[how])
    arrays[1][:, :, 100:] = bad
    arrays[2][:, :, 100:] = bad
    results = everything(arrays, d_out, **HIDING[how])
    assert_same_bits(results, clean)
    for name in ("d_key", "d_value"):
        assert (results[name][:, :, 100:] == 0).all(), name


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("dtype", DTYPES)
def test_key_and_value_hidden_by_a_bias(rng: np.random.Generator, dtype: str, bad: float) -> None:
    """A bias of -inf hides as a mask does: NaN - inf would be NaN, but nobody asks for the logit."""
    arrays, d_out = arrays_and_gradient(rng, DTYPES[dtype])
    options = {"bias": np.where(np.arange(150) < 100, 0.0, -np.inf)}
    clean = everything(arrays, d_out, **options)
    arrays[2][:, :, 100:] = bad
    results = everything(arrays, d_out, **options)
    exact = [name for name in results if name not in GRADIENTS]
    assert_same_bits({n: results[n] for n in exact}, {n: clean[n] for n in exact})
    for name, budget in zip(GRADIENTS, gradient_budget(problem_of(*arrays, **options), d_out), strict=True):
        assert_within(results[name], *budget, name)
    arrays[1][:, :, 100:] = bad
    assert_same_bits(everything(arrays, d_out, **options), results)


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("dtype", DTYPES)
def test_hidden_from_some_rows_only(rng: np.random.Generator, dtype: str, bad: float) -> None:
    """Contract: a bad value that later rows see must not touch the rows before it, though they share its block."""
    arrays, _ = arrays_and_gradient(rng, DTYPES[dtype])
    options = {"causal": True}
    clean = rootdk.attention(*arrays, **options)
    arrays[2][0, 0, 110] = bad
    problem = problem_of(*arrays, **options)
    out, reading = rootdk.measure(*arrays, **options)
    assert_within(out, *forward_budget(problem))
    for field, budget in measure_budget(problem).items():
        assert_within(getattr(reading, field), *budget, field)
    first = 30  # the query that stands at key 110
    np.testing.assert_array_equal(out[:, :, :first], clean[:, :, :first])
    assert not np.isfinite(out[:, :, first:].astype(np.float32)).any()


@pytest.mark.parametrize("bad", BAD)
def test_hidden_by_a_logit_of_minus_infinity(rng: np.random.Generator, bad: float) -> None:
    """Definition: a pair whose logit is -inf is hidden, here without mask, bias or limit; its value has no effect."""
    arrays, d_out = arrays_and_gradient(rng)
    arrays[0] = np.abs(arrays[0])
    mask = np.ones((1, 150), bool)
    mask[0, [3, 140]] = False
    clean = everything(arrays, d_out, mask=mask)
    arrays[1][:, :, [3, 140], 0] = -np.inf  # times a positive query: -inf
    arrays[2][:, :, [3, 140]] = bad
    results = everything(arrays, d_out)
    exact = [name for name in results if name not in GRADIENTS]
    assert_same_bits({n: results[n] for n in exact}, {n: clean[n] for n in exact})
    for name, budget in zip(GRADIENTS, gradient_budget(problem_of(*arrays), d_out), strict=True):
        assert_within(results[name], *budget, name)


# Logits of any size


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("level", [1e30, -1e30, -2e4, 1e19])
@pytest.mark.parametrize("n_key", [3, 300])
def test_huge_logits(dtype: str, level: float, n_key: int) -> None:
    """Contract: logits of +-1e30, or a log-sum-exp below -1e4, are exact because the maximum is subtracted first."""
    kind = DTYPES[dtype]
    q = np.ones((1, 1), kind)
    k = np.full((n_key, 1), level * (1.5 if level < 0 else 0.5), kind)
    v = np.full((n_key, 1), 100, kind)
    k[[0, n_key - 1], 0], v[[0, n_key - 1], 0] = level, [1, 3]
    out, reading = rootdk.measure(q, k, v, scale=1.0)
    assert out.item() == 2
    top = float(k[0, 0])
    assert reading.log_sum_exp.item() == pytest.approx(top + math.log(2), rel=1e-6)
    assert reading.max.item() == pytest.approx(top, rel=1e-6)
    assert reading.min.item() == pytest.approx(float(k[1, 0]), rel=1e-6)
    assert reading.entropy.item() == pytest.approx(math.log(2), rel=1e-6)
    assert reading.p_squared.item() == 0.5
    gradients = rootdk.attention_vjp(q, k, v, scale=1.0)[1](np.ones((1, 1), kind))
    assert gradients[2][[0, n_key - 1], 0].tolist() == [0.5, 0.5]
    assert gradients[1][0, 0] == -0.5
    assert gradients[1][n_key - 1, 0] == 0.5


@pytest.mark.parametrize("level", [1e30, -1e30, 1e18])
def test_equal_huge_logits_have_no_variance(level: float) -> None:
    """Contract: logits of +-1e30. Equal ones spread by their rounding at most, and are no NaN."""
    ones = np.ones((300, 1), np.float32)
    out, reading = rootdk.measure(ones[:1], ones * np.float32(level), ones, scale=1.0)
    assert out.item() == 1
    assert not reading.non_finite.any()
    assert reading.mean.item() == pytest.approx(level, rel=1e-5)
    assert reading.std.item() <= 1e-5 * abs(level)


def test_the_largest_finite_bias(rng: np.random.Generator) -> None:
    """Common practice: a bias of the most negative float32 instead of -inf. It is finite: such a key is visible."""
    arrays, _ = arrays_and_gradient(rng)
    bias = np.zeros((70, 150), np.float32)
    bias[:, 100:] = bias[5] = np.finfo(np.float32).min
    out, reading = rootdk.measure(*arrays, bias=bias)
    assert (reading.keys == 150).all()
    expected = rootdk.attention(arrays[0], arrays[1][:, :, :100], arrays[2][:, :, :100])
    rows = np.arange(70) != 5
    np.testing.assert_allclose(out[:, :, rows], expected[:, :, rows], rtol=1e-5, atol=1e-6)
    # The logits of row 5 differ by less than the bias can hold: all are alike.
    mean = np.broadcast_to(arrays[2].mean(axis=-2), (1, 2, 6))
    np.testing.assert_allclose(out[:, :, 5], mean, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
def test_the_largest_scale_on_keys_of_zero(dtype: Any) -> None:
    """The scale is multiplied into the query first, and must not become infinite there: inf * 0 is NaN."""
    query, value = np.full((2, 3, 4), 6e4, dtype), np.arange(24, dtype=dtype).reshape(2, 3, 4)
    out, pull_back = rootdk.attention_vjp(query, np.zeros_like(query), value, scale=1e19)
    np.testing.assert_allclose(
        out.astype(np.float64), np.broadcast_to(value.mean(1, keepdims=True), out.shape), rtol=1e-3
    )
    d_query, _, d_value = pull_back(np.ones_like(out))
    assert not d_query.any()
    np.testing.assert_allclose(d_value.astype(np.float64), 1, rtol=1e-3)
    with pytest.raises(rootdk.ArgumentError, match=r"^scale: must be finite and at most 1e\+19 in size, got 1e\+38$"):
        rootdk.attention(query, query, value, scale=1e38)


@pytest.mark.parametrize("softcap", [1e30, 1e38, 3e38, 1e300])
def test_a_softcap_without_end(rng: np.random.Generator, softcap: float) -> None:
    """A cap is any finite number > 0; one beyond the range of float32 caps nothing."""
    arrays, d_out = arrays_and_gradient(rng)
    Judge(arrays, d_out, {"softcap": softcap}).check()


@pytest.mark.parametrize("softcap", [1e-3, 1e-30])
def test_a_tiny_softcap(rng: np.random.Generator, softcap: float) -> None:
    """And one that caps everything makes all weights alike."""
    arrays, d_out = arrays_and_gradient(rng)
    Judge(arrays, d_out, {"softcap": softcap}).check()


@pytest.mark.parametrize("where", ["bias", "query"])
@pytest.mark.parametrize("position", [0, 60, 149])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_logit_of_plus_infinity(rng: np.random.Generator, dtype: str, where: str, position: int) -> None:
    """Contract: +inf is NaN, as softmax defines it; other rows keep their bits."""
    arrays, d_out = arrays_and_gradient(rng, DTYPES[dtype])
    bias = np.zeros((70, 150), np.float32)
    arrays[1][:, :, position, 0] = 1
    clean = everything(arrays, d_out, bias=bias)
    if where == "bias":
        bias[20, position] = np.inf
    else:  # times a component of either sign, at `position` of the positive one
        arrays[0][:, :, 20, 0] = np.inf
    results = everything(arrays, d_out, bias=bias)
    others = np.arange(70) != 20
    for name in results:
        if name in GRADIENTS:
            continue
        np.testing.assert_array_equal(results[name][:, :, others], clean[name][:, :, others], err_msg=name)
        if name != "keys":
            assert np.isnan(results[name][:, :, 20]).all(), name
    assert np.isnan(results["d_query"][:, :, 20]).all()
    assert np.isfinite(results["d_query"][:, :, others]).all()


# Blocks


@pytest.mark.parametrize("how", ["mask", "window", "bias"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_first_key_block_fully_hidden(rng: np.random.Generator, dtype: str, how: str) -> None:
    """Contract, and a bug elsewhere (NaN from the first masked block): the maximum is still -inf when it ends."""
    block = _kernel.tile()["keys"]
    n_key = 2 * block + 9
    arrays, d_out = arrays_and_gradient(rng, DTYPES[dtype], n_key=n_key)
    seen = np.arange(n_key) >= block + 3
    options: dict[str, Any] = {
        "mask": {"mask": np.broadcast_to(seen, (70, n_key))},
        "bias": {"bias": np.where(seen, 1.0, -np.inf)},
        "window": {"window": (5, 5), "query_offset": block + 8},
    }[how]
    Judge(arrays, d_out, options).check()


def test_a_block_in_the_middle_fully_hidden(rng: np.random.Generator) -> None:
    """The same later on: a hidden block leaves maximum and sums as they were."""
    block = _kernel.tile()["keys"]
    arrays, d_out = arrays_and_gradient(rng, n_key=3 * block)
    mask = np.ones((70, 3 * block), bool)
    mask[::2, block : 2 * block] = False
    mask[1::4, 2 * block :] = False
    Judge(arrays, d_out, {"mask": mask}).check()


@pytest.mark.parametrize("step", [40.0, -40.0])
def test_the_maximum_moves_in_every_block(rng: np.random.Generator, step: float) -> None:
    """What was summed before must shrink when a larger score turns up, and nothing may shrink when none does."""
    block = _kernel.tile()["keys"]
    arrays, d_out = arrays_and_gradient(rng, n_key=4 * block)
    bias = step * (np.arange(4 * block) // block)
    Judge(arrays, d_out, {"bias": bias, "sinks": [60.0, -200.0]}).check()


# Logarithms and signs


@pytest.mark.parametrize("dtype", DTYPES)
def test_log_sum_exp_is_natural(dtype: str) -> None:
    """Bug elsewhere: log-sum-exp off by a factor or a term of ln 2, from an exponent to base 2."""
    zeros = np.zeros((300, 4), DTYPES[dtype])
    for n_key in (1, 2, 3, 130, 300):
        reading = rootdk.measure(zeros[:1], zeros[:n_key], zeros[:n_key])[1]
        assert reading.log_sum_exp.item() == pytest.approx(math.log(n_key), rel=1e-6)
        assert reading.entropy.item() == pytest.approx(math.log(n_key), rel=1e-6)
    bias = np.array([2.0, 5.0], np.float32)
    reading = rootdk.measure(zeros[:1], zeros[:2], zeros[:2], bias=bias)[1]
    assert reading.log_sum_exp.item() == pytest.approx(5 + math.log1p(math.exp(-3)), rel=1e-6)
    assert (reading.min.item(), reading.max.item()) == pytest.approx((2, 5), rel=1e-6)
    assert reading.variance.item() == pytest.approx(2.25, rel=1e-5)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("level", [0.0, -1.0, -300.0])
def test_a_head_whose_maximum_is_not_positive(rng: np.random.Generator, dtype: str, level: float) -> None:
    """Bug elsewhere: a maximum that starts at 0 instead of -inf breaks heads whose logits are all <= 0."""
    q = np.abs(rng.standard_normal((1, 2, 70, 9))).astype(DTYPES[dtype])
    k = -np.abs(rng.standard_normal((1, 1, 150, 9))).astype(DTYPES[dtype])
    v = rng.standard_normal((1, 1, 150, 6)).astype(DTYPES[dtype])
    k[:, :, 7] = 0
    d_out = rng.standard_normal((1, 2, 70, 6)).astype(DTYPES[dtype])
    Judge([q, k, v], d_out, {"bias": np.full((1, 1), level)}).check()
    reading = rootdk.measure(q, k, v)[1]
    assert (reading.max == 0).all()
    assert (reading.min < 0).all()
    reading = rootdk.measure(q, k[:, :, 8:], v[:, :, 8:])[1]
    assert (reading.max < 0).all()


@pytest.mark.parametrize("level", [-90.0, -1000.0, -2e4])
@pytest.mark.parametrize("n_key", [1, 129, 150, 263])
def test_low_log_sum_exp_and_ragged_tails_backward(rng: np.random.Generator, level: float, n_key: int) -> None:
    """Bug elsewhere: log-sum-exp below -88.7 (where exp underflows) and a last block in part gave NaN in d_query."""
    arrays, d_out = arrays_and_gradient(rng, n_key=n_key)
    options = {"bias": np.full((70, n_key), level)}
    assert (rootdk.measure(*arrays, **options)[1].log_sum_exp < -80).all()
    Judge(arrays, d_out, options).check()
    options = {"causal": True, "query_offset": n_key - 40, "bias": np.full((70, n_key), level)}
    Judge(arrays, d_out, options).check()


# Strides

LAYOUTS = {
    "transposed": lambda a: np.ascontiguousarray(a.swapaxes(-3, -2)).swapaxes(-3, -2),
    "Fortran": np.asfortranarray,
    "backwards": lambda a: np.ascontiguousarray(a[::-1, ::-1, ::-1, ::-1])[::-1, ::-1, ::-1, ::-1],
    "backwards rows": lambda a: np.ascontiguousarray(a[..., ::-1, :])[..., ::-1, :],
    "steps": lambda a: np.repeat(np.repeat(a, 2, axis=-2), 3, axis=-1)[..., ::2, ::3],
    "cut": lambda a: np.pad(a, [(0, 0), (1, 0), (0, 2), (3, 1)])[:, 1:, :-2, 3:-1],
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_non_contiguous_gradient(rng: np.random.Generator, dtype: str, layout: str) -> None:
    """Contract, and a bug elsewhere: a d_out of any strides gives the bits of a contiguous one."""
    arrays, d_out = arrays_and_gradient(rng, DTYPES[dtype])
    pull_back = rootdk.attention_vjp(*arrays, causal=True)[1]
    strided = LAYOUTS[layout](d_out)
    for ours, expected in zip(pull_back(strided), pull_back(d_out), strict=True):
        np.testing.assert_array_equal(ours, expected)


def test_an_expanded_gradient(rng: np.random.Generator) -> None:
    """What `out.sum()` hands back in other libraries: one number seen as a whole array."""
    arrays, d_out = arrays_and_gradient(rng)
    pull_back = rootdk.attention_vjp(*arrays)[1]
    expanded = np.broadcast_to(np.float32(0.5), d_out.shape)
    for ours, expected in zip(pull_back(expanded), pull_back(np.ascontiguousarray(expanded)), strict=True):
        np.testing.assert_array_equal(ours, expected)


@pytest.mark.parametrize("axis", [0, 1, 2, 3])
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_expanded_tensors(rng: np.random.Generator, dtype: str, axis: int) -> None:
    """Contract: stride 0 on any axis of query, key and value gives the bits of the same array written out."""
    arrays, d_out = arrays_and_gradient(rng, DTYPES[dtype], leading=(3,), kv_heads=2)
    index = (slice(None),) * axis + (slice(0, 1),)
    expanded = [np.broadcast_to(a[index], a.shape) for a in arrays]
    assert all(a.strides[axis] == 0 for a in expanded)
    assert_same_bits(everything(expanded, d_out), everything([a.copy() for a in expanded], d_out))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_negative_and_other_strides(rng: np.random.Generator, dtype: str, layout: str) -> None:
    """Contract: negative strides, and every other, in query, key, value, mask and bias."""
    arrays, d_out = arrays_and_gradient(rng, DTYPES[dtype])
    mask, bias = rng.random((1, 2, 70, 150)) < 0.8, rng.standard_normal((1, 2, 70, 150))
    change = LAYOUTS[layout]
    results = everything([change(a) for a in arrays], change(d_out), mask=change(mask), bias=change(bias))
    assert_same_bits(results, everything(arrays, d_out, mask=mask, bias=bias))


# Sizes beyond 32 bits


def far_apart(shape: tuple[int, ...], dtype: Any, jumps: tuple[int, ...]) -> Any:
    """An array of zeros whose axes step by so many elements. Only the pages that are touched take memory."""
    size = 1 + sum(jump * (n - 1) for jump, n in zip(jumps, shape, strict=True))
    item = np.dtype(dtype).itemsize
    steps = tuple(jump * item for jump in jumps)
    if os.name == "nt":
        rows = [sum(i * step for i, step in zip(index, steps, strict=False)) for index in np.ndindex(shape[:-1])]
        memory = windows_memory(size * item, rows, shape[-1] * jumps[-1] * item)
    else:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
        memory = mmap.mmap(-1, size * item, flags=flags)
    return np.lib.stride_tricks.as_strided(np.frombuffer(memory, dtype, size), shape, steps)


def windows_memory(size: int, starts: list[int], length: int) -> Any:
    """Addresses of so many bytes, with memory behind some: Windows would count all of a map as used, touched or not.

    They are not given back, which a test can afford.
    """
    allocate = ctypes.WinDLL("kernel32").VirtualAlloc
    allocate.restype, allocate.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_ulong] * 2]
    reserve, commit, no_access, read_write = 0x2000, 0x1000, 0x01, 0x04
    base = allocate(None, size, reserve, no_access)
    assert base
    for start in starts:
        assert allocate(base + start, min(length, size - start), commit, read_write)
    return (ctypes.c_char * size).from_address(base)


def spread_out(array: Any, jumps: tuple[int, ...]) -> Any:
    view = far_apart(array.shape, array.dtype, jumps)
    view[...] = array
    return view


BEYOND = 2**31 + 11  # elements


@pytest.mark.parametrize("jumps", [(BEYOND, 70, 9, 1), (8192, BEYOND, 9, 1), (70, 9, BEYOND // 3, 1)])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_offsets_beyond_32_bits(rng: np.random.Generator, dtype: str, jumps: tuple[int, ...]) -> None:
    """Contract: > 2^31 elements. Batch, head and row steps of query, key, value, mask, bias that need 64 bits."""
    arrays, d_out = arrays_and_gradient(rng, DTYPES[dtype], leading=(2,), heads=2, kv_heads=2, n_query=5, n_key=7)
    mask, bias = rng.random((2, 2, 5, 7)) < 0.8, rng.standard_normal((2, 2, 5, 7)).astype(np.float16)
    expected = everything(arrays, d_out, mask=mask, bias=bias)
    far = [spread_out(a, jumps) for a in (*arrays, d_out)]
    assert max(sum(s * (n - 1) for s, n in zip(a.strides, a.shape, strict=True)) // a.itemsize for a in far) > 2**31
    assert_same_bits(everything(far[:3], far[3], mask=spread_out(mask, jumps), bias=spread_out(bias, jumps)), expected)


def test_results_beyond_32_bits(rng: np.random.Generator) -> None:
    """The same for what is written: output and gradients whose rows lie further apart than 32 bits can count."""
    arrays, d_out = arrays_and_gradient(rng, leading=(2,), heads=2, kv_heads=2, n_query=5, n_key=7)
    expected, pull_back = rootdk.attention_vjp(*arrays)
    d_expected = pull_back(d_out)
    jumps = (16, BEYOND, 8192, 1)
    out = far_apart(expected.shape, np.float32, jumps)
    state, offset = np.empty((2, 2, 2, 5), np.float32), np.zeros(2, np.int64)
    absent = dict.fromkeys(Problem._fields)
    given = dict(zip(("query", "key", "value"), arrays, strict=True))
    facts = {"scale": 1 / 3, "query_offset": offset, "dropout": 0.0, "seed": 0}
    problem = Problem(**{**absent, **given, **facts})
    _kernel.forward(problem, out, state, None, None)
    np.testing.assert_array_equal(out, expected)
    gradients = [far_apart(a.shape, np.float32, jumps) for a in d_expected]
    _kernel.backward(problem, out, d_out, state, Learnable(*gradients))
    for gradient, wanted in zip(gradients, d_expected, strict=True):
        np.testing.assert_array_equal(gradient, wanted)


def test_more_pairs_than_32_bits_count(rng: np.random.Generator) -> None:
    """n_query * n_key > 2^31 (and the view of a broadcast bias with it) under a narrow window."""
    n = 50_000
    q, k, v = (rng.standard_normal((n, 4)).astype(np.float32) for _ in range(3))
    bias = rng.standard_normal(n).astype(np.float32)
    out, reading = rootdk.measure(q, k, v, bias=bias, window=2)
    tail = slice(n - 60, n)
    problem = problem_of(q[tail], k[tail], v[tail], bias=bias[tail], window=2)
    expected, bound = forward_budget(problem)
    assert_within(out[tail][2:], expected[0][2:], bound)
    assert reading.keys[[0, 1, 2, n - 3, n - 2, n - 1]].tolist() == [3, 4, 5, 5, 4, 3]
