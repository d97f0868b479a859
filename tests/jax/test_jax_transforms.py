"""What jax does with a call: jit, grad, vmap, remat, scan, export, and what is refused by name."""

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from budgets import (
    assert_within,
    bias_gradient_budget,
    gradient_budget,
    head_gradient_budget,
    measure_budget,
    scale_gradient_budget,
    unit_roundoff,
)
from jax import export
from jax.test_util import check_grads

import rootdk
from rootdk import Reading
from rootdk.backends import problem_of
from rootdk.backends.jax import primitives, sharding

Array = Any


@pytest.fixture
def qkv(rng: np.random.Generator) -> Any:
    """(batch, heads, n, d) with two query heads per key head."""
    shapes = ((3, 4, 12, 8), (3, 2, 12, 8), (3, 2, 12, 8))
    return tuple(jnp.asarray(rng.standard_normal(shape), jnp.float32) for shape in shapes)


def assert_second_derivatives(rng: np.random.Generator, call: Any, given: Any) -> None:
    """Along two directions by three ways, held against differences of the kernel's own gradient, in float64.

    A central difference is off by c h^2 and by rounding / h: halving h says how large the former is.
    """
    d_out = jnp.asarray(rng.standard_normal(jax.eval_shape(call, given).shape))
    first, other = (jax.tree.map(lambda a: jnp.asarray(rng.standard_normal(np.shape(a))), given) for _ in range(2))

    def loss(given: Any) -> Array:
        return (call(given) * d_out).sum()

    def along(direction: Any, gradient: Any) -> Array:
        return sum(jax.tree.leaves(jax.tree.map(jnp.vdot, direction, gradient)))

    @jax.jit
    def everything(given: Any) -> Any:
        gradient = jax.grad(loss)
        slope = lambda given: jax.jvp(loss, (given,), (other,))[1]  # noqa: E731
        curvatures = [
            along(other, jax.jvp(gradient, (given,), (first,))[1]),
            along(first, jax.grad(lambda given: along(other, gradient(given)))(given)),
            jax.jvp(slope, (given,), (first,))[1],
        ]
        steps = jnp.array([-2.0, -1.0, 1.0, 2.0]) * 2.0**-14
        moved = jax.lax.map(lambda h: gradient(jax.tree.map(lambda a, d: a + h * d, given, first)), steps)
        return (
            curvatures,
            jax.vmap(partial(along, other))(moved),
            along(jax.tree.map(jnp.abs, other), jax.tree.map(jnp.abs, gradient(given))),
        )

    curvatures, slopes, size = everything(given)
    coarse, fine = (slopes[3] - slopes[0]) * 2**12, (slopes[2] - slopes[1]) * 2**13
    bound = abs(coarse - fine) + 64 * unit_roundoff(np.float64) * size * 2**13  # a slope is a sum of about 64 roundings
    assert abs(coarse - fine) < 1e-4 * abs(fine)  # the steps are small enough for this to say something
    for way in curvatures:
        assert abs(way - fine) <= bound


def test_second_derivatives_of_every_learned_input(rng: np.random.Generator) -> None:
    with jax.enable_x64(True):
        shapes = {"query": (2, 5, 4), "key": (2, 5, 4), "value": (2, 5, 4), "bias": (5, 5), "sinks": 2, "alibi": 2}
        given = {name: jnp.asarray(rng.standard_normal(shape)) for name, shape in shapes.items()}

        def call(given: dict[str, Array]) -> Array:
            return rootdk.attention(**given, causal=True, softcap=2.0)

        assert_second_derivatives(rng, call, given | {"scale": jnp.asarray(0.7)})


def test_second_derivative_in_segments_and_heads_inside_rows(rng: np.random.Generator) -> None:
    from rootdk.jax import dot_product_attention

    lengths, ids = np.array([4, 6]), np.array([0, 0, 1, 1, 1, 2])

    def call(q: Array) -> Array:
        padded = dot_product_attention(q, q, q, key_value_seq_lengths=lengths)
        heads = jnp.swapaxes(q, 1, 2)
        packed = jax.jit(lambda q, ids: rootdk.attention(q, q, q, segments=ids, window=1, alibi=[0.3, 0.1]))
        return padded + jnp.swapaxes(packed(heads, ids), 1, 2)

    with jax.enable_x64(True):
        assert_second_derivatives(rng, call, jnp.asarray(rng.standard_normal((2, 6, 2, 4))))


