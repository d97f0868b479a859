"""Callbacks: a TrainingLog driven by the events of a trainer, that of transformers or that of Lightning.

The class of a callback is made when it is asked for, because its base comes from the framework.
"""

from typing import Any

from rootdk.errors import ArgumentError
from rootdk.integrations.loop import DEFAULT, TrainingLog
from rootdk.integrations.sinks import needed

# Callbacks are Any: their base classes belong to packages that a user of the other trainer need not have, and a name
# that a type checker cannot find is Any for it as well.


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
    return _for_transformers(TrainingLog(sinks, every, rows, heads, clip_tau, parallel))


def _for_transformers(log: TrainingLog) -> Any:
    base = needed("trainer_callback", "transformers", "transformers", "TrainerCallback")
    return type("AttentionCallback", (_TransformersEvents, base), {})(log)


class _TransformersEvents:
    """What happens at which event of transformers.Trainer."""

    def __init__(self, log: TrainingLog) -> None:
        self.training_log = log

    def __reduce__(self) -> tuple[Any, ...]:
        # The class is made in a function, where pickle does not find it.
        return _for_transformers, (self.training_log,)

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


def lightning_callback(
    sinks: Any = DEFAULT,
    every: int = 1,
    rows: int | None = None,
    heads: bool = False,
    clip_tau: float | None = None,
    part: str = "",
    parallel: Any = "data",
) -> Any:
    """A callback that reads the attention of the module that `lightning.Trainer` trains.

    part   the path of the submodule that is called in `training_step`, such as "model"; without it the whole module is
           watched. Attention that is written out, or imported by name, is seen inside the forward of what is watched,
           so name the part where `training_step` does not call the module itself.

    The other arguments are those of TrainingLog. Steps are the trainer's global steps; validation is not read. With
    clip_tau, QK-clip acts after the optimizer's step, on the forwards of all accumulated batches.

        trainer = lightning.Trainer(callbacks=[lightning_callback("attention.jsonl", every=10, part="model")])

    >>> import os, lightning
    >>> isinstance(lightning_callback(os.devnull, every=10), lightning.Callback)
    True
    """
    return _for_lightning(TrainingLog(sinks, every, rows, heads, clip_tau, parallel), part)


def _for_lightning(log: TrainingLog, part: str) -> Any:
    base = needed("lightning_callback", "lightning.pytorch", "lightning", "Callback")
    return type("AttentionCallback", (_LightningEvents, base), {})(log, part)


class _LightningEvents:
    """What happens at which event of lightning.Trainer.

    It is `training_log` because Lightning puts a function of its own at `log`.
    """

    def __init__(self, log: TrainingLog, part: str) -> None:
        self.training_log, self.part = log, part
        self._done = 0

    def __reduce__(self) -> tuple[Any, ...]:
        # The class is made in a function, where pickle does not find it.
        return _for_lightning, (self.training_log, self.part)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self._done = trainer.global_step
        try:
            watched = pl_module.get_submodule(self.part)
        except AttributeError as error:
            name = type(pl_module).__name__
            raise ArgumentError(f"part: must be the path of a submodule of {name}, got {self.part!r}") from error
        self.training_log.start(watched).pause()

    def on_train_batch_start(self, *_: Any) -> None:
        self.training_log.resume()

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        if trainer.global_step > self._done:
            self._done = trainer.global_step
            self.training_log.after_step(self._done)
        else:
            self.training_log.after_forward()
        self.training_log.pause()

    def on_train_end(self, *_: Any) -> None:
        self.training_log.close()

    def on_exception(self, *_: Any) -> None:
        self.training_log.close()
