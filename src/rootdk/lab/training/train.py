"""One run: spec in, what it recorded out. It can be interrupted at any time and goes on where it was."""

import io
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from rootdk.files import write_atomically
from rootdk.lab.training.run import Run
from rootdk.lab.training.spec import RunSpec

from .model import Transformer, projections
from .observe import look, loss_of, transplanted
from .tasks import Task, task_named

MOMENTS = 20  # how often a run is looked at, next to its start
_SECONDS_BETWEEN_STATES = 5.0


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
