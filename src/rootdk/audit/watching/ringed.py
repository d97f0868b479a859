"""Attention on a ring of processes: measured while it ran, over the keys of all ranks, for the rows of this one."""

import math

import torch
from torch import Tensor

from rootdk.audit.layer import LayerReading
from rootdk.audit.watching.call import UnreadableError
from rootdk.audit.watching.rows import grouped_scores
from rootdk.distributed.observing import Measured


def read_ring(name: str, step: int, measured: Measured) -> LayerReading:
    """The rows of this rank. Ranks merge by rootdk.integrations.merged_metrics with parallel="sequence"."""
    query, problem, reading = measured.query, measured.problem, measured.reading
    if problem.softcap is not None:
        # Scores before the cap would take a pass of their own, and all ranks would have to make it.
        raise UnreadableError("a softcap on a ring hides the scores before it")
    scale = problem.scale if measured.row_scale is None else math.nan
    return LayerReading(
        name=name,
        step=step,
        reading=reading,
        scores=reading,  # a sink changes none of what is read of the scores
        first_weight=_first_weight(measured),
        scale=scale,
        scale_given=scale,
        mismatch=math.nan,
        softcap=None,
        d_k=query.shape[-1],
        kv_heads=problem.key.shape[-3],
        n_query=query.shape[-2],
        n_key=problem.key.shape[-2],
        dtype=str(query.dtype).removeprefix("torch."),
        sampled=False,
        route="ring",
    )


def _first_weight(measured: Measured) -> Tensor:
    """The weight of the first key of the sequence in every row: e^(logit - log_sum_exp), 0 where it is not seen."""
    problem, reading = measured.problem, measured.reading
    if measured.first_key is None:
        return torch.zeros_like(reading.log_sum_exp)
    batch = tuple(measured.query.shape[:-3])
    position = torch.as_tensor(problem.query_offset)[:, None] + measured.positions
    seen = torch.ones_like(position, dtype=torch.bool)
    if problem.left is not None:
        seen &= position - problem.left <= 0
    if problem.right is not None:
        seen &= position + problem.right >= 0
    if problem.key_lengths is not None:
        seen &= torch.as_tensor(problem.key_lengths)[:, None] > 0
    rows = (*batch, 1, position.shape[-1])
    factor: float | Tensor = problem.scale
    if measured.row_scale is not None:
        factor = problem.scale * torch.as_tensor(measured.row_scale).reshape(rows)
    logits = factor * grouped_scores(measured.query.to(measured.first_key.dtype), measured.first_key)[..., 0]
    weight = (logits.to(reading.log_sum_exp.dtype) - reading.log_sum_exp).exp().clamp(max=1.0)
    return torch.where(seen.reshape(rows) & (reading.keys > 0), weight, 0.0)
