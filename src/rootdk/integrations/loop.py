"""TrainingLog: watch a model while it trains, write what was read, clip if asked to. For your own training loop.

Keys of the numbers that are written:

    attn/max_logit                       of the whole model
    attn/layer_03/max_logit              of a layer
    attn/layer_03/head_05/max_logit      of a head, on request

A callback is such a log driven by the events of a trainer, that of transformers or that of Lightning. Its class is
created when it is asked for, because its base comes from the framework.
"""

import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from rootdk.audit.layer import LayerReading, Numbers
from rootdk.audit.projections import module_at
from rootdk.audit.remedies import Largest, clip_to_, largest_scores, merged_largest
from rootdk.checks import count, positive
from rootdk.errors import ArgumentError
from rootdk.integrations import ranks
from rootdk.integrations.ranks import Merged, Parallel, groups_of, heads_together, merged_metrics
from rootdk.integrations.sinks import Sink, Sinks, needed, sinks_of

if TYPE_CHECKING:
    # Users of one trainer need not have the other: a library that is not installed is Any for a type checker.
    from lightning.pytorch import Callback
    from torch.nn import Module
    from transformers import TrainerCallback

    from rootdk.audit.watching.handle import Watch
else:
    Callback = Module = TrainerCallback = Any  # so that typing.get_type_hints works without them

DEFAULT = "attention.jsonl"
# For an extreme, that of the worst head counts; for the rest the median, by which a layer is judged too.
_HIGHEST = frozenset({"max_logit", "max_score", "raw_score", "non_finite", "cap_ratio", "bf16_spacing"})
_LOWEST = frozenset({"min_logit", "min_log_sum_exp", "qk_clip"})


