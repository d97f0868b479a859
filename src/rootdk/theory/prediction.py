"""What `rootdk.predict` fills in, field by field of a HeadSummary: exact, approximate with a condition, or absent.

Rows are called concentrated if, among those with the median of sigma, sum p^2 varies by at most 40 % and 1 - sum p^2
by at most 25 % (standard deviation over mean), and there are at least 8 keys. There the median of a quantity over all
rows is close to its value at the median of sigma; elsewhere it is not, and is left out.
"""

import math

import numpy as np
from scipy.special import ndtri

from ._arguments import Floats
from .attention import spread_nodes
from .mixtures import (
    Nodes,
    expected_maximum_logit,
    mean_length,
    mean_over,
    median_row_variance,
    median_sigma,
    median_top_probability,
    p_squared_variance,
)
from .rows import saturation, top_probability
from .softmax import averages_of

_COARSE = -20.0  # e^-20 of an average over sigma: for quantities that take longer than a millisecond per sigma
_CONCENTRATED = 0.4
_ALIVE = 0.25
_MANY = 8
_ONE_KEY = 0.9


def fields(keys: float, d_k: float, scale: float, rows: float) -> dict[str, float]:
    """Every field of a HeadSummary for standard normal q and k; NaN where there is no formula."""
    fine, coarse = spread_nodes(keys, d_k, scale), spread_nodes(keys, d_k, scale, _COARSE)
    moments = averages_of(np.full(len(fine[0]), keys), fine[0])
    mean = moments @ fine[1]
    variance = median_row_variance(keys, d_k, scale)
    extreme = expected_maximum_logit(keys, rows, d_k, scale)
    return (
        {
            "rows": rows,
            "hidden_rows": 0,
            "non_finite_rows": 0,
            "mean_keys": keys,
            "mean_std": abs(scale) * mean_length(d_k) * mean_length(keys - 1) / math.sqrt(keys),
            "median_std": math.sqrt(variance),
            "mean_variance": scale * scale * d_k * (keys - 1) / keys,
            "median_variance": variance,
            "max_logit": extreme,
            "min_logit": -extreme,
            "mean_log_sum_exp": mean[0],
            "min_log_sum_exp": math.nan,
            "mean_entropy": mean[1],
            "mean_entropy_ratio": mean[1] / math.log(keys),
            "mean_top_probability": mean_over(coarse, lambda sigma: top_probability(keys, sigma)),
            "saturated": mean_over(coarse, lambda sigma: saturation(keys, sigma)),
            "mean_p_squared": mean[2],
            "mean_jacobian_trace": mean[4],
            "mean_sink_mass": 0.0,
        }
        | dict.fromkeys(("median_entropy_ratio", "mean_jacobian_norm", "median_jacobian_norm"), math.nan)
        | dict.fromkeys(("mean_effective_keys", "median_effective_keys", "median_jacobian_trace"), math.nan)
        | {"median_top_probability": math.nan}
        | (_concentrated(keys, d_k, scale, fine[1], moments) or _one_key(keys, coarse))
    )


def _concentrated(keys: float, d_k: float, scale: float, weight: Floats, moments: Floats) -> dict[str, float]:
    """Medians at the median sigma, and means over sigma, with sum p^2 at one sigma taken as log-normal.

    A log-normal number of mean m and relative variance c has the median m/sqrt(1 + c). The largest weight of a
    concentrated row is e^(sigma x - ln Z) with x the largest of n numbers, whose median is known.
    """
    sigma = median_sigma(d_k, scale)
    typical = averages_of(np.array([keys]), np.array([sigma]))[:, 0]
    variance = float(p_squared_variance(typical))
    spread = variance / typical[2] ** 2
    if keys < _MANY or spread > _CONCENTRATED**2 or variance > (_ALIVE * typical[4]) ** 2:
        return {}
    spreads = np.minimum(p_squared_variance(moments) / moments[2] ** 2, 1.0)
    p_squared = typical[2] / math.sqrt(1 + spread)
    largest = float(ndtri(2 ** (-1 / keys)))
    return {
        "median_entropy_ratio": typical[1] / math.log(keys),
        "mean_effective_keys": float(weight @ (np.sqrt(1 + spreads) / moments[2])),
        "median_effective_keys": 1 / p_squared,
        "median_top_probability": math.exp(sigma * largest - typical[0]),
        "median_jacobian_trace": 1 - p_squared,
        "mean_jacobian_norm": float(weight @ (np.sqrt(moments[5]) * (1 + spreads) ** -0.125)),
        "median_jacobian_norm": math.sqrt(typical[5]) / (1 + spread) ** 0.25,
    }


def _one_key(keys: float, nodes: Nodes) -> dict[str, float]:
    """Where rows are not concentrated: the median of the largest weight p, exact if it is above one half.

    If it is above 90 %, tr J = 2 p (1 - p), as if one other key had the rest. That is a lower bound for any rest, and
    rises with 1 - p, so it is one for the median too.
    """
    top = median_top_probability(nodes, keys)
    if not top > _ONE_KEY:
        return {"median_top_probability": top}
    trace = 2 * top * (1 - top)
    return {"median_top_probability": top, "median_jacobian_trace": trace, "median_effective_keys": 1 / (1 - trace)}
