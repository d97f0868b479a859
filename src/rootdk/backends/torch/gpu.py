"""Tensors on a GPU: a Reading by the Triton kernel, and measure() as torch's own attention beside it.

Nothing waits for the device. What is said in numbers is checked by resolve(), as for every other call; key_lengths,
query_offset, sinks, alibi, rows and a scale that are tensors on the device are taken as they are, because to look at
them would be to wait: no memory outside of the arrays is read for them, whatever they hold. A launch goes to the
current stream and allocates nothing but the Reading, so a CUDA graph can capture it.
"""

import math
from contextlib import nullcontext
from functools import cache
from itertools import product
from os import environ
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from ...checks import row_numbers
from ...errors import ArgumentError, ArgumentTypeError, KernelMissingError
from ...options import Options, Problem, resolve
from ...reading import FIELDS, Reading, reading_of
from .. import torch as adapter

_FLOATS = (torch.float32, torch.float16, torch.bfloat16)
# What of a Problem the kernel knows. Anything else that is not None is refused, not left out.
_KNOWN = frozenset({
    "query", "key", "value", "scale", "row_scale", "softcap", "left", "right", "query_offset", "key_lengths", "mask",
    "bias", "sinks", "alibi", "dropout", "seed",
})  # fmt: skip
# Options that may be tensors on the device.
_ON_DEVICE = ("key_lengths", "query_offset", "sinks", "alibi")
_LOG2_E, _LARGEST = 1.4426950408889634, 3.4e38
# Heads wider than this are multiplied in pieces.
WIDEST, PIECE = 128, 32


class Sizes(NamedTuple):
    """Query rows and keys of one block, and how the compiler is to spread them."""

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


def read(query: Tensor, key: Tensor, options: Options, rows: Any) -> Reading:
    """Of all query rows or of those listed. A list is checked; a tensor on the device is taken as it is."""
    given = {name: value for name in _ON_DEVICE if _on_device(value := getattr(options, name))}
    scale = options.scale if _on_device(options.scale) else None
    _check_device_tensors(query, options, given, scale)
    checked = options._replace(scale=1.0 if scale is not None else options.scale, **dict.fromkeys(given))
    if options.segments is not None:
        raise ArgumentError("segments: must be None on a GPU, where rootdk has none yet, got segments")
    problem, one_head = resolve(_BACKEND, query, key, key, checked)
    for name in problem._fields:
        if name not in _KNOWN and getattr(problem, name) is not None:
            raise ArgumentError(f"{name}: must be None on a GPU, got {type(getattr(problem, name)).__name__}")
    block, keys = _launched(problem, given, scale, _rows(rows, problem), options.query_offset is None)
    if one_head:
        block, keys = block[:, 0], keys[0]
    return reading_of(block, keys, options.sinks is not None)


def measure(query: Tensor, key: Tensor, value: Tensor, options: Options) -> tuple[Tensor, Reading]:
    """torch's fused attention for the output, differentiable, and read() for the Reading."""
    for name in ("window", "key_lengths", "softcap", "sinks", "alibi", "segments", "seed"):
        if getattr(options, name) is not None:
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


def _check_device_tensors(query: Tensor, options: Options, given: dict[str, Tensor], scale: Tensor | None) -> None:
    leading, heads = tuple(query.shape)[:-3] or (1,), 1 if query.dim() < 3 else query.shape[-3]
    for name, tensor in given.items():
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
    if "key_lengths" in given and varies:
        raise ArgumentError("key_lengths: must be on the CPU for a scale that varies with them, got a tensor on a GPU")


class _DeviceBackend:
    """What resolve() asks of an array library, for tensors on a GPU."""

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


