"""Report: the verdict on a model, layer by layer and head by head, with every number beside its baseline."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rootdk.audit.finding import Finding, Verdict, verdict_of, worst_first
from rootdk.audit.thresholds import Phase
from rootdk.errors import ArgumentError

if TYPE_CHECKING:
    from rich.console import Group

SCHEMA_VERSION = 1


# A gate must not pass a model of which nothing was seen.
_NOTHING_READ = Finding(
    "", None, "layers_read", "warning", 0.0, 1.0, "a verdict needs numbers",
    "run the model while it is watched; `unread` says what could not be read",
)  # fmt: skip


@dataclass(frozen=True)
class LayerReport:
    """One layer: for every head {metric: value}, the baseline of theory, and the facts of the call."""

    name: str
    heads: list[dict[str, float]]
    baseline: dict[str, float] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    trend: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Plain values; a number that there is none of is null."""
        heads = [{metric: _plain(value) for metric, value in head.items()} for head in self.heads]
        facts = {name: _plain(value) for name, value in self.facts.items()}
        baseline = {metric: _plain(value) for metric, value in self.baseline.items()}
        rest = {"trend": self.trend} if self.trend else {}
        return {"name": self.name, "heads": heads, **facts, "baseline": baseline, **rest}


@dataclass(frozen=True)
class Report:
    """What an audit says.

    layers     one LayerReport per layer that was read
    findings   every number outside its range, the worst first
    phase      what was known of the model: "init", "trained" or "any"
    unread     {layer: why it could not be read}

    >>> Report([], [Finding("attn", 0, "max_logit", "warning", 140.0, 100.0, "K2", "qk_clip_")]).verdict
    'warning'
    """

    layers: list[LayerReport]
    findings: list[Finding]
    phase: Phase = "any"
    unread: dict[str, str] = field(default_factory=dict)

    @property
    def verdict(self) -> Verdict:
        """Of the whole model: "healthy", "warning" or "critical"."""
        return verdict_of(self.findings)

    def verdict_on(self, layer: str, head: int | None = None) -> Verdict:
        """Of one layer, or of one head by the findings that name it."""
        return verdict_of([one for one in self.findings if one.layer == layer and (head is None or one.head == head)])

    @property
    def flagged(self) -> list[str]:
        """The layers that are not healthy, in the order of the model."""
        names = dict.fromkeys([layer.name for layer in self.layers] + [one.layer for one in self.findings])
        return [name for name in names if self.verdict_on(name) != "healthy"]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {
            "schema_version": SCHEMA_VERSION,
            "verdict": self.verdict,
            "phase": self.phase,
            "layers": [layer.to_dict() for layer in self.layers],
            "findings": [
                {name: _plain(value) for name, value in finding.to_dict().items()} for finding in self.findings
            ],
            "unread": dict(self.unread),
        }

    def __rich__(self) -> Group:
        from rootdk.audit.table import view

        return view(self)


def report_of(watch: Any, phase: Phase = "any", total_steps: int | None = None) -> Report:
    """The report on what a Watch has read last."""
    from rootdk.audit.baseline import baseline
    from rootdk.audit.gains import gain_bound
    from rootdk.audit.health import findings_of, movement_findings
    from rootdk.audit.thresholds import judge

    if phase not in ("init", "trained", "any"):
        raise ArgumentError(f"phase: must be 'init', 'trained' or 'any', got {phase!r}")
    layers, findings = [], []
    for reading in watch.readings.values():
        movement = watch.trend.movement(reading.name)
        findings += findings_of(reading, phase)
        findings += movement_findings(reading, movement, total_steps)
        facts = {name: getattr(reading, name) for name in _FACTS}
        bound = gain_bound(watch.model, reading)
        if not math.isnan(bound):
            facts["gain_bound"] = bound
            found = judge(reading.name, None, "gain_bound", bound, reading.keys, phase)
            findings += [found] if found else []
        heads = [
            {metric: float(values[head]) for metric, values in reading.metrics.items()} for head in range(reading.heads)
        ]
        trend = {}
        if movement is not None:
            trend = {
                "max_logit_growth": [_plain(float(one)) for one in movement.growth],
                "crossing_step": [_plain(float(one)) for one in movement.crossing],
                "entropy_drop": _plain(movement.entropy_drop),
            }
        layers.append(LayerReport(reading.name, heads, baseline(reading), facts, trend))
    if not layers:
        findings.append(_NOTHING_READ)
    return Report(layers, worst_first(findings), phase, dict(watch.unread))


_FACTS = ("step", "route", "dtype", "scale", "scale_given", "softcap", "d_k", "keys", "n_query", "n_key", "sampled")


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
