"""Several ranks on this machine, each a process of its own, for benchmarks and for checking the model of the cost.

What they are to do is a function `run(task)` of a module; the process group is there when it is called, and what it
returns must be something that JSON can hold.
"""

import json
import os
import subprocess
import tempfile
import time
from importlib import import_module
from pathlib import Path
from typing import Any

from ..errors import RootdkError
from ..processes import started


class LocalRanksError(RootdkError, RuntimeError):
    """A rank on this machine ended early or not in time; the message says which and how."""


def run_ranks(
    ranks: int,
    module: str,
    task: dict[str, Any],
    threads: int = 1,
    timeout: float = 600.0,
    package: Path | None = None,
) -> list[Any]:
    """What `module.run(task)` returned, rank by rank.

    threads   of each rank
    timeout   seconds until all of them must have ended
    package   folder of the package that the module belongs to, where that is not installed
    """
    names = ("OMP_NUM_THREADS", "ROOTDK_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    environment = os.environ | dict.fromkeys(names, str(threads))
    with tempfile.TemporaryDirectory() as folder:
        arguments = [[str(rank), str(ranks), folder, module, json.dumps(task)] for rank in range(ranks)]
        pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "errors": "replace"}
        until = time.monotonic() + timeout
        try:
            with started(f"{__name__}:be_a_rank", arguments, package, env=environment, **pipes) as processes:
                for rank, process in enumerate(processes):
                    _, errors = process.communicate(timeout=max(until - time.monotonic(), 0.1))
                    if process.returncode != 0:
                        # torch may put the rank before every line of a traceback.
                        last = (errors.strip().splitlines() or ["no message"])[-1].removeprefix(f"[rank{rank}]: ")
                        raise LocalRanksError(f"rank {rank} of {ranks} ended with code {process.returncode}: {last}")
        except subprocess.TimeoutExpired:
            raise LocalRanksError(f"{ranks} ranks: must end within {timeout:g} s, and did not") from None
        return [json.loads((Path(folder) / f"{rank}.json").read_text()) for rank in range(ranks)]


def be_a_rank(rank: str, ranks: str, folder: str, module: str, task: str) -> None:
    """What each process does; the results go into the folder."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=int(rank), world_size=int(ranks))
    result = import_module(module).run(json.loads(task))
    (Path(folder) / f"{rank}.json").write_text(json.dumps(result))
    dist.destroy_process_group()
