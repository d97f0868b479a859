"""Error budgets that come from theory: 2 x (error of the plain same-precision version + rounding).

A budget is never tuned. Its two parts:

plain      the reference formulas computed in the kernel's precision, compared with the judge (float64; longdouble for
           float64 problems, since float64 cannot judge itself)
rounding   what any implementation must be allowed: with u the unit roundoff of the compute type and A the largest
           scale * sum |q||k|, one rounding of each query component moves a logit by u*A, adding the bias by another
           u*|s|, and exp, sum and division move a weight by a few u. So logits carry delta = u*(2A + 4), and a weight
           the relative error 2*delta. The result is then rounded once more to the type it is stored in.
"""

from typing import Any

import numpy as np

from rootdk import backends
from rootdk.backends import reference
from rootdk.options import Learnable, Problem


def unit_roundoff(dtype: Any) -> float:
    """Half the distance from 1 to the next number of the type; bfloat16 keeps 8 bits and NumPy cannot tell."""
    dtype = np.dtype(dtype)
    return 2.0**-8 if dtype.name == "bfloat16" else float(np.finfo(dtype).eps) / 2


def _tile_roundoff(dtype: Any) -> float:
    """On AMX the weights of half types enter the product as two bfloat16, which together keep 16 bits, rounded."""
    return 2.0**-16 if backends.kernel().target() == "amx" and np.dtype(dtype).itemsize == 2 else 0.0


def compute_type(dtype: Any) -> Any:
    """What the kernel adds up in."""
    return np.float64 if np.dtype(dtype) == np.float64 else np.float32


def judge_type(dtype: Any) -> Any:
    return np.longdouble if np.dtype(dtype) == np.float64 else np.float64


def forward_budget(problem: Problem) -> tuple[Any, float]:
    """What the output must be, and how far from it a result may lie."""
    dtype = problem.query.dtype
    expected = reference.forward(problem, judge_type(dtype))
    plain = reference.plain(problem, dtype)
    rounding = 2 * logit_error(problem) * _largest(problem.value) / (1 - problem.dropout)
    rounding += unit_roundoff(dtype) * _largest(expected)
    rounding += _tile_roundoff(dtype) * _largest(problem.value) / (1 - problem.dropout)
    return expected, 2 * (_difference(plain, expected) + rounding)


def measure_budget(problem: Problem) -> dict[str, tuple[Any, float]]:
    """The same for every float field of a Reading."""
    dtype = problem.query.dtype
    expected = reference.measure(problem, judge_type(dtype))[1]
    plain = reference.measure(problem, compute_type(dtype))[1]
    delta = logit_error(problem)
    shown = expected["keys"] > 0
    spread = _largest(np.where(shown, expected["max"], 0) - np.where(shown, expected["min"], 0))
    # n additions of one size round to either side: errors grow like sqrt(n). The kernel adds distances from the largest
    # score, as large as the spread, and the mean is that score less their mean. Its error enters the variance squared;
    # but the variance is a difference, the mean of the squared distances less the squared mean distance, each of them
    # added up of n numbers and no larger than the former.
    grown = unit_roundoff(compute_type(dtype)) * problem.key.shape[-2] ** 0.5
    adding = grown * (_largest(expected["mean"]) + spread)
    below = np.where(shown, expected["max"], 0) - expected["mean"]
    squares = _largest(np.where(shown, expected["variance"] + below * below, 0))
    moves = {
        "mean": delta + adding,
        "variance": 2 * spread * delta + (delta + adding) ** 2 + 2 * grown * squares,
        "entropy": 2 * delta * (1 + spread),
        "p_squared": 4 * delta,
        "p_cubed": 6 * delta,
        "sink_mass": 2 * delta,
    }
    budget = {}
    for name in reference.FIELDS:
        rounding = moves.get(name, delta) + unit_roundoff(compute_type(dtype)) * _largest(expected[name])
        budget[name] = (expected[name], 2 * (_difference(plain[name], expected[name]) + rounding))
    return budget


def gradient_budget(problem: Problem, d_out: Any) -> list[tuple[Any, float]]:
    """The same for d_query, d_key, d_value. The size of a gradient is that of its formula in absolute values."""
    dtype = problem.query.dtype
    expected = reference.backward(problem, d_out, judge_type(dtype))[:3]
    plain = reference.backward(problem, d_out, compute_type(dtype))[:3]
    # Half types keep the output rounded, and the pull-back reads it again.
    relative = 2 * logit_error(problem) + unit_roundoff(dtype)
    budget = []
    for result, rough, size in zip(expected, plain, _gradient_sizes(problem, d_out), strict=True):
        rounding = relative * size + unit_roundoff(dtype) * _largest(result)
        budget.append((result, 2 * (_difference(rough.astype(dtype), result) + rounding)))
    return budget


