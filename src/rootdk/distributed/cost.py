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
"""

from dataclasses import dataclass

from ..checks import positive, real
from ..errors import ArgumentError, ArgumentTypeError
from .layout import check_layout

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
    latency     seconds that a message takes beside its bytes
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

    compute      that it computes
    messages     that messages would take if nothing else went on
    waiting      that messages last longer than the work that hides them
    seconds      of the pass
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
    """Of the passes "forward" and "backward" what a rank does, sends, holds and takes.

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

    # Inputs; two blocks if any travel; the output as it grows, that of the piece at hand, two numbers a row in each.
    state = rows * ring.heads * (real + 8 + 2 * real)
    inputs = queries * item + block
    memory = inputs + 2.0 * block * bool(hops) + 2.0 * queries * real + state + widened
    backward_rate = ring.flops if ring.backward_flops is None else ring.backward_flops
    forward = _pass(ring, flops, ring.flops, [block] * bool(hops), 0.0, memory)
    # Inputs, output and its gradient; the query's gradient and the part at hand; three gradients of blocks, and parts.
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
