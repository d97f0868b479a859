"""Decoding: one query over 16k keys. Every number of K and V is used once, so memory is the limit, not arithmetic.

The yardstick is a plain sum over the same bytes, by NumPy on one thread, by NumPy in as many pieces as there are
threads, and by torch; the fastest of them counts. Half types are summed as the float32 numbers that their bytes form:
who converts one by one reads slower, and would be an easy yardstick.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from rootdk.bench import isolated, truth
from rootdk.bench import race as races
from rootdk.bench.half import half_limit, rounded
from rootdk.bench.isolated import TIMING, Note
from rootdk.bench.setting import Setting, Step
from rootdk.bench.shapes import Inputs, Shape
from rootdk.bench.timing import Call, interleave

KEYS, QUICK_KEYS = 16_384, 1024
PREFIX = "sum "
# heads, kv_heads, d
FORMS = ((8, 8, 64), (32, 8, 128))


def steps(setting: Setting) -> Iterator[Step]:
    """Each form in float32, and in bfloat16 where torch brings the type; in processes of their own, as in half.py."""
    keys = QUICK_KEYS if setting.quick else KEYS
    for kind in ("float32", "bfloat16") if setting.torch else ("float32",):
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
            yield Step("decode", f"decode {task['name']}", partial(isolated.race, "decode", task))


def race(task: isolated.Task, note: Note) -> dict[str, Any]:
    """One form: rootdk, torch's own decode, and the plain sums."""
    import rootdk
    from rootdk.backends import kernel

    kernel().set_num_threads(task["threads"])
    inputs = make_inputs(task)
    query, key, value = inputs.query, inputs.key, inputs.value
    words = [array.reshape(-1) for array in (key, value)]
    limit, contestants = truth.RELATIVE_LIMIT, {}
    if task["torch"]:
        import torch

        torch.set_num_threads(task["threads"])
        kind = getattr(torch, task["kind"])
        tensors = [torch.from_numpy(array).to(kind) for array in (query, key, value)]
        if task["kind"] != "float32":
            # Only tensors have the half type. Two halves make a float32 with the exponent of the second: no NaN, no
            # denormal number.
            inputs, limit = rounded(inputs, kind), half_limit(kind)
            query, key, value = tensors
            words = [tensor.view(torch.float32).numpy().reshape(-1) for tensor in tensors[1:]]

        def theirs() -> Any:
            with torch.no_grad():
                grouped = task["heads"] != task["kv_heads"]
                return torch.nn.functional.scaled_dot_product_attention(*tensors, enable_gqa=grouped)

        contestants["torch"] = theirs
    calls: dict[str, Call] = {"rootdk": lambda: rootdk.attention(query, key, value)} | contestants
    calls = {name: call for name, call in calls.items() if name not in task["without"]}

    def check(_: str, found: Any) -> None:
        truth.check(found if isinstance(found, np.ndarray) else found.float(), inputs, limit=limit)

    calls, left_out = races.only_right(calls, check, note)
    note(TIMING)
    timings = interleave(calls | plain_sums(words, task), task["budget"])
    facts = {name: task[name] for name in ("name", "kind", "heads", "kv_heads", "keys", "d")}
    bytes_read = 2 * task["kv_heads"] * task["keys"] * task["d"] * (4 if task["kind"] == "float32" else 2)
    seconds = {name: asdict(found) for name, found in timings.items()}
    return {**facts, "bytes": bytes_read, "seconds": seconds, "left_out": left_out}


def make_inputs(task: isolated.Task) -> Inputs:
    """Independent standard normal numbers: one query a head, `keys` keys."""
    rng = np.random.default_rng(0)
    query, key, value = (
        rng.standard_normal((1, heads, n, task["d"]), dtype=np.float32)
        for heads, n in ((task["heads"], 1), (task["kv_heads"], task["keys"]), (task["kv_heads"], task["keys"]))
    )
    shape = Shape(1, task["heads"], task["kv_heads"], 1, task["d"], causal=False)
    return Inputs(shape, query, key, value, np.ones_like(query))


def plain_sums(words: list[npt.NDArray[np.float32]], task: isolated.Task) -> dict[str, Call]:
    """Readers of the bytes of K and V, seen as float32."""
    pieces = [piece for array in words for piece in np.array_split(array, task["threads"])]
    pool = ThreadPoolExecutor(task["threads"])
    calls: dict[str, Call] = {
        f"{PREFIX}numpy": lambda: [array.sum() for array in words],
        f"{PREFIX}numpy, threads": lambda: list(pool.map(np.sum, pieces)),
    }
    if task["torch"]:
        import torch

        tensors = [torch.from_numpy(array) for array in words]
        calls[f"{PREFIX}torch"] = lambda: [tensor.sum() for tensor in tensors]
    return calls
