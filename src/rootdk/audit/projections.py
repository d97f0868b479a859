"""Where a module keeps the rows of W_q and W_k that make one head, and how to scale them in place.

By the names that the common libraries use. Split projections are two linear layers; fused ones hold q, k and v in one,
either block by block, q of all heads first (GPT-2, Phi-3, MPT, nn.MultiheadAttention), or key head by key head: the q
of its group, then its k, then its v (GPT-NeoX, BLOOM, Falcon).
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rootdk.errors import ArgumentError

from .families import NORMS, SPLIT, row_starts
from .siblings import decayed_heads, unevenness

BLOCKS = ("c_attn", "qkv", "qkv_proj", "Wqkv", "in_proj", "to_qkv", "W_pack")
BY_KEY_HEAD = ("query_key_value",)
# Modules of transformers that use one of these names for another order.
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
            q, k = map(_gain, norms)
            return q, k
    return None


def _gain(norm: Any) -> Gain:
    kind = type(norm).__name__
    return Gain(norm.weight, getattr(norm, "bias", None), float(kind.startswith("Gemma") and "RMSNorm" in kind))


def gain_bound_of(model: Any, reading: Any) -> float:
    """scale d max|g_q| max|g_k|: no logit of normed q and k is larger. NaN where the layer has no QK-norm.

    d is that of a head. If the norm goes over all heads together, one head can hold more than its share of the length;
    the number then assumes an even spread, and is no bound.
    """
    module = module_at(model, reading.name)
    gains = None if module is None else gains_of(module)
    if gains is None or math.isnan(reading.scale):
        return math.nan
    q, k = (float((gain.weight.detach() + gain.offset).abs().max()) for gain in gains)
    return float(abs(reading.scale) * reading.d_k * q * k)


def facts_of_weights(model: Any, reading: Any) -> dict[str, Any]:
    """What `siblings` compares, from the weights of one layer; unknown or unreadable numbers are left out."""
    module = module_at(model, reading.name)
    if module is None or "#" in reading.name:
        return {}
    facts: dict[str, Any] = {}
    if (gains := gains_of(module)) is not None:
        q, k = (root_mean_square(gain.weight, gain.offset) for gain in gains)
        facts = {"product_gain": math.sqrt(q * k)}
    decayed: list[int] = []
    projections = _multi_head(module) if _is_multi_head(module) else None
    d_k = reading.d_k or _head_size(module)
    projections = projections or _split(module, reading.heads) or _fused(module, reading.heads, d_k)
    if projections is not None and projections.group and type(module).__name__ not in OTHER_ORDER:
        facts["unevenness"] = max(_unevenness(projections.query), _unevenness(projections.key))
        # With QK-norm the gain takes the place of the size of W.
        sides = (projections.query, projections.key)
        squares = [_squares(part) for part in sides]
        outputs = [sum(places.stop - places.start for places in part.places) for part in sides]
        sizes = [math.sqrt(sum(of) / max(by, 1)) for of, by in zip(squares, outputs, strict=True)]
        facts["weight_size"] = abs(reading.scale) * (facts["product_gain"] ** 2 if gains else math.prod(sizes))
        of_keys = [square for square in squares[1] for _ in range(len(squares[0]) // max(len(squares[1]), 1))]
        decayed = decayed_heads(squares[0], of_keys) if len(of_keys) == len(squares[0]) else []
    readable = {name: value for name, value in facts.items() if not math.isnan(value)}
    return readable | ({"decayed_heads": decayed} if decayed else {})


def _unevenness(part: "Part") -> float:
    weight = part.parameters[0].detach()
    if weight.dim() != 2 or not _plain(weight) or not part.places:
        return math.nan
    squares = (weight if part.axis == 0 else weight.T).double().square()
    rows = squares[[row for places in part.places for row in range(places.start, places.stop)]]
    return unevenness(rows.sum(1).cpu().numpy(), rows.sum(0).cpu().numpy())


def _squares(part: "Part") -> list[float]:
    """Per head, the squared size of a projection's output for white input of size 1: of its rows, with bias."""
    squares = [0.0] * len(part.places)
    for parameter in part.parameters:
        weights = parameter.detach()
        if not _plain(weights):
            return [math.nan] * len(part.places)
        weights = weights if weights.dim() == 1 or part.axis == 0 else weights.T
        for head, places in enumerate(part.places):
            squares[head] += float(weights[places].double().square().sum())
    return squares


