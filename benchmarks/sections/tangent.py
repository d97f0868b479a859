"""The forward derivative, torch.func.jvp in query, key and value, against torch's: its fused path has none.

So torch runs its plain formula, which holds the scores of all heads and their tangents. The forward alone takes part to
show what a derivative costs.
"""

from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from typing import Any

import rootdk
from benchmarks.problems import Shape, make_inputs
from benchmarks.race import Call, beside_sgemm, only_right
from benchmarks.section import Row, Setting, Step, cell, faster, judge_rows, mean, milliseconds, of_rows, times_faster

SHAPES = (
    Shape(1, 8, 8, 2048, 64, causal=False),
    Shape(1, 8, 8, 2048, 64, causal=True),
    Shape(1, 12, 12, 1024, 64, causal=True),
    Shape(8, 8, 8, 128, 64, causal=False),
    Shape(1, 32, 8, 1024, 128, causal=True),
)
QUICK_SHAPES = (Shape(1, 4, 2, 250, 64, causal=True),)


def steps(setting: Setting) -> Iterator[Step]:
    """One per shape; none without torch, whose function is asked."""
    if not setting.torch:
        return
    for shape in QUICK_SHAPES if setting.quick else SHAPES:
        yield Step("tangent", f"{shape.name}, tangent", partial(race, shape, budget=setting.seconds(4.0)))


def race(shape: Shape, *, budget: float) -> Row:
    """Both sides through torch.func.jvp on the same tensors, all three of which move."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    inputs, moved = make_inputs(shape), make_inputs(shape, seed=1)
    tensors, tangents = (tuple(torch.from_numpy(array) for array in of.arrays) for of in (inputs, moved))

    def ours(*tensors: Any) -> Any:
        return rootdk.attention(*tensors, causal=shape.causal)

    def theirs(*tensors: Any) -> Any:
        return scaled_dot_product_attention(*tensors, is_causal=shape.causal, enable_gqa=shape.grouped)

    def forward() -> Any:
        with torch.no_grad():
            return ours(*tensors)

    def along(attend: Any) -> Any:
        with torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
            return torch.func.jvp(attend, tensors, tangents)

    def check(name: str, result: Any) -> None:
        if name == "attention":
            inputs.check(result)
        else:
            inputs.check(result[0])
            inputs.check_tangent(result[1], moved)

    calls: dict[str, Call] = {"rootdk": partial(along, ours), "torch": partial(along, theirs), "attention": forward}
    calls, left_out = only_right(calls, check)
    facts = {"name": shape.name, "shape": asdict(shape), "flops": shape.flops}
    return facts | beside_sgemm(calls, left_out, budget, torch=True)


SECTIONS = (
    of_rows(
        "tangent",
        steps,
        partial(judge_rows, key="tangent", targets=[mean("forward derivative against torch", 5.0)], with_torch=True),
        "Forward and its derivative along q, k, v (torch.func.jvp)",
        {
            "rootdk, ms": milliseconds("rootdk"),
            "torch, ms": milliseconds("torch"),
            "faster": times_faster("torch"),
            "of the forward": cell(faster("rootdk", "attention"), ".1f", "rootdk", "attention"),
        },
    ),
)
