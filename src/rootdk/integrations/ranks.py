"""Several processes that train one model: which one writes, what they agree on, and their metrics merged.

data, sequence   ranks have different rows of the same heads: extremes by max and min, means by sums and counts, medians
                 by counting. Never an average of maxima, nor a median of medians.
tensor           ranks have different heads: their numbers stand side by side, in the order of the ranks

The result is what one process with all rows and all heads would read, the same on every rank. Only a few numbers per
head are sent, and for the medians one count per head and bit: a median is the number at or below which half of all rows
lie. Guess it, count on every process how many lie at or below the guess, add the counts up, and halve the range; after
as many rounds as a number has bits the median is known.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rootdk.audit.layer import KINDS, LayerReading, Numbers, finished
from rootdk.audit.remedies import Largest, merged_largest
from rootdk.errors import ArgumentError


def writes() -> bool:
    """Whether this process writes: rank 0, or the only one.

    >>> writes()
    True
    """
    distributed = _distributed()
    return distributed is None or distributed.get_rank() == 0


def several() -> bool:
    """Whether there are other processes."""
    distributed = _distributed()
    return distributed is not None and distributed.get_world_size() > 1


def over_ranks(largest: Largest, group: Any = None) -> Largest:
    """The largest scores over all processes of a group, the same in each of them; all of them have to call this."""
    distributed = _distributed()
    return largest if distributed is None else merged_largest(_gathered(distributed, group, largest))


class Merged(NamedTuple):
    """One layer over all ranks: the parts of a LayerReading that can be merged."""

    metrics: dict[str, Numbers]
    heads: int


class _Layer(NamedTuple):
    """The facts about a layer that the ranks need before they can add up."""

    heads: int
    most_keys: int
    scale: float
    softcap: float | None
    dtype: str
    wide: bool  # whether it was read in float64


# One kind of parallelism, or several, each with its process group.
Parallel: TypeAlias = str | Mapping[str, Any]


def merged_metrics(readings: Mapping[str, LayerReading], parallel: Parallel = "data") -> dict[str, Merged]:
    """{path: metrics of all ranks}, the same on every rank; every rank has to call it, also one that has read nothing.

    parallel   "data", "sequence" or "tensor", over the default group of torch.distributed; or a dictionary from one or
               several of these to the group over which the model is parallel in that way

        with rootdk.watch(model) as seen:
            model(batch)
        merged_metrics(seen.readings, {"data": data_group, "tensor": tensor_group})

    >>> import tempfile, torch, rootdk, torch.distributed as dist
    >>> model = torch.nn.MultiheadAttention(16, 2)
    >>> with rootdk.watch(model) as seen:
    ...     _ = model(*3 * [torch.randn(8, 1, 16)])
    >>> dist.init_process_group("gloo", init_method=f"file://{tempfile.mkdtemp()}/meet", rank=0, world_size=1)
    >>> sorted(merged_metrics(seen.readings)) == sorted(seen.readings)
    True
    >>> dist.destroy_process_group()
    """
    import torch.distributed as dist

    groups = groups_of(parallel)
    merged = {path: Merged(reading.metrics, reading.heads) for path, reading in readings.items()}
    rows = [kind for kind in ("data", "sequence") if kind in groups]
    if len(rows) == 2:
        raise ArgumentError(
            "parallel: must name one group for rows, got both 'data' and 'sequence'; give the group of all ranks that "
            "hold rows of the same heads as 'data'"
        )
    if rows:
        merged = _over_rows(dist, groups[rows[0]], readings)
    if "tensor" in groups:
        merged = _side_by_side(_gathered(dist, groups["tensor"], merged))
    return merged


def heads_together(numbers: Mapping[str, Numbers], group: Any) -> dict[str, Numbers]:
    """One number per head of every layer, of all ranks among which the heads are divided."""
    import torch.distributed as dist

    mine = {path: Merged({"": array}, len(array)) for path, array in numbers.items()}
    return {path: layer.metrics[""] for path, layer in _side_by_side(_gathered(dist, group, mine)).items()}


def groups_of(parallel: Any) -> dict[str, Any]:
    """{kind of parallelism: group}."""
    groups = {parallel: None} if isinstance(parallel, str) else parallel
    ways = ("data", "sequence", "tensor")
    if not isinstance(groups, Mapping) or not set(groups) <= set(ways):
        raise ArgumentError(
            f"parallel: must be 'data', 'sequence', 'tensor' or a dictionary from these to groups, got {parallel!r}"
        )
    return dict(groups)


def _over_rows(dist: Any, group: Any, readings: Mapping[str, LayerReading]) -> dict[str, Merged]:
    import torch

    def reduced(array: Any, how: Any) -> Any:
        tensor = torch.from_numpy(np.ascontiguousarray(array))
        dist.all_reduce(tensor, op=how, group=group)
        return tensor.numpy()

    layers = _all_layers(_gathered(dist, group, {path: _facts(reading) for path, reading in readings.items()}))
    columns = {path: dict.fromkeys(KINDS, np.empty((layer.heads, 0))) for path, layer in layers.items()}
    columns |= {path: reading.columns(layers[path].most_keys) for path, reading in readings.items()}
    numbers: dict[str, dict[str, Numbers]] = {path: {} for path in layers}
    for kind in ("max", "min", "mean", "median"):
        places = [(path, name) for path in layers for name in KINDS if KINDS[name] == kind]
        rows = [row[~np.isnan(row)] for path, name in places for row in columns[path][name]]
        if kind in ("max", "min"):  # the smallest is minus the largest of minus the numbers
            sign = 1.0 if kind == "max" else -1.0
            whole = reduced(np.array([(sign * row).max(initial=-np.inf) for row in rows]), dist.ReduceOp.MAX)
            whole = np.where(whole == -np.inf, np.nan, sign * whole)
        elif kind == "mean":
            total, count = reduced(
                np.array([[row.sum() for row in rows], [row.size for row in rows]], np.float64), dist.ReduceOp.SUM
            )
            whole = np.where(count > 0, total / np.maximum(count, 1), np.nan)
        else:
            wide = any(layer.wide for layer in layers.values())
            whole = medians(rows, lambda array: reduced(array, dist.ReduceOp.SUM), wide)
        parts = np.split(whole, np.cumsum([layers[path].heads for path, _ in places])[:-1])
        for (path, name), part in zip(places, parts, strict=True):
            numbers[path][name] = part
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

    >>> first, second = ({"a": Merged({"max_logit": np.array([x])}, 1)} for x in (3.0, 7.0))
    >>> _side_by_side([first, second])["a"].metrics["max_logit"].tolist()
    [3.0, 7.0]
    """
    together: dict[str, Merged] = {}
    for part in parts:
        for path, layer in part.items():
            if path in together:
                known = together[path]
                metrics = {name: np.concatenate([known.metrics[name], layer.metrics[name]]) for name in known.metrics}
                together[path] = Merged(metrics, known.heads + layer.heads)
            else:
                together[path] = layer
    return together


