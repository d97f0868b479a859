"""`rootdk audit` on files that lie, overflow or are broken: one line of error or an answer, in bounded time and memory.

Many cases run one after the other in one child process, each with its own limits; a few as processes of their own.
"""

import json
import os
import shutil
import subprocess
import sys
import unicodedata
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hostile_checkpoints import Case, constructed, folder, large, mutated
from hostile_formats import constructed_formats, mutated_formats

# What docs/limits.md promises of any file.
SECONDS, MEMORY = 10.0, 512 * 2**20
CHILD = Path(__file__).parents[1] / "support" / "audit_child.py"
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONWARNINGS": "error"}
BATCHES = 2


def records_of(cases: Sequence[Case], place: Path, *options: str) -> list[dict[str, Any]]:
    """How the command ended on each of them, in a child process of its own."""
    commands = []
    for number, case in enumerate(cases):
        home = place / f"{number}"
        home.mkdir()
        case.make(home)
        commands.append([str(home / case.path) if case.path else str(home), *options])
    command = [sys.executable, str(CHILD)]
    order = json.dumps([SECONDS, commands])
    try:
        done = subprocess.run(
            command, input=order, capture_output=True, text=True, check=False, timeout=600, env=ENVIRONMENT
        )
    finally:
        shutil.rmtree(place)
    records = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(records) == len(cases), f"the process died on {cases[len(records)].name}: {done.stderr[-2000:]}"
    return records


def fault_of(record: dict[str, Any]) -> str | None:
    """What is wrong with how the command ended, or None."""
    if record["error"] is not None:
        return str(record["error"])[-1500:]
    if record["peak"] > MEMORY:
        return f"took {record['peak'] / 2**20:.0f} MB"
    for stream in ("out", "err"):
        text = record[stream].encode("latin-1").decode("utf-8")  # an error here is a fault too
        raw = {
            hex(ord(letter)) for letter in text if unicodedata.category(letter) in ("Cc", "Cf", "Cs") and letter != "\n"
        }
        if raw:
            return f"wrote {', '.join(sorted(raw))} to std{stream}"
    if record["code"] == 0:
        return None if record["out"] and not record["err"] else f"answered with {record['out']!r} and {record['err']!r}"
    lines = record["err"].splitlines()
    if record["code"] != 1 or len(lines) != 1 or not lines[0].startswith("Error: ") or record["out"]:
        return f"ended with {record['code']}, {record['out']!r} and {record['err']!r}"
    return f"an error of {len(lines[0])} characters" if len(lines[0]) > 1500 else None


def faults(cases: Sequence[Case], place: Path, *options: str) -> list[str]:
    """The names of the cases that ended as they must not, with the reason. The batches run beside each other."""
    batches = [cases[start::BATCHES] for start in range(BATCHES)]

    def faults_of_batch(number: int) -> list[str]:
        home = place / f"batch-{number}"
        home.mkdir()
        records = records_of(batches[number], home, *options)
        pairs = ((case.name, fault_of(end)) for case, end in zip(batches[number], records, strict=True))
        return [f"{name}: {fault}" for name, fault in pairs if fault is not None]

    with ThreadPoolExecutor(BATCHES) as pool:
        return [fault for batch in pool.map(faults_of_batch, range(BATCHES)) for fault in batch]


def test_every_case_by_construction(tmp_path: Path) -> None:
    cases = list(constructed())
    assert len(cases) > 700
    assert len({case.name for case in cases}) == len(cases)
    failed = faults(cases, tmp_path)
    assert not failed, f"{len(failed)} of {len(cases)}\n" + "\n".join(failed)


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_mutations_of_good_files(tmp_path: Path, options: tuple[str, ...]) -> None:
    failed = faults(list(mutated(150)), tmp_path, *options)
    assert not failed, "\n".join(failed)


def test_every_case_of_the_other_formats(tmp_path: Path) -> None:
    cases = list(constructed_formats())
    assert len(cases) > 500
    assert len({case.name for case in cases}) == len(cases)
    failed = faults(cases, tmp_path)
    assert not failed, f"{len(failed)} of {len(cases)}\n" + "\n".join(failed)
    assert not list(tmp_path.rglob("exploded"))


def test_mutations_of_the_other_formats(tmp_path: Path) -> None:
    failed = faults(list(mutated_formats(200)), tmp_path)
    assert not failed, "\n".join(failed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 4))
def test_many_mutations_of_the_other_formats(tmp_path: Path, seed: int) -> None:
    failed = faults(list(mutated_formats(2000, seed)), tmp_path, *(("--json",) if seed % 2 else ()))
    assert not failed, "\n".join(failed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 5))
def test_many_mutations_of_good_files(tmp_path: Path, seed: int) -> None:
    failed = faults(list(mutated(1000, seed)), tmp_path, *(("--json",) if seed % 2 else ()))
    assert not failed, "\n".join(failed)


@pytest.mark.parametrize(
    ("end", "words"),
    [
        ({"error": "Traceback (most recent call last): ..."}, "Traceback"),
        ({"peak": MEMORY + 1}, "took 512 MB"),
        ({"out": "a\x1b[31m"}, "wrote 0x1b to stdout"),
        ({"err": "Error: \u202e".encode().decode("latin-1"), "code": 1}, "wrote 0x202e to stderr"),
        ({"err": "Error: one\nanother\n", "out": "", "code": 1}, "ended with 1"),
        ({"err": "Error: " + "a" * 2000, "out": "", "code": 1}, "an error of 2007 characters"),
        ({"out": "", "code": 0}, "answered with"),
        ({"code": 2}, "ended with 2"),
    ],
)
def test_the_judge_can_fail(end: dict[str, Any], words: str) -> None:
    good = {"error": None, "peak": 0, "out": "healthy", "err": "", "code": 0}
    assert fault_of(good) is None
    assert fault_of({**good, "out": "", "err": "Error: path: one line\n", "code": 1}) is None
    assert words in str(fault_of({**good, **end}))


def test_what_takes_too_long_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The child stops a case that is past its time, and goes on with the next."""
    monkeypatch.setattr(sys.modules[__name__], "SECONDS", 1.0)
    (tmp_path / "home").mkdir()
    records = records_of([Case("long", large), Case("short", folder)], tmp_path / "home")
    assert [fault_of(end) for end in records] == ["took more than 1.0 s", None]
