"""Audit: what weights, a run, or both show about a model's attention. One type of result for all of them.

A layer holds the numbers of its heads and, where the model ran, the baseline of theory and the facts of the call. A
Finding is one number outside its range. The order of severities is here and nowhere else.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rootdk.errors import ArgumentError

if TYPE_CHECKING:
    from rich.console import RenderableType

Phase = Literal["init", "trained", "any"]
Severity = Literal["note", "warning", "critical"]
Verdict = Literal["healthy", "warning", "critical", "unjudged"]

# The worst first.
SEVERITIES: tuple[Severity, ...] = ("critical", "warning", "note")
VERDICTS: tuple[Verdict, ...] = ("critical", "warning", "unjudged", "healthy")
# As a person reads them.
WORDS = {"unjudged": "too little to judge"}
# Metrics predicted from weights for white input, which no trained model has; beside a judged run at most a note.
_PREDICTIONS = frozenset(
    {"predicted_deviation", "predicted_over_others", "typical_prediction", "predicted_cap_ratio"}
    | {"flat_prediction", "gain_bound", "spectral_bound"}
)
SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class Finding:
    """One number outside its range. ``head`` is None when the whole layer is meant.

    A note says something worth knowing and leaves the verdict healthy.

    >>> Finding("layers.3.attn", 5, "max_logit", "warning", 140.0, 100.0, "Kimi K2", "qk_clip_").head
    5
    """

    layer: str
    head: int | None
    metric: str
    severity: Severity
    value: float
    threshold: float
    source: str
    remedy: str

    def worse_than(self, other: Finding) -> bool:
        """Whether its severity is the higher one."""
        return SEVERITIES.index(self.severity) < SEVERITIES.index(other.severity)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return asdict(self)


def worst_first(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Findings by severity; within one severity they keep their order."""
    return tuple(sorted(findings, key=lambda finding: SEVERITIES.index(finding.severity)))


def verdict_of(findings: Iterable[Finding]) -> Verdict:
    """The worst severity; notes do not count. `Audit.verdict` says whether there was enough to judge.

    >>> verdict_of([])
    'healthy'
    """
    severities = {finding.severity for finding in findings}
    return next((verdict for verdict in VERDICTS if verdict in severities), "healthy")


@dataclass(frozen=True)
class LayerAudit:
    """One attention module.

    name       its path in the model
    heads      {metric: value} for every query head
    baseline   {metric: what theory predicts for random q and k}
    facts      of the call that was read: scale, d_k, dtype, ...
    trend      how its numbers moved over the steps of a run; empty where too few are known

    >>> layer = LayerAudit("layers.0", ({"max_logit": 3.0}, {"max_logit": 5.0}), {}, {})
    >>> layer.of("max_logit")
    [3.0, 5.0]
    """

    name: str
    heads: Sequence[Mapping[str, float]]
    baseline: Mapping[str, float] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    trend: Mapping[str, Any] = field(default_factory=dict)

    @property
    def judged(self) -> bool:
        """False if the layer ran on too few rows or keys to say anything."""
        return bool(self.facts.get("enough", True))

    @property
    def normed(self) -> bool:
        """Whether q and k are normed."""
        return "gain_bound" in self.facts or any("gain_bound" in head for head in self.heads)

    def of(self, metric: str) -> list[float]:
        """One number per head; NaN where a head has none."""
        return [head.get(metric, math.nan) for head in self.heads]

    def merge(self, other: LayerAudit) -> LayerAudit:
        """The numbers of both; where both have one, that of `other`."""
        heads = tuple({**mine, **others} for mine, others in zip(self.heads, other.heads, strict=True))
        mappings = ({**getattr(self, name), **getattr(other, name)} for name in ("baseline", "facts", "trend"))
        return LayerAudit(self.name, heads, *mappings)

    def to_dict(self) -> dict[str, Any]:
        """Plain values; a missing number is null."""
        trend = {"trend": self.trend} if self.trend else {}
        values = {"heads": self.heads, **self.facts, "baseline": self.baseline, **trend}
        return {"name": self.name} | {name: _plain(value) for name, value in values.items()}


