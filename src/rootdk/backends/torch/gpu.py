"""Tensors on a GPU: a Reading by the Triton kernel, and measure() with the output of torch's own attention.

Nothing waits for the device. Options given as numbers are checked by resolve(), as for every other call; key_lengths,
query_offset, sinks, alibi, rows and a scale that are tensors on the device are used unchecked, because to read them
would be to wait: no memory outside of the arrays is read for them, whatever they hold. A launch goes to the current
stream and allocates nothing but the Reading, so a CUDA graph can capture it.
"""

import math
from contextlib import nullcontext
from functools import cache
from itertools import product
from os import environ
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from ...checks import row_numbers
from ...errors import ArgumentError, ArgumentTypeError, KernelMissingError
from ...options import Options, Problem, resolve
from ...reading import FIELDS, Reading, reading_of
from .. import torch as adapter

_FLOATS = (torch.float32, torch.float16, torch.bfloat16)
# The fields of a Problem that the kernel supports. Any other that is not None is refused, not ignored.
_KNOWN = frozenset({
    "query", "key", "value", "scale", "row_scale", "softcap", "left", "right", "query_offset", "key_lengths", "mask",
    "bias", "sinks", "alibi", "dropout", "seed", "query_segments", "key_segments", "query_positions", "key_positions",
})  # fmt: skip
# The options that torch's own attention has.
_OF_TORCH = frozenset({"scale", "causal", "mask", "bias", "query_offset", "dropout"})
# The outputs that a launch can write.
_OUTPUTS = ("fields", "keys", "first_weight", "top_key", "top_share", "top_mass")
# The inputs of a launch for segments.
_SEGMENTS = ("row_starts", "row_ends", "row_places", "row_segments", "key_segments", "key_places")
# Options that may be tensors on the device.
_ON_DEVICE = ("key_lengths", "query_offset", "sinks", "alibi")
_LOG2_E, _LARGEST = 1.4426950408889634, 3.4e38
# Heads wider than this are multiplied in pieces.
WIDEST, PIECE = 128, 32


class Sizes(NamedTuple):
    """Query rows and keys of one block, and how the compiler distributes them."""

    rows: int
    keys: int
    warps: int
    stages: int


# By kind of GPU, bytes of a number, and whether a call is heavy: a mask, a bias or a wide head takes registers. The
# first is used, the others are what an autotuner may try as well. None was timed on hardware: they are chosen so that
# nothing is spilled (tests/torch/test_triton_compiled.py).
SIZES = {
    ("cuda", 2, False): (Sizes(128, 64, 8, 3), Sizes(128, 64, 4, 3), Sizes(64, 64, 4, 3), Sizes(128, 128, 8, 2)),
    ("cuda", 2, True): (Sizes(64, 32, 8, 2), Sizes(64, 64, 8, 2)),
    ("cuda", 4, False): (Sizes(32, 32, 8, 2), Sizes(64, 32, 4, 2)),
    ("cuda", 4, True): (Sizes(32, 32, 4, 2),),
    ("hip", 2, False): (Sizes(128, 64, 8, 1), Sizes(128, 64, 4, 1), Sizes(64, 64, 4, 1)),
    ("hip", 2, True): (Sizes(64, 32, 8, 1), Sizes(64, 64, 8, 1)),
    ("hip", 4, False): (Sizes(32, 32, 4, 1), Sizes(64, 32, 4, 1)),
    ("hip", 4, True): (Sizes(32, 32, 4, 1),),
}


def sizes_for(kind: str, element_bytes: int, d_k: int, pairs: bool) -> tuple[Sizes, ...]:
    """`pairs`: a mask or a bias is read."""
    return SIZES[kind, element_bytes, pairs or d_k > WIDEST]


class LayerRead(NamedTuple):
    """What a watch reads from one attention call, all of it on the device.

    first_weight   the weight that every row gives to the first key, (..., heads, rows)
    top_key, top_share, top_mass
                   of each batch entry and head, the key that most of some evenly spread rows point at, the share of
                   rows that do, and the mean weight that it gets; NaN where no row sees 16 keys
    largest, mean_entropy
                   per head, the largest finite logit, and entropy / ln n over the rows that see 16 keys
    """

    reading: Reading
    first_weight: Tensor
    top_key: Tensor
    top_share: Tensor
    top_mass: Tensor
    largest: Tensor
    mean_entropy: Tensor