class TrainingLog:
    """Reads the attention of a model in training and writes it down, step by step.

    sinks      where to: a path, to which lines of JSON are added, a Sink, or several of them
    every      read every n-th step of the optimizer, beginning with the first
    rows       read only so many query rows; see rootdk.watch
    heads      write every head too, not only every layer
    clip_tau   None, or the tau of QK-clip: after each step that was read, rootdk.audit.qk_clip_ goes over the weights
    parallel   in which way several processes share the work: "data" (also for shards of a batch), "sequence" or
               "tensor", a dictionary from these to process groups, or None to write what rank 0 alone sees

    It writes the numbers of the last forward before the step, and with clip_tau `qk_clip`, the smallest factor. Where
    torch.distributed is initialised only rank 0 writes, and its numbers are those that one process with the rows and
    heads of all ranks would have read: see rootdk.integrations.merged_metrics. Clipping uses the largest score over all
    ranks that hold the same heads, so that replicas stay equal. Call `after_step` in all of them.

    A sink that cannot be opened is an error of `start`. One that fails later ends no run: a RuntimeWarning names it,
    and it gets no more steps until the next `start`; the other sinks get theirs.

    >>> import json, tempfile, torch
    >>> layer = torch.nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    >>> model = torch.nn.TransformerEncoder(layer, num_layers=2)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> file = tempfile.NamedTemporaryFile(suffix=".jsonl")
    >>> with TrainingLog(file.name, every=2).start(model) as log:
    ...     for _ in range(4):
    ...         loss = model(torch.randn(2, 16, 32)).square().mean()
    ...         loss.backward()
    ...         optimizer.step()
    ...         log.after_step()
    >>> lines = [json.loads(line) for line in file]
    >>> [line["step"] for line in lines], lines[0]["attn/layer_01/max_logit"] > 0
    ([1, 3], True)
    """

    def __init__(
        self,
        sinks: Sinks = DEFAULT,
        every: int = 1,
        rows: int | None = None,
        heads: bool = False,
        clip_tau: float | None = None,
        parallel: Parallel | None = "data",
    ) -> None:
        self.sinks = sinks_of(sinks)
        self.every, self.rows, self.heads = count("every", every), rows, heads
        self.clip_tau = None if clip_tau is None else positive("clip_tau", clip_tau)
        self.parallel = None if parallel is None else groups_of(parallel)
        self._begin()

    def _begin(self) -> None:
        self.watch: Watch | None = None
        self.steps = 0
        self._started = False
        self._writes = False
        self._keys = LayerKeys()
        self._largest: Largest = {}
        self._known: set[str] = set()
        self._seen = 0
        self._warned = False
        self._failed: list[Sink] = []

    def start(self, model: Module) -> "TrainingLog":
        """Open the sinks and begin to watch. A log that runs already is closed first."""
        from rootdk.audit.watching import watch

        self.close()
        self._begin()
        self._writes = ranks.writes()
        try:
            if self._writes or self.clip_tau is not None or self._merges:
                self.watch = watch(model, rows=self.rows)
            if self._writes:
                for sink in self.sinks:
                    sink.open()
            self._started = True
        except BaseException:
            self.close()
            raise
        return self

    @property
    def _merges(self) -> bool:
        return self.parallel is not None and ranks.several()

    @property
    def due(self) -> bool:
        """Whether the step that comes next is read."""
        return self.steps % self.every == 0

    def pause(self) -> None:
        """Read nothing until `resume`: around an evaluation."""
        if self.watch is not None:
            self.watch.paused = True

    def resume(self) -> None:
        """Go on reading, if the step is due."""
        if self.watch is not None:
            self.watch.paused = not self.due

    def after_forward(self) -> None:
        """Call after each forward if several make one step (gradient accumulation): QK-clip uses all of them."""
        self._check_started("after_forward")
        if self.clip_tau is not None and self.due:
            self._largest = merged_largest([self._largest, largest_scores(self._fresh())])

    def after_step(self, step: int | None = None) -> None:
        """Call after optimizer.step(): clip if asked to, and write.

        step   its number; without one, steps are counted from 1
        """
        self._check_started("after_step")
        number = self.steps + 1 if step is None else step
        if self.watch is not None and self.due:
            readings = self._fresh()
            clipped = None
            if self.clip_tau is not None:
                self._check_clippable(readings)
                self.after_forward()
                clipped = clip_to_(self.watch.model, self._largest_of_all(), self.clip_tau)
                self._largest = {}
                if self._merges and self.parallel and "tensor" in self.parallel:
                    clipped = heads_together(clipped, self.parallel["tensor"])
            # Also with nothing read: the other ranks are waiting.
            shown = merged_metrics(readings, self.parallel or {}) if self._merges else readings
            if not shown:
                self._warn()
            elif self._writes:
                values = values_of(shown, self._keys, self.heads, clipped)
                for sink in filter(self._works, self.sinks):
                    try:
                        sink.write(number, values)
                    except Exception as error:  # noqa: BLE001 -- a log that fails must not end a training run
                        self._give_up(sink, f"in step {number} and gets no more steps of this run", error)
        self.steps += 1
        if self.watch is not None:
            self._seen = self.watch.step
        self.resume()

    def close(self) -> None:
        """Stop watching and close the sinks; `start` starts again. Closing twice is no error."""
        self._started = False
        if self.watch is not None:
            self.watch.paused = True  # no summary of unread layers: each step has warned of its own
            self.watch.close()
            self.watch = None
        writes, self._writes = self._writes, False
        for sink in self.sinks if writes else ():
            try:
                sink.close()
            except Exception as error:  # noqa: BLE001 -- the same at the end of one
                if self._works(sink):  # one that failed earlier was reported then
                    self._give_up(sink, "when it was closed", error)

    def __enter__(self) -> "TrainingLog":  # noqa: PYI034 -- typing.Self came with Python 3.11
        self._check_started("with")
        return self

    def _check_started(self, use: str) -> None:
        if not self._started:
            raise ArgumentError(f"TrainingLog: must be started before {use}, got none: call start(model) first")

    def __exit__(self, *_: object) -> None:
        self.close()

    def _works(self, sink: Sink) -> bool:
        return all(sink is not failed for failed in self._failed)

    def _give_up(self, sink: Sink, when: str, error: Exception) -> None:
        self._failed.append(sink)
        words = " ".join(str(error).split())
        warnings.warn(f"sinks: {sink!r} failed {when}: {type(error).__name__}: {words}", RuntimeWarning, stacklevel=3)

    def _fresh(self) -> dict[str, LayerReading]:
        """The readings of the last forward, if there was one since the last step."""
        known = {} if self.watch is None else self.watch.readings
        return {name: reading for name, reading in known.items() if reading.step >= self._seen}

    def _largest_of_all(self) -> Largest:
        """The largest over ranks with the same heads; with tensor parallelism alone every rank clips its own."""
        groups = {"data": None} if self.parallel is None else self.parallel
        largest = self._largest
        for way in ("data", "sequence"):
            if way in groups:
                largest = ranks.over_ranks(largest, groups[way])
        return largest

    def _check_clippable(self, readings: dict[str, LayerReading]) -> None:
        """A layer that cannot be clipped ends the run in its first step, not in the later one that needs it."""
        from rootdk.audit.projections import projections_of

        for name, reading in readings.items():
            path = name.partition("#")[0]
            if self.watch is not None and path not in self._known:
                projections_of(module_at(self.watch.model, path), reading.heads, reading.d_k, path)
                self._known.add(path)

    def _warn(self) -> None:
        if not self._warned and self.watch is not None:
            self._warned = True
            unread = "; ".join(f"{name}: {reason}" for name, reason in self.watch.unread.items())
            why = f" ({unread})" if unread else ": none ran in the module that is watched, or it is compiled"
            warnings.warn(f"rootdk: no attention was read in step {self.steps + 1}{why}", RuntimeWarning, stacklevel=3)


