"""The measuring process: `python -m rootdk.bench.child OPTIONS REPORT`, started by launch.py."""

import json
import os
import sys
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from rootdk._backends import kernel
from rootdk.bench import machine, memory, race, targets
from rootdk.bench.peers import NAMES, open_peers
from rootdk.bench.shapes import MATRIX, QUICK
from rootdk.errors import RootdkError

SECONDS_PER_SHAPE, SECONDS_PER_QUICK_SHAPE = 8.0, 1.0
QUICK_MEMORY_KEYS = 16_384


def measure_all(options: dict[str, Any]) -> dict[str, Any]:
    """Run the sections that were asked for, and return the report."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    threads, sections, quick = options["threads"], set(options["sections"]), options["quick"]
    _narrow_affinity(threads)
    kernel().set_num_threads(threads)
    peers, absent = open_peers(options["peers"] or NAMES, threads)
    if options["peers"] and absent:
        raise SystemExit("\n".join(f"peer {name}: {reason}" for name, reason in absent.items()))

    shapes, budget = (QUICK, SECONDS_PER_QUICK_SHAPE) if quick else (MATRIX, SECONDS_PER_SHAPE)
    report: dict[str, Any] = {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "machine": machine.describe(),
        "threads": threads,
        "load_before": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "quick": quick,
        "sections": sorted(sections),
        "peers": {peer.name: peer.version for peer in peers},
        "absent": absent,
    }
    forward = bool(sections & {"forward", "measure"})
    steps = len(shapes) * (forward + ("backward" in sections)) + ("memory" in sections)
    columns = (TextColumn("{task.description:<34}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=steps)
        if forward:
            # Without "forward" only torch stays: measure is held against its unmeasured call.
            rivals = peers if "forward" in sections else [peer for peer in peers if peer.name == "torch"]
            report["forward"] = []
            for shape in shapes:
                progress.update(task, description=shape.name)
                report["forward"].append(race.forward(shape, rivals, measured="measure" in sections, budget=budget))
                progress.advance(task)
        if "backward" in sections:
            report["backward"] = []
            for shape in shapes:
                progress.update(task, description=f"{shape.name}, gradient")
                report["backward"].append(race.backward(shape, peers, budget=budget))
                progress.advance(task)
        if "memory" in sections:
            keys = QUICK_MEMORY_KEYS if quick else memory.KEYS
            progress.update(task, description=f"memory at {keys} keys")
            report["memory"] = memory.in_fresh_process(keys)
            progress.advance(task)
    report["targets"] = targets.judge(report)
    return report


def _narrow_affinity(threads: int) -> None:
    """Leave as many CPUs as threads: some libraries have no setting and take every CPU that they may use."""
    if hasattr(os, "sched_setaffinity"):
        allowed = sorted(os.sched_getaffinity(0))
        if threads < len(allowed):
            os.sched_setaffinity(0, allowed[:threads])


if __name__ == "__main__":
    try:
        found = measure_all(json.loads(sys.argv[1]))
    except RootdkError as error:
        raise SystemExit(f"rootdk bench: {error}") from None
    Path(sys.argv[2]).write_text(json.dumps(found))
