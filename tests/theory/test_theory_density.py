"""The law of a score against its other form: a Bessel function, which overflows for large d_k but shares no code."""

import math

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.special import gamma, kv

from rootdk.errors import ArgumentError
from rootdk.theory import score_density, score_tail


def bessel(x: float, d_k: int) -> float:
    order = (d_k - 1) / 2
    return abs(x) ** order * kv(order, abs(x)) / (math.sqrt(math.pi) * 2**order * gamma(d_k / 2))


@pytest.mark.parametrize("d_k", [3, 4, 7, 16, 64])
@pytest.mark.parametrize("scale", [1.0, -0.25, 8.0])
def test_density_and_tail(d_k: int, scale: float) -> None:
    x = np.array([0.01, 0.1, 1.0, 3.0, 10.0, 30.0])
    expected = np.array([bessel(one / scale, d_k) / abs(scale) for one in x])
    near = expected > 1e-12 * expected[0]
    np.testing.assert_allclose(score_density(x[near], d_k, scale), expected[near], rtol=1e-5 if d_k == 3 else 1e-7)
    beyond = 2 * quad(bessel, 3.0, np.inf, args=(d_k,), epsrel=1e-10)[0]
    assert score_tail(3.0 * abs(scale), d_k, scale) == pytest.approx(beyond, rel=1e-8)


def test_large_d_k_is_gaussian() -> None:
    assert score_density(1.0, 10**6, 1e-3) == pytest.approx(math.exp(-0.5) / math.sqrt(2 * math.pi), rel=1e-5)
    assert score_tail(0.0, 64) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((math.nan, 64), "x: must be finite numbers, got nan"),
        ((0.0, 2), "d_k: must be whole numbers from 3"),
        ((0.0, 64, 0.0), "scale: must be a number other than 0"),
        ((0.0, 64, math.inf), "scale: must be numbers from"),
    ],
)
def test_refused(arguments: tuple[float, ...], message: str) -> None:
    for function in (score_density, score_tail):
        with pytest.raises(ArgumentError, match=message):
            function(*arguments)
