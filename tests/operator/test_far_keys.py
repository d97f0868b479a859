"""Keys far below the others, as a bias of -1e30 or of the most negative float makes them: visible, and in all numbers.

Their distances from the maximum, or the squares of those, leave the range of float32; the mean does not.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from judge import TARGETS, target
from problems import random_arrays

import rootdk
from rootdk.backends import problem_of, reference

EPS = float(np.finfo(np.float32).eps)
LOWEST = float(np.finfo(np.float32).min)
N_KEY = 300  # more than two blocks
# A sum of n numbers is off by n eps of their sizes at most. Squares are taken from the maximum of a block of 128 keys,
# which makes their sum at most 128 + 1 times that from the mean. Ten more for what each number went through.
SUM_ERROR, VARIANCE_ERROR = (N_KEY + 10) * EPS, N_KEY * (128 + 10) * EPS


@pytest.fixture(params=TARGETS, autouse=True)
def each_target(request: pytest.FixtureRequest) -> Iterator[str]:
    with target(request.param):
        yield request.param


@pytest.mark.parametrize("which", ["every row", "every other row"])
@pytest.mark.parametrize("level", [-1e14, -1e16, -1e18, -1e30, LOWEST])
@pytest.mark.parametrize("options", [{}, {"causal": True, "query_offset": N_KEY - 40}, {"mask": True}])
def test_mean_and_variance_of_far_keys(
    rng: np.random.Generator, level: float, options: dict[str, Any], which: str
) -> None:
    """Rows lie side by side in the lanes: what one of them needs must not touch its neighbours."""
    q, k, v = random_arrays(rng, (1,), heads=2, kv_heads=2, n_query=40, n_key=N_KEY, d_k=9, d_v=6, dtype=np.float32)
    bias = np.zeros((40, N_KEY), np.float32)
    far = slice(None) if which == "every row" else slice(None, None, 2)
    bias[far, 100:130] = level  # many in one block, two in the next, none in the last
    if "mask" in options:
        options = {"mask": rng.random((40, N_KEY)) < 0.7}
    out, reading = rootdk.measure(q, k, v, bias=bias, **options)
    np.testing.assert_array_equal(out, rootdk.attention(q, k, v, bias=bias, **options))
    _, expected = reference.measure(problem_of(q, k, v, bias=bias, **options))
    assert not reading.non_finite.any()
    np.testing.assert_array_equal(reading.keys, expected["keys"])
    # A product of d numbers is off by d eps of |q| |k| at most, and then goes through scale, bias and units.
    product = (9 + 8) * EPS * np.linalg.norm(q, axis=-1).max() * np.linalg.norm(k, axis=-1).max() / 3
    for name in ("max", "min"):
        np.testing.assert_allclose(getattr(reading, name), expected[name], rtol=8 * EPS, atol=product, err_msg=name)
    # A known limit, stated in README: logits are in units of log2, where the lowest float stands for itself, and its
    # share in a mean is ln 2 of what it should be. The mean is finite all the same.
    mean = expected["mean"]
    if level == LOWEST:
        mean[..., far] *= np.log(2)
    np.testing.assert_allclose(reading.mean, mean, rtol=SUM_ERROR, atol=SUM_ERROR + product)
    with np.errstate(over="ignore"):
        variance = expected["variance"].astype(np.float32)  # infinite where float32 ends
    np.testing.assert_allclose(reading.variance, variance, rtol=VARIANCE_ERROR)
    # A mean of the logits of near keys under the weights, taken from the logarithm of the weights' sum.
    np.testing.assert_allclose(reading.entropy, expected["entropy"], atol=SUM_ERROR * np.log(N_KEY) + 2 * product)
    assert np.isinf(variance[..., far]).all() == (level < -1e20), level
