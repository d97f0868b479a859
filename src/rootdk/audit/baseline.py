"""The number beside a measured one: what attention of this d_k, keys and scale shows for random q and k."""

import math
from functools import lru_cache

from rootdk.audit.layer import LayerReading


def baseline(layer: LayerReading) -> dict[str, float]:
    """The theory for components of q and k that are independent, of mean 0 and variance 1, as after a norm.

    A gate at initialisation, where a healthy layer lies near it or, with small initial weights, below; after training
    logits are not Gaussian and it only shows how far the layer has gone. Empty where d_k or the scale is not known.
    """
    if layer.d_k < 1 or layer.keys < 2 or not math.isfinite(layer.scale) or abs(layer.scale) > 1e6:
        return {}
    rows = max(math.prod(layer.reading.shape) // layer.heads, 1)
    return dict(_predicted(layer.d_k, layer.keys, layer.scale, rows))


@lru_cache(maxsize=256)
def _predicted(d_k: int, keys: int, scale: float, rows: int) -> tuple[tuple[str, float], ...]:
    from rootdk.theory.prediction import predict

    found = predict(d_k, keys, scale, rows=rows)
    fields = {
        "logit_deviation": found.median_std,
        "max_logit": found.max_logit,
        "entropy_ratio": found.mean_entropy_ratio,
        "saturated": found.saturated,
        "jacobian_trace": found.mean_jacobian_trace,
    }
    return tuple((name, float(values[0])) for name, values in fields.items())
