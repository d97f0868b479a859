"""Watch a model, read a checkpoint, judge the health of its attention, and say what to do."""

from rootdk.audit.checkpoint import read_checkpoint
from rootdk.audit.layer import LayerReading
from rootdk.audit.remedies import qk_clip_, recommend_scale, recommend_tau
from rootdk.audit.result import Audit, Finding, LayerAudit, verdict_of
from rootdk.audit.thresholds import THRESHOLDS, Threshold, judge
from rootdk.audit.watching import watch

__all__ = [
    "THRESHOLDS",
    "Audit",
    "Finding",
    "LayerAudit",
    "LayerReading",
    "Threshold",
    "judge",
    "qk_clip_",
    "read_checkpoint",
    "recommend_scale",
    "recommend_tau",
    "verdict_of",
    "watch",
]
