"""Additive attention (Bahdanau et al. 2014), which the scale was invented to keep up with."""

import math

import torch
from torch import Tensor, nn

from rootdk.api import attention, measure
from rootdk.reading import Reading


class AdditiveAttention(nn.Module):  # type: ignore[misc]
    """softmax_j(v . tanh(q_i + k_j)) over values, per head, called as nn.MultiheadAttention is.

    tanh bounds every score by the sum of |v|, whatever d_k is; with v normal of variance 1/d_k scores start with a
    variance under 1. It holds n x n x d_k numbers per head, which is what it costs. The scores go to rootdk as the bias
    of queries and keys that are nothing, so that they can be measured like those of a dot product.

    >>> import torch
    >>> one = AdditiveAttention(8, 2, 4)
    >>> x = torch.zeros(1, 3, 8)
    >>> one(x, x, x)[0].shape
    torch.Size([1, 3, 8])
    """

    def __init__(self, width: int, heads: int, d_k: int) -> None:
        super().__init__()
        self.heads, self.measure = heads, False
        self.last_reading: Reading | None = None
        self.q_proj_weight = nn.Parameter(torch.empty(heads * d_k, width))
        self.k_proj_weight = nn.Parameter(torch.empty(heads * d_k, width))
        self.v_proj_weight = nn.Parameter(torch.empty(width, width))
        self.direction = nn.Parameter(torch.empty(heads, d_k))
        self.out_proj = nn.Linear(width, width, bias=False)
        for weight in (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight, self.direction):
            nn.init.normal_(weight, std=1 / math.sqrt(weight.shape[1]))

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        need_weights: bool = False,  # noqa: ARG002 -- there are none to give
        attn_mask: Tensor | None = None,
        is_causal: bool = False,  # noqa: ARG002 -- the mask says it
    ) -> tuple[Tensor, None]:
        """The output; attn_mask is True where a key is hidden."""
        given = ((query, self.q_proj_weight), (key, self.k_proj_weight), (value, self.v_proj_weight))
        q, k, v = (nn.functional.linear(x, w).unflatten(-1, (self.heads, -1)).transpose(1, 2) for x, w in given)
        scores = torch.cat([self._scores(rows, k) for rows in q.split(_rows_at_once(k), dim=2)], dim=2)
        mask = None if attn_mask is None else ~attn_mask
        nothing = q.new_zeros((*q.shape[:-1], 1)), k.new_zeros((*k.shape[:-1], 1))
        if self.measure:
            out, self.last_reading = measure(*nothing, v, bias=scores, mask=mask)
        else:
            out = attention(*nothing, v, bias=scores, mask=mask)
        return self.out_proj(out.transpose(1, 2).flatten(2)), None

    def _scores(self, q: Tensor, k: Tensor) -> Tensor:
        found: Tensor = torch.tanh(q[:, :, :, None] + k[:, :, None]) @ self.direction[:, None, :, None]
        return found.squeeze(-1)


def _rows_at_once(k: Tensor) -> int:
    """Queries per piece: larger pieces than this are taken from the system and given back at every step."""
    return max(1, 2**22 // int(k.numel()))
