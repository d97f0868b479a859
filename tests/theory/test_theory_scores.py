"""Scores, exact laws, landmarks, Jacobian, effects, formats: each against what does not share its formula."""

import itertools
import math
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from scipy.integrate import quad
from scipy.special import gamma, kv, ndtri

from rootdk import scaling, theory
from rootdk.errors import ArgumentError
from rootdk.theory import score_density, score_tail


def random_covariance(rng: np.random.Generator, d: int) -> np.ndarray:
    root = rng.standard_normal((d, d))
    return root @ root.T / d


def test_score_variance_by_sampling(rng: np.random.Generator) -> None:
    d, rows = 5, 200_000
    s_query, s_key = random_covariance(rng, d), random_covariance(rng, d)
    m_query, m_key = rng.standard_normal(d), rng.standard_normal(d)
    query = rng.multivariate_normal(m_query, s_query, rows)
    key = rng.multivariate_normal(m_key, s_key, rows)
    score = (query * key).sum(axis=1)
    squares = (score - m_query @ m_key) ** 2
    expected = theory.score_variance(s_query, s_key, m_query, m_key)
    assert abs(squares.mean() - expected) < 4 * squares.std() / np.sqrt(rows)
    inside = np.einsum("rd,de,re->r", query, s_key, query)  # variance over keys, given the query
    assert abs(inside.mean() - theory.row_variance(s_query, s_key, m_query)) < 4 * inside.std() / np.sqrt(rows)
    assert theory.square_terms(d, s_query, s_key, m_query, m_key).sum() == pytest.approx(
        expected + (m_query @ m_key) ** 2
    )


def test_moments_of_dependent_q_and_k_by_sampling(rng: np.random.Generator) -> None:
    d, rows = 4, 400_000
    joint = random_covariance(rng, 2 * d)
    means = rng.standard_normal(2 * d)
    query, key = np.split(rng.multivariate_normal(means, joint, rows), 2, axis=1)
    score = (query * key).sum(axis=1)
    cross = joint[:d, d:]
    mean = theory.score_mean(cross, means[:d], means[d:])
    assert abs(score.mean() - mean) < 4 * score.std() / np.sqrt(rows)
    squares = (score - mean) ** 2
    variance = theory.score_variance(joint[:d, :d], joint[d:, d:], means[:d], means[d:], cross)
    assert abs(squares.mean() - variance) < 4 * squares.std() / np.sqrt(rows)
    independent = theory.score_variance(joint[:d, :d], joint[d:, d:], means[:d], means[d:])
    assert abs(squares.mean() - independent) > 20 * squares.std() / np.sqrt(rows)


