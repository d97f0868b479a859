"""softmax_moments and attention_moments: against mpmath, other roads to the same number, and known values."""

import math
import time

import numpy as np
import pytest
import theory_judge
from scipy.integrate import quad
from scipy.optimize import brentq
from scipy.special import k0, ndtr

from rootdk.theory import attention, attention_moments, expected_maximum, predict, rows, softmax, softmax_moments
from rootdk.theory.row_law import expected_maximum_logit

FIELDS = theory_judge.FIELDS
KEYS = (2, 3, 16, 1024, 10**6, 10**9)
SIGMAS = (0.01, 0.1, 0.34, 0.36, 1.0, 2.0, 4.0, 8.0, 16.0, 64.0)


def hold_against_mpmath(keys: tuple[int, ...], sigma: float, bound: float = 1e-8) -> None:
    judged = theory_judge.averages(keys, sigma)
    moments = softmax_moments(keys, sigma)
    for place, n in enumerate(keys):
        for field in FIELDS:
            error = abs(float(getattr(moments, field)[place] / judged[place][field] - 1))
            assert error <= bound, f"{field} at {n} keys, sigma {sigma}: relative error {error:.2g}"


@pytest.mark.parametrize(("keys", "sigma"), [((2, 1024, 10**9), 0.01), ((2, 1024), 2.0)])
def test_against_mpmath(keys: tuple[int, ...], sigma: float) -> None:
    hold_against_mpmath(keys, sigma)


@pytest.mark.slow
@pytest.mark.parametrize("sigma", SIGMAS)
def test_against_mpmath_on_the_whole_grid(sigma: float) -> None:
    hold_against_mpmath(KEYS, sigma)


@pytest.mark.parametrize(
    ("keys", "sigma", "log_z", "p_squared", "entropy"),
    [
        (1024, 1.0, "7.4306", "0.0026", "6.4333"),
        (1024, 8.0, "26.39", "0.602", "0.899"),
        (16, 8.0, "14.32", "0.7825", "0.405"),
        (1e9, 8.0, "49.75", "0.268", "2.887"),
    ],
)
def test_known_values(keys: float, sigma: float, log_z: str, p_squared: str, entropy: str) -> None:
    moments = softmax_moments(keys, sigma)
    for number, text in ((moments.log_sum_exp, log_z), (moments.p_squared, p_squared), (moments.entropy, entropy)):
        assert f"{number:.{len(text.partition('.')[2])}f}" == text


def test_identities_that_the_integrals_do_not_use() -> None:
    """1 - sum p^2 for the trace; ln Z of two keys, which is ln 2 cosh(half their difference) more than their mean."""
    from scipy.integrate import quad

    keys, sigma = np.meshgrid(np.array(KEYS, float), [0.0, 0.01, 0.35, 1.0, 5.0, 9.9, 10.1, 64.0, 1e3])
    moments = softmax_moments(keys, sigma)
    np.testing.assert_allclose(moments.jacobian_trace, 1 - moments.p_squared, rtol=0, atol=5e-12)
    for row, spread in enumerate(sigma[1:, 0], start=1):

        def log_z(x: float, spread: float = spread) -> float:
            half = spread * x / np.sqrt(2)
            return (half + np.log1p(np.exp(-2 * half))) * np.exp(-x * x / 2) * np.sqrt(2 / np.pi)

        whole = quad(log_z, 0, 15, epsabs=0, epsrel=1e-12, limit=400, points=[min(1.0, 1 / spread)])[0]
        assert moments.log_sum_exp[row, 0] == pytest.approx(whole, rel=1e-10), spread


def test_no_spread_is_uniform() -> None:
    keys = np.array(KEYS, float)
    moments = softmax_moments(keys, 0.0)
    exact = {
        "log_sum_exp": np.log(keys),
        "entropy": np.log(keys),
        "p_squared": 1 / keys,
        "p_cubed": keys**-2.0,
        "jacobian_trace": 1 - 1 / keys,
        "jacobian_norm_squared": (1 - 1 / keys) / keys,
    }
    for field in FIELDS:
        np.testing.assert_allclose(getattr(moments, field), exact[field], rtol=1e-11, err_msg=field)


