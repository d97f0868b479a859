"""What to do about a finding: clip W_q and W_k where logits are too large, or the scale to set."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rootdk.checks import positive
from rootdk.errors import ArgumentError, ArgumentTypeError

from .layer import LayerReading
from .projections import module_at

if TYPE_CHECKING:
    from torch.nn import Module

    from .watching.handle import Watch
else:
    Module = Watch = Any  # so that typing.get_type_hints works without torch

# {layer: (the largest score of every head, d_k)}.
Largest = dict[str, tuple[NDArray[np.float64], int]]


def qk_clip_(
    model: Module,
    readings: Watch | Mapping[str, LayerReading],
    tau: float | None = None,
    *,
    deviation: float | None = None,
    layers: Sequence[str] | None = None,
) -> dict[str, NDArray[np.float64]]:
    """Shrink W_q and W_k in place so that no head's largest logit exceeds tau (Kimi K2, arXiv:2507.20534).

    model      the model that was watched
    readings   a Watch, or its `readings`
    tau        the largest logit that stays as it is; > 0, and 100 unless given
    deviation  in place of tau: each layer gets its own, `recommend_tau(reading, deviation)`
    layers     the layers that may be changed, by the names of the readings; all unless given

    With S_h the largest scale*<q, k> of head h and gamma_h = min(1, tau / S_h), the rows of head h in W_q and W_k (and
    their biases) are multiplied so that the product of both factors is gamma_h: each takes its square root. Where heads
    share a key head, its rows take the largest of their roots, and W_q takes the rest. Where q and k are normed the
    gains are scaled instead; one gain for all heads takes the smallest gamma. In latent attention (MLA) rotated keys
    are shared by all heads and stay: the rotated rows of a head's W_q take gamma_h, its other rows and those of its
    keys the root. A largest logit of 0 or less clips nothing. Weights may be sharded (DTensor): call it in every
    process, with the largest scores of all.

    S_h is taken before cap and bias, which stay. Read with `rows=`, S_h is the largest of the rows that were read, and
    others may lie above tau. If several layers are clipped at once, later ones get another input, so they come out only
    near tau; clip again if one lies above.

    Returns {layer: gamma of each head} for the layers that were changed.

    >>> import torch, rootdk
    >>> layer = torch.nn.MultiheadAttention(8, 2, batch_first=True)
    >>> x = 40 * torch.randn(1, 16, 8, generator=torch.Generator().manual_seed(0))
    >>> for _ in range(2):
    ...     with rootdk.watch(layer) as seen:
    ...         _ = layer(x, x, x)
    ...     print((seen.readings["MultiheadAttention"].metrics["max_logit"] <= 100.001).all())
    ...     changed = rootdk.audit.qk_clip_(layer, seen, tau=100.0)
    False
    True
    """
    if tau is not None and deviation is not None:
        raise ArgumentError(f"tau: must not be given beside deviation, got {tau!r} and {deviation!r}")
    held: Any = getattr(readings, "readings", readings)
    if layers is not None and isinstance(held, Mapping):
        if isinstance(layers, str) or not all(name in held for name in layers):
            raise ArgumentError(f"layers: must be a list of names that were read ({', '.join(held)}), got {layers!r}")
        held = {name: held[name] for name in layers}
    if deviation is None:
        return clip_to_(model, largest_scores(held), 100.0 if tau is None else tau)
    changed: dict[str, NDArray[np.float64]] = {}
    largest_scores(held)  # all of them are checked before the first layer is changed
    for name, reading in held.items():
        changed |= clip_to_(model, largest_scores({name: reading}), recommend_tau(reading, deviation))
    return changed


def clip_to_(model: Any, largest: Largest, tau: float) -> dict[str, NDArray[np.float64]]:
    """qk_clip_ for largest scores that are known already: of several forwards, or of several processes."""
    import torch

    from .projections import projections_of

    limit = positive("tau", tau)
    if not isinstance(model, torch.nn.Module):
        raise ArgumentTypeError(f"model: must be a torch.nn.Module, got {type(model).__name__}")
    changed: dict[str, NDArray[np.float64]] = {}
    for path, (scores, d_k) in largest.items():
        gamma = np.where(scores > limit, limit / np.where(scores > 0, scores, 1.0), 1.0)
        if (gamma == 1.0).all():
            continue
        module = module_at(model, path)
        if module is None:
            raise ArgumentError(f"readings: every layer must be a module of model, got {path!r}, which is none")
        with torch.no_grad():
            changed[path] = projections_of(module, len(gamma), d_k, path).clip_(gamma)
    return changed


def recommend_scale(reading: LayerReading, deviation: float = 1.0) -> float:
    """The scale at which the logits inside a row would have this standard deviation.

        scale * deviation / std,    std the median over heads and rows of scale*<q, k>, before cap and bias

    A deviation of 1 is what 1/sqrt(d_k) gives for q and k of variance 1. Use it for a model that was not trained yet: a
    trained one has weights that fit the scale of its training.

    >>> import torch, rootdk
    >>> layer = torch.nn.MultiheadAttention(8, 2, batch_first=True)
    >>> with rootdk.watch(layer) as seen:
    ...     _ = layer(*[torch.randn(1, 16, 8)] * 3)
    >>> rootdk.audit.recommend_scale(seen.readings["MultiheadAttention"]) > 0
    True
    """
    metrics, wanted = _metrics(reading), positive("deviation", deviation)
    measured = float(np.nanmedian(metrics["score_deviation"]))
    if not (measured > 0 and math.isfinite(reading.scale)):
        raise ArgumentError(
            "reading: must have scores that differ inside a row and a known scale, "
            f"got a deviation of {measured:g} and a scale of {reading.scale:g}"
        )
    return reading.scale * wanted / measured


def recommend_tau(reading: LayerReading, deviation: float = 1.0) -> float:
    """The tau for qk_clip_ after which no head has logits of a larger standard deviation inside a row.

        min over heads of S_h * deviation / std_h,    S_h the largest scale*<q, k> of head h, std_h the median over rows

    For a layer that is too sharp although no logit reaches the usual tau of 100.

    >>> import torch, rootdk
    >>> layer = torch.nn.MultiheadAttention(8, 2, batch_first=True)
    >>> with rootdk.watch(layer) as seen:
    ...     _ = layer(*[40 * torch.randn(1, 16, 8, generator=torch.Generator().manual_seed(0))] * 3)
    >>> 1 < rootdk.audit.recommend_tau(seen.readings["MultiheadAttention"]) < 10
    True
    """
    metrics, wanted = _metrics(reading), positive("deviation", deviation)
    known = (metrics["score_deviation"] > 0) & (metrics["max_score"] > 0)
    if not known.any():
        raise ArgumentError("reading: must have a head with scores above 0 that differ inside a row, got none")
    return float((wanted * metrics["max_score"][known] / metrics["score_deviation"][known]).min())


def _metrics(reading: Any) -> dict[str, NDArray[np.float64]]:
    if not isinstance(reading, LayerReading):
        raise ArgumentTypeError(f"reading: must be a LayerReading, got {type(reading).__name__}")
    return reading.metrics


def largest_scores(readings: Any) -> Largest:
    """For every module the largest score of each head over all its runs, and d_k."""
    if not isinstance(readings, Mapping):
        raise ArgumentTypeError(
            f"readings: must be a Watch or a mapping from layer to LayerReading, got {type(readings).__name__}"
        )
    for name, reading in readings.items():
        if not isinstance(reading, LayerReading):
            raise ArgumentTypeError(f"readings: must hold LayerReadings, got {type(reading).__name__} at {name!r}")
    return merged_largest(
        {name.partition("#")[0]: (reading.metrics["max_score"], reading.d_k)} for name, reading in readings.items()
    )


def merged_largest(parts: Iterable[Largest]) -> Largest:
    """The largest score of each head over all parts.

    >>> merged_largest([{"a": (np.array([1.0, 5.0]), 8)}, {"a": (np.array([2.0, 3.0]), 8)}])
    {'a': (array([2., 5.]), 8)}
    """
    largest: Largest = {}
    for part in parts:
        for path, (scores, d_k) in part.items():
            largest[path] = (np.fmax(largest[path][0], scores) if path in largest else scores, d_k)
    return largest
