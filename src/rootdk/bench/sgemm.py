"""The yardstick: the rate of one large matrix product in the same turns. Attention is two products and a softmax."""

from collections.abc import Sequence

import numpy as np

from rootdk.bench.peers.peer import Peer
from rootdk.bench.ratios import Timing
from rootdk.bench.timing import Call

# Large enough that every BLAS is at its full rate, small enough to take its turn between the others.
SIZE = 1536
FLOPS = 2 * SIZE**3
PREFIX = "sgemm "


def contestants(peers: Sequence[Peer]) -> dict[str, Call]:
    """NumPy's product, and torch's when torch takes part: each brings its own library, and the faster counts."""
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((SIZE, SIZE), dtype=np.float32) for _ in range(2))
    calls: dict[str, Call] = {f"{PREFIX}numpy": lambda: a @ b}
    if any(peer.name == "torch" for peer in peers):
        import torch

        torch_a, torch_b = torch.from_numpy(a), torch.from_numpy(b)
        calls[f"{PREFIX}torch"] = lambda: torch.mm(torch_a, torch_b)
    return calls


def rate(timings: dict[str, Timing]) -> dict[str, float]:
    """Rate of the fastest product in operations per second, by its best call and by its median."""
    products = [timing for name, timing in timings.items() if name.startswith(PREFIX)]
    return {"best": FLOPS / min(t.best for t in products), "median": FLOPS / min(t.median for t in products)}
