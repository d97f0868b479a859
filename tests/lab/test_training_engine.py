"""Many runs at once on this machine: order, cores, processes that die, an interrupt in the middle, and going on."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import training_stand_in as stand_in
from processes import runs as is_running
from training_stand_in import noted

from rootdk.errors import ArgumentError
from rootdk.lab.training import Run, RunSpec
from rootdk.lab.training.engine import (
    ONE_THREAD,
    Advanced,
    Again,
    Event,
    Failed,
    Finished,
    LocalEngine,
    Task,
    title,
)
from rootdk.lab.training.store import Store, StoreError
from rootdk.lab.training.sweep import SweepError, cost, sweep

SPEC = RunSpec(steps=20, d_k=8)
SEEDS = tuple(replace(SPEC, seed=seed) for seed in range(4))


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where steps are noted and runs are kept."""
    (tmp_path / "notes").mkdir()
    monkeypatch.setenv("TRAINING_STAND_IN", str(tmp_path / "notes"))
    return tmp_path


def local(workers: int = 2) -> LocalEngine:
    return LocalEngine(workers, stand_in.train)


def told(specs: Any, place: Path, engine: Any = None) -> tuple[tuple[Run, ...], list[Event]]:
    events: list[Event] = []
    return sweep(specs, Store(place / "runs"), engine or local(), events.append), events


def test_runs_come_in_the_order_of_their_specs_and_are_kept(place: Path) -> None:
    specs = (*SEEDS, SEEDS[0])
    runs, events = told(specs, place)
    assert runs == stand_in.runs(specs)
    assert sorted(event.run.spec.seed for event in events if isinstance(event, Finished)) == [0, 1, 2, 3]
    assert {event.spec for event in events if isinstance(event, Advanced)} == set(SEEDS)
    assert [noted(spec, 1) for spec in SEEDS] == [list(range(1, 21))] * 4
    again, later = told(specs, place)
    assert again == runs
    assert [type(event) for event in later] == [Finished] * 4
    assert [noted(spec, 1) for spec in SEEDS] == [list(range(1, 21))] * 4
    assert sorted(file.suffix for file in (place / "runs").iterdir()) == [".json"] * 4


def test_runs_begin_in_the_order_in_which_they_are_asked_for(place: Path) -> None:
    """A plan has its questions in the order of their weight: what was interrupted has answered the first."""
    short, long = replace(SPEC, steps=4), replace(SPEC, d_k=512, steps=40)
    assert cost(long) > cost(SPEC) > cost(short)
    _, events = told([short, long, SPEC], place, local(1))
    assert [event.run.spec for event in events if isinstance(event, Finished)] == [short, long, SPEC]


def threads(spec: RunSpec, *, keep: Path | None, progress: Callable[[int], None]) -> Run:
    """A trainer that finds more than one thread to be an error."""
    import torch

    from rootdk import num_threads

    limits = (torch.get_num_threads(), {os.environ.get(name) for name in ONE_THREAD})
    assert limits == (1, {"1"}), limits
    assert num_threads() >= 1
    return stand_in.train(spec, keep=keep, progress=progress)


