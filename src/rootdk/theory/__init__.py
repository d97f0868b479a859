"""Why the root of d_k: closed forms and exact quadrature, for arrays of settings.

    scores        mean and variance of a score for any means and covariances, its law for Gaussian q and k
    enumeration   the exact law of a score in fractions
    softmax       averages over rows of n Gaussian logits
    attention     the same for attention with Gaussian q and k, and how much a change of the query changes the output
    rows          the largest weight of a row, and how many keys share it
    row_law       how rows differ from each other: medians
    landmarks     where the softmax freezes, and the simple laws on either side
    jacobian      the derivative of softmax
    effects       of rules, correlation, means, caps and norms
    formats       of rounding
    depth         how alike tokens become from layer to layer
    extremes      the largest logit of a call, and the lowest ln Z
    prediction    predict(): the fields of Reading.by_head(), computed

Every function says in which range it holds and refuses elsewhere. Needs SciPy, so `import rootdk` does not load it.
"""

from .attention import GradientSizes, attention_moments, gradient_sizes, relative_gradient
from .depth import row_overlap, token_similarity
from .effects import (
    correlated_score_variance,
    qk_norm_variance,
    rule_variance,
    shared_mean_variance,
    softcap_slope,
    softcap_variance,
)
from .formats import FormatEffect, format_effect, sum_bias
from .prediction import Prediction, predict
from .rows import (
    critical_sigma,
    effective_keys,
    expected_maximum,
    frozen_jacobian_trace,
    frozen_saturation,
    saturation,
    top_probability,
    warm_entropy,
    warm_p_squared,
)
from .scores import (
    exact_score_moments,
    rotary_score,
    row_variance,
    score_density,
    score_excess_kurtosis,
    score_law,
    score_mean,
    score_tail,
    score_variance,
    square_term_counts,
    square_terms,
)
from .softmax import SoftmaxMoments, jacobian_norm_bounds, jacobian_spectral_norm, softmax_jacobian, softmax_moments

__all__ = [
    "FormatEffect",
    "GradientSizes",
    "Prediction",
    "SoftmaxMoments",
    "attention_moments",
    "correlated_score_variance",
    "critical_sigma",
    "effective_keys",
    "exact_score_moments",
    "expected_maximum",
    "format_effect",
    "frozen_jacobian_trace",
    "frozen_saturation",
    "gradient_sizes",
    "jacobian_norm_bounds",
    "jacobian_spectral_norm",
    "predict",
    "qk_norm_variance",
    "relative_gradient",
    "rotary_score",
    "row_overlap",
    "row_variance",
    "rule_variance",
    "saturation",
    "score_density",
    "score_excess_kurtosis",
    "score_law",
    "score_mean",
    "score_tail",
    "score_variance",
    "shared_mean_variance",
    "softcap_slope",
    "softcap_variance",
    "softmax_jacobian",
    "softmax_moments",
    "square_term_counts",
    "square_terms",
    "sum_bias",
    "token_similarity",
    "top_probability",
    "warm_entropy",
    "warm_p_squared",
]
