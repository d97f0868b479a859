"""rootdk.jax: jax.nn's function and Flax's, argument by argument."""

import subprocess
import sys
import warnings
from functools import partial
from typing import Any

import equinox
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from budgets import assert_within, bias_gradient_budget, forward_budget, gradient_budget, measure_budget, unit_roundoff
from flax import linen, nnx

import rootdk
from rootdk.backends import problem_of
from rootdk.jax import dot_product_attention, flax_attention, measured_dot_product_attention
from rootdk.options import Problem

B, T, S, N, K, H = 2, 12, 16, 4, 2, 8


@pytest.fixture
def qkv(rng: np.random.Generator) -> Any:
    shapes = ((B, T, N, H), (B, S, K, H), (B, S, K, H))
    return tuple(jnp.asarray(rng.standard_normal(shape), jnp.float32) for shape in shapes)


def heads_first(array: Any) -> Any:
    return np.swapaxes(np.asarray(array), -2, -3)


def problem_said(qkv: Any, **said: Any) -> Problem:
    """What the reference computes for these arguments of jax.nn."""
    placed = said.get("is_causal") or said.get("local_window_size") is not None
    return problem_of(
        *map(heads_first, qkv), scale=said.get("scale"), bias=said.get("bias"), mask=said.get("mask"),
        causal=said.get("is_causal", False), window=said.get("local_window_size"),
        query_offset=0 if placed else None, key_lengths=said.get("key_value_seq_lengths"),
    )  # fmt: skip


MASK = np.arange(S) % 3 > 0
SAID = {
    "nothing": {},
    "scale": {"scale": 0.3},
    "causal": {"is_causal": True},
    "bias": {"bias": np.linspace(-1, 1, N * T * S, dtype=np.float32).reshape(1, N, T, S)},
    "bias for all heads": {"bias": np.linspace(-1, 1, T * S, dtype=np.float32).reshape(1, 1, T, S)},
    "mask": {"mask": np.broadcast_to(MASK, (1, 1, T, S))},
    "lengths of keys": {"key_value_seq_lengths": np.array([5, 16], np.int32)},
    "lengths of both": {
        "query_seq_lengths": np.array([7, 12], np.int32), "key_value_seq_lengths": np.array([5, 16], np.int32),
    },
    "window": {"local_window_size": (3, 2)},
    "window of one number, causal": {"local_window_size": 4, "is_causal": True},
}  # fmt: skip


@pytest.mark.parametrize("case", SAID)
def test_every_argument_means_what_it_means_in_jax_nn(rng: np.random.Generator, qkv: Any, case: str) -> None:
    """Both are judged by the reference: jax.nn is a plain version in float32, for which a budget has room too."""
    said = SAID[case]
    learned = {name: jnp.asarray(array) for name, array in said.items() if name == "bias"}
    others = {name: array for name, array in said.items() if name != "bias"}
    lengths = said.get("query_seq_lengths", np.full(B, T))
    d_out = rng.standard_normal((B, T, N, H), dtype=np.float32)
    # What comes back to rows that count for nothing counts for nothing.
    shown = (np.arange(T) < lengths[:, None])[:, None, :, None]
    problem, d_shown = problem_said(qkv, **said), heads_first(d_out) * shown
    expected, bound = forward_budget(problem)
    budgets = [(expected * shown, bound), *gradient_budget(problem, d_shown)]
    if learned:
        budgets.append(bias_gradient_budget(problem, d_shown, learned["bias"].shape, np.float32))

    for function in (dot_product_attention, jax.nn.dot_product_attention):

        @jax.jit
        def both(qkv: Any, learned: Any, function: Any = function) -> Any:
            out, pull = jax.vjp(lambda qkv, learned: function(*qkv, **learned, **others), qkv, learned)
            return out, pull(d_out)

        out, (gradients, of_learned) = both(qkv, learned)
        arrays = [*map(heads_first, (out, *gradients)), *of_learned.values()]
        for name, array, budget in zip(("out", "d_query", "d_key", "d_value", "d_bias"), arrays, budgets, strict=False):
            assert_within(array, *budget, f"{name} of {function.__module__}")
        assert len(arrays) == len(budgets)


