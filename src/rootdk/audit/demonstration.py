"""A small model that ships as code, at its random start, under several scale rules: what an audit shows, without torch.

Each rule gets the same blocks of attention with the same random weights, of variance one over their inputs, on the same
random tokens; so a difference between two of them is the rule's doing.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rootdk import scaling
from rootdk.attention import measure

from .health import findings_of, heads_of
from .law import Law, row_variance
from .layer import LayerReading, baseline
from .result import Audit, LayerAudit, worst_first

RULES = ("none", "sqrt", "dk")
LAYERS, HEADS, D_K, TOKENS = 3, 8, 64, 256
_WIDTH = HEADS * D_K
_FACTS = ("scale", "d_k", "keys", "n_query", "n_key")
Floats = NDArray[np.float32]


def demonstrate(
    rules: Sequence[str] = RULES, seed: int = 0, progress: Callable[[str, float], None] | None = None
) -> Audit:
    """Audit the model under each of the rules; layers are named rule.layers.number.attention.

    >>> report = demonstrate(["none", "sqrt"])
    >>> report.verdict, report.verdict_on("sqrt.layers.0.attention")
    ('critical', 'healthy')
    """
    layers, findings = [], []
    for number, rule in enumerate(rules):
        draw = np.random.default_rng(seed)
        tokens = draw.standard_normal((TOKENS, _WIDTH), np.float32)
        for layer in range(LAYERS):
            name = f"{rule}.layers.{layer}.attention"
            if progress is not None:
                progress(name, (number * LAYERS + layer) / (len(rules) * LAYERS))
            reading, predicted, out = _attend(draw, tokens, name, scaling.rule(rule))
            tokens = tokens + out
            findings += [  # here is no model whose weights could be clipped: the scale is what there is to change
                replace(finding, remedy=finding.remedy.partition(", or make W_q")[0])
                for finding in findings_of(reading, "init")
            ]
            heads = tuple(
                head | {"predicted_deviation": deviation}
                for head, deviation in zip(heads_of(reading), predicted, strict=True)
            )
            facts = {fact: getattr(reading, fact) for fact in _FACTS}
            layers.append(LayerAudit(name, heads, baseline(reading), facts))
    about = f"demonstration, one small untrained model under the scales {', '.join(rules)}"
    return Audit(tuple(layers), worst_first(findings), "init", {"model_type": about})


def _attend(
    draw: np.random.Generator, tokens: Floats, name: str, rule: scaling.ScaleRule
) -> tuple[LayerReading, list[float], Floats]:
    """One block: norm, projections, causal attention that is measured, projection back."""
    query, key, value, back = draw.standard_normal((4, _WIDTH, _WIDTH), np.float32) / np.float32(np.sqrt(_WIDTH))
    normed = tokens / np.sqrt(np.mean(tokens**2, axis=-1, keepdims=True))
    q, k, v = (_heads(normed @ weight) for weight in (query, key, value))
    scale = float(rule.factor(D_K, TOKENS, TOKENS - 1))
    out, reading = measure(q, k, v, causal=True, scale=scale)
    first_logit = scale * np.einsum("hnd,hd->hn", q, k[:, 0])
    layer = LayerReading(
        name, 0, reading, reading, np.exp(first_logit - reading.log_sum_exp), "demonstration", "float32",
        d_k=D_K, kv_heads=HEADS, n_query=TOKENS, n_key=TOKENS, scale=scale, scale_given=scale,
    )  # fmt: skip
    predicted = [scale * row_variance(a, b) ** 0.5 for a, b in zip(_laws(query), _laws(key), strict=True)]
    return layer, predicted, out.swapaxes(0, 1).reshape(TOKENS, _WIDTH) @ back


def _heads(projected: Floats) -> Floats:
    return np.ascontiguousarray(projected.reshape(TOKENS, HEADS, D_K).swapaxes(0, 1))


def _laws(weight: Any) -> list[Law]:
    """Of the queries or keys that these weights make, head by head."""
    return [Law(np.zeros(D_K), head.T @ head) for head in np.split(weight.astype(np.float64), HEADS, axis=1)]
