"""jax: its attention function, compiled for the CPU.

XLA takes its number of threads from the CPUs that the process may use; child.py narrows those to the run's number.
"""

from typing import Any

import numpy as np

from rootdk.bench.peers.peer import Peer
from rootdk.bench.shapes import Inputs
from rootdk.bench.timing import Call


def open_peer(threads: int) -> Peer:  # noqa: ARG001 - see above
    """Ask for the CPU even where an accelerator is present: the others run there too."""
    import jax

    jax.config.update("jax_platforms", "cpu")
    return Peer("jax", jax.__version__, prepare)


def prepare(inputs: Inputs) -> Call:
    """Lay the arrays out as jax wants them, (batch, n, heads, d), before the clock starts."""
    import jax

    arrays = [
        jax.numpy.asarray(np.ascontiguousarray(array.swapaxes(1, 2)))
        for array in (inputs.query, inputs.key, inputs.value)
    ]
    causal = inputs.shape.causal
    attention = jax.jit(lambda query, key, value: jax.nn.dot_product_attention(query, key, value, is_causal=causal))

    def call() -> Any:
        # np.asarray waits for the result, and shares its memory on the CPU.
        return np.asarray(attention(*arrays)).swapaxes(1, 2)

    return call
