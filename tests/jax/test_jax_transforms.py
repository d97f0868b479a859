"""What jax does with a call: jit, grad, vmap, remat, scan, export, and what is refused by name."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from budgets import unit_roundoff
from jax import export
from jax.test_util import check_grads

import rootdk
from rootdk import Reading
from rootdk.backends.jax import primitives

Array = Any


@pytest.fixture
def qkv(rng: np.random.Generator) -> Any:
    """(batch, heads, n, d) with two query heads per key head."""
    shapes = ((3, 4, 12, 8), (3, 2, 12, 8), (3, 2, 12, 8))
    return tuple(jnp.asarray(rng.standard_normal(shape), jnp.float32) for shape in shapes)


def test_second_derivatives_of_every_learned_input(rng: np.random.Generator) -> None:
    with jax.enable_x64(True):
        q, k, v = (jnp.asarray(rng.standard_normal((2, 5, 4))) for _ in range(3))
        learned = {"bias": rng.standard_normal((5, 5)), "sinks": rng.standard_normal(2), "alibi": rng.random(2)}

        def call(q: Array, k: Array, v: Array, learned: dict[str, Array], scale: Array) -> Array:
            return rootdk.attention(q, k, v, causal=True, softcap=2.0, scale=scale, **learned)

        given = (q, k, v, {n: jnp.asarray(a) for n, a in learned.items()}, jnp.asarray(0.7))
        check_grads(jax.jit(call), given, order=2, modes=("fwd", "rev"))  # numerically, to jax's own tolerances


def test_second_derivative_in_segments_and_heads_inside_rows(rng: np.random.Generator) -> None:
    from rootdk.jax import dot_product_attention

    with jax.enable_x64(True):
        q = jnp.asarray(rng.standard_normal((2, 6, 2, 4)))
        lengths = jnp.array([4, 6])
        call = jax.jit(lambda q: dot_product_attention(q, q, q, key_value_seq_lengths=lengths))
        check_grads(call, (q,), order=2, modes=("rev",))
        ids = jnp.array([0, 0, 1, 1, 1, 2])
        heads = jnp.swapaxes(q, 1, 2)
        packed = jax.jit(lambda q, ids: rootdk.attention(q, q, q, segments=ids, window=1, alibi=[0.3, 0.1]))
        check_grads(lambda q: packed(q, ids), (heads,), order=2, modes=("rev",))


def test_second_derivative_under_vmap(qkv: Any) -> None:
    q, k, v = qkv

    def squared(q: Array, k: Array, v: Array) -> Array:
        return (rootdk.attention(q, k, v, causal=True) ** 2).sum()

    def curvature(q: Array, k: Array, v: Array) -> Array:
        return jax.jvp(jax.grad(squared), (q, k, v), (q, jnp.zeros_like(k), jnp.zeros_like(v)))[1]

    together = jax.vmap(curvature)(q, k, v)
    apart = jnp.stack([curvature(*entry) for entry in zip(q, k, v, strict=True)])
    np.testing.assert_allclose(together, apart, rtol=0, atol=64 * unit_roundoff(np.float32) * float(abs(apart).max()))


def test_a_second_derivative_with_dropout_is_refused(qkv: Any) -> None:
    def call(q: Array) -> Array:
        return rootdk.attention(q, *qkv[1:], dropout=0.5, seed=1).sum()

    jax.grad(call)(qkv[0])
    with pytest.raises(rootdk.DerivativeError, match="dropout: must be 0 for a second derivative"):
        jax.jvp(jax.grad(call), (qkv[0],), (qkv[0],))


# What each call of a vmap has of its own; the kernel runs once for all of them, or once each where it must.
BATCHED = {
    "arrays": ((0, 0, 0, None, None), {}),
    "queries alone": ((0, None, None, None, None), {}),
    "values on another axis": ((0, 0, 1, None, None), {}),
    "scale": ((0, 0, 0, 0, None), {}),
    "sinks": ((0, 0, 0, None, 0), {}),
    "dropout with one seed": ((0, 0, 0, None, None), {"dropout": 0.4, "seed": 5}),
}


@pytest.mark.parametrize("case", BATCHED)
def test_vmap_is_a_loop(qkv: Any, case: str) -> None:
    axes, options = BATCHED[case]
    q, k, v = qkv
    given = [q, k, jnp.moveaxis(v, 0, 1) if axes[2] == 1 else v, jnp.array([0.1, 0.5, 2.0]), jnp.ones((3, 4))]
    given = [a if axis is not None else a[0] for a, axis in zip(given, axes, strict=True)]

    def call(q: Array, k: Array, v: Array, scale: Array, sinks: Array) -> Any:
        return rootdk.measure(q, k, v, scale=scale, sinks=sinks, causal=True, **options)

    def gradients(*given: Array) -> Any:
        return jax.grad(lambda *given: (call(*given)[0] ** 2).sum(), tuple(range(5)))(*given)

    calls = [
        [a if axis is None else jnp.moveaxis(a, axis, 0)[i] for a, axis in zip(given, axes, strict=True)]
        for i in range(3)
    ]
    out, reading = jax.vmap(call, axes)(*given)
    np.testing.assert_array_equal(out, jnp.stack([call(*one)[0] for one in calls]))
    np.testing.assert_array_equal(reading.entropy, jnp.stack([call(*one)[1].entropy for one in calls]))
    together = jax.vmap(gradients, axes)(*given)
    apart = [jnp.stack(each) for each in zip(*(gradients(*one) for one in calls), strict=True)]
    for ours, theirs in zip(together, apart, strict=True):
        # The sums behind a scale and sinks may be added in another order.
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=64 * unit_roundoff(np.float32) * float(abs(theirs).max()))


def test_a_gradient_through_vmap_adds_up_what_is_shared(qkv: Any) -> None:
    q, k, v = qkv
    bias = jnp.linspace(-1, 1, 12 * 12, dtype=jnp.float32).reshape(12, 12)

    def together(key: Array, bias: Array) -> Array:
        call = lambda q, v: rootdk.attention(q, key, v, bias=bias)  # noqa: E731
        return (jax.vmap(call)(q, v) ** 2).sum()

    def apart(key: Array, bias: Array) -> Array:
        return sum((rootdk.attention(q[i], key, v[i], bias=bias) ** 2).sum() for i in range(3))

    for ours, theirs in zip(*(jax.grad(f, (0, 1))(k[0], bias) for f in (together, apart)), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=64 * unit_roundoff(np.float32) * float(abs(theirs).max()))


def test_vmap_of_vmap_is_one_call_of_the_kernel(qkv: Any) -> None:
    q = qkv[0]
    program = jax.jit(jax.vmap(jax.vmap(lambda q: rootdk.attention(q, q, q)))).lower(q[:, :, None]).as_text()
    assert program.count("rootdk_attention_forward") == 1
    assert "while" not in program


def test_weights_and_their_gradient(qkv: Any) -> None:
    q, k, _ = qkv
    found = jax.jit(lambda q, k: rootdk.weights(q, k, causal=True))(q, k)
    np.testing.assert_array_equal(found, rootdk.weights(np.asarray(q), np.asarray(k), causal=True))
    with jax.enable_x64(True):
        call = jax.jit(lambda q: rootdk.weights(q, q, rows=[1, 3], window=2))
        check_grads(call, (q[0, :2, :6].astype(jnp.float64),), order=1)


def test_remat_donation_and_scan(qkv: Any) -> None:
    q, k, v = qkv

    def squared(q: Array) -> Array:
        return (rootdk.attention(q, k, v, causal=True) ** 2).sum()

    np.testing.assert_array_equal(jax.jit(jax.grad(jax.checkpoint(squared)))(q), jax.jit(jax.grad(squared))(q))
    expected = rootdk.attention(q, k, v)
    donated = q + 0
    np.testing.assert_array_equal(jax.jit(rootdk.attention, donate_argnums=0)(donated, k, v), expected)
    looped, _ = jax.lax.scan(lambda q, _: (rootdk.attention(q, k, v), None), q, None, length=2)
    np.testing.assert_array_equal(looped, rootdk.attention(expected, k, v))


def test_nans_are_found_where_jax_is_asked_to(qkv: Any) -> None:
    q, k, v = qkv
    broken = q.at[0, 0, 0, 0].set(jnp.nan)
    assert bool(jnp.isnan(rootdk.attention(broken, k, v)).any())
    with jax.debug_nans(True), pytest.raises(FloatingPointError):
        rootdk.attention(broken, k, v)


def test_export_asks_for_a_word_and_then_works(qkv: Any) -> None:
    q, k, v = qkv
    function = jax.jit(rootdk.attention)
    with pytest.raises(ValueError, match="rootdk_attention_forward"):
        export.export(function)(q, k, v)
    allowed = [export.DisabledSafetyCheck.custom_call("rootdk_attention_forward")]
    stored = export.export(function, disabled_checks=allowed)(q, k, v).serialize()
    np.testing.assert_array_equal(export.deserialize(stored).call(q, k, v), function(q, k, v))


def test_no_call_is_traced_or_compiled_twice(qkv: Any) -> None:
    traced = 0

    def call(q: Array, k: Array, v: Array, lengths: Array) -> Array:
        nonlocal traced
        traced += 1
        return rootdk.attention(q, k, v, key_lengths=lengths)

    function = jax.jit(call)
    for lengths in ([1, 2, 3], [4, 5, 6], [12, 12, 12]):
        function(*qkv, jnp.array(lengths))
        rootdk.attention(*qkv, key_lengths=lengths, dropout=0.1, seed=lengths[0])
    assert traced == 1
    with _compilations() as names:
        rootdk.attention(*qkv, key_lengths=[7, 7, 9], dropout=0.1, seed=99)
    assert names == []


class _compilations:  # noqa: N801
    """The names of what jax compiles meanwhile."""

    def __enter__(self) -> list[str]:
        self.names: list[str] = []
        jax.monitoring.register_event_duration_secs_listener(self._heard)
        return self.names

    def _heard(self, name: str, *_: Any, **__: Any) -> None:
        if name == "/jax/core/compile/backend_compile_duration":
            self.names.append(name)

    def __exit__(self, *_: object) -> None:
        jax.monitoring.unregister_event_duration_listener(self._heard)


def test_many_threads_call_one_program(qkv: Any) -> None:
    function = jax.jit(lambda q, k, v: rootdk.measure(q, k, v, causal=True))
    expected = function(*qkv)[0]
    with ThreadPoolExecutor(8) as pool:
        for out, reading in pool.map(lambda _: function(*qkv), range(64)):
            np.testing.assert_array_equal(out, expected)
            assert reading.shape == (3, 4, 12)


def test_a_reading_is_a_pytree_with_names(qkv: Any) -> None:
    reading = jax.jit(lambda q, k: rootdk.read(q, k, causal=True))(*qkv[:2])
    assert isinstance(reading, Reading)
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(reading)]
    assert ".entropy" in paths
    assert len(paths) == 10
    doubled = jax.tree.map(lambda a: 2 * a, reading)
    np.testing.assert_array_equal(doubled.keys, 2 * reading.keys)
    inside = jax.jit(lambda q, k: rootdk.read(q, k, causal=True).effective_keys)(*qkv[:2])
    np.testing.assert_allclose(inside, reading.effective_keys, rtol=1e-6)
    merged = rootdk.read(qkv[0], qkv[1][:, :, :5]).merge(rootdk.read(qkv[0], qkv[1][:, :, 5:]))
    np.testing.assert_allclose(merged.entropy, rootdk.read(*qkv[:2]).entropy, rtol=1e-5)
    assert reading.by_head().rows.tolist() == [36] * 4
    assert not jax.grad(lambda q: rootdk.read(q, qkv[1]).entropy.sum())(qkv[0]).any()  # as under stop_gradient


Q = np.zeros((2, 4, 6, 8), np.float32)
REFUSED = [
    ({"key": [1.0]}, "key: must be an array of jax like query, got list"),
    ({"key": Q.astype(np.int32)}, "key: must be float32, float64, float16 or bfloat16, got int32"),
    ({"value": Q.astype(np.float16)}, "value: must be float32 to match query, got float16"),
    ({"mask": Q[..., :6]}, "mask: must be bool, True keeps a pair, got float32"),
    ({"mask": np.ones((5, 6), bool)},
     "mask: must broadcast to (..., heads, n_query, n_key) = (2, 4, 6, 6), got (5, 6)"),
    ({"bias": np.ones((6, 6), np.int32)}, "bias: must be float32, float64, float16 or bfloat16, got int32"),
    ({"dropout": 0.1},
     "seed: must be given for dropout on arrays of jax, got None (jax.random.bits(key) makes one of a key)"),
    ({"key_lengths": [1, 9]}, "key_lengths: must be from 0 to 6, got [1, 9]"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "message"), REFUSED)
def test_what_does_not_fit_is_named(change: dict[str, Any], message: str) -> None:
    given = {"query": jnp.asarray(Q), "key": jnp.asarray(Q), "value": jnp.asarray(Q)} | change
    with pytest.raises(rootdk.RootdkError) as caught:
        rootdk.attention(**given)
    assert str(caught.value) == message


SCALE = "None, a number, an array without axes, a name or a rule from rootdk.scaling"
TRACED = [
    ("key_lengths", jnp.ones(3, jnp.int32), "key_lengths: must be an int or ints of shape (2,), got shape (3,)"),
    ("key_lengths", jnp.ones(2), "key_lengths: must be integers, got float32[2]"),
    ("sinks", jnp.ones(3), "sinks: must have shape (4,), one per query head, got (3,)"),
    ("alibi", jnp.ones(3), "alibi: must broadcast to (..., heads) = (2, 4), got shape (3,)"),
    ("scale", jnp.ones(1), f"scale: must be {SCALE}, got an array of shape (1,)"),
    ("segments", jnp.ones(6), "segments: must be integers of at most 64 bits, got float32"),
    ("seed", jnp.ones(1, jnp.int32), "seed: must be an int or an integer array without axes, got int32[1]"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "given", "message"), TRACED)
def test_what_is_traced_is_checked_by_shape_and_type(name: str, given: Any, message: str) -> None:
    query = jnp.asarray(Q)
    with pytest.raises(rootdk.RootdkError) as caught:
        jax.jit(lambda given: rootdk.attention(query, query, query, dropout=0.1, **({"seed": 1} | {name: given})))(
            given
        )
    assert str(caught.value) == message


def test_traced_lengths_out_of_range_are_named_when_the_program_runs() -> None:
    query = jnp.asarray(Q)
    function = jax.jit(lambda lengths: rootdk.attention(query, query, query, key_lengths=lengths))
    with pytest.raises(jax.errors.JaxRuntimeError, match="key_lengths: must be from 0 to 6, got 7"):
        function(jnp.array([1, 7])).block_until_ready()


def test_a_rule_by_row_must_know_the_lengths() -> None:
    query = jnp.asarray(Q)
    with pytest.raises(rootdk.ArgumentError, match=r"^scale: a rule must not vary from row to row where key_lengths"):
        jax.jit(lambda n: rootdk.attention(query, query, query, scale="entropy_invariant", key_lengths=n))(
            jnp.array([1, 6])
        )


def test_another_device_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    class Elsewhere:
        platform = "tpu"

        def __str__(self) -> str:
            return "TPU_0"

    query = jnp.asarray(Q)
    monkeypatch.setattr(type(query), "devices", lambda _: {Elsewhere()})
    with pytest.raises(rootdk.ArgumentTypeError, match="query: must be on a CPU device, got one on TPU_0"):
        rootdk.attention(query, query, query)
    monkeypatch.undo()
    with pytest.raises(rootdk.ArgumentTypeError, match="got a program for 'cuda'"):
        jax.jit(rootdk.attention).trace(query, query, query).lower(lowering_platforms=("cuda",))


def test_a_build_without_the_part_for_jax_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    class Without:
        @staticmethod
        def xla_targets() -> dict[str, Any]:
            return {}

    primitives.register_targets.cache_clear()
    monkeypatch.setattr(primitives, "kernel", Without)
    query = jnp.asarray(Q)
    with pytest.raises(rootdk.KernelMissingError, match=r"must be compiled with the headers of jaxlib .*docs/jax.md"):
        rootdk.attention(query, query, query)
