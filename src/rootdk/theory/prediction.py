"""predict(): what measure() would show of attention with random q and k, computed and not measured.

How each field of a HeadSummary is found:

exact, by quadrature           means of what softmax does to a row; means and medians of the variance inside a row
by the rows of `row_law`       medians of what softmax does to a row, and the mean of |J|_F
by `row_law` too               the expected largest logit (exact) and lowest ln Z
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import brentq
from scipy.special import gammainc, gammaincinv, gammaln

from ..errors import ArgumentError
from ..scaling import ScaleRule, factor_at
from ..summary import HeadSummary
from ._arguments import broadcast, number, whole
from .attention import spread_nodes
from .effects import rule_of
from .row_law import RowLaw, expected_lowest, expected_maximum_logit, row_law
from .rows import effective_keys, saturation, top_probability
from .softmax import AVERAGES, averages_of

# e^-20 of an average over sigma: for the functions of sigma that take longest, and bend least.
_COARSE = -20.0


@dataclass(frozen=True, eq=False, repr=False)
class Prediction(HeadSummary):
    """A HeadSummary computed by theory: an entry is a setting, and d_k says which.

    >>> predict([64, 512], 1024, "none").d_k.tolist()
    [64, 512]
    """

    d_k: NDArray[Any] = field(kw_only=True)

    def __repr__(self) -> str:
        return f"Prediction(d_k={self.d_k.tolist()}, keys={self.mean_keys.astype(int).tolist()})"

    def _names(self) -> tuple[str, Sequence[Any], str]:
        return "d_k", self.d_k.tolist(), "setting"


def predict(
    d_k: ArrayLike,
    keys: ArrayLike,
    rule: float | str | ScaleRule = "sqrt",
    *,
    rows: ArrayLike | None = None,
    position: ArrayLike | None = None,
) -> Prediction:
    """The fields of `Reading.by_head()` for standard normal q and k, one entry per setting.

    d_k       components of q and k, from 1 to 1e6
    keys      keys that each row sees, from 2 to 1e12; d_k and keys broadcast, and the entries come in their C order
    rule      name of a rule, a rule from rootdk.scaling, or a number up to 1e6, the scale itself
    rows      over how many rows the extremes are taken; as many as keys unless given
    position  where the query stands, for rules that depend on it; the last one, keys - 1, unless given

    Exact, by quadrature: every mean but that of |J|_F, saturated, median_std and median_variance; to 1e-8, and
    saturated and mean_top_probability to 1e-6. max_logit and min_logit are expected extremes, exact if every row has
    keys of its own; of rows that share their keys the extremes lie a little lower.

    From 8192 fixed rows that represent the law of all (`row_law`): the other medians, with about half a percent of the
    rows at most on the wrong side, and mean_jacobian_norm, to 0.4 % (6 % at a billion keys with d_k = 1, where very few
    rows determine it). Of two keys all medians are exact. min_log_sum_exp, the expected lowest, by the saddle point
    method for rows with keys of their own, to a few percent of the spread of ln Z or better.

    >>> sorted(name for name, numbers in vars(predict(64, 1024)).items() if np.isnan(numbers).any())
    []
    >>> heads = predict([64, 512], 1024, "none")
    >>> heads.mean_variance.round(1).tolist(), heads.saturated.round(3).tolist()
    ([63.9, 511.5], [0.097, 0.49])
    >>> predict(64, 1024).mean_entropy_ratio.round(3).tolist()
    [0.928]
    """
    sizes, counts = broadcast(d_k=whole("d_k", d_k, 1, 1e6), keys=whole("keys", keys, 2, 1e12))
    length = whole("rows", counts if rows is None else rows, 1, 1e12)
    place = whole("position", counts - 1 if position is None else position, 0, 1e15)
    sizes, counts, length, place = broadcast(d_k=sizes, keys=counts, rows=length, position=place)
    settings = [
        _fields(n, d, _factor(rule, int(d), int(n), int(at)), r)
        for d, n, r, at in zip(sizes.flat, counts.flat, length.flat, place.flat, strict=True)
    ]
    columns = {name: [fields[name] for fields in settings] for name in HeadSummary.__dataclass_fields__}
    return Prediction.of(columns | {"d_k": list(sizes.flat)})


def _factor(rule: Any, d_k: int, keys: int, position: int) -> float:
    if not isinstance(rule, str) and np.ndim(rule) == 0 and np.asarray(rule).dtype.kind in "fiu":
        return number("rule", rule, least=-1e6, most=1e6)
    chosen = rule_of(rule)
    if chosen.unit_length:
        raise ArgumentError(
            f"rule: must be one for q and k as they are, got {chosen.name!r}, which wants them of length 1: "
            "such scores are not Gaussian"
        )
    return float(factor_at(chosen, d_k, keys, position))


def _fields(keys: float, d_k: float, scale: float, rows: float) -> dict[str, float]:
    """Every field of a HeadSummary for standard normal q and k."""
    sigma, weight = spread_nodes(keys, d_k, scale)
    mean = dict(zip(AVERAGES, averages_of(np.full(len(sigma), keys), sigma) @ weight, strict=True))
    law = row_law(keys, d_k, scale)
    median_variance = _median_row_variance(keys, d_k, scale)
    if keys == 2:
        median = _of_two_keys(2 * math.sqrt(median_variance))
    else:
        median = {name: float(np.median(getattr(law, name))) for name in RowLaw.__slots__}
    largest = expected_maximum_logit(keys, rows, d_k, scale)

    def over_rows(of_sigma: Any, log_error: float = _COARSE) -> float:
        sigma, weight = spread_nodes(keys, d_k, scale, log_error)
        return float(weight @ of_sigma(keys, sigma))

    # If two keys share a row, |J|_F equals the trace. If only rare rows do, both averages come from the same rows; so
    # the exact mean trace times the ratio of the sampled means gives the mean |J|_F.
    norm_share = law.jacobian_norm.mean() / law.jacobian_trace.mean() if law.jacobian_trace.any() else 0.0
    return {
        "rows": rows,
        "hidden_rows": 0,
        "non_finite_rows": 0,
        "mean_keys": keys,
        "mean_std": abs(scale) * _mean_length(d_k) * _mean_length(keys - 1) / math.sqrt(keys),
        "median_std": math.sqrt(median_variance),
        "mean_variance": scale * scale * d_k * (keys - 1) / keys,
        "median_variance": median_variance,
        "max_logit": largest,
        "min_logit": -largest,
        "mean_log_sum_exp": mean["log_sum_exp"],
        "min_log_sum_exp": expected_lowest(keys, d_k, scale, rows, law),
        "mean_entropy": mean["entropy"],
        "mean_entropy_ratio": mean["entropy"] / math.log(keys),
        "median_entropy_ratio": median["entropy"] / math.log(keys),
        # A flat row counts n times, however rare it is.
        "mean_effective_keys": over_rows(effective_keys, _COARSE - 4.0 - math.log(keys)),
        "median_effective_keys": 1 / median["p_squared"],
        "mean_top_probability": over_rows(top_probability),
        "median_top_probability": median["top_probability"],
        "saturated": over_rows(saturation),
        "mean_p_squared": mean["p_squared"],
        "mean_jacobian_trace": mean["jacobian_trace"],
        "median_jacobian_trace": median["jacobian_trace"],
        "mean_jacobian_norm": norm_share * mean["jacobian_trace"],
        "median_jacobian_norm": median["jacobian_norm"],
        "mean_sink_mass": 0.0,
    }


def _of_two_keys(gap: float) -> dict[str, float]:
    """A row of two keys whose logits differ by gap. All fields are monotonic in it: its median gives their medians."""
    other = math.exp(-gap)
    trace = 2 * other / (1 + other) ** 2
    return {
        "entropy": math.log1p(other) + gap * other / (1 + other),
        "top_probability": 1 / (1 + other),
        "p_squared": 1 - trace,
        "jacobian_trace": trace,
        "jacobian_norm": trace,
    }


def _mean_length(freedom: float) -> float:
    """E |q| for a standard normal vector of that many components: sqrt(2) Gamma((d + 1)/2)/Gamma(d/2)."""
    if freedom > 1e4:  # the logarithms of Gamma would cancel; the next term of the series is 5/(128 d^3)
        return math.sqrt(freedom) * (1 - 1 / (4 * freedom) + 1 / (32 * freedom**2))
    return float(math.sqrt(2) * math.exp(gammaln((freedom + 1) / 2) - gammaln(freedom / 2)))


def _median_row_variance(keys: float, d_k: float, scale: float) -> float:
    """Median of scale^2 chi-square(d_k) chi-square(n - 1)/n, the variance of a row about its own mean. Exact."""
    if scale == 0.0:
        return 0.0
    # Averaged over the narrower of the two laws, so that the distribution function of the other is smooth on its nodes.
    narrow, wide = max(d_k, keys - 1), min(d_k, keys - 1)
    length, weight = spread_nodes(2.0, narrow, 1.0)

    def excess(log_product: float) -> float:
        with np.errstate(divide="ignore"):  # a length of 0 stands for all that are too short to matter
            return float(weight @ gammainc(wide / 2, math.exp(log_product) / (2 * length**2)) - 0.5)

    centre = math.log(4 * gammaincinv(wide / 2, 0.5) * gammaincinv(narrow / 2, 0.5))
    return scale * scale / keys * math.exp(brentq(excess, centre - 5, centre + 5, xtol=1e-13))