def test_each_process_has_one_thread_and_this_one_keeps_its_own(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ONE_THREAD:
        monkeypatch.setenv(name, "3")
    before = dict(os.environ)
    told(SEEDS[:1], place, LocalEngine(1, threads))
    assert dict(os.environ) == before


@pytest.mark.usefixtures("one_thread")
def test_a_real_run_is_what_train_gives_here(place: Path) -> None:
    from rootdk.lab.training.train import train

    spec = RunSpec(task="digits", d_k=8, steps=3, width=16)
    runs, events = told([spec], place, LocalEngine(1))
    assert runs == (train(spec),)
    assert [event.step for event in events if isinstance(event, Advanced)][-1] == 3


def test_no_more_processes_than_cores(place: Path) -> None:
    assert LocalEngine().workers == len(os.sched_getaffinity(0))
    told(SEEDS, place, local(2))
    assert len({pid for spec in SEEDS for pid in noted(spec, 0)}) <= 2
    with pytest.raises(ArgumentError, match="workers: must be at least 1, got 0"):
        LocalEngine(0)


def test_a_run_that_raises_does_not_end_the_others(place: Path) -> None:
    bad = replace(SPEC, seed=stand_in.RAISES)
    with pytest.raises(SweepError) as caught:
        told([bad, *SEEDS], place)
    message = str(caught.value)
    assert message.startswith("1 run failed; the 4 that are finished are kept and will not be run again. ")
    assert f"{title(bad)}: RootdkError: seed: nobody likes this one (training_stand_in.py, line" in message
    assert [failure.spec for failure in caught.value.failures] == [bad]
    store = Store(place / "runs")
    assert [store.get(spec) for spec in SEEDS] == list(stand_in.runs(SEEDS))


def test_many_failures_are_counted_and_not_all_named(place: Path) -> None:
    bad = [replace(SPEC, seed=stand_in.RAISES, d_k=d_k, steps=2) for d_k in range(1, 14)]
    with pytest.raises(SweepError, match=r"13 runs failed; .*; and 3 more$"):
        told(bad, place)


def test_a_process_that_dies_costs_only_its_run_which_goes_on(place: Path) -> None:
    dies = replace(SPEC, seed=stand_in.DIES_ONCE)
    runs, events = told([dies, *SEEDS], place)
    assert runs == stand_in.runs([dies, *SEEDS])
    assert [event for event in events if isinstance(event, Again)] == [Again(dies, "its process was ended by SIGKILL")]
    assert noted(dies, 1) == list(range(1, 21))  # no step was taken twice
    assert len(set(noted(dies, 0))) == 2
    assert [noted(spec, 1) for spec in SEEDS] == [list(range(1, 21))] * 4


def test_a_run_that_kills_its_process_twice_is_given_up(place: Path) -> None:
    dies = replace(SPEC, seed=stand_in.DIES_ALWAYS, steps=2)
    (place / "runs").mkdir()
    with pytest.raises(SweepError) as caught:
        told([dies, *SEEDS], place, _without_a_state(local(2)))
    assert f"{title(dies)}: its process was ended by SIGKILL, twice" in str(caught.value)
    assert Store(place / "runs").get(SEEDS[3]) is not None


def _without_a_state(engine: LocalEngine) -> Callable[..., Iterator[Event]]:
    """States whose folder goes away each time, so that the run meets its fatal step again."""

    def run(tasks: list[Task]) -> Iterator[Event]:
        for event in engine(tasks):
            if isinstance(event, Again):
                next(task for task in tasks if task.spec == event.spec).keep.unlink()
            yield event

    return run


def test_a_state_that_cannot_be_used_is_started_over(place: Path) -> None:
    store = Store(place / "runs")
    store.open()
    store.state(SPEC).write_text("damaged")
    runs, _ = told([SPEC], place)
    assert runs == stand_in.runs([SPEC])
    assert noted(SPEC, 1) == list(range(1, 21))


def test_a_full_disk_ends_the_sweep_with_one_error(place: Path) -> None:
    full = replace(SPEC, seed=stand_in.DISK_IS_FULL)
    after = [replace(SPEC, seed=seed, steps=2) for seed in range(40)]
    with pytest.raises(StoreError, match=r"No space left on device .*; the runs that are finished are kept"):
        told([full, *SEEDS, *after], place, local(1))
    assert not any(noted(spec, 1) for spec in after)  # nothing was begun after it


def test_a_store_that_fills_up_ends_the_sweep_with_one_error(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Store.put

    def put(self: Store, run: Run) -> None:
        if run.spec.seed == 1:
            raise StoreError("runs: cannot write to runs: No space left on device; finished runs are kept")
        whole(self, run)

    monkeypatch.setattr(Store, "put", put)
    with pytest.raises(StoreError, match="No space left"):
        told(SEEDS, place, local(1))
    assert Store(place / "runs").get(SEEDS[0]) is not None
    assert noted(SEEDS[3], 1) == []  # nothing was begun after it


def test_nothing_to_do_starts_no_process(place: Path) -> None:
    told(SEEDS, place)

    def none(tasks: Any) -> Iterator[Event]:
        assert list(tasks) == []
        yield from ()

    assert told(SEEDS, place, none)[0] == stand_in.runs(SEEDS)
    assert list(local()([])) == []


# In the middle: a sweep of its own in another process, with one quick run and one that takes its time.

QUICK, LONG = replace(SPEC, steps=5, d_k=16), replace(SPEC, seed=stand_in.SLOW, steps=40)
PROGRAM = f"""
import sys
sys.path[:0] = {[str(Path(__file__).parent), str(Path(__file__).parents[1] / "support")]!r}
from test_training_engine import LONG, QUICK, local, stand_in, sweep, Store, Path
if __name__ == "__main__":
    stand_in.hears_ctrl_c()
    sweep([QUICK, LONG], Store(Path(sys.argv[1])), local(2))
"""


def begun(place: Path) -> subprocess.Popen[str]:
    """A sweep whose quick run is kept and whose long one is under way."""
    program = place / "program.py"
    program.write_text(PROGRAM)
    started = subprocess.Popen(
        [sys.executable, str(program), str(place / "runs")],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    for _ in range(600):
        if Store(place / "runs").path(QUICK).exists() and len(noted(LONG, 1)) > 3:
            return started
        assert started.poll() is None, started.stderr and started.stderr.read()
        time.sleep(0.05)
    started.kill()
    pytest.fail("the sweep did not come to its middle")


def wait_for(what: Callable[[], bool]) -> None:
    for _ in range(200):
        if what():
            return
        time.sleep(0.05)
    pytest.fail("it did not happen")


def goes_on(place: Path) -> None:
    """The same sweep again: the quick run is taken as it is, the long one begins where it was."""
    taken = noted(LONG, 1)
    assert 3 < len(taken) < LONG.steps
    runs, events = told([QUICK, LONG], place)
    assert runs == stand_in.runs([QUICK, LONG])
    assert noted(QUICK, 1) == list(range(1, 6))
    first = next(event.step for event in events if isinstance(event, Advanced))
    assert first >= len(taken)
    # At most the step is taken again whose state was not written any more.
    assert len(noted(LONG, 1)) - LONG.steps in {0, 1}
    assert sorted(file.suffix for file in (place / "runs").iterdir()) == [".json", ".json"]


def test_killed_in_the_middle_with_all_its_processes(place: Path) -> None:
    started = begun(place)
    os.killpg(started.pid, signal.SIGKILL)
    started.communicate()
    wait_for(lambda: all(not is_running(pid) for pid in noted(LONG, 0)))
    goes_on(place)


def test_only_the_parent_is_killed_and_no_process_is_left_behind(place: Path) -> None:
    started = begun(place)
    started.kill()
    started.communicate()
    wait_for(lambda: all(not is_running(pid) for pid in noted(LONG, 0)))
    goes_on(place)


def test_interrupted_from_the_keyboard(place: Path) -> None:
    """Ctrl-C goes to all processes of the terminal; the workers leave it to the parent, and nobody prints a word."""
    started = begun(place)
    os.killpg(started.pid, signal.SIGINT)
    _, said = started.communicate(timeout=20)
    assert said.count("Traceback") == 1  # this program's own, which catches nothing
    assert said.rstrip().endswith("KeyboardInterrupt")
    assert all(not is_running(pid) for pid in noted(LONG, 0))
    goes_on(place)


def test_a_failed_run_is_told(place: Path) -> None:
    bad, events = replace(SPEC, seed=stand_in.RAISES), list[Event]()
    with pytest.raises(SweepError):
        sweep([bad], Store(place / "runs"), local(), events.append)
    assert isinstance(events[-1], Failed)
