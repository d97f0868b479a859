"""Theory against the operator: 20,000 rows with keys of their own through rootdk.measure, to 4 standard errors."""

import functools
from dataclasses import fields
from typing import Any

import numpy as np
import pytest

import rootdk
from rootdk import Reading
from rootdk.theory import attention_moments, relative_gradient

ROWS = 20_000
RULES = ("none", "sqrt", "dk")
FAST = [(4, 16), (32, 128), (16, 512)]
FULL = [(1, 2), (1, 64), (8, 1024), (64, 512), (64, 1024), (256, 512), (512, 64), (4, 4096)]
# Field of a HeadSummary -> the property of a Reading whose mean it is.
MEANS = {
    "mean_std": "std",
    "mean_variance": "variance",
    "mean_log_sum_exp": "log_sum_exp",
    "mean_entropy": "entropy",
    "mean_entropy_ratio": "entropy_ratio",
    "mean_top_probability": "top_probability",
    "mean_p_squared": "p_squared",
    "mean_jacobian_trace": "jacobian_trace",
}
EXACT_MEDIANS = {"median_std": "std", "median_variance": "variance"}
APPROXIMATE = {
    "median_entropy_ratio": "entropy_ratio",
    "mean_effective_keys": "effective_keys",
    "median_effective_keys": "effective_keys",
    "median_top_probability": "top_probability",
    "median_jacobian_trace": "jacobian_trace",
    "mean_jacobian_norm": "jacobian_norm",
    "median_jacobian_norm": "jacobian_norm",
}