def read(query: Tensor, key: Tensor, options: Options, rows: Any) -> Reading:
    """The Reading of all query rows or of those listed. A list is checked; a tensor on the device is not."""
    call = _Call(query, key, options)
    chosen = _rows(rows, call.problem)
    block, keys = call.empty_reading(call.n_query if chosen is None else len(chosen))
    if keys.numel():
        call.launch(keys.shape[-1], {"fields": block, "keys": keys}, rows=chosen)
    if call.one_head:
        block, keys = block[:, 0], keys[0]
    return reading_of(block, keys, options.sinks is not None)


def read_layer(
    query: Tensor, key: Tensor, options: Options, rows: int | None, first_key: Tensor | None, n_asked: int
) -> LayerRead:
    """read() and the other numbers of a watch, in three launches; (..., heads, n, d_k) with one axis of heads at least.

    rows        how many query rows, evenly spread; None is all
    first_key   (...) of each batch entry, or None where it is key 0
    n_asked     for how many rows the key that they point at is found
    """
    call = _Call(query, key, options)
    leading, n_rows, n_asked = call.leading, min(rows or call.n_query, call.n_query), min(n_asked, call.n_query)
    block, keys = call.empty_reading(n_rows)
    first_weight = torch.empty_like(block[0])
    top_key, small = keys.new_empty((*leading, call.heads)), block.new_empty((2, *leading, call.heads))
    digest = block.new_empty((2, call.heads))
    if keys.numel() and call.n_key:
        outputs = {"fields": block, "keys": keys, "first_weight": first_weight}
        call.launch(n_rows, outputs, first_key=first_key, spread=n_rows < call.n_query)
        call.launch(n_asked, {"top_key": top_key, "top_share": small[0], "top_mass": small[1]}, spread=True)
        _digest(block, keys, digest, options.sinks is not None)
    else:
        if keys.numel():
            call.launch(n_rows, {"fields": block, "keys": keys})
        for tensor, nothing in ((first_weight, 0.0), (top_key, 0), (small, math.nan), (digest, math.nan)):
            tensor.fill_(nothing)
    return LayerRead(reading_of(block, keys, options.sinks is not None), first_weight, top_key, *small, *digest)


def measure(query: Tensor, key: Tensor, value: Tensor, options: Options) -> tuple[Tensor, Reading]:
    """torch's fused attention for the output, differentiable, and read() for the Reading."""
    for name, given in options._asdict().items():
        if name not in _OF_TORCH and given is not None:
            raise ArgumentError(f"{name}: torch's attention, which measure uses on a GPU, has none; use rootdk.read")
    if options.causal and not (options.mask is None and options.bias is None):
        raise ArgumentError("causal: torch's attention, which measure uses on a GPU, takes no mask or bias beside it")
    reading = read(query.detach(), key.detach(), options._replace(dropout=0.0), None)
    scale = options.scale
    if isinstance(scale, Tensor):
        query, scale = query * scale.to(query.dtype), 1.0
    problem, one_head = resolve(_BACKEND, query, key, value, options._replace(scale=scale, seed=0))
    if problem.row_scale is not None:
        raise ArgumentError("scale: torch's attention, which measure uses on a GPU, takes one for all rows")
    n_query, n_key = problem.query.shape[-2], problem.key.shape[-2]
    added = options.mask if options.bias is None else options.bias
    if options.mask is not None and options.bias is not None:
        added = torch.where(options.mask, options.bias, -math.inf)
    top_left = False
    if problem.right == 0:
        offsets = {int(offset) for offset in problem.query_offset}
        top_left = offsets <= {0}
        if not top_left:
            if offsets != {n_key - n_query}:
                raise ArgumentError(
                    "query_offset: torch's attention, which measure uses on a GPU, begins with the first key or ends "
                    f"with the last, 0 or {n_key - n_query}, got {options.query_offset!r}"
                )
            from torch.nn.attention.bias import causal_lower_right

            added = causal_lower_right(n_query, n_key)
    out: Tensor = scaled_dot_product_attention(
        problem.query, problem.key, problem.value, attn_mask=added, dropout_p=problem.dropout, is_causal=top_left,
        scale=problem.scale, enable_gqa=problem.query.shape[-3] != problem.key.shape[-3],
    )  # fmt: skip
    return (out[0] if one_head else out), reading


