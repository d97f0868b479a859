r"""Rows: what is known of the rows of a rank so far, from the blocks of keys that it has seen.

A softmax over the union of disjoint sets A and B of keys follows from the two softmaxes. With m the largest logit of a
row (in units of log2), l = sum of 2^(s - m) and o the output, each over one set:

    m = max(m_A, m_B)      w_A = l_A 2^(m_A - m)      w_B = l_B 2^(m_B - m)
    l = w_A + w_B          o = (w_A o_A + w_B o_B) / l

This is exact; rounding comes from one product and one sum per block. m and l are what the kernel saves for its
backward pass, so the merged pair is what the backward pass of the whole row needs.

A sink is a key without a value: m = sink, l = 1, o = 0. A set in which a row sees nothing is m = -inf, l = 0, o = 0.

The fields of a Reading merge by Reading.merge: extremes by max and min, mean and variance by counts (Chan, Golub and
LeVeque), entropy and the powers of the weights by the shares w_A/l and w_B/l.
"""

from typing import Any

import torch
from torch import Tensor

from ..options import Problem
from ..reading import Reading, converted, reading_of, reading_of_nothing
from .layout import Piece

_LOG2_E = 1.4426950408889634


class Rows:
    """The running state of the rows of a shard, (*leading, heads, n).

    out       (..., n, d_v) in the type that is computed with, normalised over the keys seen so far
    maximum   the largest logit in log2 units
    total     the sum of 2^(s - maximum), in float64: it is rounded once, at the end
    """

    def __init__(self, problem: Problem, query: Tensor, d_v: int, pieces: tuple[Piece, ...], measured: bool) -> None:
        shape = tuple(query.shape[:-1])
        self.out = query.new_zeros((*shape, d_v))
        self.maximum = query.new_full(shape, -torch.inf)
        self.total = query.new_zeros(shape, dtype=torch.float64)
        sinks = None if problem.sinks is None else torch.from_numpy(problem.sinks).to(query.device)
        if sinks is not None:
            self.maximum[:] = (sinks * _LOG2_E).to(query.dtype)[:, None]
            # Not 1: the maximum was rounded, and its sum stands for the sink as it is.
            self.total[:] = torch.exp2(sinks[:, None] * _LOG2_E - self.maximum.double())
        self._readings: dict[Piece, Reading] = {}
        self._pieces = pieces
        if measured:
            self._readings = {piece: _nothing((*shape[:-1], piece.length), query.device, sinks) for piece in pieces}

    def add(self, piece: Piece, out: Tensor, row_state: Tensor, block: Any = None, keys: Any = None) -> None:
        """What the kernel found for the rows of a piece over one more block of keys."""
        rows = slice(piece.at, piece.at + piece.length)
        maximum, total = self.maximum[..., rows], self.total[..., rows]
        higher = torch.maximum(maximum, row_state[0])
        level = torch.where(higher == -torch.inf, 0.0, higher).double()  # nothing seen: -inf - -inf would be NaN
        before = total * torch.exp2(maximum.double() - level)
        added = row_state[1].double() * torch.exp2(row_state[0].double() - level)
        total.copy_(before + added)
        whole = torch.where(total == 0.0, 1.0, total)
        merged = self.out[..., rows, :]
        merged.mul_((before / whole).to(merged.dtype)[..., None])
        merged.addcmul_(out, (added / whole).to(merged.dtype)[..., None])
        maximum.copy_(higher)
        if block is not None:
            self._readings[piece] = self._readings[piece].merge(reading_of(block.double(), keys, False))

    def row_state(self) -> Tensor:
        """Maximum and sum as the kernel's backward pass takes them, (2, *leading, heads, n)."""
        return torch.stack([self.maximum, self.total.to(self.maximum.dtype)])

    def reading(self) -> Reading:
        """One Reading of all rows of the shard, in their order."""
        whole = Reading.concatenate(self._readings[piece] for piece in self._pieces)
        return converted(whole, lambda column: column.to(self.out.dtype) if column.is_floating_point() else column)


def _nothing(shape: tuple[int, ...], device: Any, sinks: Tensor | None) -> Reading:
    """Rows that have seen no key yet, in float64."""

    def filled(value: float) -> Tensor:
        return torch.full(shape, value, dtype=torch.float64, device=device)

    keys = torch.zeros(shape, dtype=torch.int64, device=device)
    return reading_of_nothing(filled, keys, None if sinks is None else sinks[:, None].expand(shape))
