"""From a call to a LayerReading: by a kernel or by torch's operations; of a ring of processes; of logits alone.

On a GPU nothing here waits for the device, and readings stay there until their numbers are used.
"""

import math
from typing import Any

import torch
from torch import Tensor

from rootdk.attention import read as read_scores
from rootdk.audit.layer import LayerReading, Pointed
from rootdk.audit.watching.call import HIDES, Call, UnreadableError
from rootdk.audit.watching.rows import (
    Scale,
    Sight,
    at_rows,
    fields_of_logits,
    grouped_scores,
    most_pointed,
    sampled_rows,
)
from rootdk.backends.torch import elsewhere, has_kernel
from rootdk.distributed.calls import Measured
from rootdk.options import Options
from rootdk.reading import Reading

# How many rows are read on a device without a kernel, unless the watcher says how many.
ELSEWHERE = 64
# For so many rows of each batch entry the key that they point at is found.
_ASKED = 32


def read(name: str, step: int, call: Call, scale: Scale, sight: Sight, rows: int | None) -> LayerReading:
    """One reading of one call.

    sight   sight_of(call), which the layers of a model often share
    rows    how many query rows to read; None reads all, on a device without a kernel 64
    """
    query, n_query = call.query, call.query.shape[-2]
    by_torch = not has_kernel(query)
    most = ELSEWHERE if by_torch and rows is None else rows
    wanted = n_query if most is None else min(most, n_query)
    device = None if by_torch else elsewhere(query)
    bare = call.softcap is None and sight.bias is None and call.sinks is None
    if device is not None:
        parts = _on_device(device, call, sight, scale.used, wanted, bare)
    else:
        parts = _here(call, sight, scale.used, wanted, bare, by_torch)
    return LayerReading(
        name=name,
        step=step,
        route=call.route,
        scale=scale.used,
        scale_given=scale.given,
        mismatch=scale.mismatch,
        softcap=call.softcap,
        sampled=wanted < n_query,
        silent=_silent(call),
        **_sizes(query, call.key),
        **parts,
    )


def _sizes(query: Tensor, key: Tensor) -> dict[str, Any]:
    return {
        "dtype": str(query.dtype).removeprefix("torch."),
        "d_k": query.shape[-1],
        "kv_heads": key.shape[-3],
        "n_query": query.shape[-2],
        "n_key": key.shape[-2],
    }


def _on_device(device: Any, call: Call, sight: Sight, scale: float, rows: int, bare: bool) -> dict[str, Any]:
    """With the kernel of a GPU, which finds all of it; if logits differ from scores, a second pass reads the scores."""
    options = Options(**_options(call, sight, scale, bare=False))
    layer_reading = device.read_layer(call.query, call.key, options, rows, sight.first, _ASKED)
    scores = layer_reading.reading
    if not bare:
        n_query = call.query.shape[-2]
        positions = None if rows == n_query else sampled_rows(n_query, rows, call.key.device)
        scores = device.read(call.query, call.key, Options(**_options(call, sight, scale, bare=True)), positions)
    top = (layer_reading.top_key, layer_reading.top_share, layer_reading.top_mass)
    return {
        "reading": layer_reading.reading,
        "scores": scores,
        "first_weight": layer_reading.first_weight,
        "pointed": Pointed(*(tensor.reshape(-1, tensor.shape[-1]) for tensor in top)),
        "digested": (layer_reading.largest, layer_reading.mean_entropy),
    }


