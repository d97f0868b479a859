"""Attention in an ONNX graph: from every softmax back to the product, and from there to the two projections.

Exporters rename weights, fold them and share equal ones, so names do not help; the operations do. On the way back come
the scale (a factor before the product, after it, or its root on both sides), masks, rotary embeddings, the axes of
heads, biases, and before the projection the norm. If a path holds anything else, it is not understood, and its softmax
is listed.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rootdk.files import shown_text

from .onnx import MOST_SMALL, Graph, Node
from .packed import Affine
from .stored import NUMPY, Floats, NotReadError, Plain, Stored, Unpacked

# Operations that move numbers without changing them, apart from rounding activations to 8 bits.
_MOVES = frozenset(
    {"Transpose", "Reshape", "Unsqueeze", "Squeeze", "Expand", "Cast", "Identity", "Slice", "Neg", "Flatten", "Split"}
    | {"Gather", "QuantizeLinear", "DequantizeLinear"}
)
_FUSED = frozenset({"Attention", "MultiHeadAttention", "GroupQueryAttention"})
_NORMS = frozenset({"LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization"})
_MOST_STEPS = 200_000  # of all searches in one graph, over all branches
_MOST_GRAPHS = 64


@dataclass(frozen=True, slots=True)
class _Side:
    """Queries or keys: the projection that makes them, and what was found on the way.

    is_part   whether it is one part of a projection of several
    stacked   how many heads each part has, after a reshape that gives queries, keys and values an axis of their own;
              negative after a transpose that brings this axis to the front: an entry taken from it is then one of the
              three
    """

    weight: Stored
    given: str
    bias: Stored | None = None
    factor: float = 1.0
    width: int | None = None
    rotated: bool = False
    is_part: bool = False
    reshaped: bool = False
    stacked: int = 0


def attention_of(graph: Graph) -> tuple[dict[str, Stored], dict[str, Any]]:
    """Projections under names that `families` recognises, and the facts that a config would hold."""
    tensors: dict[str, Stored] = {}
    facts: list[dict[str, Any]] = []
    known: set[tuple[Stored, Stored]] = set()
    for trace, softmax in _softmaxes(graph, {}, {}):
        sides = trace.sides(softmax)
        if sides is None:
            if not trace.chooses(softmax):
                tensors[f"attention.{softmax.name}.{len(tensors)}"] = _NOTHING
            continue
        query, key, factor = sides
        if (query.weight, key.weight) in known:
            continue  # the same block in another branch, or again
        known.add((query.weight, key.weight))
        heads = _heads(query, key)
        if heads is None:
            tensors[f"attention.{softmax.name}.{len(tensors)}"] = _NOTHING
            continue
        place = _path(softmax, len(facts))
        for name, side in (("q_proj", query), ("k_proj", key)):
            tensors[f"{place}.{name}.weight"] = side.weight
            if side.bias is not None:
                tensors[f"{place}.{name}.bias"] = side.bias
        for name, held in zip(("weight", "bias"), trace.norm(query.given), strict=True):
            if held is not None:
                tensors[f"{place}.input_layernorm.{name}"] = held
        facts.append({**heads, "attention_multiplier": factor, "rotated": query.rotated})
    if not facts and not tensors:
        raise NotReadError("it has no attention: no softmax in its graph is over products of queries and keys")
    if not facts:
        raise NotReadError("no softmax in its graph has queries and keys that are understood")
    if any(of_layer != facts[0] for of_layer in facts):
        raise NotReadError("its layers have different heads or scales")
    return tensors, {"model_type": "onnx", **facts[0], "stored_gains": True}


def _softmaxes(graph: Graph, makers: Mapping[str, Node], held: Mapping[str, Plain]) -> Iterator[tuple["_Trace", Node]]:
    """Every softmax of a graph and of the graphs inside it, which can use values of the graphs around them."""
    makers = {**makers, **{output: node for node in graph.nodes for output in node.outputs}}
    held = {**held, **graph.initializers}
    trace = _Trace(makers, held)
    for node in graph.nodes:
        if node.kind == "Softmax" or node.kind in _FUSED:
            yield trace, node
    for inner in graph.inner[:_MOST_GRAPHS]:
        yield from _softmaxes(inner, makers, held)


def _path(softmax: Node, number: int) -> str:
    """The path of a module if the softmax has it in its name, as the older exporter of torch writes; else a number."""
    parts = softmax.name.strip("/").split("/")[:-1]
    path = ".".join(parts)
    if re.search(r"(^|\.)\d+(\.|$)", path) and len(path) < 200:
        return shown_text(path)
    return f"layers.{number}.attention"


def _heads(query: _Side, key: _Side) -> dict[str, int] | None:
    """How many heads there are, and how wide; None where the graph does not say, or they do not fit."""
    d_k = query.width or key.width
    counts = [side.weight.shape[side.weight.inputs_first] for side in (query, key)]
    if d_k is None or any(count % d_k or not count for count in counts):
        return None
    query_heads, key_heads = (count // d_k for count in counts)
    if query_heads % key_heads:
        return None
    return {"num_attention_heads": query_heads, "num_key_value_heads": key_heads, "head_dim": d_k}


class _Trace:
    """Walks back through one graph."""

    def __init__(self, makers: Mapping[str, Node], held: Mapping[str, Plain]) -> None:
        self._makers, self._held, self._steps = makers, held, 0

    def sides(self, softmax: Node) -> tuple[_Side, _Side, float] | None:
        """Queries, keys and the factor of their product."""
        factor, product = 1.0, softmax
        if softmax.kind == "Softmax":
            traced = self._product(softmax.inputs[0] if softmax.inputs else "", 64)
            if traced is None:
                return None
            product, factor = traced
        if len(product.inputs) < 2:
            return None
        query, key = (self._projection(value, 64) for value in product.inputs[:2])
        if query is None or key is None:
            return None
        if softmax.kind in _FUSED:
            scale = softmax.attributes.get("scale")
            count = softmax.attributes.get("num_heads") or softmax.attributes.get("q_num_heads")
            rows = query.weight.shape[query.weight.inputs_first]
            width = rows // count if isinstance(count, int) and count > 0 else query.width
            query = replace(query, width=width)
            factor = scale if isinstance(scale, float) and scale else (width or 1) ** -0.5
        return query, key, abs(factor * query.factor * key.factor)

    def chooses(self, softmax: Node) -> bool:
        """Whether the softmax is no attention but a choice among outputs of one projection, such as classes."""
        product = self._product(softmax.inputs[0] if softmax.inputs else "", 64)
        return softmax.kind == "Softmax" and (product is None or self._weight(product[0]) is not None)

    def _product(self, value: str, depth: int) -> tuple[Node, float] | None:
        """The product of queries and keys that gives the logits, and the factor applied to it."""
        node = self._step(value, depth)
        if node is None:
            return None
        if node.kind == "MatMul":
            return node, 1.0
        factor = 1.0
        if node.kind in ("Mul", "Div") and len(node.inputs) == 2:
            first, second = (self._scalar(name) for name in node.inputs)
            if second is not None:
                factor = second if node.kind == "Mul" else 1 / second
            elif first is not None and node.kind == "Mul":
                factor = first
        elif node.kind not in _MOVES | {"Add", "Sub", "Where", "Tanh", "Clip", "Max", "Min"}:
            return None
        for name in node.inputs:
            product = self._product(name, depth - 1)
            if product is not None:
                return product[0], product[1] * factor
        return None

    def _projection(self, value: str, depth: int) -> _Side | None:
        """The projection that makes queries or keys."""
        node = self._step(value, depth)
        if node is None or not node.inputs:
            return None
        if node.kind in ("MatMul", "Gemm", "MatMulInteger"):
            weight = self._weight(node)
            if weight is None:
                return None
            bias = self._held.get(node.inputs[2]) if node.kind == "Gemm" and len(node.inputs) > 2 else None
            return _Side(weight, self._unquantised(node), bias)
        if node.kind in ("Mul", "Div") and len(node.inputs) == 2:
            first, second = (self._scalar(name) for name in node.inputs)
            for scalar, other in ((second, node.inputs[0]), (first, node.inputs[1])):
                if scalar is not None and (node.kind == "Mul" or scalar == second):
                    side = self._projection(other, depth - 1)
                    factor = scalar if node.kind == "Mul" else 1 / scalar
                    return None if side is None else replace(side, factor=side.factor * factor)
            side = self._first(node, depth)  # multiplied by a cosine or sine, or by a scale of quantised weights
            return None if side is None else replace(side, rotated=side.rotated or not self._rescaled(node))
        if node.kind in ("Add", "Concat", "Sub"):
            side = self._first(node, depth)
            bias = next((self._held[name] for name in node.inputs if name in self._held), None)
            if side is not None and node.kind == "Add" and bias is not None and side.bias is None:
                return replace(side, bias=bias) if len(bias.shape) == 1 else side
            return side
        if node.kind not in _MOVES:
            return None
        side = self._projection(node.inputs[0], depth - 1)
        if side is None:
            return None
        whole = not side.is_part and not side.rotated
        if node.kind == "Split" and len(node.outputs) > 1 and whole:
            return self._split(node, side, value)
        if node.kind in ("Slice", "Gather") and whole:
            return self._taken(node, side)
        if node.kind == "Transpose" and side.stacked > 0:
            return replace(side, stacked=-side.stacked if _listed(node, "perm")[:1] == [2] else side.stacked)
        return self._shaped(node, side) if node.kind == "Reshape" else side

    def _shaped(self, node: Node, side: _Side) -> _Side:
        """What a reshape shows: the width of heads, or that queries, keys and values now have an axis of their own."""
        sides = self._sides(node)
        outputs = side.weight.shape[side.weight.inputs_first]
        if len(sides) == 5 and sides[2] == 3 and sides[4] > 0 and outputs % (3 * sides[4]) == 0 and not side.is_part:
            return replace(side, stacked=outputs // (3 * sides[4]), width=sides[4], reshaped=True)
        # (batch, tokens, heads, d_k), or (tokens, batch x heads, d_k) as in torch's own module.
        of_heads = len(sides) == 4 or (len(sides) == 3 and 0 < sides[-1] < outputs)
        width = sides[-1] if of_heads and sides[-1] > 0 else None
        return replace(side, width=side.width or width, reshaped=True)

    def _taken(self, node: Node, side: _Side) -> _Side:
        """A slice of a fused projection: some of its outputs, or one of queries, keys and values that were stacked."""
        if node.kind == "Gather":
            places = self._integers(node.inputs[1]) if len(node.inputs) > 1 else []
            axis, begin = node.attributes.get("axis", 0), places[0] if len(places) == 1 else -1
            end = begin + 1
        else:
            bounds = [self._integers(name) for name in node.inputs[1:5]]
            bounds += [_listed(node, name) for name in ("starts", "ends", "axes")] if not bounds else [[1]]
            if any(len(numbers) != 1 for numbers in bounds[:3]) or bounds[3:4] not in ([[1]], [[]], []):
                return side
            (begin,), (end,), (axis,) = bounds[:3]
        outputs = side.weight.shape[side.weight.inputs_first]
        if side.stacked < 0 and axis == 0 and 0 <= begin < 3 and end == begin + 1:
            count = -side.stacked * (side.width or 0)
            begin, end = begin * count, (begin + 1) * count
        elif (
            side.reshaped or axis not in (-1, 2) or not 0 <= begin < (end := min(end, outputs)) or node.kind == "Gather"
        ):
            return side
        return _part_of(side, begin, end - begin)

    def _split(self, node: Node, side: _Side, value: str) -> _Side:
        """One of the parts of a fused projection: its columns of the weight."""
        outputs = side.weight.shape[side.weight.inputs_first]
        sizes = _listed(node, "split")
        if not sizes and len(node.inputs) > 1:
            sizes = self._integers(node.inputs[1])
        if not sizes:
            sizes = [outputs // len(node.outputs)] * len(node.outputs)
        if len(sizes) != len(node.outputs) or sum(sizes) != outputs or min(sizes) < 1:
            return side  # of another axis: a rotary embedding cuts heads in halves
        part = node.outputs.index(value)
        return _part_of(side, sum(sizes[:part]), sizes[part])

    def _first(self, node: Node, depth: int) -> _Side | None:
        sides = (self._projection(name, depth - 1) for name in node.inputs)
        return next((side for side in sides if side is not None), None)

    def _weight(self, node: Node) -> Stored | None:
        """The matrix of a projection, if one of the inputs is one."""
        if len(node.inputs) < 2:
            return None
        name = node.inputs[1]
        held = self._held.get(name)
        if held is None:
            maker = self._makers.get(name)
            if maker is not None and maker.kind in ("Cast", "Identity") and maker.inputs:
                held = self._held.get(maker.inputs[0])
            elif maker is not None and maker.kind == "Transpose" and maker.inputs:
                held = self._held.get(maker.inputs[0])
                return None if held is None or len(held.shape) != 2 else held
            elif maker is not None and maker.kind == "DequantizeLinear" and len(maker.inputs) >= 2:
                packed, *scales = (self._held.get(input_name) for input_name in maker.inputs[:3])
                axis = maker.attributes.get("axis", 1)
                return _affine(packed, *scales) if axis in (1, -1) else None
            elif maker is not None and maker.kind == "Mul" and len(maker.inputs) == 2:
                return self._scaled_integers(maker)
        if held is None or len(held.shape) != 2:
            return None
        if node.kind == "MatMulInteger":  # the names that onnxruntime gives to the parts of a weight
            stem = name.removesuffix("_quantized")
            return _affine(held, self._held.get(f"{stem}_scale"), self._held.get(f"{stem}_zero_point"))
        if node.kind == "Gemm" and node.attributes.get("transB") == 1:
            return held
        return replace(held, inputs_first=True)

    def _scaled_integers(self, node: Node) -> Stored | None:
        """Weights of 8 bits that a cast makes real, times a scale for all or for each column."""
        for packed, scale in (node.inputs, node.inputs[::-1]):
            cast, held = self._makers.get(packed), self._held.get(scale)
            if cast is None or cast.kind != "Cast" or not cast.inputs or held is None:
                continue
            sides = held.shape
            if len(sides) <= 1 or (len(sides) == 2 and sides[0] == 1):  # along the outputs, which are columns
                return _affine(self._held.get(cast.inputs[0]), held)
        return None

    def _unquantised(self, node: Node) -> str:
        """The input of the projection, before it was rounded to integers."""
        value = node.inputs[0]
        for _ in range(2):
            maker = self._makers.get(value)
            if maker is None or maker.kind not in ("DynamicQuantizeLinear", "DequantizeLinear", "QuantizeLinear"):
                break
            value = maker.inputs[0] if maker.inputs else value
        return value

    def _rescaled(self, node: Node) -> bool:
        """Whether a product only gives integers their scale back: a cast of MatMulInteger times two scales."""
        makers = [self._makers.get(name) for name in node.inputs]
        return any(
            maker is not None and maker.kind == "Cast" and maker.inputs
            and (source := self._makers.get(maker.inputs[0])) is not None and source.kind == "MatMulInteger"
            for maker in makers
        )  # fmt: skip

    def norm(self, value: str) -> tuple[Stored | None, Stored | None]:
        """Gain and shift of the norm that makes a value; None if no norm makes it."""
        node = self._makers.get(value)
        shift: Stored | None = None
        for _ in range(4):
            if node is None or node.kind not in ("Cast", "Identity", "Reshape", "QuantizeLinear", "DequantizeLinear"):
                break
            node = self._makers.get(node.inputs[0]) if node.inputs else None
        if node is None:
            return None, None
        if node.kind in _NORMS and len(node.inputs) > 1:
            gain, shift, *_ = [*(self._vector(name) for name in node.inputs[1:3]), None]
            return gain, shift
        if node.kind == "Add" and len(node.inputs) == 2:
            shift = self._first_vector(node)
            inner = [self._makers[name] for name in node.inputs if name in self._makers]
            node = inner[0] if shift is not None and inner and inner[0].kind == "Mul" else None
        if node is not None and node.kind == "Mul":
            gain = self._first_vector(node)
            return gain, shift if gain is not None else None
        return None, None

    def _first_vector(self, node: Node) -> Stored | None:
        vectors = (self._vector(name) for name in node.inputs)
        return next((held for held in vectors if held is not None), None)

    def _vector(self, name: str) -> Stored | None:
        held = self._held.get(name)
        return held if held is not None and len(held.shape) == 1 and held.itemsize else None

    def _sides(self, node: Node) -> list[int]:
        """The sizes of the axes after a reshape, 0 where the graph computes one; empty if their number is unknown."""
        if len(node.inputs) < 2:
            return []
        sides = self._integers(node.inputs[1])
        maker = self._makers.get(node.inputs[1])
        if not sides and maker is not None and maker.kind == "Concat":
            known = [self._integers(name) for name in maker.inputs]
            sides = [numbers[0] if len(numbers) == 1 else 0 for numbers in known]
        return sides

    def _small(self, name: str) -> Any:
        held = self._held.get(name)
        if held is None or held.dtype not in NUMPY or np.prod(held.shape, dtype=float) * 8 > MOST_SMALL:
            return None
        return held.raw() if held.dtype in ("I64", "I32") else held.read() if held.itemsize else None

    def _scalar(self, name: str) -> float | None:
        """A constant factor; None if it is not a single number, not finite, or 0."""
        numbers = self._small(name)
        if numbers is None or numbers.size != 1:
            return None
        factor = float(numbers.ravel()[0])
        return factor if np.isfinite(factor) and factor != 0 else None

    def _integers(self, name: str) -> list[int]:
        numbers = self._small(name)
        integers = numbers is not None and numbers.dtype.kind == "i"
        return [int(number) for number in numbers.ravel()] if integers else []

    def _step(self, value: str, depth: int) -> Node | None:
        """The operation that makes a value; None once the search reaches its limits."""
        self._steps += 1
        if depth <= 0 or self._steps > _MOST_STEPS:
            return None
        return self._makers.get(value)


def _listed(node: Node, attribute: str) -> list[int]:
    """An attribute that is a list of integers; empty if it is absent or of another type."""
    numbers = node.attributes.get(attribute)
    return numbers if isinstance(numbers, list) else []


def _part_of(side: _Side, begin: int, count: int) -> _Side:
    """Some of the outputs of a projection."""
    bias = None if side.bias is None else _Part(side.bias, begin, count)
    return replace(side, weight=_Part(side.weight, begin, count), bias=bias, is_part=True, stacked=0)


def _affine(packed: Plain | None, scale: Plain | None = None, zero: Plain | None = None) -> Stored | None:
    if packed is None or scale is None or len(packed.shape) != 2:
        return None
    return Affine(packed, scale, zero, inputs_first=True)


@dataclass(frozen=True, slots=True)
class _Part:
    """Some of the outputs of a weight or a bias."""

    whole: Stored
    begin: int
    count: int

    @property
    def dtype(self) -> str:
        return self.whole.dtype

    @property
    def itemsize(self) -> float:
        return self.whole.itemsize

    @property
    def inputs_first(self) -> bool:
        return self.whole.inputs_first

    @property
    def shape(self) -> tuple[int, ...]:
        shape = self.whole.shape
        return (*shape[:-1], self.count) if self.inputs_first or len(shape) == 1 else (self.count, *shape[1:])

    def read(self, rows: slice, columns: slice) -> Floats:
        if self.inputs_first:
            return self.whole.read(rows, self._shifted(columns))
        return self.whole.read(self._shifted(rows), columns)

    def _shifted(self, places: slice) -> slice:
        first, last, _ = places.indices(self.count)
        return slice(self.begin + first, self.begin + last)


# Stands for a softmax that is not understood, so that it is listed.
_NOTHING = Unpacked("Softmax", (), 0.0, lambda _rows, _columns: np.zeros((0, 0)))
