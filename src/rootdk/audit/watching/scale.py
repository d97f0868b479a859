"""The scale that a model really used, found from what its attention returned.

What a call says about its scale need not be what the function behind it does. With the keys and values at hand, the
output of a row is a function of the scale alone,

    out(t) = sum_j p_j(t) v_j,    p = softmax(cap(t <q, k_j>) + bias_j),

and d out/dt = sum_j p_j (g_j - sum_l p_l g_l) v_j with g_j the derivative of logit j. A few Gauss-Newton steps in
float64 find the t that gives the output of the model.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from rootdk.audit.watching.call import Call
from rootdk.audit.watching.rows import at_rows, grouped_scores, sight_of

_STEPS, _HALVINGS = 12, 6
# How much better than the given scale another one must explain the output, and how far from it, to be believed.
_BETTER, _APART = 0.25, 0.01
# Below this the given scale explains the output, and what is left is rounding: of logits of 1e3, or of a half type.
_NOISE = 1e-3


@dataclass(frozen=True, slots=True)
class Scale:
    """used      the scale of the logits: the given one, unless another explains the output far better
    given     what the call said
    mismatch  |out - out(used)| / |out| of the row that was looked at; NaN where it could not be (dropout, no rows)
    """  # noqa: D205, D400 -- a list of fields

    used: float
    given: float
    mismatch: float


def scale_of(call: Call) -> Scale:
    """Look at one row of every head, the last of the first batch entry.

    >>> import torch
    >>> from rootdk.audit.watching.call import of_sdpa
    >>> q, k, v = torch.randn(3, 2, 16, 8, generator=torch.Generator().manual_seed(0)).unbind(0)
    >>> out = torch.nn.functional.scaled_dot_product_attention(q, k, v, scale=0.7)
    >>> round(scale_of(of_sdpa(out, q, k, v, scale=0.1)).used, 4)      # the call does not tell the truth
    0.7
    """
    unknown = Scale(call.scale, call.scale, math.nan)
    nothing = 0 in call.query.shape or 0 in call.key.shape
    if call.dropout > 0 or nothing or call.out.shape[:-1] != call.query.shape[:-1]:
        return unknown
    row = _one_row(call)
    best = call.scale
    error_given = least = row.error(best)
    for _ in range(_STEPS):
        move = row.step(best)
        # A step that overshoots is halved until it helps.
        trials = ((best + move / 2**halved) for halved in range(_HALVINGS if math.isfinite(move) else 0))
        better = next(((trial, error) for trial in trials if (error := row.error(trial)) < least), None)
        if better is None:
            break
        best, least = better
    noise = max(_NOISE, 8 * torch.finfo(call.out.dtype).eps)
    wrong = error_given > noise and abs(best - call.scale) > _APART * abs(call.scale)
    believed = wrong and least <= _BETTER * error_given
    return Scale(best, call.scale, least) if believed else Scale(call.scale, call.scale, error_given)


@dataclass(frozen=True, slots=True)
class _Row:
    """One row of each head, in float64: scores and logits' parts (heads, keys), values (heads, keys, d_v)."""

    scores: Tensor
    bias: Tensor
    softcap: float | None
    sinks: Tensor | None
    values: Tensor
    out: Tensor

    def _weights(self, scale: float) -> tuple[Tensor, Tensor]:
        raw = scale * self.scores
        slope = self.scores
        if self.softcap is not None:
            bent = torch.tanh(raw / self.softcap)
            raw, slope = self.softcap * bent, slope * (1 - bent * bent)
        logits = raw + self.bias
        if self.sinks is not None:
            logits = torch.cat([logits, self.sinks[:, None]], dim=-1)
            slope = torch.cat([slope, torch.zeros_like(slope[:, :1])], dim=-1)
        p = torch.softmax(logits, dim=-1)
        tilt = p * (slope - (p * slope).sum(dim=-1, keepdim=True))
        keys = self.scores.shape[-1]
        return p[:, :keys], tilt[:, :keys]

    def _out(self, weights: Tensor) -> Tensor:
        return (weights[:, None, :] @ self.values)[:, 0, :]

    def error(self, scale: float) -> float:
        """|out - out(scale)| / |out|."""
        out = self._out(self._weights(scale)[0])
        return float((out - self.out).norm() / self.out.norm().clamp(min=1e-300))

    def step(self, scale: float) -> float:
        """How far a step of Gauss-Newton goes; not finite where the output does not depend on the scale."""
        weights, tilt = self._weights(scale)
        slope, left = self._out(tilt), self.out - self._out(weights)
        return float((slope * left).sum() / (slope * slope).sum())


def _one_row(call: Call) -> _Row:
    heads, n_key = call.query.shape[-3], call.key.shape[-2]
    place = torch.tensor([call.query.shape[-2] - 1], device=call.query.device)
    sight = at_rows(sight_of(call), call, place)
    # One row is little to carry, and not every device has float64.
    query, key, value, out = (_first(tensor).cpu() for tensor in (call.query, call.key, call.value, call.out))
    scores = grouped_scores(query[:, -1:].double(), key.double())[:, 0]
    bias = scores.new_zeros(scores.shape)
    for part, hides in ((sight.bias, False), (sight.mask, True)):
        if part is None:
            continue
        row = _first(part.expand(*call.query.shape[:-3], heads, 1, n_key))[:, 0].cpu()
        bias = torch.where(row, bias, -torch.inf) if hides else bias + row
    values = value.double().repeat_interleave(heads // value.shape[0], dim=0)
    sinks = None if call.sinks is None else call.sinks.cpu().double()
    scores = torch.where(torch.isinf(bias), 0.0, scores)  # a hidden key may hold anything
    values = torch.where(torch.isinf(bias)[..., None], 0.0, values)
    return _Row(scores, bias, call.softcap, sinks, values, out[:, -1].double())


def _first(tensor: Tensor) -> Tensor:
    """The first batch entry, (heads, n, d)."""
    return tensor[(0,) * (tensor.dim() - 3)]
