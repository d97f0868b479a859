"""Where a number stops being healthy: every limit as one row of data, with its source and what to do about it.

A row belongs to one metric and gives the limit from which a value is a note, a warning, or critical. Limits that
somebody published carry their source; the others are proposals of this project, checked on models that are known to be
good (docs/audit.md), and are marked as such.

A head may be sharp for good reasons (it looks at the previous token, or at the first one), so after training the
sharpness of a softmax is judged by the median over the heads of a layer. At initialisation every head is alike, and
each is judged by itself.
"""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np

from .result import Finding, Phase, Severity

# Placeholders in a remedy for the layers that it is about, and for numbers of those layers; metrics.grouped makes one
# list, and one range, of several findings.
LAYERS, DEVIATION, SOFTCAP = "{layers}", "{deviation}", "{softcap}"


@dataclass(frozen=True, slots=True)
class Threshold:
    """One limit. `seen` in a remedy is the watch.

    limit      a number, or a function of how many keys a row sees
    scope      whether it judges a head, a whole layer, or both
    fold       how the numbers of the heads become one for the layer
    phase      "init" counts only for a model that was not trained yet, "trained" only for one that was, "any" always
    published  whether the source gives this limit; if not, the source gives the reason and the number is ours

    >>> from rootdk.audit import THRESHOLDS
    >>> cut = THRESHOLDS[0]
    >>> bool(cut.source and cut.remedy)
    True
    """

    metric: str
    severity: Severity
    direction: Literal["above", "below"]
    limit: float | Callable[[int], float]
    source: str
    remedy: str
    scope: Literal["head", "layer", "either"] = "head"
    fold: Literal["median", "largest", "smallest"] = "median"
    phase: Phase = "any"
    published: bool = False

    def limit_for(self, keys: int) -> float:
        """The limit in figures, for rows that see this many keys."""
        return float(self.limit(keys)) if callable(self.limit) else float(self.limit)

    def number(self, value: float | Sequence[float]) -> float:
        """One number of a layer, or of all its heads."""
        if not isinstance(value, Sequence):
            return float(value)
        known = [float(of_head) for of_head in value if not math.isnan(of_head)]
        fold: Any = {"median": np.median, "largest": max, "smallest": min}[self.fold]
        return float(fold(known)) if known else math.nan

    @property
    def calibration(self) -> dict[str, Any]:
        """How near a good trained model came to the limit, and which faults it catches.

        Empty for notes, for thresholds of untrained models, and for those that need a run of many steps.

        >>> row = next(row for row in THRESHOLDS if row.metric == "typical_deviation")
        >>> sorted(row.calibration), row.calibration["reached"] < 1.0
        (['catches', 'limit', 'model', 'models', 'reached', 'value'], True)
        """
        results = _calibration()
        nearest = results["thresholds"].get(f"{self.metric} {self.severity}")
        if nearest is None or self.severity == "note" or self.phase == "init":
            return {}
        caught = [
            fault
            for fault, ways in results["faults"].items()
            if any(self.metric in (metrics or ()) for way in ways.values() for metrics in way.values())
        ]
        return {**nearest, "models": len(results["models"]), "catches": caught}

    def crossed(self, value: float, keys: int) -> bool:
        """Whether the value lies beyond the limit. NaN, a missing number, crosses nothing."""
        limit = self.limit_for(keys)
        return value > limit if self.direction == "above" else value < limit


def critical_deviation(keys: int) -> float:
    """sqrt(2 ln n): a softmax over n normal logits of a larger deviation gives a few keys all the weight.

    >>> f"{critical_deviation(1024):.3f}"
    '3.723'
    """
    return math.sqrt(2 * math.log(max(keys, 2)))