def test_far_past_the_grid_the_largest_logit_is_all() -> None:
    """ln Z -> sigma E max, and the weight left to others falls like 1/sigma: no overflow and no cancellation."""
    for sigma in (1e4, 1e8, 1e50):
        moments = softmax_moments(KEYS, sigma)
        np.testing.assert_allclose(moments.log_sum_exp, sigma * expected_maximum(KEYS), rtol=1e-6)
        np.testing.assert_allclose(
            moments.jacobian_trace * sigma, softmax_moments(KEYS, 1e3).jacobian_trace * 1e3, rtol=1e-2
        )
        assert (moments.entropy > 0).all()


def test_grid_in_one_call_is_the_points_one_by_one() -> None:
    keys, sigma = np.array([2, 512, 1e9]), np.array([[0.1], [1.0], [20.0]])
    grid = softmax_moments(keys, sigma)
    for i in range(3):
        for j in range(3):
            point = softmax_moments(keys[j], sigma[i, 0])
            for field in FIELDS:
                assert getattr(grid, field)[i, j] == pytest.approx(getattr(point, field), rel=1e-11)


def test_time_per_point_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """Printed and not judged: a loaded machine must not fail the suite. The target is 50 ms."""
    softmax_moments(1e9, 8.0)
    took = {}
    for name, call in {
        "softmax_moments, 1e9 keys": lambda: softmax_moments(1e9, 8.0),
        "attention_moments, 1e9 keys, d_k 64": lambda: attention_moments(1e9, 64, 0.125),
        "softmax_moments, a grid of 30 x 20": lambda: softmax_moments(
            np.logspace(1, 9, 30).round(), np.logspace(-2, 1.8, 20)[:, None]
        ),
    }.items():
        start = time.perf_counter()
        call()
        took[name] = time.perf_counter() - start
    with capsys.disabled():
        print(
            "".join(f"\n{name}: {seconds * 1e3:.1f} ms" for name, seconds in took.items()), "(target 50 ms per point)"
        )
    assert all(took.values())


# sum p^3 at a million keys and few components is what asks for the finest step.
@pytest.mark.parametrize("d_k", [1, 2, 6, 16, 64, 1000, 100_000])
@pytest.mark.parametrize("keys", [2, 10**6, 10**9])
def test_mixture_against_twice_as_many_nodes(d_k: int, keys: int) -> None:
    """The trapezoidal rule over ln sigma has no error left: half the step gives the same to 1e-8 in every field."""
    for scale in (d_k**-0.5, 1.0, 1 / d_k, 0.3):
        sigma, weight = attention.spread_nodes(keys, d_k, scale, finer=2)
        finer = softmax_moments(keys, sigma)
        moments = attention_moments(keys, d_k, scale)
        for field in FIELDS:
            assert getattr(moments, field) == pytest.approx(weight @ getattr(finer, field), rel=1e-8), (field, scale)


TWO_KEYS = [(2, 0.3), (2, 20.0), (8, 8**-0.5), (64, 0.125), (64, 1.0), (128, 1 / 128)]


@pytest.mark.parametrize(("d_k", "scale"), TWO_KEYS)
def test_attention_over_two_keys_against_mpmath(d_k: int, scale: float) -> None:
    judged = theory_judge.two_keys(d_k, scale)
    moments = attention_moments(2, d_k, scale)
    for field in FIELDS:
        assert abs(float(getattr(moments, field) / judged[field] - 1)) <= 1e-8, field


@pytest.mark.slow
@pytest.mark.parametrize(("d_k", "scale", "nodes"), [(64, 0.125, 8), (128, 1.0, 8), (16, 0.25, 12)])
def test_attention_against_mpmath(d_k: int, scale: float, nodes: int) -> None:
    """So many nodes leave 1e-9 of Gauss's rule. Some minutes each: an average over one sigma takes 10 s in mpmath."""
    keys = (3, 1024, 10**9)
    judged = theory_judge.attention_averages(keys, d_k, scale, nodes)
    moments = attention_moments(keys, d_k, scale)
    for place, n in enumerate(keys):
        for field in FIELDS:
            error = abs(float(getattr(moments, field)[place] / judged[place][field] - 1))
            assert error <= 1e-8, f"{field} at {n} keys: relative error {error:.2g}"