@functools.cache
def measured(d_k: int, keys: int) -> dict[str, Reading]:
    """One reading of ROWS rows per rule, all on the same q and k. float64, so that 1 - sum p^2 keeps its digits."""
    rng = np.random.default_rng([d_k, keys])
    parts: dict[str, list[Reading]] = {rule: [] for rule in RULES}
    chunk = max(1, min(ROWS, 4_000_000 // (keys * d_k)))
    for start in range(0, ROWS, chunk):
        rows = min(chunk, ROWS - start)
        query, key = rng.standard_normal((rows, 1, 1, d_k)), rng.standard_normal((rows, 1, keys, d_k))
        value = np.ones((rows, 1, keys, 1))
        for rule in RULES:
            parts[rule].append(rootdk.measure(query, key, value, scale=rule)[1])
    return {rule: Reading.concatenate(some, axis=0) for rule, some in parts.items()}


def off(sample: Any, expected: float) -> float:
    """Distance of the mean from what was expected, in standard errors; rounding is no disagreement."""
    sample = np.asarray(sample, np.float64).reshape(-1)
    error = sample.std() / np.sqrt(sample.size) + 1e-12 * abs(expected)
    return abs(sample.mean() - expected) / error


def hold(d_k: int, keys: int) -> None:
    for rule, reading in measured(d_k, keys).items():
        setting = f"d_k {d_k}, {keys} keys, {rule}"
        told = rootdk.predict(d_k, keys, rule, rows=1)
        for field, name in MEANS.items():
            distance = off(getattr(reading, name), float(getattr(told, field)[0]))
            assert distance < 4, f"{setting}: {field} is {distance:.1f} standard errors off"
        for field, name in EXACT_MEDIANS.items():
            below = (getattr(reading, name) < getattr(told, field)[0]).mean()
            assert abs(below - 0.5) < 4 * 0.5 / np.sqrt(ROWS), f"{setting}: {below:.4f} of the rows below {field}"
        share = float(told.saturated[0])
        # One row more or less is no evidence where a rare event is expected less than once.
        error = np.sqrt(share * (1 - share) / ROWS) + 0.5 / ROWS
        assert abs(reading.saturated().mean() - share) < 4 * error, f"{setting}: saturated"
        assert off(reading.max, told.max_logit[0]) < 4, f"{setting}: max_logit of one row"
        assert off(reading.min, told.min_logit[0]) < 4, f"{setting}: min_logit of one row"
        scale = rootdk.scaling.rule(rule).factor(d_k, None, None)
        moments = attention_moments(keys, d_k, scale)
        for name, sample in (("p_cubed", reading.p_cubed), ("jacobian_norm_squared", reading.jacobian_norm**2)):
            assert off(sample, float(getattr(moments, name))) < 4, f"{setting}: {name}"
        for field, name in APPROXIMATE.items():
            hold_approximate(setting, reading, field, name, float(getattr(told, field)[0]))


def hold_approximate(setting: str, reading: Reading, field: str, name: str, told: float) -> None:
    """Where a number is given it is within 6 %; a median of the largest weight outside the approximation is exact."""
    if np.isnan(told):
        return
    sample = np.asarray(getattr(reading, name)).reshape(-1)
    seen = np.median(sample) if field.startswith("median") else sample.mean()
    error = 1.2533 * sample.std() / np.sqrt(ROWS)
    assert abs(told - seen) < 0.06 * seen + 4 * error, f"{setting}: {field} {told:.4g}, measured {seen:.4g}"


@pytest.mark.parametrize(("d_k", "keys"), FAST)
def test_prediction_is_what_is_measured(d_k: int, keys: int) -> None:
    hold(d_k, keys)


@pytest.mark.slow
@pytest.mark.parametrize(("d_k", "keys"), FULL)
def test_prediction_is_what_is_measured_on_the_whole_grid(d_k: int, keys: int) -> None:
    hold(d_k, keys)
    measured.cache_clear()


def test_a_wrong_prediction_is_noticed() -> None:
    """The yardstick itself: 2 % more spread, or the rule next door, is many standard errors away."""
    reading = measured(32, 128)["sqrt"]
    assert off(reading.entropy, float(attention_moments(128, 32, 1.02 * 32**-0.5).entropy)) > 4
    assert off(reading.entropy, float(attention_moments(128, 33, 32**-0.5).entropy)) > 4
    assert off(reading.p_cubed, float(attention_moments(129, 32, 32**-0.5).p_cubed)) > 1


def test_extremes_of_many_rows() -> None:
    """200 groups of 100 rows: the mean of their largest logits."""
    for rule, reading in measured(32, 128).items():
        told = rootdk.predict(32, 128, rule, rows=100)
        assert off(reading.max.reshape(200, 100).max(axis=1), told.max_logit[0]) < 4
        assert off(reading.min.reshape(200, 100).min(axis=1), told.min_logit[0]) < 4


def test_median_of_the_largest_weight_is_exact_above_one_half() -> None:
    reading = measured(32, 128)["none"]
    told = rootdk.predict(32, 128, "none").median_top_probability[0]
    assert told > 0.5
    assert abs((reading.top_probability < told).mean() - 0.5) < 4 * 0.5 / np.sqrt(ROWS)


def test_every_field_of_a_summary_is_there_and_only_the_documented_ones_are_absent() -> None:
    by_head = measured(4, 16)["sqrt"].by_head()
    told = rootdk.predict(4, 16)
    assert {field.name for field in fields(told)} == {field.name for field in fields(by_head)}
    absent = {field.name for field in fields(told) if np.isnan(getattr(told, field.name)).any()}
    assert absent == {"min_log_sum_exp"}
    assert type(told).from_dict(told.to_dict()).to_json() == told.to_json()


@pytest.mark.parametrize("scale", [1.0, 8**-0.5, 1 / 8])
@pytest.mark.parametrize(("d_k", "keys"), [(8, 32), (1, 4)])
def test_relative_gradient_is_that_of_the_operator(rng: np.random.Generator, d_k: int, keys: int, scale: float) -> None:
    """do/dq row by row through attention_vjp, one pull-back per component of the output."""
    rows, d_v = 4000, 3
    query, key = rng.standard_normal((rows, 1, 1, d_k)), rng.standard_normal((rows, 1, keys, d_k))
    value = rng.standard_normal((rows, 1, keys, d_v))
    out, pull_back = rootdk.attention_vjp(query, key, value, scale=scale)
    gradient = sum((pull_back(np.broadcast_to(np.eye(d_v)[i], out.shape).copy())[0] ** 2).sum(-1) for i in range(d_v))
    told = relative_gradient(keys, d_k, scale) ** 2
    # A ratio of two means: its error is that of gradient - told * output.
    assert off(gradient.reshape(-1) - told * (out**2).sum(-1).reshape(-1), 0.0) < 4
