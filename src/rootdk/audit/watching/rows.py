"""A Reading out of logits that are there, with torch's own operations: for devices that the kernel does not know."""

from typing import Any

import torch
from torch import Tensor


def fields_of_logits(logits: Tensor, visible: Tensor | None, sinks: Tensor | None) -> dict[str, Any]:
    """The fields of a Reading for logits (..., heads, rows, keys), each (..., heads, rows).

    visible   None, or bool that broadcasts to the logits
    sinks     None, or (heads,)

    The definition of rootdk.Reading written down; the numbers agree with those of the kernel to rounding.
    """
    logits = logits if logits.dtype == torch.float64 else logits.float()
    none = logits.new_zeros(())
    seen = torch.ones_like(logits, dtype=torch.bool) if visible is None else visible.expand(logits.shape)
    keys = seen.sum(dim=-1)
    some = keys > 0
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
    found = {
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
    broken = some & ~torch.isfinite(variance)
    return {name: torch.where(broken, torch.nan, field) for name, field in found.items()} | {"keys": keys}


def grouped_scores(query: Tensor, key: Tensor) -> Tensor:
    """<q_i, k_j>, (..., heads, rows, keys), where several heads may share a key head."""
    wide = torch.float64 if query.dtype == torch.float64 else torch.float32
    *leading, heads, rows, d = query.shape
    kv_heads, n_key = key.shape[-3], key.shape[-2]
    shared = query.to(wide).reshape(*leading, kv_heads, heads // kv_heads * rows, d)
    scores: Tensor = (shared @ key.to(wide).transpose(-1, -2)).reshape(*leading, heads, rows, n_key)
    return scores
