"""One score <q, k>: mean, variance and shape for any means and covariances of q and k, and its law if both are normal.

The moments assume only that q and k are independent of each other or, if they are not, that they are jointly normal.
Density and tails are those of Gaussian q and k, from the law of the query's length. For components that take a few
values the law is exact, in fractions: no sampling, no rounding.
"""

import math
import operator
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtr

from rootdk.errors import ArgumentError, ArgumentTypeError

from ._arguments import Floats, broadcast, count, number, numbers, result, whole
from .attention import spread_nodes

_LARGEST_TABLE = 4096


def score_variance(
    cov_query: ArrayLike,
    cov_key: ArrayLike,
    mean_query: ArrayLike = 0.0,
    mean_key: ArrayLike = 0.0,
    cross_covariance: ArrayLike | None = None,
) -> Floats:
    """Var <q, k> = tr(S_q S_k) + m_q' S_k m_q + m_k' S_q m_k, and + tr(C C) + 2 m_k' C m_q where q and k depend.

    S_q and S_k are covariances of shape (..., d, d), the means numbers or shape (..., d); leading axes broadcast.
    cross_covariance is C = E (q - m_q)(k - m_k)' of q and k that are jointly normal. The score then has a mean of m_q'
    m_k + tr C, which `score_mean` gives: a mean that grows like d_k where the root of the variance grows like
    sqrt(d_k), and so the reason for 1/d_k where q and k are aligned (muP).

    >>> float(score_variance(np.eye(64), np.eye(64)))
    64.0
    >>> float(score_variance(np.eye(64), np.eye(64), mean_query=0.5, mean_key=0.5))
    96.0
    >>> half = 0.5 * np.eye(64)                     # q_i and k_i have correlation 1/2
    >>> float(score_variance(np.eye(64), np.eye(64), cross_covariance=half)), float(score_mean(half))
    (80.0, 32.0)
    """
    s_query, s_key, m_query, m_key = _laws(cov_query, cov_key, mean_query, mean_key)
    variance = _trace(s_query, s_key) + _form(m_query, s_key) + _form(m_key, s_query)
    if cross_covariance is None:
        return variance[()]
    cross = _cross(cross_covariance, s_query, s_key)
    mixed = ((m_key[..., None, :] @ cross)[..., 0, :] * m_query).sum(axis=-1)
    return result(variance + _trace(cross, cross) + 2.0 * mixed)


def score_mean(cross_covariance: ArrayLike, mean_query: ArrayLike = 0.0, mean_key: ArrayLike = 0.0) -> Floats:
    """E <q, k> = m_q' m_k + tr C, whatever the law; C = E (q - m_q)(k - m_k)', of shape (..., d, d).

    >>> float(score_mean(np.zeros((64, 64)), mean_query=0.5, mean_key=0.5))
    16.0
    """
    cross = _square("cross_covariance", cross_covariance)
    unit = np.eye(cross.shape[-1])
    _, _, m_query, m_key = _laws(unit, unit, mean_query, mean_key)
    return result(np.trace(cross, axis1=-2, axis2=-1) + (m_query * m_key).sum(axis=-1))


def row_variance(cov_query: ArrayLike, cov_key: ArrayLike, mean_query: ArrayLike = 0.0) -> Floats:
    """E Var(<q, k> | q) = tr(S_q S_k) + m_q' S_k m_q: the variance inside a row, the only one that affects softmax.

    A mean of the keys adds <q, m_k> to every score of the row, and softmax ignores it; so there is no such argument. A
    row of n keys that is centred on its own mean shows (n - 1)/n of this.

    >>> float(row_variance(np.eye(64), np.eye(64), mean_query=0.5))
    80.0
    """
    s_query, s_key, m_query, _ = _laws(cov_query, cov_key, mean_query, 0.0)
    return (_trace(s_query, s_key) + _form(m_query, s_key))[()]


