"""bfloat16 and float16 against torch, on some shapes of the matrix, each race in a process of its own.

torch's half-type attention hands its products to oneDNN, which may pick instructions that a virtual machine refuses,
and then the process dies: isolated.py says what happens next. torch's float32 call, which its user would fall back to,
takes part beside it.
"""

from collections.abc import Iterator
from dataclasses import asdict, replace
from functools import partial
from typing import Any

from rootdk.bench import isolated, truth
from rootdk.bench import race as races
from rootdk.bench.isolated import TIMING, Note
from rootdk.bench.peers import open_peers
from rootdk.bench.peers.torch_peer import prepare
from rootdk.bench.setting import Setting, Step
from rootdk.bench.shapes import Inputs, Shape, make_inputs
from rootdk.bench.timing import Call

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
                "threads": setting.threads,
                "budget": setting.seconds(3.0),
            }
            yield Step("half", str(task["name"]), partial(isolated.race, "half", task))


def race(task: isolated.Task, note: Note) -> dict[str, Any]:
    """One type, one shape: rootdk and torch on the same half-type tensors, and torch on the same numbers in float32."""
    import torch

    import rootdk
    from rootdk.backends import kernel

    kernel().set_num_threads(task["threads"])
    peers, _ = open_peers(["torch"], task["threads"])
    kind, shape = getattr(torch, task["kind"]), Shape(**task["shape"])
    inputs = rounded(make_inputs(shape), kind)
    query, key, value = (torch.from_numpy(array).to(kind) for array in (inputs.query, inputs.key, inputs.value))
    grouped = shape.heads != shape.kv_heads

    def theirs() -> Any:
        with torch.no_grad():
            return torch.nn.functional.scaled_dot_product_attention(
                query, key, value, is_causal=shape.causal, enable_gqa=grouped
            )

    contestants: dict[str, Call] = {
        "rootdk": lambda: rootdk.attention(query, key, value, causal=shape.causal),
        "torch": theirs,
        "torch float32": prepare(inputs),
    }
    calls = {name: call for name, call in contestants.items() if name not in task["without"]}
    limits = {"torch float32": truth.RELATIVE_LIMIT}
    calls, left_out = races.only_right(
        calls, lambda name, found: truth.check(found.float(), inputs, limit=limits.get(name, half_limit(kind))), note
    )
    note(TIMING)
    facts = {"kind": task["kind"], "shape": asdict(shape), "flops": shape.flops}
    return {"name": task["name"], **facts, **races.take_turns(calls, left_out, peers, task["budget"])}


def rounded(inputs: Inputs, kind: Any) -> Inputs:
    """The same inputs after rounding to a half type, kept in float32: what float64 is to be computed from."""
    import torch

    names = ("query", "key", "value", "d_out")
    return replace(inputs, **{n: torch.from_numpy(getattr(inputs, n)).to(kind).float().numpy() for n in names})


def half_limit(kind: Any) -> float:
    """16 roundings of the type: room for a library that rounds scores and weights too, none for a wrong formula."""
    import torch

    return 8 * float(torch.finfo(kind).eps)
