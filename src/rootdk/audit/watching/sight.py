"""Which keys the rows of a call see, and what is added to their logits: for all rows, or for a sample of them."""

from dataclasses import dataclass

import torch
from torch import Tensor

from rootdk.audit.watching.call import Call


@dataclass(frozen=True, slots=True)
class Sight:
    """mask and bias broadcast to (..., heads, rows, n_key); causal and reach are left to the kernel where they are set.

    positions   None for all rows, or which rows were taken
    first       (...) the first key that anybody sees in each batch entry, or None where that is key 0 in all
    """

    mask: Tensor | None
    bias: Tensor | None
    positions: Tensor | None
    first: Tensor | None


def sight_of(call: Call, added: tuple[Tensor | None, Tensor | None], positions: Tensor | None) -> Sight:
    """`added` is split(call.added); `positions` the rows that are read."""
    hidden, bias = added
    mask = hidden if call.mask is None else call.mask if hidden is None else call.mask & hidden
    first = None
    if mask is not None and mask.dim() > 1:
        # Padding on the left moves the first key.
        seen = mask.any(dim=-2)
        seen = seen.any(dim=-2) if seen.dim() > 1 else seen
        starts = seen.to(torch.uint8).argmax(dim=-1)
        first = starts.expand(call.query.shape[:-3]) if bool(starts.any()) else None
    if positions is None:
        return Sight(mask, bias, None, first)
    mask, bias = _rows(mask, positions), _rows(bias, positions)
    if call.causal or call.reach is not None:
        keys = torch.arange(call.key.shape[-2], device=call.key.device)
        near = torch.ones(len(positions), len(keys), dtype=torch.bool, device=keys.device)
        if call.causal:
            near &= keys <= positions[:, None]
        if call.reach is not None:
            near &= keys >= positions[:, None] - call.reach
        mask = near if mask is None else mask & near
    return Sight(mask, bias, positions, first)


def sampled_rows(n_query: int, rows: int, device: torch.device) -> Tensor:
    """Which rows a sample takes: evenly spread, the first and the last among them; no random number is used up.

    >>> sampled_rows(10, 4, torch.device("cpu")).tolist()
    [0, 3, 6, 9]
    """
    # On the CPU first: not every device has float64.
    return torch.linspace(0, n_query - 1, rows, dtype=torch.float64).round().long().to(device)


def _rows(tensor: Tensor | None, positions: Tensor) -> Tensor | None:
    if tensor is None or tensor.dim() < 2 or tensor.shape[-2] == 1:
        return tensor
    return tensor.index_select(-2, positions)
