"""The same sweep on Ray: equal results, a lost worker, failures, an address where nobody answers.

Real clusters, on this machine; most tests share one that `ray start --head` began, as a user would. It has a token, so
that nobody else can run code on it. Ray reads tokens when it is loaded, so each sweep has a process of its own.
"""

import json
import os
import pickle
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import training_stand_in as stand_in
from processes import LOOPBACK, below, name, runs
from training_stand_in import noted

from rootdk.errors import ArgumentError
from rootdk.lab.training import Run, RunSpec, engine, ray_engine
from rootdk.lab.training.engine import Advanced, Again, Event, LocalEngine, TrainingMissingError, title
from rootdk.lab.training.ray_engine import ClusterError, RayEngine
from rootdk.lab.training.store import Store
from rootdk.lab.training.sweep import sweep

SUPPORT = Path(__file__).parents[1] / "support"
SPEC = RunSpec(steps=20, d_k=8)
SEEDS = tuple(replace(SPEC, seed=seed) for seed in range(4))
REAL = tuple(RunSpec(task="digits", rule=rule, d_k=8, steps=6, width=16) for rule in ("none", "sqrt"))

PROGRAM = f"""
import pickle, sys
sys.path.insert(0, {str(SUPPORT)!r})
import training_stand_in as stand_in
from rootdk.errors import RootdkError
from rootdk.lab.training import ray_engine
from rootdk.lab.training.engine import Advanced
from rootdk.lab.training.store import Store
from rootdk.lab.training.sweep import sweep

specs, place, options, real, stop_after, attempts, code = pickle.load(open(sys.argv[1], "rb"))
ray_engine._ATTEMPTS = attempts
if code:
    ray_engine.code = lambda: code
events = []
def tell(event):
    events.append(event)
    if stop_after and isinstance(event, Advanced) and event.step > stop_after:
        raise KeyboardInterrupt
try:
    engine = ray_engine.RayEngine(**options) if real else ray_engine.RayEngine(**options, trainer=stand_in.train)
    runs, error = sweep(specs, Store(place), engine, tell), ""
except (RootdkError, KeyboardInterrupt) as caught:
    runs, error = (), f"{{type(caught).__name__}}: {{caught}}"
pickle.dump((runs, error, events), open(sys.argv[2], "wb"))
"""


class Told(NamedTuple):
    runs: tuple[Run, ...]
    error: str
    events: list[Event]


class Cluster(NamedTuple):
    address: str
    token: str


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """A short path: Ray puts sockets into it, whose names have a limit."""
    place = Path(tempfile.mkdtemp(prefix="rk", dir="/tmp"))
    (place / "notes").mkdir()
    yield place
    shutil.rmtree(place, ignore_errors=True)


@pytest.fixture(scope="module")
def cluster(folder: Path) -> Iterator[Cluster]:
    """Two CPUs, as `ray start --head` gives them."""
    token = secrets.token_hex(32)
    environment = os.environ | {
        "PYTHONPATH": str(SUPPORT),
        "TRAINING_STAND_IN": str(folder / "notes"),
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": token,
    }
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--port=0", "--num-cpus=2", "--block"]
    command += [f"--temp-dir={folder / 'ray'}", "--include-dashboard=false", "--disable-usage-stats"]
    with (folder / "log").open("w") as log:
        started = subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)
    address = folder / "ray" / "ray_current_cluster"  # written a moment after Ray says that it has started
    try:
        for _ in range(1200):
            if "Ray runtime started" in (folder / "log").read_text() and address.exists() and address.read_text():
                break
            assert started.poll() is None, (folder / "log").read_text()
            time.sleep(0.05)
        else:
            pytest.fail((folder / "log").read_text())
        yield Cluster(address.read_text().strip(), token)
    finally:
        started.terminate()  # which ends the processes that it started
        started.wait(30)