_RANDOM_ENERGY = "softmax freezes at sqrt(2 ln n), rootdk.theory.critical_sigma"
_KIMI = "Kimi K2, arXiv:2507.20534: QK-clip at tau = 100"
_WORTSMAN = "Wortsman et al., arXiv:2309.14322: logits of 1e4 and more in runs that diverged"
_ZHAI = "Zhai et al., arXiv:2303.06296: entropy collapse comes before divergence"
_THEORY = "rootdk.theory: no gradient passes as one weight goes to 1"
_FLOAT32 = "format: 1 - sum p^2 below 1e-5 is within a hundred roundings of float32"
_ALGEBRA = "algebra: |q.k| <= d max|g_q g_k| for normed q and k"
_CAP = "gradient factor of the cap, sech^2(z/c): .42 at 1, .07 at 2, below .01 at 3"
_BF16 = "format: bfloat16 has 8 digits, numbers from 256 on are 2 apart"
_FP16 = "format: the largest float16 is 65504"
_SIBLINGS = "layers of one model beside each other"
_OTHERS = (
    _SIBLINGS + ": logits wider than those of the others, over what the spread of the others allows (6 to 20 times)"
)
_LEARNED = "heads that point at one key are what many trained models have learned"

_SCALE = (
    "divide the scale by {deviation}, or make W_q and W_k smaller: "
    "rootdk.audit.qk_clip_(model, seen, deviation=1, layers={layers})"
)
_TAME = "rootdk.audit.qk_clip_(model, seen, tau=100, layers={layers})"
_SOFTEN = "rootdk.audit.qk_clip_(model, seen, deviation=2, layers={layers})"
_SLOW = "longer warm-up or a lower learning rate of W_q, W_k; rootdk.audit.qk_clip_(model, seen) after each step"
_UNCAP = "rootdk.audit.qk_clip_(model, seen, tau={softcap}, layers={layers})"
_EARLY = "multiply q by the scale before the product, not after it"
_COMPARE = "compare W_q and W_k with those of the neighbours, or with an earlier checkpoint"
_NOTHING = "nothing"
_GOOD = "nothing, if the model is as good as it should be"
_BOUND = "run it on real input while it is watched: a bound is not a logit"
_SCALE_OF_WEIGHTS = "compare the scale of the config with that of the model's code, and the fan-in of W_q, W_k"