def _here(call: Call, whole: Sight, scale: float, rows: int, bare: bool, by_torch: bool) -> dict[str, Any]:
    """With the kernel of the CPU, or with torch's operations alone, on any device."""
    query, n_query = call.query, call.query.shape[-2]
    picks_rows = by_torch or rows < n_query
    positions = sampled_rows(n_query, rows, query.device) if picks_rows else None
    query, sight = _picked(call, whole, positions)

    def run(bare: bool, positions: Tensor | None) -> Reading:
        if not by_torch:
            return read_scores(call.query, call.key, rows=positions, **_options(call, whole, scale, bare))
        query, sight = _picked(call, whole, positions)
        logits = scale * grouped_scores(query, call.key)
        if not bare:
            logits = _finished(logits, call, sight.bias)
        sinks = None if bare else call.sinks
        return Reading(**fields_of_logits(logits, sight.mask, sinks), has_sinks=sinks is not None)

    logits = run(False, positions)
    pointed = None
    if 0 not in call.query.shape and 0 not in call.key.shape:
        asked_rows = sampled_rows(n_query, min(n_query, _ASKED), query.device)
        if picks_rows:
            of_asked = run(False, asked_rows)
            sums, keys = of_asked.log_sum_exp, of_asked.keys
        else:
            sums, keys = (field.index_select(-1, asked_rows) for field in (logits.log_sum_exp, logits.keys))
        asked_query, asked_sight = _picked(call, whole, asked_rows)
        asked_logits = _finished(grouped_scores(scale * asked_query, call.key), call, asked_sight.bias)
        pointed = most_pointed(asked_logits, asked_sight.mask, sums, keys)
    return {
        "reading": logits,
        "scores": logits if bare else run(True, positions),
        "first_weight": _first_weight(query, call, sight, scale, logits),
        "pointed": pointed,
    }


def _picked(call: Call, whole: Sight, positions: Tensor | None) -> tuple[Tensor, Sight]:
    """The queries at these positions, and what they see."""
    if positions is None:
        return call.query, whole
    return call.query.index_select(-2, positions), at_rows(whole, call, positions)


def _options(call: Call, sight: Sight, scale: float, bare: bool) -> dict[str, Any]:
    """bare: for the scores, before cap, bias and sinks."""
    window = None if call.reach is None else (call.reach, None)
    options = {"scale": scale, "causal": call.causal, "window": window, "query_offset": 0, "mask": sight.mask}
    return options if bare else options | {"bias": sight.bias, "softcap": call.softcap, "sinks": call.sinks}


def _silent(call: Call) -> Any:
    """Head by head, whether it returned nothing but zeros; None where there is no output to check."""
    out = call.out
    if out.shape[:-1] != call.query.shape[:-1] or not out.numel():
        return None
    others = tuple(range(out.dim() - 3))
    if out.is_cpu:  # the last row is seldom 0, and then no other row is checked
        ended = out[..., -1, :].any(dim=(*others, -1)).logical_not()
        if not bool(ended.any()):
            return ended
    return out.any(dim=(*others, -2, -1)).logical_not()


def check_readable(call: Call) -> None:
    """Raise UnreadableError where there are no numbers to read, or the tensor does not hold them itself."""
    query = call.query
    if torch._C._are_functorch_transforms_active():  # noqa: SLF001 -- torch has no public name for it
        raise UnreadableError("a transform of torch.func is at work")
    if query.is_meta or query.is_nested or type(query) not in (Tensor, torch.nn.Parameter):
        kind = "meta" if query.is_meta else "nested" if query.is_nested else type(query).__name__
        raise UnreadableError(f"its tensors are {kind}")
    if query.is_cuda and torch.cuda.is_current_stream_capturing():
        raise UnreadableError("a CUDA graph is being captured")


def _finished(scores: Tensor, call: Call, bias: Tensor | None) -> Tensor:
    logits = scores if call.softcap is None else call.softcap * torch.tanh(scores / call.softcap)
    return logits if bias is None else logits + bias


def _first_weight(query: Tensor, call: Call, sight: Sight, scale: float, reading: Reading) -> Tensor:
    """The weight of the first key in every row, (..., heads, rows): e^(logit - log_sum_exp), 0 where it is not seen."""
    n_key, shape = call.key.shape[-2], reading.log_sum_exp.shape
    if n_key == 0:
        return torch.zeros_like(reading.log_sum_exp)
    key, bias, mask = call.key[..., :1, :], sight.bias, sight.mask
    if sight.first is not None:
        places = sight.first[..., None, None, None]
        key = call.key.gather(-2, places.expand(*call.key.shape[:-2], 1, call.key.shape[-1]))
        of_rows = places.expand(*shape, 1)
        bias = None if bias is None else bias.expand(*shape, n_key).gather(-1, of_rows)
        mask = None if mask is None else mask.expand(*shape, n_key).gather(-1, of_rows)
    else:
        bias, mask = (None if part is None else part[..., :1] for part in (bias, mask))
    logits = _finished(scale * grouped_scores(query, key), call, bias)[..., 0].to(reading.log_sum_exp.dtype)
    weight = (logits - reading.log_sum_exp).exp().clamp(max=1.0)
    visible = reading.keys > 0
    if mask is not None:
        visible = visible & mask[..., 0]
    elif call.reach is not None and sight.positions is None:
        visible = visible & (torch.arange(shape[-1], device=visible.device) <= call.reach)
    return torch.where(visible, weight, 0.0)