@pytest.fixture
def place(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRAINING_STAND_IN", str(folder / "notes"))
    for file in (folder / "notes").iterdir():
        file.unlink()
    return tmp_path


def told(
    specs: Any,
    place: Path,
    cluster: Cluster | None,
    *,
    workers: int | None = None,
    real: bool = False,
    stop_after: int = 0,
    attempts: int = 3,
    code: str = "",
) -> Told:
    """A sweep on Ray in a process of its own. The home folder is one that must stay empty."""
    asked, answer, home = place / "asked", place / "answer", place / "home"
    home.mkdir(exist_ok=True)
    options = {"address": cluster.address if cluster else None, "workers": workers}
    asked.write_bytes(pickle.dumps((tuple(specs), place / "runs", options, real, stop_after, attempts, code)))
    answer.unlink(missing_ok=True)
    auth = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": cluster.token} if cluster else {}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(asked), str(answer)],
        env=os.environ | auth | {"HOME": str(home)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert answer.exists(), done.stderr
    assert not (home / ".ray").exists()
    return Told(*pickle.loads(answer.read_bytes()))


@pytest.mark.slow
def test_a_sweep_is_what_it_is_on_this_machine_alone_and_is_kept(cluster: Cluster, place: Path) -> None:
    specs = (*SEEDS, replace(SPEC, steps=5))
    first = told(specs, place, cluster)
    assert first.runs == stand_in.runs(specs)
    assert {event.spec for event in first.events if isinstance(event, Advanced)} <= set(specs)
    before = [noted(spec, 1) for spec in SEEDS]
    assert told(specs, place, cluster).runs == first.runs
    assert [noted(spec, 1) for spec in SEEDS] == before
    assert sorted(file.suffix for file in (place / "runs").iterdir()) == [".json"] * 5


@pytest.mark.slow
def test_real_runs_are_equal_to_local_ones(cluster: Cluster, place: Path) -> None:
    here = sweep(REAL, Store(place / "local"), LocalEngine(2))
    assert told(REAL, place, cluster, real=True).runs == here
    assert here[0].moments != here[1].moments


def test_a_killed_worker_costs_only_its_run_which_goes_on(cluster: Cluster, place: Path) -> None:
    dies = replace(SPEC, seed=stand_in.DIES_ONCE)
    outcome = told([dies, *SEEDS], place, cluster)
    assert outcome.runs == stand_in.runs([dies, *SEEDS]), outcome.error
    assert [event for event in outcome.events if isinstance(event, Again)] == [
        Again(dies, "its worker was lost (WorkerCrashedError)")
    ]
    assert noted(dies, 1) == list(range(1, 21))
    assert len(set(noted(dies, 0))) == 2
    assert [noted(spec, 1) for spec in SEEDS] == [list(range(1, 21))] * 4


@pytest.mark.slow
def test_a_run_that_kills_every_worker_is_given_up(cluster: Cluster, place: Path) -> None:
    dies = replace(SPEC, seed=stand_in.DIES_ALWAYS)
    outcome = told([dies, SEEDS[0]], place, cluster, attempts=1)
    assert outcome.error.startswith("SweepError: 1 run failed")
    assert f"{title(dies)}: its worker was lost (WorkerCrashedError), 1 times" in outcome.error
    assert Store(place / "runs").get(SEEDS[0]) is not None


@pytest.mark.slow
def test_failures_are_those_of_the_local_engine(cluster: Cluster, place: Path) -> None:
    bad = replace(SPEC, seed=stand_in.RAISES)
    outcome = told([bad, SEEDS[0]], place, cluster, workers=1)
    assert f"{title(bad)}: RootdkError: seed: nobody likes this one (training_stand_in.py, line" in outcome.error
    outcome = told([replace(SPEC, seed=stand_in.DISK_IS_FULL)], place, cluster)
    assert outcome.error.startswith("StoreError: runs: cannot write to ")
    assert "No space left on device" in outcome.error


@pytest.mark.slow
def test_a_host_with_other_code_does_not_take_part(cluster: Cluster, place: Path) -> None:
    outcome = told(SEEDS[:1], place, cluster, code="other")
    assert f"host {socket.gethostname()} has another rootdk, torch, numpy or Python" in outcome.error
    assert noted(SEEDS[0], 1) == []


@pytest.mark.slow
def test_interrupted_it_goes_on_where_it_was(cluster: Cluster, place: Path) -> None:
    long = replace(SPEC, seed=stand_in.SLOW, steps=90)
    assert told([long], place, cluster, stop_after=3).error == "KeyboardInterrupt: "
    assert 3 < len(noted(long, 1)) < 90
    assert told([long], place, cluster).runs == stand_in.runs([long])
    # At most the step is taken again whose state was not written any more.
    assert sorted(set(noted(long, 1))) == list(range(1, 91))
    assert len(noted(long, 1)) <= 91


@pytest.mark.slow
def test_the_command(cluster: Cluster, place: Path) -> None:
    (place / "spec.json").write_text('[{"task": "digits", "d_k": 8, "steps": 2, "width": 16}]')
    arguments = ["train-study", "--spec", "spec.json", "--runs", "runs", "--engine", "ray"]
    done = subprocess.run(
        [sys.executable, "-m", "rootdk", *arguments, "--address", cluster.address],
        env=os.environ | {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": cluster.token},
        cwd=place, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("1 run; one seed")
    assert len(list((place / "runs").glob("*.json"))) == 1


@pytest.mark.slow
def test_a_cluster_whose_token_is_not_given(cluster: Cluster, place: Path) -> None:
    outcome = told(SEEDS[:1], place, cluster._replace(token=secrets.token_hex(32)))
    assert outcome.error.startswith(f"ClusterError: address: Ray at {cluster.address} asks for its token")


@pytest.mark.slow
def test_without_an_address_a_cluster_of_its_own(place: Path) -> None:
    outcome = told(REAL[:1], place, None, workers=1, real=True)
    assert outcome.runs == sweep(REAL[:1], Store(place / "local"), LocalEngine(1)), outcome.error


# No cluster.


def test_a_folder_that_another_study_uses_is_refused(place: Path) -> None:
    with Store(place / "runs").locked():
        outcome = told(SEEDS[:1], place, None)
    assert outcome.error.startswith(
        f"StoreError: runs: {place / 'runs'} is in use by another training study, process {os.getpid()}; "
    )


OWN = f"""
import json, os, sys
sys.path.insert(0, {str(SUPPORT)!r})
import training_stand_in as stand_in
from pathlib import Path
from processes import below, listening
from rootdk.cli import main
from rootdk.lab.training.ray_engine import RayEngine
from rootdk.lab.training import sweep as sweeping
from rootdk.cli import train_study
if sys.argv[1] == "loaded before":
    import ray
stand_in.hears_ctrl_c()
train_study.start_engine = lambda *_: RayEngine(None, 1, stand_in.train)
true = sweeping.sweep
def sweep(specs, store, engine, tell, *rest):
    def noted(event):
        tell(event)
        if sys.argv[1] != "" and not Path("sockets").exists():
            processes = [os.getpid(), *below(os.getpid())]
            Path("sockets").write_text(json.dumps({{process: sorted(listening(process)) for process in processes}}))
    return true(specs, store, engine, noted, *rest)
sweeping.sweep = sweep
main(["train-study", "--spec", "spec.json", "--runs", "runs"])
"""


def own_cluster(place: Path, how: str, *specs: RunSpec) -> "subprocess.Popen[str]":
    """The command on a cluster of its own, in a group of processes of its own, as a terminal would start it."""
    (place / "spec.json").write_text(json.dumps([spec.to_dict() for spec in specs]))
    return subprocess.Popen(
        [sys.executable, "-c", OWN, how], cwd=place, env=os.environ | {"PYTHONPATH": str(SUPPORT)},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("how", ["usual", "loaded before"])
def test_a_cluster_of_its_own_listens_on_this_machine_alone(place: Path, how: str) -> None:
    with own_cluster(place, how, replace(SPEC, seed=stand_in.SLOW)) as process:
        _, said = process.communicate(timeout=300)
    assert process.returncode == 0, said
    sockets = json.loads((place / "sockets").read_text())
    assert len(sockets) >= 4, "Ray has a handful of processes"
    addresses = {address for process in sockets.values() for address in process}
    assert addresses
    assert addresses <= LOOPBACK, sockets


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["while Ray starts", "late in its start", "in a run"])
def test_ctrl_c_leaves_no_process_of_a_cluster_of_its_own(place: Path, moment: str) -> None:
    quick, long = SPEC, replace(SPEC, seed=stand_in.SLOW, steps=4000)
    with own_cluster(place, "", long if moment == "in a run" else quick, quick) as process:
        for _ in range(6000):
            if moment == "in a run":
                if noted(long, 1):
                    break
            # The first process that Ray starts, and the last.
            elif any(moment == "while Ray starts" or name(pid) == "raylet" for pid in below(process.pid)):
                break
            assert process.poll() is None, process.communicate()
            time.sleep(0.02)
        children = below(process.pid)
        os.killpg(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=60)
        assert process.returncode == 130, said
        for _ in range(1200):
            if not any(map(runs, children)):
                break
            time.sleep(0.05)
        assert [pid for pid in children if runs(pid)] == []
    assert said == "interrupted; finished runs are kept in runs, and the same command continues from there\n"


def test_without_ray_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "find_spec", lambda _name: None)
    with pytest.raises(TrainingMissingError, match=r"engine ray: needs ray, .* pip install 'rootdk\[dist\]'"):
        RayEngine()


@pytest.mark.parametrize("address", ["nowhere", "host:", ":1", "ray://host:10001", "host:port", ""])
def test_an_address_that_is_none(address: str) -> None:
    with pytest.raises(ArgumentError, match="address: must be host:port of a Ray cluster, or auto, got"):
        RayEngine(address)


def test_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(ClusterError, match=rf"address: nobody answers at 127.0.0.1:{port}"):
        RayEngine(f"127.0.0.1:{port}")
    with pytest.raises(ClusterError, match=r"nobody answers at 127.0.0.1:99999"):
        RayEngine("127.0.0.1:99999")
    with pytest.raises(ArgumentError, match="workers: must be at least 1, got 0"):
        RayEngine(workers=0)


def test_somebody_listens_who_is_not_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_engine, "_SECONDS_TO_ANSWER", 2.0)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(ClusterError, match=rf"no Ray cluster answers at 127.0.0.1:{port} in 2 s"):
            RayEngine(f"127.0.0.1:{port}")


def test_no_cluster_to_be_found(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    def none(*_: Any, **__: Any) -> None:
        raise ConnectionError("Could not find any running Ray instance.")

    monkeypatch.setattr(ray, "init", none)
    with pytest.raises(ClusterError, match="address: cannot connect to Ray at auto: Could not find any running"):
        list(RayEngine("auto")([ray_engine.Task(SPEC, place / "state")]))
