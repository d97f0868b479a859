"""`import rootdk` in fresh processes: seconds, the part of them above NumPy's, and which frameworks came along."""

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from rootdk.bench.ratios import timing
from rootdk.bench.setting import Setting, Step

FRAMEWORKS = ("torch", "jax", "tensorflow", "scipy", "plotly", "ml_dtypes", "onnxruntime", "openvino", "transformers")
_PROGRAM = """
import sys
from time import perf_counter as now
start = now()
import {module}
seconds = now() - start
print(seconds, *sorted(set(sys.modules) & set({frameworks!r})))
"""


def steps(setting: Setting) -> Iterator[Step]:
    """One step."""
    yield Step("import", "import rootdk", lambda: measure(rounds=3 if setting.quick else 15))


def measure(rounds: int, module: str = "rootdk") -> dict[str, Any]:
    """NumPy alone and the package, in turns, a new process each. The first round only fills the file cache."""
    seconds: dict[str, list[float]] = {"numpy": [], module: []}
    frameworks: list[str] = []
    for round_ in range(rounds + 1):
        for name, found in seconds.items():
            took, *loaded = fresh(name)
            if round_ > 0:
                found.append(float(took))
            if name == module:
                frameworks = loaded
    above = [whole - numpy for numpy, whole in zip(seconds["numpy"], seconds[module], strict=True)]
    return {
        "seconds": {name: asdict(timing(found)) for name, found in seconds.items()},
        "above_numpy": asdict(timing(above)),
        "frameworks": frameworks,
    }


def fresh(module: str) -> list[str]:
    """What the program prints: seconds, then the frameworks that are loaded."""
    program = _PROGRAM.format(module=module, frameworks=FRAMEWORKS)
    command = [sys.executable, "-c", program]
    ended = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)  # noqa: S603
    return ended.stdout.split()