def read_ring(name: str, step: int, measured: Measured) -> LayerReading:
    """The rows of this rank. Ranks merge by rootdk.integrations.merged_metrics with parallel="sequence"."""
    query, problem, reading = measured.query, measured.problem, measured.reading
    if problem.softcap is not None:
        # Scores before the cap would need a pass of their own, in which all ranks take part.
        raise UnreadableError("a softcap on a ring hides the scores before it")
    scale = problem.scale if measured.row_scale is None else math.nan
    return LayerReading(
        name=name,
        step=step,
        reading=reading,
        scores=reading,  # a sink does not change what is read from the scores
        first_weight=_first_weight_on_ring(measured),
        route="ring",
        scale=scale,
        scale_given=scale,
        **_sizes(query, problem.key),
    )


def _first_weight_on_ring(measured: Measured) -> Tensor:
    """The weight of the first key of the sequence in every row: e^(logit - log_sum_exp), 0 where it is not seen."""
    problem, reading = measured.problem, measured.reading
    if measured.first_key is None:
        return torch.zeros_like(reading.log_sum_exp)
    batch = tuple(measured.query.shape[:-3])
    position = torch.as_tensor(problem.query_offset)[:, None] + measured.positions
    visible = torch.ones_like(position, dtype=torch.bool)
    if problem.left is not None:
        visible &= position - problem.left <= 0
    if problem.right is not None:
        visible &= position + problem.right >= 0
    if problem.key_lengths is not None:
        visible &= torch.as_tensor(problem.key_lengths)[:, None] > 0
    rows = (*batch, 1, position.shape[-1])
    factor: float | Tensor = problem.scale
    if measured.row_scale is not None:
        factor = problem.scale * torch.as_tensor(measured.row_scale).reshape(rows)
    logits = factor * grouped_scores(measured.query.to(measured.first_key.dtype), measured.first_key)[..., 0]
    weight = (logits.to(reading.log_sum_exp.dtype) - reading.log_sum_exp).exp().clamp(max=1.0)
    return torch.where(visible.reshape(rows) & (reading.keys > 0), weight, 0.0)


def read_logits(name: str, step: int, logits: Tensor, rows: int | None) -> LayerReading:
    """Logits (batch, heads, n_query, n_key) as they enter the softmax. Scores before the scale stay unknown."""
    n_query, n_key = logits.shape[-2:]
    sampled = rows is not None and rows < n_query
    if sampled:
        logits = logits.index_select(-2, sampled_rows(n_query, rows or 1, logits.device))
    visible = logits > HIDES
    some_hidden = not visible.is_cpu or not bool(visible.all())
    reading = Reading(**fields_of_logits(logits, visible if some_hidden else None, None), has_sinks=False)
    asked_rows = sampled_rows(logits.shape[-2], min(_ASKED, logits.shape[-2]), logits.device)
    sums, keys = (field.index_select(-1, asked_rows) for field in (reading.log_sum_exp, reading.keys))
    first = visible.any(dim=-2, keepdim=True).to(torch.uint8).argmax(dim=-1, keepdim=True).expand(*logits.shape[:-1], 1)
    weight = (logits.gather(-1, first)[..., 0].to(reading.log_sum_exp.dtype) - reading.log_sum_exp).exp()
    return LayerReading(
        name=name,
        step=step,
        reading=reading,
        scores=reading,
        first_weight=torch.where(reading.keys > 0, weight, 0.0),
        pointed=most_pointed(
            logits.index_select(-2, asked_rows).float(), visible.index_select(-2, asked_rows), sums, keys
        ),
        route="softmax",
        dtype=str(logits.dtype).removeprefix("torch."),
        d_k=0,
        kv_heads=logits.shape[1],
        n_query=n_query,
        n_key=n_key,
        sampled=sampled,
    )
