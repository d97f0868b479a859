"""What an audit found: one number of one head or layer, what it should have been, and what to do about it."""

import dataclasses
from collections.abc import Iterable
from typing import Any, Literal

Severity = Literal["note", "warning", "critical"]
Verdict = Literal["healthy", "warning", "critical"]

RANK: dict[Severity, int] = {"note": 0, "warning": 1, "critical": 2}


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """One number outside its range. ``head`` is None when the whole layer is meant.

    A note tells something worth knowing and leaves the verdict healthy.

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

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return dataclasses.asdict(self)


def worst_first(findings: Iterable[Finding]) -> list[Finding]:
    """By severity; those of one severity stay in their order."""
    return sorted(findings, key=lambda one: -RANK[one.severity])


def verdict_of(findings: "list[Finding] | tuple[Finding, ...]") -> Verdict:
    """The worst severity; notes do not count.

    >>> verdict_of([])
    'healthy'
    """
    severities = {finding.severity for finding in findings}
    if "critical" in severities:
        return "critical"
    return "warning" if "warning" in severities else "healthy"
