"""What is computed: shapes, arrays, and the right answer to them.

Nobody is timed on a wrong answer. Before its first timed call every contestant's result is held against the float64
reference, which is the definition of attention for the whole project.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from rootdk.backends import problem_of, reference
from rootdk.options import Learnable, Problem

FloatArray = npt.NDArray[np.float32]
DoubleArray = npt.NDArray[np.float64]

# float32 carries about 7 digits through these sums, bfloat16 about 3. A limit between the two lets every honest
# float32 result pass and stops a library that quietly computes in a shorter type, which is a common default on CPUs
# with matrix units.
RELATIVE_LIMIT = 1e-4
# Rows that are looked at: all of them would cost more than the timing does.
STRETCHES, STRETCH_ROWS = 9, 4


class WrongAnswerError(Exception):
    """A contestant's result is further from float64 than its type explains."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Self-attention of n tokens: query (batch, heads, n, d), key and value (batch, kv_heads, n, d)."""

    batch: int
    heads: int
    kv_heads: int
    n: int
    d: int
    causal: bool

    @property
    def name(self) -> str:
        """Short name for a table, such as '1x32/8x1024x128 causal'."""
        heads = f"{self.heads}" if self.heads == self.kv_heads else f"{self.heads}/{self.kv_heads}"
        return f"{self.batch}x{heads}x{self.n}x{self.d} {'causal' if self.causal else 'full'}"

    @property
    def grouped(self) -> bool:
        """Whether several query heads share a key head."""
        return self.heads != self.kv_heads

    @property
    def flops(self) -> int:
        """Multiplications and additions of the two products over visible pairs; the softmax is not counted.

        A causal row i sees i + 1 keys. A library that computes hidden pairs too does more work, and gets no credit
        for it.
        """
        pairs = self.n * (self.n + 1) // 2 if self.causal else self.n * self.n
        return 4 * self.batch * self.heads * pairs * self.d


