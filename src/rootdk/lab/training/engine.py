"""What an engine is: it takes runs that are to be done and tells, as it happens, what comes of them."""

import errno
import os
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol

from rootdk.errors import ArgumentError, RootdkError
from rootdk.scaling import ScaleRule, register

from .run import Run, RunSpec


@dataclass(frozen=True, slots=True)
class Task:
    """A run to be done, the file for its state while it lasts, and its rule if that is a registered one."""

    spec: RunSpec
    keep: Path
    rule: ScaleRule | None = None


@dataclass(frozen=True, slots=True)
class Advanced:
    """A run has come to this step."""

    spec: RunSpec
    step: int


@dataclass(frozen=True, slots=True)
class Finished:
    """A run is done."""

    run: Run


@dataclass(frozen=True, slots=True)
class Failed:
    """A run will not be done. no_space: nothing can be written any more, so no other run has a chance either."""

    spec: RunSpec
    reason: str
    no_space: bool = False


@dataclass(frozen=True, slots=True)
class Again:
    """The process that did this run is gone; another goes on from the state that was kept."""

    spec: RunSpec
    reason: str


Event = Advanced | Finished | Failed | Again


class Trainer(Protocol):
    """What does one run; `rootdk.lab.training.train.train` is one."""

    def __call__(self, spec: RunSpec, *, keep: Path | None, progress: Callable[[int], None]) -> Run:
        """Train; keep is for the state, progress is told the number of steps that are done."""
        ...


class Engine(Protocol):
    """Where runs are done. Closing the iterator ends what is under way; its state is kept."""

    def __call__(self, tasks: Sequence[Task]) -> Iterator[Event]:
        """Do the tasks and tell of it. Every task ends in a Finished or a Failed."""
        ...


# Before torch or a BLAS is loaded: a process of a sweep has one core, and its neighbours have the others.
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")


def train_on_one_core(spec: RunSpec, *, keep: Path | None, progress: Callable[[int], None]) -> Run:
    """`train` with one thread, wherever it runs: the number of threads has a part in the last digits."""
    os.environ.update(ONE_THREAD)
    import torch

    from rootdk.attention import set_num_threads

    from .train import train

    torch.set_num_threads(1)
    set_num_threads(1)
    return train(spec, keep=keep, progress=progress)


def attempt(trainer: Trainer, task: Task, progress: Callable[[int], None]) -> Finished | Failed:
    """One run, with whatever goes wrong in it as a Failed.

    A state that cannot be used must not stop its run for ever: what fails when it goes on is tried once from the start.
    """
    went_on = task.keep.exists()
    try:
        if task.rule is not None:
            register(task.rule)
        return Finished(trainer(task.spec, keep=task.keep, progress=progress))
    except (BrokenPipeError, ConnectionResetError):
        raise  # nobody listens any more
    except Exception as error:  # noqa: BLE001 -- one run's error is not the end of the others
        no_space = isinstance(error, OSError) and error.errno in {errno.ENOSPC, errno.EDQUOT, errno.EROFS}
        if went_on and not no_space:
            task.keep.unlink(missing_ok=True)
            return attempt(trainer, task, progress)
        return Failed(task.spec, _in_one_line(error), no_space)


def now_and_then(notify: Callable[[int], None], last: int, seconds: float) -> Callable[[int], None]:
    """Passes the first step on at once, the last one in any case, and between them one every so many seconds."""
    latest = 0.0

    def progress(step: int) -> None:
        nonlocal latest
        now = time.monotonic()
        if now - latest >= seconds or step >= last:
            latest = now
            notify(step)

    return progress


def check_workers(workers: int | None) -> None:
    """How many runs at a time; None leaves it to the engine."""
    if workers is not None and workers < 1:
        raise ArgumentError(f"workers: must be at least 1, got {workers}")


def _in_one_line(error: Exception) -> str:
    where = traceback.extract_tb(error.__traceback__)[-1]
    words = " ".join(str(error).split())
    return f"{type(error).__name__}: {words} ({Path(where.filename).name}, line {where.lineno})"


def title(spec: RunSpec) -> str:
    """A run in a few words, with what is not as usual at the end.

    >>> title(RunSpec(rule="none", d_k=512, seed=3, optimizer="sgd"))
    'recall none d_k=512 rate=0.001 seed=3 optimizer=sgd'
    """
    usual, plain = RunSpec().to_dict(), spec.to_dict()
    named = f"{spec.task} {spec.rule} d_k={spec.d_k} rate={spec.learning_rate:g} seed={spec.seed}"
    rest = ("optimizer", "qk_rate", "qk_size", "layers", "width", "heads")
    return " ".join([named, *(f"{name}={plain[name]}" for name in rest if plain[name] != usual[name])])


class TrainingMissingError(RootdkError, ImportError):
    """A package that a run or an engine needs is not installed; the message names the extra that brings it."""


def check_installed(specs: Iterable[RunSpec]) -> None:
    """An error that says what to install, before anything runs: torch, and scikit-learn where digits are learned."""
    _need("training", "torch", "torch", "train")
    if any(spec.task == "digits" for spec in specs):
        _need("digits", "sklearn", "scikit-learn", "train")


def check_ray() -> None:
    """The same for the engine that runs on a cluster."""
    _need("engine ray", "ray", "ray", "dist")


def _need(what: str, module: str, package: str, extra: str) -> None:
    try:
        module_spec = find_spec(module)
    except ValueError:  # a module that was loaded by other means than a file
        module_spec = None
    if module_spec is None:
        raise TrainingMissingError(
            f"{what}: needs {package}, which is not installed; get it with: pip install 'rootdk[{extra}]'"
        )
