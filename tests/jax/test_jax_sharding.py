"""Four devices of one CPU: shard_map, and programs that XLA cuts over batch and heads without a gather."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

SETUP = """
    import json, sys, traceback
    import jax, jax.numpy as jnp, numpy as np, rootdk
    from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

    sys.path.insert(0, sys.argv[1])
    from budgets import assert_within, bias_gradient_budget, gradient_budget, head_gradient_budget
    from rootdk.backends import problem_of

    rng = np.random.default_rng(0)
    draw = lambda *shape: rng.standard_normal(shape, dtype=np.float32)
    q, k, v, d_out = draw(4, 8, 16, 8), draw(4, 4, 16, 8), draw(4, 4, 16, 8), draw(4, 8, 16, 8)
    sinks, bias = draw(8), draw(8, 16, 16)
    mesh = jax.make_mesh((2, 2), ("batch", "heads"), axis_types=(AxisType.Auto,) * 2)
    specs = (P("batch", "heads"),) * 3 + (P("heads"), P("heads"))
    given = (q, k, v, sinks, bias)
    judged = problem_of(q, k, v, causal=True, sinks=sinks, bias=bias)
    expected = rootdk.attention(q, k, v, causal=True, sinks=sinks, bias=bias)

    def call(q, k, v, sinks, bias):
        return rootdk.attention(q, k, v, causal=True, sinks=sinks, bias=bias)

    def gradients(call):
        return jax.jit(jax.grad(lambda *given: (call(*given) * d_out).sum(), (0, 1, 2, 3, 4)))

    def judge(found):
        budgets = [*gradient_budget(judged, d_out), head_gradient_budget(judged, d_out, "sinks", (8,))]
        budgets.append(bias_gradient_budget(judged, d_out, bias.shape, np.float32))
        for array, budget in zip(found, budgets, strict=True):
            assert_within(array, *budget)
"""
# Each says what it found; all in one process, which takes a second to start and compiles what they share once.
PARTS = {
    "shard_map": """
        shard = jax.shard_map(call, mesh=mesh, in_specs=specs, out_specs=P("batch", "heads"))
        np.testing.assert_array_equal(jax.jit(shard)(*given), expected)
        judge(gradients(shard)(*given))
        every = P(("batch", "heads"))
        read = lambda q, k: rootdk.measure(q, k, k)[1]
        shared = jax.jit(jax.shard_map(read, mesh=mesh, in_specs=(every, P()), out_specs=every))
        reading = shared(q, k[:1])
        np.testing.assert_array_equal(reading.entropy, rootdk.read(q, np.broadcast_to(k[:1], k.shape)).entropy)
        found = reading.shape
    """,
    "sharded jit": """
        placed = [jax.device_put(a, NamedSharding(mesh, spec)) for a, spec in zip(given, specs)]
        function = jax.jit(lambda *given: rootdk.measure(*given[:3], causal=True, sinks=given[3], bias=given[4]))
        program = function.lower(*placed).compile()
        out, reading = program(*placed)
        np.testing.assert_array_equal(out, expected)
        back = gradients(call).lower(*placed).compile()
        judge(back(*placed))
        texts = [program.as_text(), back.as_text()]
        assert "rootdk_attention_forward" in texts[0] and "rootdk_attention_backward" in texts[1]
        # Each device computes a quarter: 2 of 4 entries, 4 of 8 heads.
        assert "f32[2,4,16,8]" in texts[0] and "f32[4,8,16,8]" not in texts[0]
        found = [str(out.sharding.spec), *("all-gather" in text or "all-to-all" in text for text in texts)]
    """,
    "heads that share a key stay together": """
        many = [jax.device_put(a, NamedSharding(mesh, P(None, ("batch", "heads")))) for a in (q, d_out)]
        few = [jax.device_put(a[:, :2], NamedSharding(mesh, P())) for a in (k, v)]
        out = jax.jit(rootdk.attention)(many[0], *few)
        np.testing.assert_array_equal(out, rootdk.attention(q, k[:, :2], v[:, :2]))
        found = out.shape
    """,
    "explicit": """
        explicit = jax.make_mesh((4,), ("batch",), axis_types=(AxisType.Explicit,))
        placed = jax.device_put(q, NamedSharding(explicit, P("batch")))
        try:
            rootdk.attention(placed, placed, placed)
        except rootdk.ArgumentError as error:
            found = str(error)
    """,
}


@pytest.fixture(scope="module")
def told() -> dict[str, Any]:
    """What each part found where jax sees four devices (they are counted once per process), or how it failed."""
    code = textwrap.dedent(SETUP) + "\ntold = {}\n"
    for name, part in PARTS.items():
        code += f"try:\n{textwrap.indent(textwrap.dedent(part), '    ')}\n    told[{name!r}] = found\n"
        code += f"except Exception:\n    told[{name!r}] = traceback.format_exc()\n"
    code += "print(json.dumps(told))\n"
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=4", "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-c", code, str(Path(__file__).parents[1] / "support")]
    done = subprocess.run(command, env=os.environ | flags, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def test_shard_map_with_gradients(told: dict[str, Any]) -> None:
    assert told["shard_map"] == [4, 8, 16]


def test_a_program_that_xla_cuts_gathers_nothing(told: dict[str, Any]) -> None:
    assert told["sharded jit"] == ["P('batch', 'heads')", False, False]


def test_heads_that_share_a_key_stay_together(told: dict[str, Any]) -> None:
    assert told["heads that share a key stay together"] == [4, 8, 16, 8]


def test_a_mesh_of_explicit_axes_is_refused_by_name(told: dict[str, Any]) -> None:
    assert told["explicit"].startswith("query: must not be sharded over explicit axes of a mesh, got P('batch'")