def _gathered(dist: Any, group: Any, mine: Any) -> list[Any]:
    # As objects, not as one tensor: the processes need not have read the same layers.
    parts: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(parts, mine, group=group)
    return parts


def _distributed() -> Any:
    """torch.distributed where it has been initialised, else None."""
    import torch

    ready = torch.distributed.is_available() and torch.distributed.is_initialized()
    return torch.distributed if ready else None


def medians(rows: list[Numbers], add: Callable[[NDArray[np.int64]], NDArray[np.int64]], wide: bool) -> Numbers:
    """The median of each set of numbers of which every process has a part; NaN for an empty set.

    rows   the part of each set in this process
    add    adds up arrays of counts, one from each process
    wide   whether the numbers are float64, which takes 64 rounds of counting; 32 find a float32 to its last bit

    >>> sets = [np.array([3.0, 1.0, 2.0]), np.array([-1.0, -4.0]), np.array([])]
    >>> medians(sets, add=lambda counts: counts, wide=True).tolist()
    [2.0, -2.5, nan]
    """
    parts = [np.sort(_ordered(row, wide)) for row in rows]
    count = add(np.array([part.size for part in parts], np.int64))
    # The two in the middle; they are one and the same where the count is odd.
    wanted = np.stack([(count + 1) // 2, count // 2 + 1])
    bits = 64 if wide else 32
    low = np.full(wanted.shape, -(2 ** (bits - 1)), np.int64)
    high = np.full(wanted.shape, 2 ** (bits - 1) - 1, np.int64)
    for _ in range(bits):
        middle = (low & high) + ((low ^ high) >> 1)  # half way without overflow
        below = np.array(
            [[np.searchsorted(part, x, "right") for part, x in zip(parts, row, strict=True)] for row in middle],
            np.int64,
        )
        enough = add(below.reshape(middle.shape)) >= wanted
        high, low = np.where(enough, middle, high), np.where(enough, low, middle + (middle < high))
    pair = _number(low, wide)
    return np.where(count > 0, (pair[0] + pair[1]) / 2, np.nan)


def _ordered(numbers: Numbers, wide: bool) -> NDArray[np.int64]:
    """Integers in the order of the numbers: their bits, with those of negative numbers flipped."""
    bits: Any = numbers.astype(np.float64).view(np.int64) if wide else numbers.astype(np.float32).view(np.int32)
    ordered: NDArray[np.int64] = _flipped_if_negative(bits).astype(np.int64)
    return ordered


def _number(ordered: NDArray[np.int64], wide: bool) -> Numbers:
    """The inverse of _ordered."""
    bits = _flipped_if_negative(ordered if wide else ordered.astype(np.int32))
    numbers: Numbers = bits.view(np.float64 if wide else np.float32).astype(np.float64)
    return numbers


def _flipped_if_negative(bits: Any) -> Any:
    return np.where(bits < 0, bits ^ np.iinfo(bits.dtype).max, bits)
