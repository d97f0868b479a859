"""Rows of a call: which keys they see, what is added to their logits, and a Reading of them by torch's operations."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rootdk.audit.layer import MIN_KEYS, Pointed
from rootdk.audit.watching.call import Call, split


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


def sight_of(call: Call) -> Sight:
    """Of all rows."""
    hidden, bias = split(call.added)
    mask = hidden if call.mask is None else call.mask if hidden is None else call.mask & hidden
    first = None
    if mask is not None and mask.dim() > 1:
        # Padding on the left moves the first key.
        seen = mask.any(dim=-2)
        seen = seen.any(dim=-2) if seen.dim() > 1 else seen
        starts = seen.to(torch.uint8).argmax(dim=-1)
        # To look whether that is key 0 in all would be to wait for another device.
        first = starts.expand(call.query.shape[:-3]) if not starts.is_cpu or bool(starts.any()) else None
    return Sight(mask, bias, None, first)


def at_rows(sight: Sight, call: Call, positions: Tensor) -> Sight:
    """Of some rows, with causal and reach in the mask."""
    mask, bias = _rows(sight.mask, positions), _rows(sight.bias, positions)
    if call.causal or call.reach is not None:
        keys = torch.arange(call.key.shape[-2], device=call.key.device)
        near = torch.ones(len(positions), len(keys), dtype=torch.bool, device=keys.device)
        if call.causal:
            near &= keys <= positions[:, None]
        if call.reach is not None:
            near &= keys >= positions[:, None] - call.reach
        mask = near if mask is None else mask & near
    return Sight(mask, bias, positions, sight.first)


def sampled_rows(n_query: int, rows: int, device: torch.device) -> Tensor:
    """Which rows a sample takes: evenly spread, the first and the last among them; no random number is used up.

    >>> sampled_rows(10, 4, torch.device("cpu")).tolist()
    [0, 3, 6, 9]
    """
    # In whole numbers, on the device itself: not every one has float64, and a copy from here would be one more launch.
    number = torch.arange(rows, device=device)
    return (2 * (n_query - 1) * number + rows - 1) // (2 * max(rows - 1, 1))


def _rows(tensor: Tensor | None, positions: Tensor) -> Tensor | None:
    if tensor is None or tensor.dim() < 2 or tensor.shape[-2] == 1:
        return tensor
    return tensor.index_select(-2, positions)


def fields_of_logits(logits: Tensor, visible: Tensor | None, sinks: Tensor | None) -> dict[str, Any]:
    """The fields of a Reading for logits (..., heads, rows, keys), each (..., heads, rows).

    visible   None, or bool that broadcasts to the logits
    sinks     None, or (heads,)

    The float64 reference (rootdk.backends.reference) is the definition, and tests hold every field to it.
    """
    logits = logits if logits.dtype == torch.float64 else logits.float()
    none = logits.new_zeros(())
    seen = torch.ones_like(logits, dtype=torch.bool) if visible is None else visible.expand(logits.shape)
    keys = seen.sum(dim=-1)
    sees_any = keys > 0
    count = keys.clamp(min=1).to(logits.dtype)
    highest = torch.where(seen, logits, -torch.inf).amax(dim=-1)
    lowest = torch.where(seen, logits, torch.inf).amin(dim=-1)
    mean = torch.where(seen, logits, none).sum(dim=-1) / count
    variance = torch.where(seen, (logits - mean[..., None]).square(), none).sum(dim=-1) / count
    sink = None if sinks is None else sinks.to(logits)[:, None].expand(highest.shape)
    level = highest if sink is None else torch.maximum(highest, sink)
    level = torch.where(torch.isinf(level), none, level)  # nothing seen: -inf - -inf would be NaN
    mass = torch.where(seen, (logits - level[..., None]).exp(), none)
    own = torch.zeros_like(highest) if sink is None else (sink - level).exp()
    total = mass.sum(dim=-1) + own
    log_sum_exp = level + total.log()
    whole = torch.where(total > 0, total, 1.0)
    p, sink_mass = mass / whole[..., None], own / whole
    expected = torch.where(seen, p * logits, none).sum(dim=-1)
    if sink is not None:
        expected = expected + sink_mass * sink
    fields = {
        "log_sum_exp": log_sum_exp,
        "max": highest,
        "min": lowest,
        "mean": mean,
        "variance": variance,
        "entropy": torch.where(total > 0, log_sum_exp - expected, none).clamp(min=0),
        "p_squared": p.square().sum(dim=-1),
        "p_cubed": (p * p * p).sum(dim=-1),
        "sink_mass": sink_mass,
    }
    broken = sees_any & ~torch.isfinite(variance)
    return {name: torch.where(broken, torch.nan, field) for name, field in fields.items()} | {"keys": keys}


def most_pointed(logits: Tensor, visible: Tensor | None, log_sum_exp: Tensor, keys: Tensor) -> Pointed:
    """The key that most of these rows point at, for logits (..., heads, rows, keys); rows with a NaN do not count.

    log_sum_exp, keys   (..., heads, rows), as in the Reading of these rows
    """
    heads, rows, n_key = logits.shape[-3:]
    if visible is not None:
        logits = torch.where(visible, logits, -torch.inf)
    logits = logits.reshape(-1, heads, rows, n_key)
    sums, seen = (field.reshape(-1, heads, rows) for field in (log_sum_exp, keys))
    used = (seen >= MIN_KEYS) & torch.isfinite(sums)
    # max and not argmax, which takes twice as long.
    votes = torch.zeros_like(logits[..., 0, :]).scatter_add_(-1, logits.max(dim=-1).indices, used.to(logits.dtype))
    most, key = votes.max(dim=-1)
    of_key = logits.gather(-1, key[..., None, None].expand(-1, -1, rows, 1))[..., 0]
    count = used.sum(dim=-1).to(logits.dtype)
    mass = torch.where(used, (of_key - sums).exp(), 0.0).sum(dim=-1) / count  # 0 / 0 is NaN: no row sees enough
    return Pointed(key, most / count, mass)


def grouped_scores(query: Tensor, key: Tensor) -> Tensor:
    """<q_i, k_j>, (..., heads, rows, keys), where several heads may share a key head."""
    wide = torch.float64 if query.dtype == torch.float64 else torch.float32
    *leading, heads, rows, d = query.shape
    kv_heads, n_key = key.shape[-3], key.shape[-2]
    shared, keys = query.to(wide).reshape(*leading, kv_heads, heads // kv_heads * rows, d), key.to(wide)
    # Of one key a product of matrices takes three times as long as the sum.
    scores = (shared * keys).sum(dim=-1) if n_key == 1 else shared @ keys.transpose(-1, -2)
    return scores.reshape(*leading, heads, rows, n_key)
