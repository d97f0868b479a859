"""Attention that a model writes out itself: the logits of its softmax are there, and q and k are not known."""

import math

import torch
from torch import Tensor

from rootdk.audit.layer import LayerReading
from rootdk.audit.watching.call import HIDES
from rootdk.audit.watching.rows import fields_of_logits
from rootdk.audit.watching.sight import sampled_rows
from rootdk.reading import Reading


def read_logits(name: str, step: int, logits: Tensor, rows: int | None) -> LayerReading:
    """Logits (batch, heads, n_query, n_key) as they enter the softmax. What came before the scale stays unknown."""
    n_query, n_key = logits.shape[-2:]
    sampled = rows is not None and rows < n_query
    if sampled:
        logits = logits.index_select(-2, sampled_rows(n_query, rows or 1, logits.device))
    visible = logits > HIDES
    reading = Reading(**fields_of_logits(logits, None if bool(visible.all()) else visible, None), has_sinks=False)
    first = visible.any(dim=-2, keepdim=True).to(torch.uint8).argmax(dim=-1, keepdim=True).expand(*logits.shape[:-1], 1)
    weight = (logits.gather(-1, first)[..., 0].to(reading.log_sum_exp.dtype) - reading.log_sum_exp).exp()
    return LayerReading(
        name=name,
        step=step,
        reading=reading,
        scores=reading,
        first_weight=torch.where(reading.keys > 0, weight, 0.0),
        scale=math.nan,
        scale_given=math.nan,
        mismatch=math.nan,
        softcap=None,
        d_k=0,
        kv_heads=logits.shape[1],
        n_query=n_query,
        n_key=n_key,
        dtype=str(logits.dtype).removeprefix("torch."),
        sampled=sampled,
        route="softmax",
    )
