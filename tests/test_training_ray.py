"""The same sweep on Ray: equal results, a lost worker, failures, an address where nobody answers.

Real clusters, on this machine. Most tests share one that `ray start --head` began, as a user would.
"""

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import training_stand_in as stand_in
from click.testing import CliRunner
from training_stand_in import noted

from rootdk.cli import main
from rootdk.errors import ArgumentError
from rootdk.study.training import needs, ray_engine
from rootdk.study.training.engine import Advanced, Again, Event, title
from rootdk.study.training.local import LocalEngine
from rootdk.study.training.needs import TrainingMissingError
from rootdk.study.training.ray_engine import ClusterError, RayEngine
from rootdk.study.training.store import Store, StoreError
from rootdk.study.training.sweep import SweepError, sweep
from rootdk.trained import Run, RunSpec

SPEC = RunSpec(steps=20, d_k=8)
SEEDS = tuple(replace(SPEC, seed=seed) for seed in range(4))
REAL = tuple(RunSpec(task="digits", rule=rule, d_k=8, steps=6, width=16) for rule in ("none", "sqrt"))


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """A short path: Ray puts sockets into it, whose names have a limit."""
    place = Path(tempfile.mkdtemp(prefix="rk", dir="/tmp"))
    (place / "notes").mkdir()
    yield place
    shutil.rmtree(place, ignore_errors=True)


@pytest.fixture(scope="module")
def address(folder: Path) -> Iterator[str]:
    """A cluster of two CPUs, as `ray start --head` makes one."""
    environment = os.environ | {
        "PYTHONPATH": str(Path(__file__).parent),
        "TRAINING_STAND_IN": str(folder / "notes"),
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--port=0", "--num-cpus=2", "--block"]
    command += [f"--temp-dir={folder / 'ray'}", "--include-dashboard=false", "--disable-usage-stats"]
    with (folder / "log").open("w") as log:
        started = subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)
    try:
        for _ in range(1200):
            if "Ray runtime started" in (folder / "log").read_text():
                break
            assert started.poll() is None, (folder / "log").read_text()
            time.sleep(0.05)
        else:
            pytest.fail((folder / "log").read_text())
        yield (folder / "ray" / "ray_current_cluster").read_text().strip()
    finally:
        started.terminate()  # which ends the processes that it started
        started.wait(30)


