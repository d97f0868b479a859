"""The gains of QK-norm: where a module keeps them, and the bound that they put on every logit."""

import math
from dataclasses import dataclass
from typing import Any

NORMS = (
    ("q_norm", "k_norm"),
    ("q_layernorm", "k_layernorm"),
    ("query_layernorm", "key_layernorm"),
    ("query_norm", "key_norm"),
    ("q_ln", "k_ln"),
    ("ln_q", "ln_k"),
    ("norm_q", "norm_k"),
)


@dataclass(frozen=True, slots=True)
class Gain:
    """The weight of one norm; `offset` is 1 where the model multiplies by 1 + weight, as Gemma does."""

    weight: Any
    bias: Any
    offset: float


def gains_of(module: Any) -> tuple[Gain, Gain] | None:
    """The gains of q and of k, or None where the module has no pair of norms with weights."""
    for names in NORMS:
        norms = [getattr(module, name, None) for name in names]
        if all(getattr(norm, "weight", None) is not None for norm in norms):
            q, k = (Gain(norm.weight, getattr(norm, "bias", None), _offset(norm)) for norm in norms)  # type: ignore[union-attr]
            return q, k
    return None


def gain_bound(model: Any, reading: Any) -> float:
    """scale d max|g_q| max|g_k|: no logit of normed q and k is larger. NaN where the layer has no QK-norm.

    d is that of a head. Where the norm goes over all heads together, one head can hold more than its share of the
    length; the number is then what an even spread allows, and not a bound.
    """
    module = module_at(model, reading.name)
    gains = None if module is None else gains_of(module)
    if gains is None or math.isnan(reading.scale):
        return math.nan
    q, k = (float((gain.weight.detach() + gain.offset).abs().max()) for gain in gains)
    return float(abs(reading.scale) * reading.d_k * q * k)


def module_at(model: Any, name: str) -> Any:
    """The module of a layer, by the path that a reading has; None where the model has none."""
    path = name.partition("#")[0]
    known = dict(model.named_modules())
    return known.get(path, model if path == type(model).__name__ else None)


def _offset(norm: Any) -> float:
    kind = type(norm).__name__
    return 1.0 if kind.startswith("Gemma") and "RMSNorm" in kind else 0.0
