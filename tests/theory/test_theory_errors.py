"""Every refusal of the theory, by its text; and what a prediction does with rules and shapes."""

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import rootdk
from rootdk import ArgumentError, ArgumentTypeError, scaling, theory

KEYS = "keys: must be whole numbers from 2 to 1e+15"
D_K = "d_k: must be whole numbers from 1 to 1e+06"
SIGN = {-1: "1/2", 1: "1/2"}
NAN = float("nan")
NAMES = "scale: must be one of the names 'none', 'sqrt', 'dk', 't5', 'entropy_invariant', 'ssmax', 'llama4', "
NAMES += "one with parameters such as 'mup(64)', or a number"
COSINE = (
    "rule: must be one for q and k as they are, got 'cosine(2.302585092994046, 100)', which wants them of length 1: "
    "such scores are not Gaussian"
)

CASES = [
    (lambda: theory.softmax_moments(1, 1.0), f"{KEYS}, got 1.0"),
    (lambda: theory.softmax_moments(2.5, 1.0), f"{KEYS}, got 2.5"),
    (lambda: theory.softmax_moments([2, 0], 1.0), f"{KEYS}, got 0.0"),
    (lambda: theory.softmax_moments(NAN, 1.0), "keys: must be finite numbers, got nan"),
    (lambda: theory.softmax_moments("8", 1.0), "keys: must be numbers, got '8'"),
    (lambda: theory.softmax_moments(True, 1.0), "keys: must be numbers, got True"),
    (lambda: theory.softmax_moments(8, -1.0), "sigma: must be numbers from 0 to 1e+100, got -1.0"),
    (lambda: theory.softmax_moments(8, [1.0, NAN]), "sigma: must be numbers from 0 to 1e+100, got nan"),
    (lambda: theory.softmax_moments(8, 1j), "sigma: must be numbers, got 1j"),
    (lambda: theory.softmax_moments([2, 3], [1.0, 2.0, 3.0]),
     "keys and sigma: must have shapes that broadcast, got keys (2,), sigma (3,)"),
    (lambda: theory.attention_moments(8, 0, 1.0), f"{D_K}, got 0.0"),
    (lambda: theory.attention_moments(8, 64, float("inf")), "scale: must be numbers from -1e+50 to 1e+50, got inf"),
    (lambda: theory.attention_moments(8, 64, None), "scale: must be numbers, got None"),
    (lambda: theory.relative_gradient(1, 64, 1.0), f"{KEYS}, got 1.0"),
    (lambda: theory.critical_sigma(1), f"{KEYS}, got 1.0"),
    (lambda: theory.expected_maximum(0), "keys: must be whole numbers from 1 to 1e+15, got 0.0"),
    (lambda: theory.warm_entropy(1024, 2.0), "sigma: must be below sqrt(2 ln n)/2 = 1.862 for this law, got 2"),
    (lambda: theory.warm_p_squared(1024, [1.0, 3.0]),
     "sigma: must be below sqrt(2 ln n)/2 = 1.862 for this law, got 3"),
    (lambda: theory.frozen_jacobian_trace(1024, 3.0), "sigma: must be above sqrt(2 ln n) = 3.723 for this law, got 3"),
    (lambda: theory.frozen_saturation(1024, 8.0, 0.6), "gap: must be numbers from 0 to 0.5, got 0.6"),
    (lambda: theory.saturation(8, 1.0, 0.3), "threshold: must be numbers from 0.5 to 1, got 0.3"),
    (lambda: theory.saturation(3, 0.2, 0.5),
     "sigma: must be at least 0.35 for so few keys and so low a threshold, got 0.2"),
    (lambda: theory.top_probability(8, -1.0), "sigma: must be numbers from 0 to 1e+12, got -1.0"),
    (lambda: theory.effective_keys(1, 1.0), f"{KEYS}, got 1.0"),
    (lambda: theory.effective_keys(8, NAN), "sigma: must be numbers from 0 to 1e+12, got nan"),
    (lambda: theory.row_overlap(1, 1.0, 0.5), "keys: must be whole numbers from 2 to 1e+09, got 1.0"),
    (lambda: theory.row_overlap(8, 65.0, 0.5), "sigma: must be numbers from 0 to 64, got 65.0"),
    (lambda: theory.row_overlap(8, 1.0, -0.5), "correlation: must be numbers from 0 to 1, got -0.5"),
    (lambda: theory.token_similarity(8, 1.0, 2.0), "similarity: must be numbers from 0 to 1, got 2.0"),
    (lambda: theory.token_similarity(8, 1.0, 0.0, -1.0), "residual: must be numbers from 0 to 1e+06, got -1.0"),
    (lambda: theory.token_similarity(8, 1.0, 0.0, layers=[1, 2]), "layers: must be one number, got shape (2,)"),
    (lambda: theory.softmax_jacobian([0.5, 0.6]), "p: must add up to 1 along the last axis, got a sum of 1.1"),
    (lambda: theory.softmax_jacobian([1.5, -0.5]), "p: must be numbers from 0 to 1, got 1.5"),
    (lambda: theory.jacobian_spectral_norm(1.0), "p: must have at least one weight along its last axis, got shape ()"),
    (lambda: theory.score_variance(1.0, np.eye(2)), "cov_query: must have shape (..., d, d) with d at least 1, got ()"),
    (lambda: theory.score_variance(np.eye(2), np.eye(3)),
     "cov_key: last axes must be (2, 2) to match cov_query, got (3, 3)"),
    (lambda: theory.score_variance([[1, 2], [0, 1]], np.eye(2)),
     "cov_query: must be symmetric, got a matrix that is not"),
    (lambda: theory.score_variance(np.eye(2), [[1, 2], [2, 1]]), "cov_key: must have no negative eigenvalue, got -1"),
    (lambda: theory.score_variance(np.eye(2), np.eye(2), [1, 2, 3]),
     "mean_query: last axis must be 2 to match cov_query, got 3"),
    (lambda: theory.score_variance(np.eye(2), np.eye(2), cross_covariance=np.eye(3)),
     "cross_covariance: last axes must be (2, 2) to match cov_query, got (3, 3)"),
    (lambda: theory.score_variance(np.eye(2), np.eye(2), cross_covariance=2 * np.eye(2)),
     "cross_covariance: must leave q and k a joint covariance without a negative eigenvalue, got -1"),
    (lambda: theory.score_variance(np.ones((2, 1, 1)), np.eye(1), cross_covariance=np.zeros((3, 1, 1))),
     "cross_covariance: must have leading axes that broadcast, got (2, 1, 1), (1, 1), (3, 1, 1)"),
    (lambda: theory.attention_moments(16, [1, 2, 3], 1e7),
     "scale: must be at most 1e+06 in size where d_k is 1 or 2, got 1e+07"),
    (lambda: theory.score_mean(1.0), "cross_covariance: must have shape (..., d, d) with d at least 1, got ()"),
    (lambda: theory.score_variance(np.ones((2, 1, 1)), np.ones((3, 1, 1))),
     "cov_query, cov_key, means: must have leading axes that broadcast, got (2, 1, 1), (3, 1, 1), (1,), (1,)"),
    (lambda: theory.square_terms(0), "d: must be whole numbers from 1 to 4096, got 0.0"),
    (lambda: theory.square_terms([1, 2]), "d: must be one number, got shape (2,)"),
    (lambda: theory.square_terms(3, np.eye(2), np.eye(2)), "cov_query: must have shape (3, 3) to match d, got (2, 2)"),
    (lambda: theory.square_term_counts(0), "d: must be whole numbers from 1 to 1e+09, got 0.0"),
    (lambda: theory.score_excess_kurtosis(64, 0.5), "kurtosis_query: must be finite numbers >= 1, got 0.5"),
    (lambda: theory.score_law(0, SIGN), "d_k: must be whole numbers from 1 to 1e+06, got 0.0"),
    (lambda: theory.score_law(2, {1: "1/2"}),
     "query: must have probabilities >= 0 that add up to exactly 1, got a sum of 1/2"),
    (lambda: theory.score_law(2, SIGN, {1: 1.5, 2: -0.5}),
     "key: must have probabilities >= 0 that add up to exactly 1, got a sum of 1"),
    (lambda: theory.score_law(2, [1, 2]), "query: must map values to probabilities, got list"),
    (lambda: theory.score_law(2, {"x": 1}), "query: must hold ints, Fractions, floats or texts like '1/3', got 'x'"),
    (lambda: theory.score_law(3, {value: Fraction(1, 600) for value in range(600)}),
     "d_k: must leave at most 250000 pairs of outcomes to combine, got 360000: fewer values or smaller d_k"),
    (lambda: theory.exact_score_moments(2, {0: 1}),
     "query, key: must give a score that varies, got one that is always the same"),
    (lambda: theory.score_density(0.0, 64, [0.1, 0.2]), "scale: must be one number, got shape (2,)"),
    (lambda: theory.rotary_score(1.0, np.eye(2), np.eye(2), base=[1e4, 2e4]),
     "base: must be one number, got shape (2,)"),
    (lambda: theory.square_terms(3, mean_query=np.ones((2, 3))),
     "mean_query: must be one number or have shape (3,) to match d, got (2, 3)"),
    (lambda: theory.rule_variance("sqrtt", 64), f"{NAMES}, got 'sqrtt'; did you mean 'sqrt'?"),
    (lambda: theory.rule_variance(0.5, 64), "scale: must be a name or a rule from rootdk.scaling, got 0.5"),
    (lambda: theory.rule_variance("sqrt", 0), "d_k: must be whole numbers from 1 to 1e+15, got 0.0"),
    (lambda: theory.rule_variance("entropy_invariant", 64),
     "keys: must be given, the rule 'entropy_invariant' depends on it, got None"),
    (lambda: theory.correlated_score_variance(5, -0.5),
     "correlation_query: must be at least -1/(d_k - 1) = -0.25, got -0.5"),
    (lambda: theory.softcap_variance(1.0, 0.0), "softcap: must be finite numbers > 0, got 0.0"),
    (lambda: theory.softcap_slope(-1.0, 1.0), "sigma: must be numbers from 0 to 1e+100, got -1.0"),
    (lambda: theory.qk_norm_variance(1.0, 1.0, 1.0), "gain_query: must have one gain per component, got shape ()"),
    (lambda: theory.format_effect(1.0, "float8"),
     "name: must be one of 'float64', 'float32', 'bfloat16', 'float16', 'float8_e5m2', 'float8_e4m3fn', got 'float8'"),
    (lambda: theory.sum_bias(1.5, 1.0, "bfloat16"),
     "rest: must be below the spacing 0.00781 of the two numbers, got 1"),
    (lambda: theory.sum_bias([1.5, 300.0], 0.0, "float8_e4m3fn"),
     "size: must be from 0.0156 to 112 in float8_e4m3fn, got 300"),
    (lambda: theory.sum_bias(1e-6, 0.0, "float16"), "size: must be from 6.1e-05 to 1.64e+04 in float16, got 1e-06"),
    (lambda: theory.sum_bias(0.0, 0.0, "bfloat16"), "size: must be from 1.18e-38 to 8.47e+37 in bfloat16, got 0"),
    (lambda: rootdk.predict(0, 64), f"{D_K}, got 0.0"),
    (lambda: rootdk.predict(64, 1), "keys: must be whole numbers from 2 to 1e+12, got 1.0"),
    (lambda: rootdk.predict(64, NAN), "keys: must be finite numbers, got nan"),
    (lambda: rootdk.predict(64, 64, "sqrrt"), f"{NAMES}, got 'sqrrt'; did you mean 'sqrt'?"),
    (lambda: rootdk.predict(64, 64, rows=0), "rows: must be whole numbers from 1 to 1e+12, got 0.0"),
    (lambda: rootdk.predict(64, 64, NAN), "rule: must be numbers from -1e+06 to 1e+06, got nan"),
    (lambda: rootdk.predict(64, 64, None), "scale: must be a name or a rule from rootdk.scaling, got None"),
    (lambda: rootdk.predict(64, 64, scaling.cosine()), COSINE),
]  # fmt: skip


