"""What `rootdk.predict` fills in, field by field of a HeadSummary.

exact, by quadrature           means of what softmax does to a row; means and medians of the variance inside a row; the
                               expected largest logit
by the rows of `row_law`       medians of what softmax does to a row, and the mean of |J|_F
by `lowest`                    the expected lowest ln Z
"""

import math
from typing import Any

import numpy as np

from ._arguments import Floats
from ._moments import FIELDS
from .attention import spread_nodes
from .lowest import expected_lowest
from .mixtures import expected_maximum_logit, mean_length, median_row_variance
from .row_law import RowLaw, row_law
from .rows import effective_keys, saturation, top_probability
from .softmax import averages_of

# e^-20 of an average over sigma: for the functions of sigma that take longest, and bend least.
_COARSE = -20.0


def fields(keys: float, d_k: float, scale: float, rows: float) -> dict[str, float]:
    """Every field of a HeadSummary for standard normal q and k."""
    law = row_law(keys, d_k, scale)
    mean = _means(keys, d_k, scale)
    return _row_variance(keys, d_k, scale) | _extremes(keys, d_k, scale, rows, law) | mean | _by_row(keys, law, mean)


def _row_variance(keys: float, d_k: float, scale: float) -> dict[str, float]:
    variance = median_row_variance(keys, d_k, scale)
    return {
        "mean_std": abs(scale) * mean_length(d_k) * mean_length(keys - 1) / math.sqrt(keys),
        "median_std": math.sqrt(variance),
        "mean_variance": scale * scale * d_k * (keys - 1) / keys,
        "median_variance": variance,
    }


def _extremes(keys: float, d_k: float, scale: float, rows: float, law: RowLaw) -> dict[str, float]:
    largest = expected_maximum_logit(keys, rows, d_k, scale)
    return {
        "rows": rows,
        "hidden_rows": 0,
        "non_finite_rows": 0,
        "mean_keys": keys,
        "mean_sink_mass": 0.0,
        "max_logit": largest,
        "min_logit": -largest,
        "min_log_sum_exp": expected_lowest(keys, d_k, scale, rows, law),
    }


def _means(keys: float, d_k: float, scale: float) -> dict[str, float]:
    sigma, weight = spread_nodes(keys, d_k, scale)
    mean = dict(zip(FIELDS, averages_of(np.full(len(sigma), keys), sigma) @ weight, strict=False))

    def over_rows(of_sigma: Any, log_error: float = _COARSE) -> float:
        sigma, weight = spread_nodes(keys, d_k, scale, log_error)
        return float(weight @ of_sigma(keys, sigma))

    return {
        "mean_log_sum_exp": float(mean["log_sum_exp"]),
        "mean_entropy": float(mean["entropy"]),
        "mean_entropy_ratio": float(mean["entropy"]) / math.log(keys),
        # A flat row counts n times, be it ever so rare.
        "mean_effective_keys": over_rows(effective_keys, _COARSE - 4.0 - math.log(keys)),
        "mean_top_probability": over_rows(top_probability),
        "saturated": over_rows(saturation),
        "mean_p_squared": float(mean["p_squared"]),
        "mean_jacobian_trace": float(mean["jacobian_trace"]),
    }


def _by_row(keys: float, law: RowLaw, mean: dict[str, float]) -> dict[str, float]:
    def median(of_row: Floats) -> float:
        return float(np.median(of_row))

    # |J|_F is the trace where two keys share a row, and where only rare rows do that, both averages are made by the
    # same rows: of the trace the true average is known.
    share = float(law.jacobian_norm.mean() / law.jacobian_trace.mean()) if law.jacobian_trace.any() else 0.0
    return {
        "median_entropy_ratio": median(law.entropy) / math.log(keys),
        "median_effective_keys": 1 / median(law.p_squared),
        "median_top_probability": median(law.top_probability),
        "median_jacobian_trace": median(law.jacobian_trace),
        "mean_jacobian_norm": share * mean["mean_jacobian_trace"],
        "median_jacobian_norm": median(law.jacobian_norm),
    }
