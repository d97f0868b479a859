"""Runs on a Ray cluster: each is a task for one CPU, wherever one is free.

The states of unfinished runs lie in the folder of runs, so a run that lost its worker goes on where it was if that
folder is one that all hosts share, and from its start if not. Finished runs come back to this process, which keeps
them.
"""

import contextlib
import ipaddress
import os
import secrets
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from rootdk import processes
from rootdk.errors import ArgumentError, RootdkError
from rootdk.processes import cpus_allowed, standing_elsewhere
from rootdk.scaling import ScaleRule

from .engine import (
    Advanced,
    Again,
    Event,
    Failed,
    Finished,
    Task,
    Trainer,
    attempt,
    check_ray,
    check_workers,
    now_and_then,
    train_on_one_core,
)
from .store import code

_SECONDS_BETWEEN_WORDS = 0.5
_SECONDS_TO_CONNECT = 5.0
_SECONDS_TO_ANSWER = 30.0
# Hosts of a cluster come and go, so one lost worker more than on one machine is no reason to blame the run.
_ATTEMPTS = 3
_MARK = "ROOTDK_RAY_CLUSTER"
_QUIET = {"log_to_driver": False, "logging_level": "ERROR"}
_PROBE = "import ray, sys; ray.init(sys.argv[1], log_to_driver=False, logging_level='ERROR')"


class ClusterError(RootdkError):
    """The cluster cannot be reached, or cannot do these runs."""


class RayEngine:
    """Runs as tasks of a cluster; without an address, of one on this machine that ends with the sweep.

    workers bounds how many run at a time. Without it the cluster decides.
    """

    def __init__(
        self, address: str | None = None, workers: int | None = None, trainer: Trainer = train_on_one_core
    ) -> None:
        check_ray()
        check_workers(workers)
        if address is not None:
            _check_answers(address)
        self.address, self.workers, self.trainer = address, workers, trainer

    def __call__(self, tasks: Sequence[Task]) -> Iterator[Event]:
        """Events as they come; tasks begin in their order."""
        if not tasks:
            return
        with _connected(self.address, self.workers) as ray:
            yield from self._events(ray, tasks)

    def _events(self, ray: Any, tasks: Sequence[Task]) -> Iterator[Event]:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        this_node = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=True)
        board = ray.remote(num_cpus=0, scheduling_strategy=this_node)(_Board).remote()
        # A lost worker is handled here, and not by Ray itself, so that it can be reported.
        remote = ray.remote(num_cpus=1, max_retries=0)(_work)
        waiting, lost = deque(tasks), dict.fromkeys(tasks, 0)
        running: dict[Any, Task] = {}
        rules = {task.rule.name: carried(task.rule) for task in tasks if task.rule is not None}
        try:
            while waiting or running:
                while waiting and len(running) < (self.workers or len(tasks)):
                    task = waiting.popleft()
                    sent = task if task.rule is None else replace(task, rule=rules[task.rule.name])
                    running[remote.remote(self.trainer, sent, code(), board)] = task
                done, _ = ray.wait(list(running), timeout=_SECONDS_BETWEEN_WORDS)
                for spec, step in _steps(ray, board).items():
                    yield Advanced(spec, step)
                for reference in done:
                    task = running.pop(reference)
                    event = _outcome(ray, reference, task)
                    if isinstance(event, Again):
                        lost[task] += 1
                        if lost[task] < _ATTEMPTS:
                            waiting.appendleft(task)
                        else:
                            event = Failed(task.spec, f"{event.reason}, {_ATTEMPTS} times")
                    yield event
        finally:
            for reference in running:
                with contextlib.suppress(Exception):
                    ray.cancel(reference, force=True)


@dataclass(frozen=True, slots=True)
class _Carried:
    """The factor of a user's rule as its code; two are equal if their code is."""

    code: bytes

    def __call__(self, d_k: int, keys: Any, position: Any) -> Any:
        return _unpacked(self.code)(d_k, keys, position)


@lru_cache(maxsize=64)
def _unpacked(code: bytes) -> Any:
    from ray import cloudpickle

    return cloudpickle.loads(code)


def carried(rule: ScaleRule) -> ScaleRule:
    """The rule with the code of its factor: a worker on another machine does not have the module that it is from."""
    from ray import cloudpickle

    factor = rule.factor.itself() if hasattr(rule.factor, "itself") else rule.factor
    module = sys.modules.get(getattr(factor, "__module__", ""))
    if module is not None:
        cloudpickle.register_pickle_by_value(module)
    try:
        return replace(rule, factor=_Carried(cloudpickle.dumps(factor)))
    except Exception as error:
        raise ArgumentError(
            f"rule: {rule.name!r} must go to other machines: {type(error).__name__}: {error}"
        ) from error
    finally:
        if module is not None:
            cloudpickle.unregister_pickle_by_value(module)


def _outcome(ray: Any, reference: Any, task: Task) -> Finished | Failed | Again:
    try:
        event: Finished | Failed = ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        cause = str(getattr(error, "cause", None) or error).strip().splitlines()
        return Failed(task.spec, cause[-1] if cause else type(error).__name__)
    except ray.exceptions.RayError as error:
        return Again(task.spec, f"its worker was lost ({type(error).__name__})")
    return event