def _plain(tensor: Any) -> bool:
    """Whether its numbers can be read: not sharded, not on the meta device, not packed integers."""
    return not hasattr(tensor, "full_tensor") and not tensor.is_meta and tensor.is_floating_point()


def root_mean_square(gain: Any, offset: float) -> float:
    """The root mean square of the gain of a norm; NaN if its numbers cannot be read."""
    return float((gain.detach().double() + offset).square().mean().sqrt()) if _plain(gain) else math.nan


def module_at(model: Any, name: str) -> Any:
    """The module of a layer, by the path that a reading has; None where the model has none."""
    path = name.partition("#")[0]
    modules = modules_of(model)
    return modules.get(path, modules[""] if path == type(modules[""]).__name__ else None)


def modules_of(model: Any) -> dict[str, Any]:
    """{path: module}, by the paths that they had before torch.compile."""
    modules = {}
    for name, module in model.named_modules():
        parts = [part for part in name.split(".") if part != "_orig_mod"]
        modules[".".join(parts)] = module  # the module inside comes after its compiled wrapper, and counts
    return modules


@dataclass(frozen=True, slots=True)
class Part:
    """The parameters of one side, q or k, whose axis `axis` runs over places, and the places of every head.

    shared   one set of places for all heads, as the gain of a norm over the components of a head is
    offset   the model multiplies by the parameter plus this
    """

    parameters: tuple[Any, ...]
    axis: int
    places: list[slice]
    shared: bool = False
    offset: float = 0.0

    def multiply_(self, factors: NDArray[Any]) -> None:
        """Scale every head by its factor; heads that share places, by the smallest factor."""
        import torch

        of_places = [factors.min()] if self.shared else factors
        for parameter in self.parameters:
            weight = parameter.data
            axis = self.axis if weight.dim() > 1 else 0
            # Factors for the whole axis, 1 at other places: this also works where every process holds some of the rows.
            along = torch.ones(weight.shape[axis], dtype=torch.promote_types(weight.dtype, torch.float32))
            for places, factor in zip(self.places, of_places, strict=True):
                along[places] = float(factor)
            along = _spread_like(along.to(weight.device), weight, axis)
            weight.mul_(along)
            if self.offset:
                weight.add_(self.offset * (along - 1.0))


def _spread_like(along: Any, whole: Any, axis: int) -> Any:
    """One number per place of an axis, in a form that multiplies the tensor, and sharded like the tensor."""
    along = along.reshape([-1 if place == axis else 1 for place in range(whole.dim())])
    if not hasattr(whole, "device_mesh"):
        return along
    from torch.distributed.tensor import Replicate, distribute_tensor

    placements = [placement if placement.is_shard(axis) else Replicate() for placement in whole.placements]
    return distribute_tensor(along, whole.device_mesh, placements, src_data_rank=None)


@dataclass(frozen=True, slots=True)
class Projections:
    """Both sides; `group` query heads share a key head, 0 where the rows do not divide into heads.

    rotated   of latent attention (MLA), the queries' rows whose keys all heads share: those keys cannot shrink for one
              head, so these rows take the whole factor and `query`, the other rows, its root
    """

    query: Part
    key: Part
    group: int
    rotated: Part | None = None

    def clip_(self, gamma: NDArray[Any]) -> NDArray[Any]:
        """Multiply the products of every head by its gamma; returns those that were used."""
        if self.query.shared or self.key.shared:
            gamma = np.full_like(gamma, gamma.min())
        of_key = np.sqrt(gamma).reshape(-1, self.group).max(axis=1)
        self.query.multiply_(gamma / np.repeat(of_key, self.group))
        self.key.multiply_(of_key)
        if self.rotated is not None:
            self.rotated.multiply_(gamma)
        return gamma


