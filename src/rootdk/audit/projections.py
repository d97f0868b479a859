"""Where a module keeps the rows of W_q and W_k that make one head, and how to scale them in place.

By the names that the common libraries use. Split projections are two linear layers; fused ones hold q, k and v in one,
either block by block, q of all heads first (GPT-2, Phi-3, MPT, nn.MultiheadAttention), or key head by key head: the q
of its group, then its k, then its v (GPT-NeoX, BLOOM, Falcon).
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from rootdk.errors import ArgumentError

from .families import NORMS, SPLIT

BLOCKS = ("c_attn", "qkv", "qkv_proj", "Wqkv", "in_proj", "to_qkv", "W_pack")
BY_KEY_HEAD = ("query_key_value",)
# Modules of transformers that use one of these names for an order of their own.
OTHER_ORDER = ("CodeGenAttention", "GPTBigCodeAttention")


@dataclass(frozen=True, slots=True)
class Gain:
    """The weight of one norm; `offset` is 1 where the model multiplies by 1 + weight, as Gemma does."""

    weight: Any
    bias: Any
    offset: float


def gains_of(module: Any) -> tuple[Gain, Gain] | None:
    """The gains of q and of k, or None where the module has no pair of norms with weights."""
    for names in NORMS:
        norms = [getattr(module, name, None) for name in names]
        if all(getattr(norm, "weight", None) is not None for norm in norms):
            q, k = (Gain(norm.weight, getattr(norm, "bias", None), _offset(norm)) for norm in norms)  # type: ignore[union-attr]
            return q, k
    return None


def gain_bound_of(model: Any, reading: Any) -> float:
    """scale d max|g_q| max|g_k|: no logit of normed q and k is larger. NaN where the layer has no QK-norm.

    d is that of a head. Where the norm goes over all heads together, one head can hold more than its share of the
    length; the number is then what an even spread allows, and not a bound.
    """
    module = module_at(model, reading.name)
    gains = None if module is None else gains_of(module)
    if gains is None or math.isnan(reading.scale):
        return math.nan
    q, k = (float((gain.weight.detach() + gain.offset).abs().max()) for gain in gains)
    return float(abs(reading.scale) * reading.d_k * q * k)


def module_at(model: Any, name: str) -> Any:
    """The module of a layer, by the path that a reading has; None where the model has none."""
    path = name.partition("#")[0]
    known = dict(model.named_modules())
    return known.get(path, model if path == type(model).__name__ else None)


def _offset(norm: Any) -> float:
    kind = type(norm).__name__
    return 1.0 if kind.startswith("Gemma") and "RMSNorm" in kind else 0.0


@dataclass(frozen=True, slots=True)
class Part:
    """What holds one side, q or k: parameters whose axis `axis` runs over places, and the places of every head.

    shared   one set of places for all heads, as the gain of a norm over the components of a head is
    offset   the model multiplies by the parameter plus this
    """

    parameters: tuple[Any, ...]
    axis: int
    places: list[slice]
    shared: bool = False
    offset: float = 0.0

    def multiply_(self, factors: NDArray[Any]) -> None:
        """Scale every head by its factor; where they share, by the smallest."""
        chosen = [factors.min()] if self.shared else factors
        for parameter in self.parameters:
            whole = parameter.data
            axis = self.axis if whole.dim() > 1 else 0
            for places, factor in zip(self.places, chosen, strict=True):
                part = whole.narrow(axis, places.start, places.stop - places.start)
                part.copy_((part + self.offset) * float(factor) - self.offset)


@dataclass(frozen=True, slots=True)
class Projections:
    """Both sides; `group` query heads share a key head."""

    query: Part
    key: Part
    group: int


def projections_of(module: Any, heads: int, d_k: int, layer: str) -> Projections:
    """Those of a module with so many query heads of so many components; an error names the layer where none are found.

    d_k   0 where it is not known: then what the module says of itself, or as many key heads as heads
    """
    d_k = d_k or _head_size(module)
    gains = gains_of(module)
    if gains is not None:
        return _of_gains(*gains, module, heads, d_k)
    if hasattr(module, "in_proj_bias") and hasattr(module, "bias_k"):
        return _multi_head(module)
    if type(module).__name__ in OTHER_ORDER:
        raise ArgumentError(f"model: {layer} must keep q, k and v in a known order, got {type(module).__name__}")
    projections = _split(module, heads) or _fused(module, heads, d_k)
    adapted = [name for name, child in module.named_children() if hasattr(child, "base_layer")]
    if adapted:
        raise ArgumentError(
            f"model: {layer} must hold its weights alone, got an adapter on {adapted[0]}: merge it first"
        )
    if projections is None:
        known = ", ".join("/".join(pair) for pair in SPLIT) + ", " + ", ".join((*BLOCKS, *BY_KEY_HEAD))
        raise ArgumentError(
            f"model: {layer} must hold its projections by a known name ({known}), got {type(module).__name__} with "
            f"{', '.join(name for name, _ in module.named_children()) or 'no submodules'}"
        )
    _check(projections, heads, layer)
    return projections


def _check(projections: Projections, heads: int, layer: str) -> None:
    """What would be clipped must be what the model multiplies with."""
    sizes = {places.stop - places.start for places in (*projections.query.places, *projections.key.places)}
    key_heads = len(projections.key.places)
    if len(sizes) != 1 or min(sizes) < 1 or projections.group < 1 or key_heads * projections.group != heads:
        shapes = " and ".join(str(tuple(part.parameters[0].shape)) for part in (projections.query, projections.key))
        raise ArgumentError(f"model: {layer} must have projections of {heads} heads of one size, got {shapes}")
    for part in (projections.query, projections.key):
        if not part.parameters[0].is_floating_point():
            raise ArgumentError(f"model: {layer} must have floating point weights, got {part.parameters[0].dtype}")


def _rows(start: int, size: int, count: int, stride: int | None = None) -> list[slice]:
    step = size if stride is None else stride
    return [slice(start + step * i, start + step * i + size) for i in range(count)]


def _split(module: Any, heads: int) -> Projections | None:
    for names in SPLIT:
        q, k = (getattr(module, name, None) for name in names)
        if getattr(q, "weight", None) is not None and getattr(k, "weight", None) is not None:
            return _two(tuple(_parameters(q)), tuple(_parameters(k)), _axis(q), heads)
    return None


def _two(q: tuple[Any, ...], k: tuple[Any, ...], axis: int, heads: int) -> Projections:
    q_rows, k_rows = q[0].shape[axis], k[0].shape[axis]
    size = q_rows // heads
    fits = q_rows == size * heads and k_rows >= size and k_rows % size == 0
    kv_heads = k_rows // size if fits else 0
    query, key = Part(q, axis, _rows(0, size, heads)), Part(k, axis, _rows(0, size, kv_heads))
    return Projections(query, key, heads // kv_heads if fits else 0)


def _fused(module: Any, heads: int, d_k: int) -> Projections | None:
    for name in (*BLOCKS, *BY_KEY_HEAD):
        layer = getattr(module, name, None)
        if getattr(layer, "weight", None) is None:
            continue
        axis, parameters = _axis(layer), tuple(_parameters(layer))
        size = d_k or parameters[0].shape[axis] // (3 * heads)
        kv_heads = max((parameters[0].shape[axis] // size - heads) // 2, 1)
        group = heads // kv_heads
        if name in BY_KEY_HEAD:
            stride = (group + 2) * size
            query = [s for g in range(kv_heads) for s in _rows(g * stride, size, group)]
            key = _rows(group * size, size, kv_heads, stride)
        else:
            query, key = _rows(0, size, heads), _rows(heads * size, size, kv_heads)
        return Projections(Part(parameters, axis, query), Part(parameters, axis, key), group)
    return None


def _head_size(module: Any) -> int:
    sizes = [getattr(module, name, None) for name in ("head_dim", "head_size", "attention_head_size")]
    return next((size for size in sizes if isinstance(size, int)), 0)


def _multi_head(module: Any) -> Projections:
    """nn.MultiheadAttention: weights together, or apart if kdim differs; biases together; maybe one more key."""
    embed, heads = module.embed_dim, module.num_heads
    q_rows, k_rows = slice(0, embed), slice(embed, 2 * embed)
    together = module.in_proj_weight
    q = [module.q_proj_weight.data if together is None else together.data[q_rows]]
    k = [module.k_proj_weight.data if together is None else together.data[k_rows]]
    if module.in_proj_bias is not None:
        q.append(module.in_proj_bias.data[q_rows])
        k.append(module.in_proj_bias.data[k_rows])
    if module.bias_k is not None:
        k.append(module.bias_k.data.view(-1))
    places = _rows(0, embed // heads, heads)
    return Projections(Part(tuple(q), 0, places), Part(tuple(k), 0, places), 1)


def _of_gains(q: Gain, k: Gain, module: Any, heads: int, d_k: int) -> Projections:
    """After a norm the size of W_q is without effect: what counts is the gain."""
    split = _split(module, heads) or _fused(module, heads, d_k)
    kv_heads = heads // split.group if split else heads
    parts = []
    for gain, count in ((q, heads), (k, kv_heads)):
        size = gain.weight.numel()
        shared = count == 1 or (size == d_k if d_k else size % count != 0)
        places = [slice(0, size)] if shared else _rows(0, size // count, count)
        tensors = tuple(t.data.view(-1) for t in (gain.weight, gain.bias) if t is not None)
        parts.append(Part(tensors, 0, places, shared, gain.offset))
    return Projections(parts[0], parts[1], heads // kv_heads)


def _parameters(layer: Any) -> Iterator[Any]:
    yield layer.weight
    if getattr(layer, "bias", None) is not None:
        yield layer.bias


def _axis(layer: Any) -> int:
    # transformers' Conv1D keeps (in, out), everybody else (out, in).
    return 1 if type(layer).__name__ == "Conv1D" else 0
