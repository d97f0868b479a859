"""Decoding: one query over 16k keys. Every number of K and V is used once, so memory is the limit, not arithmetic.

The yardstick is a plain sum over the same bytes, by NumPy on one thread, by NumPy in as many pieces as there are
threads, and by torch; the fastest of them counts. Half types are summed as the float32 numbers that their bytes form:
who converts one by one reads slower, and would be an easy yardstick.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

import rootdk
from benchmarks.children import TIMING, Note, Task, race_alone
from benchmarks.peers import torch_attention
from benchmarks.problems import RELATIVE_LIMIT, Inputs, Shape
from benchmarks.race import Call, interleave, only_right
from benchmarks.section import Row, Setting, Step, at_least, cell, judge_rows, of, of_rows, times_faster
from benchmarks.sections.half import half_limit, rounded

KEYS, QUICK_KEYS = 16_384, 1024
PLAIN_SUM = "sum "
KINDS = ("float32", "bfloat16")
# heads, kv_heads, d
FORMS = ((8, 8, 64), (32, 8, 128))


def steps(setting: Setting) -> Iterator[Step]:
    """Each form in float32, and in bfloat16 where torch brings the type; in processes of their own, as in half.py."""
    keys = QUICK_KEYS if setting.quick else KEYS
    for kind in KINDS if setting.torch else ("float32",):
        for heads, kv_heads, d in FORMS:
            groups = f"{heads}" if heads == kv_heads else f"{heads}/{kv_heads}"
            task = {
                "name": f"{groups}x{keys}x{d} {kind}",
                "kind": kind,
                "heads": heads,
                "kv_heads": kv_heads,
                "keys": keys,
                "d": d,
                "threads": setting.threads,
                "torch": setting.torch,
                "budget": setting.seconds(3.0),
            }
            yield Step("decode", f"decode {task['name']}", partial(race_alone, f"{__name__}:race", task))


def race(task: Task, note: Note) -> Row:
    """One form: rootdk, torch's own decode, and the plain sums."""
    inputs = make_inputs(task)
    query, key, value = inputs.arrays
    words = [array.reshape(-1) for array in (key, value)]
    limit, contestants = RELATIVE_LIMIT, {}
    if task["torch"]:
        import torch

        kind = getattr(torch, task["kind"])
        tensors = [torch.from_numpy(array).to(kind) for array in inputs.arrays]
        if task["kind"] != "float32":
            # Only tensors have the half type. Two halves make a float32 with the exponent of the second: no NaN, no
            # denormal number.
            inputs, limit = rounded(inputs, kind), half_limit(kind)
            query, key, value = tensors
            words = [tensor.view(torch.float32).numpy().reshape(-1) for tensor in tensors[1:]]
        contestants["torch"] = torch_attention(tensors, inputs.shape)
    calls: dict[str, Call] = {"rootdk": lambda: rootdk.attention(query, key, value)} | contestants
    calls = {name: call for name, call in calls.items() if name not in task["without"]}

    def check(_: str, result: Any) -> None:
        inputs.check(result if isinstance(result, np.ndarray) else result.float(), limit)

    calls, left_out = only_right(calls, check, note)
    note(TIMING)
    seconds = interleave(calls | plain_sums(words, task), task["budget"])
    facts = {name: task[name] for name in ("name", "kind", "heads", "kv_heads", "keys", "d")}
    bytes_read = 2 * task["kv_heads"] * task["keys"] * task["d"] * (4 if task["kind"] == "float32" else 2)
    return {**facts, "bytes": bytes_read, "seconds": seconds, "left_out": left_out}


def make_inputs(task: Task) -> Inputs:
    """Independent standard normal numbers: one query a head, `keys` keys."""
    rng = np.random.default_rng(0)
    query, key, value = (
        rng.standard_normal((1, heads, n, task["d"]), dtype=np.float32)
        for heads, n in ((task["heads"], 1), (task["kv_heads"], task["keys"]), (task["kv_heads"], task["keys"]))
    )
    shape = Shape(1, task["heads"], task["kv_heads"], 1, task["d"], causal=False)
    return Inputs(shape, query, key, value, np.ones_like(query))


def plain_sums(words: list[npt.NDArray[np.float32]], task: Task) -> dict[str, Call]:
    """Readers of the bytes of K and V, seen as float32."""
    pieces = [piece for array in words for piece in np.array_split(array, task["threads"])]
    pool = ThreadPoolExecutor(task["threads"])
    calls: dict[str, Call] = {
        f"{PLAIN_SUM}numpy": lambda: [array.sum() for array in words],
        f"{PLAIN_SUM}numpy, threads": lambda: list(pool.map(np.sum, pieces)),
    }
    if task["torch"]:
        import torch

        tensors = [torch.from_numpy(array) for array in words]
        calls[f"{PLAIN_SUM}torch"] = lambda: [tensor.sum() for tensor in tensors]
    return calls


def share_of_plain_sum(row: Row, statistic: str) -> float:
    """Bytes of K and V per second, as a share of what the fastest plain sum over them reached in the same turns."""
    sums = [times[statistic] for name, times in row["seconds"].items() if name.startswith(PLAIN_SUM)]
    return float(min(sums) / row["seconds"]["rootdk"][statistic])


def _bandwidth(row: Row, statistic: str) -> float:
    return float(row["bytes"] / row["seconds"]["rootdk"][statistic] / 1e9)


TARGETS = [
    at_least(f"decode, {kind}, as a share of a plain sum", 0.85, share_of_plain_sum, "rootdk", counts=of("kind", kind))
    for kind in KINDS
]
SECTIONS = (
    of_rows(
        "decode",
        steps,
        partial(judge_rows, key="decode", targets=TARGETS),
        "Decoding, one query: K and V read per second, of a plain sum, against torch",
        {
            "GB/s": cell(_bandwidth, ".1f", "rootdk"),
            "of the sum": cell(share_of_plain_sum, ".0%", "rootdk"),
            "x torch": times_faster("torch"),
        },
    ),
)
