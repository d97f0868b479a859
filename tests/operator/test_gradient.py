"""The pull-back against finite differences of the kernel itself, and the laws that every pull-back obeys."""

from typing import Any

import numpy as np
import pytest
import torch
from budgets import assert_within, gradient_budget
from judge import DTYPES, TARGETS, target
from problems import option_sets, random_arrays

import rootdk
from rootdk.backends import problem_of

NAMES = list(option_sets(np.random.default_rng(0)))
GRADIENTS = ("d_query", "d_key", "d_value")
# Where the error of a central difference (step^2) and of its rounding (eps / step) balance.
STEP = float(np.finfo(np.float64).eps ** (1 / 3))


def case(rng: np.random.Generator, name: str, dtype: Any = np.float64) -> tuple[list[Any], Any, dict[str, Any]]:
    arrays = [a.astype(dtype) for a in random_arrays(rng)]
    return arrays, rng.standard_normal((2, 4, 7, 5)).astype(dtype), option_sets(rng)[name]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("on", TARGETS)
def test_equals_finite_differences(rng: np.random.Generator, on: str, name: str) -> None:
    arrays, d_out, options = case(rng, name)
    with target(on):
        gradients = rootdk.attention_vjp(*arrays, **options)[1](d_out)
        for which, gradient in enumerate(gradients):
            numeric = np.zeros(gradient.shape)
            moved = [a.copy() for a in arrays]
            for index in np.ndindex(numeric.shape):
                there = moved[which][index]
                ends = []
                for step in (STEP, -STEP):
                    moved[which][index] = there + step
                    ends.append((rootdk.attention(*moved, **options) * d_out).sum())
                moved[which][index] = there
                numeric[index] = (ends[0] - ends[1]) / (2 * STEP)
            np.testing.assert_allclose(gradient, numeric, rtol=0, atol=100 * STEP**2, err_msg=GRADIENTS[which])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_linear_in_the_gradient(rng: np.random.Generator, dtype: str, name: str) -> None:
    """Twice the d_out is twice every gradient, bit by bit; the gradients of two d_out add up to that of their sum."""
    arrays, first, options = case(rng, name, DTYPES[dtype])
    pull_back = rootdk.attention_vjp(*arrays, **options)[1]
    for single, double in zip(pull_back(first), pull_back(first + first), strict=True):
        # A float16 below 2^-14 has fewer digits: there twice the rounded is not the rounded twice.
        normal = np.abs(single.astype(np.float64)) >= float(np.finfo(np.float16).tiny)
        np.testing.assert_array_equal(double[normal], (single + single)[normal])

    # Small whole numbers: their sum is exact in every type.
    first, second = (rng.integers(-4, 5, first.shape).astype(DTYPES[dtype]) for _ in range(2))
    problem = problem_of(*arrays, **options)
    bounds = [gradient_budget(problem, d_out) for d_out in (first, second, first + second)]
    pulled = [pull_back(d_out) for d_out in (first, second, first + second)]
    for i, parts in enumerate(zip(*pulled, strict=True)):
        left, other, together = (part.astype(np.float64) for part in parts)
        assert_within(together, left + other, sum(budget[i][1] for budget in bounds), GRADIENTS[i])


def test_no_gradient_gives_none(rng: np.random.Generator) -> None:
    for name in NAMES:
        arrays, d_out, options = case(rng, name, np.float32)
        for gradient in rootdk.attention_vjp(*arrays, **options)[1](np.zeros_like(d_out)):
            assert (gradient == 0).all()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_shared_key_heads_add_up(rng: np.random.Generator, dtype: str, name: str) -> None:
    """Grouped heads: d_key and d_value are the sums over the query heads that share them."""
    (q, k, v), d_out, options = case(rng, name, DTYPES[dtype])
    d_query, *shared = rootdk.attention_vjp(q, k, v, **options)[1](d_out)
    wide = [np.repeat(a, 2, axis=1) for a in (k, v)]
    d_query_wide, *apart = rootdk.attention_vjp(q, *wide, **options)[1](d_out)
    bounds = [bound for _, bound in gradient_budget(problem_of(q, k, v, **options), d_out)]
    wide_bounds = [bound for _, bound in gradient_budget(problem_of(q, *wide, **options), d_out)]
    assert_within(d_query, d_query_wide.astype(np.float64), bounds[0] + wide_bounds[0], "d_query")
    for i, (together, parts) in enumerate(zip(shared, apart, strict=True), start=1):
        summed = parts.astype(np.float64).reshape(2, 2, 2, *parts.shape[-2:]).sum(axis=2)
        assert_within(together, summed, bounds[i] + 2 * wide_bounds[i], GRADIENTS[i])


@pytest.mark.parametrize("dtype", DTYPES)
def test_pull_back_again(rng: np.random.Generator, dtype: str) -> None:
    """Nothing is used up: the same d_out gives the same bits, also after another one and after another call."""
    arrays, d_out, options = case(rng, "everything", DTYPES[dtype])
    pull_back = rootdk.attention_vjp(*arrays, **options)[1]
    first = pull_back(d_out)
    kept = [g.copy() for g in first]
    other = pull_back(-d_out)
    rootdk.attention_vjp(*arrays)[1](d_out)
    for before, copy, opposite, again in zip(first, kept, other, pull_back(d_out), strict=True):
        np.testing.assert_array_equal(again, copy)
        np.testing.assert_array_equal(before, copy)  # and a result that was handed out is not written to
        np.testing.assert_array_equal(opposite, -copy)


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_the_output_may_be_changed_in_place(rng: np.random.Generator, library: str) -> None:
    arrays, d_out, options = case(rng, "causal")
    if library == "torch":
        arrays, d_out = [torch.from_numpy(a) for a in arrays], torch.from_numpy(d_out)
    expected = rootdk.attention_vjp(*arrays, **options)[1](d_out)
    out, pull_back = rootdk.attention_vjp(*arrays, **options)
    out += 1
    for gradient, before in zip(pull_back(d_out), expected, strict=True):
        np.testing.assert_array_equal(gradient, before)


def test_long_keys_in_parts(rng: np.random.Generator) -> None:
    """One head over many keys: d_query is added up from parts of the keys."""
    for n_key in (255, 256, 257, 900, 2049):
        arrays = random_arrays(rng, (1,), 2, 1, 20, n_key, 8, 8, dtype=np.float32)
        d_out = rng.standard_normal((1, 2, 20, 8)).astype(np.float32)
        for options in ({}, {"causal": True}, {"window": (3, 500)}, {"key_lengths": [n_key // 2]}):
            budgets = gradient_budget(problem_of(*arrays, **options), d_out)
            gradients = rootdk.attention_vjp(*arrays, **options)[1](d_out)
            for name, gradient, budget in zip(GRADIENTS, gradients, budgets, strict=True):
                assert_within(gradient, *budget, f"{name} of {n_key} keys, {options}")
