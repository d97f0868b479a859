"""What a fresh process pays: for `import rootdk`, and in memory for one long call, its first.

Import: seconds, the part of them above NumPy's, and which frameworks came along.

Memory: what the call needs above its inputs and its output. It is the first call of its process, so that all of it
counts: the scratch that later calls find in place, the threads that it starts, the kernel that it loads. The peak is
read from VmHWM where the system has it. The usual ru_maxrss is kept across exec(): a child of a large process starts
with its parent's peak, and a call that stays below that peak would seem to need nothing.
"""

import json
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import rootdk
from benchmarks.children import command
from benchmarks.race import timing
from benchmarks.section import STATISTICS, Report, Section, Setting, Step, Verdict, mebibytes, verdict

FRAMEWORKS = ("torch", "jax", "tensorflow", "scipy", "plotly", "ml_dtypes", "onnxruntime", "openvino", "transformers")
IMPORT_SECONDS = 0.15
# Text and not a function: nothing but the module itself may be loaded in that process.
_IMPORT = """
import sys
from time import perf_counter as now
start = now()
import {module}
seconds = now() - start
print(seconds, *sorted(set(sys.modules) & set({frameworks!r})))
"""
KEYS, QUICK_KEYS, D = 131_072, 16_384, 64
MOST_BYTES = 2**30


def _import_steps(setting: Setting) -> Iterator[Step]:
    yield Step("import", "import rootdk", lambda: measure_import(rounds=3 if setting.quick else 15), whole=True)


def measure_import(rounds: int, module: str = "rootdk") -> dict[str, Any]:
    """NumPy alone and the package, in turns, a new process each. The first round only fills the file cache."""
    seconds: dict[str, list[float]] = {"numpy": [], module: []}
    frameworks: list[str] = []
    for round_ in range(rounds + 1):
        for name, taken in seconds.items():
            line = [sys.executable, "-I", "-c", _IMPORT.format(module=name, frameworks=FRAMEWORKS)]
            ended = subprocess.run(line, check=True, stdout=subprocess.PIPE, text=True)  # noqa: S603
            took, *loaded = ended.stdout.split()
            if round_ > 0:
                taken.append(float(took))
            if name == module:
                frameworks = loaded
    above = [whole - numpy for numpy, whole in zip(seconds["numpy"], seconds[module], strict=True)]
    return {
        "seconds": {name: timing(taken) for name, taken in seconds.items()},
        "above_numpy": timing(above),
        "frameworks": frameworks,
    }


def _judge_import(report: Report) -> Iterator[Verdict]:
    row = report["import"]
    times = [row["seconds"]["rootdk"][statistic] for statistic in STATISTICS]
    reached = " / ".join(f"{seconds:.3f}" for seconds in times)
    yield verdict("import rootdk, seconds", f"<= {IMPORT_SECONDS:.2f}", reached, met=max(times) <= IMPORT_SECONDS)
    loaded = ", ".join(row["frameworks"]) or "none"
    yield verdict("import rootdk, frameworks loaded", "none", loaded, met=not row["frameworks"])


def _show_import(report: Report) -> Iterator[str]:
    row = report["import"]
    whole, numpy, above = (
        " / ".join(f"{times[statistic]:.3f}" for statistic in STATISTICS)
        for times in (row["seconds"]["rootdk"], row["seconds"]["numpy"], row["above_numpy"])
    )
    yield (
        f"import rootdk: {whole} s in a fresh process, best / median; NumPy alone {numpy} s, "
        f"the part above it {above} s; frameworks loaded: {', '.join(row['frameworks']) or 'none'}."
    )


def _memory_steps(setting: Setting) -> Iterator[Step]:
    keys = QUICK_KEYS if setting.quick else KEYS
    yield Step("memory", f"memory at {keys} keys", lambda: measure_memory(keys), whole=True)


def measure_memory(keys: int) -> dict[str, Any]:
    """What the process finds that makes the call."""
    calling = command(f"{__name__}:calling_process", str(keys))
    ended = subprocess.run(calling, check=True, stdout=subprocess.PIPE, text=True)  # noqa: S603
    result: dict[str, Any] = json.loads(ended.stdout)
    return result


def calling_process(keys: str) -> None:
    """What it does."""
    print(json.dumps(measure_call(int(keys))))


def measure_call(keys: int) -> dict[str, Any]:
    """One head, float32: resident memory before the call, peak after it, and what neither inputs nor output explain."""
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
        line = next(line for line in status.read_text("utf-8").splitlines() if line.startswith(field))
        return int(line.split()[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _judge_memory(report: Report) -> Iterator[Verdict]:
    memory = report["memory"]
    name = f"memory above inputs and output, {memory['keys']} keys"
    extra = memory["extra_bytes"]
    yield verdict(name, f"< {MOST_BYTES // 2**20} MiB", mebibytes(extra), met=extra < MOST_BYTES)


def _show_memory(report: Report) -> Iterator[str]:
    memory = report["memory"]
    yield (
        f"Memory: one head, {memory['keys']} keys, d = {memory['d']}: {mebibytes(memory['extra_bytes'])} above "
        f"inputs ({mebibytes(memory['input_bytes'])}) and output ({mebibytes(memory['output_bytes'])}) at the peak of "
        "the first call of a process, its scratch, its threads and the loaded kernel included; "
        f"all scores at once would be {mebibytes(memory['full_scores_bytes'])}."
    )


SECTIONS = (
    Section("import", _import_steps, _judge_import, _show_import),
    Section("memory", _memory_steps, _judge_memory, _show_memory),
)