def test_three_axes_half_types_and_the_residual(qkv: Any) -> None:
    single = [a[0] for a in qkv]
    assert_within(heads_first(dot_product_attention(*single)), *forward_budget(problem_said(single)))
    halves = [a.astype(jnp.bfloat16) for a in qkv]
    expected, bound = forward_budget(problem_said(halves))
    ours, theirs = (jax.jit(f)(*halves) for f in (dot_product_attention, jax.nn.dot_product_attention))
    assert ours.dtype == theirs.dtype
    assert_within(heads_first(ours), expected, bound)
    # jax.nn rounds its weights, which add up to 1, to bfloat16 too.
    assert_within(heads_first(theirs), expected, bound + 2 * unit_roundoff(jnp.bfloat16) * float(abs(qkv[2]).max()))
    expected, bound = measure_budget(problem_said(qkv))["log_sum_exp"]
    for function in (dot_product_attention, jax.nn.dot_product_attention):
        out, residual = jax.jit(partial(function, return_residual=True))(*qkv)
        assert_within(heads_first(out), *forward_budget(problem_said(qkv)))
        assert_within(np.swapaxes(residual, -1, -2), expected, bound)


def test_under_vmap_with_shared_bias(qkv: Any) -> None:
    bias = np.linspace(-1, 1, T * S, dtype=np.float32).reshape(1, T, S)
    out = jax.vmap(dot_product_attention, (0, 0, 0, None))(*qkv, bias)
    assert_within(heads_first(out), *forward_budget(problem_said(qkv, bias=bias)))


def test_where_jax_refuses_to_add_axes_by_itself(qkv: Any) -> None:
    with jax.numpy_rank_promotion("raise"):
        lengths = jnp.array([7, 12], jnp.int32)
        call = lambda q: (dot_product_attention(q, *qkv[1:], query_seq_lengths=lengths, is_causal=True) ** 2).sum()  # noqa: E731
        jax.jit(lambda q: jax.jvp(jax.grad(call), (q,), (q,))).trace(qkv[0])


def test_a_row_that_is_hidden_altogether_is_zero(qkv: Any) -> None:
    out = dot_product_attention(*qkv, mask=jnp.zeros((1, 1, 1, S), bool))
    assert not out.any()


def test_nothing_is_transposed(qkv: Any) -> None:
    program = jax.jit(lambda *a: dot_product_attention(*a, is_causal=True)).lower(*qkv).compile().as_text()
    assert "rootdk_attention_forward" in program
    assert " transpose(" not in program
    assert " copy(" not in program


def test_the_reading_is_that_of_measure(qkv: Any) -> None:
    out, reading = jax.jit(measured_dot_product_attention)(*qkv)
    expected, same = rootdk.measure(*(np.swapaxes(np.asarray(a), 1, 2) for a in qkv))
    np.testing.assert_array_equal(out, np.swapaxes(expected, 1, 2))
    np.testing.assert_array_equal(reading.variance, same.variance)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"implementation": "xla"}, "implementation: must be None, which is rootdk's own, got 'xla'"),
        (
            {"query": np.ones((T, H))},
            "query: must have at least 3 axes (n, heads, d), got 2 (query (12, 8))",
        ),
        ({"mask": np.ones((1, 1, T, S), np.float32)}, "mask: must be bool, True keeps a pair, got float32"),
    ],
)
def test_what_does_not_fit_is_named(qkv: Any, change: dict[str, Any], message: str) -> None:
    with pytest.raises(rootdk.RootdkError) as caught:
        dot_product_attention(**(dict(zip(("query", "key", "value"), qkv, strict=True)) | change))
    assert str(caught.value) == message


