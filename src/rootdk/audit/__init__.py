"""Watch a model, read a checkpoint, judge the health of its attention, and say what to do."""

from rootdk.audit.finding import Finding, verdict_of
from rootdk.audit.thresholds import THRESHOLDS, Threshold, judge

__all__ = ["THRESHOLDS", "Finding", "Threshold", "judge", "verdict_of"]