@dataclass(frozen=True, eq=False)
class Inputs:
    """The arrays of one shape in float32, and the options of rootdk.attention for them, as NumPy arrays too.

    `d_out` is what the backward pass starts from. The right answers are computed once, when they are asked for.
    """

    shape: Shape
    query: FloatArray
    key: FloatArray
    value: FloatArray
    d_out: FloatArray
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def arrays(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """query, key, value."""
        return self.query, self.key, self.value

    @cached_property
    def chosen_answer(self) -> DoubleArray:
        """The output in float64 of short stretches of rows, evenly spread from the first row to the last."""
        outs = [reference.forward(self._problem(rows)) for rows in _stretches(self.query.shape[-2])]
        return np.concatenate(outs, axis=-2)

    @cached_property
    def first_gradients(self) -> tuple[DoubleArray, ...]:
        """Gradients in float64 to query, key, value, and bias where there is one.

        Of the first batch entry, the first key head and the query heads that share it.
        """
        group = self.shape.heads // self.shape.kv_heads
        options = {
            name: option[:1, :group] if isinstance(option, np.ndarray) else option
            for name, option in self.options.items()
        }
        arrays = (self.query[:1, :group], self.key[:1, :1], self.value[:1, :1])
        gradients = reference.backward(problem_of(*arrays, **options), self.d_out[:1, :group])
        return tuple(gradient[0] for gradient in gradients if gradient is not None)

    def check(self, result: npt.ArrayLike, limit: float = RELATIVE_LIMIT) -> float:
        """Largest error over some rows of every head, relative to the largest value; raises when too large."""
        out = np.asarray(result)
        shape = self.query.shape[:-1] + self.value.shape[-1:]
        if out.shape != shape:
            raise WrongAnswerError(f"result has shape {out.shape}, expected {shape}")
        return check_near(self.chosen_rows(out), self.chosen_answer, limit)

    def chosen_rows(self, result: Any) -> Any:
        """The rows of a result that `chosen_answer` is about."""
        return np.concatenate([result[..., rows, :] for rows in _stretches(self.query.shape[-2])], axis=-2)

    def check_gradients(self, result: tuple[npt.ArrayLike, ...]) -> float:
        """The same for (d_query, d_key, d_value), or with a fourth gradient, that of the bias."""
        group = self.shape.heads // self.shape.kv_heads
        gradients = [np.asarray(gradient) for gradient in result]
        arrays = [*self.arrays, *([self.options["bias"]] if len(gradients) == 4 else [])]
        for name, gradient, array in zip(("query", "key", "value", "bias"), gradients, arrays, strict=False):
            if gradient.shape != array.shape:
                raise WrongAnswerError(f"gradient of {name} has shape {gradient.shape}, expected {array.shape}")
        heads = (group, 1, 1, group)
        firsts = [gradient[0, :count] for gradient, count in zip(gradients, heads, strict=False)]
        # One key takes all weight, whatever query and key are: their gradient is 0, and is held against the largest.
        largest = max(float(np.max(np.abs(expected))) for expected in self.first_gradients)
        sizes = [float(np.max(np.abs(expected))) or largest for expected in self.first_gradients]
        # A bias may be there without its gradient being asked for.
        pairs = zip(firsts, self.first_gradients, sizes, strict=False)
        return max(check_near(gradient, expected, size=size) for gradient, expected, size in pairs)

    def check_tangent(self, result: npt.ArrayLike, moved: "Inputs") -> float:
        """The tangent of the output when query, key and value move like those of `moved`, on the chosen rows."""
        parts = [
            reference.jvp(self._problem(rows), Learnable(moved.query[..., rows, :], moved.key, moved.value))
            for rows in _stretches(self.query.shape[-2])
        ]
        return check_near(self.chosen_rows(np.asarray(result)), np.concatenate(parts, axis=-2))

    def check_shared_bias_gradient(self, result: npt.ArrayLike) -> float:
        """The gradient of a bias (1, 1, n, n) that all heads share, on the rows that `chosen_answer` is about.

        A row of it takes only that row of the queries.
        """
        parts = [
            reference.backward(self._problem(rows), self.d_out[..., rows, :]).bias
            for rows in _stretches(self.query.shape[-2])
        ]
        expected = np.concatenate([np.asarray(part).sum(axis=(0, 1), keepdims=True) for part in parts], axis=-2)
        return check_near(self.chosen_rows(np.asarray(result)), expected)

    def _problem(self, rows: slice) -> Problem:
        options: dict[str, Any] = {"query_offset": rows.start, **self.options}
        for name in {"mask", "bias"} & options.keys():
            if options[name].shape[-2] > 1:
                options[name] = options[name][..., rows, :]
        return problem_of(self.query[..., rows, :], self.key, self.value, **options)


def make_inputs(shape: Shape, seed: int = 0, **options: Any) -> Inputs:
    """Independent standard normal numbers, the same for every contestant."""
    rng = np.random.default_rng(seed)
    queries = (shape.batch, shape.heads, shape.n, shape.d)
    keys = (shape.batch, shape.kv_heads, shape.n, shape.d)
    query, key, value, d_out = (rng.standard_normal(size, dtype=np.float32) for size in (queries, keys, keys, queries))
    return Inputs(shape, query, key, value, d_out, {"causal": shape.causal, **options})


def answer(query: Any, key: Any, value: Any, **options: Any) -> DoubleArray:
    """rootdk.attention(query, key, value, **options) by the float64 reference."""
    out: DoubleArray = reference.forward(problem_of(query, key, value, **options))
    return out


def check_near(result: Any, expected: DoubleArray, limit: float = RELATIVE_LIMIT, size: float | None = None) -> float:
    """Largest error relative to the largest value, or to `size`; raises when too large."""
    error = float(np.max(np.abs(result - expected)) / (np.max(np.abs(expected)) if size is None else size))
    # A NaN compares false with everything, so the test asks for "not within".
    if not error <= limit:
        raise WrongAnswerError(f"relative error {error:.1e}, more than the {limit:.0e} of its type")
    return error


def check_dropped(result: npt.ArrayLike, kept_all: DoubleArray, rate: float) -> float:
    """A result under dropout against the one without: its share of that one must be 1, and the rest must be noise.

    Weights are 0 or grow by 1/(1 - rate), so the mean is kept and the noise has the relative size sqrt(rate/(1 - rate))
    of a sum of independent terms. Returns the share; raises when it is off by more than 5 %, or the noise by half.
    """
    out = np.asarray(result, dtype=np.float64)
    share = float(np.vdot(out, kept_all) / np.vdot(kept_all, kept_all))
    noise = float(np.linalg.norm(out - kept_all) / np.linalg.norm(kept_all))
    expected = float(np.sqrt(rate / (1 - rate)))
    if not (abs(share - 1) <= 0.05 and expected / 2 <= noise <= expected * 2):
        raise WrongAnswerError(
            f"under dropout {rate}: {share:.2f} of the full result and noise {noise:.2f}, "
            f"expected 1.00 and about {expected:.2f}"
        )
    return share


def _stretches(n: int) -> Iterator[slice]:
    """Where they begin and end; all rows if they are few.

    >>> [(rows.start, rows.stop) for rows in _stretches(1000)][:2], [(r.start, r.stop) for r in _stretches(5)]
    ([(0, 4), (124, 128)], [(0, 5)])
    """
    if n <= STRETCHES * STRETCH_ROWS:
        yield slice(0, n)
        return
    for first in np.linspace(0, n - STRETCH_ROWS, num=STRETCHES):
        yield slice(int(first), int(first) + STRETCH_ROWS)
