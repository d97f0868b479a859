"""The definition of attention in float64 NumPy, head by head: the only oracle.

Slow on purpose: it holds the n_query x n_key scores of one head and follows the formulas line by line. It leaves out
blocks, running maxima, threads and every other thing that makes the compiled kernel fast.

    x_ij = scale * row_scale_i * <q_i, k_j>
    c_ij = softcap * tanh(x_ij / softcap)                     (x_ij without a softcap)
    s_ij = c_ij - alibi * |p_i - j| + bias_ij
    a pair is hidden if limits, lengths, segments, mask or a bias of -inf hide it, or if s_ij = -inf
    p_ij = exp(s_ij) / (sum over visible keys of exp(s_ij) + exp(sink))
    o_i  = sum over visible keys of dropped(p_ij) * v_j

Every function takes `compute`, the NumPy type that it computes in. float64 is the definition. The same code in float32
is the plain version whose error sets the error budget of the kernel, and in longdouble it checks float64.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..options import Learnable, Problem
from ..reading import FIELDS

Floats = Any  # an array of the type that `compute` names


class _Head(NamedTuple):
    """One query head of one batch entry."""

    batch: int
    head: int
    kv_head: int
    query: Floats
    key: Floats
    value: Floats
    factor: Floats  # (n_query, 1): scale * row_scale
    raw: Floats  # x_ij
    logits: Floats  # s_ij, -inf where hidden
    visible: NDArray[np.bool_]
    sink: Any  # a number, or None
    distance: Floats  # |p_i - j|


class _Softmax(NamedTuple):
    weights: Floats  # p_ij, 0 where hidden
    shifted: Floats  # s_ij - shift_i, 0 where hidden
    log_sum: Floats  # log of the denominator minus shift_i
    shift: Floats  # the largest outcome of the row; 0 if there is none
    sink_mass: Floats


def forward(problem: Problem, compute: Any = np.float64) -> Floats:
    """The output, (*leading, heads, n_query, d_v)."""

    def of_head(head: _Head) -> Floats:
        weights_left = _softmax(head).weights * _kept(problem, head, compute)
        return _visible_product(weights_left, head.visible, head.value)

    return _head_by_head(problem, compute, problem.value.shape[-1], of_head)


def measure(problem: Problem, compute: Any = np.float64) -> tuple[Floats, dict[str, Any]]:
    """The output, and every field of a Reading, each (*leading, heads, n_query)."""
    fields = {name: np.zeros(_flat_shape(problem), compute) for name in FIELDS}
    fields["keys"] = np.zeros(_flat_shape(problem), np.int64)
    with np.errstate(all="ignore"):
        for head in _heads(problem, compute):
            for name, column in _row_fields(head).items():
                fields[name][head.batch, head.head] = column
    shape = problem.query.shape[:-1]
    return forward(problem, compute), {name: column.reshape(shape) for name, column in fields.items()}


def logits(problem: Problem, compute: Any = np.float64) -> Floats:
    """The logits that enter the softmax, (*leading, heads, n_query, n_key); -inf where hidden."""
    return _head_by_head(problem, compute, problem.key.shape[-2], lambda head: head.logits)


def weights(problem: Problem, compute: Any = np.float64) -> Floats:
    """The weights before dropout, (*leading, heads, n_query, n_key); 0 where hidden."""
    return _head_by_head(problem, compute, problem.key.shape[-2], lambda head: _softmax(head).weights)


def backward(problem: Problem, d_out: Any, compute: Any = np.float64) -> Learnable:
    """The gradients of sum(d_out * out); that of the scale follows from d_query and is left out.

    bias has the full shape (*leading, heads, n_query, n_key) and alibi is (batch, heads), whatever they were broadcast
    from; they and sinks are None where the problem has none.
    """
    batch, heads, n_query = _flat_shape(problem)
    d_out = _flat(d_out, compute)
    d_query = np.zeros((batch, heads, n_query, problem.query.shape[-1]), compute)
    d_key = np.zeros((batch, *problem.key.shape[-3:]), compute)
    d_value = np.zeros((batch, *problem.value.shape[-3:]), compute)
    d_logits = np.zeros((batch, heads, n_query, problem.key.shape[-2]), compute)
    d_sinks, d_alibi = np.zeros(heads, compute), np.zeros((batch, heads), compute)
    with np.errstate(all="ignore"):
        for head in _heads(problem, compute):
            place, shared, seen = (head.batch, head.head), (head.batch, head.kv_head), head.visible
            soft, dropout_factor, grad = _softmax(head), _kept(problem, head, compute), d_out[head.batch, head.head]
            d_value[shared] += _visible_product((soft.weights * dropout_factor).T, seen.T, grad)
            d_weights = np.where(seen, (grad @ head.value.T) * dropout_factor, 0)
            # Hidden pairs add nothing, not even 0 * NaN; the sink has no value, so only its weight appears below.
            pulled = np.where(seen, soft.weights * d_weights, 0).sum(axis=-1, keepdims=True)
            d_logits[place] = np.where(seen, soft.weights * (d_weights - pulled), 0)
            if head.sink is not None:
                d_sinks[head.head] -= np.where(seen.any(axis=-1), soft.sink_mass * pulled[:, 0], 0).sum()
            d_alibi[place] = -(d_logits[place] * head.distance).sum()
            d_raw = d_logits[place]
            if problem.softcap is not None:
                d_raw = np.where(seen, d_raw * _slope(problem, head, compute), 0)
            d_query[place] = _visible_product(d_raw * head.factor, seen, head.key)
            d_key[shared] += _visible_product((d_raw * head.factor).T, seen.T, head.query)
    return Learnable(
        query=d_query.reshape(problem.query.shape),
        key=d_key.reshape(problem.key.shape),
        value=d_value.reshape(problem.value.shape),
        bias=None if problem.bias is None else d_logits.reshape(problem.bias.shape),
        sinks=None if problem.sinks is None else d_sinks,
        alibi=None if problem.alibi is None else d_alibi,
    )


def jvp(problem: Problem, tangents: Learnable, compute: Any = np.float64) -> Floats:
    """The derivative of the output along the tangents of the inputs, (*leading, heads, n_query, d_v)."""

    def tangent_of(name: str) -> Floats:
        tangent = getattr(tangents, name)
        return _flat(np.zeros(getattr(problem, name).shape) if tangent is None else tangent, compute)

    query, key, value = tangent_of("query"), tangent_of("key"), tangent_of("value")
    bias = None if tangents.bias is None else _flat(tangents.bias, compute)

    def of_head(head: _Head) -> Floats:
        place, shared, seen = (head.batch, head.head), (head.batch, head.kv_head), head.visible
        soft, dropout_factor = _softmax(head), _kept(problem, head, compute)
        d_raw = head.factor * (query[place] @ head.key.T + head.query @ key[shared].T)
        if tangents.scale is not None:
            d_raw = d_raw + compute(tangents.scale) * (head.query @ head.key.T)
        if problem.softcap is not None:
            d_raw = d_raw * _slope(problem, head, compute)
        d_logits = d_raw if tangents.alibi is None else d_raw - compute(tangents.alibi[place]) * head.distance
        d_logits = np.where(seen, d_logits if bias is None else d_logits + bias[place], 0)
        mean = np.where(seen, soft.weights * d_logits, 0).sum(axis=-1)
        if tangents.sinks is not None:
            mean = mean + np.where(seen.any(axis=-1), soft.sink_mass * compute(tangents.sinks[head.head]), 0)
        d_weights = np.where(seen, soft.weights * (d_logits - mean[:, None]) * dropout_factor, 0)
        through_weights = _visible_product(d_weights, seen, head.value)
        return through_weights + _visible_product(soft.weights * dropout_factor, seen, value[shared])

    return _head_by_head(problem, compute, problem.value.shape[-1], of_head)


def plain(problem: Problem, dtype: Any) -> Floats:
    """The output as a plain program of the same precision gives it: half types compute in float32, then round once."""
    dtype = np.dtype(dtype)
    return forward(problem, np.float64 if dtype == np.float64 else np.float32).astype(dtype)


def dropped(problem: Problem, batch: int, head: int) -> NDArray[np.bool_]:
    """Which weights of one head dropout removes, (n_query, n_key): a function of seed, row and key alone."""
    n_query, n_key = problem.query.shape[-2], problem.key.shape[-2]
    first = (batch * problem.query.shape[-3] + head) * n_query
    with np.errstate(over="ignore"):  # the hash is meant to wrap
        rows = np.arange(first + 1, first + 1 + n_query, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        rows = _mix64(_mix64(np.array([problem.seed], np.uint64)) + rows)[:, None]
        low, high = (rows & np.uint64(0xFFFFFFFF)).astype(np.uint32), (rows >> np.uint64(32)).astype(np.uint32)
        x = (np.arange(n_key, dtype=np.uint32) * np.uint32(0x9E3779B1)) ^ low
        x = (x ^ (x >> np.uint32(16))) * np.uint32(0x7FEB352D)
        x = ((x ^ (x >> np.uint32(15))) + high) * np.uint32(0x846CA68B)
        x = x ^ (x >> np.uint32(16))
    return np.asarray(x < np.uint32(min(round(problem.dropout * 2**32), 2**32 - 1)))


def _mix64(z: Any) -> Any:
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def _kept(problem: Problem, head: _Head, compute: Any) -> Floats:
    """The factor that dropout gives each weight: 0 or 1/(1 - dropout)."""
    if problem.dropout == 0:
        return np.ones(head.logits.shape, compute)
    return np.where(dropped(problem, head.batch, head.head), compute(0), compute(1) / compute(1 - problem.dropout))


def _slope(problem: Problem, head: _Head, compute: Any) -> Floats:
    """The derivative of the softcap."""
    return 1 - np.tanh(head.raw / compute(problem.softcap)) ** 2


def _flat(array: Any, compute: Any) -> Floats:
    """Leading axes as one; the batch is counted because -1 cannot be inferred for an array of size 0."""
    batch = int(np.prod(array.shape[:-3], dtype=np.int64))
    return np.asarray(array).reshape((batch, *array.shape[-3:])).astype(compute)


def _flat_shape(problem: Problem) -> tuple[int, int, int]:
    *leading, heads, n_query, _ = problem.query.shape
    return int(np.prod(leading, dtype=np.int64)), heads, n_query


def _head_by_head(problem: Problem, compute: Any, width: int, of_head: Callable[[_Head], Floats]) -> Floats:
    """What of_head gives for every head, (n_query, width) each, as (*leading, heads, n_query, width)."""
    full = np.zeros((*_flat_shape(problem), width), compute)
    with np.errstate(all="ignore"):
        for head in _heads(problem, compute):
            full[head.batch, head.head] = of_head(head)
    return full.reshape((*problem.query.shape[:-1], width))


def _heads(problem: Problem, compute: Any) -> Iterator[_Head]:
    batch, heads, n_query = _flat_shape(problem)
    query, key, value = (_flat(array, compute) for array in (problem.query, problem.key, problem.value))
    mask = None if problem.mask is None else _flat(problem.mask, np.bool_)
    bias = None if problem.bias is None else _flat(problem.bias, compute)
    sharing = heads // key.shape[1] if key.shape[1] else 1
    for b in range(batch):
        in_reach, distance = allowed(problem, b), distances(problem, b).astype(compute)
        factor = np.full((n_query, 1), problem.scale, compute)
        if problem.row_scale is not None:
            factor = factor * problem.row_scale[b].astype(compute)[:, None]
        for h in range(heads):
            g = h // sharing
            x = factor * (query[b, h] @ key[b, g].T)
            s = x if problem.softcap is None else compute(problem.softcap) * np.tanh(x / compute(problem.softcap))
            s = s if problem.alibi is None else s - compute(problem.alibi[b, h]) * distance
            s = s if bias is None else s + bias[b, h]
            visible = in_reach & (s != -np.inf)
            if bias is not None:
                visible = visible & (bias[b, h] != -np.inf)  # also where s is NaN
            if mask is not None:
                visible = visible & mask[b, h]
            sink = None if problem.sinks is None else compute(problem.sinks[h])
            s = np.where(visible, s, compute(-np.inf))
            yield _Head(b, h, g, query[b, h], key[b, g], value[b, g], factor, x, s, visible, sink, distance)


def distances(problem: Problem, b: int) -> Any:
    """How far every key of batch entry b is from the position of every query, (n_query, n_key)."""
    return np.abs(_positions(problem, b) - _key_positions(problem, b))


def _key_positions(problem: Problem, b: int) -> Any:
    if problem.key_positions is not None:
        return problem.key_positions[b]
    return np.arange(problem.key.shape[-2], dtype=np.int64)


def _positions(problem: Problem, b: int) -> Any:
    if problem.query_positions is not None:
        return problem.query_positions[b][:, None]
    return np.arange(problem.query.shape[-2], dtype=np.int64)[:, None] + problem.query_offset[b]


def allowed(problem: Problem, b: int) -> NDArray[np.bool_]:
    """What the limits, the length and the segments of batch entry b leave visible."""
    position, j = _positions(problem, b), _key_positions(problem, b)
    in_reach = np.ones((len(position), len(j)), np.bool_)
    if problem.left is not None:
        in_reach &= j >= position - problem.left
    if problem.right is not None:
        in_reach &= j <= position + problem.right
    if problem.key_lengths is not None:
        in_reach &= np.arange(len(j)) < problem.key_lengths[b]
    if problem.query_segments is not None:
        in_reach &= problem.query_segments[b][:, None] == problem.key_segments[b]
    return in_reach


def _softmax(head: _Head) -> _Softmax:
    shift = head.logits.max(axis=-1, initial=-np.inf)
    shift = shift if head.sink is None else np.maximum(shift, head.sink)
    shift = np.where(shift == -np.inf, 0, shift)  # a row that sees nothing: -inf - -inf would be NaN
    shifted = np.where(head.visible, head.logits - shift[:, None], 0)
    exponentials = np.where(head.visible, np.exp(shifted), 0)
    sink = np.zeros_like(shift) if head.sink is None else np.exp(head.sink - shift)
    total = exponentials.sum(axis=-1) + sink
    has_weight = total != 0
    weights = np.where(head.visible & has_weight[:, None], exponentials / total[:, None], 0)
    return _Softmax(weights, shifted, np.log(total), shift, np.where(has_weight, sink / total, 0))


def _visible_product(left: Floats, visible: NDArray[np.bool_], right: Floats) -> Floats:
    """left @ right where a hidden pair contributes nothing, even if right holds NaN or inf there."""
    broken = np.flatnonzero(~np.isfinite(right).all(axis=-1))
    if broken.size == 0:
        return left @ right
    clean = right.copy()
    clean[broken] = 0
    result = left @ clean
    for j in broken:
        result = result + np.where(visible[:, j, None], left[:, j, None] * right[j], 0)
    return result


def _row_fields(head: _Head) -> dict[str, Any]:
    soft, seen = _softmax(head), head.visible
    keys = seen.sum(axis=-1)
    count = np.maximum(keys, 1).astype(head.logits.dtype)
    mean = np.where(seen, head.logits, 0).sum(axis=-1) / count
    spread = np.where(seen, head.logits - mean[:, None], 0)
    # The same as log_sum_exp - sum p*s, without the difference of two large numbers.
    entropy = (soft.weights * (soft.log_sum[:, None] - soft.shifted)).sum(axis=-1)
    if head.sink is not None:
        entropy = entropy + soft.sink_mass * (soft.log_sum - (head.sink - soft.shift))
    fields = {
        "log_sum_exp": soft.shift + soft.log_sum,
        "max": head.logits.max(axis=-1, initial=-np.inf),
        "min": np.where(seen, head.logits, np.inf).min(axis=-1, initial=np.inf),
        "mean": mean,
        "variance": (spread * spread).sum(axis=-1) / count,
        "entropy": np.where(keys > 0, entropy, 0),
        "p_squared": (soft.weights**2).sum(axis=-1),
        "p_cubed": (soft.weights**3).sum(axis=-1),
        "sink_mass": soft.sink_mass,
    }
    undefined = (seen & (np.isnan(head.logits) | (head.logits == np.inf))).any(axis=-1)
    return {name: np.where(undefined, np.nan, column) for name, column in fields.items()} | {"keys": keys}
