"""Finished runs on disk: kept by content, whole or not at all, and a disk that is full is an error that says so."""

import errno
import json
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from training_stand_in import invented

from rootdk.lab.training import RunSpec
from rootdk.lab.training import store as module
from rootdk.lab.training.store import Store, StoreError, code

SPEC = RunSpec(rule="none", d_k=128, steps=10, transplant=(0.5, 1.0))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store(tmp_path / "deep" / "runs")
    store.open()
    return store


def test_what_is_put_is_got(store: Store) -> None:
    assert store.get(SPEC) is None
    run = invented(SPEC)
    store.put(run)
    again = Store(store.place).get(SPEC)
    assert again == run
    assert again is not None
    assert again.seconds == run.seconds
    assert [file.name for file in store.place.iterdir()] == [store.path(SPEC).name]


def test_the_default_place_is_in_the_cache_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ROOTDK_CACHE", str(tmp_path))
    assert Store().place == tmp_path / "training"


@pytest.mark.parametrize(
    "change",
    [{"seed": 1}, {"rule": "sqrt"}, {"learning_rate": 2e-3}, {"steps": 11}, {"transplant": (0.5,)}, {"qk_rate": 2.0}],
)
def test_another_spec_is_another_file(store: Store, change: dict[str, Any]) -> None:
    store.put(invented(SPEC))
    other = replace(SPEC, **change)
    assert store.path(other) != store.path(SPEC)
    assert store.get(other) is None


def test_a_run_of_other_code_is_another_file(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.put(invented(SPEC))
    monkeypatch.setattr(module, "code", lambda: "other")
    assert store.get(SPEC) is None


def package(place: Path, files: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> str:
    """The hash of a package that has these files."""
    for name, content in files.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(content)
    monkeypatch.setattr("rootdk.version.__file__", str(place / "version.py"))
    return code.__wrapped__()


FILES = dict.fromkeys(
    ("options.py", "checks.py", "attention.py", "reading.py", "scaling.py", "torch/module.py", "backends/reference.py",
     "lab/training/train.py", "lab/training/engine.py", "lab/report/page.py", "_kernel.abi3.so"), "one"
)  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_code_that_decides_the_numbers_is_part_of_the_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    before = package(tmp_path, FILES, monkeypatch)
    after = package(tmp_path, {name: "other"}, monkeypatch)
    arranges = name in {"lab/training/engine.py", "lab/report/page.py"}
    assert (before == after) == arranges


def test_versions_are_part_of_the_name(monkeypatch: pytest.MonkeyPatch) -> None:
    before = code.__wrapped__()
    assert before == code.__wrapped__()
    assert module.version("torch") in before
    monkeypatch.setattr(module, "version", lambda _name: "other")
    assert code.__wrapped__() != before


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"kind": "rootdk.trained.Run"}', "no steps", "other spec"])
def test_a_damaged_file_is_noted_and_run_again(tmp_path: Path, text: str) -> None:
    notes: list[str] = []
    store = Store(tmp_path, notes.append)
    plain = invented(SPEC).to_dict()
    if text == "no steps":
        text = json.dumps(plain | {"step": []})
    elif text == "other spec":
        text = json.dumps(plain | {"spec": replace(SPEC, seed=5).to_dict()})
    store.path(SPEC).write_text(text)
    assert store.get(SPEC) is None
    assert len(notes) == 1
    assert "running again" in notes[0]
    assert store.path(SPEC).name in notes[0]
    store.put(invented(SPEC))
    assert store.get(SPEC) is not None
    assert len(notes) == 1


def test_the_state_goes_when_the_run_is_stored(store: Store) -> None:
    other = replace(SPEC, seed=1)
    left_by_a_kill = store.place / f".{store.state(SPEC).name}.abc.part"
    for file in (store.state(SPEC), store.state(other), left_by_a_kill):
        file.write_text("state")
    store.put(invented(SPEC))
    assert set(store.place.iterdir()) == {store.path(SPEC), store.state(other)}
    store.forget(SPEC)
    store.forget(SPEC)
    assert set(store.place.iterdir()) == {store.state(other)}


def test_a_full_disk_leaves_nothing_half_written(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.put(invented(SPEC))
    other = replace(SPEC, seed=1)
    store.state(other).write_text("state")

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pathlib.Path.replace", full)
    with pytest.raises(StoreError, match=r"runs: cannot write to .*: No space left on device; .* are kept"):
        store.put(invented(other))
    # The finished run and the state of the other are what they were, and there is no part of a file.
    assert set(store.place.iterdir()) == {store.path(SPEC), store.state(other)}
    assert store.get(SPEC) == invented(SPEC)


@pytest.mark.parametrize("way", ["a file in its place", "a file on the way", "read-only"])
def test_a_folder_that_cannot_be_written_to(tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "runs"
    if way == "read-only":
        place.mkdir()
        if os.geteuid() == 0:  # whom no mode keeps out

            def refuse(*_: Any, **__: Any) -> None:
                raise PermissionError(13, "Permission denied")

            monkeypatch.setattr("tempfile.TemporaryFile", refuse)
        place.chmod(0o555)
    else:
        place.write_text("a file")
        place = place / "deeper" if way == "a file on the way" else place
    with pytest.raises(StoreError, match=r"runs: cannot write to .*runs"):
        Store(place).open()


def test_a_file_that_cannot_be_read_is_an_error_and_not_a_reason_to_train_again(store: Store) -> None:
    store.path(SPEC).mkdir()
    with pytest.raises(StoreError, match=r"runs: cannot read .*\.json: Is a directory"):
        store.get(SPEC)


def test_a_folder_is_locked_for_one_study_at_a_time(store: Store) -> None:
    again = Store(store.place)
    message = f"runs: {store.place} is in use by another training study, process {os.getpid()}; "
    with pytest.raises(ZeroDivisionError), store.locked():  # noqa: PT012
        for _ in range(2):
            with pytest.raises(StoreError, match=re.escape(message)), again.locked():
                pytest.fail("two at a time")
        with Store(store.place.parent / "other").locked():
            pass
        raise ZeroDivisionError
    assert list(store.place.iterdir()) == []
    with again.locked():
        assert [file.name for file in store.place.iterdir()] == [".lock"]


def test_a_lock_file_that_a_killed_process_left_is_no_lock(store: Store) -> None:
    (store.place / ".lock").write_text("99999999 from before\n")
    with store.locked(), pytest.raises(StoreError, match=f"process {os.getpid()}; "), Store(store.place).locked():
        pytest.fail("two at a time")


def test_where_nothing_can_be_locked_a_note_says_so(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: Any) -> None:
        raise OSError(errno.ENOTSUP, "Operation not supported")

    monkeypatch.setattr("fcntl.flock", none)
    notes: list[str] = []
    with Store(store.place, notes.append).locked():
        pass
    assert notes == [
        f"runs: {store.place} cannot be locked: Operation not supported; start no second training study on it"
    ]
