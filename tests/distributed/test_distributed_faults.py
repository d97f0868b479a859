"""What goes wrong between processes: every rank says the same, none hangs, and no result is used."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from ring_ranks import together
from torch.autograd import forward_ad

import rootdk
from rootdk import distributed
from rootdk.distributed import ring
from rootdk.distributed.peers import BLOCK, Peers
from rootdk.errors import ArgumentError, ArgumentTypeError, RankError

SCALING = (Path(__file__).parents[2] / "docs" / "scaling.md").read_text("utf-8")
RANKS = 4
# Of a rank that sleeps. Where one dies the others must notice without it: their timeout is longer than a test may take.
TIMEOUT, NEVER = 6.0, 100_000.0


def tensors(rank: int, **sizes: Any) -> Any:
    torch.manual_seed(rank)
    heads, rows, d = sizes.get("heads", 2), sizes.get("rows", 5), sizes.get("d", 8)
    return torch.randn(3, heads, rows, d, dtype=sizes.get("dtype", torch.float32)).unbind(0)


def refused(call: Any) -> str:
    """The error of a call that must be refused, its type in front."""
    try:
        call()
    except (ArgumentError, RankError) as error:
        return f"{type(error).__name__}: {error}"
    except ArgumentTypeError as error:
        return f"ArgumentTypeError: {error}"
    return "no error"


# --- arguments that do not fit each other: the group lives on


def misfits(rank: int) -> dict[str, Any]:
    odd = rank == 2
    q, k, v = tensors(rank)
    attention = distributed.attention
    answers = {
        "causal": refused(lambda: attention(q, k, v, causal=not odd)),
        "scale": refused(lambda: attention(q, k, v, scale=0.5 if odd else None)),
        "layout": refused(lambda: attention(q, k, v, layout="balanced" if odd else "contiguous")),
        "key_lengths": refused(lambda: attention(q[None], k[None], v[None], key_lengths=[12 + odd])),
        "dtype": refused(lambda: attention(*tensors(rank, dtype=torch.float64 if odd else torch.float32))),
        "heads": refused(lambda: attention(*tensors(rank, heads=4 if odd else 2))),
        "width": refused(lambda: attention(*tensors(rank, d=16 if odd else 8))),
        "axes": refused(lambda: attention(q[None], k[None], v[None]) if odd else attention(q, k, v)),
        "own": refused(lambda: attention(q, k[..., :4] if odd else k, v)),
        "own type": refused(lambda: attention(q, k, v.numpy() if odd else v)),
        "own text": refused(lambda: attention(q, k, v, layout="環" * 2000 if odd else "contiguous")),
        "requires_grad": refused(lambda: attention(q.clone().requires_grad_(odd), k, v)),
        "call": refused(lambda: distributed.measure(q, k, v) if odd else attention(q, k, v)),
        "everywhere": refused(lambda: attention(q, k, v, softcap=-1.0)),
    }
    with forward_ad.dual_level():
        moved = forward_ad.make_dual(q, torch.ones_like(q))
        answers["tangent"] = refused(lambda: attention(moved if odd else q, k, v))
    # After all that the group still works.
    answers["after"] = distributed.unshard(attention(q, k, v))
    x, y = (t.clone().requires_grad_() for t in (q, k))
    first, second = attention(x, k, v), attention(y, k, v)
    answers["order"] = refused(lambda: (second if odd else first).sum().backward())
    answers["whole"] = [distributed.unshard(t) for t in (q, k, v)]
    return answers


EXPECTED = {
    "causal": "ArgumentError: causal: must be the same on every rank, got True on ranks 0, 1, 3 and False on rank 2",
    "scale": "ArgumentError: scale: must be the same on every rank, got None on ranks 0, 1, 3 and 0.5 on rank 2",
    "layout": "ArgumentError: layout: must be the same on every rank, "
    "got 'contiguous' on ranks 0, 1, 3 and 'balanced' on rank 2",
    "key_lengths": "ArgumentError: key_lengths: must be the same on every rank, got 'int64 (1,) #",
    "dtype": "ArgumentError: dtype: must be the same on every rank, "
    "got 'float32' on ranks 0, 1, 3 and 'float64' on rank 2",
    "heads": "ArgumentError: query: must have the same shape on every rank, but for its number of rows, "
    "got (2, n, 8) on ranks 0, 1, 3 and (4, n, 8) on rank 2",
    "width": "ArgumentError: query: must have the same shape on every rank, but for its number of rows, "
    "got (2, n, 8) on ranks 0, 1, 3 and (2, n, 16) on rank 2",
    "axes": "ArgumentError: query: must have the same shape on every rank, but for its number of rows, "
    "got (2, n, 8) on ranks 0, 1, 3 and (1, 2, n, 8) on rank 2",
    "own": "ArgumentError: key: last axis must be 8 to match query, got 4 (query (2, 5, 8), key (2, 5, 4)) (on rank 2)",
    "own type": "ArgumentTypeError: value: must be a torch tensor like query, got numpy.ndarray (on rank 2)",
    "own text": "ArgumentError: layout: must be 'contiguous' or 'balanced', got '環環環",
    "requires_grad": "ArgumentError: requires_grad: must be the same on every rank, "
    "got False on ranks 0, 1, 3 and True on rank 2",
    "call": "ArgumentError: call: every rank must make the same calls in the same order, "
    "got 'rootdk.distributed.attention' on ranks 0, 1, 3 and 'rootdk.distributed.measure' on rank 2",
    "tangent": "ArgumentError: query: must have no tangent on a ring, got one (on rank 2)",
    "everywhere": "ArgumentError: softcap: must be a finite number > 0, got -1.0",
    "order": "ArgumentError: call: every rank must make the same calls in the same order, "
    "got 'the backward pass of call ",
}


@pytest.fixture(scope="module")
def misfit(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return together(misfits, RANKS, tmp_path_factory.mktemp("misfits"))


@pytest.mark.parametrize("what", EXPECTED)
def test_ranks_that_disagree_are_told_so_everywhere(misfit: Any, what: str) -> None:
    errors = [answers[what] for answers in misfit]
    assert errors == [errors[0]] * RANKS
    assert errors[0].startswith(EXPECTED[what])


def test_the_group_works_after_a_refusal(misfit: Any) -> None:
    expected = rootdk.attention(*misfit[0]["whole"])
    torch.testing.assert_close(misfit[0]["after"], expected)


# --- ranks that are lost: the group is of no use afterwards


def lose(rank: int, how: str, who: int = 2, folder: str = "") -> dict[str, Any]:
    """One rank is lost, in the way that `how` says; the others tell what they saw."""
    q, k, v = tensors(rank, rows=64)
    q.requires_grad_()
    distributed.attention(q, k, v)  # connected, and past the imports
    dist.barrier()
    outcome: dict[str, Any] = {}
    if rank == who:
        _lose_itself(how)
    if rank == who - 1 and how == "a message is forgotten":
        _forget_sent_blocks()
    try:
        out = distributed.attention(q, k, v, timeout=TIMEOUT if how == "asleep" else NEVER)
        outcome["returned"] = True
        if how == "dead before backward" and rank == who:
            os.kill(os.getpid(), signal.SIGKILL)
        out.sum().backward()
        outcome["result"] = "a result"
    except (RankError, MemoryError) as error:
        outcome |= {"type": type(error).__name__, "error": str(error), "rank": getattr(error, "rank", None)}
    outcome["gradient"] = q.grad
    if folder:
        outcome["all told"] = _wait_for_all(rank, Path(folder))
    return outcome


def _wait_for_all(rank: int, folder: Path) -> bool:
    """Alive until every rank has been told: a process that ends closes its connections, and tells the others so."""
    (folder / f"told-{rank}").touch()
    for _ in range(400):
        if len(list(folder.glob("told-*"))) == RANKS:
            return True
        time.sleep(0.05)
    return False


def _lose_itself(how: str) -> None:
    if how == "dead":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "dead at the end":  # every block has gone round: the others have all that they need
        Peers.part = lambda _: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[method-assign]
    if how == "asleep":
        time.sleep(TIMEOUT + 2.0)
    if how in ("dead in the ring", *OUT_OF_MEMORY):
        # In the second block: the neighbours wait for it, rank 0 waits for a neighbour.
        ours, calls = ring.torch_kernel.forward, []

        def broken(*arguments: Any) -> Any:
            calls.append(0)
            if len(calls) == 2:
                if how in OUT_OF_MEMORY:
                    raise MemoryError("no room")
                os.kill(os.getpid(), signal.SIGKILL)
            return ours(*arguments)

        ring.torch_kernel.forward = broken


def _forget_sent_blocks() -> None:
    """As gloo does now and then with a message that it is writing when the connection closes: the wait never ends."""
    post = Peers.post

    def forgetful(self: Peers, *operations: Any) -> list[Any]:
        messages = post(self, *operations)
        for number, (send, _, _, tag) in enumerate(operations):
            if send is dist.isend and tag == BLOCK:
                never = SimpleNamespace(wait=lambda *_: threading.Event().wait(), sent=messages[number].work)
                messages[number] = messages[number]._replace(work=never)
        return messages

    Peers.post = forgetful  # type: ignore[method-assign]


OUT_OF_MEMORY = ("out of memory", "a message is forgotten")
REASONS = {
    "dead": "rank 2 has closed its connection to rank ",
    "asleep": "rank 2 did not answer rank ",
    "dead in the ring": "rank 2 has closed its connection to rank ",
    "dead at the end": "rank 2 has closed its connection to rank ",
    "dead before backward": "rank 2 has closed its connection to rank ",
    **dict.fromkeys(OUT_OF_MEMORY, "rank 2 stopped with MemoryError: no room"),
}


@pytest.mark.parametrize("how", REASONS)
def test_a_lost_rank_is_reported_everywhere_and_in_time(tmp_path: Path, how: str) -> None:
    outcomes = together(lose, RANKS, tmp_path, how, killed=2 if how.startswith("dead") else None)
    stopped = [outcome for outcome in outcomes if outcome is not None and outcome["type"] == "RankError"]
    reasons = {outcome["error"].partition(";")[0] for outcome in stopped}
    assert len(reasons) == 1, reasons
    assert reasons.pop().startswith(REASONS[how])
    for rank, outcome in enumerate(outcomes):
        if outcome is None:
            continue
        assert "result" not in outcome
        assert ("returned" in outcome) == (how == "dead before backward")
        assert outcome["gradient"] is None
        if rank == 2 and how in OUT_OF_MEMORY:
            assert outcome["type"] == "MemoryError"
            continue
        assert outcome["type"] == "RankError"
        assert outcome["rank"] == 2
        assert f"rank {rank} has stopped, nothing of this call is used" in outcome["error"]


def test_ranks_that_go_on_living_tell_each_other(tmp_path: Path) -> None:
    outcomes = together(lose, RANKS, tmp_path, "out of memory", 2, str(tmp_path))
    assert [outcome["all told"] for outcome in outcomes] == [True] * RANKS


def test_the_rank_that_holds_the_store_is_lost(tmp_path: Path) -> None:
    """Nobody can read a common reason then; each says what it saw, and none hangs."""
    outcomes = together(lose, RANKS, tmp_path, "dead in the ring", 0, killed=0, tcp=True)
    for outcome in outcomes[1:]:
        assert outcome["type"] == "RankError"
        assert outcome["gradient"] is None
        assert outcome["rank"] in (0, None)
        assert (outcome["rank"] == 0) == outcome["error"].startswith("rank 0 has closed its connection")
        assert outcome["rank"] == 0 or "; the store is gone too: it lives on rank 0;" in outcome["error"]


# --- without other ranks


def test_without_a_group() -> None:
    q = torch.zeros(1, 2, 4)
    with pytest.raises(ArgumentError, match=r"^group: torch.distributed must be initialised, got no process group"):
        distributed.attention(q, q, q)


def test_names_that_are_not_there() -> None:
    with pytest.raises(AttributeError, match="no attribute 'ring_attention'"):
        distributed.ring_attention  # noqa: B018


@pytest.fixture
def alone(tmp_path: Path) -> Any:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("alone")
def test_arguments() -> None:
    q = torch.zeros(1, 2, 4)
    for call, message in (
        (lambda: distributed.attention(q.numpy(), q, q), "query: must be a torch tensor, got ndarray"),
        (lambda: distributed.attention(q, q, q, layout="zigzag"), "layout: must be 'contiguous' or 'balanced', got"),
        (lambda: distributed.attention(q, q, q, timeout=0), "timeout: must be at least 0.001 seconds, got 0"),
        (lambda: distributed.attention(q, q, q, timeout="1"), "timeout: must be a number of seconds, a timedelta or"),
        (lambda: distributed.attention(q, q, q, 3), "group: must be a process group of torch.distributed, got 3"),
        (lambda: distributed.attention(q, q, q, scale=torch.tensor(1.0).requires_grad_()), "scale: must not require"),
        (lambda: distributed.attention(q, q, q, alibi=torch.tensor(1.0).requires_grad_()), "alibi: must not require"),
        (lambda: distributed.shard(q.numpy()), "tensor: must be a torch tensor, got ndarray"),
        (lambda: distributed.shard(q, axis=3), "axis: must be from -3 to 2 for a tensor of 3 axes, got 3"),
        (lambda: distributed.shard(q, axis=True), "axis: must be an int, got True"),
        (lambda: distributed.unshard(3), "shard: must be a torch tensor or a Reading, got int"),
        (lambda: distributed.positions(-1), "n: must be at least 0, got -1"),
        (lambda: distributed.positions([1, 2]), "n: must be 1 ints of at least 0, one per rank, got [1, 2]"),
        (lambda: distributed.positions([True]), "n: must be an int or one int per rank, got [True]"),
        (lambda: distributed.positions("4"), "n: must be an int or one int per rank, got '4'"),
    ):
        with pytest.raises((ArgumentError, ArgumentTypeError)) as raised:
            call()
        assert str(raised.value).startswith(message)


@pytest.mark.usefixtures("alone")
def test_lengths_may_be_integers_of_numpy() -> None:
    for n in (np.int64(3), [np.int32(3)]):
        assert distributed.positions(n).tolist() == [0, 1, 2]


@pytest.mark.slow
def test_the_script_of_the_guide_runs_under_torchrun(tmp_path: Path) -> None:
    script = tmp_path / "ring.py"
    script.write_text(
        next(part for part in SCALING.split("```python\n") if "init_process_group" in part).partition("```")[0]
    )
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("1024 rows, largest logit ")


def test_the_errors_of_the_guide_are_those_that_are_raised() -> None:
    expected = {text.partition(": ")[2] for text in EXPECTED.values()}
    for name in ("causal", "query", "key"):
        (line,) = [line.strip() for line in SCALING.splitlines() if line.startswith(f"    {name}: ")]
        assert line in expected
