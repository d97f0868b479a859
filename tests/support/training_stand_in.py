"""A trainer that learns nothing and takes no time, with the contract of the real one: state, progress, equal numbers.

A few seeds misbehave, so that a sweep can be seen to bear it. Where TRAINING_STAND_IN names a folder, each step that is
taken is noted there, one file per run: what a test reads to see what was run, how often and from where.
"""

import json
import math
import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from rootdk.errors import RootdkError
from rootdk.files import write_atomically
from rootdk.lab.training import Layer, Moment, Run, RunSpec

RAISES, DIES_ONCE, DIES_ALWAYS, DISK_IS_FULL, SLOW = 101, 102, 103, 104, 105


def train(spec: RunSpec, *, keep: Path | None = None, progress: Callable[[int], None] = lambda _step: None) -> Run:
    step = json.loads(keep.read_text())["step"] if keep is not None and keep.exists() else 0
    while step < spec.steps:
        step += 1
        note(spec, step)
        if spec.seed == SLOW:
            time.sleep(0.03)
        if keep is not None:
            write_atomically(keep, json.dumps({"step": step}))
        if step == spec.steps // 2:
            misbehave(spec)
        progress(step)
    return invented(spec)


def misbehave(spec: RunSpec) -> None:
    if spec.seed == RAISES:
        raise RootdkError("seed: nobody likes this one")
    if spec.seed == DISK_IS_FULL:
        raise OSError(28, "No space left on device")
    if spec.seed == DIES_ALWAYS or (spec.seed == DIES_ONCE and len(set(noted(spec, 0))) == 1):
        os.kill(os.getpid(), signal.SIGKILL)


def note(spec: RunSpec, step: int) -> None:
    if place := os.environ.get("TRAINING_STAND_IN"):
        with (Path(place) / f"{spec.rule}-{spec.d_k}-{spec.seed}").open("a") as file:
            file.write(f"{os.getpid()} {step}\n")


def noted(spec: RunSpec, column: int) -> list[int]:
    """Of every step that was taken: the process that took it (0), or its number (1)."""
    file = Path(os.environ["TRAINING_STAND_IN"]) / f"{spec.rule}-{spec.d_k}-{spec.seed}"
    return [int(line.split()[column]) for line in file.read_text().splitlines()] if file.exists() else []


def invented(spec: RunSpec) -> Run:
    """Curves of the shape of real ones: slower without a scale, more so for larger d_k; too fast a rate diverges."""
    rng = np.random.default_rng([spec.seed, spec.d_k])
    size = {"none": spec.d_k**0.5, "dk": spec.d_k**-0.5}.get(spec.rule, 1.0)
    pace = spec.learning_rate * 10 / (1 + 0.1 * abs(math.log(size)) * spec.d_k**0.5)
    end = spec.steps // 2 if spec.learning_rate * size > 0.05 else spec.steps
    looks = sorted({round(end * part / 10) for part in range(11)})
    wobble = 1 + 0.05 * rng.standard_normal()
    moments = []
    for step in looks:
        loss: float | None = wobble * (0.1 + 3.4 * math.exp(-pace * step))
        if end < spec.steps and step == end:
            loss = None
        std = size * (1 + 0.01 * step)
        dot = spec.rule != "additive"
        layers = tuple(
            Layer(0.9 / (1 + 0.05 * std), 0.01, 0.8, std if dot else None, 4 * std if dot else None, 0.1, 0.1)
            for _ in range(spec.layers)
        )
        accuracy = None if loss is None else math.exp(-loss)
        moments.append(Moment(step, None if step == 0 else loss, loss, accuracy, loss, accuracy, layers))
    transplant = tuple((kappa, 0.1 + math.log(kappa) ** 2, 8 * kappa) for kappa in spec.transplant)
    return Run(spec, tuple(moments), "diverged" if end < spec.steps else "budget", 0, transplant, 0.5)


def runs(specs: Sequence[RunSpec]) -> tuple[Run, ...]:
    return tuple(invented(spec) for spec in specs)


def hears_ctrl_c() -> None:
    """For the start of a process: whoever runs the tests in the background has made them deaf to it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