def test_second_derivative_under_vmap(rng: np.random.Generator) -> None:
    """One formula in two programs that may add in another order: as far apart as float32 is from float64."""
    arrays = rng.standard_normal((3, 3, 2, 6, 4), dtype=np.float32)

    def squared(q: Array, k: Array, v: Array) -> Array:
        return (rootdk.attention(q, k, v, causal=True) ** 2).sum()

    def curvature(q: Array, k: Array, v: Array) -> Array:
        return jax.jvp(jax.grad(squared), (q, k, v), (q, jnp.zeros_like(k), jnp.zeros_like(v)))[1]

    together, plain = (
        jax.jit(jax.vmap(curvature))(*arrays),
        jax.jit(lambda *a: jax.lax.map(lambda entry: curvature(*entry), a))(*arrays),
    )
    with jax.enable_x64(True):
        exact = np.asarray(jax.jit(jax.vmap(curvature))(*arrays.astype(np.float64)))
    rounding = unit_roundoff(np.float32) * float(abs(exact).max())
    bound = 2 * (float(abs(np.asarray(plain, np.float64) - exact).max()) + rounding)
    assert_within(together, exact, bound)


# Each hides keys 4 and 5, by one or by two options.
HIDING = {
    "length and window": {"key_lengths": 5, "window": (5, 0), "query_offset": -2},
    "mask and bias": {
        "mask": np.arange(6) != 4, "bias": np.where(np.arange(6) != 5, 0, -np.inf).astype(np.float32),
    },
    "segments": {"segments": (np.zeros(6, int), np.arange(6) // 4)},
}  # fmt: skip


@pytest.mark.parametrize("case", HIDING)
def test_what_hidden_keys_hold_reaches_no_derivative(rng: np.random.Generator, case: str) -> None:
    """First and second ones, NaN also in the direction in which the second is taken."""
    q, k, v, d_q, d_k, d_v = rng.standard_normal((6, 2, 6, 4), dtype=np.float32)

    def loss(q: Array, k: Array, v: Array, scale: Array, sinks: Array) -> Array:
        return (rootdk.attention(q, k, v, scale=scale, sinks=sinks, **HIDING[case]) ** 2).sum()

    @jax.jit
    def derivatives(filler: Array) -> Any:
        k_, v_, d_k_, d_v_ = (jnp.concatenate([a[:, :4], jnp.full((2, 2, 4), filler)], 1) for a in (k, v, d_k, d_v))
        gradient = jax.grad(loss, (0, 1, 2, 3, 4))
        given = (jnp.asarray(q), k_, v_, jnp.float32(0.7), jnp.ones(2))
        return jax.jvp(gradient, given, (jnp.asarray(d_q), d_k_, d_v_, jnp.float32(1.0), jnp.ones(2)))

    first, second = derivatives(jnp.float32(jnp.nan))
    assert all(bool(jnp.isfinite(array).all()) for array in (*first, *second))
    for derivative, expected in zip((*first, *second), jax.tree.leaves(derivatives(jnp.float32(0.0))), strict=True):
        np.testing.assert_array_equal(derivative, expected)


def test_a_row_does_not_hear_of_later_keys_that_are_not_finite(rng: np.random.Generator) -> None:
    q, k, v = (jnp.asarray(a) for a in rng.standard_normal((3, 2, 6, 4), dtype=np.float32))

    @jax.jit
    def curvature(k: Array, v: Array) -> Array:
        loss = lambda q: (rootdk.attention(q, k, v, causal=True)[:, :4] ** 2).sum()  # noqa: E731
        return jax.jvp(jax.grad(loss), (q,), (q,))[1]

    spoiled = curvature(k.at[:, 4].set(jnp.nan), v.at[:, 5].set(jnp.inf))
    np.testing.assert_array_equal(spoiled[:, :4], curvature(k, v)[:, :4])
    assert bool(jnp.isnan(spoiled[:, 4:]).all())


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
    d_out = jnp.cos(jnp.arange(4 * 12 * 8, dtype=jnp.float32)).reshape(4, 12, 8)

    def everything(q: Array, k: Array, v: Array, scale: Array, sinks: Array) -> Any:
        out, pull, reading = jax.vjp(
            lambda q, k, v, scale, sinks: rootdk.measure(q, k, v, scale=scale, sinks=sinks, causal=True, **options),
            q, k, v, scale, sinks, has_aux=True,
        )  # fmt: skip
        _, tangent = jax.jvp(lambda q: rootdk.attention(q, k, v, scale=scale, causal=True, **options), (q,), (q,))
        return out, reading, rootdk.weights(q, k, sinks=sinks), tangent, pull(d_out)

    *together, gradients = jax.jit(jax.vmap(everything, axes))(*given)
    one_by_one = jax.jit(everything)
    for i in range(3):
        entry = [a if axis is None else jnp.moveaxis(a, axis, 0)[i] for a, axis in zip(given, axes, strict=True)]
        *alone, _ = one_by_one(*entry)
        for ours, theirs in zip(jax.tree.leaves(together), jax.tree.leaves(alone), strict=True):
            np.testing.assert_array_equal(ours[i], theirs)
        facts = problem_of(
            *map(np.asarray, entry[:3]), scale=float(entry[3]), sinks=np.asarray(entry[4]), causal=True, **options
        )
        budgets = [*gradient_budget(facts, np.asarray(d_out)), scale_gradient_budget(facts, np.asarray(d_out))]
        budgets.append(head_gradient_budget(facts, np.asarray(d_out), "sinks", (4,)))
        for ours, budget in zip(gradients, budgets, strict=True):
            assert_within(ours[i], *budget)


def test_a_gradient_through_vmap_adds_up_what_is_shared(qkv: Any) -> None:
    q, k, v = qkv
    bias = jnp.linspace(-1, 1, 12 * 12, dtype=jnp.float32).reshape(12, 12)
    d_out = jnp.cos(jnp.arange(q.size, dtype=jnp.float32)).reshape(q.shape)

    @jax.jit
    def gradients(key: Array, bias: Array) -> Any:
        loss = lambda key, bias: (jax.vmap(lambda q, v: rootdk.attention(q, key, v, bias=bias))(q, v) * d_out).sum()  # noqa: E731
        return jax.grad(loss, (0, 1))(key, bias)

    of_key, of_bias = gradients(k[0], bias)
    facts = problem_of(*map(np.asarray, (q, jnp.broadcast_to(k[0], k.shape), v)), bias=np.asarray(bias))
    (_, (expected, bound), _), d_out = gradient_budget(facts, np.asarray(d_out)), np.asarray(d_out)
    assert_within(of_key, expected.sum(axis=0), 3 * bound)  # three calls, each within its budget
    assert_within(of_bias, *bias_gradient_budget(facts, d_out, bias.shape, np.float32))


def test_vmap_of_vmap_is_one_call_of_the_kernel(qkv: Any) -> None:
    q = qkv[0]
    program = jax.jit(jax.vmap(jax.vmap(lambda q: rootdk.attention(q, q, q)))).lower(q[:, :, None]).as_text()
    assert program.count("rootdk_attention_forward") == 1
    assert "while" not in program


def test_weights_and_their_gradient(qkv: Any) -> None:
    q, k, _ = qkv
    weights = jax.jit(lambda q, k: rootdk.weights(q, k, causal=True))(q, k)
    np.testing.assert_array_equal(weights, rootdk.weights(np.asarray(q), np.asarray(k), causal=True))
    with jax.enable_x64(True):
        call = jax.jit(lambda q: rootdk.weights(q, q, rows=[1, 3], window=2))
        check_grads(call, (q[0, :2, :6].astype(jnp.float64),), order=1)


def test_remat_donation_and_scan(qkv: Any) -> None:
    q, k, v = qkv

    def squared(q: Array) -> Array:
        return (rootdk.attention(jnp.sin(q), k, v, causal=True) ** 2).sum()

    again, once = (jax.jit(jax.value_and_grad(function)) for function in (jax.checkpoint(squared), squared))
    assert [str(function.trace(q).jaxpr).count("rootdk_attention_forward[") for function in (again, once)] == [2, 1]
    np.testing.assert_array_equal(again(q)[1], once(q)[1])
    expected = rootdk.attention(q, k, v)
    donated = q + 0
    np.testing.assert_array_equal(jax.jit(rootdk.attention, donate_argnums=0)(donated, k, v), expected)
    assert donated.is_deleted()
    looped, _ = jax.lax.scan(lambda q, _: (rootdk.attention(q, k, v), None), q, None, length=2)
    np.testing.assert_array_equal(looped, rootdk.attention(expected, k, v))


def test_x64_changes_types_and_no_bit(qkv: Any) -> None:
    """Integers of 64 bits, traced, and a seed beyond 32: what they say is the same as without."""
    lengths, ids = np.array([3, 12, 0]), np.arange(12) // 5
    expected = rootdk.measure(*map(np.asarray, qkv), key_lengths=lengths, segments=ids, dropout=0.3, seed=2**40 + 7)

    def call(lengths: Array, ids: Array, seed: Array) -> Any:
        return rootdk.measure(*qkv, key_lengths=lengths, segments=ids, dropout=0.3, seed=seed)

    with jax.enable_x64(True):
        wide = jax.jit(call)(jnp.asarray(lengths), jnp.asarray(ids), jnp.asarray(2**40 + 7))
        assert wide[1].keys.dtype == jnp.int64
        assert wide[0].dtype == jnp.float32
        assert rootdk.attention(*(a.astype(jnp.float64) for a in qkv)).dtype == jnp.float64
    narrow = jax.jit(partial(call, seed=2**40 + 7))(jnp.asarray(lengths), jnp.asarray(ids))
    assert narrow[1].keys.dtype == jnp.int32
    assert rootdk.attention(qkv[0], *(np.asarray(a, np.float64) for a in qkv[1:])).dtype == jnp.float32
    for out, reading in (wide, narrow):
        np.testing.assert_array_equal(out, expected[0])
        np.testing.assert_array_equal(reading.keys, expected[1].keys)
        np.testing.assert_array_equal(reading.entropy, expected[1].entropy)


def test_nans_are_found_where_jax_is_asked_to(qkv: Any) -> None:
    q, k, v = qkv
    broken = q.at[0, 0, 0, 0].set(jnp.nan)
    assert bool(jnp.isnan(rootdk.attention(broken, k, v)).any())
    with jax.debug_nans(True):
        rootdk.attention(q, k, v)
        for call in (rootdk.attention, jax.jit(rootdk.attention), jax.grad(lambda *a: rootdk.attention(*a).sum())):
            with pytest.raises(FloatingPointError):
                call(broken, k, v)


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
    np.testing.assert_allclose(inside, 1 / np.asarray(reading.p_squared), rtol=2 * unit_roundoff(np.float32))
    merged = jax.jit(lambda q, k: rootdk.read(q, k[:, :, :5]).merge(rootdk.read(q, k[:, :, 5:])))(*qkv[:2])
    whole, *parts = (
        measure_budget(problem_of(*map(np.asarray, (qkv[0], k, k))))
        for k in (qkv[1], qkv[1][:, :, :5], qkv[1][:, :, 5:])
    )
    # A mean of both parts and of how far each lies below the whole, weighted by shares: what moves one moves it.
    expected, bound = whole["entropy"]
    bound += sum(part["entropy"][1] + 2 * part["log_sum_exp"][1] * (1 + float(expected.max())) for part in parts)
    assert_within(merged.entropy, expected, bound, "merged entropy")
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


def test_a_jax_that_cannot_be_told_of_devices_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(sharding.dispatch, "prim_requires_devices_during_lowering")
    with pytest.raises(rootdk.ArgumentError, match=r"^jax: must be a version whose primitives .*, got \d+.*docs/jax"):
        sharding.needs_devices(primitives.forward_p)


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
