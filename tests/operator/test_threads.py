"""Threads: the same bits on any number of them, several callers at once, fork, and who says how many there are."""

import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from judge import DTYPES, TARGETS, assert_same_bits, everything, target, threads
from problems import random_arrays

import rootdk
from rootdk import _kernel

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
needs_linux = pytest.mark.skipif(sys.platform != "linux", reason="CPUs and threads are counted as Linux shows them")

# Large enough that the work is shared; "one long head" is where the pull-back splits the keys and adds up their parts.
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "full": ({}, {}),
    "causal": ({"n_query": 400}, {"causal": True}),
    "grouped": ({"heads": 6, "kv_heads": 2}, {"window": (50, 20)}),
    "dropout": ({}, {"dropout": 0.3, "seed": 5}),
    "one long head": ({"leading": (1,), "heads": 1, "kv_heads": 1, "n_query": 500, "n_key": 2100}, {"causal": True}),
    "one long head, grouped": ({"leading": (1,), "kv_heads": 1, "n_query": 150, "n_key": 1500}, {"softcap": 2.0}),
    "one query": ({"leading": (1,), "n_query": 1, "n_key": 5000}, {"sinks": [0.5, 1.0, 2.0, 3.0]}),
    "masked": ({"n_query": 300}, {"mask": np.arange(300)[:, None] % 7 != np.arange(300) % 5}),
}


def case(rng: np.random.Generator, name: str, dtype: Any = np.float32) -> tuple[Any, Any, dict[str, Any]]:
    sizes, options = CASES[name]
    arrays = random_arrays(rng, **({"n_query": 200, "n_key": 300, "d_k": 24, "d_v": 17} | sizes), dtype=dtype)
    d_out = rng.standard_normal((*arrays[0].shape[:-1], arrays[2].shape[-1])).astype(dtype)
    return arrays, d_out, options


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_same_bits_on_any_number_of_threads(rng: np.random.Generator, dtype: str, name: str) -> None:
    arrays, d_out, options = case(rng, name, DTYPES[dtype])
    with threads(1):
        expected = everything(arrays, d_out, **options)
    for n in (1, 2, 7, 2):  # and twice the same
        with threads(n):
            assert_same_bits(everything(arrays, d_out, **options), expected)


@pytest.mark.parametrize("name", TARGETS)
def test_same_bits_on_every_target(rng: np.random.Generator, name: str) -> None:
    arrays, d_out, options = case(rng, "one long head")
    with target(name):
        with threads(1):
            expected = everything(arrays, d_out, **options)
        with threads(7):
            assert_same_bits(everything(arrays, d_out, **options), expected)


def test_eight_callers_at_once(rng: np.random.Generator) -> None:
    """Each with its own problem, again and again, while the others are at work."""
    names = list(CASES)
    problems = [case(rng, names[i % len(names)]) for i in range(8)]
    expected = [everything(arrays, d_out, **options) for arrays, d_out, options in problems]
    start = threading.Barrier(8)

    def call(i: int) -> list[dict[str, Any]]:
        arrays, d_out, options = problems[i]
        start.wait(timeout=60)
        return [everything(arrays, d_out, **options) for _ in range(3)]

    with threads(2), ThreadPoolExecutor(8) as executor:
        for i, answers in enumerate(executor.map(call, range(8), timeout=120)):
            for answer in answers:
                assert_same_bits(answer, expected[i])


def test_the_interpreter_runs_on_during_a_call(rng: np.random.Generator) -> None:
    """The GIL is released: Python code runs between the start and the end of one long call."""
    q, k, v = random_arrays(rng, (1,), 1, 1, 3000, 3000, 64, 64, dtype=np.float32)
    entered, left = threading.Event(), threading.Event()
    steps_during_the_call = 0

    def call() -> None:
        entered.set()
        rootdk.attention(q, k, v)
        left.set()

    before = sys.getswitchinterval()
    # No thread is made to give the interpreter up: only a call that releases it lets the loop below run.
    sys.setswitchinterval(1000)
    try:
        with threads(1):
            worker = threading.Thread(target=call)
            worker.start()
            entered.wait(timeout=60)
            while not left.is_set():
                steps_during_the_call += 1
                time.sleep(0)
            worker.join(timeout=60)
    finally:
        sys.setswitchinterval(before)
    assert steps_during_the_call > 1


def wait_for(pid: int, seconds: float) -> int:
    """The exit code of a child; one that does not end is killed, and that is a failure."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    pytest.fail(f"the child did not end within {seconds} s")


def run_in_a_child(check: Any) -> int:
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            check()
            code = 0
        finally:
            os._exit(code)
    return wait_for(pid, 60)


@needs_fork
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_a_child_of_fork_gets_the_right_answer(rng: np.random.Generator) -> None:
    """Data loaders do it: the parent's threads do not exist in the child."""
    arrays, d_out, options = case(rng, "causal")
    with threads(3):
        expected = everything(arrays, d_out, **options)  # the pool is awake

        def check() -> None:
            assert_same_bits(everything(arrays, d_out, **options), expected)

        assert run_in_a_child(check) == 0
        assert run_in_a_child(lambda: run_in_a_child(check) and os._exit(3)) == 0  # and a child of the child
        assert_same_bits(everything(arrays, d_out, **options), expected)


