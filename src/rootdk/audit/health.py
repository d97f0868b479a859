"""From readings to findings: every number of every head against its thresholds, and the guards against false alarms.

Measured numbers count; a bound from weights is added as a note. A layer that ran on fewer than 32 rows that see 16 keys
is not judged, except for NaN, which needs no statistics.

Guards, beside those that the table itself holds (scope and phase of a threshold):
- a head whose weight lies on a sink or on the first key is judged by its other weights; the sink is a note;
- a note that is true of every head is one note of the layer;
- changes that grow count only where logits move by more than 1 in 100 steps;
- growth counts only where the logits are large already, a fall of the entropy only where little entropy is left: a
  healthy model that leaves a near-uniform start does both.
"""

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rootdk.errors import ArgumentError

from .config import GAIN_ABOVE_ONE, Config
from .families import find_projections
from .layer import RESTING, LayerReading, Numbers, baseline, fetched
from .limits import Fields
from .projections import facts_of_weights, gain_bound_of, root_mean_square
from .result import Audit, Finding, LayerAudit, Phase, verdict_of, worst_first
from .siblings import beside_others, by_input, flat_heads
from .thresholds import DEVIATION, SOFTCAP, judge

# Growth is given per so many steps; a trend needs at least so many steps and points.
PER_STEPS, FEWEST_STEPS, FEWEST_POINTS = 1000, 100, 5
# With more points than this every second one is dropped, so that a long run needs no more memory than a short one.
MOST_POINTS = 256
_LIMIT = 1e3
_CHANGES = ("logit_change", "logit_change_trend", "entropy_change", "entropy_change_trend")
_SHARPNESS = ("entropy_ratio", "saturated", "jacobian_trace")
# Half way to the first warning of the largest logit, on a logarithmic scale: growth below it is learning.
_LARGE = 10.0
_LITTLE = 0.5
_FACTS = (
    *("step", "route", "dtype", "scale", "scale_given", "softcap", "d_k"),
    *("keys", "rows", "enough", "n_query", "n_key", "sampled"),
)
# A model of which nothing was read must not pass.
_NOTHING_READ = Finding(
    "", None, "layers_read", "warning", 0.0, 1.0, "a verdict needs numbers",
    "run the model while it is watched; `unread` says what could not be read",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Movement:
    """How one layer changed, over the last 1000 steps or as many as there are.

    growth        per head: by what factor the largest logit grows in 1000 steps; 1 where the trend is within its noise
    crossing      per head: the step at which its largest logit reaches 1000 at that rate; inf if it never does
    entropy_drop  the share that the layer's median of entropy / ln n has lost
    level, step   per head: the largest logit that the trend has at the last step, and that step
    logit_change, entropy_change
                  per head: by how much the largest logit, and entropy / ln n, moved from step to step, up or down, in
                  the later half; changes that grow, of whatever size, come before a run that fails
    logit_change_trend, entropy_change_trend
                  the same divided by its value in the earlier half: above 1, changes grow
    """

    growth: Numbers
    crossing: Numbers
    entropy_drop: float
    level: Numbers
    step: int
    logit_change: Numbers
    logit_change_trend: Numbers
    entropy_change: Numbers
    entropy_change_trend: Numbers

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "max_logit_growth": self.growth.tolist(),
            "crossing_step": self.crossing.tolist(),
            "entropy_drop": self.entropy_drop,
            **{name: getattr(self, name).tolist() for name in _CHANGES},
        }


class Trend:
    """Two numbers per head and step that was read.

    The logarithm of the largest logit is fitted by a straight line, so growth is a factor, and the line counts only if
    its slope is more than two standard errors from 0.

    >>> trend = Trend()
    >>> for step in range(0, 1001, 100):
    ...     trend.note("attn", step, np.array([10.0 * 2 ** (step / 500)]), np.array([0.9]))
    >>> movement = trend.movement("attn")
    >>> round(float(movement.growth[0]), 3), round(float(movement.crossing[0]))
    (4.0, 3322)
    """

    def __init__(self) -> None:
        # {layer: step, largest logits and entropies}; those on a GPU stay tensors there until used
        self.points: dict[str, list[tuple[int, Any, Any]]] = {}

    def note(self, name: str, step: int, max_logit: Any, entropy_ratio: Any) -> None:
        """Add what one step showed of a layer, one number per head each."""
        points = self.points.setdefault(name, [])
        points.append((step, max_logit, entropy_ratio))
        if len(points) > MOST_POINTS:
            del points[1:-1:2]

    def movement(self, name: str) -> Movement | None:
        """None where too few steps are known to speak of a trend."""
        known = self.points.get(name, [])
        recent = [point for point in known if point[0] >= known[-1][0] - PER_STEPS]
        if len(recent) < FEWEST_POINTS or recent[-1][0] - recent[0][0] < FEWEST_STEPS:
            return None
        steps = np.array([point[0] for point in recent], np.float64)
        logits = np.array([fetched(point[1]) for point in recent])
        with np.errstate(divide="ignore", invalid="ignore"):
            logs = np.where(logits > 0, np.log(logits), math.nan)
        centred = steps - steps.mean()
        spread = (centred**2).sum()
        mean = logs.mean(axis=0)
        slope = (centred[:, None] * (logs - mean)).sum(axis=0) / spread
        left = logs - mean - centred[:, None] * slope
        error = np.sqrt((left**2).sum(axis=0) / max(len(steps) - 2, 1) / spread)
        slope = np.where(np.abs(slope) > 2 * error, slope, 0.0)
        level = np.exp(mean + slope * centred[-1])
        with np.errstate(divide="ignore", invalid="ignore"):
            further = np.where(slope > 0, np.maximum(np.log(_LIMIT / level), 0.0) / slope, math.inf)
        before, now = (float(np.nanmedian(fetched(point[2]))) for point in (recent[0], recent[-1]))
        drop = 1 - now / before if before > 0 else math.nan
        changes = [
            part for place in (1, 2) for part in _changes(steps, np.array([fetched(point[place]) for point in recent]))
        ]
        return Movement(np.exp(slope * PER_STEPS), steps[-1] + further, drop, level, int(steps[-1]), *changes)


