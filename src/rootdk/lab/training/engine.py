"""What an engine is: it takes runs that are to be done and reports events while it does them.

LocalEngine makes runs on this machine: as many processes as there are cores, each with one thread and one run at a
time. ray_engine.py has the one for a cluster.
"""

import contextlib
import errno
import multiprocessing as mp
import os
import pickle
import signal
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from multiprocessing.connection import Connection, wait
from multiprocessing.resource_tracker import ensure_running
from pathlib import Path
from typing import Any

from rootdk.errors import ArgumentError, RootdkError
from rootdk.processes import cpus_allowed, holding_ctrl_c, standing_elsewhere
from rootdk.scaling import ScaleRule, register

from .run import Run, RunSpec


@dataclass(frozen=True, slots=True)
class Task:
    """A run to be done, the file for its state while it lasts, if any, and its rule if that is a registered one."""

    spec: RunSpec
    keep: Path | None
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
    """A run will not be done. no_space: nothing can be written any more, so other runs would fail too."""

    spec: RunSpec
    reason: str
    no_space: bool = False


@dataclass(frozen=True, slots=True)
class Again:
    """The process that did this run has ended; another continues from the kept state."""

    spec: RunSpec
    reason: str


Event = Advanced | Finished | Failed | Again


# Does one run: called as `rootdk.lab.training.train.train` is.
Trainer = Callable[..., Run]
# Does runs: every task ends in a Finished or a Failed. Closing the iterator ends what is not done; its state is kept.
Engine = Callable[[Sequence[Task]], Iterator[Event]]

# Before torch or a BLAS is loaded: a process of a sweep has one core, and its neighbours have the others.
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")


def train_on_one_core(spec: RunSpec, *, keep: Path | None, progress: Callable[[int], None]) -> Run:
    """`train` with one thread, wherever it runs: the number of threads changes the last digits."""
    os.environ.update(ONE_THREAD)
    import torch

    from rootdk.attention import set_num_threads

    from .train import train

    torch.set_num_threads(1)
    set_num_threads(1)
    return train(spec, keep=keep, progress=progress)


def attempt(trainer: Trainer, task: Task, progress: Callable[[int], None]) -> Finished | Failed:
    """One run, with whatever goes wrong in it as a Failed.

    A damaged state must not stop its run for ever: a run that fails when it continues is tried once from the start.
    """
    state = task.keep if task.keep is not None and task.keep.exists() else None
    try:
        if task.rule is not None:
            register(task.rule)
        return Finished(trainer(task.spec, keep=task.keep, progress=progress))
    except (BrokenPipeError, ConnectionResetError):
        raise  # the other end is closed
    except Exception as error:  # noqa: BLE001 -- one run's error is not the end of the others
        no_space = isinstance(error, OSError) and error.errno in {errno.ENOSPC, errno.EDQUOT, errno.EROFS}
        if state is not None and not no_space:
            state.unlink(missing_ok=True)
            return attempt(trainer, task, progress)
        where = traceback.extract_tb(error.__traceback__)[-1]
        words = " ".join(str(error).split())
        reason = f"{type(error).__name__}: {words} ({Path(where.filename).name}, line {where.lineno})"
        return Failed(task.spec, reason, no_space)


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


def title(spec: RunSpec) -> str:
    """A run in a few words, with its unusual settings at the end.

    >>> title(RunSpec(rule="none", d_k=512, seed=3, optimizer="sgd"))
    'recall none d_k=512 rate=0.001 seed=3 optimizer=sgd'
    """
    usual, plain = RunSpec().to_dict(), spec.to_dict()
    named = f"{spec.task} {spec.rule} d_k={spec.d_k} rate={spec.learning_rate:g} seed={spec.seed}"
    rest = ("optimizer", "qk_rate", "qk_size", "layers", "width", "heads")
    return " ".join([named, *(f"{name}={plain[name]}" for name in rest if plain[name] != usual[name])])


class TrainingMissingError(RootdkError, ImportError):
    """A package that a run or an engine needs is not installed; the message names the extra that contains it."""


def check_installed(specs: Iterable[RunSpec]) -> None:
    """An error that says what to install, before anything runs: torch, and scikit-learn where digits are learned."""
    _need("training", "torch", "torch", "train")
    if any(spec.task == "digits" for spec in specs):
        _need("digits", "sklearn", "scikit-learn", "train")


def check_ray() -> None:
    """The same for the engine that runs on a cluster."""
    _need("engine ray", "ray", "ray", "dist")


def _need(what: str, module: str, package: str, extra: str) -> None:
    if find_spec(module) is None:
        raise TrainingMissingError(
            f"{what}: needs {package}, which is not installed; get it with: pip install 'rootdk[{extra}]'"
        )


_SECONDS_BETWEEN_WORDS = 0.2
_SECONDS_TO_END = 0.7


