"""How much memory one long call needs above its inputs and its output, in a process of its own.

It is the first call of that process, so that all of it counts: the scratch that later calls find in place, the threads
that it starts, the kernel that it loads.

The peak is read from VmHWM where the system has it. The usual ru_maxrss is kept across exec(): a child of a large
process starts with its parent's peak, and a call that stays below that peak would seem to need nothing.
"""

import json
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

KEYS, D = 131_072, 64


def in_fresh_process(keys: int = KEYS) -> dict[str, Any]:
    """Start this module again and return what it prints."""
    command = [sys.executable, "-m", "rootdk.bench.memory", str(keys)]
    finished = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)  # noqa: S603
    result: dict[str, Any] = json.loads(finished.stdout)
    return result


def measure_call(keys: int) -> dict[str, Any]:
    """One head, float32: resident memory before the call, peak after it, and what neither inputs nor output explain."""
    import time

    import numpy as np

    import rootdk

    rng = np.random.default_rng(0)
    query, key, value = (rng.standard_normal((1, keys, D), dtype=np.float32) for _ in range(3))
    before = status("VmRSS")
    start = time.perf_counter()
    out = rootdk.attention(query, key, value)
    seconds = time.perf_counter() - start
    return {
        "keys": keys,
        "d": D,
        "input_bytes": query.nbytes + key.nbytes + value.nbytes,
        "output_bytes": out.nbytes,
        "extra_bytes": max(0, status("VmHWM") - before - out.nbytes),
        "full_scores_bytes": keys * keys * 4,
        "seconds": seconds,
    }


def status(field: str) -> int:
    """Bytes of one field of this process's status; elsewhere than on Linux, the peak so far."""
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith(field))
        return int(line.split()[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


if __name__ == "__main__":
    sys.stdout.write(json.dumps(measure_call(int(sys.argv[1]))))
