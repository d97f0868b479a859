"""attention_jvp: against finite differences of the kernel and torch's own derivative, and the laws of a derivative.

Its numbers are held to the reference by the judge (judge.py), in every test that uses it.
"""

from typing import Any

import numpy as np
import pytest
import torch
from budgets import assert_within, tangent_budget
from judge import DTYPES, TARGETS, random_tangents, tangents_of, target, threads
from problems import option_sets, random_arrays
from tensors import tensor, tensor_options

import rootdk
from rootdk import _kernel
from rootdk.backends import problem_of, reference
from rootdk.options import Learnable

NAMES = list(option_sets(np.random.default_rng(0)))
STEP = float(np.finfo(np.float64).eps ** (1 / 3))  # where the errors of a central difference balance
INPUTS = ("query", "key", "value")


def case(rng: np.random.Generator, name: str, dtype: Any = np.float64) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """Arrays, options, and a tangent for everything that may move."""
    arrays, options = [a.astype(dtype) for a in random_arrays(rng)], option_sets(rng)[name]
    return arrays, options, random_tangents(rng, problem_of(*arrays, **options), options)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("on", TARGETS)
def test_equals_finite_differences(rng: np.random.Generator, on: str, name: str) -> None:
    arrays, options, moved = case(rng, name)
    scale = problem_of(*arrays, **options).scale

    def stepped(step: float) -> Any:
        there = [a + step * moved[f"d_{n}"] for a, n in zip(arrays, INPUTS, strict=True)]
        changed = {n: options[n] + step * moved[f"d_{n}"] for n in ("bias", "sinks", "alibi") if n in options}
        changed |= {"scale": scale + step * moved["d_scale"]} if "d_scale" in moved else {}
        return rootdk.attention(*there, **(options | changed))

    with target(on):
        d_out = rootdk.attention_jvp(*arrays, **moved, **options)[1]
        numeric = (stepped(STEP) - stepped(-STEP)) / (2 * STEP)
    np.testing.assert_allclose(d_out, numeric, rtol=0, atol=1e4 * STEP**2)


@pytest.mark.parametrize("name", NAMES)
def test_is_the_transpose_of_the_pull_back(rng: np.random.Generator, name: str) -> None:
    """<d_out, J t> = <J' d_out, t>, with J from this pass and J' from the other."""
    arrays, options, moved = case(rng, name)
    tangents = [moved[f"d_{n}"] for n in INPUTS]
    d_out = rng.standard_normal((2, 4, 7, 5))
    forward = (d_out * rootdk.attention_jvp(*arrays, *tangents, **options)[1]).sum()
    pulled = rootdk.attention_vjp(*arrays, **options)[1](d_out)
    assert forward == pytest.approx(sum((g * t).sum() for g, t in zip(pulled, tangents, strict=True)), rel=1e-12)


