"""Plain NumPy in float32: the formula as most people write it first, with the whole n x n array of scores.

Its threads are those of the BLAS behind it, which reads its number once, at start: launch.py sets it in the
environment.
"""

from typing import Any

import numpy as np

from rootdk.bench.peers.peer import Peer
from rootdk.bench.shapes import Inputs
from rootdk.bench.timing import Call


def open_peer(threads: int) -> Peer:  # noqa: ARG001 - see above
    """NumPy is always there."""
    return Peer("numpy", np.__version__, prepare)


def prepare(inputs: Inputs) -> Call:
    """Group the query heads beside their key head, so that broadcasting does the repetition."""
    shape = inputs.shape
    group = shape.heads // shape.kv_heads
    query = inputs.query.reshape(shape.batch, shape.kv_heads, group, shape.n, shape.d)
    key, value = inputs.key[:, :, None], inputs.value[:, :, None]
    hidden = np.triu(np.ones((shape.n, shape.n), dtype=bool), 1) if shape.causal else None
    scale = np.float32(1 / np.sqrt(shape.d))

    def call() -> Any:
        scores = query @ key.swapaxes(-1, -2)
        scores *= scale
        if hidden is not None:
            scores[..., hidden] = -np.inf
        scores -= scores.max(axis=-1, keepdims=True)
        np.exp(scores, out=scores)
        out = scores @ value
        out /= scores.sum(axis=-1, keepdims=True)
        return out.reshape(inputs.query.shape)

    return call
