"""What a number was measured on. A time without its machine says nothing."""

import os
import platform
from pathlib import Path

import numpy as np

from rootdk.backends import kernel
from rootdk.version import __version__


def cpus_allowed() -> int:
    """How many CPUs this process may use: affinity, where the system knows it, and not the size of the machine."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cpu_model() -> str:
    """Name of the processor as the system gives it."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text("utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def describe() -> dict[str, str | int | list[str]]:
    """Facts about the package and the machine, in the order that they are shown."""
    compiled = kernel()
    return {
        "rootdk": __version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "kernel target": compiled.target(),
        "targets available": list(compiled.targets()),
        "threads": compiled.num_threads(),
        "compiler": compiled.compiler(),
        "element types": ["float32", "float64", "float16", "bfloat16"],
        "cpu": cpu_model(),
        "cpus allowed": cpus_allowed(),
        "system": f"{platform.system()} {platform.machine()}",
    }
