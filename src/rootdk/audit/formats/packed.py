"""Weights of 8, 4 or fewer bits with their scales, as safetensors hold them: what they stand for, slice by slice.

Each kind is recognised by the names and shapes of tensors that belong together; they become one tensor with the usual
name of the weight. What is not understood stays unchanged and is listed.

    float8      weight, and weight_scale for all of it or each output, or weight_scale_inv for blocks of 128 x 128
    bnb int8    weight, SCB: the largest weight of each output, stored as 127
    bnb 4 bit   weight, weight.quant_map, weight.absmax for every 64 numbers or so, and a JSON text; absmax may be
                packed in the same way
    GPTQ        qweight (inputs/8, outputs), qzeros, scales, g_idx: the group of each input
    AWQ         qweight (inputs, outputs/8), qzeros, scales; each group of eight numbers has its own order
    MLX         weight of uint32 (outputs, inputs/8), scales and biases for groups of inputs
    compressed  weight_packed of the same form, weight_scale; code 0 is the least signed number of so many bits
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rootdk.audit.limits import Fields
from rootdk.files import JsonError, parse_json

from .stored import READABLE, Floats, Plain, Stored, Tensors, Unpacked

_FLOAT8 = ("F8_E4M3", "F8_E5M2")
_SHIFTS = {bits: np.arange(0, 32, bits, dtype=np.uint32) for bits in (2, 4, 8)}
# Where AWQ puts the eight numbers of a word: number i is the _AWQ[i]-th nibble.
_AWQ = (0, 4, 1, 5, 2, 6, 3, 7)
_LARGEST_STATE = 4096  # bytes of the JSON text of bitsandbytes
_LARGEST_BLOCK = 2**20  # numbers that share a scale; real ones: 4096
# A weight, and the names of the parts that it takes the place of.
Replacement: TypeAlias = tuple[Stored, list[str]]


def unpacked(tensors: Tensors, config: Fields) -> Tensors:
    """The same tensors, with every packed weight that is understood in place of its parts.

    The config is needed for what shapes do not show: how many bits MLX used, and whether GPTQ stores zeros minus 1.
    """
    gptq = config.part("quantization_config") or Fields({}, "")
    less = 0 if gptq.text("checkpoint_format") == "gptq_v2" else 1
    bits = (config.part("quantization") or Fields({}, "")).whole("bits", 1, 8) or 4
    held: dict[str, Any] = {**tensors}
    for name in list(held):
        stem, _, last = name.rpartition(".")
        replacement = None
        if last == "qweight":
            replacement = _gptq_or_awq(held, stem, less)
        elif last == "weight_packed":
            replacement = _compressed(held, stem)
        elif last == "weight" and isinstance(held.get(name), Plain):
            replacement = _scaled(held, stem) or _four_bits(held, name) or _mlx(held, stem, bits)
        if replacement is not None:
            weight, parts = replacement
            for part in parts:
                held.pop(part, None)
            held[f"{stem}.weight"] = weight
    return tensors.replaced(held)


def _plain(held: Mapping[str, Any], name: str, *dtypes: str) -> Any:
    """The tensor of that name, if it is there and of one of these types."""
    tensor = held.get(name)
    return tensor if isinstance(tensor, Plain) and tensor.dtype in dtypes else None


@dataclass(frozen=True, slots=True)
class Affine:
    """(packed - zero) * scale; scale and zero for all, or for each output: a row, or a column with inputs first."""

    packed: Plain
    scale: Plain
    zero: Plain | None = None
    factor: float = 1.0
    inputs_first: bool = False

    @property
    def dtype(self) -> str:
        return self.packed.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return self.packed.shape

    @property
    def itemsize(self) -> float:
        """Bytes of one number; 0 where the scales do not fit."""
        outputs = self.shape[-1] if self.inputs_first else self.shape[0]
        fits = all(part is None or math.prod(part.shape) in (1, outputs) for part in (self.scale, self.zero))
        known = self.dtype in ("I8", "U8", *_FLOAT8) and self.scale.dtype in READABLE
        whole = self.zero is None or self.zero.dtype in ("I8", "U8")
        return 1.0 if fits and known and whole and len(self.shape) == 2 else 0

    def read(self, rows: slice, columns: slice) -> Floats:
        scale = self._of(self.scale, rows, columns) * self.factor
        zero = 0.0 if self.zero is None else self._of(self.zero, rows, columns)
        return np.asarray((self.packed.read(rows, columns) - zero) * scale)

    def _of(self, part: Plain, rows: slice, columns: slice) -> Any:
        numbers = part.read().ravel()
        if len(numbers) == 1:
            return numbers[0]
        return numbers[columns] if self.inputs_first else numbers[rows, None]


def _scaled(held: Mapping[str, Any], stem: str) -> Replacement | None:
    """float8, and integers of 8 bits, with scales of their own."""
    weight = _plain(held, f"{stem}.weight", "I8", *_FLOAT8)
    if weight is None or len(weight.shape) != 2:
        return None
    squares = _plain(held, f"{stem}.weight_scale_inv", *READABLE)
    if squares is not None and squares.shape == tuple(-(-side // 128) for side in weight.shape):

        def read(rows: slice, columns: slice) -> Floats:
            sides = zip((rows, columns), weight.shape, strict=True)
            squares_of_sides = [np.arange(*places.indices(side)) // 128 for places, side in sides]
            return np.asarray(weight.read(rows, columns) * squares.read()[np.ix_(*squares_of_sides)])

        return Unpacked(weight.dtype, weight.shape, 1.0, read), [f"{stem}.weight_scale_inv"]
    largest = _plain(held, f"{stem}.SCB", *READABLE)
    scale = largest or _plain(held, f"{stem}.weight_scale", *READABLE) or squares
    if scale is None:
        return None
    affine = Affine(weight, scale, factor=1 / 127 if largest is not None else 1.0)
    others = ("SCB", "weight_scale", "weight_scale_inv", "weight_format", "input_scale", "activation_scale")
    return (affine, [f"{stem}.{name}" for name in others]) if affine.itemsize else None


def _four_bits(held: Mapping[str, Any], name: str) -> Replacement | None:
    """bitsandbytes: two codes in a byte, row by row; each number is an entry of a map times the scale of its block."""
    weight, levels = _flat(held.get(name)), _plain(held, f"{name}.quant_map", "F32")
    places = [f"{name}.quant_state.bitsandbytes__{kind}" for kind in ("nf4", "fp4")]
    place = next((place for place in places if place in held), None)
    if weight is None or weight.dtype != "U8" or levels is None or place is None or math.prod(levels.shape) != 16:
        return None
    state, absmax = _state(held[place]), _flat(held.get(f"{name}.absmax"))
    shape, block = state.get("shape"), state.get("blocksize")
    if not (isinstance(shape, list) and len(shape) == 2 and all(type(side) is int and side > 0 for side in shape)):
        return None
    if type(block) is not int or not 1 <= block <= _LARGEST_BLOCK or absmax is None:
        return None
    height, width = shape
    if math.prod(weight.shape) * 2 < height * width or math.prod(absmax.shape) < -(-height * width // block):
        return None
    largest = _largest(held, name, absmax, state)
    if largest is None:
        return None
    entries = levels.read().ravel()

    def read(rows: slice, columns: slice) -> Floats:
        (first, last, _), (left, right, _) = rows.indices(height), columns.indices(width)
        begin, end = first * width, last * width
        codes = weight.raw(slice(begin // 2, -(-end // 2))).ravel()
        numbers = entries[np.stack([codes >> 4, codes & 15], axis=1).ravel()][begin % 2 :][: end - begin]
        blocks = np.arange(begin, end) // block
        if len(blocks):
            numbers = numbers * largest(int(blocks[0]), int(blocks[-1]) + 1)[blocks - blocks[0]]
        return np.asarray(numbers.reshape(last - first, width)[:, left:right])

    return Unpacked("4 bit", (height, width), 0.5, read), [part for part in held if part.startswith(f"{name}.")]


def _largest(
    held: Mapping[str, Any], name: str, absmax: Plain, state: Mapping[str, Any]
) -> Callable[[int, int], Floats] | None:
    """What reads the scales of some blocks.

    They may be packed too: an entry of a map of 256 times the scale of its own block, plus an offset.
    """
    if absmax.dtype in READABLE:
        return lambda first, last: absmax.read(slice(first, last)).ravel()
    levels, scales = _plain(held, f"{name}.nested_quant_map", "F32"), _flat(held.get(f"{name}.nested_absmax"))
    block, offset = state.get("nested_blocksize"), state.get("nested_offset")
    if absmax.dtype != "U8" or levels is None or math.prod(levels.shape) != 256:
        return None
    if scales is None or scales.dtype != "F32":
        return None
    if type(block) is not int or not 1 <= block <= _LARGEST_BLOCK or not isinstance(offset, float):
        return None
    if math.prod(scales.shape) < -(-math.prod(absmax.shape) // block):
        return None
    entries = levels.read().ravel()

    def nested(first: int, last: int) -> Floats:
        blocks = np.arange(first, last) // block
        block_scales = scales.read(slice(int(blocks[0]), int(blocks[-1]) + 1)).ravel()[blocks - blocks[0]]
        return np.asarray(entries[absmax.raw(slice(first, last)).ravel()] * block_scales + offset)

    return nested


def _flat(tensor: Any) -> Plain | None:
    """The same numbers as one column, whatever shape they were saved in."""
    return replace(tensor, shape=(math.prod(tensor.shape),)) if isinstance(tensor, Plain) else None


def _state(tensor: Any) -> dict[str, Any]:
    """The JSON text that bitsandbytes keeps as bytes."""
    if not isinstance(tensor, Plain) or tensor.dtype != "U8" or math.prod(tensor.shape) > _LARGEST_STATE:
        return {}
    try:
        state = parse_json(tensor.raw().tobytes())
    except JsonError:
        return {}
    return state if isinstance(state, dict) else {}


def _gptq_or_awq(held: Mapping[str, Any], stem: str, less: int) -> Replacement | None:
    """Integers of few bits in words of 32, with a scale and a zero for each output of a group of inputs.

    A word holds neighbouring inputs in order (GPTQ), or neighbouring outputs in an order of its own (AWQ). `less` is
    what GPTQ subtracts from zeros before it stores them.
    """
    parts = [f"{stem}.{name}" for name in ("qweight", "qzeros", "scales", "g_idx")]
    packed, zeros, scales = (
        _plain(held, name, *kinds) for name, kinds in zip(parts, (("I32",), ("I32",), READABLE), strict=False)
    )
    if any(part is None or len(part.shape) != 2 for part in (packed, zeros, scales)):
        return None
    count, outputs = scales.shape
    bits = 32 * zeros.shape[1] // max(outputs, 1)
    if bits not in _SHIFTS or zeros.shape != (count, outputs * bits // 32) or outputs * bits % 32 or not count:
        return None
    awq = packed.shape[1] == zeros.shape[1] and packed.shape[1] != outputs
    inputs = packed.shape[0] if awq else packed.shape[0] * 32 // bits
    if (awq and bits != 4) or (not awq and packed.shape[1] != outputs) or inputs % count or inputs > 2**17:
        return None
    index = _plain(held, parts[3], "I32", "I64")
    group_of_input = np.arange(inputs) // (inputs // count)
    if index is not None and not awq:
        fits = math.prod(index.shape) == inputs
        group_of_input = index.raw().ravel().astype(np.int64) if fits else group_of_input[:0]
    if len(group_of_input) != inputs or not inputs or group_of_input.min() < 0 or group_of_input.max() >= count:
        return None

    def read(rows: slice, columns: slice) -> Floats:
        (first, last, _), (left, right, _) = rows.indices(inputs), columns.indices(outputs)
        groups = group_of_input[first:last]
        if not len(groups):
            return np.zeros((0, right - left))
        low, high = int(groups.min()), int(groups.max()) + 1
        order = _AWQ if awq else slice(None)
        if awq:
            codes = _codes_of_rows(packed, slice(first, last), left, right, bits, order)
        else:
            per = 32 // bits
            words = packed.raw(slice(first // per, -(-last // per)), slice(left, right)).view(np.uint32)
            codes = ((words[:, None, :] >> _SHIFTS[bits][:, None]) & (2**bits - 1)).reshape(-1, right - left)
            codes = codes[first % per :][: last - first]
        shifts = _codes_of_rows(zeros, slice(low, high), left, right, bits, order) + (0 if awq else less)
        numbers = codes.astype(np.float64) - shifts[groups - low]
        return np.asarray(numbers * scales.read(slice(low, high), slice(left, right))[groups - low])

    return Unpacked(f"{bits} bit", (inputs, outputs), bits / 8, read, inputs_first=True), parts


def _codes_of_rows(
    packed: Plain, rows: slice, left: int, right: int, bits: int, order: Any = slice(None)
) -> NDArray[np.int64]:
    """Numbers of few bits, neighbouring columns of which share a word; `order` is theirs inside it."""
    per = 32 // bits
    words = np.ascontiguousarray(packed.raw(rows, slice(left // per, -(-right // per)))).view(np.uint32)
    codes = ((words[:, :, None] >> _SHIFTS[bits]) & (2**bits - 1))[:, :, order]
    flat = codes.reshape(len(words), -1)[:, left % per :]
    return np.asarray(flat[:, : right - left], np.int64)


def _mlx(held: Mapping[str, Any], stem: str, bits: int) -> Replacement | None:
    weight, parts = _plain(held, f"{stem}.weight", "U32"), [f"{stem}.scales", f"{stem}.biases"]
    scales, biases = (_plain(held, name, *READABLE) for name in parts)
    if any(part is None or len(part.shape) != 2 for part in (weight, scales, biases)) or scales.shape != biases.shape:
        return None
    if weight.shape[0] != scales.shape[0] or not scales.shape[1]:
        return None
    inputs = weight.shape[1] * 32 // bits
    if bits not in _SHIFTS or inputs % scales.shape[1] or inputs // scales.shape[1] not in (32, 64, 128):
        return None
    return _grouped_by_row(weight, scales, biases, bits), parts


def _compressed(held: Mapping[str, Any], stem: str) -> Replacement | None:
    """compressed-tensors, symmetric; stored zero points, or inputs in another order, are not understood."""
    parts = [f"{stem}.{name}" for name in ("weight_packed", "weight_scale", "weight_shape")]
    packed, scales, shape = (
        _plain(held, name, *kinds) for name, kinds in zip(parts, (("I32",), READABLE, ("I64", "I32")), strict=True)
    )
    others = (f"{stem}.weight_zero_point", f"{stem}.weight_g_idx")
    if packed is None or scales is None or shape is None or any(name in held for name in others):
        return None
    if len(packed.shape) != 2 or len(scales.shape) != 2 or shape.shape != (2,):
        return None
    outputs, inputs = (int(side) for side in shape.raw().ravel())
    bits = packed.shape[1] * 32 // max(inputs, 1)
    fits = bits in _SHIFTS and packed.shape == (outputs, inputs * bits // 32) and inputs * bits % 32 == 0
    if not fits or scales.shape[0] != outputs or not scales.shape[1] or inputs % scales.shape[1]:
        return None
    return _grouped_by_row(packed, scales, None, bits), parts


def _grouped_by_row(packed: Plain, scales: Plain, biases: Plain | None, bits: int) -> Unpacked:
    """scale * code + bias, both for a group of neighbouring inputs of one output; without biases codes have a sign."""
    outputs, inputs = packed.shape[0], packed.shape[1] * 32 // bits

    def read(rows: slice, columns: slice) -> Floats:
        left, right, _ = columns.indices(inputs)
        codes = _codes_of_rows(packed, rows, left, right, bits)
        groups, factors = np.arange(left, right) // (inputs // scales.shape[1]), scales.read(rows)
        shifts = -(2.0 ** (bits - 1)) * factors if biases is None else biases.read(rows)
        return np.asarray(factors[:, groups] * codes + shifts[:, groups])

    return Unpacked(f"{bits} bit", (outputs, inputs), bits / 8, read)
