"""The numbers and pictures of the explorer: what is measured agrees with theory, and what is drawn is both."""

import math

import numpy as np
import pytest
from explorer_views import values_of, view

import rootdk
from rootdk import theory
from rootdk.lab.explorer.shared import WIDTHS, vectors, vectors_in_python
from rootdk.theory.formats import spacing

# Measured beside theory

CLEAR = 5.0  # standard errors


@pytest.mark.parametrize(
    "raw",
    [
        {},
        {"d_k": 1024, "law": "sign"},
        {"d_k": 4, "law": "uniform"},
        {"d_k": 256, "law": "student"},
        {"correlation_query": 0.2, "correlation_key": 0.3},
        {"mean_query": 1.5, "mean_key": -1, "d_k": 100},
        {"mean_query": 0.5, "correlation_key": 0.2, "law": "sign"},
    ],
)
def test_scores_spread_as_theory_says(raw: dict[str, object]) -> None:
    rows = [values_of(view("growth", seed=seed, **raw)) for seed in range(8)]
    for measured, predicted in (("variance", "variance_theory"), ("inside", "inside_theory")):
        seen = np.array([row[measured] for row in rows])
        assert abs(seen.mean() - rows[0][predicted]) < CLEAR * seen.std(ddof=1) / math.sqrt(len(seen))
    first = rows[0]
    assert abs(first["variance"] - first["variance_theory"]) < CLEAR * first["variance_error"]


@pytest.mark.parametrize("d", [2, 7, 16])
def test_averages_of_terms_settle_where_the_proof_says(d: int) -> None:
    values = values_of(view("proof", d=d, samples=16384))
    for name, predicted in (("ones", 1.0), ("zeros", 0.0), ("total", values["total_theory"])):
        assert abs(values[name] - predicted) < CLEAR * values[f"{name}_error"]


@pytest.mark.parametrize(
    ("chapter", "raw", "names"),
    [
        ("sharpening", {"d_k": 64, "keys": 128}, ("entropy", "effective", "top")),
        ("sharpening", {"d_k": 16, "keys": 512, "rule": "none"}, ("entropy", "top")),
        ("sharpening", {"d_k": 256, "keys": 64, "rule": "dk"}, ("entropy", "effective", "top")),
        ("gradients", {"d_k": 64}, ("trace", "norm", "flow")),
        ("gradients", {"d_k": 128, "rule": "none"}, ("trace", "norm", "flow")),
        ("gradients", {"d_k": 128, "rule": "dk"}, ("trace", "norm", "flow")),
    ],
)
def test_rows_are_as_theory_says(chapter: str, raw: dict[str, object], names: tuple[str, ...]) -> None:
    rows = [values_of(view(chapter, seed=seed, **raw)) for seed in range(16)]
    for name in names:
        seen, predicted = np.array([row[name] for row in rows]), rows[0][f"{name}_theory"]
        # The medians of theory may have half a percent of the rows on the wrong side.
        slack = 0.005 * predicted
        assert abs(seen.mean() - predicted) < CLEAR * seen.std(ddof=1) / math.sqrt(len(seen)) + slack, name