def bias_gradient_budget(problem: Problem, d_out: Any, shape: tuple[int, ...], dtype: Any) -> tuple[Any, float]:
    """The same for the gradient of a bias of that shape and type. A number that N pairs read is a sum of N terms.

    Terms of one size round to either side when they are added up: those errors grow like sqrt(N).
    """
    kind = problem.query.dtype
    expected = sum_to(reference.backward(problem, d_out, judge_type(kind)).bias, shape)
    plain = sum_to(reference.backward(problem, d_out, compute_type(kind)).bias, shape).astype(dtype)
    sizes = _d_logit_sizes(problem, d_out)
    adding = unit_roundoff(compute_type(kind)) * (sizes.size / max(expected.size, 1)) ** 0.5
    relative = 2 * logit_error(problem) + unit_roundoff(kind) + adding
    rounding = relative * _largest(sum_to(sizes, shape)) + unit_roundoff(dtype) * _largest(expected)
    return expected, 2 * (_difference(plain, expected) + rounding)


def head_gradient_budget(problem: Problem, d_out: Any, name: str, shape: tuple[int, ...]) -> tuple[Any, float]:
    """The same for the gradient of sinks or alibi of that shape: sums over rows, for alibi of logits times distances.

    A row of weights adds up to at most 1, so what its logits get is at most twice its largest |d_out| |value|'.
    """
    kind = problem.query.dtype
    full = problem.query.shape[:-2] if name == "alibi" else shape
    expected, plain = (
        sum_to(getattr(reference.backward(problem, d_out, of(kind)), name).reshape(full), shape)
        for of in (judge_type, compute_type)
    )
    away = max(_largest(reference.distances(problem, b)) for b in range(len(problem.query_offset)))
    size = 2 * float(np.abs(_finite(d_out)).sum()) * _largest(problem.value) / (1 - problem.dropout)
    rounding = (2 * logit_error(problem) + 8 * unit_roundoff(kind)) * size * (away if name == "alibi" else 1.0)
    return expected, 2 * (_difference(plain, expected) + rounding)


def scale_gradient_budget(problem: Problem, d_out: Any) -> tuple[Any, float]:
    """The same for the gradient of the scale, <d_query, query> where the query holds its scale: a long sum."""
    kind = problem.query.dtype
    exact = problem.query.astype(judge_type(kind))
    folded = problem._replace(query=exact * problem.scale, scale=1.0)
    expected, plain = (
        np.asarray((reference.backward(folded, d_out, of(kind)).query * exact.astype(of(kind))).sum())
        for of in (judge_type, compute_type)
    )
    size = _gradient_sizes(folded, d_out)[0] * float(np.abs(_finite(problem.query)).sum())
    rounding = (2 * logit_error(problem) + 8 * unit_roundoff(kind)) * size
    return expected, 2 * (_difference(plain, expected) + rounding)


def tangent_budget(problem: Problem, tangents: Learnable) -> tuple[Any, float]:
    """What the tangent of the output must be, and how far from it a result may lie.

    A weight carries its relative error as ever. The tangent of a logit is two products and the bias' tangent, each
    rounded as a logit is, times the slope of the softcap: 1 - tanh^2 moves by 2 tanh when the logit does.
    """
    dtype, wide = problem.query.dtype, compute_type(problem.query.dtype)
    expected = reference.jvp(problem, tangents, judge_type(dtype))
    plain = reference.jvp(problem, tangents, wide).astype(dtype)
    group = problem.query.shape[-3] // max(problem.key.shape[-3], 1)

    def size(array: Any, like: Any, repeats: int = 1) -> Any:
        return np.repeat(np.abs(_finite(np.zeros(like.shape) if array is None else array)), repeats, axis=-3)

    query, key, value = (size(a, a, r) for a, r in zip(problem[:3], (1, group, group), strict=True))
    d_query, d_key, d_value = (
        size(t, a, r) for t, a, r in zip(tangents[:3], problem[:3], (1, group, group), strict=True)
    )
    factor = abs(problem.scale) * (1.0 if problem.row_scale is None else _largest(problem.row_scale))
    products = factor * (d_query @ np.swapaxes(key, -1, -2) + query @ np.swapaxes(d_key, -1, -2))
    products += abs(tangents.scale or 0.0) * (query @ np.swapaxes(key, -1, -2))
    d_logits = products + (0.0 if tangents.bias is None else np.abs(_finite(tangents.bias)))
    if tangents.alibi is not None:
        empty = np.zeros((0, problem.query.shape[-2], problem.key.shape[-2]))
        apart = np.array([reference.distances(problem, b) for b in range(len(tangents.alibi))] or empty)
        lost = 2 * np.abs(tangents.alibi)[..., None, None] * apart[:, None]  # as in logit_error
        d_logits = d_logits + lost.reshape(d_logits.shape)
    off = unit_roundoff(wide) * (2 * _largest(d_logits) + 4)
    if problem.softcap is not None:
        off += 2 * logit_error(problem) / problem.softcap * _largest(products)
    weights, grown = _finite(reference.weights(problem)), 1 / (1 - problem.dropout)
    mean = (weights * d_logits).sum(axis=-1, keepdims=True)
    mean += 0.0 if tangents.sinks is None else _largest(tangents.sinks)
    sizes = grown * ((weights * (d_logits + mean)) @ value + weights @ d_value)
    rounding = 2 * logit_error(problem) * _largest(sizes) + 2 * off * grown * _largest(value)
    rounding += unit_roundoff(dtype) * _largest(expected)
    return expected, 2 * (_difference(plain, expected) + rounding)


