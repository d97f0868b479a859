"""What attention on a ring costs: work, messages, memory and time of a rank, from sizes and two rates.

Per rank, with n tokens, R ranks, h heads over g key heads, d numbers per head and b bytes per number:

    pairs        n^2 / R, under a causal mask half of that in a balanced layout; in a contiguous one the last rank, for
                 which all others wait, has n^2 / R * (1 - 1/2R)
    work         4 h d pairs forward (two products of two operations), 2.5 times as much backward (five products)
    a block      2 g d b n / R bytes of keys and values; its gradient 2 g d n / R numbers of float32 or float64
    messages     R - 1 blocks forward; R - 1 blocks and R gradients backward

A step lasts as long as the longer of the two things that go on in it, computing on one block and receiving the next:

    forward      (R - 1) max(compute, message) + compute                        compute = work / (R * flops)
    backward     (R - 1) max(compute, messages) + compute + the last gradient   message = latency + bytes / bandwidth

Left out: what merging costs (linear in n), what a processor needs to move messages, and ranks that run late.

`run_ranks` runs several ranks on this machine, each in a process of its own, to compare the model with them; benchmarks
use it too. The work of the ranks is a function `run(task)` of a module. The process group exists when it is called, and
JSON must be able to hold what it returns.

`check` compares the model with 1, 2 and 4 ranks of one thread each. The rates are measured first, on half the tokens
and with messages alone, so that the prediction does not use what it predicts: operations per second of one process,
forward and backward, and bytes per second and latency between two ranks. If there are fewer cores than ranks, the ranks
share them, and the model assumes equal shares.

Besides the elapsed seconds there are the seconds that a processor worked for the rank, compared with the predicted
computing alone: the rest goes into messages and merging. Use them on a machine that is busy with other things.
"""

import json
import math
import os
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from ..checks import positive, real
from ..errors import ArgumentError, ArgumentTypeError, RootdkError
from ..processes import cpus_allowed, started
from . import check_layout

RANKS, ROUNDS = (1, 2, 4), 4


class LocalRanksError(RootdkError, RuntimeError):
    """A rank on this machine ended early or not in time; the message says which and how."""


def run_ranks(
    ranks: int,
    module: str,
    task: dict[str, Any],
    timeout: float = 600.0,
    package: Path | None = None,
) -> list[Any]:
    """What `module.run(task)` returned, rank by rank; each has one thread.

    timeout   seconds until all of them must have ended
    package   folder of the package that the module belongs to, if it is not installed
    """
    names = ("OMP_NUM_THREADS", "ROOTDK_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    environment = os.environ | dict.fromkeys(names, "1")
    with tempfile.TemporaryDirectory() as folder:
        arguments = [[str(rank), str(ranks), folder, module, json.dumps(task)] for rank in range(ranks)]
        pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "errors": "replace"}
        until = time.monotonic() + timeout
        try:
            with started(f"{__name__}:be_a_rank", arguments, package, env=environment, **pipes) as processes:
                for rank, process in enumerate(processes):
                    _, errors = process.communicate(timeout=max(until - time.monotonic(), 0.1))
                    if process.returncode != 0:
                        # torch may put the rank before every line of a traceback.
                        last = (errors.strip().splitlines() or ["no message"])[-1].removeprefix(f"[rank{rank}]: ")
                        raise LocalRanksError(f"rank {rank} of {ranks} ended with code {process.returncode}: {last}")
        except subprocess.TimeoutExpired:
            raise LocalRanksError(f"{ranks} ranks: must end within {timeout:g} s, and did not") from None
        return [json.loads((Path(folder) / f"{rank}.json").read_text("utf-8")) for rank in range(ranks)]


