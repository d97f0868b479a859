"""Runs on this machine: as many processes as there are cores, each with one thread and one run at a time."""

import contextlib
import multiprocessing as mp
import os
import pickle
import signal
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.resource_tracker import ensure_running
from typing import Any

from rootdk.errors import ArgumentError
from rootdk.processes import holding_ctrl_c, standing_elsewhere

from .engine import (
    ONE_THREAD,
    Advanced,
    Again,
    Event,
    Failed,
    Task,
    Trainer,
    attempt,
    check_workers,
    now_and_then,
    train_on_one_core,
)
from .run import RunSpec

_SECONDS_BETWEEN_WORDS = 0.2
_SECONDS_TO_END = 0.7


class LocalEngine:
    """`workers` processes, by default one for each core that this process may use.

    A process that dies costs its unfinished run, which another takes up from the kept state. If that one dies too, the
    run is the likely cause, and is given up.
    """

    def __init__(self, workers: int | None = None, trainer: Trainer = train_on_one_core) -> None:
        check_workers(workers)
        self.workers = workers or cores()
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
                        yield self._gone(task, worker.end(), waiting, died)
                        if waiting:
                            workers.append(_Worker(self.trainer))
                            workers[-1].give(waiting.popleft())
                        continue
                    yield event
                    # Not before: whoever takes the event may end the sweep, as on a full disk.
                    if not isinstance(event, Advanced) and waiting:
                        worker.give(waiting.popleft())
        finally:
            for worker in workers:
                worker.stop()
            latest = time.monotonic() + _SECONDS_TO_END  # for all of them together: somebody waits who pressed Ctrl-C
            for worker in workers:
                worker.end(latest)

    @staticmethod
    def _gone(task: Task, how: str, waiting: deque[Task], died: set[Task]) -> Event:
        if task in died:
            return Failed(task.spec, f"its process {how}, twice")
        died.add(task)
        waiting.appendleft(task)
        return Again(task.spec, f"its process {how}")


def cores() -> int:
    """How many CPUs this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


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
            if self.process.pid is not None:  # nobody else knows of it yet
                self.process.kill()
            raise
        other.close()  # so that the pipe ends when the process does

    def give(self, task: Task) -> None:
        self.task = task
        with contextlib.suppress(OSError):  # a process that is gone already is noticed when it is read from
            self.connection.send(task)

    def receive(self) -> tuple[Task, Event | None]:
        """What it says about its task; None if it is gone."""
        assert self.task is not None  # noqa: S101 -- only the busy are waited for
        task = self.task
        try:
            event: Event = self.connection.recv()
        except (EOFError, OSError):
            return task, None
        if not isinstance(event, Advanced):
            self.task = None
        return task, event

    def stop(self) -> None:
        self.process.terminate()

    def end(self, latest: float | None = None) -> str:
        """Wait until it is gone, and say how it went."""
        self.process.join(_SECONDS_TO_END if latest is None else max(0.0, latest - time.monotonic()))
        if self.process.exitcode is None:
            self.process.kill()
            self.process.join()
        self.connection.close()
        code = self.process.exitcode or 0
        return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


@contextlib.contextmanager
def _in_its_environment() -> Iterator[None]:
    """One thread for what the new process loads, and no Ctrl-C: that is for this process, which then ends the others.

    The signal is held back here, not dropped, and comes through when the process is started.
    """
    before = {name: os.environ.get(name) for name in ONE_THREAD}
    masks = hasattr(signal, "pthread_sigmask")  # Windows has neither masks nor that helper
    if masks:
        with standing_elsewhere():
            ensure_running()  # multiprocessing's own helper, whose start would let the signal through again
    # A mask is of one thread, and another may get the signal: so it is held as well.
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
    """What a process does: runs, until nobody is at the other end or it is asked to stop."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # An exit and not the signal's own end, so that a file that is half written is cleaned away.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while True:
            task: Task = line.recv()

            def notify(step: int, spec: RunSpec = task.spec) -> None:
                line.send(Advanced(spec, step))

            line.send(attempt(trainer, task, now_and_then(notify, task.spec.steps, _SECONDS_BETWEEN_WORDS)))