class LocalEngine:
    """`workers` processes, by default one for each core that this process may use.

    If a process dies, another continues its unfinished run from the kept state. If that one dies too, the run is the
    likely cause, and is given up.
    """

    def __init__(self, workers: int | None = None, trainer: Trainer = train_on_one_core) -> None:
        check_workers(workers)
        self.workers = workers or cpus_allowed()
        self.trainer = trainer

    def __call__(self, tasks: Sequence[Task]) -> Iterator[Event]:
        """Events as they come; tasks begin in their order."""
        for rule in {task.rule.name: task.rule for task in tasks if task.rule is not None}.values():
            try:
                pickle.dumps(rule)
            except Exception as error:
                raise ArgumentError(
                    f"rule: {rule.name!r} must go to other processes: make its factor a function of a module; {error}"
                ) from error
        waiting, died, workers = deque(tasks), set[Task](), list[_Worker]()
        try:
            for _ in range(min(self.workers, len(tasks))):
                workers.append(_Worker(self.trainer))
                workers[-1].give(waiting.popleft())
            while busy := [worker for worker in workers if worker.task]:
                for ready in wait([worker.connection for worker in busy]):
                    worker = next(worker for worker in busy if worker.connection is ready)
                    task, event = worker.receive()
                    if event is None:
                        workers.remove(worker)
                        how = f"its process {worker.end()}"
                        if task in died:
                            yield Failed(task.spec, f"{how}, twice")
                        else:
                            died.add(task)
                            waiting.appendleft(task)
                            yield Again(task.spec, how)
                        if waiting:
                            workers.append(_Worker(self.trainer))
                            workers[-1].give(waiting.popleft())
                        continue
                    yield event
                    # Not before: the receiver of the event may end the sweep, as on a full disk.
                    if not isinstance(event, Advanced) and waiting:
                        worker.give(waiting.popleft())
        finally:
            for worker in workers:
                worker.process.terminate()
            latest = time.monotonic() + _SECONDS_TO_END  # for all together: who pressed Ctrl-C is waiting
            for worker in workers:
                worker.end(latest)


class _Worker:
    """A process and the pipe to it. Processes are spawned: torch's threads do not survive a fork."""

    def __init__(self, trainer: Trainer) -> None:
        context = mp.get_context("spawn")
        self.task: Task | None = None
        self.connection, other = context.Pipe()
        self.process = context.Process(target=_work, args=(other, trainer), daemon=True)
        try:
            with _in_its_environment():
                self.process.start()
        except BaseException:
            if self.process.pid is not None:  # it is registered nowhere else yet
                self.process.kill()
            raise
        other.close()  # so that the pipe ends when the process does

    def give(self, task: Task) -> None:
        self.task = task
        with contextlib.suppress(OSError):  # a process that is gone already is noticed when it is read from
            self.connection.send(task)

    def receive(self) -> tuple[Task, Event | None]:
        """Its task and the event that it sent; None for the event if the process has ended."""
        assert self.task is not None  # noqa: S101 -- only the busy are waited for
        task = self.task
        try:
            event: Event = self.connection.recv()
        except (EOFError, OSError):
            return task, None
        if not isinstance(event, Advanced):
            self.task = None
        return task, event

    def end(self, latest: float | None = None) -> str:
        """Wait until the process has ended, and return how it ended."""
        self.process.join(_SECONDS_TO_END if latest is None else max(0.0, latest - time.monotonic()))
        if self.process.exitcode is None:
            self.process.kill()
            self.process.join()
        self.connection.close()
        code = self.process.exitcode or 0
        return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


@contextlib.contextmanager
def _in_its_environment() -> Iterator[None]:
    """One thread for what the new process loads, and no Ctrl-C there: this process gets it, and then ends the others.

    The signal is delayed here, not lost, and arrives when the process is started.
    """
    before = {name: os.environ.get(name) for name in ONE_THREAD}
    masks = hasattr(signal, "pthread_sigmask")  # Windows has neither masks nor that helper
    if masks:
        with standing_elsewhere():
            ensure_running()  # multiprocessing's own helper, whose start would let the signal through again
    # A mask is for one thread, and another may get the signal: so that is delayed as well.
    with holding_ctrl_c(), standing_elsewhere():
        # Which the new process inherits.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT}) if masks else set()
        os.environ.update(ONE_THREAD)
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value
            if masks:
                signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _work(line: "Connection[Any, Any]", trainer: Trainer) -> None:
    """What a process does: runs, until the other end is closed or it is asked to stop."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Exit instead of the signal's default, so that half-written files are removed.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while True:
            task: Task = line.recv()

            def notify(step: int, spec: RunSpec = task.spec) -> None:
                line.send(Advanced(spec, step))

            line.send(attempt(trainer, task, now_and_then(notify, task.spec.steps, _SECONDS_BETWEEN_WORDS)))
