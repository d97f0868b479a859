"""watch(): read the attention of a running torch model, layer by layer and head by head.

Its code is in this folder and is loaded when it is called: `import rootdk.audit` loads no torch.
"""

from typing import TYPE_CHECKING, Any

from rootdk.errors import require_torch

if TYPE_CHECKING:
    from torch.nn import Module

    from rootdk.audit.watching.handle import Watch
else:
    Module = Watch = Any  # so that typing.get_type_hints works without torch


def watch(model: Module, every: int = 1, rows: int | None = None) -> Watch:
    """Read every attention of a torch model during its forward, whose output stays the same bit for bit.

    model   any torch.nn.Module that attends through F.scaled_dot_product_attention, nn.MultiheadAttention or the layers
            made of it, or a model of the transformers library on sdpa or eager
    every   read every n-th forward only, with n = every; the others cost almost nothing
    rows    how many query rows to read, evenly spread: each of them exactly, extremes over those rows. Without it
            everything is read, with one more pass over q and k (rootdk.read), on the CPU and on CUDA and ROCm devices.
            Where rootdk has no kernel (other devices, float64 on a GPU, no triton) torch's operations read rows, 64 of
            them unless `rows` says otherwise.

    On a GPU nothing waits for the device: readings stay there until they are used, by `report` for instance. Only the
    first call of each module does wait, while its scale is checked.

    Watching starts at once and ends with the block, or with close(). The handle has `readings`, one LayerReading for
    each path of a module, `report(phase=...)`, which judges them, and `unread`, which says what could not be read.

    Gradient checkpointing is counted once, autocast is honoured, nothing is kept that a gradient could flow through.
    A scale, mask, cap, sink, position bias or window is taken from the call, and the scale is checked against what
    the call returned.

    >>> import torch, rootdk
    >>> layer = torch.nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    >>> with rootdk.watch(layer) as seen:
    ...     out = layer(torch.randn(2, 16, 32))
    >>> list(seen.readings), seen.report().verdict
    (['self_attn'], 'healthy')
    """
    require_torch("watch")
    from rootdk.audit.watching.handle import Watch

    return Watch(model, every, rows)