def _changes(steps: Numbers, values: Numbers) -> tuple[Numbers, Numbers]:
    """|change| per step of (points, heads) in the later half, and its ratio to that of the earlier half."""
    per_step = np.abs(np.diff(values, axis=0)) / np.diff(steps)[:, None]
    earlier, later = (half.mean(axis=0) for half in (per_step[: len(per_step) // 2], per_step[len(per_step) // 2 :]))
    with np.errstate(divide="ignore", invalid="ignore"):
        return later, np.where(earlier > 0, later / earlier, math.nan)


def audit_of_watch(watch: Any, phase: Phase = "any", total_steps: int | None = None) -> Audit:
    """The audit of the last readings of a Watch."""
    if phase not in ("init", "trained", "any"):
        raise ArgumentError(f"phase: must be 'init', 'trained' or 'any', got {phase!r}")
    layers, findings = [], []
    config = _config_of(watch.model)
    input_gains = {} if config is None else _input_gains(watch.model, config)
    for reading in watch.readings.values():
        movement = watch.trend.movement(reading.name)
        facts = {name: getattr(reading, name) for name in _FACTS} | facts_of_weights(watch.model, reading)
        facts |= {"input_gain": input_gains[reading.name]} if reading.name in input_gains else {}
        if reading.pointed is not None:
            facts["top_key"] = fetched(reading.pointed.key)[0].astype(int).tolist()
        bound = gain_bound_of(watch.model, reading)
        if not math.isnan(bound):
            facts["gain_bound"] = bound
        trend = {} if movement is None else movement.to_dict()
        layers.append(LayerAudit(reading.name, heads_of(reading), baseline(reading), facts, trend))
        findings += findings_of(reading, phase, facts.get("decayed_heads", ()))
        if reading.enough:
            findings += movement_findings(reading, movement, total_steps)
            findings += _off_config(reading, config) if config is not None else []
            noted = judge(reading.name, None, "gain_bound", bound, reading.keys, phase)
            findings += [Audit([layers[-1]], []).beside(noted)] if noted else []
    keys = [reading.keys for reading in watch.readings.values() if reading.enough]
    if keys and phase != "init":
        findings += beside_others(layers, int(np.median(keys)), measured=True)
        findings = by_input(findings, layers)
    if not layers:
        findings.append(_NOTHING_READ)
    return Audit(tuple(layers), worst_first(findings), phase, unread=dict(watch.unread))


def _config_of(model: Any) -> Config | None:
    """What the config of a transformers model says; of other models nothing is known."""
    described: Any = getattr(model, "config", None)
    if not hasattr(described, "model_type") or not hasattr(described, "to_dict"):
        return None
    return Config(Fields(described.to_dict(), "config"))


def _input_gains(model: Any, config: Config) -> dict[str, float]:
    """{layer: gain of the norm before its projections}, for `siblings`."""
    parameters = dict(model.named_parameters())
    gains: dict[str, float] = {}
    for module in find_projections(list(parameters), *config.model_types)[0]:
        if module.query.input_gain is not None:
            offset = float(config.of(module.module).model_type in GAIN_ABOVE_ONE)
            gains[module.module] = root_mean_square(parameters[module.query.input_gain], offset)
    return {layer: gain for layer, gain in gains.items() if not math.isnan(gain)}


def _off_config(reading: LayerReading, config: Config) -> list[Finding]:
    """Whether the layer ran with another scale than that of its config."""
    path = reading.name.partition("#")[0]
    number = next((int(part) for part in path.split(".") if part.isdecimal()), 0)
    try:
        scale = config.of(path).facts(path, number).scale
    except ArgumentError:  # a config without the fields that a file of weights needs
        return []
    # A stretched rotary embedding puts a factor into q and k, not into the call.
    if scale.assumed or scale.source.endswith("(rope)"):
        return []
    finding = judge(reading.name, None, "scale_off_config", _factor(reading.scale, scale.value), reading.keys)
    remedy = f"set the scale to {scale.value:.4g}, as the config has it; the model ran with {reading.scale:.4g}"
    return [replace(finding, remedy=remedy)] if finding else []


def heads_of(layer: LayerReading) -> tuple[dict[str, float], ...]:
    """{metric: value} of each head."""
    columns = {metric: values.tolist() for metric, values in layer.metrics.items()}
    return tuple({metric: values[head] for metric, values in columns.items()} for head in range(layer.heads))


def findings_of(layer: LayerReading, phase: Phase = "any", decayed: Collection[int] = ()) -> list[Finding]:
    """All findings of one reading; `decayed` are heads whose weights decayed in training."""
    numbers = judged_numbers(layer, phase) if layer.enough else {"non_finite": layer.metrics["non_finite"]}
    findings: list[Finding] = []
    for metric, values in numbers.items():
        of_heads = [judge(layer.name, head, metric, float(v), layer.keys, phase) for head, v in enumerate(values)]
        of_layer = judge(layer.name, None, metric, values.tolist(), layer.keys, phase)
        findings += [of_layer] if of_layer else []
        findings += _folded([finding for finding in of_heads if finding is not None], layer.heads)
    if layer.enough and phase != "init":
        findings += flat_heads(layer.name, "flat_head", layer.metrics["logit_deviation"], layer.keys, decayed)
    findings = [replace(finding, remedy=_in_figures(finding.remedy, layer)) for finding in findings]
    doubt = _factor(layer.scale, layer.scale_given)
    for metric, value in (("output_mismatch", layer.mismatch), ("scale_doubt", doubt)):
        finding = judge(layer.name, None, metric, value, layer.keys, phase)
        findings += [finding] if finding else []
    if verdict_of(findings) != "healthy":  # the note that a sharp layer may have been learned does not help here
        findings = [finding for finding in findings if finding.severity != "note" or finding.metric not in _SHARPNESS]
    return findings


def _in_figures(remedy: str, layer: LayerReading) -> str:
    """A remedy with the numbers of its layer: by how much its scores are too wide, and its cap."""
    width = float(np.nanmedian(layer.metrics["score_deviation"])) if DEVIATION in remedy else 1.0
    return remedy.replace(DEVIATION, f"{width:.3g}").replace(SOFTCAP, f"{layer.softcap or 0.0:g}")


def judged_numbers(layer: LayerReading, phase: Phase) -> dict[str, Numbers]:
    """The metrics that are judged.

    Theory is about scale*<q, k>, so the deviation is that before cap and bias, and is left out where only the final
    logits are known. For resting heads the sharpness apart from the sink counts. Raw scores matter in float16.
    """
    numbers = dict(layer.metrics)
    numbers["logit_deviation"] = numbers["score_deviation"]
    if layer.route == "softmax":
        numbers.pop("logit_deviation")
    if layer.dtype != "float16":
        numbers.pop("raw_score")
    if layer.silent is not None:
        numbers["silent_head"] = fetched(layer.silent)
    if phase != "init":
        resting = numbers["sink_mass"] > RESTING
        for metric in _SHARPNESS:
            numbers[metric] = np.where(resting, layer.apart[metric], numbers[metric])
    return numbers


def movement_findings(
    layer: LayerReading, movement: Movement | None, total_steps: int | None = None
) -> Iterable[Finding]:
    """What the trend shows, for a run of `total_steps` if that is known."""
    if movement is None:
        return
    entropy = float(np.nanmedian(layer.metrics["entropy_ratio"]))
    fallen = judge(layer.name, None, "entropy_drop", movement.entropy_drop, layer.keys)
    if fallen and entropy < _LITTLE:
        yield fallen
    for head in np.flatnonzero(movement.logit_change * FEWEST_STEPS > 1).tolist():
        restless = judge(layer.name, head, "logit_change_trend", float(movement.logit_change_trend[head]), layer.keys)
        if restless:
            yield restless
    for head in np.flatnonzero(movement.level > _LARGE).tolist():
        growth = float(movement.growth[head])
        findings = [judge(layer.name, head, "max_logit_growth", growth, layer.keys)]
        if total_steps is not None and growth > 1:
            forecast = float((movement.level * movement.growth ** ((total_steps - movement.step) / PER_STEPS))[head])
            findings.append(judge(layer.name, head, "max_logit_forecast", forecast, layer.keys))
        yield from (finding for finding in findings if finding is not None)


def _factor(scale: float, other: float) -> float:
    """The factor, 1 or more, between two scales of any sign; NaN where one is 0 or not known."""
    if not scale or not other or math.isnan(scale):
        return math.nan
    ratio = abs(scale / other)
    return max(ratio, 1 / ratio)


def _folded(findings: list[Finding], heads: int) -> list[Finding]:
    """A note that is true of every head, as one note of the layer."""
    if len(findings) < heads or heads == 1 or any(finding.severity != "note" for finding in findings):
        return findings
    middle = sorted(findings, key=lambda finding: finding.value)[heads // 2]
    return [replace(middle, head=None)]
