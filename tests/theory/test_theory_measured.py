"""Theory against the operator: 20,000 rows with keys of their own through rootdk.measure, to 4 standard errors."""

import functools
from dataclasses import fields
from typing import Any

import numpy as np
import pytest

import rootdk
from rootdk import Reading
from rootdk.theory import attention_moments, effective_keys, gradient_sizes, relative_gradient
from rootdk.theory.attention import spread_nodes
from rootdk.theory.row_law import ROWS as ROWS_OF_LAW
from rootdk.theory.row_law import row_law

ROWS = 20_000
SHIFTS = 8  # lattices of the row law, to see how far one of them is off
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
    "mean_effective_keys": "effective_keys",
    "mean_top_probability": "top_probability",
    "mean_p_squared": "p_squared",
    "mean_jacobian_trace": "jacobian_trace",
}
EXACT_MEDIANS = {"median_std": "std", "median_variance": "variance"}
# By the 8192 rows of the row law: quantity of it, property of a Reading.
BY_ROWS = {
    "median_entropy_ratio": ("entropy", "entropy_ratio"),
    "median_effective_keys": ("p_squared", "effective_keys"),
    "median_top_probability": ("top_probability", "top_probability"),
    "median_jacobian_trace": ("jacobian_trace", "jacobian_trace"),
    "mean_jacobian_norm": ("jacobian_norm", "jacobian_norm"),
    "median_jacobian_norm": ("jacobian_norm", "jacobian_norm"),
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
    return {rule: Reading.concatenate(readings, axis=0) for rule, readings in parts.items()}


def off(sample: Any, expected: float) -> float:
    """Distance of the mean from what was expected, in standard errors; rounding is no disagreement."""
    sample = np.asarray(sample, np.float64).reshape(-1)
    error = sample.std() / np.sqrt(sample.size) + 1e-12 * abs(expected)
    return abs(sample.mean() - expected) / error


def hold(d_k: int, keys: int) -> None:
    for rule, reading in measured(d_k, keys).items():
        setting = f"d_k {d_k}, {keys} keys, {rule}"
        predicted = rootdk.predict(d_k, keys, rule, rows=1)
        for field, name in MEANS.items():
            distance = off(getattr(reading, name), float(getattr(predicted, field)[0]))
            assert distance < 4, f"{setting}: {field} is {distance:.1f} standard errors off"
        for field, name in EXACT_MEDIANS.items():
            below = (getattr(reading, name) < getattr(predicted, field)[0]).mean()
            assert abs(below - 0.5) < 4 * 0.5 / np.sqrt(ROWS), f"{setting}: {below:.4f} of the rows below {field}"
        share = float(predicted.saturated[0])
        # One row more or less is no evidence where a rare event is expected less than once.
        error = np.sqrt(share * (1 - share) / ROWS) + 0.5 / ROWS
        assert abs(reading.saturated().mean() - share) < 4 * error, f"{setting}: saturated"
        assert off(reading.max, predicted.max_logit[0]) < 4, f"{setting}: max_logit of one row"
        assert off(reading.min, predicted.min_logit[0]) < 4, f"{setting}: min_logit of one row"
        scale = rootdk.scaling.rule(rule).factor(d_k, None, None)
        moments = attention_moments(keys, d_k, scale)
        for name, sample in (("p_cubed", reading.p_cubed), ("jacobian_norm_squared", reading.jacobian_norm**2)):
            assert off(sample, float(getattr(moments, name))) < 4, f"{setting}: {name}"
        laws = [row_law(keys, d_k, scale, shift) for shift in range(SHIFTS)]
        for field, (quantity, name) in BY_ROWS.items():
            distance = off_by_rows(field, [getattr(law, quantity) for law in laws], reading, name, predicted)
            assert distance < 4, f"{setting}: {field} is {distance:.1f} standard errors off"


def off_by_rows(field: str, laws: list[Any], reading: Reading, name: str, predicted: Any) -> float:
    """In standard errors of both sides: of the measurement between 20 parts, of the row law between its lattices."""
    statistic = np.median if field.startswith("median") else np.mean
    seen = np.asarray(getattr(reading, name), np.float64).reshape(20, -1)
    error = np.array([statistic(part) for part in seen]).std(ddof=1) / np.sqrt(20)
    number = float(getattr(predicted, field)[0])
    each = np.array([statistic(rows) for rows in laws])
    # A share of the number, because the field may be the reciprocal of the quantity, or a share of it.
    own = number * each.std(ddof=1) / abs(each.mean())
    return abs(number - statistic(seen)) / (np.hypot(error, own) + 1e-12 * abs(number))


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
        predicted = rootdk.predict(32, 128, rule, rows=100)
        assert off(reading.max.reshape(200, 100).max(axis=1), predicted.max_logit[0]) < 4
        assert off(reading.min.reshape(200, 100).min(axis=1), predicted.min_logit[0]) < 4


@pytest.mark.parametrize("rows", [1, 8, 64, 65, 1000])
def test_lowest_log_sum_exp(rows: int) -> None:
    """The mean over groups of rows of their lowest ln Z, across the switch from the row law to the saddle point."""
    for d_k, keys in ((32, 128), (4, 16)):
        for rule, reading in measured(d_k, keys).items():
            groups = ROWS // rows
            seen = np.asarray(reading.log_sum_exp).reshape(-1)[: groups * rows].reshape(groups, rows).min(axis=1)
            predicted = float(rootdk.predict(d_k, keys, rule, rows=rows).min_log_sum_exp[0])
            error = np.hypot(seen.std() / np.sqrt(groups), 0.01 * np.asarray(reading.log_sum_exp).std())
            assert abs(seen.mean() - predicted) < 4 * error, (
                f"d_k {d_k}, {keys} keys, {rule}: {predicted}, seen {seen.mean()}"
            )


# n, d_k, scale: flat, concentrated, past the transition, one key, and no more keys than the row law has exactly.
LAWS = [(8, 16, 0.25), (16, 4, 1.0), (17, 64, 1.0), (1024, 64, 0.125), (1024, 64, 1.0), (1024, 64, 1 / 64),
        (16_384, 64, 0.3), (1e9, 64, 0.125), (1e9, 64, 0.6), (1e9, 512, 1.0), (1e12, 64, 0.8)]  # fmt: skip


@pytest.mark.parametrize(("keys", "d_k", "scale"), LAWS)
def test_rows_of_the_row_law_have_the_averages_that_are_known(keys: float, d_k: float, scale: float) -> None:
    """Quadrature knows these averages to 1e-8, also where nothing can be measured; errors are between the lattices."""
    laws = [row_law(keys, d_k, scale, shift) for shift in range(SHIFTS)]
    moments = attention_moments(keys, d_k, scale)
    predicted = rootdk.predict(d_k, keys, scale)
    known = {
        "log_sum_exp": (lambda law: law.log_sum_exp, moments.log_sum_exp),
        "entropy": (lambda law: law.entropy, moments.entropy),
        "p_squared": (lambda law: law.p_squared, moments.p_squared),
        "jacobian_trace": (lambda law: law.jacobian_trace, moments.jacobian_trace),
        "jacobian_norm_squared": (lambda law: law.jacobian_norm**2, moments.jacobian_norm_squared),
        "effective_keys": (lambda law: 1 / law.p_squared, predicted.mean_effective_keys[0]),
        "top_probability": (lambda law: law.top_probability, predicted.mean_top_probability[0]),
        "saturated": (lambda law: law.top_probability > 0.99, predicted.saturated[0]),
    }
    for name, (of_law, exact) in known.items():
        each = np.array([np.mean(of_law(law)) for law in laws])
        # The middle of several lattices; one row more or less is no evidence, nor is rounding.
        error = each.std(ddof=1) / np.sqrt(SHIFTS) + 0.25 / ROWS_OF_LAW * (name == "saturated") + 1e-9 * abs(exact)
        assert abs(each.mean() - exact) < 5 * error, (name, each.mean(), exact, error)  # Student's t with 7
        if name not in ("saturated", "effective_keys"):  # rare rows make these, and predict has integrals for them
            assert each.std(ddof=1) < 0.02 * abs(exact), name


def test_every_field_of_a_summary_has_a_value() -> None:
    by_head = measured(4, 16)["sqrt"].by_head()
    for setting in ((4, 16, "sqrt"), (1, 2, 3.0), (64, 1e12, "none"), (1e6, 100, 1.0), (64, 8, 0.0), (64, 8, 1e6)):
        predicted = rootdk.predict(*setting)
        assert {field.name for field in fields(predicted)} - {"d_k"} == {field.name for field in fields(by_head)}
        assert all(np.isfinite(getattr(predicted, field.name)).all() for field in fields(predicted)), setting
        assert type(predicted).from_dict(predicted.to_dict()).to_json() == predicted.to_json()


@pytest.mark.parametrize("scale", [1.0, 8**-0.5, 1 / 8])
@pytest.mark.parametrize("queries", [1, 3])
def test_gradient_sizes_are_those_of_the_operator(rng: np.random.Generator, queries: int, scale: float) -> None:
    """Through attention_vjp; several queries over the same keys send more to keys and values in proportion."""
    calls, d_k, keys, d_v = 4000, 8, 32, 3
    query, key = rng.standard_normal((calls, 1, queries, d_k)), rng.standard_normal((calls, 1, keys, d_k))
    value, gradient = rng.standard_normal((calls, 1, keys, d_v)), rng.standard_normal((calls, 1, queries, d_v))
    _, pull_back = rootdk.attention_vjp(query, key, value, scale=scale)
    sizes = gradient_sizes(keys, d_k, scale)
    for got, size in zip(pull_back(gradient)[:3], (sizes.query, sizes.key, sizes.value), strict=True):
        assert off((got**2).sum((1, 2, 3)) / (d_v * queries), size**2) < 4
    # Behind a norm: dW = sum dq x', and every x has the length sqrt(width).
    width = 16
    tokens = rng.standard_normal((calls, queries, width))
    tokens *= np.sqrt(width / (tokens**2).sum(-1, keepdims=True))
    weights = np.einsum("cqd,cqw->cdw", pull_back(gradient)[0][:, 0], tokens)
    assert off((weights**2).sum((1, 2)) / (d_v * queries * width), sizes.query**2) < 4


@pytest.mark.parametrize("scale", [1.0, 8**-0.5, 1 / 8])
@pytest.mark.parametrize(("d_k", "keys"), [(8, 32), (1, 4)])
def test_relative_gradient_is_that_of_the_operator(rng: np.random.Generator, d_k: int, keys: int, scale: float) -> None:
    """do/dq row by row through attention_vjp, one pull-back per component of the output."""
    rows, d_v = 4000, 3
    query, key = rng.standard_normal((rows, 1, 1, d_k)), rng.standard_normal((rows, 1, keys, d_k))
    value = rng.standard_normal((rows, 1, keys, d_v))
    out, pull_back = rootdk.attention_vjp(query, key, value, scale=scale)
    gradient = sum((pull_back(np.broadcast_to(np.eye(d_v)[i], out.shape).copy())[0] ** 2).sum(-1) for i in range(d_v))
    predicted = relative_gradient(keys, d_k, scale) ** 2
    # A ratio of two means: its error is that of gradient - predicted * output.
    assert off(gradient.reshape(-1) - predicted * (out**2).sum(-1).reshape(-1), 0.0) < 4


@pytest.mark.parametrize(("d_k", "keys", "scale"), [(8, 1e9, 10.6), (16, 1e12, 7.5), (1, 1e6, 30.0), (64, 1024, 1.0)])
def test_flat_rows_count_in_effective_keys_however_rare_they_are(d_k: int, keys: float, scale: float) -> None:
    """Frozen rows, and a flat one in a billion with a billion keys: against a finer lattice that reaches further."""
    sigma, weight = spread_nodes(keys, d_k, scale, log_error=-36 - 2 * np.log(keys), finer=2)
    predicted = rootdk.predict(d_k, keys, scale).mean_effective_keys[0]
    assert predicted == pytest.approx(weight @ effective_keys(keys, sigma), rel=1e-7)