@pytest.mark.parametrize("name", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("spread", [1, 8])
def test_rounding_is_as_theory_says(name: str, spread: int) -> None:
    values = values_of(view("formats", format=name, spread=spread))
    # The mean of 20,000 squares whose fourth moment is below 6: the root is off by sqrt(5/20000)/2 of itself.
    assert values["error"] == pytest.approx(values["error_theory"], rel=CLEAR * math.sqrt(5 / 20_000) / 2)


def test_spacing_is_that_of_numpy() -> None:
    for size in (1e-3, 0.25, 1.0, 77.0, 4000.0, 60000.0):
        for name in ("float64", "float32", "float16"):
            assert spacing(size, name) == np.spacing(np.dtype(name).type(size))
    assert math.isinf(spacing(65505.0, "float16"))


# What is drawn


def traces(chapter: str, figure: str, **raw: object) -> dict[str, dict[str, object]]:
    """The traces of one figure by their names; the first of a name counts."""
    (picture,) = (shown for shown in view(chapter, **raw).figures if shown.id == figure)
    return {str(trace.get("name", place)): trace for place, trace in reversed(list(enumerate(picture.plot["data"])))}


DIGITS = {"rtol": 1e-6}  # a picture keeps seven


def test_histograms_and_densities_have_area_1_and_the_variance_of_theory() -> None:
    for figure, scale in (("scores", 1.0), ("scaled", 1 / 8)):
        drawn = traces("growth", figure)
        bars, curve = drawn["measured"], drawn["theory: exact density"]
        assert np.sum(bars["y"]) * bars["width"] == pytest.approx(1, abs=0.01)  # some lie beyond 5 deviations
        x, y = np.array(curve["x"]), np.array(curve["y"])
        assert np.trapezoid(y, x) == pytest.approx(1, abs=1e-3)
        assert np.trapezoid(y * x * x, x) == pytest.approx(64 * scale**2, rel=0.01)


def test_the_grid_of_the_proof_is_the_mean_of_its_terms() -> None:
    shown = view("proof", d=4, samples=100)
    grid = np.array(shown.figures[0].plot["data"][0]["z"])
    drawn = np.random.default_rng(0).standard_normal((100, 2, 4))
    terms = [np.outer(q * k, q * k) for q, k in drawn]
    np.testing.assert_allclose(grid, np.mean(terms, axis=0), **DIGITS, atol=1e-9)
    ends = {name: trace["y"][-1] for name, trace in traces("proof", "settling", d=4, samples=100).items()}
    values = values_of(shown)
    assert ends["diagonal"] == pytest.approx(values["ones"], rel=1e-6)
    assert ends["others"] == pytest.approx(values["zeros"], rel=1e-6)
    assert ends["sum / d"] == pytest.approx(values["total"] / 4, rel=1e-6)


def drawn_logits(keys: int, d_k: int, scale: float) -> np.ndarray:
    lines: dict[str, np.ndarray] = {"np": np}
    exec(vectors_in_python(0, keys, d_k), lines)
    return scale * lines["key"].astype(float) @ lines["query"][0].astype(float)


def test_keys_stay_while_more_of_them_or_of_their_components_are_asked_for() -> None:
    few, many = vectors(5, 700, 16)[1], vectors(5, 4096, 1024)[1]
    np.testing.assert_array_equal(few, many[:700, :16])
    lines: dict[str, np.ndarray] = {"np": np}
    exec(vectors_in_python(5, 4096, 1024), lines)
    np.testing.assert_array_equal(lines["key"], many)
    # Every block of keys has numbers of its own.
    assert len({part.tobytes() for part in many.reshape(8, 512, 1024)}) == 8
    assert abs(many.mean()) < 5 / np.sqrt(many.size)


@pytest.mark.parametrize(("rule", "scale"), [("none", 1.0), ("sqrt", 1 / 8), ("dk", 1 / 64)])
def test_the_weights_drawn_are_softmax_of_the_scores(rule: str, scale: float) -> None:
    logits = drawn_logits(100, 64, scale)
    weights = np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum()
    shown = traces("sharpening", "weights", keys=100, rule=rule, sorted="false")["weight"]["y"]
    # float32: a score of size s is off by some 2^-24 s sqrt(d_k), and its weight by that share.
    np.testing.assert_allclose(shown, weights, rtol=1e-4, atol=1e-7)
    first = traces("sharpening", "weights", keys=100, rule=rule)["weight"]["y"]
    np.testing.assert_allclose(first, np.sort(weights)[::-1][:32], rtol=1e-4, atol=1e-7)


def test_the_entropy_drawn_is_that_of_theory() -> None:
    drawn = traces("sharpening", "entropy", keys=128)
    curve = drawn["entropy share"]
    spread = traces("sharpening", "entropy", keys=128)["entropy share"]["x"]
    predicted = theory.softmax_moments(128, np.array(spread)).entropy / math.log(128)
    np.testing.assert_allclose(curve["y"], predicted, **DIGITS)
    assert drawn["none"]["x"] == [8.0]


@pytest.mark.parametrize(("rule", "words"), [("none", "none"), ("sqrt", "1/√d<sub>k</sub>"), ("dk", "1/d<sub>k</sub>")])
def test_the_curves_of_the_gradients_are_those_of_predict(rule: str, words: str) -> None:
    predicted = rootdk.predict([16, 1024], 512, rule)
    scale = [rootdk.scaling.rule(rule).factor(d_k, None, None) for d_k in (16, 1024)]
    moments = theory.attention_moments(512, [16, 1024], scale)
    expected = {
        "trace": predicted.median_jacobian_trace,
        "norm": predicted.median_jacobian_norm,
        "rms": np.sqrt(moments.jacobian_norm_squared),
        "flow": theory.relative_gradient(512, [16, 1024], scale),
    }
    for shown, ends in expected.items():
        y = traces("gradients", "sizes", shown=shown)[words]["y"]
        np.testing.assert_allclose([y[0], y[-1]], ends, **DIGITS)
    y = traces("gradients", "sizes", shown="live")[words]["y"]
    np.testing.assert_allclose([y[0], y[-1]], 1 - predicted.saturated, atol=0.01)  # of 8192 rows; predict integrates
    if rule != "none":
        y = traces("not-dk", "gradient")[words]["y"]
        np.testing.assert_allclose([y[0], y[-1]], expected["flow"], **DIGITS)


def test_the_jacobian_drawn_is_that_of_the_formula() -> None:
    logits = np.sort(drawn_logits(16, 64, 1 / 8))[::-1]
    weights = np.exp(logits) / np.exp(logits).sum()
    grid = view("gradients", keys=16).figures[0].plot["data"][0]["z"]
    np.testing.assert_allclose(grid, theory.softmax_jacobian(weights), rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("shown", ["flow", "variance", "entropy"])
def test_the_curve_of_an_exponent_is_that_of_theory(shown: str) -> None:
    widths = np.array(WIDTHS, float)
    predicted = {
        "flow": lambda: theory.relative_gradient(512, widths, widths**-0.3),
        "variance": lambda: widths**0.4,
        "entropy": lambda: theory.attention_moments(512, widths, widths**-0.3).entropy / math.log(512),
    }[shown]()
    np.testing.assert_allclose(
        traces("choosing", "curves", shown=shown, exponent=0.3)["your a = 0.3"]["y"], predicted, **DIGITS
    )
    change = traces("choosing", "change", shown=shown, exponent=0.3)["your a = 0.3"]
    np.testing.assert_allclose(change["y"], [predicted[-1] / predicted[0]], **DIGITS)


def test_the_curves_over_n_are_those_of_theory() -> None:
    spread, share = traces("context", "spread", d_k=100), traces("context", "shares", d_k=100)
    lengths = np.array(share["none"]["x"])
    assert (lengths[0], lengths[-1]) == (10, 10**9)
    np.testing.assert_allclose(spread["none"]["y"], 10.0)
    predicted = theory.softmax_moments(lengths, 10.0).entropy / np.log(lengths)
    np.testing.assert_allclose(share["none"]["y"], predicted, **DIGITS)
    np.testing.assert_allclose(spread["s ln n / √d<sub>k</sub>"]["y"], 0.43 * np.log(lengths), **DIGITS)
    few = traces("context", "shares", shown="effective")["1/√d<sub>k</sub>"]["y"]
    np.testing.assert_allclose(few, 1 / theory.softmax_moments(lengths, 1.0).p_squared, **DIGITS)


def test_the_curves_of_the_formats_are_those_of_theory() -> None:
    for name in ("float32", "bfloat16", "float16"):
        curve = traces("formats", "errors")[name]
        np.testing.assert_allclose(curve["y"], theory.format_effect(np.array(curve["x"]), name).weight_error, rtol=1e-4)
        steps = traces("formats", "spacing")[name]
        np.testing.assert_allclose(steps["y"], [spacing(size, name) for size in steps["x"]], **DIGITS)


@pytest.mark.parametrize(("keys", "step"), [(8, 1), (9, 3), (16, 3), (32, 5)])
def test_labels_of_a_map_stand_clear_of_each_other(keys: int, step: int) -> None:
    """At most eight of them along an axis, and no grid over the cells."""
    layout = view("gradients", keys=keys).figures[0].plot["layout"]
    for axis in (layout["xaxis"], layout["yaxis"]):
        assert (axis["dtick"], axis["showgrid"]) == (step, False)
        assert keys / step <= 8
