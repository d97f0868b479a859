"""The numbers of every head of one attention module, read from its weights."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rootdk.errors import ArgumentError
from rootdk.files import shown_text

from .config import Facts
from .families import Projections, Side, row_starts
from .formats import Tensors
from .law import (
    Floats,
    Law,
    Together,
    gain_bound,
    largest_eigenvalue,
    longest,
    row_variance,
    row_variance_bound,
    spectral_bound,
)
from .limits import LARGEST_BLOCK, LARGEST_GRAMS, LARGEST_RANK, LARGEST_WIDTH
from .siblings import decayed_heads, unevenness

Metrics = dict[str, float]

# A larger weight is infinite in every type that a model is run in. Its square times any width is far below the largest
# float64, and so is the square of that product, the size of a variance of logits.
_LARGEST_WEIGHT = float(np.finfo(np.float32).max)


@dataclass(frozen=True, slots=True)
class _Head:
    """Queries, or keys, of one head, and bounds on them."""

    law: Law  # after QK-norm if there is one
    width: int  # the number of input components; the input has length sqrt(width)
    non_finite: int  # how many of its weights are NaN or infinite; if there are any, the law means nothing
    norm: tuple[Floats, Floats] | None = None  # gain and shift of QK-norm: after it a vector is sqrt(length) long
    length: int = 0  # the number of components that are normed together
    longest: float | None = None  # the largest length possible, where it does not follow from the law and the width


def read_heads(
    tensors: Tensors, module: Projections, facts: Facts, of_layer: dict[str, Any] | None = None
) -> Iterator[Metrics]:
    """One dictionary per query head; `docs/audit.md` says what each number is. Numbers of the layer go to `of_layer`.

    The key of a group of query heads is read once. Memory holds one query head and one key head, as d_k x d_k matrices,
    and a block of weights; where the rows of a head do not lie together, as many heads as fit into LARGEST_GRAMS.
    """
    query, key = _readers(tensors, module, facts)
    sizes: list[tuple[float, float]] = []
    with np.errstate(all="ignore"):  # overflow is counted and reported
        queries = query.heads()
        for key_head in key.heads():
            for _ in range(facts.heads // facts.key_heads):
                query_head = next(queries)
                sizes.append((query_head.law.mean_square, key_head.law.mean_square))
                yield _metrics(query_head, key_head, facts)
        uneven = [side.unevenness() for side in (query, key) if side.row_squares]
    if of_layer is not None and not any(map(math.isnan, uneven or [math.nan])):
        of_layer["unevenness"] = max(uneven)
    if of_layer is not None and (decayed := decayed_heads([q for q, _ in sizes], [k for _, k in sizes])):
        of_layer["decayed_heads"] = decayed


def work_of(tensors: Tensors, module: Projections, facts: Facts) -> tuple[float, int]:
    """Multiply-adds, roughly, for the heads of a module, and the bytes of their weights; an error if shapes differ.

    A Gram matrix takes d_k^2 for every column, and what follows some forty times d_k^3.
    """
    work, size = 0.0, 0
    for reader in _readers(tensors, module, facts):
        numbers = reader.count * facts.d_k * reader.width
        passes = 2 if reader.together else 1
        work += passes * (numbers * (facts.d_k + 16.0) + 40.0 * reader.count * facts.d_k**3) + reader.more_work
        size += int(passes * numbers * tensors[reader.side.weight].itemsize)
    return work, size


def _readers(tensors: Tensors, module: Projections, facts: Facts) -> tuple["_Reader", "_Reader"]:
    """Both sides of a module; an error if the tensors have other shapes than the config says."""
    if module.layout == "latent":
        return _latent_readers(tensors, module, facts)
    d, heads, key_heads = facts.d_k, facts.heads, facts.key_heads
    rows = (heads * d, key_heads * d)
    words = (f"{heads} heads of {d}", f"{key_heads} key heads of {d}")
    if module.layout == "gated":
        rows, words = (2 * heads * d, key_heads * d), (f"{heads} heads of {d} and their gates", words[1])
    elif module.layout != "split":
        rows = ((heads + 2 * key_heads) * d,) * 2
        words = (f"{heads} query, {key_heads} key and {key_heads} value heads of {d}",) * 2
    query_at, key_at = row_starts(module.layout, heads, key_heads, d)
    return (
        _Reader(tensors, module.query, facts, query_at, rows[0], words[0]),
        _Reader(tensors, module.key, facts, key_at, rows[1], words[1]),
    )


class _Reader:
    """Reads the heads of the queries, or of the keys, of one module, W W' block by block.

    The input is z of independent unit components, or g z + s where a norm with gain g and shift s comes before:
    q = W (g z + s) + b has mean W s + b and covariance (W g)(W g)'.

    A gain of QK-norm has d_k numbers for all heads alike, or d_k for each head. Where they lie in one row of heads x
    d_k, as in OLMo 2, the length is taken over all heads `together`, which are then read twice.
    """

    more_work = 0.0  # in addition to that of the heads

    def __init__(
        self, tensors: Tensors, side: Side, facts: Facts, starts: Sequence[int], rows: int, words: str
    ) -> None:
        """starts: the first row of each head; words: what makes so many rows, for an error."""
        self._tensors, self.side, self._facts, self._starts = tensors, side, facts, starts
        self.count = len(starts)
        # GPT-2 keeps its weights as (inputs, outputs), and so do some formats.
        self._transposed = side.weight.endswith("c_attn.weight") or tensors[side.weight].inputs_first
        self.width = self._checked_width(rows, words)
        self._check_shape(side.bias, rows)
        for name in (side.input_gain, side.input_shift):
            self._check_shape(name, self.width, "input")
        d, count = facts.d_k, self.count
        for name in (side.gain, side.shift):
            if name is not None and (shape := tensors.shape(name)) not in ((d,), (count, d), (count * d,)):
                raise ArgumentError(
                    f"path: {shown_text(name)} must have {d} numbers, or that for {count} heads, "
                    f"got shape {list(shape)}"
                )
        self.together = side.gain is not None and count > 1 and tensors.shape(side.gain) == (count * d,)
        # Squared lengths of the rows of W g, head by head, and of the columns of W: see `unevenness`.
        self.row_squares: list[Floats] = []
        self._column_squares = np.zeros(self.width)
        self._input_gain = np.ones(self.width)

    def _checked_width(self, rows: int, expected: str) -> int:
        """How many inputs the projection has."""
        shape, transposed = self._tensors.shape(self.side.weight), self._transposed
        name, axes = shown_text(self.side.weight), ("rows", "columns")
        if len(shape) != 2 or shape[transposed] != rows:
            raise ArgumentError(
                f"path: {name} must have {rows} {axes[transposed]}, {expected} as its config says, "
                f"got shape {list(shape)}"
            )
        if not 1 <= shape[1 - transposed] <= LARGEST_WIDTH:
            raise ArgumentError(
                f"path: {name} must have 1 to {LARGEST_WIDTH} {axes[1 - transposed]}, got shape {list(shape)}"
            )
        return shape[1 - transposed]

    def _check_shape(self, name: str | None, size: int, of: str = "output") -> None:
        if name is not None and self._tensors.shape(name) != (size,):
            raise ArgumentError(
                f"path: {shown_text(name)} must have {size} numbers, one for each {of} of "
                f"{shown_text(self.side.weight)}, got shape {list(self._tensors.shape(name))}"
            )

    def heads(self) -> Iterator[_Head]:
        """Every head in its order, through QK-norm if there is one."""
        if self.side.gain is None:
            yield from self._projected()
            return
        d, facts = self._facts.d_k, self._facts
        gains = self._tensors.read(self.side.gain).reshape(-1, d) + facts.gain_offset
        shifts = np.zeros((1, d)) if self.side.shift is None else self._tensors.read(self.side.shift).reshape(-1, d)
        # Subtracting a mean over all heads removes one component of many: ignored.
        centred = not self.together and (facts.centred_norm or self.side.shift is not None)
        length = self.count * d if self.together else d
        over_all = None
        if self.together:
            spectra = (head.law.along_axes() for head in self._projected() if not head.non_finite)
            over_all = Together.of(spectra, length, facts.epsilon)
        for number, head in enumerate(self._projected()):
            gain, shift = gains[number % len(gains)], shifts[number % len(shifts)]
            non_finite = head.non_finite + _beyond(gain) + _beyond(shift)
            law = head.law
            if not non_finite:
                law = law.centred() if centred else law
                normed = law.normed(facts.epsilon) if over_all is None else over_all.normed(law.along_axes())
                law = normed.scaled(gain, shift)
            yield replace(head, law=law, non_finite=non_finite, norm=(gain, shift), length=length)

    def unevenness(self) -> float:
        """How unevenly the squared lengths spread, once all heads are read: see `siblings`."""
        return unevenness(np.concatenate(self.row_squares), self._column_squares, self._input_gain)

    def _projected(self) -> Iterator[_Head]:
        """Every head before QK-norm."""
        read, side = self._tensors.read, self.side
        if side.input_gain is not None:
            self._input_gain = read(side.input_gain) + self._facts.gain_offset
        shift = np.zeros(self.width) if side.input_shift is None else read(side.input_shift)
        self.row_squares, self._column_squares = [], np.zeros(self.width)
        sums = self._sums_transposed(shift) if self._transposed else self._sums(shift)
        for at, added in zip(self._starts, sums, strict=True):
            mean, non_finite = added.mean, added.non_finite
            self.row_squares.append(added.gram.diagonal().copy())
            if side.bias is not None:
                bias = read(side.bias, slice(at, at + self._facts.d_k))
                mean, non_finite = mean + bias, non_finite + _beyond(bias)
            yield _Head(Law(mean, added.gram), self.width, non_finite)

    def _sums(self, shift: Floats) -> Iterator["_Sum"]:
        """One head after the other: the rows of a head lie together."""
        d = self._facts.d_k
        for at in self._starts:
            added = _Sum(d)
            for columns in _blocks(self.width, d):
                self._add(added, self._tensors.read(self.side.weight, slice(at, at + d), columns), columns, shift)
            yield added

    def _sums_transposed(self, shift: Floats) -> Iterator["_Sum"]:
        """Several heads at once, some inputs at a time: a head lies scattered over the whole tensor."""
        d = self._facts.d_k
        several = max(1, LARGEST_GRAMS // (8 * d * d))
        for head in range(0, self.count, several):
            starts = self._starts[head : head + several]
            left, right = starts[0], starts[-1] + d
            sums = [_Sum(d) for _ in starts]
            for inputs in _blocks(self.width, right - left):
                block = self._tensors.read(self.side.weight, inputs, slice(left, right)).T
                for at, added in zip(starts, sums, strict=True):
                    self._add(added, block[at - left : at - left + d], inputs, shift)
            yield from sums

    def _add(self, added: "_Sum", block: Floats, columns: slice, shift: Floats) -> None:
        self._column_squares[columns] += np.einsum("ij,ij->j", block, block)
        added.add(block, self._input_gain[columns], shift[columns])


def _latent_readers(tensors: Tensors, module: Projections, facts: Facts) -> tuple["_Reader", "_Reader"]:
    """Both sides of latent attention: heads of `plain` and `rotated` components; keys share the rotated ones."""
    if facts.latent is None:
        raise ArgumentError(
            f"path: {shown_text(module.module)} has latent attention: its config must have qk_nope_head_dim and "
            "qk_rope_head_dim, it has not"
        )
    d, heads, latent = facts.d_k, facts.heads, facts.latent
    facts = replace(facts, key_heads=heads)
    if module.query.down is None:
        expected = f"{heads} heads of {d}"
        query = _Reader(tensors, module.query, facts, range(0, heads * d, d), heads * d, expected)
    else:
        query = _LatentReader(tensors, module.query, facts, d, d, 0)
    stride = latent.plain + latent.value
    return query, _LatentReader(tensors, module.key, facts, latent.plain, stride, latent.rotated)


class _LatentReader(_Reader):
    """Heads that are W n(D x): a projection D to a latent, a norm n with a gain, and the rows W of each head.

    The latent D (g z) is normal, and the moments of its norm are those of QK-norm (`law`). Keys end in components that
    all heads share and that bypass the norm, further rows of D: with the latent they are jointly normal, so their cross
    moment with the normed latent is E[n u'] (E u u')^-1 E[u r'].
    """

    def __init__(self, tensors: Tensors, side: Side, facts: Facts, height: int, stride: int, shared: int) -> None:
        assert side.down is not None  # noqa: S101 -- checked by the caller
        assert side.latent_gain is not None  # noqa: S101
        self._down, self._gain, self._height, self._shared = side.down, side.latent_gain, height, shared
        shape = tensors.shape(self._down)
        self._rank = shape[0] - shared if len(shape) == 2 else 0
        self._input_width = shape[1] if len(shape) == 2 else 0
        if not 1 <= self._rank <= LARGEST_RANK or not 1 <= self._input_width <= LARGEST_WIDTH:
            raise ArgumentError(
                f"path: {shown_text(self._down)} must have 1 to {LARGEST_RANK} rows"
                f"{f' and {shared} more' if shared else ''}, got shape {list(shape)}"
            )
        above = replace(side, input_gain=None, input_shift=None)
        rows, words = facts.heads * stride, f"{facts.heads} heads of {stride}"
        super().__init__(tensors, above, facts, range(0, rows, stride), rows, words)
        self._below = side
        self._check_shape(self._gain, self.width, "input")
        if self.width != self._rank:
            raise ArgumentError(
                f"path: {shown_text(side.weight)} must have {self._rank} columns, as many as {shown_text(self._down)} "
                f"gives, got {self.width}"
            )
        for name in (side.input_gain, side.input_shift):
            if name is not None and tensors.shape(name) != (self._input_width,):
                raise ArgumentError(f"path: {shown_text(name)} must have {self._input_width} numbers, got "
                                    f"shape {list(tensors.shape(name))}")  # fmt: skip
        self.more_work = self._rank**2 * (self._input_width + 40.0 * self._rank)

    def heads(self) -> Iterator[_Head]:
        """Every head in its order."""
        joint = self._joint()
        rank, read = self._rank, self._tensors.read
        gain = read(self._gain) + self._facts.gain_offset
        non_finite = joint.non_finite + _beyond(gain)
        along_axes = Law(np.zeros(rank), joint.gram[:rank, :rank]).along_axes()
        together = Together.of([along_axes], rank, self._facts.epsilon)
        latent = together.normed(along_axes).scaled(gain).covariance
        common = gain[:, None] * (together.slope(along_axes) @ joint.gram[:rank, rank:])
        of_shared = joint.gram[rank:, rank:]
        shared_length = math.sqrt(self._input_width * largest_eigenvalue(of_shared)) if self._shared else 0.0
        for at in self._starts:
            weight = read(self.side.weight, slice(at, at + self._height))
            beyond = non_finite + _beyond(weight)
            d = self._height + self._shared
            if beyond:
                yield _Head(Law(np.zeros(d), np.eye(d)), self.width, beyond)
                continue
            across = weight @ common
            covariance = np.block([[weight @ latent @ weight.T, across], [across.T, of_shared]])
            length = math.sqrt(rank) * float(np.linalg.norm(weight * gain, 2))
            yield _Head(Law(np.zeros(d), covariance), self.width, 0, longest=math.hypot(length, shared_length))

    def _joint(self) -> "_Sum":
        """D D' with the gain of the norm before, latent and shared rows together."""
        rows, side, read = self._rank + self._shared, self._below, self._tensors.read
        added, gain = _Sum(rows), np.ones(self._input_width)
        if side.input_gain is not None:
            gain = read(side.input_gain) + self._facts.gain_offset
        for columns in _blocks(self._input_width, rows):
            block = read(self._down, slice(0, rows), columns)
            added.add(block, gain[columns], np.zeros(block.shape[1]))
        return added


class _Sum:
    """(W g)(W g)' and W s of one head, over the columns that were read so far."""

    def __init__(self, d: int) -> None:
        self.gram, self.mean, self.non_finite = np.zeros((d, d)), np.zeros(d), 0

    def add(self, block: Floats, gain: Floats, shift: Floats) -> None:
        """Add more columns of W; after a number that is not finite they are only counted."""
        folded = block * gain
        self.non_finite += _beyond(folded)
        if not self.non_finite:
            self.gram += folded @ folded.T
            self.mean += block @ shift


def _blocks(width: int, rows: int) -> Iterator[slice]:
    """The columns of a matrix of so many rows, in blocks of bounded size."""
    step = max(1, LARGEST_BLOCK // rows)
    for first in range(0, width, step):
        yield slice(first, min(first + step, width))


def _beyond(numbers: Floats) -> int:
    """How many are NaN, infinite, or would be in float32."""
    if numbers.min() >= -_LARGEST_WEIGHT and numbers.max() <= _LARGEST_WEIGHT:  # false with a NaN in it
        return 0
    return int(np.count_nonzero(~(np.abs(numbers) <= _LARGEST_WEIGHT)))


def _metrics(query: _Head, key: _Head, facts: Facts) -> Metrics:
    scale, non_finite = facts.scale.value, query.non_finite + key.non_finite
    bounded_by = "spectral_bound" if query.norm is None or key.norm is None else "gain_bound"
    variance = variance_bound = bound = math.nan
    if not non_finite:
        variance = max(row_variance(query.law, key.law), 0.0)  # may be 0 minus a rounding error
        variance_bound = row_variance_bound(query.law, key.law)
        bound = _bound(query, key, facts)
    return {
        "predicted_variance": scale**2 * variance,
        "predicted_deviation": scale * math.sqrt(variance),
        "variance_bound": scale**2 * variance_bound,
        bounded_by: scale * bound,
        "scale": scale,
        "scale_ratio": scale * math.sqrt(facts.d_k),
        "d_k": float(facts.d_k),
        "non_finite_weights": float(non_finite),
    }


def _bound(query: _Head, key: _Head, facts: Facts) -> float:
    """The largest <q, k>."""
    if query.norm is not None and key.norm is not None:
        return gain_bound(query.norm, key.norm, (query.length, key.length), rotated=facts.rotated)
    if query.longest is not None or key.longest is not None:
        lengths = [side.longest or longest(side.law, side.width) for side in (query, key)]
        return math.prod(lengths)
    bound = spectral_bound(query.law, key.law, query.width, key.width, rotated=facts.rotated)
    return bound if facts.clip is None else min(bound, facts.d_k * facts.clip**2)
