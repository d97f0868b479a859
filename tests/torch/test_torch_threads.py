"""Threads beside torch: a call on tensors runs on torch's own team, obeys its size, and survives a fork."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import rootdk
from rootdk.backends import kernel
from rootdk.backends.torch import kernel as torch_kernel


@pytest.fixture(autouse=True)
def torch_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


class Spy:
    """The compiled module, and the size of the team that it was given."""

    def __init__(self) -> None:
        self.teams: list[int] = []

    def alike(self, *tensors: Any) -> Any:
        return kernel().alike(*tensors)

    def forward(self, *arguments: Any) -> None:
        self.teams.append(arguments[-1])
        kernel().forward(*arguments)

    def backward(self, *arguments: Any) -> None:
        self.teams.append(arguments[-1])
        kernel().backward(*arguments)


def everything() -> list[torch.Tensor]:
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 3, 300, 24, requires_grad=True) for _ in range(3))
    out = rootdk.attention(q, k, v, causal=True)
    return [out, *torch.autograd.grad(out.square().sum(), (q, k, v))]


@pytest.mark.parametrize("n", [1, 2, 5])
def test_the_team_is_torchs(monkeypatch: pytest.MonkeyPatch, n: int) -> None:
    spy = Spy()
    monkeypatch.setattr(torch_kernel, "kernel", lambda: spy)
    torch.set_num_threads(n)
    everything()
    assert spy.teams == [n, n]


def test_the_same_bits_on_any_team() -> None:
    torch.set_num_threads(1)
    expected = everything()
    for n in (2, 5, 2):
        torch.set_num_threads(n)
        assert all(torch.equal(ours, theirs) for ours, theirs in zip(everything(), expected, strict=True))


def run(program: str) -> str:
    environment = {k: v for k, v in os.environ.items() if k not in ("OMP_NUM_THREADS", "ROOTDK_NUM_THREADS")}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


_START = """
import os, torch, rootdk
from rootdk.backends import kernel
def tasks():
    return len(os.listdir("/proc/self/task"))
torch.set_num_threads(3)
rootdk.set_num_threads(3)
q = torch.randn(1, 4, 400, 32)
torch.mm(torch.randn(900, 900), torch.randn(900, 900))
"""


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="only Linux lists the threads of a process")
def test_no_second_set_of_threads() -> None:
    counts = run(
        _START
        + """
torch.randn(10**6).exp_()  # torch's own loop has started its team
before = tasks()
rootdk.attention(q, q, q)
beside_torch = tasks()
rootdk.attention(q.numpy(), q.numpy(), q.numpy())
print(kernel().has_openmp(), beside_torch - before, tasks() - beside_torch)
"""
    )
    assert counts == "True 0 2", (
        "a tensor's call starts no thread; that of an array starts its own, which shows that they count"
    )


def test_one_thread_of_torch_is_one_thread_here() -> None:
    counts = run(
        _START
        + """
torch.set_num_threads(1)
before = tasks()
rootdk.attention(q, q, q)
print(tasks() - before)
"""
    )
    assert counts == "0"


def test_a_child_of_fork_does_not_wait_for_the_parents_team() -> None:
    said = run(
        _START
        + """
expected = rootdk.attention(q, q, q)
child = os.fork()
if child == 0:
    same = (rootdk.attention(q, q, q).numpy() == expected.numpy()).all()  # torch's own comparison would wait for ever
    os._exit(0 if same and not kernel().has_openmp() else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), torch.equal(rootdk.attention(q, q, q), expected))
"""
    )
    assert said == "0 True"