def rotary_score(
    distance: ArrayLike,
    cov_query: ArrayLike,
    cov_key: ArrayLike,
    cross_covariance: ArrayLike | None = None,
    base: float = 1e4,
    interleaved: bool = False,
) -> tuple[Floats, Floats]:
    """(mean, variance) of <R_m q, R_n k> under rotary positions, for normal q and k of mean 0 and distance = n - m.

    R turns pair i of components by base^(-2i/d) per position; a pair is (i, i + d/2), or (2i, 2i + 1) if interleaved.
    The turned score is <q, R k> with R of the distance, so the mean is tr(C R') and the variance that of
    `score_variance` with R S_k R' and C R'. What follows: if q and k are independent and S_k is the same in all
    directions, positions change nothing and 1/sqrt(d_k) stays right; if q and k are aligned, C = c I, the mean is
    2c sum cos(distance base^(-2i/d)) and falls with the distance. d must be even; distance is a number or an array.

    >>> mean, variance = rotary_score([0, 1000], np.eye(64), np.eye(64))
    >>> mean.tolist(), variance.round(9).tolist()
    ([0.0, 0.0], [64.0, 64.0])
    >>> mean, _ = rotary_score([0, 10, 1000], np.eye(64), np.eye(64), cross_covariance=0.5 * np.eye(64))
    >>> mean.round(1).tolist()
    [32.0, 21.1, 8.9]
    """
    s_query, s_key, _, _ = _laws(cov_query, cov_key, 0.0, 0.0)
    d = s_query.shape[-1]
    if d % 2:
        raise ArgumentError(f"cov_query: must have an even number of components for pairs of them, got {d}")
    steps = numbers("distance", distance)
    turns = number("base", base, above=1.0) ** (-2.0 * np.arange(d // 2) / d)
    cosine, sine = np.cos(steps[..., None] * turns), np.sin(steps[..., None] * turns)
    first, second = (np.arange(0, d, 2), np.arange(1, d, 2)) if interleaved else np.split(np.arange(d), 2)
    rotation = np.zeros((*steps.shape, d, d))
    rotation[..., first, first] = rotation[..., second, second] = cosine
    rotation[..., second, first], rotation[..., first, second] = sine, -sine
    back = np.swapaxes(rotation, -1, -2)
    cross = np.zeros_like(rotation)
    if cross_covariance is not None:
        cross = _cross(cross_covariance, s_query, s_key) @ back
    variance = _trace(s_query, rotation @ s_key @ back) + _trace(cross, cross)
    return np.trace(cross, axis1=-2, axis2=-1)[()], variance[()]


def square_terms(
    d: int,
    cov_query: ArrayLike | None = None,
    cov_key: ArrayLike | None = None,
    mean_query: ArrayLike = 0.0,
    mean_key: ArrayLike = 0.0,
) -> Floats:
    """The d x d table of averages of the terms of <q, k>^2 = sum_ij q_i k_i q_j k_j.

    Entry (i, j) is E[q_i q_j] E[k_i k_j]. With independent components of mean 0 and variance 1, the default, the d on
    the diagonal are 1 and the other d(d - 1) are 0. The sum of the table is E <q, k>^2. d from 1 to 4096;
    `square_term_counts` has no such limit.

    >>> square_terms(3)
    array([[1., 0., 0.],
           [0., 1., 0.],
           [0., 0., 1.]])
    >>> float(square_terms(3, mean_query=1.0, mean_key=1.0).sum())
    18.0
    """
    d = count("d", d, 1, _LARGEST_TABLE)
    unit = np.eye(d)
    s_query, s_key, m_query, m_key = _laws(
        unit if cov_query is None else cov_query, unit if cov_key is None else cov_key, mean_query, mean_key
    )
    if s_query.shape != (d, d):
        raise ArgumentError(f"cov_query: must have shape ({d}, {d}) to match d, got {s_query.shape}")
    for name, mean in (("mean_query", m_query), ("mean_key", m_key)):
        if mean.size != d:
            raise ArgumentError(f"{name}: must be one number or have shape ({d},) to match d, got {mean.shape}")
    return (s_query + np.outer(m_query, m_query)) * (s_key + np.outer(m_key, m_key))


def square_term_counts(d: ArrayLike) -> dict[str, Any]:
    """How many terms <q, k>^2 has, and of which kind, for unit components: the table of `square_terms` for any d.

    >>> square_term_counts(512)
    {'terms': 262144, 'average_1': 512, 'average_0': 261632, 'sum': 512}
    """
    size = whole("d", d, 1, 1e9).astype(np.int64)
    columns = {"terms": size * size, "average_1": size, "average_0": size * (size - 1), "sum": size}
    return {name: column if column.ndim else int(column) for name, column in columns.items()}


def score_excess_kurtosis(d_k: ArrayLike, kurtosis_query: ArrayLike = 3.0, kurtosis_key: ArrayLike = 3.0) -> Floats:
    """(kappa_q kappa_k - 3)/d_k, for independent components of mean 0, variance 1 and fourth moments kappa.

    6/d_k for Gaussian q and k: a score is nearly Gaussian for large d_k only. kappa is at least 1, as for a fair sign.

    >>> float(score_excess_kurtosis(64)), float(score_excess_kurtosis(64, 1, 1))
    (0.09375, -0.03125)
    """
    sizes, kappa_query, kappa_key = broadcast(
        d_k=whole("d_k", d_k, 1, 1e15),
        kurtosis_query=numbers("kurtosis_query", kurtosis_query, least=1.0),
        kurtosis_key=numbers("kurtosis_key", kurtosis_key, least=1.0),
    )
    return ((kappa_query * kappa_key - 3.0) / sizes)[()]


def score_density(x: ArrayLike, d_k: int, scale: float = 1.0) -> Floats:
    """Density of z = scale <q, k> at x, for standard normal q and k: the average of N(0, scale^2 |q|^2) over |q|.

    d_k from 3 to 1e6: with fewer components the density has a corner or a pole at 0.
    The relative error is below 1e-5, from d_k = 4 on below 1e-7, down to 1e-12 of the density at 0;
    further out the result is too low. x is a number or an array.

    >>> print(f"{score_density(0.0, 64, 0.125):.4f} {1 / math.sqrt(2 * math.pi):.4f}")     # a little above N(0, 1)
    0.4037 0.3989
    """
    points, sigma, weight = _mixture(x, d_k, scale)
    density = np.exp(-((points[..., None] / sigma) ** 2) / 2) / (sigma * math.sqrt(2 * math.pi))
    return (density @ weight)[()]


def score_tail(x: ArrayLike, d_k: int, scale: float = 1.0) -> Floats:
    """P(|z| > x) for the same z, x from 0.

    >>> print(f"{score_tail(3.0, 64, 0.125):.5f} {score_tail(3.0, 4, 0.5):.5f}")          # Gaussian: 0.00270
    0.00330 0.00992
    """
    points, sigma, weight = _mixture(x, d_k, scale)
    return result(2 * ndtr(-np.abs(points)[..., None] / sigma) @ weight)


def _mixture(x: Any, d_k: int, scale: float) -> tuple[Floats, Floats, Floats]:
    points = numbers("x", x)
    factor = number("scale", scale, least=-1e50, most=1e50)
    if factor == 0.0:
        raise ArgumentError("scale: must be a number other than 0, got 0: such scores have no density")
    # Finer and further out than the averages need: 1/sigma bends more than they do where d_k is small, and the density
    # far out comes from long queries.
    sigma, weight = spread_nodes(2.0, count("d_k", d_k, 3, 10**6), factor, log_error=-34.0, finer=4)
    return points, sigma[sigma > 0], weight[sigma > 0]


def _laws(cov_query: Any, cov_key: Any, mean_query: Any, mean_key: Any) -> tuple[Floats, Floats, Floats, Floats]:
    s_query, s_key = _covariance("cov_query", cov_query), _covariance("cov_key", cov_key)
    d = s_query.shape[-1]
    if s_key.shape[-1] != d:
        raise ArgumentError(f"cov_key: last axes must be ({d}, {d}) to match cov_query, got {s_key.shape[-2:]}")
    means = []
    for name, argument in (("mean_query", mean_query), ("mean_key", mean_key)):
        mean = numbers(name, argument)
        if mean.ndim and mean.shape[-1] not in (1, d):
            raise ArgumentError(f"{name}: last axis must be {d} to match cov_query, got {mean.shape[-1]}")
        means.append(np.broadcast_to(mean, (*mean.shape[:-1], d)))
    try:
        np.broadcast_shapes(s_query.shape[:-2], s_key.shape[:-2], *(mean.shape[:-1] for mean in means))
    except ValueError:
        shapes = ", ".join(str(array.shape) for array in (s_query, s_key, *means))
        raise ArgumentError(f"cov_query, cov_key, means: must have leading axes that broadcast, got {shapes}") from None
    return s_query, s_key, means[0], means[1]


def _square(argument: str, given: Any) -> Floats:
    array = numbers(argument, given)
    if array.ndim < 2 or array.shape[-1] != array.shape[-2] or array.shape[-1] == 0:
        raise ArgumentError(f"{argument}: must have shape (..., d, d) with d at least 1, got {array.shape}")
    return array


def _covariance(argument: str, given: Any) -> Floats:
    array = _square(argument, given)
    size = np.abs(array).max(initial=0.0)
    if np.abs(array - np.swapaxes(array, -1, -2)).max(initial=0.0) > 1e-8 * size:
        raise ArgumentError(f"{argument}: must be symmetric, got a matrix that is not")
    lowest = float(np.linalg.eigvalsh(array).min(initial=0.0))
    if lowest < -1e-6 * size:
        raise ArgumentError(f"{argument}: must have no negative eigenvalue, got {lowest:.3g}")
    return array


def _cross(given: Any, s_query: Floats, s_key: Floats) -> Floats:
    """A cross-covariance that some q and k with these covariances can have."""
    cross, d = numbers("cross_covariance", given), s_query.shape[-1]
    if cross.shape[-2:] != (d, d):
        raise ArgumentError(
            f"cross_covariance: last axes must be ({d}, {d}) to match cov_query, got {cross.shape[-2:]}"
        )
    try:
        leading = np.broadcast_shapes(s_query.shape, s_key.shape, cross.shape)
    except ValueError:
        shapes = ", ".join(str(array.shape) for array in (s_query, s_key, cross))
        raise ArgumentError(f"cross_covariance: must have leading axes that broadcast, got {shapes}") from None
    query, key, mixed = (np.broadcast_to(array, leading) for array in (s_query, s_key, cross))
    lowest = float(np.linalg.eigvalsh(np.block([[query, mixed], [np.swapaxes(mixed, -1, -2), key]])).min(initial=0.0))
    if lowest < -1e-6 * max(np.abs(query).max(initial=0.0), np.abs(key).max(initial=0.0)):
        raise ArgumentError(
            f"cross_covariance: must leave q and k a joint covariance without a negative eigenvalue, got {lowest:.3g}"
        )
    return cross


def _trace(a: Floats, b: Floats) -> Floats:
    return np.asarray((a * np.swapaxes(b, -1, -2)).sum(axis=(-1, -2)))


def _form(mean: Floats, cov: Floats) -> Floats:
    return np.asarray(((mean[..., None, :] @ cov)[..., 0, :] * mean).sum(axis=-1))


_MOST_WORK = 250_000  # pairs of outcomes in one combination: some seconds of long fractions

Law = Mapping[Any, Any]


def score_law(d_k: int, query: Law, key: Law | None = None) -> dict[Fraction, Fraction]:
    """Every value that <q, k> can take and its probability, for d_k independent components.

    query and key map the values of one component to their probabilities; key is like query unless given. Values and
    probabilities are ints, Fractions, or texts such as "1/3"; floats are taken at their exact binary value. All
    outcomes are enumerated, equal ones together; where that would take more than some seconds it is refused.

    >>> sign = {-1: "1/2", 1: "1/2"}
    >>> score_law(2, sign)
    {Fraction(-2, 1): Fraction(1, 4), Fraction(0, 1): Fraction(1, 2), Fraction(2, 1): Fraction(1, 4)}
    """
    d_k = count("d_k", d_k, 1, 10**6)
    law_query = _law("query", query)
    law_key = law_query if key is None else _law("key", key)
    total, power, left = {Fraction(0): Fraction(1)}, _combine(law_query, law_key, operator.mul), d_k
    # Powers by squaring: d_k = 1000 takes ten combinations and not a thousand.
    while left:
        if left & 1:
            total = _combine(total, power, operator.add)
        left >>= 1
        if left:
            power = _combine(power, power, operator.add)
    return dict(sorted(total.items()))


def exact_score_moments(d_k: int, query: Law, key: Law | None = None) -> dict[str, Fraction]:
    """Mean, variance, third and fourth central moment of <q, k>, and excess kurtosis, as fractions.

    >>> moments = exact_score_moments(3, {-1: "1/2", 1: "1/2"})
    >>> print(moments["mean"], moments["variance"], moments["excess_kurtosis"])
    0 3 -2/3
    >>> loaded = {"-1/2": "4/5", 2: "1/5"}          # mean 0, variance 1, not symmetric
    >>> print(exact_score_moments(5, loaded)["variance"])
    5
    """
    law = score_law(d_k, query, key)

    def moment(order: int, centre: Fraction) -> Fraction:
        return sum(((value - centre) ** order * chance for value, chance in law.items()), Fraction(0))

    mean = moment(1, Fraction(0))
    second, third, fourth = (moment(order, mean) for order in (2, 3, 4))
    if second == 0:
        raise ArgumentError("query, key: must give a score that varies, got one that is always the same")
    return {
        "mean": mean,
        "variance": second,
        "third": third,
        "fourth": fourth,
        "excess_kurtosis": fourth / second**2 - 3,
    }


def _combine(left: Law, right: Law, operation: Any) -> dict[Fraction, Fraction]:
    work = len(left) * len(right)
    if work > _MOST_WORK:
        raise ArgumentError(
            f"d_k: must leave at most {_MOST_WORK} pairs of outcomes to combine, got {work}: "
            "fewer values or smaller d_k"
        )
    law: dict[Fraction, Fraction] = {}
    for a, chance_a in left.items():
        for b, chance_b in right.items():
            value = operation(a, b)
            law[value] = law.get(value, Fraction(0)) + chance_a * chance_b
    return law


def _law(argument: str, given: Law) -> dict[Fraction, Fraction]:
    if not isinstance(given, Mapping):
        raise ArgumentTypeError(f"{argument}: must map values to probabilities, got {type(given).__name__}")
    law: dict[Fraction, Fraction] = {}
    for value, chance in given.items():
        number = _fraction(argument, value)
        law[number] = law.get(number, Fraction(0)) + _fraction(argument, chance)
    if any(chance < 0 for chance in law.values()) or sum(law.values()) != 1:
        raise ArgumentError(
            f"{argument}: must have probabilities >= 0 that add up to exactly 1, got a sum of {sum(law.values())}"
        )
    return law


def _fraction(argument: str, given: Any) -> Fraction:
    try:
        if not isinstance(given, bool):
            return Fraction(given)
    except (ValueError, TypeError, OverflowError, ZeroDivisionError):
        pass
    raise ArgumentTypeError(f"{argument}: must hold ints, Fractions, floats or texts like '1/3', got {given!r}")