def be_a_rank(rank: str, ranks: str, folder: str, module: str, task: str) -> None:
    """What each process does; the results go into the folder."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    meet = "file:///" + Path(folder, "meet").as_posix().lstrip("/")  # file:///C:/... on Windows
    dist.init_process_group("gloo", init_method=meet, rank=int(rank), world_size=int(ranks))
    result = import_module(module).run(json.loads(task))
    (Path(folder) / f"{rank}.json").write_text(json.dumps(result), "utf-8", newline="\n")
    dist.destroy_process_group()


def check(
    tokens: int,
    heads: int,
    d: int,
    causal: bool = True,
    notify: Callable[[str, float], None] = lambda _what, _share: None,
) -> dict[str, Any]:
    """Rates, and for every number of ranks and pass the measured seconds, the predicted ones and the error.

    notify   is called with what runs next and the share that is done
    """
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    cores = cpus_allowed()
    sizes = {"heads": heads, "d": d, "causal": causal}
    notify("rates of one process", 0.0)
    rates = run_ranks(1, __name__, sizes | {"what": "rates", "tokens": max(tokens // 2, 1)})[0]
    notify("messages", 1 / (2 + len(RANKS)))
    line = run_ranks(2, __name__, {"what": "line", "numbers": max(tokens * heads * d, 1)})[0]
    rows = []
    for number, ranks in enumerate(RANKS):
        notify(f"{ranks} rank{'s' * (ranks > 1)}", (2 + number) / (2 + len(RANKS)))
        share = min(1.0, cores / ranks)
        ring = Ring(
            tokens=tokens, heads=heads, d=d, ranks=ranks, causal=causal, bandwidth=line["bandwidth"],
            latency=line["latency"], flops=rates["forward"] * share, backward_flops=rates["backward"] * share,
        )  # fmt: skip
        predicted = cost(ring)
        measured = run_ranks(ranks, __name__, sizes | {"what": "ring", "tokens": tokens})
        for name in ("forward", "backward"):
            seconds, worked = (max(rank[taken] for rank in measured) for taken in (name, f"{name}_worked"))
            work = predicted[name].flops / rates[f"{name}_worked"]
            rows.append(
                {
                    "ranks": ranks,
                    "pass": name,
                    "measured": seconds,
                    "predicted": predicted[name].seconds,
                    "error": predicted[name].seconds / seconds - 1.0,
                    "worked": worked,
                    "predicted_work": work,
                    "work_error": work / worked - 1.0,
                }
            )
    facts = {"tokens": tokens, "heads": heads, "d": d, "causal": causal, "cores": cores, "load_before": load}
    return {**facts, **rates, **line, "rows": rows}


def run(task: dict[str, Any]) -> dict[str, float]:
    """What each rank does."""
    return {"rates": _rates, "line": _line, "ring": _ring}[task["what"]](task)


def _rates(task: dict[str, Any]) -> dict[str, float]:
    """Operations per second of one process that has the whole sequence."""
    from ..attention import attention

    seconds = _passes(task, lambda tensors: attention(*tensors, causal=task["causal"]), task["tokens"])
    passes = cost(Ring(task["tokens"], task["heads"], task["d"], 1, 1.0, 1.0, causal=task["causal"]))
    return {name: passes[name.removesuffix("_worked")].flops / taken for name, taken in seconds.items()}


def _ring(task: dict[str, Any]) -> dict[str, float]:
    import torch.distributed as dist

    from .calls import attention

    rows = task["tokens"] // dist.get_world_size()
    return _passes(task, lambda t: attention(*t, layout="balanced", causal=task["causal"]), rows)


def _passes(task: dict[str, Any], call: Any, rows: int) -> dict[str, float]:
    """The best of some rounds; all ranks begin each pass together."""
    import torch
    import torch.distributed as dist

    torch.manual_seed(dist.get_rank())
    tensors = [torch.randn(1, task["heads"], rows, task["d"], requires_grad=True) for _ in range(3)]
    best: dict[str, float] = {}

    def timed(name: str, work: Callable[[], Any]) -> Any:
        dist.barrier()
        start, worked = time.perf_counter(), time.process_time()
        result = work()
        for of, taken in ((name, time.perf_counter() - start), (f"{name}_worked", time.process_time() - worked)):
            best[of] = min(best.get(of, math.inf), taken)
        return result

    for _ in range(ROUNDS):
        out = timed("forward", lambda: call(tensors))
        d_out = torch.ones_like(out)
        timed("backward", lambda: torch.autograd.grad(out, tensors, d_out))  # noqa: B023 -- called at once
    return best


def _line(task: dict[str, Any]) -> dict[str, float]:
    """For two ranks that send to each other at once: seconds of an empty message, and bytes per second."""
    import torch
    import torch.distributed as dist

    from .peers import BLOCK, Peers

    peers = Peers()
    other = 1 - peers.rank

    def seconds(numbers: int) -> float:
        sent, received = torch.zeros(numbers), torch.zeros(numbers)
        best = math.inf
        for _ in range(ROUNDS):
            dist.barrier()
            start = time.perf_counter()
            peers.wait(peers.post((dist.isend, sent, other, BLOCK), (dist.irecv, received, other, BLOCK)))
            best = min(best, time.perf_counter() - start)
        return best

    latency, whole = seconds(1), seconds(task["numbers"])
    return {"latency": latency, "bandwidth": 4.0 * task["numbers"] / max(whole - latency, 1e-9)}


BYTES = {"float32": 4, "float64": 8, "float16": 2, "bfloat16": 2}
# Products backward over products forward: five against two.
BACKWARD = 2.5


@dataclass(frozen=True)
class Ring:
    """A call on a ring and the machine that it runs on.

    tokens, heads, kv_heads, d, batch   of the whole call; kv_heads None is as many as heads
    ranks       how many processes share the sequence
    flops       operations per second that a rank reaches in attention, forward
    bandwidth   bytes per second from a rank to the next, while as many come in
    latency     seconds that a message takes in addition to the time for its bytes
    """

    tokens: int
    heads: int
    d: int
    ranks: int
    flops: float
    bandwidth: float
    kv_heads: int | None = None
    batch: int = 1
    dtype: str = "float32"
    causal: bool = True
    layout: str = "balanced"
    latency: float = 50e-6
    backward_flops: float | None = None

    def __post_init__(self) -> None:
        for name in ("tokens", "heads", "d", "ranks", "batch", *(("kv_heads",) if self.kv_heads is not None else ())):
            size = getattr(self, name)
            if isinstance(size, bool) or not isinstance(size, int):
                raise ArgumentTypeError(f"{name}: must be an int of at least 1, got {size!r}")
            if size < 1:
                raise ArgumentError(f"{name}: must be an int of at least 1, got {size}")
        positive("flops", self.flops)
        positive("bandwidth", self.bandwidth)
        if real("latency", self.latency, "a number >= 0") != 0:
            positive("latency", self.latency)
        if self.backward_flops is not None:
            positive("backward_flops", self.backward_flops)
        if self.heads % (self.kv_heads or self.heads):
            raise ArgumentError(f"kv_heads: must divide the {self.heads} heads, got {self.kv_heads}")
        if self.dtype not in BYTES:
            raise ArgumentError(f"dtype: must be one of {', '.join(BYTES)}, got {self.dtype!r}")
        check_layout(self.layout)


@dataclass(frozen=True)
class Pass:
    """One pass on one rank: operations, bytes sent, bytes held at the peak, and times in seconds.

    compute      spent on computing
    messages     that messages would take if nothing else went on
    waiting      by which messages last longer than the work that hides them
    seconds      of the whole pass
    efficiency   seconds of one process / (ranks * seconds)
    """

    flops: float
    sent_bytes: float
    memory_bytes: float
    compute: float
    messages: float
    waiting: float
    seconds: float
    efficiency: float


def pairs(ring: Ring) -> float:
    """Visible pairs of query and key, per head, on the rank that has the most."""
    n, ranks = ring.tokens, ring.ranks
    if not ring.causal:
        return n * n / ranks
    if ring.layout == "balanced":
        return n * (n + 1) / 2 / ranks
    rows = n / ranks
    return rows * (n - rows) + rows * (rows + 1) / 2


def cost(ring: Ring) -> dict[str, Pass]:
    """What a rank computes, sends and holds in the passes "forward" and "backward", and how long each takes.

    >>> passes = cost(Ring(tokens=2**20, heads=32, d=128, ranks=64, flops=2e12, bandwidth=12e9))
    >>> round(passes["forward"].efficiency, 2), passes["forward"].waiting
    (1.0, 0.0)
    """
    rows, real = ring.tokens / ring.ranks * ring.batch, 8 if ring.dtype == "float64" else 4
    item, kv_heads = BYTES[ring.dtype], ring.kv_heads or ring.heads
    flops = 4.0 * ring.d * ring.heads * ring.batch * pairs(ring)
    block, gradient = 2.0 * rows * kv_heads * ring.d * item, 2.0 * rows * kv_heads * ring.d * real
    queries = rows * ring.heads * ring.d
    widened = 0.0 if item == real else (queries + 2.0 * rows * kv_heads * ring.d) * real
    hops = ring.ranks - 1

    # Inputs; two blocks if any travel; the output as it grows, that of the present piece, two numbers a row in each.
    state = rows * ring.heads * (real + 8 + 2 * real)
    inputs = queries * item + block
    memory = inputs + 2.0 * block * bool(hops) + 2.0 * queries * real + state + widened
    backward_rate = ring.flops if ring.backward_flops is None else ring.backward_flops
    forward = _pass(ring, flops, ring.flops, [block] * bool(hops), 0.0, memory)
    # Inputs, output and its gradient; the query's gradient and its present part; three gradients of blocks, and parts.
    memory = inputs + 2.0 * queries * item + 2.0 * block * bool(hops) + 2.0 * queries * real + 4.0 * gradient + widened
    arriving = [block, gradient] if hops else []
    backward = _pass(ring, BACKWARD * flops, backward_rate, arriving, gradient * bool(hops), memory + state)
    return {"forward": forward, "backward": backward}


def _pass(ring: Ring, flops: float, rate: float, arriving: list[float], last: float, held: float) -> Pass:
    """`arriving`: the messages of a step; `last`: one more after the last step."""
    hops = ring.ranks - 1
    compute = flops / rate
    step = sum(ring.latency + size / ring.bandwidth for size in arriving)
    final = ring.latency + last / ring.bandwidth if last else 0.0
    # In a contiguous causal layout a rank has idle steps as well; the one that all wait for is busy in every step.
    waiting = hops * max(0.0, step - compute / ring.ranks) + final
    meetings = 2.0 * ring.latency * bool(hops)  # all ranks meet before and after the pass
    seconds = compute + waiting + meetings
    whole = ring.tokens * (ring.tokens + 1) / 2 if ring.causal else float(ring.tokens) ** 2
    alone = compute * whole / pairs(ring)
    return Pass(
        flops=flops,
        sent_bytes=hops * sum(arriving) + last,
        memory_bytes=held,
        compute=compute,
        messages=hops * step + final,
        waiting=waiting,
        seconds=seconds,
        efficiency=alone / (ring.ranks * seconds),
    )
