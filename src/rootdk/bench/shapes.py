"""The shapes that are timed, and how much arithmetic each of them is."""

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float32]


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
    def flops(self) -> int:
        """Multiplications and additions of the two products over visible pairs; the softmax is not counted.

        A causal row i sees i + 1 keys. A library that computes hidden pairs too does more work, and gets no credit
        for it.
        """
        pairs = self.n * (self.n + 1) // 2 if self.causal else self.n * self.n
        return 4 * self.batch * self.heads * pairs * self.d


def _both(batch: int, heads: int, n: int, d: int, kv_heads: int | None = None) -> tuple[Shape, Shape]:
    full = Shape(batch, heads, kv_heads or heads, n, d, causal=False)
    return full, replace(full, causal=True)


MATRIX = (
    *_both(1, 8, 2048, 64),
    *_both(1, 12, 1024, 64),
    *_both(1, 8, 512, 64),
    *_both(8, 8, 128, 64),
    *_both(1, 4, 4096, 128),
    *_both(1, 8, 2048, 32),
    *_both(2, 8, 1000, 80),
    *_both(1, 1, 4096, 64),
    *_both(1, 32, 1024, 128, kv_heads=8),
)

QUICK = (*_both(1, 8, 512, 64), *_both(2, 4, 250, 80), *_both(1, 8, 256, 128, kv_heads=2))


@dataclass(frozen=True, slots=True)
class Inputs:
    """The arrays of one shape, in float32. `d_out` is what the backward pass starts from."""

    shape: Shape
    query: FloatArray
    key: FloatArray
    value: FloatArray
    d_out: FloatArray


def make_inputs(shape: Shape, seed: int = 0) -> Inputs:
    """Independent standard normal numbers, the same for every contestant."""
    rng = np.random.default_rng(seed)
    queries = (shape.batch, shape.heads, shape.n, shape.d)
    keys = (shape.batch, shape.kv_heads, shape.n, shape.d)
    query, key, value, d_out = (rng.standard_normal(size, dtype=np.float32) for size in (queries, keys, keys, queries))
    return Inputs(shape, query, key, value, d_out)
