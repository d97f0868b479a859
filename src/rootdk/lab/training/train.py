"""One run: spec in, what it recorded out. It can be interrupted at any time and goes on where it was.

Between two steps the model is looked at, without changing it: loss, accuracy, readings, gradients.
"""

import io
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from rootdk.files import write_atomically
from rootdk.reading import Reading

from .model import Transformer, projections
from .run import Layer, Moment, Run, RunSpec
from .tasks import IGNORED, Batch, Task, task_named

MOMENTS = 20  # how often a run is looked at, next to its start
_SECONDS_BETWEEN_STATES = 5.0
_FEWEST_KEYS = 8  # rows of fewer are sharp by nature, and are not looked at


def train(spec: RunSpec, *, keep: Path | None = None, progress: Callable[[int], None] = lambda _step: None) -> Run:
    """Train one model. The same spec gives the same numbers on one machine, whether or not it was interrupted.

    keep      a file for the state of the run, written every few seconds and read when it is there
    progress  is called with the number of steps that are done

    >>> run = train(RunSpec(task="digits", d_k=8, steps=2, width=16))
    >>> [moment.step for moment in run.moments]
    [0, 1, 2]
    """
    task, start = task_named(spec.task), time.perf_counter()
    model, optimizer = _begin(spec, task)
    held_out = task.held_out()
    looks = sorted({round(spec.steps * part / MOMENTS) for part in range(MOMENTS + 1)})
    step, moments, losses, spent, diverged = 0, [], [], 0.0, False
    kept = _read(keep)
    if kept is not None:
        model.load_state_dict(kept["model"])
        optimizer.load_state_dict(kept["optimizer"])
        step, losses, spent = kept["step"], kept["losses"], kept["seconds"]
        moments = list(Run.from_dict(kept["run"]).moments)
    else:
        moments.append(look(model, task, 0, None, held_out))
    written = time.perf_counter()
    while step < spec.steps and not diverged:
        loss = loss_of(model, task, task.batch(spec.seed, step))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        losses.append(loss.item())
        diverged = not math.isfinite(losses[-1])
        if step in looks or diverged:
            moments.append(look(model, task, step, sum(losses) / len(losses), held_out))
            losses = []
        progress(step)
        # A run that has diverged is over: its state must not be gone on from.
        if keep is not None and not diverged and time.perf_counter() - written > _SECONDS_BETWEEN_STATES:
            run = Run(spec, tuple(moments))
            seconds = spent + time.perf_counter() - start
            _write(keep, model=model, optimizer=optimizer, step=step, losses=losses, seconds=seconds, run=run)
            written = time.perf_counter()
    curve = tuple(transplanted(model, task, kappa, held_out) for kappa in spec.transplant)
    return Run(spec, tuple(moments), diverged, curve, spent + time.perf_counter() - start)


def _begin(spec: RunSpec, task: Task) -> tuple[Transformer, torch.optim.Optimizer]:
    # A generator of the process, put back afterwards: initialisers of torch take no other.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(spec.seed)
        model = Transformer(spec, task.embedding(spec.width), task.length, task.classes, task.causal)
    own = [weight for block in model.blocks for weight in projections(block)]
    ids = {id(weight) for weight in own}
    groups = [
        {"params": [weight for weight in model.parameters() if id(weight) not in ids]},
        {"params": own, "lr": spec.learning_rate * spec.qk_rate},
    ]
    if spec.optimizer == "adam":
        return model, torch.optim.Adam(groups, lr=spec.learning_rate)
    return model, torch.optim.SGD(groups, lr=spec.learning_rate, momentum=0.9)


def _read(keep: Path | None) -> Any:
    if keep is None or not keep.exists():
        return None
    return torch.load(keep, weights_only=True)


def _write(keep: Path, *, model: nn.Module, optimizer: torch.optim.Optimizer, run: Run, **rest: Any) -> None:
    into = io.BytesIO()
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "run": run.to_dict(), **rest}
    torch.save(state, into)
    write_atomically(keep, into.getvalue())