def test_mixture_of_two_keys_by_another_road() -> None:
    """d_k = 2: |q|^2 is exponential, so Gauss-Laguerre averages over it; d_k = 1 with two keys: SciPy's quad."""
    from scipy.integrate import quad

    node, weight = np.polynomial.laguerre.laggauss(60)
    by_laguerre = weight @ softmax_moments(2, 0.3 * np.sqrt(2 * node)).p_squared
    assert attention_moments(2, 2, 0.3).p_squared == pytest.approx(by_laguerre, rel=1e-10)
    half_normal = quad(lambda x: softmax_moments(512, x).entropy * np.exp(-x * x / 2), 0, 9, epsabs=1e-12)[0]
    assert attention_moments(512, 1, 1.0).entropy == pytest.approx(half_normal * np.sqrt(2 / np.pi), rel=1e-9)


def test_sign_of_the_scale_does_not_matter_and_zero_is_uniform() -> None:
    positive, negative, none = (attention_moments(64, 16, scale) for scale in (0.7, -0.7, 0.0))
    assert positive == negative
    assert none.entropy == pytest.approx(np.log(64), rel=1e-11)


def test_weights_of_the_nodes_add_up_to_one_and_give_the_moments_of_chi_square() -> None:
    for d_k in (1, 3, 64, 10**5, 10**6):
        sigma, weight = attention.spread_nodes(2.0, d_k, 1.0)
        assert weight.sum() == pytest.approx(1, rel=1e-12)
        assert weight @ sigma**2 == pytest.approx(d_k, rel=1e-11)
        assert weight @ sigma**4 == pytest.approx(d_k * (d_k + 2), rel=1e-11)


def test_saturation_of_two_keys_is_known() -> None:
    """The general inversion, which two keys do not need, against 2 P(sigma sqrt(2) x > ln 99)."""
    from scipy.special import ndtr

    for sigma in (1.0, 2.0, 8.0, 64.0):
        edge = np.log(0.01 / 0.99)
        inverted = rows._inverted(2.0, sigma, edge)
        assert inverted == pytest.approx(2 * ndtr(edge / (np.sqrt(2) * sigma)), rel=1e-9)
        assert rows.saturation(2, sigma) == pytest.approx(inverted, rel=1e-9)


def test_top_probability_of_two_keys_is_known() -> None:
    """max p of two keys is 1/(1 + e^-|x|) with x of law N(0, 2 sigma^2); of equal keys it is 1/n."""
    from scipy.integrate import quad

    for sigma in (0.1, 1.0, 8.0):

        def density(x: float, spread: float = sigma * np.sqrt(2)) -> float:
            return 2 * np.exp(-((x / spread) ** 2) / 2) / (spread * np.sqrt(2 * np.pi)) / (1 + np.exp(-x))

        expected = quad(density, 0, 20 * sigma, epsabs=1e-13, limit=200)[0]
        assert rows.top_probability(2, sigma) == pytest.approx(expected, rel=1e-9)
    np.testing.assert_allclose(rows.top_probability(KEYS, 0.0), 1 / np.array(KEYS), rtol=1e-9)


def test_effective_keys_of_two_keys_are_known() -> None:
    """1/sum p^2 of two keys is 1 + 1/cosh of their difference; of equal keys it is n, and grows with none of them."""
    from scipy.integrate import quad

    for sigma in (0.1, 1.0, 8.0, 64.0):

        def density(x: float, spread: float = sigma * np.sqrt(2)) -> float:
            return 2 * np.exp(-((x / spread) ** 2) / 2) / (spread * np.sqrt(2 * np.pi)) / np.cosh(x)

        expected = 1 + quad(density, 0, min(20 * sigma, 60.0), epsabs=1e-13, limit=200)[0]
        assert rows.effective_keys(2, sigma) == pytest.approx(expected, rel=1e-9)
    np.testing.assert_allclose(rows.effective_keys(KEYS, 0.0), KEYS, rtol=1e-9)
    # Jensen: the average of 1/sum p^2 is at least 1 over the average of sum p^2, and at most n.
    keys, sigma = np.meshgrid(np.array(KEYS, float), np.array(SIGMAS))
    shared = rows.effective_keys(keys, sigma)
    assert (shared >= 1 / softmax_moments(keys, sigma).p_squared * (1 - 1e-9)).all()
    assert (shared <= keys * (1 + 1e-9)).all()


