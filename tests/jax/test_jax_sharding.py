"""Four devices of one CPU: shard_map, and programs that XLA cuts over batch and heads without a gather."""

import os
import subprocess
import sys
import textwrap

SETUP = """
    import jax, jax.numpy as jnp, numpy as np, rootdk
    from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

    rng = np.random.default_rng(0)
    q = jnp.asarray(rng.standard_normal((4, 8, 16, 8)), jnp.float32)
    k, v = (jnp.asarray(a, jnp.float32) for a in rng.standard_normal((2, 4, 4, 16, 8)))
    sinks, bias = (jnp.asarray(rng.standard_normal(shape), jnp.float32) for shape in (8, (8, 16, 16)))
    mesh = jax.make_mesh((2, 2), ("batch", "heads"), axis_types=(AxisType.Auto,) * 2)
    specs = (P("batch", "heads"),) * 3 + (P("heads"), P("heads"))
    given = (q, k, v, sinks, bias)

    def call(q, k, v, sinks, bias):
        return rootdk.attention(q, k, v, causal=True, sinks=sinks, bias=bias)

    def gradients(call, given):
        return jax.jit(jax.grad(lambda *given: (call(*given) ** 2).sum(), (0, 1, 2, 3, 4)))(*given)

    def close(ours, theirs):
        for mine, other in zip(ours, theirs, strict=True):  # sums over devices are added in another order
            np.testing.assert_allclose(mine, other, rtol=0, atol=64 * 2.0**-24 * float(abs(other).max()))
"""
FLAGS = {"XLA_FLAGS": "--xla_force_host_platform_device_count=4", "JAX_PLATFORMS": "cpu"}


def fresh(code: str) -> str:
    """What the code prints where jax sees four devices; they are counted once per process."""
    command = [sys.executable, "-c", textwrap.dedent(SETUP) + textwrap.dedent(code)]
    done = subprocess.run(command, env=os.environ | FLAGS, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_shard_map_with_gradients() -> None:
    assert (
        fresh("""
        shard = jax.shard_map(call, mesh=mesh, in_specs=specs, out_specs=P("batch", "heads"))
        np.testing.assert_array_equal(jax.jit(shard)(*given), call(*given))
        np.testing.assert_array_equal(shard(*given), call(*given))
        close(gradients(shard, given), gradients(call, given))
        every = P(("batch", "heads"))
        read = lambda q, k: rootdk.measure(q, k, k)[1]
        shared = jax.shard_map(read, mesh=mesh, in_specs=(every, P()), out_specs=every)
        print(shared(q, k[:1]).shape)
    """).split("\n")[0]
        == "(4, 8, 16)"
    )


def test_a_program_that_xla_cuts_gathers_nothing() -> None:
    assert (
        fresh("""
        placed = [jax.device_put(a, NamedSharding(mesh, spec)) for a, spec in zip(given, specs)]
        function = jax.jit(lambda *given: rootdk.measure(*given[:3], causal=True, sinks=given[3], bias=given[4]))
        text = function.lower(*placed).compile().as_text()
        assert "rootdk_attention_forward" in text
        out, reading = function(*placed)
        np.testing.assert_array_equal(out, call(*given))
        assert out.sharding.spec == P("batch", "heads"), out.sharding
        program = jax.jit(jax.grad(lambda *given: (call(*given) ** 2).sum(), (0, 1, 2, 3, 4))).lower(*placed).compile()
        close(program(*placed), gradients(call, given))
        print("all-gather" in text, "all-gather" in program.as_text(), "all-to-all" in program.as_text())
    """).split()
        == ["False"] * 3
    )


def test_a_mesh_of_explicit_axes_is_refused_by_name() -> None:
    assert fresh("""
        explicit = jax.make_mesh((4,), ("batch",), axis_types=(AxisType.Explicit,))
        placed = jax.device_put(q, NamedSharding(explicit, P("batch")))
        try:
            rootdk.attention(placed, placed, placed)
        except rootdk.ArgumentError as error:
            print(error)
    """).startswith("query: must not be sharded over explicit axes of a mesh, got P('batch'")
