"""The operator in plain tensor operations, for second derivatives: it holds the n_query x n_key scores.

It follows the reference line by line and is used where the kernel has no formula: the derivative of the backward pass
(create_graph=True), and weights that a caller asks to see.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...options import Learnable, Problem
from .. import reference


def weights(problem: Problem, given: Learnable) -> Tensor:
    """The weights before dropout, (*leading, heads, n_query, n_key), differentiable in every tensor given.

    query and key are those of the problem or tensors in their place; the others default to the problem's numbers.
    """
    return _weights(problem, given)[0]


def _weights(problem: Problem, given: Learnable) -> tuple[Tensor, Tensor]:
    """The weights, and which pairs are visible."""
    query, key = given.query, given.key
    wide = torch.float64 if query.dtype == torch.float64 else torch.float32
    query, key = query.to(wide), _per_query_head(problem, key.to(wide))
    factor = _rows(problem, wide) * (problem.scale if given.scale is None else given.scale.to(wide))
    bias = problem.bias if given.bias is None else given.bias
    lost = None
    if problem.alibi is not None:
        slopes = given.alibi
        if slopes is None:
            slopes = torch.tensor(problem.alibi, device="cpu").reshape(query.shape[:-2])
        lost = slopes.to(wide)[..., None, None] * _per_entry(problem, reference.distances).to(wide)

    def logits_of(scores: Tensor) -> Tensor:
        logits = factor * scores
        if problem.softcap is not None:
            logits = problem.softcap * torch.tanh(logits / problem.softcap)
        if lost is not None:
            logits = logits - lost
        return logits if bias is None else logits + bias.to(wide)

    with torch.no_grad():
        visible = _per_entry(problem, reference.allowed) & (logits_of(query @ key.transpose(-1, -2)) != -math.inf)
    if problem.mask is not None:
        visible = visible & problem.mask
    if bias is not None:
        visible = visible & (bias != -math.inf)
    logits = torch.where(visible, logits_of(_VisibleScores.apply(query, key, visible)), -math.inf)
    if problem.sinks is None:
        sink = logits.new_full((*logits.shape[:-1], 1), -math.inf)
    else:
        sinks = torch.tensor(problem.sinks, device="cpu") if given.sinks is None else given.sinks
        sink = sinks.to(wide)[:, None, None].expand(*logits.shape[:-1], 1)
    # A row that sees nothing has no largest logit; -inf - -inf would be NaN.
    shift = torch.cat([logits, sink], dim=-1).detach().amax(dim=-1, keepdim=True)
    shift = torch.where(shift == -math.inf, 0.0, shift)
    sizes = torch.where(visible, torch.exp(torch.where(visible, logits - shift, 0.0)), 0.0)
    total = sizes.sum(dim=-1, keepdim=True) + torch.exp(sink - shift)
    return sizes / torch.where(total == 0, 1.0, total), visible


class _VisibleScores(torch.autograd.Function):  # type: ignore[misc]
    """<left_i, right_j> where the pair is visible, else 0: in the value and in every derivative.

    A product with a mask after it would be 0 there as well, but its derivative 0 * NaN where a hidden row holds a NaN.
    """

    @staticmethod
    def forward(ctx: Any, left: Tensor, right: Tensor, visible: Tensor) -> Tensor:
        ctx.save_for_backward(left, right, visible)
        return torch.where(visible, left @ right.transpose(-1, -2), 0.0)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        left, right, visible = ctx.saved_tensors
        d_left = _VisibleProduct.apply(grad, right, visible)
        d_right = _VisibleProduct.apply(grad.transpose(-1, -2), left, visible.transpose(-1, -2))
        return d_left, d_right, None


class _VisibleProduct(torch.autograd.Function):  # type: ignore[misc]
    """sum over visible j of weights_ij * rows_j, whatever the hidden rows hold: the derivative of _VisibleScores."""

    @staticmethod
    def forward(ctx: Any, weights: Tensor, rows: Tensor, visible: Tensor) -> Tensor:
        ctx.save_for_backward(weights, rows, visible)
        weights = torch.where(visible, weights, 0.0)
        broken = ~rows.isfinite().all(dim=-1)
        if not broken.any():
            return weights @ rows
        product = weights @ torch.where(broken[..., None], 0.0, rows)
        for j in broken.reshape(-1, broken.shape[-1]).any(dim=0).nonzero()[:, 0]:
            counts = visible[..., j, None] & broken[..., None, j, None]
            product = product + torch.where(counts, weights[..., j, None] * rows[..., None, j, :], 0.0)
        return product

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        weights, rows, visible = ctx.saved_tensors
        d_weights = _VisibleScores.apply(grad, rows, visible)
        d_rows = _VisibleProduct.apply(weights.transpose(-1, -2), grad, visible.transpose(-1, -2))
        return d_weights, d_rows, None


def dropped(problem: Problem, weights: Tensor) -> Tensor:
    """The weights with dropout applied: the pairs and the factor of the kernel."""
    if problem.dropout == 0:
        return weights
    batch, heads = len(problem.query_offset), problem.query.shape[-3]
    gone = np.array([[reference.dropped(problem, b, h) for h in range(heads)] for b in range(batch)], np.bool_)
    factors = torch.from_numpy(np.where(gone, 0.0, 1 / (1 - problem.dropout))).to(weights.dtype)
    return weights * factors.reshape(weights.shape)


def _output(problem: Problem, given: Learnable) -> Tensor:
    """The output in the wide type: float64 for float64, else float32."""
    undropped, visible = _weights(problem, given)
    dropped_weights = dropped(problem, undropped)
    return _VisibleProduct.apply(
        dropped_weights, _per_query_head(problem, given.value.to(dropped_weights.dtype)), visible
    )


def second_derivative(grads: Learnable, d_out: Tensor, problem: Problem, given: Learnable) -> tuple[Any, Learnable]:
    """The gradients of sum(grads * gradients), field by field: in d_out, and in every given tensor."""
    further = torch.is_grad_enabled()
    with torch.enable_grad():
        # Fresh views, because one tensor may be query and key at once and each has a derivative of its own.
        leaves = Learnable._make(map(_leaf, given))
        d_out = _leaf(d_out)
        present = {name: leaf for name, leaf in leaves._asdict().items() if leaf is not None}
        out = _output(problem, leaves)
        firsts = torch.autograd.grad(out, list(present.values()), d_out.to(out.dtype), create_graph=True)
        outer_grads = [getattr(grads, name) for name in present]
        pairs = [(first, grad) for first, grad in zip(firsts, outer_grads, strict=True) if grad is not None]
        if not pairs:
            return None, Learnable()
        d_d_out, *seconds = torch.autograd.grad(
            [first for first, _ in pairs],
            [d_out, *present.values()],
            [grad.to(first.dtype) for first, grad in pairs],
            create_graph=further,
            allow_unused=True,
        )
    return d_d_out, Learnable(**dict(zip(present, seconds, strict=True)))


def _leaf(tensor: Any) -> Any:
    if tensor is None:
        return None
    return tensor.view_as(tensor) if tensor.requires_grad else tensor.detach().requires_grad_()


def _per_entry(problem: Problem, pairs_of: Callable[[Problem, int], Any]) -> Tensor:
    """The reference's result for the pairs of every batch entry, (*leading, 1, n_query, n_key)."""
    entries = [pairs_of(problem, b) for b in range(len(problem.query_offset))]
    n_query, n_key = problem.query.shape[-2], problem.key.shape[-2]
    stacked = np.stack(entries) if entries else np.ones((0, n_query, n_key), np.bool_)
    return torch.from_numpy(stacked).reshape(*problem.query.shape[:-3], 1, n_query, n_key)


def _rows(problem: Problem, dtype: Any) -> Any:
    """The factor of every row, (*leading, 1, n_query, 1)."""
    if problem.row_scale is None:
        return 1.0
    shape = problem.query.shape
    return torch.tensor(problem.row_scale, dtype=dtype, device="cpu").reshape(*shape[:-3], 1, shape[-2], 1)


def _per_query_head(problem: Problem, tensor: Tensor) -> Tensor:
    shared = problem.key.shape[-3]
    return tensor.repeat_interleave(problem.query.shape[-3] // shared if shared else 1, dim=-3)
