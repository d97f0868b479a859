"""rootdk on arrays of jax: every option, eager and compiled, judged by the float64 reference."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from budgets import (
    assert_within,
    bias_gradient_budget,
    forward_budget,
    gradient_budget,
    head_gradient_budget,
    measure_budget,
    scale_gradient_budget,
    tangent_budget,
)
from judge import DTYPES, random_tangents, tangents_of
from problems import random_arrays
from tensors import NAMES, problem

import rootdk
from rootdk.backends import problem_of, reference
from rootdk.backends.jax import operands
from rootdk.options import Problem
from rootdk.reading import FIELDS

# Arrays among the options that may be traced; a rule of scale that looks at lengths must know them.
_TRACED = ("mask", "bias", "query_offset", "key_lengths", "sinks", "alibi", "segments")


def judged(rng: np.random.Generator, name: str, dtype: Any) -> tuple[Any, Any, dict[str, Any], Any]:
    """Arrays, d_out and options as jax takes them, and the Problem of the same numbers."""
    arrays, d_out, options = problem(rng, name, dtype)
    if np.dtype(dtype) != np.float64:  # without x64 jax has no float64, so the numbers are float32 on both sides
        single = {
            n: np.asarray(o, np.float32) for n, o in options.items() if n in ("sinks", "alibi") or is_number(o, n)
        }
        options |= {n: array if array.ndim else float(array) for n, array in single.items()}
    return arrays, d_out, options, problem_of(*arrays, **options)


def is_number(option: Any, name: str) -> bool:
    """A scale that may be learned."""
    return name == "scale" and isinstance(option, float)


def traced_part(options: dict[str, Any]) -> dict[str, Any]:
    by_row = options.get("scale") == "entropy_invariant" or ("seed" in options and "segments" in options)
    known = ("key_lengths", "segments", "query_offset") if by_row else ()
    return {n: jax.tree.map(jnp.asarray, o) for n, o in options.items() if n in _TRACED and n not in known}


@pytest.mark.parametrize("name", NAMES)
def test_every_option_under_jit_with_its_derivatives(rng: np.random.Generator, name: str) -> None:
    arrays, d_out, options, facts = judged(rng, name, np.float32)
    moved = random_tangents(rng, facts, options)
    learned = {n: o for n, o in options.items() if n in ("bias", "sinks", "alibi") or is_number(o, n)}
    if "scale" not in learned:
        moved.pop("d_scale", None)
    others = {n: o for n, o in traced_part(options).items() if n not in learned}
    fixed = {n: o for n, o in options.items() if n not in learned and n not in others}

    @jax.jit
    def everything(arrays: Any, learned: Any, others: Any, d_out: Any, d_arrays: Any, d_learned: Any) -> Any:
        def call(arrays: Any, learned: Any) -> Any:
            return rootdk.attention(*arrays, **learned, **others, **fixed)

        out, pull_back = jax.vjp(call, arrays, learned)
        _, tangent = jax.jvp(call, (arrays, learned), (d_arrays, d_learned))
        return out, pull_back(d_out), tangent, rootdk.measure(*arrays, **learned, **others, **fixed)

    d_arrays = tuple(moved[f"d_{n}"] for n in ("query", "key", "value"))
    moved |= {f"d_{n}": np.float32(moved[f"d_{n}"]) for n in learned}
    d_learned = {n: moved[f"d_{n}"] for n in learned}
    out, (pulled, of_learned), tangent, (measured, reading) = everything(
        arrays, learned, others, d_out, d_arrays, d_learned
    )
    assert_within(out, *forward_budget(facts), "output")
    np.testing.assert_array_equal(out, measured)
    for field, budget in measure_budget(facts).items():
        assert_within(getattr(reading, field), *budget, field)
    np.testing.assert_array_equal(reading.keys, reference.measure(facts, np.float32)[1]["keys"])
    for n, gradient, budget in zip("qkv", pulled, gradient_budget(facts, d_out), strict=True):
        assert_within(gradient, *budget, f"d_{n}")
    assert_within(tangent, *tangent_budget(facts, tangents_of(facts, moved)), "tangent")
    if "bias" in learned:
        shape = learned["bias"].shape
        assert_within(of_learned["bias"], *bias_gradient_budget(facts, d_out, shape, np.float32), "d_bias")
    for n in {"sinks", "alibi"} & learned.keys():
        assert_within(of_learned[n], *head_gradient_budget(facts, d_out, n, learned[n].shape), f"d_{n}")
    if "scale" in learned:
        assert_within(of_learned["scale"], *scale_gradient_budget(facts, d_out), "d_scale")


@pytest.mark.parametrize("name", ["nothing", "everything"])
@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
def test_every_type_outside_jit(rng: np.random.Generator, name: str, dtype: str) -> None:
    with jax.enable_x64(dtype == "float64"):
        arrays, d_out, options, facts = judged(rng, name, DTYPES[dtype])
        given = [jnp.asarray(a) for a in arrays]
        out, reading = rootdk.measure(*given, **options)
        again, pull_back = rootdk.attention_vjp(*given, **options)
        assert isinstance(out, jax.Array)
        assert out.dtype == given[0].dtype
        assert_within(out, *forward_budget(facts), "output")
        np.testing.assert_array_equal(out, again)
        for field, budget in measure_budget(facts).items():
            assert_within(getattr(reading, field), *budget, field)
        for gradient, budget in zip(pull_back(jnp.asarray(d_out)), gradient_budget(facts, d_out), strict=True):
            assert gradient.dtype == given[0].dtype
            assert_within(gradient, *budget, "gradient")
        moved = random_tangents(rng, facts, options)
        _, d = rootdk.attention_jvp(*given, **moved, **options)
        assert_within(d, *tangent_budget(facts, tangents_of(facts, moved)), "tangent")


def test_a_call_is_the_bits_of_numpy(rng: np.random.Generator) -> None:
    q, k, v = rng.standard_normal((3, 2, 4, 40, 16), dtype=np.float32)
    ours, theirs = rootdk.measure(*map(jnp.asarray, (q, k, v)), causal=True), rootdk.measure(q, k, v, causal=True)
    np.testing.assert_array_equal(ours[0], theirs[0])
    np.testing.assert_array_equal(ours[1].entropy, theirs[1].entropy)
    np.testing.assert_array_equal(rootdk.read(jnp.asarray(q), jnp.asarray(k), rows=[3, -1]).max,
                                  rootdk.read(q, k, rows=[3, -1]).max)  # fmt: skip
    np.testing.assert_array_equal(
        rootdk.weights(jnp.asarray(q), jnp.asarray(k), rows=slice(2, 5), window=9),
        rootdk.weights(q, k, rows=slice(2, 5), window=9),
    )


@pytest.mark.parametrize("name", ["mask", "everything"])
def test_rows_keep_what_is_theirs(rng: np.random.Generator, name: str) -> None:
    """Their mask, bias, positions and scale, and the sinks: the bits of NumPy."""
    (q, k, _), _, options, _ = judged(rng, name, np.float32)
    options = {option: value for option, value in options.items() if option not in ("dropout", "seed")}
    rows = [0, 3, -1]
    ours = rootdk.read(jnp.asarray(q), jnp.asarray(k), rows=rows, **options)
    theirs = rootdk.read(q, k, rows=rows, **options)
    assert ours.has_sinks == theirs.has_sinks == ("sinks" in options)
    for field in (*FIELDS, "keys"):
        np.testing.assert_array_equal(getattr(ours, field), getattr(theirs, field), err_msg=field)
    weights = rootdk.weights(jnp.asarray(q), jnp.asarray(k), rows=rows, **options)
    np.testing.assert_array_equal(weights, rootdk.weights(q, k, rows=rows, **options))


@pytest.mark.parametrize("options", [{}, {"key_lengths": 4}, {"segments": np.arange(6) // 4, "causal": True}], ids=str)
def test_shapes_without_heads_and_with_many_leading_axes(rng: np.random.Generator, options: dict[str, Any]) -> None:
    for shape in ((6, 8), (3, 6, 8), (2, 1, 3, 6, 8)):
        q, k, v = rng.standard_normal((3, *shape), dtype=np.float32)
        out, reading = jax.jit(lambda *a: rootdk.measure(*a, per_key=True, **options))(q, k, v)
        expected = rootdk.measure(q, k, v, per_key=True, **options)
        np.testing.assert_array_equal(out, expected[0])
        assert reading.shape == expected[1].shape
        np.testing.assert_array_equal(reading.received, expected[1].received)


def test_empty_arrays() -> None:
    q, k, v = jnp.ones((2, 3, 0, 8)), jnp.ones((2, 3, 5, 8)), jnp.ones((2, 3, 5, 4))
    assert rootdk.attention(q, k, v).shape == (2, 3, 0, 4)
    out = rootdk.attention(k, q, v[:, :, :0])
    assert out.shape == (2, 3, 5, 4)
    assert not out.any()
    assert not jax.grad(lambda k: rootdk.attention(q, k, v).sum())(k).any()


def test_a_cache_of_half_types(rng: np.random.Generator) -> None:
    q, k, v = rng.standard_normal((3, 2, 4, 40, 16), dtype=np.float32)
    halves = jnp.asarray(k, jnp.bfloat16), jnp.asarray(v, jnp.bfloat16)
    expected = rootdk.attention(q, *map(np.asarray, halves))
    np.testing.assert_array_equal(rootdk.attention(jnp.asarray(q), *halves), expected)
    with pytest.raises(rootdk.ArgumentTypeError, match="key: must be float32 like query for a derivative"):
        jax.grad(lambda q: rootdk.attention(q, *halves).sum())(jnp.asarray(q))


def test_a_fact_that_is_no_operand_is_refused_by_name(rng: np.random.Generator) -> None:
    """Else a new option would have no effect on arrays of jax."""
    query, key, value = (jnp.asarray(array) for array in random_arrays(rng, dtype=np.float32))
    facts = problem_of(query, key, value)
    wider = NamedTuple("wider", [(name, Any) for name in (*Problem._fields, "novelty")])
    operands(wider(*facts, None))
    with pytest.raises(rootdk.ArgumentError, match=r"^novelty: must be None for arrays of jax, got 1\.0$"):
        operands(wider(*facts, 1.0))