def _work(trainer: Trainer, task: Task, expected: str, board: Any) -> Finished | Failed:
    """On a worker: the run, if the code that decides its numbers is the same as where the results are kept."""
    if code() != expected:
        return Failed(
            task.spec,
            f"host {socket.gethostname()} has another rootdk, torch, numpy or Python than the host that asks for it",
        )

    def notify(step: int) -> None:
        board.write.remote(task.spec, step)  # and waits for no answer

    # Without the folder on this host there is nowhere to keep a state: nobody would read it in a new folder.
    if task.keep is not None and not task.keep.parent.is_dir():
        task = replace(task, keep=None)
    return attempt(trainer, task, now_and_then(notify, task.spec.steps, _SECONDS_BETWEEN_WORDS))


class _Board:
    """Where runs write how far they are."""

    def __init__(self) -> None:
        self.steps: dict[Any, int] = {}

    def write(self, spec: Any, step: int) -> None:
        self.steps[spec] = step

    def take(self) -> dict[Any, int]:
        steps, self.steps = self.steps, {}
        return steps


def _steps(ray: Any, board: Any) -> dict[Any, int]:
    """The steps written since; none if the board is slow or gone, because runs must not depend on it."""
    try:
        steps: dict[Any, int] = ray.get(board.take.remote(), timeout=_SECONDS_TO_CONNECT)
    except ray.exceptions.RayError:
        return {}
    return steps


@contextlib.contextmanager
def _connected(address: str | None, workers: int | None) -> Iterator[Any]:
    """Ray, connected for the length of the block."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # no usage statistics are sent
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # its new behaviour, without its warning
    # Our own cluster is closed to others by a secret token, rather than by one that Ray would write into the user's
    # home. Ray reads it when it is loaded: too late for a process that has loaded it already.
    if address is None and "RAY_AUTH_MODE" not in os.environ and "ray" not in sys.modules:
        os.environ.update(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=secrets.token_hex(32))
    import ray

    mark = f"{_MARK}={secrets.token_hex(16)}" if address is None else None
    known: set[processes.Process] = set()
    try:
        try:
            if mark is None:
                with standing_elsewhere():
                    ray.init(address, **_QUIET)
            else:
                _start_here(ray, workers or cpus_allowed(), mark)
        except ClusterError:
            raise
        except Exception as error:
            words = " ".join(str(error).split())
            raise ClusterError(f"address: cannot connect to Ray at {address or 'this machine'}: {words}") from error
        try:
            yield ray
        finally:
            known = processes.below(os.getpid(), mark) if mark is not None else set()
            ray.shutdown()
    finally:
        if mark is not None:
            # Some processes of Ray remain after their parent has ended, above all when it is interrupted during its
            # start.
            processes.end(known, os.getpid(), mark)


def _start_here(ray: Any, workers: int, mark: str) -> None:
    """A cluster that nobody can reach from outside: every process of it listens on the loopback address alone.

    mark   an entry for the environment of its processes, by which they are found
    """
    from ray._private import ray_constants

    # Ray takes an address that other machines reach, even if it is told 127.0.0.1, unless it assumes that this system
    # has no clusters. The variable for that is read when Ray is loaded, which may have been earlier.
    before, ray_constants.ENABLE_RAY_CLUSTER = ray_constants.ENABLE_RAY_CLUSTER, False
    os.environ[_MARK] = mark.removeprefix(f"{_MARK}=")
    try:
        with standing_elsewhere():  # else Ray lets its workers import from the current folder
            ray.init("local", num_cpus=workers, include_dashboard=False, **_QUIET)
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before
        del os.environ[_MARK]
    address = ray.util.get_node_ip_address()
    if not ipaddress.ip_address(address).is_loopback:
        ray.shutdown()
        raise ClusterError(f"engine ray: its own cluster must listen on this machine alone, got one at {address}")


def _check_answers(address: str) -> None:
    """An error at once if nothing listens there, and soon if something other than Ray does: ray.init would hang."""
    if address == "auto":
        return
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not port.isdecimal():
        raise ArgumentError(f"address: must be host:port of a Ray cluster, or auto, got {address!r}")
    try:
        socket.create_connection((host, int(port)), _SECONDS_TO_CONNECT).close()
    except (OSError, OverflowError) as error:
        raise ClusterError(f"address: nobody answers at {address}: {error}") from error
    # In a process of its own, because ray.init has no time limit and may end the process that calls it.
    probe = [sys.executable, "-c", _PROBE, address]
    try:
        done = subprocess.run(  # noqa: S603 -- the address is checked above
            probe, capture_output=True, text=True, check=False, timeout=_SECONDS_TO_ANSWER, cwd=sys.prefix
        )
    except subprocess.TimeoutExpired as error:
        raise ClusterError(f"address: no Ray cluster answers at {address} in {_SECONDS_TO_ANSWER:g} s") from error
    if "AuthenticationError" in done.stderr:
        raise ClusterError(f"address: Ray at {address} asks for its token; RAY_AUTH_MODE and RAY_AUTH_TOKEN give it")
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise ClusterError(f"address: no Ray cluster answers at {address}: {last}")