def sum_to(array: Any, shape: tuple[int, ...]) -> Any:
    """The sum over every axis along which `shape` was broadcast to the array's."""
    padded = (1,) * (array.ndim - len(shape)) + tuple(shape)
    axes = tuple(i for i, n in enumerate(padded) if n == 1)
    return array.sum(axis=axes, keepdims=True).reshape(shape)


def assert_within(actual: Any, expected: Any, bound: float, what: str = "result") -> None:
    """Equal NaN and inf, and no other element further away than the bound."""
    assert actual.shape == expected.shape, f"{what}: shape {actual.shape}, expected {expected.shape}"
    wide = np.asarray(actual).astype(expected.dtype)
    np.testing.assert_array_equal(np.isnan(wide), np.isnan(expected), err_msg=f"{what}: NaN in the wrong place")
    infinite = np.isinf(expected)
    np.testing.assert_array_equal(wide[infinite], expected[infinite], err_msg=f"{what}: infinities differ")
    error = _difference(wide, expected)
    assert error <= bound, f"{what}: error {error:.3g} above the budget {bound:.3g}"


def logit_error(problem: Problem) -> float:
    """delta: how far rounding may move a logit."""
    query, key = (np.abs(_finite(a)) for a in (problem.query, problem.key))
    factor = abs(problem.scale) * (1.0 if problem.row_scale is None else _largest(problem.row_scale))
    group = problem.query.shape[-3] // max(problem.key.shape[-3], 1)
    size = factor * _largest(query @ np.swapaxes(np.repeat(key, group, axis=-3), -1, -2))
    for extra in (problem.bias, problem.sinks):
        size += 0.0 if extra is None else _largest(extra)
    if problem.alibi is not None:  # the distance, its product with the slope, and their difference round
        furthest = max((_largest(reference.distances(problem, b)) for b in range(len(problem.alibi))), default=0.0)
        size += 2 * _largest(problem.alibi) * furthest
    return unit_roundoff(compute_type(problem.query.dtype)) * (2 * size + 4)


def _d_logit_sizes(problem: Problem, d_out: Any) -> Any:
    """P * (D + rowsum(P * D)) in absolute values, (*leading, heads, n_query, n_key)."""
    group = problem.query.shape[-3] // max(problem.key.shape[-3], 1)
    value, grad = (np.abs(_finite(a)) for a in (problem.value, d_out))
    weights = _finite(reference.weights(problem))
    pulled = (grad @ np.swapaxes(np.repeat(value, group, axis=-3), -1, -2)) / (1 - problem.dropout)
    return weights * (pulled + (weights * pulled).sum(axis=-1, keepdims=True))


def _gradient_sizes(problem: Problem, d_out: Any) -> tuple[float, float, float]:
    group = problem.query.shape[-3] // max(problem.key.shape[-3], 1)
    query, key, grad = (np.abs(_finite(a)) for a in (problem.query, problem.key, d_out))
    key = np.repeat(key, group, axis=-3)
    weights = _finite(reference.weights(problem))
    factor = abs(problem.scale) * (1.0 if problem.row_scale is None else _largest(problem.row_scale))
    d_logits = factor * _d_logit_sizes(problem, d_out)
    d_value = np.swapaxes(weights, -1, -2) @ grad / (1 - problem.dropout)
    return (
        _largest(d_logits @ key),
        group * _largest(np.swapaxes(d_logits, -1, -2) @ query),
        group * _largest(d_value),
    )


def _finite(array: Any) -> Any:
    """float64 with 0 for NaN and infinities: finite numbers are compared, so a budget is made of their sizes."""
    return np.nan_to_num(array.astype(np.float64), nan=0.0, posinf=0.0, neginf=0.0)


def _largest(array: Any) -> float:
    wide = np.abs(np.asarray(array).astype(np.float64))
    wide = wide[np.isfinite(wide)]
    return float(wide.max()) if wide.size else 0.0


def _difference(actual: Any, expected: Any) -> float:
    finite = np.isfinite(expected)
    return _largest(actual.astype(expected.dtype)[finite] - expected[finite])
