"""Processes that make up a group on one machine, for the tests of rootdk.distributed."""

import signal
import socket
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

# Long enough for a busy machine to start and import; a test that comes to it has failed.
PATIENCE = 240.0


def together(
    work: Callable[..., Any], ranks: int, folder: Path, *arguments: Any, killed: int | None = None, tcp: bool = False
) -> Any:
    """What work(rank, *arguments) returned, rank by rank, each in a process of its own, None for one that was killed.

    tcp   rank 0 holds the store, in place of a file
    An exception in a process, another end than expected, or one that does not come, is a failure here.
    """
    # Each process is a fork of one that has imported everything and done nothing: torch takes seconds to import.
    context = torch.multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch.distributed", "rootdk.distributed.calls"])
    where = f"tcp://127.0.0.1:{_free_port()}" if tcp else f"file://{folder}/meet"
    started = [
        context.Process(target=_in_process, args=(work, rank, ranks, where, str(folder), arguments), daemon=True)
        for rank in range(ranks)
    ]
    for process in started:
        process.start()
    until = time.monotonic() + PATIENCE
    for process in started:
        process.join(max(until - time.monotonic(), 0.1))
    hanging = [rank for rank, process in enumerate(started) if process.is_alive()]
    for rank in hanging:
        started[rank].kill()
    assert not hanging, f"ranks {hanging} did not end"
    results: list[Any] = []
    for rank, process in enumerate(started):
        if rank == killed:
            assert process.exitcode == -signal.SIGKILL
            results.append(None)
            continue
        error = folder / f"{rank}.error"
        assert not error.exists(), f"rank {rank}: {error.read_text()}"
        assert process.exitcode == 0, f"rank {rank} ended with {process.exitcode}"
        results.append(torch.load(folder / f"{rank}.pt", weights_only=False))
    return results


def _free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


def _in_process(
    work: Callable[..., Any], rank: int, ranks: int, where: str, folder: str, arguments: tuple[Any, ...]
) -> None:
    torch.set_num_threads(1)
    try:
        dist.init_process_group("gloo", init_method=where, rank=rank, world_size=ranks)
        torch.save(work(rank, *arguments), f"{folder}/{rank}.pt")
        dist.destroy_process_group()
    except BaseException:
        Path(f"{folder}/{rank}.error").write_text(traceback.format_exc())
        raise
