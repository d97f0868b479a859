"""Ctrl-C inside a long call: it ends with KeyboardInterrupt, nothing goes on in the background, the next call is right.

Nothing here is timed. Every long call takes minutes; the time limits only guard against one that does not end. The
results are filled with NaN before: where some of them are NaN still, the call was left before its end. Calls of one
kind are interrupted one after the other in one process: to start it and to import torch takes longer than they do.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from judge import TARGETS

# Sizes of which a call takes minutes on any machine; stride 0 keeps the memory small.
START = """
import os, signal, sys, threading, time
import numpy as np
import rootdk
from rootdk.backends import problem_of
from judge import assert_same_bits, everything
from rootdk import _kernel
from rootdk.options import Learnable
from rootdk.reading import FIELDS

N = 1 << 18
rng = np.random.default_rng(0)


def rows(n, d=64):
    return np.resize(rng.standard_normal((min(n, 1024), d), dtype=np.float32), (1, 1, n, d))


def nan(*shape, kind=np.float32):
    return np.full(shape, np.nan, kind)


small = [rng.standard_normal((3, 300, 24), dtype=np.float32) for _ in range(3)]
d_out = np.ones_like(small[0])
rootdk.set_num_threads(2)
expected = everything(small, d_out, causal=True)


def workers_at_rest():
    "Waits until no thread but this one runs."
    own = threading.get_native_id()
    while any(state(task) == "R" for task in os.listdir("/proc/self/task") if int(task) != own):
        time.sleep(0.01)


def state(task):
    with open(f"/proc/self/task/{task}/stat") as file:
        return file.read().rpartition(")")[2].split()[0]


def interrupted(call, *filled):
    print("calling", flush=True)
    try:
        call()
        print("it went on to its end")
        return
    except KeyboardInterrupt as error:
        assert any(np.isnan(part).any() for part in filled), "it was finished"
        assert error.__context__ is None
    workers_at_rest()
    assert_same_bits(everything(small, d_out, causal=True), expected)
    print("interrupted")
"""

FORWARD = """
q = rows(N)
out = nan(1, 1, N, 64)
problem = problem_of(q, q, q)
interrupted(lambda: _kernel.forward(problem, out, None, None, None, {team}), out)
"""

PUBLIC = """
q = rows(N)
print("calling", flush=True)
try:
    rootdk.measure(q, q, q)
    print("it went on to its end")
except KeyboardInterrupt:
    workers_at_rest()
    assert_same_bits(everything(small, d_out, causal=True), expected)
    print("interrupted")
"""

CALLS = {
    "forward": FORWARD.format(team=0),
    "one thread": "rootdk.set_num_threads(1)\n" + FORWARD.format(team=0) + "rootdk.set_num_threads(2)\n",
    "the public function": PUBLIC,
    "measured": """
q = rows(N)
out, reading, keys = nan(1, 1, N, 64), nan(len(FIELDS), 1, 1, N), np.zeros((1, 1, N), np.int64)
interrupted(lambda: _kernel.forward(problem_of(q, q, q), out, None, reading, keys), out)
""",
    "half types": """
q = rows(N).astype(np.float16)
out = nan(1, 1, N, 64, kind=np.float16)
interrupted(lambda: _kernel.forward(problem_of(q, q, q), out, None, None, None), out)
""",
    # A chunk of the keys is an item, and there are eight: each of them takes longer than the time limit.
    "backward": """
q = rows(N)
made = [nan(1, 1, N, 64) for _ in range(3)]
state_of_rows = np.ones((2, 1, 1, N), np.float32)
interrupted(lambda: _kernel.backward(problem_of(q, q, q), q, q, state_of_rows, Learnable(*made)), *made)
""",
    "tangent": """
q = rows(N)
out, moved = nan(1, 1, N, 64), nan(1, 1, N, 64)
interrupted(lambda: _kernel.tangent(problem_of(q, q, q), out, moved, Learnable(q, q, q)), moved)
""",
    # The first thread takes the first sequence, which is empty as all but one are; then it waits for the second.
    "a thread that waits for another": """
n = 1 << 16
lengths = np.zeros(8, np.int64)
lengths[1] = n
q = np.broadcast_to(rows(n), (8, 1, n, 64))
made = [nan(8, 1, n, 64) for _ in range(3)]
state_of_rows = np.ones((2, 8, 1, n), np.float32)
problem = problem_of(q, q, q, key_lengths=lengths)
interrupted(lambda: _kernel.backward(problem, q, q, state_of_rows, Learnable(*made)), *(part[1] for part in made))
""",
    "few rows": """
q, k = rows(1), rows(1 << 17)
many = 1 << 11
q, k = (np.broadcast_to(a, (many, *a.shape[1:])) for a in (q, k))
out = nan(many, 1, 1, 64)
interrupted(lambda: _kernel.forward(problem_of(q, k, k), out, None, None, None), out)
""",
    "gradient of a bias, in waves": """