class Judged:
    """An attention_fn that holds what it returns against the reference."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, query: Any, key: Any, value: Any, **said: Any) -> Any:
        out = flax_attention(query, key, value, **said)
        mask = None if said.get("mask") is None else np.asarray(said["mask"]) != 0
        assert_within(heads_first(out), *forward_budget(problem_said((query, key, value), mask=mask)))
        self.calls += 1
        return out


def test_flax_nnx() -> None:
    x = jax.random.normal(jax.random.key(0), (2, 10, 16))
    judged = Judged()
    layer = nnx.MultiHeadAttention(4, 16, rngs=nnx.Rngs(0), decode=False, dropout_rate=0.2, attention_fn=judged)
    layer(x, mask=nnx.make_causal_mask(x[..., 0]), deterministic=True)
    assert judged.calls == 1
    layer.attention_fn = flax_attention
    dropped = layer(x, deterministic=False, rngs=nnx.Rngs(dropout=1))
    assert not jnp.allclose(dropped, layer(x, deterministic=True))
    with warnings.catch_warnings():
        warnings.simplefilter("error", DeprecationWarning)
        _, sown = nnx.capture(layer, nnx.Intermediate)(x, deterministic=True, sow_weights=True)
    (reading,) = sown["attention_reading"].get_value()
    assert reading.shape == (2, 4, 10)


def test_flax_linen() -> None:
    x = jax.random.normal(jax.random.key(0), (2, 10, 16))
    judged = Judged()
    weights = linen.MultiHeadDotProductAttention(4).init(jax.random.key(1), x)
    linen.MultiHeadDotProductAttention(4, attention_fn=judged).apply(weights, x, mask=linen.make_causal_mask(x[..., 0]))
    assert judged.calls == 1
    layer = linen.MultiHeadDotProductAttention(4, attention_fn=flax_attention)
    _, sown = layer.apply(weights, x, sow_weights=True, mutable=["intermediates"])
    assert sown["intermediates"]["attention_reading"][0].shape == (2, 4, 10)
    with pytest.raises(rootdk.ArgumentError, match="precision: must be None"):
        linen.MultiHeadDotProductAttention(4, attention_fn=flax_attention, precision="highest").apply(weights, x)
    with pytest.raises(rootdk.ArgumentError, match=r"dropout_rng: must be a key of jax.random for dropout_rate 0\.5"):
        flax_attention(x[:, :, None], x[:, :, None], x[:, :, None], dropout_rate=0.5)


def test_equinox_under_filter_jit_and_filter_grad() -> None:
    class Layer(equinox.Module):
        project: equinox.nn.Linear

        def __call__(self, x: Any) -> Any:
            projected = jnp.split(jax.vmap(self.project)(x).reshape(x.shape[0], 6, 8), 3, axis=1)
            return projected, dot_product_attention(*projected, is_causal=True)

    layer = Layer(equinox.nn.Linear(16, 48, key=jax.random.key(0)))
    xs = jax.random.normal(jax.random.key(1), (3, 10, 16))
    projected, out = equinox.filter_jit(lambda layer: jax.vmap(layer)(xs))(layer)
    assert_within(heads_first(out), *forward_budget(problem_said(projected, is_causal=True)))
    gradient = equinox.filter_jit(equinox.filter_grad(lambda layer: (jax.vmap(layer)(xs)[1] ** 2).sum()))(layer)
    assert float(abs(gradient.project.weight).max()) > 0


def test_without_jax_the_error_says_how_to_get_it() -> None:
    lines = (
        "import sys; sys.modules['jax'] = None; import rootdk",
        "try: rootdk.jax.dot_product_attention",
        "except ImportError as error: print(error)",
    )
    done = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, check=False)
    message = "rootdk.jax: needs jax, which is not installed; get it with: pip install 'rootdk[jax]'\n"
    assert (done.stdout, done.stderr) == (message, "")
