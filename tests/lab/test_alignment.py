"""What claim 33 rests on: its numbers of a head against q and k of a known law, and the file that they are kept in."""

import math

import numpy as np
import pytest

from benchmarks.calibration.alignment import of_head
from rootdk.lab.checks.premises import trained_models


@pytest.mark.parametrize("correlation", [0.0, 0.4])
def test_a_head_whose_law_is_known(rng: np.random.Generator, correlation: float) -> None:
    """E (q.k)^2 = d (1 + r^2) + r^2 d^2 by hand, for components that are correlated one by one."""
    d, tokens = 8, 200_000
    query, noise = rng.standard_normal((2, tokens, d))
    key = correlation * query + math.sqrt(1 - correlation**2) * noise
    mean, means, with_c, without = of_head(query, key)
    square = d * (1 + correlation**2) + (correlation * d) ** 2
    assert mean == pytest.approx(correlation * math.sqrt(d), abs=0.02)
    assert means == pytest.approx(0.0, abs=0.01)
    assert with_c == pytest.approx(1.0, abs=0.03)
    assert without == pytest.approx(square / d, rel=0.03)


def test_the_file_has_every_head_of_both_models() -> None:
    models = trained_models()
    assert {name: (model["d_k"], len(model["trained"]["mean"])) for name, model in models.items()} == {
        "SmolLM2-135M": (64, 30 * 9),
        "all-MiniLM-L6": (32, 6 * 12),
    }
    for model in models.values():
        for kind in ("trained", "new"):
            columns = [model[kind][name] for name in ("mean", "means", "with_c", "without")]
            assert len({len(column) for column in columns}) == 1
            assert np.isfinite(columns).all()
            assert min(model[kind]["with_c"]) > 0
