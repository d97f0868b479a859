"""bfloat16 and float16 against torch, on some shapes of the matrix, each race in a process of its own.

torch's half-type attention hands its products to oneDNN, which may pick instructions that a virtual machine refuses,
and then the process dies: children.py says what happens next. torch's float32 call, which its user would fall back to,
takes part beside it.
"""

from collections.abc import Iterator
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import rootdk
from benchmarks.children import TIMING, Note, Task, race_alone
from benchmarks.peers import torch_attention, torch_forward
from benchmarks.problems import RELATIVE_LIMIT, Inputs, Shape, make_inputs
from benchmarks.race import Call, beside_sgemm, only_right
from benchmarks.section import Row, Setting, Step, judge_rows, mean, milliseconds, of, of_rows, times_faster

KINDS = ("bfloat16", "float16")
SHAPES = (
    Shape(1, 8, 8, 2048, 64, causal=False),
    Shape(1, 12, 12, 1024, 64, causal=True),
    Shape(8, 8, 8, 128, 64, causal=False),
    Shape(1, 32, 8, 1024, 128, causal=True),
)
QUICK_SHAPES = (Shape(1, 4, 2, 250, 64, causal=True),)


def steps(setting: Setting) -> Iterator[Step]:
    """One per type and shape; none without torch, whose tensors carry the types."""
    if not setting.torch:
        return
    for kind in KINDS:
        for shape in QUICK_SHAPES if setting.quick else SHAPES:
            task = {
                "name": f"{shape.name} {kind}",
                "kind": kind,
                "shape": asdict(shape),
                "budget": setting.seconds(3.0),
            }
            yield Step("half", str(task["name"]), partial(race_alone, f"{__name__}:race", task))


def race(task: Task, note: Note) -> Row:
    """One type, one shape: rootdk and torch on the same half-type tensors, and torch on the same numbers in float32."""
    import torch

    kind, shape = getattr(torch, task["kind"]), Shape(**task["shape"])
    inputs = rounded(make_inputs(shape), kind)
    tensors = [torch.from_numpy(array).to(kind) for array in inputs.arrays]
    contestants: dict[str, Call] = {
        "rootdk": lambda: rootdk.attention(*tensors, causal=shape.causal),
        "torch": torch_attention(tensors, shape),
        "torch float32": torch_forward(inputs),
    }
    calls = {name: call for name, call in contestants.items() if name not in task["without"]}
    limits = {"torch float32": RELATIVE_LIMIT}
    calls, left_out = only_right(
        calls, lambda name, result: inputs.check(result.float(), limits.get(name, half_limit(kind))), note
    )
    note(TIMING)
    facts = {"name": task["name"], "kind": task["kind"], "shape": asdict(shape), "flops": shape.flops}
    return facts | beside_sgemm(calls, left_out, task["budget"], torch=True)


def rounded(inputs: Inputs, kind: Any) -> Inputs:
    """The same inputs after rounding to a half type, kept in float32: what float64 is to be computed from."""
    import torch

    names = ("query", "key", "value", "d_out")
    return replace(inputs, **{n: torch.from_numpy(getattr(inputs, n)).to(kind).float().numpy() for n in names})


def half_limit(kind: Any) -> float:
    """16 roundings of the type: room for a library that rounds scores and weights too, none for a wrong formula."""
    import torch

    return 8 * float(torch.finfo(kind).eps)


TARGETS = [mean(f"{kind} forward against torch", 1.5, counts=of("kind", kind)) for kind in KINDS]
SECTIONS = (
    of_rows(
        "half",
        steps,
        partial(judge_rows, key="half", targets=TARGETS),
        "Half types, forward: times faster than torch",
        {
            "ms, best / median": milliseconds("rootdk"),
            "torch": times_faster("torch"),
            "torch float32": times_faster("torch float32"),
        },
    ),
)