def _on_device(given: Any) -> bool:
    return isinstance(given, Tensor) and not given.is_cpu


def _check_device_tensors(query: Tensor, options: Options, on_device: dict[str, Tensor], scale: Tensor | None) -> None:
    leading, heads = tuple(query.shape)[:-3] or (1,), 1 if query.dim() < 3 else query.shape[-3]
    for name, tensor in on_device.items():
        if tensor.device != query.device:
            raise ArgumentTypeError(f"{name}: must be on {query.device} like query or on the CPU, got {tensor.device}")
        per_head = name in ("sinks", "alibi")
        wanted, kind = ((heads,), "numbers") if per_head else (leading, "integers")
        if tensor.is_floating_point() != per_head or tensor.dtype == torch.bool:
            raise ArgumentTypeError(f"{name}: must be {kind}, got {adapter.name_of(tensor.dtype)}")
        if tuple(tensor.shape) != wanted and (name != "alibi" or tuple(tensor.shape) != (*leading, heads)):
            raise ArgumentError(f"{name}: must have shape {wanted}, got {tuple(tensor.shape)}")
    if scale is not None and not (scale.dim() == 0 and scale.is_floating_point()):
        raise ArgumentTypeError(
            f"scale: must be a number, a rule or a floating tensor without axes, got one of shape {tuple(scale.shape)}"
        )
    varies = getattr(options.scale, "varies", ())
    if "key_lengths" in on_device and varies:
        raise ArgumentError("key_lengths: must be on the CPU for a scale that varies with them, got a tensor on a GPU")


def _check_segments(segments: Any, on_device: dict[str, Tensor]) -> None:
    """The range of keys that a row sees is found on the CPU."""
    parts = segments if isinstance(segments, tuple) else (segments,)
    misplaced = [tensor for tensor in parts if _on_device(tensor)]
    if misplaced:
        raise ArgumentTypeError(f"segments: must be on the CPU, got a tensor on {misplaced[0].device}")
    for name in ("key_lengths", "query_offset"):
        if name in on_device:
            raise ArgumentTypeError(
                f"{name}: must be on the CPU with segments, got a tensor on {on_device[name].device}"
            )


def _segments(problem: Problem) -> dict[str, Any]:
    """The inputs of the kernel for segments, int32 (batch, n) each.

    Keys of a segment keep their order, so those that a row sees lie between two of them. If segments do not interleave,
    these two bounds are enough; else the kernel checks every key.
    """
    shape, n_key = problem.query_segments.shape, problem.key_segments.shape[1]
    starts, ends, places, firsts, row_ids = np.zeros((5, *shape), np.int32)
    key_ids, separate = np.zeros(problem.key_segments.shape, np.int32), True
    for b in range(len(starts)):
        length = n_key if problem.key_lengths is None else int(problem.key_lengths[b])
        names, key_ids[b] = np.unique(problem.key_segments[b], return_inverse=True)
        # One extra name, for rows whose segment has no key.
        number = np.searchsorted(names, problem.query_segments[b])
        known = np.append(names, 0)[number] == problem.query_segments[b]
        row_ids[b] = number = np.where(known & (number < len(names)), number, len(names))
        counts = np.bincount(key_ids[b, :length], minlength=len(names) + 1)
        begins = np.cumsum(counts) - counts
        order = np.append(np.argsort(key_ids[b, :length], kind="stable"), 0)  # one extra, for empty ones
        first, last = order[begins], order[begins + np.maximum(counts, 1) - 1]
        separate &= bool((last - first < np.maximum(counts, 1)).all())
        position, count = problem.query_positions[b], counts[number]
        low = np.zeros_like(count) if problem.left is None else np.clip(position - problem.left, 0, count)
        high = count if problem.right is None else np.clip(position + problem.right + 1, 0, count)
        sees = low < high
        starts[b], ends[b] = (
            np.where(sees, order[np.where(sees, begins[number] + at, 0)] + more, 0)
            for at, more in ((low, 0), (high - 1, 1))
        )
        places[b], firsts[b] = np.clip(position, -(2**30), 2**30), first[number]
    spans = {"row_starts": starts, "row_ends": ends, "row_places": places + firsts if separate else places}
    tangled = {"row_segments": row_ids, "key_segments": key_ids, "key_places": problem.key_positions.astype(np.int32)}
    return spans | (dict.fromkeys(tangled) if separate else tangled)