@needs_fork
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_fork_while_another_thread_is_inside_a_call(rng: np.random.Generator) -> None:
    """The lock of the pool is held at that moment by a thread that the child does not have."""
    arrays, d_out, options = case(rng, "causal")
    long = random_arrays(rng, (1,), 4, 4, 1500, 1500, 64, 64, dtype=np.float32)
    expected = everything(arrays, d_out, **options)
    stop = threading.Event()

    def keep_busy() -> None:
        while not stop.is_set():
            rootdk.attention(*long)

    with threads(2):
        worker = threading.Thread(target=keep_busy)
        worker.start()
        try:
            for _ in range(5):
                time.sleep(0.005)
                assert run_in_a_child(lambda: assert_same_bits(everything(arrays, d_out, **options), expected)) == 0
        finally:
            stop.set()
            worker.join(timeout=60)


@needs_fork
def test_a_child_that_fails_is_seen() -> None:
    def fail() -> None:
        os._exit(7)

    assert run_in_a_child(fail) == 7


# How many


def in_a_fresh_process(program: str, **environment: str) -> str:
    clean = {name: value for name, value in os.environ.items() if name != "ROOTDK_NUM_THREADS"}
    finished = subprocess.run(
        [sys.executable, "-c", program], env=clean | environment, capture_output=True, text=True, timeout=60, check=True
    )
    return finished.stdout.strip()


SHOW = "import rootdk; print(rootdk.num_threads())"


def test_the_environment_says_how_many() -> None:
    """Read when the kernel is loaded, which is put back and done again here for one number after the other."""
    program = """
import os, rootdk
from rootdk.backends import kernel
for wanted in {!r}:
    os.environ["ROOTDK_NUM_THREADS"] = wanted
    kernel.cache_clear()
    try:
        print(rootdk.num_threads())
    except rootdk.ArgumentError as error:
        print(error)
"""
    numbers = ["1", "3", "64", "1024"]
    bad = ["abc", "0", "-3", "2x", " ", "", "1.0", "1025", "1000000", "99999999999"]
    words = "ROOTDK_NUM_THREADS: must be an int from 1 to 1024, got"
    printed = in_a_fresh_process(program.format([*numbers, *bad])).splitlines()
    assert printed == [*numbers, *(f"{words} {text!r}" for text in bad)]
    assert in_a_fresh_process(SHOW, ROOTDK_NUM_THREADS="3") == "3"


def test_a_numpy_integer_counts_too() -> None:
    with threads(1):
        rootdk.set_num_threads(np.int64(3))  # type: ignore[arg-type]
        assert rootdk.num_threads() == 3


@needs_linux
def test_without_the_environment_the_affinity_says_it() -> None:
    assert in_a_fresh_process(SHOW) == str(len(os.sched_getaffinity(0)))
    program = f"import os; os.sched_setaffinity(0, [{min(os.sched_getaffinity(0))}]); {SHOW}"
    assert in_a_fresh_process(program) == "1"
    assert in_a_fresh_process(program, ROOTDK_NUM_THREADS="5") == "5"


@needs_linux
def test_the_setting_is_obeyed() -> None:
    """One thread means that no other is started; three means that two are."""
    program = (
        "import os, numpy as np, rootdk; a = np.ones((8, 512, 64), np.float32); count = lambda: len(os.listdir("
        "'/proc/self/task')); before = count(); rootdk.set_num_threads({}); rootdk.attention(a, a, a);"
        "print(count() - before)"
    )
    assert in_a_fresh_process(program.format(1)) == "0"
    assert in_a_fresh_process(program.format(3)) == "2"


@pytest.mark.parametrize("bad", [0, -1, 1025, 2**31, 2**70])
def test_too_few_and_too_many(bad: int) -> None:
    with pytest.raises(rootdk.ArgumentError, match=f"n: must be an int from 1 to 1024, got {bad}"):
        rootdk.set_num_threads(bad)


@pytest.mark.parametrize("bad", [1.0, "2", None, True])
def test_no_number_of_threads(bad: Any) -> None:
    before = rootdk.num_threads()
    with pytest.raises(rootdk.ArgumentTypeError, match="n: must be an int from 1 to 1024, got"):
        rootdk.set_num_threads(bad)
    assert rootdk.num_threads() == before


@pytest.mark.parametrize("bad", [0, -1, 1025])
def test_the_kernel_itself_refuses(bad: int) -> None:
    """No smaller number instead, whoever calls."""
    before = rootdk.num_threads()
    with pytest.raises(ValueError, match=f"threads: must be from 1 to 1024, got {bad}"):
        _kernel.set_num_threads(bad)
    assert rootdk.num_threads() == before
