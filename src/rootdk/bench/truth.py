"""Nobody is timed on a wrong answer: every contestant's result is held against float64 before its first timed call."""

from typing import Any

import numpy as np
import numpy.typing as npt

from rootdk.bench.shapes import Inputs

# float32 carries about 7 digits through these sums, bfloat16 about 3. A limit between the two lets every honest
# float32 result pass and stops a library that quietly computes in a shorter type, which is a common default on CPUs
# with matrix units.
RELATIVE_LIMIT = 1e-4
SAMPLED_ROWS = 32

Added = npt.NDArray[np.float32]


class WrongAnswerError(Exception):
    """A contestant's result is further from float64 than float32 explains."""


def check(result: npt.ArrayLike, inputs: Inputs, added: Added | None = None, limit: float = RELATIVE_LIMIT) -> float:
    """Largest error over some rows of every head, relative to the largest value; raises when too large.

    `added` is what a bias adds to the scores, -inf where a mask or window hides a pair: it broadcasts to (batch, heads,
    n, n).
    """
    found = np.asarray(result)
    shape = inputs.query.shape[:-1] + inputs.value.shape[-1:]
    if found.shape != shape:
        raise WrongAnswerError(f"result has shape {found.shape}, expected {shape}")
    rows = sampled_rows(inputs.shape.n)
    expected = attention_rows(inputs, rows, added)
    return check_near(found[:, :, rows], expected, limit)


def check_near(
    found: npt.NDArray[np.floating[Any]], expected: npt.NDArray[np.float64], limit: float = RELATIVE_LIMIT
) -> float:
    """Largest error relative to the largest value; raises when too large."""
    # A NaN compares false with everything, so the test asks for "not within".
    error = float(np.max(np.abs(found - expected)) / np.max(np.abs(expected)))
    if not error <= limit:
        raise WrongAnswerError(f"relative error {error:.1e}, more than the {limit:.0e} of its type")
    return error


def sampled_rows(n: int) -> npt.NDArray[np.int64]:
    """First rows, last rows and some in between: all of them would cost more than the timing does."""
    spread = np.linspace(0, n - 1, num=min(n, SAMPLED_ROWS))
    return np.unique(np.concatenate([np.round(spread).astype(np.int64), [0, 1 % n, n - 1]]))


def attention_rows(inputs: Inputs, rows: npt.NDArray[np.int64], added: Added | None = None) -> npt.NDArray[np.float64]:
    """softmax(q k' / sqrt(d)) v in float64 for these query rows, written as the formula reads."""
    shape = inputs.shape
    group = shape.heads // shape.kv_heads
    query = inputs.query[:, :, rows].astype(np.float64)
    key = np.repeat(inputs.key.astype(np.float64), group, axis=1)
    value = np.repeat(inputs.value.astype(np.float64), group, axis=1)
    scores = query @ key.swapaxes(-1, -2) / np.sqrt(shape.d)
    if added is not None:
        scores += added[..., rows, :]
    if shape.causal:
        scores = np.where(np.arange(shape.n) <= rows[:, None], scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    expected: npt.NDArray[np.float64] = weights @ value / weights.sum(axis=-1, keepdims=True)
    return expected


def check_gradients(result: tuple[npt.ArrayLike, ...], inputs: Inputs, added: Added | None = None) -> float:
    """The same for (d_query, d_key, d_value), over the first key head and the query heads that share it.

    A fourth gradient is that of `added`, and then `added` has an axis of heads and one of batch entries.
    """
    group = inputs.shape.heads // inputs.shape.kv_heads
    found = [np.asarray(gradient) for gradient in result]
    arrays = [inputs.query, inputs.key, inputs.value, *([] if added is None else [added])]
    # Without a fourth gradient in the result, `added` is not asked for.
    for name, gradient, array in zip(("query", "key", "value", "bias"), found, arrays, strict=False):
        if gradient.shape != array.shape:
            raise WrongAnswerError(f"gradient of {name} has shape {gradient.shape}, expected {array.shape}")
    worst = 0.0
    firsts = (found[0][0, :group], found[1][0, 0], found[2][0, 0], *(rest[0, :group] for rest in found[3:]))
    for gradient, expected in zip(firsts, first_gradients(inputs, added), strict=False):
        error = float(np.max(np.abs(gradient - expected)) / np.max(np.abs(expected)))
        if not error <= RELATIVE_LIMIT:
            raise WrongAnswerError(
                f"relative error of a gradient {error:.1e}, more than float32's {RELATIVE_LIMIT:.0e}"
            )
        worst = max(worst, error)
    return worst


def first_gradients(inputs: Inputs, added: Added | None = None) -> tuple[npt.NDArray[np.float64], ...]:
    """Gradients in float64 as the chain rule reads, to query, key, value and what is added to the scores.

    dv = p' do; ds = p (do v' - sum(do out)); dq = scale ds k; dk = scale ds' q; d added = ds.
    """
    shape = inputs.shape
    group = shape.heads // shape.kv_heads
    key, value = inputs.key[0, 0].astype(np.float64), inputs.value[0, 0].astype(np.float64)
    scale = 1 / np.sqrt(shape.d)
    d_query, d_key, d_value = np.zeros((group, shape.n, shape.d)), np.zeros_like(key), np.zeros_like(value)
    d_added = np.zeros((group if added is not None else 0, shape.n, shape.n))
    # Head by head: an n x n array of float64 is large enough once.
    for head in range(group):
        query, d_out = inputs.query[0, head].astype(np.float64), inputs.d_out[0, head].astype(np.float64)
        weights = query @ key.T * scale
        if added is not None:
            weights += added[0, head % added.shape[1]]
        if shape.causal:
            weights[np.triu_indices(shape.n, 1)] = -np.inf
        weights = np.exp(weights - weights.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        d_value += weights.T @ d_out
        d_scores = weights * (d_out @ value.T - np.sum(d_out * (weights @ value), axis=-1, keepdims=True))
        d_query[head] = d_scores @ key * scale
        d_key += d_scores.T @ query * scale
        if added is not None:
            d_added[head] = d_scores
    return d_query, d_key, d_value, d_added


def check_dropped(result: npt.ArrayLike, kept_all: npt.NDArray[np.float64], rate: float) -> float:
    """A result under dropout against the one without: its share of that one must be 1, and the rest must be noise.

    Weights are 0 or grow by 1/(1 - rate), so the mean is kept and the noise has the relative size sqrt(rate/(1 - rate))
    of a sum of independent terms. Returns the share; raises when it is off by more than 5 %, or the noise by half.
    """
    found = np.asarray(result, dtype=np.float64)
    if found.shape != kept_all.shape:
        raise WrongAnswerError(f"result has shape {found.shape}, expected {kept_all.shape}")
    share = float(np.vdot(found, kept_all) / np.vdot(kept_all, kept_all))
    noise = float(np.linalg.norm(found - kept_all) / np.linalg.norm(kept_all))
    expected = float(np.sqrt(rate / (1 - rate)))
    if not (abs(share - 1) <= 0.05 and expected / 2 <= noise <= expected * 2):
        raise WrongAnswerError(
            f"under dropout {rate}: {share:.2f} of the full result and noise {noise:.2f}, "
            f"expected 1.00 and about {expected:.2f}"
        )
    return share
