"""Where a number stops being healthy: every cut as one row of data, with its source and what to do about it.

A row belongs to one metric and says from where on a value is worth a note, a warning, or is critical. Cuts that
somebody published carry their source; the others are proposals of this project, checked on models that are known to be
good (docs/audit.md), and say so.

A head may be sharp for good reasons (it looks at the previous token, or at the first one), so after training the
sharpness of a softmax is judged by the median over the heads of a layer. At initialisation every head is alike, and
each is judged by itself.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from .result import Finding, Phase, Severity

Direction = Literal["above", "below"]
Scope = Literal["head", "layer", "either"]
Fold = Literal["median", "largest"]
Limit = float | Callable[[int], float]


@dataclass(frozen=True, slots=True)
class Threshold:
    """One cut.

    limit      a number, or a function of how many keys a row sees
    scope      whether it judges a head, a whole layer, or either
    fold       how the numbers of the heads become one for the layer
    phase      "init" counts only for a model that was not trained yet, "trained" only for one that was, "any" always
    published  whether the cut is that of the source; if not, the source gives the reason and the number is ours

    >>> from rootdk.audit import THRESHOLDS
    >>> cut = THRESHOLDS[0]
    >>> bool(cut.source and cut.remedy)
    True
    """

    metric: str
    severity: Severity
    direction: Direction
    limit: Limit
    source: str
    remedy: str
    scope: Scope = "head"
    fold: Fold = "median"
    phase: Phase = "any"
    published: bool = False

    def limit_for(self, keys: int) -> float:
        """The limit in figures, for rows that see this many keys."""
        return float(self.limit(keys)) if callable(self.limit) else float(self.limit)

    def crossed(self, value: float, keys: int) -> bool:
        """Whether the value lies beyond the limit. NaN, a number that there is none of, crosses nothing."""
        limit = self.limit_for(keys)
        return value > limit if self.direction == "above" else value < limit


def critical_deviation(keys: int) -> float:
    """sqrt(2 ln n): a softmax over n normal logits of a larger deviation gives a few keys all the weight.

    >>> f"{critical_deviation(1024):.3f}"
    '3.723'
    """
    return math.sqrt(2 * math.log(max(keys, 2)))


_RANDOM_ENERGY = "random-energy transition at sqrt(2 ln n), rootdk.theory.critical_sigma"
_KIMI = "Kimi K2, arXiv:2507.20534: QK-clip at tau = 100"
_WORTSMAN = "Wortsman et al., arXiv:2309.14322: logits of 1e4 and more in runs that diverged"
_ZHAI = "Zhai et al., arXiv:2303.06296: entropy collapse comes before divergence"
_THEORY = "rootdk.theory: the Jacobian diag(p) - p p' vanishes as one weight goes to 1"
_ALGEBRA = "algebra: |q.k| <= d max|g_q g_k| for normed q and k"
_CAP = "gradient factor of the cap, sech^2(z/c): .42 at 1, below .01 at 3"
_BF16 = "format: bfloat16 has 8 digits, numbers from 64 on are .5 apart"
_FP16 = "format: the largest float16 is 65504"

_SCALE = "check the scale against rootdk.audit.recommend_scale, the gains of the norm before, the fan-in of W_q, W_k"
_TAME = "rootdk.audit.qk_clip_(model, readings, tau=100); for later runs QK-norm, or a lower learning rate of W_q, W_k"
_SOFTEN = "rootdk.audit.qk_clip_(model, {layer: reading}, tau=rootdk.audit.recommend_tau(reading)); then QK-norm"
_SLOW = "longer warm-up or a lower learning rate of W_q, W_k; QK-clip after each optimizer step"
_UNCAP = "rootdk.audit.qk_clip_(model, readings, tau=softcap); for later runs QK-norm in place of the cap"
_EARLY = "multiply q by the scale before the product, not after it"
_GAINS = "weight decay on the gains of q_norm and k_norm, or freeze them; qk_clip_ lowers them"

THRESHOLDS: tuple[Threshold, ...] = (
    # Watched: numbers of a forward pass.
    Threshold("non_finite", "critical", "above", 0.0, "a NaN or +inf logit makes its row NaN", "find the first layer "
              "that has one: rootdk.watch names it", "either"),
    Threshold("logit_deviation", "note", "below", 0.2, "near-uniform start, normal where weights begin at a small "
              "fixed deviation", "nothing, if training moves it; else a larger scale or initializer", phase="init"),
    Threshold("logit_deviation", "warning", "above", lambda n: critical_deviation(n) / 2, _RANDOM_ENERGY, _SCALE,
              phase="init"),
    Threshold("logit_deviation", "critical", "above", critical_deviation, _RANDOM_ENERGY, _SCALE, phase="init"),
    Threshold("max_logit", "warning", "above", 100.0, _KIMI, _TAME, published=True),
    Threshold("max_logit", "critical", "above", 1e3, _WORTSMAN, _TAME),
    Threshold("max_logit_growth", "warning", "above", 2.0, _WORTSMAN, _SLOW),
    Threshold("max_logit_forecast", "critical", "above", 1e3, _WORTSMAN, _SLOW),
    Threshold("entropy_ratio", "warning", "below", 0.25, _ZHAI, _SOFTEN, "layer"),
    Threshold("entropy_ratio", "critical", "below", 0.05, _ZHAI, _SOFTEN, "layer", "largest"),
    Threshold("entropy_ratio", "warning", "above", 0.99, "weights all alike after training: scale 1/d_k, or many keys",
              "a larger scale, or one that grows with ln n (rootdk.scaling)", "layer", phase="trained"),
    Threshold("entropy_drop", "warning", "above", 0.3, _ZHAI, _SLOW, "layer"),
    Threshold("saturated", "warning", "above", 0.1, _THEORY, _SOFTEN, "layer"),
    Threshold("saturated", "critical", "above", 0.5, _THEORY, _SOFTEN, "layer"),
    Threshold("saturated", "note", "above", 0.5, "one sharp head is normal after training (previous token, induction, "
              "first token)", "nothing, unless the rest of the layer follows", phase="trained"),
    Threshold("saturated", "warning", "above", 0.1, _THEORY, _SCALE, phase="init"),
    Threshold("saturated", "critical", "above", 0.5, _THEORY, _SCALE, phase="init"),
    Threshold("jacobian_trace", "warning", "below", 0.3, _THEORY, _SOFTEN, "layer"),
    Threshold("jacobian_trace", "critical", "below", 0.05, _THEORY, _SOFTEN, "layer"),
    Threshold("jacobian_trace", "warning", "below", 0.3, _THEORY, _SCALE, phase="init"),
    Threshold("jacobian_trace", "critical", "below", 0.05, _THEORY, _SCALE, phase="init"),
    Threshold("cap_ratio", "warning", "above", 1.0, _CAP, _UNCAP),
    Threshold("cap_ratio", "critical", "above", 3.0, _CAP, _UNCAP),
    Threshold("bf16_spacing", "warning", "above", 0.25, _BF16, "scores in float32, or " + _TAME),
    Threshold("bf16_spacing", "critical", "above", 0.5, _BF16, "scores in float32, or " + _TAME),
    Threshold("raw_score", "warning", "above", 32e3, _FP16, _EARLY),
    Threshold("raw_score", "critical", "above", 65504.0, _FP16, _EARLY),
    Threshold("min_log_sum_exp", "note", "below", -80.0, "e^-80 is near the end of float32: a NaN in the backward of "
              "some other kernels", "nothing here; note it before changing the attention kernel"),
    Threshold("sink_mass", "note", "above", 0.5, "a head that rests puts its weight on a sink or on the first key",
              "nothing: its entropy and sharpness are those of a sink", phase="trained"),
    Threshold("output_mismatch", "note", "above", 0.05, "the output of the layer is not the attention that was read",
              "look at the layer: it does something that the call does not tell", "layer"),
    Threshold("scale_doubt", "note", "above", 1.05, "the output of the layer shows another scale than its call gave",
              "the measured scale is the one that counts; look where the other comes from", "layer"),
    # Read from weights, with or without a forward pass.
    Threshold("non_finite_weights", "critical", "above", 0.0, "a NaN or infinite weight makes all rows of its head NaN",
              "go back to a checkpoint without, and find the step that made it", "either"),
    Threshold("gain_bound", "warning", "above", 100.0, _ALGEBRA, _GAINS, "either"),
    Threshold("gain_bound", "critical", "above", 1e3, _ALGEBRA, _GAINS, "either"),
    Threshold("predicted_deviation", "note", "below", 0.2, "near-uniform start, normal where weights begin at a small "
              "fixed deviation", "nothing, if training moves it; else a larger scale or initializer", "either"),
    Threshold("predicted_deviation", "warning", "above", lambda n: critical_deviation(n) / 2, _RANDOM_ENERGY, _SCALE,
              "either", phase="init"),
    Threshold("predicted_deviation", "critical", "above", critical_deviation, _RANDOM_ENERGY, _SCALE, "either",
              phase="init"),
    # Of a model that may be trained: its input is not white, so the prediction is no gate, and the cut lies far out.
    Threshold("predicted_deviation", "warning", "above", lambda n: 2 * critical_deviation(n), _RANDOM_ENERGY, _SCALE,
              "layer"),
    Threshold("predicted_deviation", "note", "above", lambda n: 2 * critical_deviation(n), "one sharp head is normal "
              "after training; a known-good encoder has one", "nothing, unless the rest of the layer follows"),
    # A layer beside the median of the others: docs/audit.md says why 8.
    Threshold("deviation_over_median", "warning", "above", 8.0, "layers of one model beside each other: alike at the "
              "start, and within a factor of 2 in a known-good encoder", "compare W_q and W_k of this layer with its "
              "neighbours; qk_clip_ lowers them", "layer"),
    Threshold("spectral_bound", "note", "above", 1e3, "algebra: no input of this length gives a larger logit",
              "watch the model on real input: a bound is not a logit", "either"),
    Threshold("scale_ratio", "note", "below", 0.5, "the scale set, over 1/sqrt(d_k)", _SCALE, "either"),
    Threshold("scale_ratio", "note", "above", 2.0, "the scale set, over 1/sqrt(d_k)", _SCALE, "either"),
)  # fmt: skip


def judge(
    layer: str, head: int | None, metric: str, value: float | Sequence[float], keys: int, phase: Phase = "any"
) -> Finding | None:
    """The worst threshold that a value crosses, as a Finding; None if it crosses none.

    head    None judges the layer; `value` is then its own number, or one per head, folded as the threshold says
    phase   what is known of the model: "init", "trained", or "any" if nothing, which leaves out the rows of both

    >>> judge("layers.3.attn", 5, "max_logit", 140.0, 512).severity
    'warning'
    >>> judge("layers.3.attn", 5, "max_logit", 40.0, 512) is None
    True
    >>> judge("layers.3.attn", None, "saturated", [0.0, 0.9, 0.0], 512) is None     # one sharp head of three
    True
    """
    worst: Finding | None = None
    for row in THRESHOLDS:
        applies = row.scope in ("either", "layer" if head is None else "head") and row.phase in ("any", phase)
        if row.metric != metric or not applies:
            continue
        number = _folded(value, row.fold) if isinstance(value, Sequence) else float(value)
        if row.crossed(number, keys):
            limit = row.limit_for(keys)
            finding = Finding(layer, head, metric, row.severity, number, limit, row.source, row.remedy)
            worst = finding if worst is None or finding.worse_than(worst) else worst
    return worst


def _folded(values: Sequence[float], fold: Fold) -> float:
    known = [float(value) for value in values if not math.isnan(value)]
    if not known:
        return math.nan
    return float(np.median(known)) if fold == "median" else max(known)
