"""The numbers of every head of one attention module, read from its weights."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from rootdk.errors import ArgumentError
from rootdk.untrusted import shown_text

from .families import Facts, Projections
from .law import Floats, Law, Together, gain_bound, row_variance, row_variance_bound, spectral_bound
from .limits import LARGEST_BLOCK, LARGEST_GRAMS, LARGEST_WIDTH
from .tensors import Tensors

Metrics = dict[str, float]

# A weight beyond it is infinite in every type that a model is run in. Its square times any width is far from the end of
# float64, and so is the square of that, which a variance of logits is.
_LARGEST_WEIGHT = float(np.finfo(np.float32).max)


@dataclass(frozen=True, slots=True)
class _Projected:
    """One head before any norm, with the numbers of its weights that are NaN or infinite."""

    law: Law
    width: int
    non_finite: int


def read_heads(tensors: Tensors, module: Projections, facts: Facts) -> Iterator[Metrics]:
    """One dictionary per query head; `docs/audit.md` says what each number is.

    The key of a group of query heads is read once. Held are a query and a key head, as d_k x d_k matrices, and a block
    of weights; where the rows of a head do not lie together, as many heads as LARGEST_GRAMS has room for.
    """
    query, key = _sides(tensors, module, facts)
    group = facts.heads // facts.key_heads
    with np.errstate(all="ignore"):  # what overflows is counted and said
        norms = None
        if module.query_norm is not None and module.key_norm is not None:
            norms = _Norm(tensors, module.query_norm, facts, query), _Norm(tensors, module.key_norm, facts, key)
        queries = query.heads(tensors)
        for key_head, one_key in enumerate(key.heads(tensors)):
            normed_key = None if norms is None or one_key.non_finite else norms[1].law(key_head, one_key.law)
            for head in range(key_head * group, (key_head + 1) * group):
                one = next(queries)
                if norms is None:
                    yield _plain(one, one_key, facts)
                else:
                    yield _normed(head, one, key_head, one_key, normed_key, *norms, facts)


def work_of(tensors: Tensors, module: Projections, facts: Facts) -> tuple[float, int]:
    """Multiply-adds that the heads of a module take, about, and the bytes of their weights; an error if shapes differ.

    A Gram matrix takes d_k^2 for every column, and what follows some forty times d_k^3.
    """
    work, size = 0.0, 0
    for side in _sides(tensors, module, facts):
        numbers = side.count * side.d_k * side.width
        passes = 2 if side.together else 1
        work += passes * (numbers * (side.d_k + 16.0) + 40.0 * side.count * side.d_k**3)
        size += passes * numbers * tensors.itemsize(side.name)
    return work, size


@dataclass(frozen=True, slots=True)
class _Side:
    """Queries, or keys, of one module: where each head begins, and how to read it.

    turned     whether the weights are kept as (inputs, outputs), as GPT-2 does
    together   whether a norm goes over all heads at once: they are then read twice
    """

    name: str
    bias: str | None
    count: int
    d_k: int
    width: int
    turned: bool
    start: Callable[[int], int]
    together: bool = False

    def heads(self, tensors: Tensors) -> Iterator[_Projected]:
        """W W' of every head, added up block by block."""
        grams = self._turned_grams(tensors) if self.turned else self._grams(tensors)
        for head, (gram, non_finite) in enumerate(grams):
            at = self.start(head)
            mean = np.zeros(self.d_k) if self.bias is None else tensors.read(self.bias, slice(at, at + self.d_k))
            yield _Projected(Law(mean, gram), self.width, non_finite + _beyond(mean))

    def _grams(self, tensors: Tensors) -> Iterator[tuple[Floats, int]]:
        """One head after the other: the rows of a head lie together."""
        step = max(1, LARGEST_BLOCK // self.d_k)
        for head in range(self.count):
            gram, non_finite, at = np.zeros((self.d_k, self.d_k)), 0, self.start(head)
            for first in range(0, self.width, step):
                columns = slice(first, min(first + step, self.width))
                gram, non_finite = _added(gram, non_finite, tensors.read(self.name, slice(at, at + self.d_k), columns))
            yield gram, non_finite

    def _turned_grams(self, tensors: Tensors) -> Iterator[tuple[Floats, int]]:
        """Several heads at once, some inputs at a time: a head lies scattered over the whole tensor."""
        d = self.d_k
        several = max(1, LARGEST_GRAMS // (8 * d * d))
        for head in range(0, self.count, several):
            starts = [self.start(one) for one in range(head, min(head + several, self.count))]
            left, right = starts[0], starts[-1] + d
            found, step = [(np.zeros((d, d)), 0) for _ in starts], max(1, LARGEST_BLOCK // (right - left))
            for first in range(0, self.width, step):
                rows = slice(first, min(first + step, self.width))
                block = tensors.read(self.name, rows, slice(left, right)).T
                found = [_added(*one, block[at - left : at - left + d]) for one, at in zip(found, starts, strict=True)]
            yield from found


def _sides(tensors: Tensors, module: Projections, facts: Facts) -> tuple[_Side, _Side]:
    """Both sides of a module; an error if the tensors have other shapes than the config says."""
    d, heads, key_heads, group = facts.d_k, facts.heads, facts.key_heads, facts.heads // facts.key_heads
    query_at: Callable[[int], int]
    key_at: Callable[[int], int]
    if module.layout == "split":
        rows = (heads * d, key_heads * d)
        expected = (f"{heads} heads of {d}", f"{key_heads} key heads of {d}")
        query_at = key_at = lambda head: head * d
    else:
        rows = ((heads + 2 * key_heads) * d,) * 2
        expected = (f"{heads} query, {key_heads} key and {key_heads} value heads of {d}",) * 2
        if module.layout == "blocks":
            query_at, key_at = lambda head: head * d, lambda head: (heads + head) * d
        else:
            query_at = lambda head: (head + 2 * (head // group)) * d  # noqa: E731 -- beside its three siblings
            key_at = lambda head: (head * (group + 2) + group) * d  # noqa: E731
    sides = []
    for name, bias, norm, count, total, words, at in (
        (module.query, module.query_bias, module.query_norm, heads, rows[0], expected[0], query_at),
        (module.key, module.key_bias, module.key_norm, key_heads, rows[1], expected[1], key_at),
    ):
        width = _checked_width(tensors, name, total, words)
        if bias is not None and tensors.shape(bias) != (total,):
            raise ArgumentError(
                f"path: {shown_text(bias)} must have {total} numbers, one for each output of "
                f"{shown_text(name)}, got shape {list(tensors.shape(bias))}"
            )
        together = norm is not None and count > 1 and tensors.shape(f"{norm}.weight") == (count * d,)
        sides.append(_Side(name, bias, count, d, width, _is_turned(name), at, together))
    return sides[0], sides[1]


def _checked_width(tensors: Tensors, name: str, rows: int, expected: str) -> int:
    """How many inputs a projection has."""
    shape, turned = tensors.shape(name), _is_turned(name)
    if len(shape) != 2 or shape[turned] != rows:
        raise ArgumentError(
            f"path: {shown_text(name)} must have {rows} {'columns' if turned else 'rows'}, {expected} as its config "
            f"says, got shape {list(shape)}"
        )
    if not 1 <= shape[1 - turned] <= LARGEST_WIDTH:
        raise ArgumentError(
            f"path: {shown_text(name)} must have 1 to {LARGEST_WIDTH} {'rows' if turned else 'columns'}, got shape "
            f"{list(shape)}"
        )
    return shape[1 - turned]


def _is_turned(name: str) -> bool:
    """GPT-2 keeps its weights turned: (inputs, outputs)."""
    return name.endswith("c_attn.weight")


def _added(gram: Floats, non_finite: int, block: Floats) -> tuple[Floats, int]:
    non_finite += _beyond(block)
    return (gram if non_finite else gram + block @ block.T), non_finite


def _beyond(numbers: Floats) -> int:
    """How many are NaN, infinite, or would be in float32."""
    if numbers.min() >= -_LARGEST_WEIGHT and numbers.max() <= _LARGEST_WEIGHT:  # false with a NaN in it
        return 0
    return int(np.count_nonzero(~(np.abs(numbers) <= _LARGEST_WEIGHT)))


def _plain(query: _Projected, key: _Projected, facts: Facts) -> Metrics:
    non_finite = query.non_finite + key.non_finite
    if non_finite:
        return _metrics(facts, non_finite, math.nan, math.nan, spectral_bound=math.nan)
    bound = spectral_bound(query.law, key.law, query.width, key.width, rotated=facts.rotated)
    if facts.clip is not None:
        bound = min(bound, facts.d_k * facts.clip**2)
    variances = row_variance(query.law, key.law), row_variance_bound(query.law, key.law)
    return _metrics(facts, 0, *variances, spectral_bound=bound * facts.scale.value)


class _Norm:
    """QK-norm of the queries, or of the keys, of one module.

    Its gain has d_k numbers for all heads alike, or d_k for each head. Where they lie in one row of heads x d_k, as in
    OLMo 2, the length is taken over all heads together.
    """

    def __init__(self, tensors: Tensors, name: str, facts: Facts, side: _Side) -> None:
        d, heads = facts.d_k, side.count
        self._gain = _gains(tensors, f"{name}.weight", heads, d) + facts.gain_offset
        shift = f"{name}.bias"
        self._shift = _gains(tensors, shift, heads, d) if shift in tensors else np.zeros((1, d))
        self.length = heads * d if side.together else d
        self._centred = facts.centred_norm or shift in tensors
        self._epsilon = facts.epsilon
        # What a mean over all heads takes off is one component of many: left out.
        self._together = None
        if side.together:
            heads_read = (one.law.turned() for one in side.heads(tensors) if not one.non_finite)
            self._together = Together.of(heads_read, self.length, self._epsilon)

    def of(self, head: int) -> tuple[Floats, Floats]:
        """Gain and shift of one head."""
        return self._gain[head % len(self._gain)], self._shift[head % len(self._shift)]

    def law(self, head: int, law: Law) -> Law:
        """What one head becomes."""
        if self._together is not None:
            normed = self._together.normed(law.turned())
        else:
            normed = (law.centred() if self._centred else law).normed(self._epsilon)
        return normed.scaled(*self.of(head))


def _gains(tensors: Tensors, name: str, heads: int, d: int) -> Floats:
    """(1, d) if all heads share them, else (heads, d)."""
    shape = tensors.shape(name)
    if shape not in ((d,), (heads, d), (heads * d,)):
        raise ArgumentError(
            f"path: {shown_text(name)} must have {d} numbers, or that for {heads} heads, got shape {list(shape)}"
        )
    return tensors.read(name).reshape(-1, d)


def _normed(
    head: int, query: _Projected, key_head: int, key: _Projected, key_law: Law | None, q_norm: _Norm, k_norm: _Norm,
    facts: Facts,
) -> Metrics:  # fmt: skip
    gains = (*q_norm.of(head), *k_norm.of(key_head))
    non_finite = query.non_finite + key.non_finite + sum(_beyond(gain) for gain in gains)
    if non_finite or key_law is None:
        return _metrics(facts, non_finite, math.nan, math.nan, gain_bound=math.nan)
    lengths = (q_norm.length, k_norm.length)
    bound = gain_bound(q_norm.of(head), k_norm.of(key_head), lengths, rotated=facts.rotated)
    laws = q_norm.law(head, query.law), key_law
    return _metrics(facts, 0, row_variance(*laws), row_variance_bound(*laws), gain_bound=bound * facts.scale.value)


def _metrics(facts: Facts, non_finite: int, variance: float, bound: float, **bounds: float) -> Metrics:
    scale = facts.scale.value
    variance = variance if math.isnan(variance) else max(variance, 0.0)  # 0 less a rounding error
    return {
        "predicted_variance": scale**2 * variance,
        "predicted_deviation": scale * math.sqrt(variance),
        "variance_bound": scale**2 * bound,
        **bounds,
        "scale": scale,
        "scale_ratio": scale * math.sqrt(facts.d_k),
        "d_k": float(facts.d_k),
        "non_finite_weights": float(non_finite),
    }