class _DeviceBackend:
    """What resolve() needs of an array library, for tensors on a GPU."""

    def inputs(self, query: Any, key: Any, value: Any) -> tuple[Tensor, Tensor, Tensor]:
        tensors = {"query": query, "key": key, "value": value}
        for name, tensor in tensors.items():
            if not isinstance(tensor, Tensor):
                raise ArgumentTypeError(f"{name}: must be a torch tensor like query, got {type(tensor).__name__}")
            adapter.refuse_shapeless(**{name: tensor})
            if tensor.device != query.device:
                raise ArgumentTypeError(f"{name}: must be on {query.device} like query, got {tensor.device}")
        place = query.device.type
        if torch.is_autocast_enabled(place):
            low = torch.get_autocast_dtype(place)
            tensors = {name: t.to(low) if t.dtype in _FLOATS else t for name, t in tensors.items()}
        dtype = tensors["query"].dtype
        if dtype not in _FLOATS:
            raise ArgumentTypeError(
                f"query: must be float32, float16 or bfloat16 on a GPU, got {adapter.name_of(dtype)}"
            )
        for name, tensor in tensors.items():
            if tensor.dtype != dtype:
                wanted, got = adapter.name_of(dtype), adapter.name_of(tensor.dtype)
                raise ArgumentTypeError(f"{name}: must be {wanted} to match query, got {got}")
        return tensors["query"], tensors["key"], tensors["value"]

    refuse_shapeless = staticmethod(adapter.refuse_shapeless)
    plain = staticmethod(adapter.plain)
    new_seed = staticmethod(adapter.new_seed)

    def broadcast(self, argument: str, array: Any, shape: tuple[int, ...], boolean: bool) -> Tensor:
        if not isinstance(array, Tensor):
            raise ArgumentTypeError(f"{argument}: must be a torch tensor like query, got {type(array).__name__}")
        return adapter.expanded(argument, array, shape, boolean)


_BACKEND = _DeviceBackend()


def _rows(given: Any, problem: Problem) -> Tensor | None:
    if given is None:
        return None
    if not _on_device(given):
        return _uploaded(row_numbers(adapter.plain("rows", given), problem.query.shape[-2]), problem.query)
    if given.dim() != 1 or given.dtype not in (torch.int32, torch.int64):
        raise ArgumentError(f"rows: must be integers with one axis, got {given.dtype} of shape {tuple(given.shape)}")
    return given.to(torch.int64).contiguous()


def _uploaded(array: Any, query: Tensor) -> Any:
    return None if array is None else torch.tensor(array).to(query.device, non_blocking=True)


@cache
def _triton() -> Any:
    """The kernel, loaded at its first use."""
    try:
        from . import gpu_kernel
    except ImportError as error:
        raise KernelMissingError(
            f"triton: must be installed to read tensors on a GPU, got {type(error).__name__}: {error}; "
            "`pip install 'rootdk[gpu]'`"
        ) from error
    return gpu_kernel


def interpreted() -> bool:
    """Whether Triton runs kernels in Python, on tensors of the CPU: TRITON_INTERPRET was set before it was imported."""
    return type(_triton().read_rows).__name__ == "InterpretedFunction"