def answers(model: nn.Module, task: Task, batch: Batch) -> tuple[Tensor, Tensor]:
    """Logits (count, classes) and targets (count,) of a batch."""
    inputs, targets = batch
    logits = model(inputs)
    return (logits.mean(dim=1), targets) if task.pooled else (logits.flatten(0, 1), targets.flatten())


def loss_of(model: nn.Module, task: Task, batch: Batch) -> Tensor:
    """The mean cross-entropy over the places that have a target."""
    logits, targets = answers(model, task, batch)
    return nn.functional.cross_entropy(logits, targets, ignore_index=IGNORED)


def look(model: Any, task: Task, step: int, train_loss: float | None, held_out: Sequence[Batch]) -> Moment:
    """One Moment. Gradients are those of the first sequences that are held out; they are taken and thrown away."""
    loss, accuracy, spread = _judge(model, task, held_out)
    inputs, targets = held_out[0]
    gradients = _gradients(model, task, (inputs[: task.batch_size], targets[: task.batch_size]))
    layers = (Layer(*map(finite, (*numbers, *norms))) for numbers, norms in zip(spread, gradients, strict=True))
    return Moment(step, finite(train_loss), finite(loss), finite(accuracy), tuple(layers))


def transplanted(
    model: Any, task: Task, kappa: float, held_out: Sequence[Batch]
) -> tuple[float, float | None, float | None]:
    """(kappa, loss, largest |logit| of any layer) with queries and keys replaced by sqrt(kappa) x/rms(x)."""
    for block in model.blocks:
        block.attention.kappa = kappa
    try:
        loss, _, spread = _judge(model, task, held_out)
    finally:
        for block in model.blocks:
            block.attention.kappa = None
    return kappa, finite(loss), finite(float(spread[:, -1].max()))


def _judge(model: Any, task: Task, held_out: Sequence[Batch]) -> tuple[float, float, NDArray[np.float64]]:
    """Loss and accuracy over all batches, and per layer what `_spread` gives: means, and the largest of the largest."""
    losses, right, spread = [], [], []
    with torch.no_grad(), _measuring(model):
        for batch in held_out:
            logits, targets = answers(model, task, batch)
            losses.append(nn.functional.cross_entropy(logits, targets, ignore_index=IGNORED).item())
            right.append((logits.argmax(-1) == targets)[targets != IGNORED].float().mean().item())
            spread.append([_spread(block.attention.last_reading) for block in model.blocks])
    by_batch = np.array(spread)
    means = by_batch.mean(axis=0)
    means[:, -1] = by_batch[..., -1].max(axis=0)
    return float(np.mean(losses)), float(np.mean(right)), means


@contextmanager
def _measuring(model: Any) -> Iterator[None]:
    """Attention that keeps its Reading, inside the block."""
    layers = [block.attention for block in model.blocks]
    for layer in layers:
        layer.measure = True
    try:
        yield
    finally:
        for layer in layers:
            layer.measure, layer.last_reading = False, None


def _spread(reading: Reading) -> tuple[float, ...]:
    """entropy / ln n, share saturated, median tr J, std and largest |logit|; rows of few keys are sharp by nature."""
    heads = reading.by_head(min_keys=_FEWEST_KEYS)
    by_head = (heads.mean_entropy_ratio, heads.saturated, heads.median_jacobian_trace, heads.mean_std)
    largest = np.maximum(np.abs(heads.max_logit), np.abs(heads.min_logit))
    return (*(float(np.mean(column)) for column in by_head), float(largest.max()))


def _gradients(model: Any, task: Task, batch: Batch) -> list[tuple[float, float]]:
    weights = [weight for block in model.blocks for weight in projections(block)]
    gradients = torch.autograd.grad(loss_of(model, task, batch), weights)
    norms = [float(gradient.norm()) for gradient in gradients]
    return list(zip(norms[::2], norms[1::2], strict=True))


def finite(value: float | None) -> float | None:
    """Six digits, or None for what is not a number: JSON knows no other word."""
    return float(f"{value:.6g}") if value is not None and math.isfinite(value) else None
