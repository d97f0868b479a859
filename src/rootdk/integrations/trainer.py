"""trainer_callback(): a TrainerCallback for the Trainer of transformers."""

from typing import Any

from rootdk.integrations.loop import DEFAULT, TrainingLog
from rootdk.integrations.needed import needed


def trainer_callback(
    sinks: Any = DEFAULT,
    every: int = 1,
    rows: int | None = None,
    heads: bool = False,
    clip_tau: float | None = None,
    parallel: Any = "data",
) -> Any:
    """A callback that reads the attention of the model that `transformers.Trainer` trains.

    The arguments are those of TrainingLog. Steps are the Trainer's global steps; an evaluation is not read. With
    clip_tau, QK-clip acts after the optimizer's step and before anything is saved, on the forwards of all
    accumulated batches.

        trainer = Trainer(..., callbacks=[trainer_callback("attention.jsonl", every=10)])

    >>> import os, transformers
    >>> isinstance(trainer_callback(os.devnull, every=10), transformers.TrainerCallback)
    True
    """
    return _made(TrainingLog(sinks, every, rows, heads, clip_tau, parallel))


def _made(log: TrainingLog) -> Any:
    base = needed("trainer_callback", "transformers", "transformers", "TrainerCallback")
    return type("AttentionCallback", (_Events, base), {})(log)


class _Events:
    """What happens at which event.."""

    def __init__(self, log: TrainingLog) -> None:
        self.training_log = log

    def __reduce__(self) -> tuple[Any, ...]:
        # The class is made in a function, where pickle does not find it.
        return _made, (self.training_log,)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        self.training_log.start(kwargs["model"]).pause()

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self.training_log.resume()

    def on_substep_end(self, *_: Any, **__: Any) -> None:
        self.training_log.after_forward()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        self.training_log.after_step(state.global_step)
        self.training_log.pause()

    def on_train_end(self, *_: Any, **__: Any) -> None:
        self.training_log.close()