class _Call:
    """A call as the kernel takes it; it can be launched several times, for other rows and other outputs."""

    def __init__(self, query: Tensor, key: Tensor, options: Options) -> None:
        on_device = {name: value for name in _ON_DEVICE if _on_device(value := getattr(options, name))}
        scale = options.scale if _on_device(options.scale) else None
        _check_device_tensors(query, options, on_device, scale)
        checked = options._replace(scale=1.0 if scale is not None else options.scale, **dict.fromkeys(on_device))
        if options.segments is not None:
            _check_segments(options.segments, on_device)
        problem, self.one_head = resolve(_BACKEND, query, key, key, checked)
        for name in problem._fields:
            if name not in _KNOWN and getattr(problem, name) is not None:
                raise ArgumentError(f"{name}: must be None on a GPU, got {type(getattr(problem, name)).__name__}")
        self.problem = problem
        # As on the CPU: any strides, and a copy where the numbers of a row do not lie side by side.
        self._query, self._key = (
            t if t.shape[-1] == 1 or t.stride(-1) == 1 else t.contiguous() for t in (problem.query, problem.key)
        )
        *self.leading, self.heads, self.n_query, _ = self._query.shape
        self.n_key = self._key.shape[-2]
        self._shared: dict[str, Any] = {"scale": problem.scale, "left": problem.left, "right": problem.right}
        segments = {} if problem.query_segments is None else _segments(problem)
        if problem.query_segments is not None:
            self._shared |= {"left": None, "right": None}
        self._shared["softcap"] = None if problem.softcap is None else min(problem.softcap * _LOG2_E, _LARGEST)
        detached = {name: tensor.detach() for name, tensor in on_device.items()}
        self._per_entry = self._entries(detached, scale, options.query_offset is None)
        self._per_entry |= {name: _uploaded(segments.get(name), self._query) for name in _SEGMENTS}

    def _entries(self, on_device: dict[str, Tensor], scale: Tensor | None, aligned: bool) -> dict[str, Tensor | None]:
        """The arguments with a value for every batch entry, with one axis for all entries."""
        problem, query, leading = self.problem, self._query, self.leading
        batch = math.prod(leading)
        lengths = on_device.get("key_lengths", _uploaded(problem.key_lengths, query))
        offsets, offset = on_device.get("query_offset"), 0
        if offsets is None and aligned and "key_lengths" in on_device:
            offsets = lengths - self.n_query
        if offsets is None:
            offset = int(problem.query_offset[0]) if batch else 0
            if (problem.query_offset != offset).any():
                offsets = _uploaded(problem.query_offset, query)
        sinks = on_device.get("sinks", _uploaded(problem.sinks, query))
        self._shared |= {"sinks": None if sinks is None else sinks.contiguous(), "offset": offset}
        row_scale = _uploaded(problem.row_scale, query)
        if scale is not None:
            row_scale = scale.detach().expand(batch, self.n_query)
        alibi = on_device.get("alibi", _uploaded(problem.alibi, query))
        if "alibi" in on_device:
            alibi = alibi.expand(*leading, self.heads)
        wide = {"row_scale": (batch, self.n_query), "alibi": (batch, self.heads)}
        entries = {"offsets": offsets, "lengths": lengths, "row_scale": row_scale, "alibi": alibi}
        return {
            name: None if t is None else t.reshape(wide.get(name, (batch,))).contiguous() for name, t in entries.items()
        }

    def empty_reading(self, n_rows: int) -> tuple[Tensor, Tensor]:
        """The fields and the keys, (len(FIELDS), ..., heads, rows) and (..., heads, rows)."""
        shape = (*self.leading, self.heads, n_rows)
        block = self._query.new_empty((len(FIELDS), *shape), dtype=torch.float32)
        return block, self._query.new_empty(shape, dtype=torch.int64)

    def launch(
        self,
        n_rows: int,
        outputs: dict[str, Tensor],
        rows: Tensor | None = None,
        first_key: Tensor | None = None,
        spread: bool = False,
    ) -> None:
        """Write the outputs for so many rows: all, those listed, or evenly spread ones."""
        leading, batch = self.leading, math.prod(self.leading)
        per_entry = dict(self._per_entry)
        per_entry["first_key"] = None if first_key is None else first_key.reshape(batch).contiguous()
        # The kernel handles one leading axis. With several, every entry of the others has its own launch, and nothing
        # is copied.
        inner = leading[-1] if leading else 1
        arrays = {"query": self._query, "key": self._key, "mask": self.problem.mask, "bias": self.problem.bias}
        arrays |= {name: outputs.get(name) for name in _OUTPUTS if name != "fields"}
        arrays = {name: None if t is None else (t if leading else t[None]) for name, t in arrays.items()}
        fields = outputs.get("fields")
        if fields is not None and not leading:
            fields = fields[:, None]
        all_rows = batch * self.heads * n_rows
        with torch.cuda.device(self._query.device) if self._query.is_cuda else nullcontext():
            for number, outer in enumerate(product(*map(range, leading[:-1]))):
                part, every_field = slice(number * inner, (number + 1) * inner), (slice(None), *outer)
                _launch(
                    fields=None if fields is None else fields[every_field],
                    **{name: None if t is None else t[outer] for name, t in arrays.items()},
                    **{name: None if t is None else t[part] for name, t in per_entry.items()},
                    **self._shared, rows=rows, n_rows=n_rows, all_rows=all_rows, spread=spread,
                )  # fmt: skip