@pytest.mark.parametrize("interleaved", [False, True])
def test_rotary_scores_by_sampling(rng: np.random.Generator, interleaved: bool) -> None:
    """Each vector turned by its own position, as complex numbers; 3 and 40 are as far apart as 0 and 37."""
    d, rows, base = 6, 200_000, 100.0
    root = rng.standard_normal((2 * d, 2 * d))
    joint = root @ root.T / d
    both = rng.multivariate_normal(np.zeros(2 * d), joint, rows)

    def turned(x: np.ndarray, position: int) -> np.ndarray:
        pairs = x.reshape(rows, -1, 2) if interleaved else np.stack(np.split(x, 2, axis=1), axis=-1)
        return (pairs[..., 0] + 1j * pairs[..., 1]) * np.exp(1j * position * base ** (-2 * np.arange(d // 2) / d))

    mean, variance = theory.rotary_score(37, joint[:d, :d], joint[d:, d:], joint[:d, d:], base, interleaved)
    for at, other in ((0, 37), (3, 40)):
        score = (turned(both[:, :d], at) * turned(both[:, d:], other).conj()).real.sum(axis=1)
        assert abs(score.mean() - mean) < 4 * score.std() / np.sqrt(rows)
        squares = (score - mean) ** 2
        assert abs(squares.mean() - variance) < 4 * squares.std() / np.sqrt(rows)


def test_rotary_scores_that_are_known() -> None:
    """No distance turns nothing; of aligned q and k the mean is a sum of cosines; an odd width has no pairs."""
    cov, cross = np.diag([1.0, 2.0, 3.0, 4.0]), 0.5 * np.eye(4)
    mean, variance = theory.rotary_score(0, cov, cov, cross)
    assert mean == theory.score_mean(cross)
    assert variance == theory.score_variance(cov, cov, cross_covariance=cross)
    aligned, _ = theory.rotary_score([1.0, 50.0], np.eye(4), np.eye(4), cross)
    assert aligned == pytest.approx([math.cos(t) + math.cos(t / 100) for t in (1.0, 50.0)])
    with pytest.raises(ArgumentError, match=r"cov_query: must have an even number of components .*, got 3"):
        theory.rotary_score(1, np.eye(3), np.eye(3))


def test_variance_broadcasts_over_leading_axes(rng: np.random.Generator) -> None:
    stack = np.stack([random_covariance(rng, 3) for _ in range(4)])
    variances = theory.score_variance(stack[:, None], stack, mean_key=[1.0, 2.0, 3.0])
    assert variances.shape == (4, 4)
    assert variances[1, 2] == pytest.approx(theory.score_variance(stack[1], stack[2], mean_key=[1.0, 2.0, 3.0]))


@pytest.mark.parametrize("d", [1, 2, 3])
def test_square_terms_by_enumeration(d: int) -> None:
    """All sign patterns of q and k, term by term."""
    patterns = [np.array(signs) for signs in itertools.product([-1, 1], repeat=d)]
    total = sum(np.outer(q * k, q * k) for q in patterns for k in patterns)
    np.testing.assert_array_equal(theory.square_terms(d), total / len(patterns) ** 2)
    counts = theory.square_term_counts(d)
    table = theory.square_terms(d)
    assert counts == {"terms": table.size, "average_1": (table == 1).sum(), "average_0": (table == 0).sum(), "sum": d}


def test_variance_is_d_whatever_the_distribution() -> None:
    for law in (
        {-1: "1/2", 1: "1/2"},
        {"-1/2": "4/5", 2: "1/5"},
        {-2: "1/8", 0: "3/4", 2: "1/8"},
        {-10: "1/200", 0: "99/100", 10: "1/200"},
    ):
        kurtosis = sum(Fraction(value) ** 4 * Fraction(chance) for value, chance in law.items())
        for d in (1, 2, 5, 16):
            moments = theory.exact_score_moments(d, law)
            assert moments["mean"] == 0
            assert moments["variance"] == d
            assert moments["excess_kurtosis"] == (kurtosis**2 - 3) / d
            predicted = theory.score_excess_kurtosis(d, float(kurtosis), float(kurtosis))
            assert predicted == pytest.approx(float(moments["excess_kurtosis"]))


def test_exact_law_by_plain_enumeration() -> None:
    query, key = {0: "1/3", 1: "2/3"}, {-1: "1/4", 2: "3/4"}
    plain: dict[Fraction, Fraction] = {}
    for qs in itertools.product(query, repeat=3):
        for ks in itertools.product(key, repeat=3):
            score, chance = Fraction(0), Fraction(1)
            for q, k in zip(qs, ks, strict=True):
                score, chance = score + q * k, chance * Fraction(query[q]) * Fraction(key[k])
            plain[score] = plain.get(score, Fraction(0)) + chance
    assert theory.score_law(3, query, key) == plain
    assert sum(theory.score_law(500, {-1: "1/2", 1: "1/2"}).values()) == 1


def test_gaussian_kurtosis_by_sampling(rng: np.random.Generator) -> None:
    rows = 400_000
    score = (rng.standard_normal((rows, 8)) * rng.standard_normal((rows, 8))).sum(axis=1) / np.sqrt(8)
    fourth = score**4
    assert abs(fourth.mean() - 3 - theory.score_excess_kurtosis(8)) < 4 * fourth.std() / np.sqrt(rows)


def bessel(x: float, d_k: int) -> float:
    """The density in its other form, which overflows for large d_k but shares no code."""
    order = (d_k - 1) / 2
    return abs(x) ** order * kv(order, abs(x)) / (math.sqrt(math.pi) * 2**order * gamma(d_k / 2))


@pytest.mark.parametrize("d_k", [3, 4, 7, 16, 64])
@pytest.mark.parametrize("scale", [1.0, -0.25, 8.0])
def test_density_and_tail_of_a_score(d_k: int, scale: float) -> None:
    x = np.array([0.01, 0.1, 1.0, 3.0, 10.0, 30.0])
    expected = np.array([bessel(point / scale, d_k) / abs(scale) for point in x])
    near = expected > 1e-12 * expected[0]
    np.testing.assert_allclose(score_density(x[near], d_k, scale), expected[near], rtol=1e-5 if d_k == 3 else 1e-7)
    beyond = 2 * quad(bessel, 3.0, np.inf, args=(d_k,), epsrel=1e-10)[0]
    assert score_tail(3.0 * abs(scale), d_k, scale) == pytest.approx(beyond, rel=1e-8)


def test_a_score_of_large_d_k_is_gaussian() -> None:
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
def test_a_law_that_there_is_not_is_refused(arguments: tuple[float, ...], message: str) -> None:
    for function in (score_density, score_tail):
        with pytest.raises(ArgumentError, match=message):
            function(*arguments)


def test_expected_maximum_against_mpmath() -> None:
    from mpmath import mp

    for n in (1, 2, 3, 1024, 10**9, 10**15):
        peak = float(np.sqrt(2 * np.log(n)))
        with mp.workdps(40):
            whole = mp.quad(
                lambda x, n=n: n * x * mp.npdf(x) * mp.ncdf(x) ** (n - 1),
                [-15, -4, 0, 2, *(peak + np.arange(-1, 8)), 20],
            )
        assert theory.expected_maximum(n) == pytest.approx(float(whole), rel=1e-9, abs=1e-12)
    assert theory.expected_maximum(3) == pytest.approx(1.5 / np.sqrt(np.pi))


def test_simple_laws_are_limits_of_the_exact_ones() -> None:
    """On the warm side good to a percent and better with more keys; on the frozen side right in order."""
    for sigma in (0.5, 1.0, 1.5):
        errors = []
        for keys in (1e4, 1e6, 1e9):
            exact = theory.softmax_moments(keys, sigma)
            errors.append(abs(theory.warm_p_squared(keys, sigma) / exact.p_squared - 1))
            assert theory.warm_entropy(keys, sigma) == pytest.approx(exact.entropy, rel=1e-2)
        assert errors[0] > errors[1] > errors[2]
        assert errors[2] < 1e-3
    for factor in (1.5, 2.0, 5.0):
        traces, saturations = [], []
        for keys in (512, 1e6, 1e9, 1e15):
            sigma = factor * theory.critical_sigma(keys)
            trace = theory.softmax_moments(keys, sigma).jacobian_trace
            traces.append(theory.frozen_jacobian_trace(keys, sigma) / trace - 1)
            saturations.append(1 - theory.frozen_saturation(keys, sigma, 0.01) / theory.saturation(keys, sigma))
        for errors in (traces, saturations):
            assert 0.4 > errors[0] > errors[1] > errors[2] > errors[3] > 0, (factor, errors)


def test_spectral_norm_is_the_largest_eigenvalue(rng: np.random.Generator) -> None:
    for sharpness in (0.1, 1.0, 4.0, 12.0):
        weights = np.exp(sharpness * rng.standard_normal((20, 9)))
        weights /= weights.sum(axis=1, keepdims=True)
        jacobian = theory.softmax_jacobian(weights)
        norms = theory.jacobian_spectral_norm(weights)
        np.testing.assert_allclose(norms, np.linalg.eigvalsh(jacobian)[:, -1], rtol=1e-9, atol=1e-14)
        low, high = theory.jacobian_norm_bounds(weights)
        assert (low <= norms * (1 + 1e-12)).all()
        assert (norms <= high * (1 + 1e-12)).all()
        assert (high <= 0.5 + 1e-12).all()
        np.testing.assert_allclose(jacobian.sum(axis=-1), 0, atol=1e-15)


def test_spectral_norm_of_special_weights() -> None:
    np.testing.assert_allclose(theory.jacobian_spectral_norm(np.full(7, 1 / 7)), 1 / 7, rtol=1e-12)
    for tiny in (1e-3, 1e-12, 1e-30):  # two keys: 2 p (1 - p), with all digits of a weight next to 1
        np.testing.assert_allclose(theory.jacobian_spectral_norm([1.0 - tiny, tiny]), 2 * tiny * (1 - tiny), rtol=1e-9)
    assert theory.jacobian_spectral_norm([0.0, 1.0, 0.0]) == 0
    assert theory.jacobian_spectral_norm([1.0]) == 0
    p = np.array([0.4, 0.3, 0.2, 0.1])
    norm = theory.jacobian_spectral_norm(p)
    assert (p**2 / (p - norm)).sum() == pytest.approx(1)


def test_jacobian_is_the_derivative_of_softmax(rng: np.random.Generator) -> None:
    scores, step = rng.standard_normal(6), 1e-6

    def softmax(z: np.ndarray) -> np.ndarray:
        return np.exp(z) / np.exp(z).sum()

    slopes = [(softmax(scores + step * e) - softmax(scores - step * e)) / (2 * step) for e in np.eye(6)]
    np.testing.assert_allclose(theory.softmax_jacobian(softmax(scores)), np.array(slopes).T, atol=1e-9)


RULES = [
    (scaling.NONE, {}, 64.0),
    (scaling.SQRT, {}, 1.0),
    (scaling.DK, {}, 1 / 64),
    (scaling.T5, {}, 64.0),
    (scaling.mup(128), {}, 2.0),
    (scaling.query_pre_attn_scalar(256), {}, 0.25),
    (scaling.attention_multiplier(0.0078125), {}, 64 * 0.0078125**2),
    (scaling.layer_scaled(3), {}, 1 / 16),
    (scaling.entropy_invariant(), {"keys": 4096}, (np.log(4096) / np.log(512)) ** 2),
    (scaling.ssmax(0.43), {"keys": 1024}, (0.43 * np.log(1024)) ** 2),
    (scaling.qwen_log_n(2048), {"position": 8191}, (np.log(8192) / np.log(2048)) ** 2),
    (scaling.llama4(), {"position": 8191}, (1 + 0.1 * np.log(2)) ** 2),
    (scaling.yarn(16), {}, (0.1 * np.log(16) + 1) ** 4),
    (scaling.cosine(), {}, 100 / 64),
]


@pytest.mark.parametrize(("rule", "where", "expected"), RULES, ids=[rule.name for rule, _, _ in RULES])
def test_variance_under_every_rule(
    rng: np.random.Generator, rule: scaling.ScaleRule, where: dict, expected: float
) -> None:
    """The written formula, and 50,000 scores with the rule's own factor."""
    predicted = theory.rule_variance(rule, 64, **where)
    assert predicted == pytest.approx(expected)
    query, key = rng.standard_normal((2, 50_000, 64))
    if rule.unit_length:
        query, key = (a / np.linalg.norm(a, axis=1, keepdims=True) for a in (query, key))
    squares = (rule.factor(64, where.get("keys"), where.get("position")) * (query * key).sum(axis=1)) ** 2
    assert abs(squares.mean() - predicted) < 4 * squares.std() / np.sqrt(squares.size)


def test_rule_variance_takes_arrays() -> None:
    np.testing.assert_allclose(theory.rule_variance("dk", [[16, 64]]), [[1 / 16, 1 / 64]])


def test_correlation_and_shared_mean_are_the_general_formula() -> None:
    d, r, s = 7, 0.3, -0.1
    cov_query, cov_key = ((1 - c) * np.eye(d) + c * np.ones((d, d)) for c in (r, s))
    assert theory.correlated_score_variance(d, r, s) == pytest.approx(theory.score_variance(cov_query, cov_key))
    assert theory.correlated_score_variance(d, r) == pytest.approx(theory.score_variance(cov_query, cov_query))
    unit = np.eye(d)
    whole, inside = theory.shared_mean_variance(d, 0.5, 2.0)
    assert whole == pytest.approx(theory.score_variance(unit, unit, 0.5, 2.0))
    assert inside == pytest.approx(theory.row_variance(unit, unit, 0.5))


def test_softcap_against_quad() -> None:
    for sigma, cap in ((0.01, 50.0), (1.0, 1.5), (1.49, 1.5), (1.51, 1.5), (30.0, 5.0), (8.0, 50.0)):
        reach = min(12.0, 40 * cap / sigma + 12.0)

        def average(function, sigma=sigma, cap=cap, reach=reach) -> float:
            points = np.array([-3, -1, 1, 3]) * min(1.0, cap / sigma)
            return quad(lambda x: function(sigma * x) * np.exp(-x * x / 2) / np.sqrt(2 * np.pi), -reach, reach,
                        epsabs=1e-14, limit=400, points=points)[0]  # fmt: skip

        variance = average(lambda z, cap=cap: (cap * np.tanh(z / cap)) ** 2)
        assert theory.softcap_variance(sigma, cap) == pytest.approx(variance, rel=1e-9)
        assert theory.softcap_slope(sigma, cap) == pytest.approx(
            average(lambda z, cap=cap: np.cosh(z / cap) ** -2.0), rel=1e-9
        )
    assert theory.softcap_variance(0.5, 50.0) == pytest.approx(0.25 - 2 * 0.5**4 / 50**2, rel=1e-6)


def test_qk_norm(rng: np.random.Generator) -> None:
    d, rows = 16, 100_000
    gain_query, gain_key = rng.random((2, d)) + 0.5
    query, key = rng.standard_normal((2, rows, d))
    query, key = (a / np.sqrt((a**2).mean(axis=1, keepdims=True)) for a in (query, key))
    scores = 0.25 * ((gain_query * query) * (gain_key * key)).sum(axis=1)
    variance, largest = theory.qk_norm_variance(0.25, gain_query, gain_key)
    assert abs((scores**2).mean() - variance) < 4 * (scores**2).std() / np.sqrt(rows)
    assert np.abs(scores).max() <= largest
    spike = np.zeros(d)
    spike[np.argmax(gain_query * gain_key)] = np.sqrt(d)  # the bound is reached
    assert 0.25 * (gain_query * spike) @ (gain_key * spike) == pytest.approx(largest)


@pytest.mark.parametrize("name", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("sigma", [0.01, 1.0, 8.0, 300.0, 30_000.0])
def test_rounding_of_scores(rng: np.random.Generator, name: str, sigma: float) -> None:
    kind = ml_dtypes.bfloat16 if name == "bfloat16" else np.dtype(name)
    scores = sigma * rng.standard_normal(400_000)
    with np.errstate(over="ignore"):
        rounded = scores.astype(kind).astype(np.float64)
    predicted = theory.format_effect(sigma, name)
    lost = np.isinf(rounded).mean()
    assert abs(lost - predicted.overflow) <= 4 * np.sqrt(predicted.overflow / scores.size)
    squares = (rounded - scores)[np.isfinite(rounded)] ** 2
    # 1 % for the density changing inside one step of the coarsest format.
    assert abs(np.sqrt(squares.mean()) / predicted.score_error - 1) < 0.01
    if predicted.score_error < 0.3:
        weights = np.expm1((rounded - scores)[np.isfinite(rounded)])
        assert np.sqrt((weights**2).mean()) == pytest.approx(predicted.weight_error, rel=0.03)


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize("sigma", [1e-4, 0.01, 1.0, 8.0, 300.0, 30_000.0])
def test_rounding_of_scores_to_eight_bits(name: str, sigma: float) -> None:
    """Against a sum over a million quantiles of z: no formula of the cells, and the rounding is that of ml_dtypes."""
    scores = sigma * ndtri((np.arange(1_000_000) + 0.5) / 1_000_000)
    with np.errstate(over="ignore"):
        rounded = scores.astype(getattr(ml_dtypes, name)).astype(np.float64)
    predicted = theory.format_effect(sigma, name)
    assert (~np.isfinite(rounded)).mean() == pytest.approx(predicted.overflow, abs=2e-6)
    squares = (rounded - scores)[np.isfinite(rounded)] ** 2
    assert np.sqrt(squares.mean()) == pytest.approx(predicted.score_error, rel=2e-4)


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float16"])
@pytest.mark.parametrize("share", [-0.9, -0.25, -1e-3, 0.0, 1e-3, 0.5, 0.9])
def test_sums_of_stored_numbers_are_rounded_to_one_side(name: str, share: float) -> None:
    """Every pair of stored numbers of a binade, added with the rest and rounded by the type itself."""
    kind = np.dtype(getattr(ml_dtypes, name, name))
    digits = ml_dtypes.finfo(kind).nmant
    unit = 4.0 * 2.0**-digits
    # Of float16 the first 256. Not 4 itself: 4 + 4 less a rest would leave the binade of the sums. A multiple of four
    # numbers: then ties go up as often as down.
    stored = 4.0 + unit * np.arange(4, 2 ** min(digits, 8))
    exact = stored[:, None] + stored + share * unit
    assert (stored.astype(kind).astype(np.float64) == stored).all()
    errors = exact.astype(kind).astype(np.float64) - exact
    assert errors.mean() == pytest.approx(float(theory.sum_bias(6.0, share * unit, name)), abs=1e-12)
    assert errors.mean() == pytest.approx(-float(theory.sum_bias(-6.0, -share * unit, name)), abs=1e-12)


def test_formats_are_those_of_the_types() -> None:
    from rootdk.theory.formats import FORMATS, spacing

    for name, kind in FORMATS.items():
        info = ml_dtypes.finfo(getattr(ml_dtypes, name, name))
        assert (kind.digits - 1, kind.least_exponent) == (info.nmant, info.minexp)
        assert kind.largest == float(info.max)
        assert spacing(0.0, name) == float(info.smallest_subnormal)


@pytest.mark.parametrize("keys", [16, 512, 1e6, 1e9])
@pytest.mark.parametrize("gap", [0.01, 0.1, 0.5 - 1e-9])
def test_how_low_the_frozen_law_of_saturation_is(keys: float, gap: float) -> None:
    factors = np.array([1.0001, 1.5, 2.0, 3.0, 5.0, 10.0])
    sigma = theory.critical_sigma(keys) * factors
    ratio = theory.frozen_saturation(keys, sigma, gap) / theory.saturation(keys, sigma, 1 - gap)
    assert ratio[factors >= 2].min() > 0.5
    assert ratio[1] > 0.35
    assert ratio[0] < 0.002
    assert ratio.max() < 1.0