@pytest.fixture
def place(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRAINING_STAND_IN", str(folder / "notes"))
    for file in (folder / "notes").iterdir():
        file.unlink()
    return tmp_path


def told(specs: Any, place: Path, engine: Any) -> tuple[tuple[Run, ...], list[Event]]:
    events: list[Event] = []
    return sweep(specs, Store(place / "runs"), engine, events.append), events


@pytest.mark.slow
def test_a_sweep_is_what_it_is_on_this_machine_alone_and_is_kept(address: str, place: Path) -> None:
    specs = (*SEEDS, replace(SPEC, steps=5))
    runs, events = told(specs, place, RayEngine(address, trainer=stand_in.train))
    assert runs == stand_in.runs(specs)
    assert {one.spec for one in events if isinstance(one, Advanced)} <= set(specs)
    before = [noted(spec, 1) for spec in SEEDS]
    assert told(specs, place, RayEngine(address, trainer=stand_in.train))[0] == runs
    assert [noted(spec, 1) for spec in SEEDS] == before
    assert sorted(file.suffix for file in (place / "runs").iterdir()) == [".json"] * 5


@pytest.mark.slow
def test_real_runs_are_equal_to_local_ones(address: str, place: Path) -> None:
    here, _ = told(REAL, place / "local", LocalEngine(2))
    there, _ = told(REAL, place / "ray", RayEngine(address))
    assert here == there
    assert here[0] != here[1]


def test_a_killed_worker_costs_only_its_run_which_goes_on(address: str, place: Path) -> None:
    dies = replace(SPEC, seed=stand_in.DIES_ONCE)
    runs, events = told([dies, *SEEDS], place, RayEngine(address, trainer=stand_in.train))
    assert runs == stand_in.runs([dies, *SEEDS])
    assert [one for one in events if isinstance(one, Again)] == [
        Again(dies, "its worker was lost (WorkerCrashedError)")
    ]
    assert noted(dies, 1) == list(range(1, 21))
    assert len(set(noted(dies, 0))) == 2
    assert [noted(spec, 1) for spec in SEEDS] == [list(range(1, 21))] * 4


@pytest.mark.slow
def test_a_run_that_kills_every_worker_is_given_up(address: str, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_engine, "_ATTEMPTS", 1)
    dies = replace(SPEC, seed=stand_in.DIES_ALWAYS)
    with pytest.raises(SweepError) as caught:
        told([dies, SEEDS[0]], place, RayEngine(address, trainer=stand_in.train))
    assert f"{title(dies)}: its worker was lost (WorkerCrashedError), 1 times" in str(caught.value)
    assert Store(place / "runs").get(SEEDS[0]) is not None


@pytest.mark.slow
def test_failures_are_those_of_the_local_engine(address: str, place: Path) -> None:
    bad = replace(SPEC, seed=stand_in.RAISES)
    with pytest.raises(SweepError) as caught:
        told([bad, SEEDS[0]], place, RayEngine(address, workers=1, trainer=stand_in.train))
    assert f"{title(bad)}: RootdkError: seed: nobody likes this one (training_stand_in.py, line" in str(caught.value)
    with pytest.raises(StoreError, match="No space left on device"):
        told([replace(SPEC, seed=stand_in.DISK_IS_FULL)], place, RayEngine(address, trainer=stand_in.train))


@pytest.mark.slow
def test_a_host_with_other_code_does_not_take_part(address: str, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_engine, "code", lambda: "other")
    with pytest.raises(SweepError, match=rf"host {socket.gethostname()} has another rootdk, torch, numpy or Python"):
        told(SEEDS[:1], place, RayEngine(address, trainer=stand_in.train))
    assert noted(SEEDS[0], 1) == []


@pytest.mark.slow
def test_interrupted_it_goes_on_where_it_was(address: str, place: Path) -> None:
    long = replace(SPEC, seed=stand_in.SLOW, steps=90)

    def interrupt(event: Event) -> None:
        if isinstance(event, Advanced) and event.step > 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sweep([long], Store(place / "runs"), RayEngine(address, trainer=stand_in.train), interrupt)
    taken = len(noted(long, 1))
    assert 3 < taken < 90
    runs, _ = told([long], place, RayEngine(address, trainer=stand_in.train))
    assert runs == stand_in.runs([long])
    # What ran on for a moment after the interrupt, and the step whose state was not written any more.
    assert sorted(set(noted(long, 1))) == list(range(1, 91))
    assert len(noted(long, 1)) <= 91


@pytest.mark.slow
def test_the_command(address: str, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    Path("spec.json").write_text('[{"task": "digits", "d_k": 8, "steps": 2, "width": 16}]')
    arguments = ["train-study", "--spec", "spec.json", "--runs", "runs", "--engine", "ray", "--address", address]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    assert result.output.startswith("1 run. Loss at the end")
    assert len(list(Path("runs").glob("*.json"))) == 1


@pytest.mark.slow
def test_without_an_address_a_cluster_of_its_own(place: Path) -> None:
    runs, _ = told(REAL[:1], place, RayEngine(workers=1))
    assert runs == told(REAL[:1], place / "local", LocalEngine(1))[0]


# No cluster.


def test_without_ray_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(needs, "find_spec", lambda _name: None)
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
    monkeypatch.setenv("RAY_TMPDIR", str(place))
    import ray

    def none(*_: Any, **__: Any) -> None:
        raise ConnectionError("Could not find any running Ray instance.")

    monkeypatch.setattr(ray, "init", none)
    with pytest.raises(ClusterError, match="address: cannot connect to Ray at auto: Could not find any running"):
        list(RayEngine("auto")([ray_engine.Task(SPEC, place / "state")]))
