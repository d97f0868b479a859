"""Claims 1 and 14: what the operator computes, and what its softmax's derivative is."""

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from rootdk.attention import attention
from rootdk.theory import softmax_jacobian

from .comparison import Comparison
from .gradient_flow import jacobian_of_softmax
from .ledger import COMMON, LEDGER, PAPER
from .sampler import Floats, Sampling, generator

Formula = Callable[[Floats, Floats, Floats], Floats]


def softmax(logits: Floats) -> Floats:
    """e^s / sum e^s over the last axis.

    >>> softmax(np.array([0.0, 0.0])).tolist()
    [0.5, 0.5]
    """
    raised = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return np.asarray(raised / raised.sum(axis=-1, keepdims=True))


def by_the_formula(query: Floats, key: Floats, value: Floats) -> Floats:
    """softmax(Q K'/sqrt(d_k)) V in float64, as it is written."""
    q, k, v = (array.astype(np.float64) for array in (query, key, value))
    return np.asarray(softmax(q @ np.swapaxes(k, -1, -2) / math.sqrt(q.shape[-1])) @ v)


@LEDGER.claim(
    1,
    title="attention is the formula",
    statement="Attention is the softmax of Q K'/sqrt(d_k), times V.",
    source=f"{PAPER}, section 3.2.1",
    method="rootdk.attention with its default scale against that formula in float64: the largest error as a share of "
    "what rounding alone may do.",
)
def formula_holds(
    sampling: Sampling,
    formula: Formula = by_the_formula,
    shapes: Sequence[tuple[int, int, int]] = ((4, 3, 4), (64, 512, 64), (512, 128, 32), (7, 33, 5)),
) -> Iterator[Comparison]:
    """shapes are (d_k, keys, d_v)."""
    for dtype in (np.float64, np.float32):
        worst = 0.0
        for d_k, keys, d_v in shapes:
            rng = generator(sampling.seed, 1, d_k, keys)
            query, key, value = (rng.standard_normal((2, n, d)).astype(dtype) for n, d in _sizes(d_k, keys, d_v))
            error = np.abs(attention(query, key, value) - formula(query, key, value)).max()
            worst = max(worst, float(error) / _rounding(query, key, value))
        yield Comparison(
            f"error / rounding bound, {np.dtype(dtype).name}",
            worst,
            "<",
            1.0,
            otherwise=f"the operator differs from the formula in {np.dtype(dtype).name} by {worst:.3g} times what "
            "rounding may do",
        )


def _sizes(d_k: int, keys: int, d_v: int) -> tuple[tuple[int, int], ...]:
    return (8, d_k), (keys, d_k), (keys, d_v)


def _rounding(query: Floats, key: Floats, value: Floats) -> float:
    """A bound on the error of any order of summation.

    A score is off by e = (d_k + 2) u |q||k|/sqrt(d_k) at most, each weight by a share of 4e + 8u through the
    exponential and the normalisation, and adding up n weights and n values costs n u each; u is half of eps.
    """
    unit, d_k, keys = np.finfo(query.dtype).eps / 2, query.shape[-1], key.shape[-2]
    longest = [float(np.linalg.norm(array, axis=-1).max()) for array in (query, key)]
    score = (d_k + 2) * unit * longest[0] * longest[1] / math.sqrt(d_k)
    return float((4 * score + (2 * keys + 12) * unit) * np.abs(value).max())


@LEDGER.claim(
    14,
    title="derivative of softmax",
    statement="The derivative of weight i by score j is s_i (1 - s_i) for i = j and -s_i s_j otherwise.",
    source=COMMON,
    method="The formula against central differences of a softmax, and against the gradient that attention_vjp pulls "
    "back: largest difference over random rows of 16 scores.",
)
def derivative_holds(
    sampling: Sampling, formula: Callable[[Floats], Floats] = softmax_jacobian, keys: int = 16, rows: int = 24
) -> Iterator[Comparison]:
    """formula maps the weights of one row to its table of derivatives."""
    step, unit = 1e-5, float(np.finfo(np.float64).eps)
    logits = generator(sampling.seed, 14).standard_normal((rows, keys)) * 2
    table = np.stack([formula(weights) for weights in softmax(logits)])
    up, down = (softmax(logits[:, None] + sign * step * np.eye(keys)) for sign in (1, -1))
    by_difference = float(np.abs((up - down).swapaxes(1, 2) / (2 * step) - table).max())
    by_operator = float(np.abs(jacobian_of_softmax(logits) - table).max())
    # Central differences leave step^2/6 of a third derivative that is below 1, and lose the digits that the step eats.
    yield Comparison("largest gap to finite differences", by_difference, "<", step**2 + 4 * unit / step)
    # A weight of the operator is off by some units of rounding, and so is the product of two.
    yield Comparison("largest gap to attention_vjp", by_operator, "<", (2 * keys + 24) * unit)