@dataclass(frozen=True, repr=False)
class Audit:
    """The result of an audit. `print` shows it as a table, and so does a notebook.

    layers     one LayerAudit for each attention module that was read
    findings   every number outside its range, the worst first
    phase      what was known of the model: "init", "trained" or "any"
    model      facts of the whole model, from its config
    unknown    names of tensors that seem to be of attention and were not understood
    unread     {layer: why its call could not be read}

    >>> Audit([], [Finding("attn", 0, "max_logit", "warning", 140.0, 100.0, "K2", "qk_clip_")]).verdict
    'warning'
    """

    layers: Sequence[LayerAudit]
    findings: Sequence[Finding]
    phase: Phase = "any"
    model: Mapping[str, Any] = field(default_factory=dict)
    unknown: Sequence[str] = ()
    unread: Mapping[str, str] = field(default_factory=dict)

    @property
    def verdict(self) -> Verdict:
        """The worst finding of the whole model; notes leave it healthy. "unjudged" if no layer had enough rows."""
        worst = verdict_of(self.findings)
        silent = bool(self.layers) and not any(layer.judged for layer in self.layers)
        return "unjudged" if worst == "healthy" and silent else worst

    def verdict_on(self, layer: str, head: int | None = None) -> Verdict:
        """The verdict on one layer, or on one head from the findings that name it."""
        worst = verdict_of(
            finding for finding in self.findings if finding.layer == layer and (head is None or finding.head == head)
        )
        silent = any(known.name == layer and not known.judged for known in self.layers)
        return "unjudged" if worst == "healthy" and silent else worst

    @property
    def flagged(self) -> list[str]:
        """The layers that are not healthy, in the order of the model."""
        names = dict.fromkeys([layer.name for layer in self.layers] + [finding.layer for finding in self.findings])
        return [name for name in names if self.verdict_on(name) in ("warning", "critical")]

    def merge(self, run: Audit) -> Audit:
        """Join two audits: this one of the weights, and one of a run of the same model.

        A layer that both have under the same path, with equally many heads, gets the numbers of both. No finding comes
        twice; where both have one of the same head and metric, that of the run counts. If the run was judged, a
        prediction or a bound from weights becomes a note that says what was measured.

        >>> weights = Audit([LayerAudit("a", [{"predicted_deviation": 1.0}])], [])
        >>> run = Audit([LayerAudit("a", [{"max_logit": 2.0}])], [])
        >>> weights.merge(run).layers[0].heads
        ({'predicted_deviation': 1.0, 'max_logit': 2.0},)
        """
        measured = {layer.name: layer for layer in run.layers}
        layers: list[LayerAudit] = []
        for layer in self.layers:
            other = measured.pop(layer.name, None)
            if other is not None and len(other.heads) == len(layer.heads):
                layers.append(layer.merge(other))
            else:
                layers += [layer] if other is None else [layer, other]
        known = {(finding.layer, finding.head, finding.metric) for finding in run.findings}
        rest = [
            run.beside(finding)
            for finding in self.findings
            if (finding.layer, finding.head, finding.metric) not in known
        ]
        return Audit(
            (*layers, *measured.values()),
            worst_first([*run.findings, *rest]),
            run.phase,
            {**self.model, **run.model},
            (*self.unknown, *run.unknown),
            {**self.unread, **run.unread},
        )

    def beside(self, finding: Finding) -> Finding:
        """A finding from the same model's weights, as it is reported beside this run."""
        ran = [layer for layer in self.layers if layer.judged and finding.layer in ("", layer.name)]
        largest = [value for layer in ran for value in layer.of("max_logit") if not math.isnan(value)]
        if finding.metric not in _PREDICTIONS or not largest:
            return finding
        remedy = f"nothing: the largest logit of the run is {max(largest):.3g}, and what is measured counts"
        return replace(finding, severity="note", remedy=remedy)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON; a missing number is None."""
        return {
            "schema_version": SCHEMA_VERSION,
            "verdict": self.verdict,
            "phase": self.phase,
            "model": _plain(self.model),
            "layers": [layer.to_dict() for layer in self.layers],
            "findings": [_plain(finding.to_dict()) for finding in self.findings],
            "unknown": list(self.unknown),
            "unread": dict(self.unread),
        }

    def save(self, path: str | Path) -> None:
        """Write it as a page that opens offline (.html) or as JSON (.json), whole or not at all.

        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     Audit([], []).save(f"{folder}/audit.html")
        ...     Path(f"{folder}/audit.html").read_text()[:15]
        '<!doctype html>'
        """
        from rootdk.files import write_atomically

        from .view import page_html

        place = Path(path)
        if place.suffix not in (".html", ".json"):
            raise ArgumentError(f"path: must end in .html or .json, got {str(path)!r}")
        text = page_html(self.to_dict()) if place.suffix == ".html" else json.dumps(self.to_dict(), allow_nan=False)
        write_atomically(place, text)

    def __repr__(self) -> str:
        from .metrics import counted

        sizes = counted(len(self.layers), "layer"), counted(len(self.findings), "finding")
        return f"Audit({self.verdict}, {', '.join(sizes)})"

    def __str__(self) -> str:
        from rich.console import Console

        written = io.StringIO()
        Console(file=written, color_system=None).print(self)
        return "\n".join(line.rstrip() for line in written.getvalue().splitlines())

    def __rich__(self) -> RenderableType:
        from .view import view

        return view(self.to_dict())

    def _repr_html_(self) -> str:
        from .view import view_html

        return view_html(self.to_dict())


def _plain(value: Any) -> Any:
    """JSON has no NaN and no infinity: null in their place."""
    if isinstance(value, Mapping):
        return {name: _plain(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
