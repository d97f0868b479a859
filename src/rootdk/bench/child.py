"""The measuring process: `python -m rootdk.bench.child OPTIONS REPORT`, started by launch.py."""

import json
import os
import sys
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from rootdk.backends import kernel
from rootdk.bench import machine, plan, targets
from rootdk.bench.peers import NAMES, open_peers
from rootdk.bench.setting import SECTIONS, Setting
from rootdk.errors import RootdkError

# These keys of the report hold the result of one step; the others a list with one entry per race.
SINGLE = ("explorer", "import", "memory")


def measure_all(options: dict[str, Any]) -> dict[str, Any]:
    """Run the sections that were asked for, and return the report."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    threads, quick = options["threads"], options["quick"]
    _narrow_affinity(threads)
    kernel().set_num_threads(threads)
    peers, absent = open_peers(options["peers"] or NAMES, threads)
    if options["peers"] and absent:
        raise SystemExit("\n".join(f"peer {name}: {reason}" for name, reason in absent.items()))

    setting = Setting(frozenset(options["sections"]), peers, threads, quick)
    report: dict[str, Any] = {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "machine": machine.describe(),
        "threads": threads,
        "load_before": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "quick": quick,
        "sections": [section for section in SECTIONS if section in setting.sections],
        "peers": {peer.name: peer.version for peer in peers},
        "absent": absent,
    }
    steps = list(plan.steps(setting))
    columns = (TextColumn("{task.description:<34}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=len(steps))
        for step in steps:
            progress.update(task, description=step.label)
            found = step.run()
            if step.key in SINGLE:
                report[step.key] = found
            else:
                report.setdefault(step.key, []).append(found)
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
