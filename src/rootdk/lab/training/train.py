"""One run: from a spec to its record. It can be interrupted at any time and continues where it was.

Between two steps the model is measured, without changing it: loss, accuracy, readings, gradients.
"""

import io
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from rootdk.files import write_atomically
from rootdk.reading import Reading

from .model import IGNORED, TEST, VALID, Batch, Task, Transformer, projections, task_named
from .run import DIVERGED, Layer, Moment, Run, RunSpec

_INSIDE = 3  # layers are looked at in every third look
_SECONDS_BETWEEN_STATES = 5.0
_LEARNED, _IN_A_ROW = 0.99, 3
_FLAT, _FEWEST_STEPS = 0.99, 100
_BEFORE, _SPIKE = 50, 6.0  # a spike is so many standard deviations above the mean of so many steps before it
_FEWEST_KEYS = 8  # rows of fewer are sharp by nature, and are left out


def train(spec: RunSpec, *, keep: Path | None = None, progress: Callable[[int], None] = lambda _step: None) -> Run:
    """Train one model. The same spec gives the same numbers on one machine, whether or not it was interrupted.

    keep      a file for the state of the run, written every few seconds and read when it is there
    progress  is called with the number of steps that are done

    >>> run = train(RunSpec(task="digits", d_k=8, steps=2, width=16))
    >>> [moment.step for moment in run.moments], run.end
    ([0, 1, 2], 'budget')
    """
    task, start = task_named(spec.task), time.perf_counter()
    model, optimizer = _begin(spec, task)
    held_out = {part: task.held_out(part) for part in (VALID, TEST)}
    looks = looks_of(spec.steps)
    step, moments, losses, recent, spikes, spent, end = 0, list[Moment](), list[float](), list[float](), 0, 0.0, ""
    if keep is not None and keep.exists():
        state = torch.load(keep, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        step, losses, recent, spent = state["step"], state["losses"], state["recent"], state["seconds"]
        run = Run.from_dict(state["run"])
        moments, spikes = list(run.moments), run.spikes
    else:
        moments.append(look(model, task, 0, None, held_out))
    rates = [group["lr"] for group in _groups(spec, model)]
    written = time.perf_counter()
    while not end:
        loss = loss_of(model, task, task.batch(spec.seed, step))
        optimizer.zero_grad()
        loss.backward()
        _take_step(spec, optimizer, rates, step)
        step += 1
        losses.append(loss.item())
        spikes += is_spike(losses[-1], recent)
        recent = [*recent[1 - _BEFORE :], losses[-1]]
        if not math.isfinite(losses[-1]):
            end = DIVERGED
        if step in looks or end:
            inside = len(moments) % _INSIDE == 0
            moments.append(look(model, task, step, sum(losses) / len(losses), held_out, inside))
            losses = []
            end = end or ended(spec, moments)
            if end and not inside:
                moments[-1] = replace(moments[-1], layers=look(model, task, step, None, held_out).layers)
        progress(step)
        # A run that has diverged is over: it must not continue from its state.
        if keep is not None and not end and time.perf_counter() - written > _SECONDS_BETWEEN_STATES:
            state = {
                "model": model.state_dict(),
                "optimizer": optimizer.state_dict(),
                "run": Run(spec, tuple(moments), spikes=spikes).to_dict(),
                "step": step,
                "losses": losses,
                "recent": recent,
                "seconds": spent + time.perf_counter() - start,
            }
            torch.save(state, packed := io.BytesIO())
            write_atomically(keep, packed.getvalue())
            written = time.perf_counter()
    curve = tuple(transplanted(model, task, kappa, held_out[TEST]) for kappa in spec.transplant)
    return Run(spec, tuple(moments), end, spikes, curve, spent + time.perf_counter() - start)


def looks_of(steps: int) -> list[int]:
    """The steps at which a run is looked at: the first, the last, and between them each a tenth after the one before.

    At least two steps lie between two looks after the first, and at least a hundredth of all.

    >>> looks_of(12), looks_of(2000)[-3:]
    ([0, 1, 2, 4, 6, 8, 10, 12], [1763, 1939, 2000])
    """
    looks, step, least = [0], 0, max(1, steps // 100)
    while step < steps:
        step = min(steps, step + max(least, step // 10, 1 if step < 2 else 2))
        looks.append(step)
    return looks


def ended(spec: RunSpec, moments: Sequence[Moment]) -> str:
    """Why a run ends here: a word of `RunSpec.stop`; empty if it goes on."""
    last = moments[-1]
    if spec.stop == "learned":
        right = [moment.valid_accuracy or 0.0 for moment in moments[-_IN_A_ROW:]]
        if len(right) == _IN_A_ROW and min(right) >= _LEARNED:
            return "learned"
    if spec.stop == "flat" and last.step >= _FEWEST_STEPS:
        half = [known for moment in moments if moment.step <= last.step / 2 if (known := moment.valid_loss) is not None]
        rest = [known for moment in moments if moment.step > last.step / 2 if (known := moment.valid_loss) is not None]
        if half and (not rest or min(rest) > _FLAT * min(half)):
            return "flat"
    return "budget" if last.step >= spec.steps else ""


def is_spike(loss: float, recent: Sequence[float]) -> bool:
    """Whether a training loss stands out of the 50 before it: 6 standard deviations above their mean."""
    if len(recent) < _BEFORE or not np.isfinite(recent).all():
        return False
    return not loss <= float(np.mean(recent)) + _SPIKE * float(np.std(recent))


def _take_step(spec: RunSpec, optimizer: torch.optim.Optimizer, rates: Sequence[float], step: int) -> None:
    warm = min(1.0, (step + 1) / spec.warmup) if spec.warmup else 1.0
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = warm * rate
    if spec.qk_gradient != 1.0:
        for weight in optimizer.param_groups[1]["params"]:
            weight.grad.mul_(spec.qk_gradient)
    optimizer.step()


def _begin(spec: RunSpec, task: Task) -> tuple[Transformer, torch.optim.Optimizer]:
    # The generator of the process, restored afterwards: initialisers of torch use no other.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(spec.seed)
        model = Transformer(spec, task.embedding(spec.width), task.length, task.classes, task.causal)
    groups = _groups(spec, model)
    if spec.optimizer == "adam":
        return model, torch.optim.Adam(groups, lr=spec.learning_rate, fused=True)
    return model, torch.optim.SGD(groups, lr=spec.learning_rate, momentum=0.9)


def _groups(spec: RunSpec, model: Transformer) -> list[dict[str, Any]]:
    """The weights and their learning rates: W_q and W_k are the second group."""
    qk_weights = [weight for block in model.blocks for weight in projections(block)]
    ids = {id(weight) for weight in qk_weights}
    rest = [weight for weight in model.parameters() if id(weight) not in ids]
    rate = spec.learning_rate
    return [{"params": rest, "lr": rate}, {"params": qk_weights, "lr": rate * spec.qk_rate}]


def answers(model: nn.Module, task: Task, batch: Batch) -> tuple[Tensor, Tensor]:
    """Logits (count, classes) and targets (count,) of a batch."""
    inputs, targets = batch
    logits = model(inputs)
    return (logits.mean(dim=1), targets) if task.pooled else (logits.flatten(0, 1), targets.flatten())


def loss_of(model: nn.Module, task: Task, batch: Batch) -> Tensor:
    """The mean cross-entropy over the places that have a target."""
    logits, targets = answers(model, task, batch)
    return nn.functional.cross_entropy(logits, targets, ignore_index=IGNORED)


def look(
    model: Any,
    task: Task,
    step: int,
    train_loss: float | None,
    held_out: Mapping[str, Sequence[Batch]],
    inside: bool = True,
) -> Moment:
    """One Moment, with its layers if inside. Gradients are of the first batch that is held out, and are discarded."""
    valid_loss, valid_accuracy, _ = _judge(model, task, held_out[VALID])
    with _measuring(model) if inside else nullcontext():
        loss, accuracy, spread = _judge(model, task, held_out[TEST])
    layers = []
    if inside:
        inputs, targets = held_out[TEST][0]
        loss_of_batch = loss_of(model, task, (inputs[: task.batch_size], targets[: task.batch_size]))
        weights = [weight for block in model.blocks for weight in projections(block)]
        norms = [float(gradient.norm()) for gradient in torch.autograd.grad(loss_of_batch, weights)]
        for numbers, query_norm, key_norm in zip(spread, norms[::2], norms[1::2], strict=True):
            layers.append(Layer(*(finite(value, 3) for value in (*numbers, query_norm, key_norm))))
    return Moment(step, finite(train_loss), loss, accuracy, valid_loss, valid_accuracy, tuple(layers))


def transplanted(
    model: Any, task: Task, kappa: float, held_out: Sequence[Batch]
) -> tuple[float, float | None, float | None]:
    """(kappa, loss, largest |logit| of any layer) with queries and keys replaced by sqrt(kappa) x/rms(x)."""
    for block in model.blocks:
        block.attention.kappa = kappa
    try:
        with _measuring(model):
            loss, _, spread = _judge(model, task, held_out)
    finally:
        for block in model.blocks:
            block.attention.kappa = None
    return kappa, loss, finite(float(spread[:, -1].max()))


def _judge(model: Any, task: Task, held_out: Sequence[Batch]) -> tuple[float | None, float | None, NDArray[np.float64]]:
    """Loss and accuracy over all batches, and per layer that is measured what `_spread` gives, averaged over them.

    For the largest logit it is the maximum.
    """
    losses, right, spread = [], [], []
    with torch.no_grad():
        for batch in held_out:
            logits, targets = answers(model, task, batch)
            losses.append(nn.functional.cross_entropy(logits, targets, ignore_index=IGNORED).item())
            right.append((logits.argmax(-1) == targets)[targets != IGNORED].float().mean().item())
            readings = [block.attention.last_reading for block in model.blocks]
            spread.append([_spread(reading) for reading in readings if reading is not None])
    by_batch = np.array(spread)
    means = by_batch.mean(axis=0)
    if len(means):
        means[:, -1] = by_batch[..., -1].max(axis=0)
    return finite(float(np.mean(losses))), finite(float(np.mean(right))), means


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


def finite(value: float | None, digits: int = 5) -> float | None:
    """So many digits, or None for what is not a number: JSON has nothing else for it."""
    return float(f"{value:.{digits}g}") if value is not None and math.isfinite(value) else None