def projections_of(module: Any, heads: int, d_k: int, layer: str) -> Projections:
    """The projections of a module with so many query heads of so many components; an error if none are found.

    d_k   0 where it is not known: then what the module itself gives, or as many key heads as heads
    """
    d_k = d_k or _head_size(module)
    if (gains := gains_of(module)) is not None:
        return _of_gains(*gains, module, heads, d_k)
    if _is_multi_head(module):
        if hasattr(module.in_proj_weight, "device_mesh"):
            raise ArgumentError(f"model: {layer} must be whole, got nn.MultiheadAttention with sharded weights")
        return _multi_head(module)
    if hasattr(module, "kv_b_proj"):
        return _latent(module, heads, layer)
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
    """The parameters to be clipped must be those that the model multiplies with."""
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
        layers: list[Any] = [getattr(module, name, None) for name in names]
        q, k = layers
        if getattr(q, "weight", None) is not None and getattr(k, "weight", None) is not None:
            axis = _axis(q)
            q_rows, k_rows = q.weight.shape[axis], k.weight.shape[axis]
            size = q_rows // heads
            fits = q_rows == size * heads and k_rows >= size and k_rows % size == 0
            kv_heads = k_rows // size if fits else 0
            query = Part(_parameters(q), axis, _rows(0, size, heads))
            key = Part(_parameters(k), axis, _rows(0, size, kv_heads))
            return Projections(query, key, heads // kv_heads if fits else 0)
    return None


def _fused(module: Any, heads: int, d_k: int) -> Projections | None:
    for name in (*BLOCKS, *BY_KEY_HEAD):
        layer = getattr(module, name, None)
        if getattr(layer, "weight", None) is None:
            continue
        axis, parameters, q_layer = _axis(layer), _parameters(layer), getattr(module, "q_attn", None)
        rows = parameters[0].shape[axis]
        if name == "c_attn" and q_layer is not None:  # GPT-2's cross attention: c_attn holds keys and values alone
            places = _rows(0, rows // (2 * heads), heads)
            return Projections(Part(_parameters(q_layer), axis, places), Part(parameters, axis, places), 1)
        size = max(d_k or rows // (3 * heads), 1)
        kv_heads = max((rows // size - heads) // 2, 1)
        if rows != (heads + 2 * kv_heads) * size:
            return Projections(Part(parameters, axis, []), Part(parameters, axis, []), 0)
        starts = row_starts("grouped" if name in BY_KEY_HEAD else "blocks", heads, kv_heads, size)
        query, key = ([slice(start, start + size) for start in of_side] for of_side in starts)
        return Projections(Part(parameters, axis, query), Part(parameters, axis, key), heads // kv_heads)
    return None


def _head_size(module: Any) -> int:
    sizes = [getattr(module, name, None) for name in ("head_dim", "head_size", "attention_head_size")]
    return next((size for size in sizes if isinstance(size, int)), 0)


def _is_multi_head(module: Any) -> bool:
    return hasattr(module, "in_proj_bias") and hasattr(module, "bias_k")


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


def _latent(module: Any, heads: int, layer: str) -> Projections:
    """Latent attention as DeepSeek and Kimi have it: of each head plain rows, then rotated ones; keys, then values."""
    above = getattr(module, "q_b_proj", None) or getattr(module, "q_proj", None)
    plain, rotated = getattr(module, "qk_nope_head_dim", 0), getattr(module, "qk_rope_head_dim", 0)
    of_key = module.kv_b_proj
    q_rows, k_rows = (0 if side is None else len(side.weight) for side in (above, of_key))
    stride = k_rows // heads
    if not plain or q_rows != heads * (plain + rotated) or k_rows != heads * stride or stride < plain:
        raise ArgumentError(
            f"model: {layer} must have {heads} heads of qk_nope_head_dim + qk_rope_head_dim rows in q_b_proj and of "
            f"qk_nope_head_dim + v_head_dim in kv_b_proj, got {q_rows} and {k_rows} rows"
        )
    d_k = plain + rotated
    query = Part(_parameters(above), 0, _rows(0, plain, heads, d_k))
    key = Part(_parameters(of_key), 0, _rows(0, plain, heads, stride))
    return Projections(query, key, 1, Part(_parameters(above), 0, _rows(plain, rotated, heads, d_k)))


def _of_gains(q: Gain, k: Gain, module: Any, heads: int, d_k: int) -> Projections:
    """After a norm the size of W_q has no effect: only the gain counts."""
    split = _split(module, heads) or _fused(module, heads, d_k)
    kv_heads = heads // split.group if split and split.group else heads
    parts = []
    for gain, count in ((q, heads), (k, kv_heads)):
        size = gain.weight.numel()
        shared = count == 1 or (size == d_k if d_k else size % count != 0)
        places = [slice(0, size)] if shared else _rows(0, size // count, count)
        tensors = tuple(t.data.view(-1) for t in (gain.weight, gain.bias) if t is not None)
        parts.append(Part(tensors, 0, places, shared, gain.offset))
    return Projections(parts[0], parts[1], heads // kv_heads)


def _parameters(layer: Any) -> tuple[Any, ...]:
    return (layer.weight,) if getattr(layer, "bias", None) is None else (layer.weight, layer.bias)


def _axis(layer: Any) -> int:
    # transformers' Conv1D keeps (in, out), everybody else (out, in).
    return 1 if type(layer).__name__ == "Conv1D" else 0
