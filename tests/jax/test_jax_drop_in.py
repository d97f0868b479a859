"""rootdk.jax: jax.nn's function and Flax's, argument by argument."""

import subprocess
import sys
from typing import Any

import equinox
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from budgets import unit_roundoff
from flax import linen, nnx

import rootdk
from rootdk.jax import dot_product_attention, flax_attention, measured_dot_product_attention

B, T, S, N, K, H = 2, 12, 16, 4, 2, 8


@pytest.fixture
def qkv(rng: np.random.Generator) -> Any:
    shapes = ((B, T, N, H), (B, S, K, H), (B, S, K, H))
    return tuple(jnp.asarray(rng.standard_normal(shape), jnp.float32) for shape in shapes)


def assert_close(ours: Any, theirs: Any) -> None:
    """Both are float32 and neither is the judge: each may be off by rounding over S terms of this size."""
    assert ours.shape == theirs.shape
    assert ours.dtype == theirs.dtype
    unit = unit_roundoff(ours.dtype) if ours.dtype != jnp.bfloat16 else 2.0**-8
    bound = 8 * S * unit * (1 + float(abs(theirs).max()))
    np.testing.assert_allclose(np.asarray(ours, np.float64), np.asarray(theirs, np.float64), rtol=0, atol=bound)


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
def test_every_argument_means_what_it_means_in_jax_nn(qkv: Any, case: str) -> None:
    said = SAID[case]
    learned = {name: jnp.asarray(array) for name, array in said.items() if name == "bias"}
    others = {name: array for name, array in said.items() if name != "bias"}

    def both(function: Any) -> Any:
        def loss(qkv: Any, learned: Any) -> Any:
            out = function(*qkv, **learned, **others)
            return (out * jnp.cos(jnp.arange(out.size, dtype=out.dtype)).reshape(out.shape)).sum(), out

        (_, out), gradients = jax.jit(jax.value_and_grad(loss, (0, 1), has_aux=True))(qkv, learned)
        return [out, *jax.tree.leaves(gradients)]

    for ours, theirs in zip(both(dot_product_attention), both(jax.nn.dot_product_attention), strict=True):
        assert_close(ours, theirs)


def test_three_axes_half_types_and_the_residual(qkv: Any) -> None:
    assert_close(dot_product_attention(*(a[0] for a in qkv)), jax.nn.dot_product_attention(*(a[0] for a in qkv)))
    halves = [a.astype(jnp.bfloat16) for a in qkv]
    assert_close(dot_product_attention(*halves), jax.nn.dot_product_attention(*halves))
    ours, theirs = (f(*qkv, return_residual=True) for f in (dot_product_attention, jax.nn.dot_product_attention))
    assert_close(ours[0], theirs[0])
    assert_close(ours[1], theirs[1])


def test_under_vmap_with_shared_bias(qkv: Any) -> None:
    bias = jnp.ones((1, 1, T, S))
    axes = (0, 0, 0, None)
    ours, theirs = (jax.vmap(f, axes)(*qkv, bias[0]) for f in (dot_product_attention, jax.nn.dot_product_attention))
    assert_close(ours, theirs)


def test_where_jax_refuses_to_add_axes_by_itself(qkv: Any) -> None:
    with jax.numpy_rank_promotion("raise"):
        lengths = jnp.array([7, 12], jnp.int32)
        call = lambda q: (dot_product_attention(q, *qkv[1:], query_seq_lengths=lengths, is_causal=True) ** 2).sum()  # noqa: E731
        jax.jvp(jax.grad(call), qkv[:1], qkv[:1])


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


def test_flax_nnx() -> None:
    x = jax.random.normal(jax.random.key(0), (2, 10, 16))
    ours, theirs = (
        nnx.MultiHeadAttention(4, 16, rngs=nnx.Rngs(0), decode=False, dropout_rate=0.2, **said)
        for said in ({"attention_fn": flax_attention}, {})
    )
    mask = nnx.make_causal_mask(x[..., 0])
    assert_close(ours(x, mask=mask, deterministic=True), theirs(x, mask=mask, deterministic=True))
    dropped = ours(x, deterministic=False, rngs=nnx.Rngs(dropout=1))
    assert not jnp.allclose(dropped, ours(x, deterministic=True))
    ours(x, deterministic=True, sow_weights=True)
    (reading,) = nnx.pop(ours, nnx.Intermediate)["attention_reading"].get_value()
    assert reading.shape == (2, 4, 10)


def test_flax_linen() -> None:
    x = jax.random.normal(jax.random.key(0), (2, 10, 16))
    ours, theirs = (linen.MultiHeadDotProductAttention(4, **said) for said in ({"attention_fn": flax_attention}, {}))
    weights = theirs.init(jax.random.key(1), x)
    assert_close(ours.apply(weights, x), theirs.apply(weights, x))
    _, sown = ours.apply(weights, x, sow_weights=True, mutable=["intermediates"])
    assert sown["intermediates"]["attention_reading"][0].shape == (2, 4, 10)
    with pytest.raises(rootdk.ArgumentError, match="precision: must be None"):
        linen.MultiHeadDotProductAttention(4, attention_fn=flax_attention, precision="highest").apply(weights, x)
    with pytest.raises(rootdk.ArgumentError, match=r"dropout_rng: must be a key of jax.random for dropout_rate 0\.5"):
        flax_attention(x[:, :, None], x[:, :, None], x[:, :, None], dropout_rate=0.5)


def test_equinox_under_filter_jit_and_filter_grad() -> None:
    class Layer(equinox.Module):
        project: equinox.nn.Linear

        def __call__(self, x: Any) -> Any:
            q, k, v = jnp.split(jax.vmap(self.project)(x).reshape(x.shape[0], 6, 8), 3, axis=1)
            return dot_product_attention(q, k, v, is_causal=True).reshape(x.shape[0], 16)

    layer = Layer(equinox.nn.Linear(16, 48, key=jax.random.key(0)))
    xs = jax.random.normal(jax.random.key(1), (3, 10, 16))
    gradient = equinox.filter_jit(equinox.filter_grad(lambda layer: (jax.vmap(layer)(xs) ** 2).sum()))(layer)
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