def _launch(query: Tensor, key: Tensor, mask: Any, bias: Any, n_rows: int, spread: bool, **others: Any) -> None:
    kernel = _triton()
    batch, heads, n_query, d_k = query.shape
    kind = "hip" if torch.version.hip else "cuda"
    sizes = sizes_for(kind, query.element_size(), d_k, mask is not None or bias is not None)
    if others["top_key"] is not None:  # all rows of a head are one block
        sizes = (sizes[-1]._replace(rows=max(16, 1 << (n_rows - 1).bit_length()), keys=32, warps=4),)
    arguments = others | strides("q", query) | strides("k", key) | strides("m", mask) | strides("b", bias) | {
        "query": query, "key": key, "mask": None if mask is None else mask.view(torch.uint8), "bias": bias,
        "heads": heads, "group": heads // key.shape[-3], "n_rows": n_rows, "n_query": n_query,
        "n_key": key.shape[-2], "SPREAD": spread, **constants(d_k, interpreted()),
    }  # fmt: skip
    run, chosen = kernel.read_rows, {}
    if environ.get("ROOTDK_TRITON_AUTOTUNE") == "1" and not interpreted() and len(sizes) > 1:
        run = kernel.autotuned(sizes)
    else:
        first = sizes[0]
        chosen = {"BLOCK_ROWS": first.rows, "BLOCK_KEYS": first.keys}
        chosen |= {"num_warps": first.warps, "num_stages": first.stages}
    run[lambda meta: (batch * heads * -(-n_rows // meta["BLOCK_ROWS"]),)](**arguments, **chosen)


def _digest(block: Tensor, keys: Tensor, digest: Tensor, sinks: bool) -> None:
    """The largest logit and the mean of entropy / ln n of each head into digest, (2, heads)."""
    heads, n_rows = keys.shape[-2:]
    fields = {"largest_logit": block[FIELDS.index("max")], "entropy": block[FIELDS.index("entropy")], "keys": keys}
    with torch.cuda.device(block.device) if block.is_cuda else nullcontext():
        _triton().digest_heads[(heads,)](
            **fields, largest=digest[0], mean=digest[1], entries=math.prod(keys.shape[:-2]), heads=heads,
            n_rows=n_rows, SINKS=sinks, BLOCK=1024,
        )  # fmt: skip


def constants(d_k: int, interpreted: bool) -> dict[str, Any]:
    """The constants for which the kernel is compiled, apart from the sizes of its blocks."""
    width = max(16, 1 << (d_k - 1).bit_length())
    return {"d_k": d_k, "WIDTH": width if width <= WIDEST else PIECE, "WHOLE": width <= WIDEST, "WIDEN": interpreted}


def strides(letter: str, tensor: Tensor | None) -> dict[str, int]:
    """By the kernel's names for them; the numbers of a query or a key are contiguous."""
    axes = ("batch", "head", "row", "key") if letter in "mb" else ("batch", "head", "row")
    steps = (0,) * len(axes) if tensor is None else tensor.stride()[: len(axes)]
    return {f"{letter}_{axis}": step for axis, step in zip(axes, steps, strict=True)}
