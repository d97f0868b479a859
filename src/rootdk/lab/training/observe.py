"""Looking at a model between two steps, without changing it: loss, accuracy, readings, gradients."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from rootdk.lab.training.run import Layer, Moment
from rootdk.reading import Reading

from .model import projections
from .tasks import IGNORED, Batch, Task

_FEWEST_KEYS = 8


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
    layers = (Layer(*map(finite, (*seen, *norms))) for seen, norms in zip(spread, gradients, strict=True))
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
    seen = np.array(spread)
    means = seen.mean(axis=0)
    means[:, -1] = seen[..., -1].max(axis=0)
    return float(np.mean(losses)), float(np.mean(right)), means


@contextmanager
def _measuring(model: Any) -> Iterator[None]:
    """Attention that keeps its Reading, inside the block."""
    some = [block.attention for block in model.blocks]
    for one in some:
        one.measure = True
    try:
        yield
    finally:
        for one in some:
            one.measure, one.last_reading = False, None


def _spread(reading: Reading) -> tuple[float, ...]:
    """entropy / ln n, share saturated, median tr J, std and largest |logit|; rows of few keys are sharp by nature."""
    heads = reading.by_head(min_keys=_FEWEST_KEYS)
    seen = (heads.mean_entropy_ratio, heads.saturated, heads.median_jacobian_trace, heads.mean_std)
    largest = np.maximum(np.abs(heads.max_logit), np.abs(heads.min_logit))
    return (*(float(np.mean(one)) for one in seen), float(largest.max()))


def _gradients(model: Any, task: Task, batch: Batch) -> list[tuple[float, float]]:
    weights = [weight for block in model.blocks for weight in projections(block)]
    found = torch.autograd.grad(loss_of(model, task, batch), weights)
    norms = [float(one.norm()) for one in found]
    return list(zip(norms[::2], norms[1::2], strict=True))


def finite(value: float | None) -> float | None:
    """Six digits, or None for what is not a number: JSON knows no other word."""
    return float(f"{value:.6g}") if value is not None and math.isfinite(value) else None