n, heads = 1 << 16, 8
q = np.broadcast_to(rows(n), (1, heads, n, 64))
bias = np.broadcast_to(np.zeros((1, 1), np.float32), (n, n))
made = [nan(1, heads, n, 64) for _ in range(3)]
d_bias = np.zeros((1, 1, n, 1), np.float32)
d_bias = np.lib.stride_tricks.as_strided(d_bias, (1, heads, n, n), (0, 0, 4, 0), writeable=True)
state_of_rows = np.ones((2, 1, heads, n), np.float32)
problem = problem_of(q, q, q, bias=bias)
interrupted(lambda: _kernel.backward(problem, q, q, state_of_rows, Learnable(*made, bias=d_bias)), *made)
""",
}

# The team has to be there before it can be joined.
TORCH = """
import torch
torch.set_num_threads(2)
torch.randn(10**6).exp_()
assert _kernel.has_openmp()
"""

TORCH_CALLS = {
    "forward on the team": TORCH + FORWARD.format(team=2),
    "fewer threads than the team has": TORCH
    + "torch.set_num_threads(4)\n"
    + FORWARD.format(team=4)
    + "torch.set_num_threads(2)\n",
    "backward on the team": TORCH + CALLS["backward"].replace("(*made))", "(*made), team=2)", 1),
    "a thread of the team that waits for another": TORCH
    + CALLS["a thread that waits for another"].replace("(*made))", "(*made), team=2)", 1),
    "backward of autograd": TORCH
    + """
from rootdk.backends.torch import kernel as torch_kernel

q = torch.from_numpy(rows(N)[0]).requires_grad_()
made = [nan(1, 1, N, 64)]
forward, backward = torch_kernel.forward, torch_kernel.backward
torch_kernel.forward = lambda problem, row_state, *filled: (row_state.fill_(1), torch.ones_like(problem.query))[1]
torch_kernel.empty_gradients = lambda *tensors: tuple(torch.full_like(t, torch.nan) for t in tensors)
out = rootdk.attention(q, q, q)
torch_kernel.forward = forward
interrupted(out.sum().backward, made[0])
assert q.grad is None
""",
}


SET_TARGET = "_kernel.set_target({!r})\nexpected = everything(small, d_out, causal=True)\n"
TARGET_CALLS = {
    f"{call} on {name}": SET_TARGET.format(name) + CALLS[call]
    for name in TARGETS
    for call in ("half types", "backward")
}


def run(program: str) -> list[str]:
    """What the program prints, with a SIGINT a moment after each time it has said that it makes a call."""
    unlimited = {k: v for k, v in os.environ.items() if k not in ("OMP_NUM_THREADS", "ROOTDK_NUM_THREADS")}
    with subprocess.Popen(
        [sys.executable, "-c", START + program],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=Path(__file__).parents[1] / "support",
        env=unlimited,
    ) as process:
        assert process.stdout is not None
        said = []
        end = threading.Timer(600, process.kill)  # emulated processors take minutes
        end.start()
        try:
            for line in process.stdout:
                said.append(line.strip())
                if said[-1] == "calling":
                    time.sleep(0.2)  # to be inside; where it is not, the outcome is the same
                    process.send_signal(signal.SIGINT)
        finally:
            end.cancel()
            process.kill()
    return said


@pytest.mark.parametrize("calls", [CALLS, TORCH_CALLS, TARGET_CALLS], ids=["alone", "beside torch", "on every target"])
def test_it_ends_and_the_next_call_is_right(calls: dict[str, str]) -> None:
    said = run("".join(f"print({name!r})\n{call}" for name, call in calls.items()))
    assert said == [line for name in calls for line in (name, "calling", "interrupted")]


def test_calls_of_other_threads_go_on() -> None:
    """One of them has the pool, or waits for none: whoever is interrupted, the others' results are right to the bit."""
    program = """
over = threading.Event()
wrong, calls = [], []


def others():
    while not over.is_set():
        try:
            assert_same_bits(everything(small, d_out, causal=True), expected)
            calls.append(1)
        except BaseException as error:
            wrong.append(error)


beside = [threading.Thread(target=others) for _ in range(2)]
for thread in beside:
    thread.start()
workers_at_rest = lambda: None  # the others are not
"""
    end = """
so_far = len(calls)
while len(calls) < so_far + 3 and not wrong:
    time.sleep(0.01)
over.set()
for thread in beside:
    thread.join()
assert not wrong, wrong
"""
    assert run(program + CALLS["forward"] + end) == ["calling", "interrupted"]


def test_a_handler_that_makes_calls_of_its_own() -> None:
    """It runs in the middle of an item, on the same thread: the item goes on where it was, and to the same bits.

    The handler computes as its program does: the kernel flushes subnormal numbers to zero, Python does not.
    """
    program = """
larger = [rng.standard_normal((1, 3000, 200), dtype=np.float32) for _ in range(3)]
expected_larger = everything(larger, larger[0])
tiny = np.float32(1e-40)
calls_made, kept = [], []


def handler(_, frame):
    if frame.f_code.co_name in ("_forward", "pull_back"):  # they call the kernel
        calls_made.append(1)
        kept.append(float(tiny * np.float32(0.5)) > 0)
        assert_same_bits(everything(small, d_out, causal=True), expected)


signal.signal(signal.SIGALRM, handler)
for threads in (1, 2):
    rootdk.set_num_threads(threads)
    before = len(calls_made)
    while len(calls_made) < before + 3:
        signal.setitimer(signal.ITIMER_REAL, 0.06)
        found = everything(larger, larger[0])
        signal.setitimer(signal.ITIMER_REAL, 0)
        assert_same_bits(found, expected_larger)
assert all(kept)
print("all the same")
"""
    assert run(program) == ["all the same"]