@pytest.mark.parametrize(("call", "message"), CASES, ids=[message[:60] for _, message in CASES])
def test_refusals(call: Any, message: str) -> None:
    with pytest.raises((ArgumentError, ArgumentTypeError)) as caught:
        call()
    assert str(caught.value) == message


def test_prediction_takes_arrays_in_c_order() -> None:
    heads = rootdk.predict([[8], [16]], [32, 64], "none")
    np.testing.assert_allclose(heads.mean_variance, [8 * 31 / 32, 8 * 63 / 64, 16 * 31 / 32, 16 * 63 / 64])
    assert heads.rows.tolist() == [32, 64, 32, 64]
    assert len(heads) == 4


def test_prediction_asks_the_rule_with_keys_and_position() -> None:
    """Rules that depend on length or position get those of the last query; a number is the scale itself."""
    long = rootdk.predict(64, 512**2, "entropy_invariant").mean_variance[0]
    assert long == pytest.approx(4.0, rel=1e-4)
    last, first = rootdk.predict(64, 8192, "llama4"), rootdk.predict(64, 8192, "llama4", position=0)
    assert last.mean_variance[0] == pytest.approx((1 + 0.1 * np.log(2)) ** 2, rel=1e-3)
    assert first.mean_variance[0] == pytest.approx(1.0, rel=1e-3)
    plain, number = rootdk.predict(16, 64, "sqrt"), rootdk.predict(16, 64, 0.25)
    assert plain.to_json() == number.to_json()


def test_a_prediction_stands_in_a_table_like_a_measurement() -> None:
    title, headings, cells = rootdk.predict([64, 128], 256).table()
    assert title.startswith("2 settings, medians over rows")
    assert headings[0] == "d_k"
    assert [row[0] for row in cells] == ["64", "128"]
    assert "entropy share" in headings
    assert not any("nan" in cell for row in cells for cell in row)


@pytest.mark.parametrize("call", [theory.softmax_moments, theory.effective_keys, theory.top_probability,
                                  lambda keys, sigma: theory.attention_moments(keys, 64, sigma)])  # fmt: skip
def test_no_setting_is_no_result(call: Any) -> None:
    averages = call([], np.zeros((3, 1)))
    assert getattr(averages, "entropy", averages).shape == (3, 0)


def test_a_masked_array_is_refused() -> None:
    """NumPy would drop the mask without a word."""
    masked = np.ma.MaskedArray([64, 128], [False, True])
    for call in (lambda: theory.softmax_moments(masked, 1.0), lambda: rootdk.predict(masked, 16)):
        with pytest.raises(ArgumentTypeError, match="must be numbers without a mask"):
            call()
