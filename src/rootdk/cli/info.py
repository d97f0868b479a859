"""`rootdk info`: what is installed here. A measured time means nothing without its machine."""

import platform
from pathlib import Path

import click

from rootdk.processes import cpus_allowed
from rootdk.version import __version__

from . import options


@click.command()
@options.data("Print JSON instead of a list.", "one row per fact")
def info(as_json: bool, as_csv: bool) -> None:
    """Version, instruction set in use, threads."""
    facts = describe()
    listed = {name: ", ".join(value) if isinstance(value, list) else value for name, value in facts.items()}
    rows = ({"name": name, "value": value} for name, value in listed.items())
    names = max(map(len, facts))
    lines = (f"{name:<{names}}  {value}" for name, value in listed.items())
    options.show(as_json, as_csv, facts, rows, lambda _width: lines)


def describe() -> dict[str, str | int | list[str]]:
    """Facts about the package and the machine, in the order that they are shown."""
    import numpy as np

    from rootdk.backends import kernel

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


def cpu_model() -> str:
    """Name of the processor as the system gives it."""
    facts = Path("/proc/cpuinfo")
    if facts.exists():
        for line in facts.read_text("utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
