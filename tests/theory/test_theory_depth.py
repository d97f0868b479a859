"""Depth: what two rows have in common by sampling and at its known ends, and tokens through real random layers."""

import numpy as np
import pytest
from scipy.integrate import dblquad

from rootdk import attention
from rootdk.theory import row_overlap, softmax_moments, token_similarity


@pytest.mark.parametrize(
    ("keys", "sigma", "correlation"),
    [(2, 1.0, 0.3), (16, 4.0, 0.5), (16, 4.0, 0.01), (512, 1.0, 0.5), (512, 8.0, 0.9), (64, 20.0, 0.5)],
)
def test_overlap_of_two_rows_by_sampling(rng: np.random.Generator, keys: int, sigma: float, correlation: float) -> None:
    rows = max(2000, 1_000_000 // keys)
    shared = np.sqrt(correlation) * rng.standard_normal((rows, keys))
    weights = []
    for _ in range(2):
        logits = sigma * (shared + np.sqrt(1 - correlation) * rng.standard_normal((rows, keys)))
        raised = np.exp(logits - logits.max(axis=1, keepdims=True))
        weights.append(raised / raised.sum(axis=1, keepdims=True))
    common = (weights[0] * weights[1]).sum(axis=1)
    assert abs(common.mean() - row_overlap(keys, sigma, correlation)) < 4 * common.std() / np.sqrt(rows)


@pytest.mark.parametrize(("sigma", "correlation"), [(0.3, 0.5), (3.0, 0.7)])
def test_overlap_over_two_keys_is_an_integral_over_two_differences(sigma: float, correlation: float) -> None:
    """Of two keys p is a function of the difference of their logits, and the two differences are normal together."""
    width = sigma * np.sqrt(2)

    def density(y: float, x: float) -> float:
        p, q = 1 / (1 + np.exp(-width * x)), 1 / (1 + np.exp(-width * y))
        square = (x * x - 2 * correlation * x * y + y * y) / (1 - correlation**2)
        return (p * q + (1 - p) * (1 - q)) * np.exp(-square / 2) / (2 * np.pi * np.sqrt(1 - correlation**2))

    exact = dblquad(density, -8.5, 8.5, -8.5, 8.5, epsabs=1e-10, epsrel=1e-10)[0]
    assert row_overlap(2, sigma, correlation) == pytest.approx(exact, rel=1e-8)


@pytest.mark.parametrize("keys", [2, 512, 1e6, 1e9])
@pytest.mark.parametrize("sigma", [0.1, 8.0])
def test_the_ends_of_the_overlap(keys: float, sigma: float) -> None:
    """Rows that know nothing of each other share 1/n, the same row sum p^2, and between them it rises."""
    nearly = row_overlap(keys, sigma, [0.0, 1e-12, 0.3, 0.7, 1 - 1e-12, 1.0])
    assert nearly[0] == pytest.approx(1 / keys, rel=1e-12)
    assert nearly[1] == pytest.approx(nearly[0], rel=1e-8)
    assert nearly[-1] == pytest.approx(float(softmax_moments(keys, sigma).p_squared), rel=1e-12)
    assert nearly[-2] == pytest.approx(nearly[-1], rel=1e-5)
    assert (np.diff(nearly) >= -1e-9 * nearly[1:]).all()


@pytest.mark.parametrize("sigma", [0.0, 1.0, 3.0])
@pytest.mark.parametrize(("start", "residual"), [(0.0, 0.0), (0.3, 0.0), (0.3, 1.0)])
def test_tokens_through_a_random_layer(rng: np.random.Generator, sigma: float, start: float, residual: float) -> None:
    """Wide random weights through the operator itself. Cosines that scatter add sigma^2/width to the squares."""
    keys, width, draws = 16, 512, 16
    products, squares = [], []
    for _ in range(draws):
        own, common = rng.standard_normal((keys, width)), rng.standard_normal(width)
        tokens = np.sqrt(1 - start) * own + np.sqrt(start) * common
        tokens /= np.linalg.norm(tokens, axis=1, keepdims=True)
        query, key, value = (tokens @ weight for weight in rng.standard_normal((3, width, width)))
        out = residual * tokens + attention(query, key, value, scale=sigma / np.sqrt(width)) / np.sqrt(width)
        inner = out @ out.T
        products.append((inner.sum() - np.trace(inner)) / keys / (keys - 1))
        squares.append(np.trace(inner) / keys)
    predicted = float(token_similarity(keys, sigma, start, residual))
    left = np.array(products) - predicted * np.array(squares)  # 0 on average, but for the scatter of the cosines
    assert abs(left.mean()) < 4 * left.std() / np.sqrt(draws) + predicted * max(sigma**2, 1.0) / width


def test_depth_makes_all_tokens_alike_unless_a_residual_or_sharp_rows_slow_it() -> None:
    flat, sharp = ([float(token_similarity(512, sigma, 0.0, layers=n)) for n in (1, 3, 6)] for sigma in (1.0, 8.0))
    kept = [float(token_similarity(512, 1.0, 0.0, 4.0, layers=n)) for n in (1, 3, 6)]
    for course in (flat, sharp, kept):
        assert course == sorted(course)
    assert flat[1] > 0.99
    assert max(sharp[2], kept[2]) < 0.1
    assert token_similarity(512, 1.0, 0.25, layers=0) == 0.25
    assert token_similarity(512, 1.0, 1.0, layers=3) == pytest.approx(1.0)
