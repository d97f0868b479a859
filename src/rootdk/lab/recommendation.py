"""One setting: what theory predicts for it, and what to do about it. No random numbers, no measuring."""

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from rootdk.summary import HeadSummary
from rootdk.theory import critical_sigma, relative_gradient
from rootdk.theory._arguments import count, numbers
from rootdk.theory.prediction import predict

from .checks.sampler import factor_of


@dataclass(frozen=True, slots=True)
class Recommendation:
    """Theory for random q and k whose components have standard deviation sigma.

    scale              what the scores are multiplied by
    logit_std          scale sqrt(d_k) sigma^2, the standard deviation of the scores, after the scale
    critical_std       sqrt(2 ln n): past it a few keys take all the weight, however many there are
    relative_gradient  |do/dq|/|o|, for values of any width; about 1 under 1/sqrt(d_k)
    predicted          the fields of rootdk.predict
    state              "frozen", "sharp", "healthy" or "flat"
    advice             one sentence that follows from the numbers
    """

    d_k: int
    keys: int
    rule: str
    sigma: float
    scale: float
    logit_std: float
    critical_std: float
    relative_gradient: float
    predicted: dict[str, float]
    state: str
    advice: str

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and names, for JSON."""
        return asdict(self)


def recommend(d_k: Any, keys: Any, rule: str | float = "sqrt", sigma: Any = 1.0) -> Recommendation:
    """Theory and advice for one d_k, number of keys and rule, which is a name or the scale itself.

    d_k from 1 to 1e6, keys from 2 to 1e12, sigma from 0 to 1e3.

    >>> usual = recommend(128, 8192)
    >>> usual.state, round(usual.scale, 4), round(usual.predicted["mean_entropy_ratio"], 3)
    ('healthy', 0.0884, 0.945)
    >>> recommend(128, 8192, "none").state
    'frozen'
    """
    size, length = count("d_k", d_k, 1, 10**6), count("keys", keys, 2, 10**12)
    spread = float(numbers("sigma", sigma, least=0.0, most=1e3))
    if isinstance(rule, str):
        scale, name = factor_of(rule, size, length), rule
    else:
        scale = float(numbers("rule", rule, least=-1e3, most=1e3))
        name = f"{scale:g}"
    heads = predict(size, length, scale * spread**2)
    predicted = {field: float(getattr(heads, field)[0]) for field in HeadSummary.__dataclass_fields__}
    # To multiply q and k by sigma is to multiply the scale by sigma^2; a derivative in q is then 1/sigma as large.
    gradient = float(relative_gradient(length, size, scale * spread**2)) / spread if spread else 0.0
    std, critical = abs(scale) * math.sqrt(size) * spread**2, float(critical_sigma(length))
    # The scale that gives logits of variance 1; none does if the components do not vary.
    unit_scale = float(np.divide(1.0, spread**2 * math.sqrt(size))) if spread else math.inf
    unit = f"1/sqrt(d_k) = {size**-0.5:.4g}" if spread == 1.0 else f"1/(sigma^2 sqrt(d_k)) = {unit_scale:.4g}"
    state, advice = _judged(std, critical, predicted["mean_entropy_ratio"], unit)
    return Recommendation(size, length, name, spread, scale, std, critical, gradient, predicted, state, advice)


def _judged(std: float, critical: float, ratio: float, unit: str) -> tuple[str, str]:
    """State and advice. The limits are those of the theory: the freezing point and half of it, where simple laws end.

    Only 0.99 of ln n is our choice: less than 1 % of the entropy is then left to distinguish keys.
    """
    if std > critical:
        return "frozen", (
            f"The scores have standard deviation {std:.3g}, above the limit sqrt(2 ln n) = {critical:.3g}: a few keys "
            f"take all the weight. Use the scale {unit}, or normalise q and k."
        )
    if std > critical / 2:
        return "sharp", (
            f"The scores have standard deviation {std:.3g}, more than half of the limit sqrt(2 ln n) = {critical:.3g}: "
            f"rows begin to depend on few keys. With the scale {unit} it would be 1."
        )
    if ratio > 0.99:
        return "flat", (
            f"The entropy is {ratio:.2%} of its maximum ln n: the weights start nearly equal. That is harmless if "
            f"training is tuned for it, as with maximal-update parametrisation. Otherwise use the scale {unit}. In a "
            "trained model, measure before you change anything."
        )
    return "healthy", (
        f"The scores have standard deviation {std:.3g}, and the entropy is {ratio:.1%} of its maximum ln n. Nothing to "
        "change at the start of training."
    )