class LayerKeys:
    """Short names for module paths, one to one, that do not change during a run.

    A path with a number in it is `layer_` and that number. Where a model attends in several places (encoder and
    decoder, self and cross attention), the place that runs first has the short names, and the others keep their paths.
    So does a path without a number; further runs of a layer in one forward are numbered.

    >>> key = LayerKeys()
    >>> key("model.layers.3.self_attn"), key("model.layers.3.self_attn#2")
    ('layer_03', 'layer_03_run_2')
    >>> key("model.layers.3.cross_attn"), key("pool")
    ('model.layers.03.cross_attn', 'pool')
    """

    def __init__(self) -> None:
        self._first: list[str] | None = None

    def __call__(self, path: str) -> str:
        """The name of the layer at a module path."""
        path, _, run = path.partition("#")
        parts = path.split(".")
        place = next((at for at, part in enumerate(parts) if part.isdecimal()), None)
        name = path
        if place is not None:
            number = parts[place].zfill(2)
            parts[place] = ""
            self._first = self._first or parts
            whole = ".".join([*parts[:place], number, *parts[place + 1 :]])
            name = f"layer_{number}" if parts == self._first else whole
        return f"{name}_run_{run}" if run else name


def values_of(
    readings: Mapping[str, LayerReading] | Mapping[str, Merged],
    key: Callable[[str], str],
    heads: bool = False,
    clipped: Mapping[str, Numbers] | None = None,
) -> dict[str, float]:
    """Every number of a step by its key. `clipped` has the factors of QK-clip, if there is one."""
    by_key: dict[str, float] = {}
    whole: dict[str, list[Numbers]] = {}
    for path, reading in readings.items():
        name, numbers = key(path), dict(reading.metrics)
        if clipped is not None:
            numbers["qk_clip"] = clipped.get(path.partition("#")[0], np.ones(reading.heads))
        for metric, values in numbers.items():
            whole.setdefault(metric, []).append(values)
            by_key[f"attn/{name}/{metric}"] = over_heads(metric, values)
            if heads:
                by_key |= {f"attn/{name}/head_{head:02d}/{metric}": float(value) for head, value in enumerate(values)}
    return {f"attn/{metric}": over_heads(metric, np.concatenate(values)) for metric, values in whole.items()} | by_key


def over_heads(metric: str, values: Numbers) -> float:
    """One number for several heads; NaN if none of them has one.

    >>> over_heads("max_logit", np.array([1.0, 9.0, 2.0])), over_heads("entropy_ratio", np.array([0.9, 0.1, 0.8]))
    (9.0, 0.8)
    """
    known = values[~np.isnan(values)]
    if not known.size:
        return float("nan")
    statistic = np.max if metric in _HIGHEST else np.min if metric in _LOWEST else np.median
    return float(statistic(known))


def trainer_callback(
    sinks: Sinks = DEFAULT,
    every: int = 1,
    rows: int | None = None,
    heads: bool = False,
    clip_tau: float | None = None,
    parallel: Parallel | None = "data",
) -> TrainerCallback:
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


def _for_transformers(log: TrainingLog) -> TrainerCallback:
    base = needed("trainer_callback", "transformers", "transformers", "TrainerCallback")
    return type("AttentionCallback", (_TransformersEvents, base), {})(log)


class _Events:
    """What both trainers do with a log; it is `training_log` because Lightning sets `log` to a function of its own."""

    def __init__(self, log: TrainingLog) -> None:
        self.training_log = log

    def on_train_end(self, *_: Any, **__: Any) -> None:
        self.training_log.close()


class _TransformersEvents(_Events):
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


def lightning_callback(
    sinks: Sinks = DEFAULT,
    every: int = 1,
    rows: int | None = None,
    heads: bool = False,
    clip_tau: float | None = None,
    part: str = "",
    parallel: Parallel | None = "data",
) -> Callback:
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


def _for_lightning(log: TrainingLog, part: str) -> Callback:
    base = needed("lightning_callback", "lightning.pytorch", "lightning", "Callback")
    return type("AttentionCallback", (_LightningEvents, base), {})(log, part)


class _LightningEvents(_Events):
    def __init__(self, log: TrainingLog, part: str) -> None:
        super().__init__(log)
        self.part, self._done = part, 0

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

    def on_exception(self, *_: Any) -> None:
        self.training_log.close()
