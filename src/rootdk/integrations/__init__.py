"""Watch a model while it trains: callbacks for trainers, a log for your own loop, and where the numbers go.

Importing this loads no framework; a callback or a sink loads its framework when it is created.
"""

from rootdk.integrations.loop import TrainingLog, lightning_callback, trainer_callback
from rootdk.integrations.ranks import merged_metrics
from rootdk.integrations.sinks import JsonLines, PackageMissingError, Sink, TensorBoard, WeightsAndBiases

__all__ = [
    "JsonLines",
    "PackageMissingError",
    "Sink",
    "TensorBoard",
    "TrainingLog",
    "WeightsAndBiases",
    "lightning_callback",
    "merged_metrics",
    "trainer_callback",
]