def test_effective_keys_against_half_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    keys, sigma = np.meshgrid(np.array(KEYS, float), np.array(SIGMAS))
    shared = rows.effective_keys(keys, sigma)
    monkeypatch.setattr(softmax, "STEP", softmax.STEP / 2)
    monkeypatch.setattr(softmax, "_NEGLIGIBLE", softmax._NEGLIGIBLE + 8)
    np.testing.assert_allclose(shared, rows.effective_keys(keys, sigma), rtol=1e-8)


@pytest.mark.parametrize("scale", [1.0, 1e3, 1e6])
def test_one_component_and_two_keys_against_the_law_of_a_product(scale: float) -> None:
    """The two logits differ by scale sqrt(2) q z, and a product of two normal numbers has density K_0(|x|)/pi."""
    unit = scale * math.sqrt(2)

    def of_log(u: float) -> float:
        off = math.exp(u)
        return off * 2 * float(k0(off / unit)) / (math.pi * unit) / (2 * math.cosh(off / 2) ** 2)

    exact = quad(of_log, -80, 6, limit=500, epsabs=0, epsrel=1e-11)[0]
    assert attention_moments(2, 1, scale).jacobian_trace == pytest.approx(exact, rel=1e-8)


def test_scores_next_to_nothing_are_uniform_rows() -> None:
    predicted = predict(1, 2, 1e-6)
    assert predicted.mean_entropy == pytest.approx(math.log(2), rel=1e-9)
    assert predicted.mean_top_probability == pytest.approx(0.5, rel=1e-5)


@pytest.mark.parametrize("d_k", [1, 3, 64])
@pytest.mark.parametrize("scale", [1e-3, 1e-8, -1e-9, 1e-50, 1e-300])
def test_the_largest_logit_is_proportional_to_the_scale(d_k: int, scale: float) -> None:
    """From 1e-8 on nearly all rows are flat to the averages, and the largest logit is still in one of them."""
    largest = expected_maximum_logit(64, 64, d_k, 1.0)
    np.testing.assert_allclose(expected_maximum_logit(64, 64, d_k, scale), abs(scale) * largest, rtol=1e-12)
    prediction = predict(d_k, 64, scale)
    assert [name for name, values in vars(prediction).items() if not np.isfinite(values).all()] == []


@pytest.mark.parametrize("scale", [0.1, 1.0, 10.0, 1000.0])
def test_medians_of_two_keys_and_one_component_are_known(scale: float) -> None:
    """The logits differ by scale sqrt(2) |q z|, and a product of two normal numbers has density K_0(|x|)/pi."""
    middle = brentq(lambda m: 2 / math.pi * quad(k0, 0, m, limit=400)[0] - 0.5, 0.01, 3.0)
    gap = scale * math.sqrt(2) * middle
    small = 1 / (1 + math.exp(gap))
    predicted = predict(1, 2, scale)
    entropy = small * (gap + math.log1p(math.exp(-gap))) + (1 - small) * math.log1p(math.exp(-gap))
    known = {
        "median_std": gap / 2,
        "median_top_probability": 1 - small,
        "median_jacobian_trace": 2 * small * (1 - small),
        "median_jacobian_norm": 2 * small * (1 - small),
        "median_entropy_ratio": entropy / math.log(2),
        "median_effective_keys": 1 / (1 - 2 * small * (1 - small)),
    }
    for name, value in known.items():
        assert float(getattr(predicted, name)[0]) == pytest.approx(value, rel=1e-6), name


@pytest.mark.parametrize("keys", [3, 10, 1000])
def test_two_components_far_past_the_transition_against_near_ties(keys: int) -> None:
    """A frozen row has a trace only where two keys tie: the density of their gap at 0 over sigma, and E 1/|q| of two
    components is sqrt(pi/2)."""
    scale = 1e6
    ties = quad(lambda x: keys * (keys - 1) * ndtr(x) ** (keys - 2) * math.exp(-x * x) / (2 * math.pi), -9, 9)[0]
    known = ties * math.sqrt(math.pi / 2) / scale
    assert attention_moments(keys, 2, scale).jacobian_trace == pytest.approx(known, rel=1e-4)
