"""A ring of ranks on this machine against one process: how much of a second rank arrives, and how much memory it takes.

Every rank has one thread. In each round rank 0 first computes the whole sequence alone, then as a ring of one, while
rank 1 waits for a message; then both go round together. Efficiency is seconds of one process / (ranks * seconds).

Memory is read in fresh processes, with a narrow window: that leaves the blocks that travel as large as they are, and
little to compute. The peak is that of the first forward pass.
"""

import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.children import FOLDER
from benchmarks.race import timing
from benchmarks.section import (
    STATISTICS,
    Report,
    Row,
    Section,
    Setting,
    Step,
    at_least,
    cell,
    filled,
    judge_rows,
    mebibytes,
    milliseconds,
    ratio,
)
from benchmarks.sections.fresh import status
from rootdk.distributed.cost import run_ranks

HEADS, D, TOKENS, ROUNDS = 4, 64, 8192, 5
MEMORY_TOKENS, WINDOW = 262_144, 64
SIDES = {"one process": 1, "1 rank": 1, "2 ranks": 2}


def steps(setting: Setting) -> Iterator[Step]:
    """Forward and gradient, causal and full; memory at 1 and 2 ranks. None without torch."""
    if not setting.torch:
        return
    tokens, rounds = (TOKENS // 8, 2) if setting.quick else (TOKENS, ROUNDS)
    for causal in (False, True):
        for gradient in (False, True):
            name = f"{'causal' if causal else 'full'}{', gradient' if gradient else ''}"
            task = {"name": name, "tokens": tokens, "rounds": rounds, "causal": causal, "gradient": gradient}
            yield Step("ring", f"ring, {name}", partial(race, task))
    for ranks in (1, 2):
        most = MEMORY_TOKENS // 16 if setting.quick else MEMORY_TOKENS
        yield Step("ring", f"ring, memory of {ranks}", partial(memory, ranks, most))


def race(task: dict[str, Any]) -> Row:
    """Times of one process, a ring of one and a ring of two."""
    of_rank_0 = run_ranks(2, __name__, task, package=FOLDER)[0]
    seconds = {side: timing(of_rank_0[side]) for side in SIDES}
    efficiency = {
        side: {
            statistic: seconds["one process"][statistic] / (ranks * seconds[side][statistic])
            for statistic in STATISTICS
        }
        for side, ranks in SIDES.items()
        if side != "one process"
    }
    return {**task, "heads": HEADS, "d": D, "seconds": seconds, "efficiency": efficiency, "left_out": {}}


def memory(ranks: int, tokens: int) -> Row:
    """Bytes that a rank needs, and how many tokens would fit in what is free."""
    used = run_ranks(ranks, __name__, {"memory": tokens}, package=FOLDER)
    extra, inputs = max(of_rank["extra"] for of_rank in used), used[0]["given"]
    per_token = (extra + inputs) / (tokens / ranks)
    # All ranks share this machine, so together they may take what is free.
    return {
        "name": f"memory, {ranks} ranks",
        "ranks": ranks,
        "tokens": tokens,
        "d": D,
        "extra_bytes": extra,
        "input_bytes": inputs,
        "bytes_per_token": per_token,
        "largest": int(_free() / per_token),
        "seconds": {},
        "left_out": {},
    }


def run(task: dict[str, Any]) -> Any:
    """What each rank does."""
    return _memory_of_this_rank(task["memory"]) if "memory" in task else _rounds(task)


def _rounds(task: dict[str, Any]) -> dict[str, list[float]]:
    import torch
    import torch.distributed as dist

    import rootdk
    from rootdk import distributed

    rank, alone = dist.get_rank(), dist.new_group([0])
    torch.manual_seed(0)
    whole = [torch.randn(1, HEADS, task["tokens"], D, requires_grad=task["gradient"]) for _ in range(3)]
    shards = [distributed.shard(t.detach(), layout="balanced").requires_grad_(task["gradient"]) for t in whole]

    causal, balanced = task["causal"], "balanced"

    def timed(call: Callable[..., Any], tensors: list[Any], **options: Any) -> float:
        start = time.perf_counter()
        out = call(*tensors, causal=causal, **options)
        if task["gradient"]:
            torch.autograd.grad(out.sum(), tensors)
        return time.perf_counter() - start

    seconds: dict[str, list[float]] = {side: [] for side in SIDES}
    for round_ in range(-1, task["rounds"]):  # the first one warms up
        times = {}
        dist.barrier()
        if rank == 0:
            times["one process"] = timed(rootdk.attention, whole)
            times["1 rank"] = timed(distributed.attention, whole, group=alone, layout=balanced)
        dist.barrier()
        times["2 ranks"] = timed(distributed.attention, shards, layout=balanced)
        if round_ >= 0:
            for side, taken in times.items():
                seconds[side].append(taken)
    return seconds


def _memory_of_this_rank(tokens: int) -> dict[str, int]:
    import torch
    import torch.distributed as dist

    from rootdk import distributed

    rows = tokens // dist.get_world_size()
    shards = [torch.randn(1, rows, D) for _ in range(3)]
    before = status("VmRSS")
    distributed.attention(*shards, causal=True, window=WINDOW)
    return {"extra": max(0, status("VmHWM") - before), "given": sum(t.nbytes for t in shards)}


def _free() -> int:
    """Bytes that processes may still take; 0 where the system does not tell."""
    facts = Path("/proc/meminfo")
    if not facts.exists():
        return 0
    line = next(line for line in facts.read_text("utf-8").splitlines() if line.startswith("MemAvailable"))
    return int(line.split()[1]) * 1024


_EFFICIENCY = ratio("efficiency", "2 ranks")
TARGETS = (
    at_least(
        "ring of 2 ranks, efficiency, lowest",
        0.8,
        _EFFICIENCY,
        "one process",
        "2 ranks",
        counts=lambda row: "efficiency" in row,
    ),
)


def show(report: Report) -> Iterator[Any]:
    """Times and efficiency; then what a rank needs of memory, in words."""
    columns = {side: milliseconds(side) for side in SIDES} | {
        "eff. 1": cell(ratio("efficiency", "1 rank"), ".2f"),
        "eff. 2": cell(_EFFICIENCY, ".2f"),
    }
    timed = [row for row in report["ring"] if "efficiency" in row]
    if timed:
        yield filled("A ring of ranks, one thread each, ms, and efficiency, best / median", "", timed, columns)
    for row in report["ring"]:
        if "ranks" in row:
            yield (
                f"Ring of {row['ranks']}, {row['tokens']} tokens, one head, d = {row['d']}: "
                f"{mebibytes(row['extra_bytes'])} a rank above its inputs at the peak of a forward pass, "
                f"{row['bytes_per_token']:.0f} bytes per token on a rank with the inputs; "
                f"the memory that is free now would hold {row['largest']} tokens on {row['ranks']} ranks."
            )


SECTIONS = (Section("ring", steps, lambda report: judge_rows(report, "ring", TARGETS, with_torch=True), show),)
