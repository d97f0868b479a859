"""The forward matrix with both sides held to AVX2, which is what most desktops and laptops have.

Each race has a process of its own: torch and the libraries behind it read what they may use once, when they are loaded.
"""

from collections.abc import Iterator
from dataclasses import asdict
from functools import partial

from benchmarks.children import TIMING, Note, Task, race_alone
from benchmarks.peers import open_peers
from benchmarks.problems import Shape
from benchmarks.section import (
    Row,
    Setting,
    Step,
    at_least,
    faster,
    judge_rows,
    mean,
    milliseconds,
    of_rows,
    times_faster,
)
from benchmarks.sections.attention import forward, shapes_of
from rootdk.backends import kernel

TARGET = "avx2"
# torch's own kernels, its two libraries of products, and NumPy's.
ENVIRONMENT = {
    "ATEN_CPU_CAPABILITY": "avx2",
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "OPENBLAS_CORETYPE": "Haswell",
}


def steps(setting: Setting) -> Iterator[Step]:
    """One per shape; none without torch, and none where the CPU lacks AVX2."""
    if not setting.torch or TARGET not in kernel().targets():
        return
    for shape in shapes_of(setting):
        task = {
            "name": shape.name,
            "shape": asdict(shape),
            "threads": setting.threads,
            "budget": setting.seconds(4.0, 0.5),
            "environment": ENVIRONMENT,
        }
        yield Step("avx2", f"{shape.name}, AVX2", partial(race_alone, f"{__name__}:race", task))


def race(task: Task, note: Note) -> Row:
    """rootdk on arrays and torch on the same memory."""
    kernel().set_target(TARGET)
    peers, _ = open_peers([] if "torch" in task["without"] else ["torch"], task["threads"])
    note(TIMING)
    return forward(Shape(**task["shape"]), peers, measured=False, budget=task["budget"])


TARGETS = [
    mean("AVX2, forward against torch", 1.45),
    at_least("AVX2, forward against torch, slowest shape", 1.1, faster("torch"), "rootdk", "torch"),
]
SECTIONS = (
    of_rows(
        "avx2",
        steps,
        partial(judge_rows, key="avx2", targets=TARGETS, with_torch=True),
        "AVX2 on both sides, forward",
        {"rootdk, ms": milliseconds("rootdk"), "torch, ms": milliseconds("torch"), "faster": times_faster("torch")},
    ),
)
