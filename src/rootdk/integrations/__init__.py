"""Watch a model while it trains: callbacks for trainers, a log for a loop of one's own, and where the numbers go.

Importing this loads no framework; a callback or a sink loads the one that it is for when it is made.
"""

from rootdk.integrations.jsonl import JsonLines
from rootdk.integrations.lightning import lightning_callback
from rootdk.integrations.loop import TrainingLog
from rootdk.integrations.merged import merged_metrics
from rootdk.integrations.needed import PackageMissingError
from rootdk.integrations.sink import Sink
from rootdk.integrations.tensorboard import TensorBoard
from rootdk.integrations.trainer import trainer_callback
from rootdk.integrations.wandb import WeightsAndBiases

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
