"""Arrays of jax: rootdk.jax against jax.nn, and torch's own call, over the matrix of shapes, alone and with gradients.

All of it in a process of its own, because XLA's threads and torch's would otherwise be there in every other race.
"""

from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from typing import Any

import numpy as np

from benchmarks.children import TIMING, Note, Task, race_alone
from benchmarks.peers import torch_backward, torch_forward
from benchmarks.problems import Shape, make_inputs
from benchmarks.race import Call, beside_sgemm, only_right
from benchmarks.section import (
    Row,
    Setting,
    Step,
    Target,
    faster,
    geometric_mean,
    judge_rows,
    milliseconds,
    of,
    of_rows,
    times_faster,
)
from benchmarks.sections.attention import shapes_of


def steps(setting: Setting) -> Iterator[Step]:
    """One per shape, forward, and one with the gradient; none where jax did not open."""
    if not any(peer.name == "jax" for peer in setting.peers):
        return
    for shape in shapes_of(setting):
        for kind in ("forward", "gradient"):
            name = f"{shape.name} {kind}"
            task = {"name": name, "kind": kind, "shape": asdict(shape), "torch": setting.torch}
            yield Step(
                "jax", name, partial(race_alone, f"{__name__}:race", task | {"budget": setting.seconds(3.0, 0.5)})
            )


def race(task: Task, note: Note) -> Row:
    """The same numbers: as jax wants them, (batch, n, heads, d), and for torch heads first."""
    import jax

    from rootdk.jax import dot_product_attention

    jax.config.update("jax_platforms", "cpu")
    shape, gradient = Shape(**task["shape"]), task["kind"] == "gradient"
    inputs = make_inputs(shape)
    arrays = [jax.numpy.asarray(np.ascontiguousarray(array.swapaxes(1, 2))) for array in inputs.arrays]
    d_out = jax.numpy.asarray(np.ascontiguousarray(inputs.d_out.swapaxes(1, 2)))

    def compiled(function: Any) -> Call:
        def alone(query: Any, key: Any, value: Any) -> Any:
            return function(query, key, value, is_causal=shape.causal)

        def pulled(query: Any, key: Any, value: Any) -> Any:
            return jax.vjp(alone, query, key, value)[1](d_out)

        program = jax.jit(pulled if gradient else alone)
        if gradient:
            return lambda: [np.asarray(array).swapaxes(1, 2) for array in program(*arrays)]
        return lambda: np.asarray(program(*arrays)).swapaxes(1, 2)

    contestants = {"rootdk": compiled(dot_product_attention), "jax": compiled(jax.nn.dot_product_attention)}
    if task["torch"]:
        contestants["torch"] = (torch_backward if gradient else torch_forward)(inputs)
    calls = {name: call for name, call in contestants.items() if name not in task["without"]}
    check = inputs.check_gradients if gradient else inputs.check
    calls, left_out = only_right(calls, lambda _name, result: check(result), note)
    note(TIMING)
    facts = {"name": task["name"], "kind": task["kind"], "shape": asdict(shape), "flops": shape.flops}
    return facts | beside_sgemm(calls, left_out, task["budget"], torch=task["torch"])


def _mean(name: str, limit: float, kind: str) -> Target:
    needs = ("rootdk", "jax")
    return Target(f"{name}, geometric mean", limit, faster("jax"), geometric_mean, needs, counts=of("kind", kind))


TARGETS = [
    _mean("jax forward against jax.nn", 4.0, "forward"),
    _mean("jax forward and gradient against jax.nn", 3.0, "gradient"),
]
SECTIONS = (
    of_rows(
        "jax",
        steps,
        partial(judge_rows, key="jax", targets=TARGETS),
        "Arrays of jax, in compiled programs: times faster than jax.nn, and than torch",
        {"ms, best / median": milliseconds("rootdk"), "jax.nn": times_faster("jax"), "torch": times_faster("torch")},
    ),
)
