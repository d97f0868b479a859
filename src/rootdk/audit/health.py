"""From readings to findings: every number of every head against its thresholds, and the guards against false alarms.

Guards, beside those that the table itself holds (scope and phase of a threshold):
- a head whose weight lies on a sink or on the first key is judged by how it spreads the rest; the sink is told apart;
- a note that is true of every head is one note of the layer;
- growth counts only where the logits are large already, a fall of the entropy only where little is left: a model that
  leaves a near-uniform start does both, and should.
"""

import math
from collections.abc import Iterable

import numpy as np

from rootdk.audit.finding import Finding
from rootdk.audit.layer import RESTING, LayerReading, Numbers
from rootdk.audit.thresholds import Phase, judge
from rootdk.audit.trend import Movement

_SHARPNESS = ("entropy_ratio", "saturated", "jacobian_trace")
# Half way to the first warning of the largest logit on a scale of factors: growth below it is learning.
_LARGE = 10.0
_LITTLE = 0.5


def findings_of(layer: LayerReading, phase: Phase = "any") -> list[Finding]:
    """All that one reading shows."""
    numbers = judged_numbers(layer, phase)
    found: list[Finding] = []
    for metric, values in numbers.items():
        of_layer = judge(layer.name, None, metric, values.tolist(), layer.keys, phase)
        of_heads = [judge(layer.name, head, metric, float(v), layer.keys, phase) for head, v in enumerate(values)]
        found += [of_layer] if of_layer else []
        found += _folded([one for one in of_heads if one is not None], layer.heads)
    for metric, value in (("output_mismatch", layer.mismatch), ("scale_doubt", _doubt(layer))):
        one = judge(layer.name, None, metric, value, layer.keys, phase)
        found += [one] if one else []
    return found


def judged_numbers(layer: LayerReading, phase: Phase) -> dict[str, Numbers]:
    """The metrics that are judged.

    Theory speaks of scale*<q, k>, so the deviation is that before cap and bias, and is left out where only their sum is
    known. Of resting heads the sharpness apart from the sink counts. Raw scores matter in float16.
    """
    numbers = dict(layer.metrics)
    numbers["logit_deviation"] = numbers["score_deviation"]
    if layer.route == "softmax":
        numbers.pop("logit_deviation")
    if layer.dtype != "float16":
        numbers.pop("raw_score")
    if phase != "init":
        resting = numbers["sink_mass"] > RESTING
        for metric in _SHARPNESS:
            numbers[metric] = np.where(resting, layer.apart[metric], numbers[metric])
    return numbers


def movement_findings(
    layer: LayerReading, movement: Movement | None, total_steps: int | None = None
) -> Iterable[Finding]:
    """What the trend shows, for a run of so many steps if that is known."""
    if movement is None:
        return
    entropy = float(np.nanmedian(layer.metrics["entropy_ratio"]))
    fallen = judge(layer.name, None, "entropy_drop", movement.entropy_drop, layer.keys)
    if fallen and entropy < _LITTLE:
        yield fallen
    later = None if total_steps is None else movement.forecast(total_steps)
    for head in np.flatnonzero(movement.level > _LARGE).tolist():
        found = [judge(layer.name, head, "max_logit_growth", float(movement.growth[head]), layer.keys)]
        if later is not None and movement.growth[head] > 1:
            found.append(judge(layer.name, head, "max_logit_forecast", float(later[head]), layer.keys))
        yield from (one for one in found if one is not None)


def _doubt(layer: LayerReading) -> float:
    """By what factor the measured scale differs from the one that the call gave."""
    if not layer.scale or not layer.scale_given or math.isnan(layer.scale):
        return math.nan
    ratio = abs(layer.scale / layer.scale_given)
    return max(ratio, 1 / ratio)


def _folded(found: list[Finding], heads: int) -> list[Finding]:
    if len(found) < heads or heads == 1 or any(one.severity != "note" for one in found):
        return found
    middle = sorted(found, key=lambda one: one.value)[heads // 2]
    return [Finding(middle.layer, None, *(getattr(middle, name) for name in _REST))]


_REST = ("metric", "severity", "value", "threshold", "source", "remedy")
