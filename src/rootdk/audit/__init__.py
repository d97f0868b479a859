"""Watch a model, read a checkpoint, judge the health of its attention, and say what to do."""

from rootdk.audit.finding import Finding, verdict_of

__all__ = ["Finding", "verdict_of"]
