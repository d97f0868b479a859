"""What experiments and claims draw, and the standard errors that they give to it."""

import math

import numpy as np
import pytest

from rootdk import ArgumentError, ArgumentTypeError
from rootdk.lab.checks import Comparison, Sampling
from rootdk.lab.checks.sampler import LAWS, compare, compare_ratio, compare_share, draw, over_groups, student

MOST = 4.0  # standard errors; the seeds are fixed, so a run that passes passes again


@pytest.mark.parametrize("law", [*LAWS, "student"])
def test_components_have_mean_0_variance_1_and_their_fourth_moment(rng: np.random.Generator, law: str) -> None:
    x = (student(rng, (400_000,)) if law == "student" else draw(rng, law, (400_000,))).astype(np.float64)
    for power, expected in ((1, 0.0), (2, 1.0)):
        assert abs(compare("x", {}, expected, x**power).disagreement or 0.0) < MOST
    if not law.startswith("student"):  # its fourth powers have no variance
        assert abs(compare("x", {}, LAWS[law].fourth_moment, x**4).disagreement or 0.0) < MOST


def test_a_law_that_is_not_known_is_named(rng: np.random.Generator) -> None:
    with pytest.raises(ArgumentError, match=r"law: must be one of 'gaussian', .* got 'cauchy'"):
        draw(rng, "cauchy", (2,))


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"rows": 1023}, ArgumentError, "rows: must be from 1024"),
        ({"rows": 512.0}, ArgumentTypeError, "rows: must be an int"),
        ({"seed": -1}, ArgumentError, "seed: must be from 0"),
        ({"seed": True}, ArgumentTypeError, "seed: must be an int"),
    ],
)
def test_sampling_is_checked(changes: dict[str, int], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Sampling(**changes)


def test_standard_error_is_that_of_groups_and_not_of_rows(rng: np.random.Generator) -> None:
    """Rows of one group that share a shift of variance 1: the error of the mean of 50 groups is 1/sqrt(50)."""
    pairs = [over_groups(rng.standard_normal((50, 1)) + 0.1 * rng.standard_normal((50, 40))) for _ in range(400)]
    means, errors = np.array(pairs).T
    assert means.std() == pytest.approx(50**-0.5, rel=0.15)
    assert np.median(errors) == pytest.approx(50**-0.5, rel=0.05)
    assert (np.abs(means) < 2 * errors).mean() > 0.9


def test_experiments_and_claims_take_one_standard_error(rng: np.random.Generator) -> None:
    samples = rng.standard_normal((100, 1)) + 0.1 * rng.standard_normal((100, 40))
    mean, error = over_groups(samples)
    compared = compare("x", {}, 0.0, samples)
    assert (compared.measured, compared.standard_error) == (pytest.approx(mean), pytest.approx(error))


def test_error_of_a_ratio(rng: np.random.Generator) -> None:
    """Against the spread of many repetitions."""
    parts = rng.standard_exponential((2000, 2, 50))
    comparisons = [compare_ratio("x", {}, 1.0, top, bottom) for top, bottom in parts]
    assert np.mean([comparison.standard_error for comparison in comparisons]) == pytest.approx(
        np.std([comparison.measured for comparison in comparisons]), rel=0.1
    )


def test_a_share_of_zero_is_not_exact() -> None:
    assert compare_share("x", {}, 1e-3, np.zeros((10, 100), bool)).disagreement == pytest.approx(-1, rel=1e-2)
    assert compare_share("x", {}, 0.0, np.zeros((10, 100), bool)).disagreement == 0
    assert Comparison("x", 1.0, "=", 0.0, 0.0).disagreement == math.inf
