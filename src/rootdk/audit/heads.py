"""The numbers of every head of one attention module, read from its weights."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from rootdk.errors import ArgumentError

from .bounds import gain_bound, spectral_bound
from .config import Facts
from .law import Floats, Law, normed_together, row_variance, row_variance_bound
from .names import Projections
from .tensors import Tensors

Metrics = dict[str, float]

# float64 numbers of one block of a projection: 4 MiB.
_BLOCK = 2**19


@dataclass(frozen=True, slots=True)
class _Projected:
    """One head before any norm, with the numbers of its weights that are NaN or infinite."""

    law: Law
    width: int
    non_finite: int


def read_heads(tensors: Tensors, found: Projections, facts: Facts) -> list[Metrics]:
    """One dictionary per query head; `docs/audit.md` says what each number is.

    The key of a group of query heads is read once. Nothing larger than a block of one head is held.
    """
    query_at, key_at = _starts(tensors, found, facts)
    queries = _project(
        tensors, found.query, found.query_bias, [query_at(head) for head in range(facts.heads)], facts.d_k
    )
    keys = _project(tensors, found.key, found.key_bias, [key_at(head) for head in range(facts.key_heads)], facts.d_k)
    group = facts.heads // facts.key_heads
    if found.query_norm is None or found.key_norm is None:
        return [_plain(query, keys[head // group], facts) for head, query in enumerate(queries)]
    q_norm = _Norm(tensors, found.query_norm, facts, facts.heads, queries)
    k_norm = _Norm(tensors, found.key_norm, facts, facts.key_heads, keys)
    return [_normed(head, query, head // group, keys[head // group], q_norm, k_norm, facts)
            for head, query in enumerate(queries)]  # fmt: skip


def _starts(tensors: Tensors, found: Projections, facts: Facts) -> tuple[Callable[[int], int], Callable[[int], int]]:
    """Where the rows of a query head and of a key head start; an error if the tensors have other shapes."""
    d, heads, key_heads, group = facts.d_k, facts.heads, facts.key_heads, facts.heads // facts.key_heads
    if found.layout == "split":
        _check_rows(tensors, found.query, heads * d, f"{heads} heads of {d}")
        _check_rows(tensors, found.key, key_heads * d, f"{key_heads} key heads of {d}")
        return lambda head: head * d, lambda head: head * d
    expected = f"{heads} query, {key_heads} key and {key_heads} value heads of {d}"
    _check_rows(tensors, found.query, (heads + 2 * key_heads) * d, expected)
    if found.layout == "blocks":
        return lambda head: head * d, lambda head: (heads + head) * d
    return (
        lambda head: (head + 2 * (head // group)) * d,
        lambda head: (head * (group + 2) + group) * d,
    )


def _check_rows(tensors: Tensors, name: str, rows: int, expected: str) -> None:
    shape = tensors.shapes[name]
    if len(shape) != 2 or shape[_row_axis(name)] != rows:
        raise ArgumentError(
            f"path: {name} must have {rows} {'columns' if _row_axis(name) else 'rows'}, {expected} as its config says, "
            f"got shape {list(shape)}"
        )


def _row_axis(name: str) -> int:
    """GPT-2 keeps its weights turned: (inputs, outputs)."""
    return 1 if name.endswith("c_attn.weight") else 0


def _project(tensors: Tensors, name: str, bias: str | None, starts: Sequence[int], d: int) -> list[_Projected]:
    """W W' of every head, added up block by block."""
    laws, width = [], tensors.shapes[name][1 - _row_axis(name)]
    grams = _turned_grams(tensors, name, starts, d) if _row_axis(name) else _grams(tensors, name, starts, d)
    for start, (gram, non_finite) in zip(starts, grams, strict=True):
        mean = np.zeros(d) if bias is None else tensors.read(bias, slice(start, start + d))
        strange = non_finite + int(np.count_nonzero(~np.isfinite(mean)))
        laws.append(_Projected(Law(mean, gram), width, strange))
    return laws


def _grams(tensors: Tensors, name: str, starts: Sequence[int], d: int) -> Iterator[tuple[Floats, int]]:
    """One head after the other: the rows of a head lie together."""
    width, step = tensors.shapes[name][1], max(1, _BLOCK // d)
    for start in starts:
        gram, non_finite = np.zeros((d, d)), 0
        for first in range(0, width, step):
            block = tensors.read(name, slice(start, start + d), slice(first, min(first + step, width)))
            gram, non_finite = _added(gram, non_finite, block)
        yield gram, non_finite


def _turned_grams(tensors: Tensors, name: str, starts: Sequence[int], d: int) -> list[tuple[Floats, int]]:
    """All heads at once, some inputs at a time: a head lies scattered over the whole tensor."""
    width, columns = tensors.shapes[name]
    found, step = [(np.zeros((d, d)), 0) for _ in starts], max(1, _BLOCK // columns)
    for first in range(0, width, step):
        block = tensors.read(name, slice(first, min(first + step, width))).T
        found = [_added(*one, block[start : start + d]) for one, start in zip(found, starts, strict=True)]
    return found


def _added(gram: Floats, non_finite: int, block: Floats) -> tuple[Floats, int]:
    non_finite += int(np.count_nonzero(~np.isfinite(block)))
    return (gram if non_finite else gram + block @ block.T), non_finite


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

    def __init__(self, tensors: Tensors, name: str, facts: Facts, heads: int, parts: Sequence[_Projected]) -> None:
        d, shape = facts.d_k, tensors.shapes[f"{name}.weight"]
        if shape not in ((d,), (heads, d), (heads * d,)):
            raise ArgumentError(
                f"path: {name}.weight must have {d} numbers, or that for {heads} heads, got {list(shape)}"
            )
        self.together = shape == (heads * d,) and heads > 1
        self.length = heads * d if self.together else d
        self._gain = np.broadcast_to(tensors.read(f"{name}.weight").reshape(-1, d) + facts.gain_offset, (heads, d))
        shift = f"{name}.bias"
        self._shift = np.zeros((heads, d))
        if shift in tensors:
            self._shift = np.broadcast_to(tensors.read(shift).reshape(-1, d), (heads, d))
        self._centred = facts.centred_norm or shift in tensors
        self._epsilon = facts.epsilon
        self._laws = self._normed([one.law for one in parts])

    def of(self, head: int) -> tuple[Floats, Floats]:
        """Gain and shift of one head."""
        return self._gain[head], self._shift[head]

    def law(self, head: int) -> Law:
        """What one head becomes."""
        return self._laws[head].scaled(*self.of(head))

    def _normed(self, laws: Sequence[Law]) -> list[Law]:
        if self.together:
            # What a mean over all heads takes off is one component of many: left out.
            return list(normed_together(laws, self._epsilon))
        return [(law.centred() if self._centred else law).normed(self._epsilon) for law in laws]


def _normed(
    head: int, query: _Projected, key_head: int, key: _Projected, q_norm: _Norm, k_norm: _Norm, facts: Facts
) -> Metrics:
    gains = (*q_norm.of(head), *k_norm.of(key_head))
    non_finite = query.non_finite + key.non_finite + sum(int(np.count_nonzero(~np.isfinite(one))) for one in gains)
    if non_finite:
        return _metrics(facts, non_finite, math.nan, math.nan, gain_bound=math.nan)
    lengths = (q_norm.length, k_norm.length)
    bound = gain_bound(q_norm.of(head), k_norm.of(key_head), lengths, rotated=facts.rotated)
    laws = q_norm.law(head), k_norm.law(key_head)
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
