"""The metrics of a model whose attention is spread over processes, the same on every rank.

data, sequence   ranks have other rows of the same heads: extremes by max and min, means by sums and counts, medians by
                 counting. Never an average of maxima, nor a median of medians.
tensor           ranks have other heads: their numbers stand side by side, in the order of the ranks

What comes out is what one process would find that has all rows and all heads. Only a few numbers per head travel, and
for the medians one count per head and bit: a median is the number below which half of all rows lie, and every rank can
count its own.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from rootdk.audit.layer import KINDS, LayerReading, Numbers, finished
from rootdk.errors import ArgumentError
from rootdk.integrations.medians import medians


class Merged(NamedTuple):
    """One layer over all ranks: what a LayerReading has of the kind."""

    metrics: dict[str, Numbers]
    heads: int


class _Layer(NamedTuple):
    """What the ranks must know of a layer before they can add up."""

    heads: int
    most_keys: int
    scale: float
    softcap: float | None
    dtype: str
    wide: bool


def merged_metrics(readings: Mapping[str, LayerReading], parallel: Any = "data") -> dict[str, Merged]:
    """{path: metrics of all ranks}, the same on every rank; every rank has to call it, also one that has read nothing.

    parallel   "data", "sequence" or "tensor", over the default group of torch.distributed; or a dictionary from one or
               several of these to the group over which the model is parallel in that way

        with rootdk.watch(model) as seen:
            model(batch)
        merged_metrics(seen.readings, {"data": data_group, "tensor": tensor_group})
    """
    import torch.distributed as dist

    groups = groups_of(parallel)
    found = {path: Merged(reading.metrics, reading.heads) for path, reading in readings.items()}
    rows = [kind for kind in ("data", "sequence") if kind in groups]
    if len(rows) == 2:
        raise ArgumentError(
            "parallel: must name one group for rows, got both 'data' and 'sequence'; give the group of all ranks that "
            "hold rows of the same heads as 'data'"
        )
    if rows:
        found = _over_rows(dist, groups[rows[0]], readings)
    if "tensor" in groups:
        found = _side_by_side(_gathered(dist, groups["tensor"], found))
    return found


def heads_together(numbers: Mapping[str, Numbers], group: Any) -> dict[str, Numbers]:
    """One number per head of every layer, of all ranks among which the heads are divided."""
    import torch.distributed as dist

    mine = {path: Merged({"": array}, len(array)) for path, array in numbers.items()}
    return {path: layer.metrics[""] for path, layer in _side_by_side(_gathered(dist, group, mine)).items()}


def groups_of(parallel: Any) -> dict[str, Any]:
    """{way of being parallel: group}."""
    given = {parallel: None} if isinstance(parallel, str) else parallel
    ways = ("data", "sequence", "tensor")
    if not isinstance(given, Mapping) or not set(given) <= set(ways):
        raise ArgumentError(
            f"parallel: must be 'data', 'sequence', 'tensor' or a dictionary from these to groups, got {parallel!r}"
        )
    return dict(given)


def _over_rows(dist: Any, group: Any, readings: Mapping[str, LayerReading]) -> dict[str, Merged]:
    import torch

    def reduced(array: Any, how: Any) -> Any:
        tensor = torch.from_numpy(np.ascontiguousarray(array))
        dist.all_reduce(tensor, op=how, group=group)
        return tensor.numpy()

    layers = _all_layers(_gathered(dist, group, {path: _facts(reading) for path, reading in readings.items()}))
    columns = {
        path: readings[path].columns(layer.most_keys)
        if path in readings
        else dict.fromkeys(KINDS, np.empty((layer.heads, 0)))
        for path, layer in layers.items()
    }
    numbers: dict[str, dict[str, Numbers]] = {path: {} for path in layers}
    for kind in ("max", "min", "mean", "median"):
        places = [(path, name) for path in layers for name in KINDS if KINDS[name] == kind]
        rows = [row[~np.isnan(row)] for path, name in places for row in columns[path][name]]
        if kind == "max":
            whole = reduced(np.array([row.max(initial=-np.inf) for row in rows], np.float64), dist.ReduceOp.MAX)
            whole = np.where(whole == -np.inf, np.nan, whole)
        elif kind == "min":
            whole = reduced(np.array([row.min(initial=np.inf) for row in rows], np.float64), dist.ReduceOp.MIN)
            whole = np.where(whole == np.inf, np.nan, whole)
        elif kind == "mean":
            total, count = reduced(
                np.array([[row.sum() for row in rows], [row.size for row in rows]], np.float64), dist.ReduceOp.SUM
            )
            whole = np.where(count > 0, total / np.maximum(count, 1), np.nan)
        else:
            wide = any(layer.wide for layer in layers.values())
            whole = medians(rows, lambda array: reduced(array, dist.ReduceOp.SUM), wide)
        begin = 0
        for path, name in places:
            numbers[path][name] = whole[begin : begin + layers[path].heads]
            begin += layers[path].heads
    return {
        path: Merged(finished(numbers[path], layer.scale, layer.softcap, layer.dtype), layer.heads)
        for path, layer in layers.items()
    }


def _facts(reading: LayerReading) -> _Layer:
    wide = "64" in str(reading.reading.variance.dtype)
    return _Layer(reading.heads, reading.most_keys, reading.scale, reading.softcap, reading.dtype, wide)


def _all_layers(parts: list[dict[str, _Layer]]) -> dict[str, _Layer]:
    """Every layer that any rank has read; with dropped layers or experts they need not be the same ones."""
    layers: dict[str, _Layer] = {}
    for rank, part in enumerate(parts):
        for path, layer in part.items():
            known = layers.setdefault(path, layer)
            if known.heads != layer.heads:
                raise ArgumentError(
                    f"parallel: ranks that share rows must have the same heads, got {known.heads} and on rank {rank} "
                    f"{layer.heads} in {path}; 'tensor' puts heads of several ranks side by side"
                )
            most, wide = max(known.most_keys, layer.most_keys), known.wide or layer.wide
            layers[path] = known._replace(most_keys=most, wide=wide)
    return layers


def _side_by_side(parts: list[dict[str, Merged]]) -> dict[str, Merged]:
    """Heads after heads, in the order of the ranks.

    >>> one, two = ({"a": Merged({"max_logit": np.array([x])}, 1)} for x in (3.0, 7.0))
    >>> _side_by_side([one, two])["a"].metrics["max_logit"].tolist()
    [3.0, 7.0]
    """
    found: dict[str, Merged] = {}
    for part in parts:
        for path, layer in part.items():
            if path in found:
                known = found[path]
                both = {name: np.concatenate([known.metrics[name], layer.metrics[name]]) for name in known.metrics}
                found[path] = Merged(both, known.heads + layer.heads)
            else:
                found[path] = layer
    return found


def _gathered(dist: Any, group: Any, mine: Any) -> list[Any]:
    # As objects, not as one tensor: the processes need not have read the same layers.
    parts: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(parts, mine, group=group)
    return parts
