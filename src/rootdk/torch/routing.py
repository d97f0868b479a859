"""use(): run the attention of any model on rootdk, for as long as a block lasts."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any

import torch

from .functional import scaled_dot_product_attention
from .wrapping import Wrapped

# What torch has at this name, for use() and for rootdk.watch.
SDPA = Wrapped(torch.nn.functional, "scaled_dot_product_attention")

# What the first block in found, and how many blocks are open: they may overlap in several threads, so the last one out
# restores, whichever that is.
_lock = Lock()
_open = 0
_fastpath_before = True


@contextmanager
def use() -> Iterator[None]:
    """Inside this block torch.nn.functional.scaled_dot_product_attention is rootdk's.

    Reaches every model that looks the function up when it calls it: code with F.scaled_dot_product_attention,
    nn.MultiheadAttention with need_weights=False, nn.TransformerEncoderLayer, whose fused path for evaluation is
    switched off inside. Does not reach code that imported the function by name before, nn.MultiheadAttention with
    need_weights=True (it never calls the function) and models that compute attention themselves.

    What was there is restored at the end, after an exception too; blocks may be nested. All threads of the process see
    the replacement. What rootdk cannot compute, such as a tensor on another device, is an error inside the block.

    >>> import torch, rootdk.torch
    >>> layer = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True).eval()
    >>> x = torch.randn(1, 5, 16)
    >>> before = layer(x)
    >>> with rootdk.torch.use():
    ...     inside = layer(x)
    >>> torch.allclose(before, inside, atol=1e-5)
    True
    """
    global _open, _fastpath_before  # noqa: PLW0603 -- one process has one torch
    mha = torch.backends.mha
    with _lock:
        if _open == 0:
            _fastpath_before = mha.get_fastpath_enabled()
            SDPA.open(_ours)
            mha.set_fastpath_enabled(False)
        _open += 1
    try:
        yield
    finally:
        with _lock:
            _open -= 1
            if _open == 0:
                SDPA.close(_ours)
                mha.set_fastpath_enabled(_fastpath_before)


def _ours(_theirs: Any) -> Any:
    return scaled_dot_product_attention