def _launched(
    problem: Problem, given: dict[str, Tensor], scale: Tensor | None, rows: Tensor | None, aligned: bool
) -> tuple[Tensor, Tensor]:
    """The fields and the keys, (len(FIELDS), ..., heads, rows) and (..., heads, rows)."""
    # As on the CPU: any strides, and a copy where the numbers of a row do not lie side by side.
    query, key = (t if t.shape[-1] == 1 or t.stride(-1) == 1 else t.contiguous() for t in (problem.query, problem.key))
    *leading, heads, n_query, _ = query.shape
    batch, n_rows = math.prod(leading), n_query if rows is None else len(rows)
    block = query.new_empty((len(FIELDS), *leading, heads, n_rows), dtype=torch.float32)
    keys = query.new_empty((*leading, heads, n_rows), dtype=torch.int64)
    if keys.numel() == 0:
        return block, keys
    given = {name: tensor.detach() for name, tensor in given.items()}
    lengths = given.get("key_lengths", _uploaded(problem.key_lengths, query))
    offsets, offset = given.get("query_offset"), 0
    if offsets is None and aligned and "key_lengths" in given:
        offsets = lengths - n_query
    if offsets is None:
        offset = int(problem.query_offset[0])
        if (problem.query_offset != offset).any():
            offsets = _uploaded(problem.query_offset, query)
    sinks = given.get("sinks", _uploaded(problem.sinks, query))
    row_scale = _uploaded(problem.row_scale, query)
    if scale is not None:
        row_scale = scale.detach().expand(batch, n_query)
    sinks = None if sinks is None else sinks.contiguous()
    alibi = given.get("alibi", _uploaded(problem.alibi, query))
    if "alibi" in given:
        alibi = alibi.expand(*leading, heads)
    shared = {"sinks": sinks, "rows": rows, "offset": offset, "scale": problem.scale}
    shared |= {"softcap": None if problem.softcap is None else min(problem.softcap * _LOG2_E, _LARGEST)}
    shared |= {"left": problem.left, "right": problem.right}
    per_entry = {"offsets": offsets, "lengths": lengths, "row_scale": row_scale, "alibi": alibi}
    wide = {"row_scale": (batch, n_query), "alibi": (batch, heads)}
    per_entry = {
        name: None if t is None else t.reshape(wide.get(name, (batch,))).contiguous() for name, t in per_entry.items()
    }
    # The kernel walks one leading axis. Of several, all but the last are a launch each: no copy of anything is made.
    inner = leading[-1] if leading else 1
    arrays = {"query": query, "key": key, "mask": problem.mask, "bias": problem.bias, "keys": keys}
    arrays = {name: None if t is None else (t if leading else t[None]) for name, t in arrays.items()}
    fields = block if leading else block[:, None]
    with torch.cuda.device(query.device) if query.is_cuda else nullcontext():
        for number, outer in enumerate(product(*map(range, leading[:-1]))):
            part = slice(number * inner, (number + 1) * inner)
            _launch(
                fields=fields[(slice(None), *outer)], all_rows=keys.numel(),
                **{name: None if t is None else t[outer] for name, t in arrays.items()},
                **{name: None if t is None else t[part] for name, t in per_entry.items()},
                **shared,
            )  # fmt: skip
    return block, keys


def _launch(query: Tensor, key: Tensor, mask: Any, bias: Any, **others: Any) -> None:
    kernel = _triton()
    batch, heads, n_query, d_k = query.shape
    n_rows = others["keys"].shape[-1]
    kind = "hip" if torch.version.hip else "cuda"
    sizes = sizes_for(kind, query.element_size(), d_k, mask is not None or bias is not None)
    arguments = others | strides("q", query) | strides("k", key) | strides("m", mask) | strides("b", bias) | {
        "query": query, "key": key, "mask": None if mask is None else mask.view(torch.uint8), "bias": bias,
        "heads": heads, "group": heads // key.shape[-3], "n_rows": n_rows, "n_query": n_query,
        "n_key": key.shape[-2], **constants(d_k, interpreted()),
    }  # fmt: skip
    run, chosen = kernel.read_rows, {}
    if environ.get("ROOTDK_TRITON_AUTOTUNE") == "1" and not interpreted():
        run = kernel.autotuned(sizes)
    else:
        first = sizes[0]
        chosen = {"BLOCK_ROWS": first.rows, "BLOCK_KEYS": first.keys}
        chosen |= {"num_warps": first.warps, "num_stages": first.stages}
    run[lambda meta: (batch * heads * -(-n_rows // meta["BLOCK_ROWS"]),)](**arguments, **chosen)


def constants(d_k: int, interpreted: bool) -> dict[str, Any]:
    """What the kernel is compiled for, beside the sizes of its blocks."""
    width = max(16, 1 << (d_k - 1).bit_length())
    return {"d_k": d_k, "WIDTH": width if width <= WIDEST else PIECE, "WHOLE": width <= WIDEST, "WIDEN": interpreted}


def strides(letter: str, tensor: Tensor | None) -> dict[str, int]:
    """As the kernel names them; the numbers of a query or a key lie side by side."""
    axes = ("batch", "head", "row", "key") if letter in "mb" else ("batch", "head", "row")
    steps = (0,) * len(axes) if tensor is None else tensor.stride()[: len(axes)]
    return {f"{letter}_{axis}": step for axis, step in zip(axes, steps, strict=True)}