THRESHOLDS: tuple[Threshold, ...] = (
    # Watched: numbers of a forward pass.
    Threshold("non_finite", "critical", "above", 0.0, "a NaN or +inf logit makes its row NaN",
              "find what made it: the first layer of those listed ran first", "either"),
    Threshold("max_logit", "note", "above", 100.0, _KIMI, "nothing, if it stays; in training " + _TAME, published=True),
    Threshold("logit_lead", "warning", "above", 1e3, _WORTSMAN, _TAME),
    Threshold("logit_lead", "critical", "above", 1e4, _WORTSMAN, _TAME, published=True),
    Threshold("max_logit_growth", "warning", "above", 2.0, _WORTSMAN, _SLOW),
    Threshold("max_logit_forecast", "critical", "above", 1e3, _WORTSMAN, _SLOW),
    Threshold("logit_change_trend", "note", "above", 3.0, "the largest logit moves ever more from step to step, and "
              "change, more than size, comes before a run that fails", _SLOW),
    Threshold("entropy_drop", "warning", "above", 0.3, _ZHAI, _SLOW, "layer"),
    Threshold("jacobian_trace", "warning", "below", 1e-5, _FLOAT32, _SOFTEN, "layer"),
    Threshold("top_key_mass", "warning", "above", 0.95, "a layer whose heads all give one key everything, whatever the "
              "query is, passes nothing on", _COMPARE, "layer", "smallest"),
    Threshold("flat_head", "warning", "below", 1e-3, "a head whose logits do not differ, beside others whose do",
              "look at the rows of W_q and W_k of this head: they are zero, or nearly"),
    Threshold("silent_head", "warning", "above", 0.0, "a head that returns exactly 0 in every row",
              "look at the rows of W_v of this head: they are zero"),
    Threshold("measured_over_others", "warning", "above", 1.0, _OTHERS, _SOFTEN, "layer"),
    Threshold("scale_off_config", "warning", "above", 1.05, "the scale that the model ran with is not that of its "
              "config", "set the scale of these layers to what the config says, or correct the config", "layer"),
    Threshold("cap_ratio", "warning", "above", 2.0, _CAP, _UNCAP, "layer"),
    Threshold("cap_ratio", "critical", "above", 3.0, _CAP, _UNCAP, "layer"),
    Threshold("bf16_spacing", "note", "above", 0.25, "format: bfloat16 has 8 digits, numbers from 64 on are .5 apart",
              "nothing; scores in float32 are exact"),
    Threshold("bf16_spacing", "warning", "above", 1.0, _BF16, "scores in float32, or " + _TAME),
    Threshold("bf16_spacing", "critical", "above", 4.0, _BF16, "scores in float32, or " + _TAME),
    Threshold("raw_score", "warning", "above", 32e3, _FP16, _EARLY),
    Threshold("raw_score", "critical", "above", 65504.0, _FP16, _EARLY),
    Threshold("min_log_sum_exp", "note", "below", -80.0, "e^-80 is near the end of float32: a NaN in the backward of "
              "some other kernels", "nothing here; note it before changing the attention kernel"),
    Threshold("sink_mass", "note", "above", 0.5, "a head that rests puts its weight on a sink or on the first key",
              _NOTHING + ": its entropy and sharpness are those of a sink", phase="trained"),
    Threshold("saturated", "note", "above", 0.5, _LEARNED, _NOTHING + ", unless the rest of the layer follows",
              phase="trained"),
    Threshold("saturated", "note", "above", 0.5, _LEARNED, _GOOD, "layer"),
    Threshold("entropy_ratio", "note", "below", 0.05, _LEARNED, _GOOD, "layer", "largest"),
    Threshold("entropy_ratio", "note", "above", 0.99, "weights all alike after training: scale 1/d_k, or many keys",
              "a larger scale, or one that grows with ln n (rootdk.scaling)", "layer", phase="trained"),
    Threshold("output_mismatch", "note", "above", 0.05, "the output of the layer is not the attention that was read",
              "look at the layer: it does something that the call does not tell", "layer"),
    Threshold("scale_doubt", "note", "above", 1.05, "the output of the layer shows another scale than its call gave",
              "the measured scale is the one that counts; look where the other comes from", "layer"),
    # A model that was not trained yet must agree with theory.
    Threshold("logit_deviation", "note", "below", 0.2, "near-uniform start",
              "nothing, if training moves it; else a larger scale", phase="init"),
    Threshold("logit_deviation", "warning", "above", lambda n: critical_deviation(n) / 2, _RANDOM_ENERGY, _SCALE,
              phase="init"),
    Threshold("logit_deviation", "critical", "above", critical_deviation, _RANDOM_ENERGY, _SCALE, phase="init"),
    Threshold("entropy_ratio", "critical", "below", 0.05, _ZHAI, _SCALE, "layer", "largest", phase="init"),
    Threshold("saturated", "warning", "above", 0.1, _THEORY, _SCALE, phase="init"),
    Threshold("saturated", "critical", "above", 0.5, _THEORY, _SCALE, phase="init"),
    Threshold("jacobian_trace", "warning", "below", 0.3, _THEORY, _SCALE, phase="init"),
    Threshold("jacobian_trace", "critical", "below", 0.05, _THEORY, _SCALE, phase="init"),
    # The model as a whole: the median over its layers. The layer of such a finding is "".
    Threshold("typical_deviation", "warning", "above", lambda n: 2 * critical_deviation(n), _RANDOM_ENERGY,
              "compare the scale with that of the model's code: every layer is too sharp", "layer"),
    Threshold("typical_prediction", "warning", "above", lambda n: 1.25 * critical_deviation(n), _RANDOM_ENERGY,
              "run the model on real input while it is watched; compare the scale with that of its code", "layer"),
    # Facts of weights, in a file or in a model that ran.
    Threshold("non_finite_weights", "critical", "above", 0.0, "a NaN or infinite weight makes all rows of its head NaN",
              "go back to a checkpoint without, and find the step that made it", "either"),
    Threshold("flat_prediction", "warning", "below", 1e-3, "a head whose logits cannot differ, beside others whose can",
              "look at the rows of W_q and W_k of this head: they are zero, or nearly"),
    Threshold("unevenness", "warning", "below", 1.0, "W_q and W_k as even as if drawn at random, in a model whose "
              "other layers are not", "load the weights of this layer again: they look as they did before "
              "training", "layer"),
    Threshold("gain_over_neighbours", "warning", "above", 1.0, _SIBLINGS + ": a gain above both neighbours, over what "
              "is allowed (1.6 times, or three usual steps from layer to layer)",
              "compare the gain of the norm before W_q and W_k with those of the neighbours", "layer"),
    # Predictions and bounds from weights: for white input, which no trained model has.
    Threshold("predicted_over_others", "warning", "above", 1.0, _OTHERS, _COMPARE, "layer"),
    Threshold("predicted_cap_ratio", "warning", "above", 2.0, _CAP, "compare the softcap of the config with that of "
              "the model's code", "layer"),
    Threshold("predicted_deviation", "note", "below", 0.2, "near-uniform start",
              "nothing, if training moves it; else a larger scale", "either"),
    Threshold("predicted_deviation", "warning", "above", lambda n: critical_deviation(n) / 2, _RANDOM_ENERGY,
              _SCALE_OF_WEIGHTS, "either", phase="init"),
    Threshold("predicted_deviation", "critical", "above", critical_deviation, _RANDOM_ENERGY, _SCALE_OF_WEIGHTS,
              "either", phase="init"),
    Threshold("predicted_deviation", "note", "above", lambda n: 2 * critical_deviation(n), _LEARNED,
              "run the model on real input while it is watched: a prediction is not a logit", "either"),
    Threshold("gain_bound", "note", "above", 1e3, _ALGEBRA, _BOUND, "either"),
    Threshold("spectral_bound", "note", "above", 1e3, "algebra: no input gives a larger logit",
              _BOUND, "either"),
    Threshold("scale_ratio", "note", "below", 0.5, "the scale set, over 1/sqrt(d_k)", _SCALE_OF_WEIGHTS, "either"),
    Threshold("scale_ratio", "note", "above", 2.0, "the scale set, over 1/sqrt(d_k)", _SCALE_OF_WEIGHTS, "either"),
)  # fmt: skip


@cache
def _calibration() -> dict[str, Any]:
    """What `make calibrate` wrote."""
    results: dict[str, Any] = json.loads(Path(__file__).with_name("calibration.json").read_text("utf-8"))
    return results


def judge(
    layer: str, head: int | None, metric: str, value: float | Sequence[float], keys: int, phase: Phase = "any"
) -> Finding | None:
    """The worst threshold that a value crosses, as a Finding; None if it crosses none.

    head    None judges the layer; `value` is then its own number, or one per head, folded as the threshold says
    phase   what is known of the model: "init", "trained", or "any" if nothing; "any" leaves out the rows of both

    >>> judge("layers.3.attn", 5, "max_logit", 140.0, 512).severity
    'note'
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
        number = row.number(value)
        if row.crossed(number, keys):
            limit = row.limit_for(keys)
            remedy = row.remedy.replace(LAYERS, repr([layer]))
            finding = Finding(layer, head, metric, row.severity, number, limit, row.source, remedy)
            worst = finding if worst is None or finding.worse_than(worst) else worst
    return worst