def test_equals_torchs_derivative_of_the_plain_formula(rng: np.random.Generator) -> None:
    arrays = [tensor(a) for a in random_arrays(rng, kv_heads=4)]
    tangents = [torch.from_numpy(rng.standard_normal(tuple(a.shape))) for a in arrays]

    def formula(q: Any, k: Any, v: Any) -> Any:
        return torch.softmax(q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5, -1) @ v

    for ours, theirs in zip(
        rootdk.attention_jvp(*arrays, *tangents), torch.func.jvp(formula, tuple(arrays), tuple(tangents)), strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_what_does_not_move_adds_nothing(rng: np.random.Generator, dtype: str, name: str) -> None:
    """Each alone is what the reference says, with no other given; twice as far is twice as much, to the bit."""
    arrays, options, moved = case(rng, name, DTYPES[dtype])
    problem = problem_of(*arrays, **options)
    for alone, tangent in moved.items():
        d_out = rootdk.attention_jvp(*arrays, **{alone: tangent}, **options)[1]
        assert_within(d_out, *tangent_budget(problem, tangents_of(problem, {alone: tangent})), alone)
        if np.asarray(tangent).dtype != np.float16 and dtype != "float16":  # subnormals have fewer digits
            twice = rootdk.attention_jvp(*arrays, **{alone: tangent + tangent}, **options)[1]
            np.testing.assert_array_equal(twice, d_out + d_out)
    assert not rootdk.attention_jvp(*arrays, **options)[1].any()


@pytest.mark.parametrize("name", NAMES)
def test_tensors_give_the_bits_of_arrays(rng: np.random.Generator, name: str) -> None:
    arrays, options, moved = case(rng, name, np.float32)
    expected = rootdk.attention_jvp(*arrays, **moved, **options)
    results = rootdk.attention_jvp(*map(tensor, arrays), **tensor_options(moved), **tensor_options(options))
    for ours, theirs in zip(results, expected, strict=True):
        np.testing.assert_array_equal(ours.numpy(), theirs)


def test_one_head_and_any_strides(rng: np.random.Generator) -> None:
    arrays = [rng.standard_normal((9, 3, 8))[:, 1] for _ in range(3)]
    moved = [rng.standard_normal((8, 9)).T, None, rng.standard_normal((9, 8))[::-1]]
    out, d_out = rootdk.attention_jvp(*arrays, *moved, causal=True, sinks=0.3, d_sinks=2.0)
    np.testing.assert_array_equal(out, rootdk.attention(*arrays, causal=True, sinks=0.3))
    problem = problem_of(*arrays, causal=True, sinks=0.3)
    tangents = Learnable(moved[0][None], None, moved[2][None], sinks=np.array([2.0]))
    np.testing.assert_allclose(d_out, reference.jvp(problem, tangents)[0], rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("garbage", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("options", [{"key_lengths": [6, 6]}, {"mask": np.arange(9) < 6}], ids=["lengths", "mask"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_hidden_has_no_effect(rng: np.random.Generator, dtype: str, options: Any, garbage: float) -> None:
    kind = DTYPES[dtype]
    arrays, tangents = (random_arrays(rng, dtype=kind) for _ in range(2))
    bias, d_bias = rng.standard_normal((2, 7, 9)).astype(np.float32)
    hidden = [(a.copy(), t.copy()) for a, t in zip(arrays, tangents, strict=True)]
    for array, tangent in hidden[1:]:
        array[..., 6:, 1] = tangent[..., 6:, 0] = garbage
    unseen = d_bias.copy()
    unseen[:, 6:] = garbage
    for on in TARGETS:
        with target(on):
            clean = rootdk.attention_jvp(*arrays, *tangents, d_bias=d_bias, bias=bias, **options)
            results = rootdk.attention_jvp(
                *(a for a, _ in hidden), *(t for _, t in hidden), d_bias=unseen, bias=bias, **options
            )
        for ours, theirs in zip(results, clean, strict=True):
            np.testing.assert_array_equal(ours, theirs, err_msg=on)


def test_a_nan_stays_in_the_rows_that_see_it(rng: np.random.Generator) -> None:
    arrays, tangents = random_arrays(rng), random_arrays(rng)
    for which, column in ((1, slice(None)), (2, 0)):  # of a key it reaches all of a row, of a value its own column
        moved = [t.copy() for t in tangents]
        moved[which][..., 4, 0] = np.nan
        d_out = rootdk.attention_jvp(*arrays, *moved, causal=True, query_offset=0)[1]
        assert np.isnan(d_out[..., 4:, column]).all()
        assert np.isfinite(d_out[..., :4, :]).all()
        assert which == 1 or np.isfinite(d_out[..., 1:]).all()


def test_rows_that_see_nothing_and_empty_sizes(rng: np.random.Generator) -> None:
    arrays, tangents = random_arrays(rng), random_arrays(rng)
    sinks = {"sinks": np.zeros(4), "d_sinks": np.ones(4)}
    d_out = rootdk.attention_jvp(*arrays, *tangents, causal=True, query_offset=-2, **sinks)[1]
    assert not d_out[..., :2, :].any()
    assert d_out[..., 2:, :].any(axis=-1).all()
    for sizes in ((0, 4, 3, 3), (2, 0, 3, 3), (2, 4, 0, 3), (2, 4, 3, 0)):
        batch, heads, n_query, n_key = sizes
        q, k = np.ones((batch, heads, n_query, 8)), np.ones((batch, heads, n_key, 8))
        out, d_out = rootdk.attention_jvp(q, k, k, q, k, k, causal=True)
        assert out.shape == d_out.shape == q.shape
        assert not d_out.any()


def test_large_queries_under_a_large_scale() -> None:
    """The factor would carry a query, or its tangent, out of the range before the product with a small key."""
    large, small = np.float32(1e38), np.float32(1e-38)
    key = np.array([[small, 0], [0, small]], np.float32)
    value = np.eye(2, dtype=np.float32)
    for query, moved in (([large, 0], [1, 0]), ([1, 0], [large, 0]), ([large, 0], [large, 0])):
        q, d_q = np.array([query], np.float32), np.array([moved], np.float32)
        d_out = rootdk.attention_jvp(q, key, value, d_q, scale=40.0)[1]
        expected, bound = tangent_budget(problem_of(q, key, value, scale=40.0), Learnable(query=d_q[None]))
        assert_within(d_out[None], expected, bound)


def test_the_same_bits_on_any_number_of_threads(rng: np.random.Generator) -> None:
    arrays, tangents = (random_arrays(rng, (2,), 4, 2, 300, 500, 24, 16, np.float32) for _ in range(2))
    mask = rng.random((300, 500)) < 0.6
    results = []
    for n in (1, 2, 5):
        with threads(n):
            results.append(rootdk.attention_jvp(*arrays, *tangents, mask=mask, dropout=0.3, seed=4)[1])
    assert (results[0] == results[1]).all()
    assert (results[0] == results[2]).all()


def test_bits_repeat_and_inputs_stay(rng: np.random.Generator) -> None:
    arrays, options, moved = case(rng, "everything", np.float32)
    before = [np.copy(a) for a in (*arrays, *moved.values())]
    first = rootdk.attention_jvp(*arrays, **moved, **options)
    for ours, again in zip(first, rootdk.attention_jvp(*arrays, **moved, **options), strict=True):
        np.testing.assert_array_equal(ours, again)
    for array, copy in zip((*arrays, *moved.values()), before, strict=True):
        np.testing.assert_array_equal(array, copy)


A = np.ones((2, 3, 4), np.float32)


@pytest.mark.parametrize(
    ("moved", "message"),
    [
        ({"d_query": A[..., :3]}, r"d_query: must have the shape of query \(2, 3, 4\), got \(2, 3, 3\)"),
        ({"d_key": A[0]}, r"d_key: must have the shape of key \(2, 3, 4\), got \(3, 4\)"),
        ({"d_value": A.astype(np.float64)}, "d_value: must be float32 to match query, got float64"),
        ({"d_query": [1.0]}, "d_query: must be a NumPy array like query, got list"),
        ({"d_bias": A}, "d_bias: must be None without bias, got numpy.ndarray"),
        ({"d_alibi": [1.0]}, "d_alibi: must be None without alibi, got list"),
        ({"alibi": 1.0, "d_alibi": np.ones(3)}, r"d_alibi: must broadcast to \(..., heads\) = \(2,\), got shape "),
        ({"d_sinks": np.ones(2)}, "d_sinks: must be None without sinks, got numpy.ndarray"),
        ({"bias": A[..., :3], "d_bias": np.ones(3)}, "d_bias: must be float32 to match bias, got float64"),
        (
            {"bias": A[..., :3], "d_bias": A},
            r"d_bias: must broadcast to \(..., heads, n_query, n_key\) = \(2, 3, 3\), got \(2, 3, 4\)",
        ),
        (
            {"sinks": [1.0, 2.0], "d_sinks": [1.0]},
            r"d_sinks: must have shape \(2,\), one per query head, got \(1,\)",
        ),
        ({"sinks": [1.0, 2.0], "d_sinks": [1.0, np.nan]}, "d_sinks: must be finite, got "),
        ({"d_scale": "sqrt"}, "d_scale: must be None or a number, got 'sqrt'"),
        ({"d_scale": 1.0, "scale": "llama4"}, "d_scale: must be None where the scale is a rule by row, got 'llama4'"),
    ],
)
def test_errors(moved: dict[str, Any], message: str) -> None:
    with pytest.raises((rootdk.ArgumentError, rootdk.ArgumentTypeError), match=f"^{message}"):
        rootdk.attention_jvp(A, A, A, **moved)


@pytest.mark.parametrize(
    "wrong",
    [
        {"d_out": np.empty((2, 3, 5), np.float32)},
        {"d_out": np.empty((2, 3, 4))},
        {"out": np.empty((1, 3, 4), np.float32)},
        {"tangents": Learnable(query=np.ones((2, 3, 4)))},
        {"tangents": Learnable(key=np.ones((2, 2, 4), np.float32))},
        {"tangents": Learnable(value=np.ones((2, 3, 8), np.float32)[..., ::2])},
        {"tangents": Learnable(bias=np.ones((2, 3, 3), np.float32))},
        {"tangents": Learnable(sinks=np.ones(2))},
        {"tangents": Learnable(alibi=np.ones((1, 2)))},
        {"tangents": (None, None, None)},
    ],
)
def test_the_kernel_takes_nothing_that_does_not_fit(wrong: dict[str, Any]) -> None:
    fitting = {"out": None, "d_out": np.empty_like(A), "tangents": Learnable()}
    with pytest.raises(ValueError, match=r"^kernel: "):
        _kernel.tangent(problem_of(A, A, A), **(fitting | wrong))
