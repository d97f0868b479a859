"""Rows of a call: which keys they see, what is added to their logits, a Reading of them, and the scale that was used.

The scale that a call states need not be the one that its function uses. When the keys and values are known, the output
of a row is a function of the scale alone,

    out(t) = sum_j p_j(t) v_j,    p = softmax(cap(t <q, k_j>) + bias_j),

and d out/dt = sum_j p_j (g_j - sum_l p_l g_l) v_j with g_j the derivative of logit j. A few Gauss-Newton steps in
float64 find the t that gives the output of the model.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rootdk.audit.layer import MIN_KEYS, Pointed
from rootdk.audit.watching.call import Call, split


@dataclass(frozen=True, slots=True)
class Sight:
    """mask and bias broadcast to (..., heads, rows, n_key); where causal and reach are set, the kernel follows them."""

    mask: Tensor | None
    bias: Tensor | None
    positions: Tensor | None  # which rows were taken; None for all
    first: Tensor | None  # (...) the first key that any row sees in each batch entry; None where that is key 0 in all


def sight_of(call: Call) -> Sight:
    """The Sight of all rows."""
    hidden, bias = split(call.added)
    mask = hidden if call.mask is None else call.mask if hidden is None else call.mask & hidden
    first = None
    if mask is not None and mask.dim() > 1:
        # Padding on the left moves the first key.
        seen = mask.any(dim=-2)
        seen = seen.any(dim=-2) if seen.dim() > 1 else seen
        starts = seen.to(torch.uint8).argmax(dim=-1)
        # To check whether that is key 0 in all would wait for another device.
        first = starts.expand(call.query.shape[:-3]) if not starts.is_cpu or bool(starts.any()) else None
    return Sight(mask, bias, None, first)


def at_rows(sight: Sight, call: Call, positions: Tensor) -> Sight:
    """The Sight of some rows, with causal and reach in the mask."""
    mask, bias = _rows(sight.mask, positions), _rows(sight.bias, positions)
    if call.causal or call.reach is not None:
        keys = torch.arange(call.key.shape[-2], device=call.key.device)
        near = torch.ones(len(positions), len(keys), dtype=torch.bool, device=keys.device)
        if call.causal:
            near &= keys <= positions[:, None]
        if call.reach is not None:
            near &= keys >= positions[:, None] - call.reach
        mask = near if mask is None else mask & near
    return Sight(mask, bias, positions, sight.first)


def sampled_rows(n_query: int, rows: int, device: torch.device) -> Tensor:
    """Which rows a sample takes: evenly spread, the first and the last among them; no random number is used up.

    >>> sampled_rows(10, 4, torch.device("cpu")).tolist()
    [0, 3, 6, 9]
    """
    # With integers, on the device itself: not every device has float64, and a copy from the CPU would be one more
    # launch.
    number = torch.arange(rows, device=device)
    return (2 * (n_query - 1) * number + rows - 1) // (2 * max(rows - 1, 1))


def _rows(tensor: Tensor | None, positions: Tensor) -> Tensor | None:
    if tensor is None or tensor.dim() < 2 or tensor.shape[-2] == 1:
        return tensor
    return tensor.index_select(-2, positions)


def fields_of_logits(logits: Tensor, visible: Tensor | None, sinks: Tensor | None) -> dict[str, Any]:
    """The fields of a Reading for logits (..., heads, rows, keys), each (..., heads, rows).

    visible   None, or bool that broadcasts to the logits
    sinks     None, or (heads,)

    The float64 reference (rootdk.backends.reference) is the definition, and tests compare every field with it.
    """
    logits = logits if logits.dtype == torch.float64 else logits.float()
    none = logits.new_zeros(())
    seen = torch.ones_like(logits, dtype=torch.bool) if visible is None else visible.expand(logits.shape)
    keys = seen.sum(dim=-1)
    sees_any = keys > 0
    count = keys.clamp(min=1).to(logits.dtype)
    highest = torch.where(seen, logits, -torch.inf).amax(dim=-1)
    lowest = torch.where(seen, logits, torch.inf).amin(dim=-1)
    mean = torch.where(seen, logits, none).sum(dim=-1) / count
    variance = torch.where(seen, (logits - mean[..., None]).square(), none).sum(dim=-1) / count
    sink = None if sinks is None else sinks.to(logits)[:, None].expand(highest.shape)
    level = highest if sink is None else torch.maximum(highest, sink)
    level = torch.where(torch.isinf(level), none, level)  # nothing seen: -inf - -inf would be NaN
    mass = torch.where(seen, (logits - level[..., None]).exp(), none)
    sink_part = torch.zeros_like(highest) if sink is None else (sink - level).exp()
    total = mass.sum(dim=-1) + sink_part
    log_sum_exp = level + total.log()
    whole = torch.where(total > 0, total, 1.0)
    p, sink_mass = mass / whole[..., None], sink_part / whole
    expected = torch.where(seen, p * logits, none).sum(dim=-1)
    if sink is not None:
        expected = expected + sink_mass * sink
    fields = {
        "log_sum_exp": log_sum_exp,
        "max": highest,
        "min": lowest,
        "mean": mean,
        "variance": variance,
        "entropy": torch.where(total > 0, log_sum_exp - expected, none).clamp(min=0),
        "p_squared": p.square().sum(dim=-1),
        "p_cubed": (p * p * p).sum(dim=-1),
        "sink_mass": sink_mass,
    }
    broken = sees_any & ~torch.isfinite(variance)
    return {name: torch.where(broken, torch.nan, field) for name, field in fields.items()} | {"keys": keys}


def most_pointed(logits: Tensor, visible: Tensor | None, log_sum_exp: Tensor, keys: Tensor) -> Pointed:
    """The key that most of these rows point at, for logits (..., heads, rows, keys); rows with a NaN do not count.

    log_sum_exp, keys   (..., heads, rows), as in the Reading of these rows
    """
    heads, rows, n_key = logits.shape[-3:]
    if visible is not None:
        logits = torch.where(visible, logits, -torch.inf)
    logits = logits.reshape(-1, heads, rows, n_key)
    sums, seen = (field.reshape(-1, heads, rows) for field in (log_sum_exp, keys))
    used = (seen >= MIN_KEYS) & torch.isfinite(sums)
    # max and not argmax, which takes twice as long.
    votes = torch.zeros_like(logits[..., 0, :]).scatter_add_(-1, logits.max(dim=-1).indices, used.to(logits.dtype))
    most, key = votes.max(dim=-1)
    of_key = logits.gather(-1, key[..., None, None].expand(-1, -1, rows, 1))[..., 0]
    count = used.sum(dim=-1).to(logits.dtype)
    mass = torch.where(used, (of_key - sums).exp(), 0.0).sum(dim=-1) / count  # 0 / 0 is NaN: no row sees enough
    return Pointed(key, most / count, mass)


def grouped_scores(query: Tensor, key: Tensor) -> Tensor:
    """<q_i, k_j>, (..., heads, rows, keys), where several heads may share a key head."""
    wide = torch.float64 if query.dtype == torch.float64 else torch.float32
    *leading, heads, rows, d = query.shape
    kv_heads, n_key = key.shape[-3], key.shape[-2]
    shared, keys = query.to(wide).reshape(*leading, kv_heads, heads // kv_heads * rows, d), key.to(wide)
    # For one key a product of matrices takes three times as long as the sum.
    scores = (shared * keys).sum(dim=-1) if n_key == 1 else shared @ keys.transpose(-1, -2)
    return scores.reshape(*leading, heads, rows, n_key)


_STEPS, _HALVINGS = 12, 6
# Another scale is accepted if its error is at most this share of the given scale's, and if it differs by more than this
# share.
_BETTER, _APART = 0.25, 0.01
# Below this error the given scale explains the output, and the rest is rounding: of logits of 1e3, or of a half type.
_NOISE = 1e-3


@dataclass(frozen=True, slots=True)
class Scale:
    """The scale of a layer's logits, checked against its output in one row."""

    used: float  # the given one, unless another explains the output far better
    given: float  # what the call said
    mismatch: float  # |out - out(used)| / |out|; NaN where it could not be checked (dropout, no rows)


def scale_of(call: Call) -> Scale:
    """Check one row of every head, the last of the first batch entry.

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
    # One row is little to copy, and not every device has float64.
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
