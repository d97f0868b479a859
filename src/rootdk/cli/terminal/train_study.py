"""`rootdk train-study`: check everything that can be checked first, sweep, print, write."""

import os
import platform
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from rootdk.files import write_atomically
from rootdk.lab.training import Results, RunSpec
from rootdk.lab.training.engine import Engine, check_installed, check_ray
from rootdk.lab.training.run_lists import read_specs
from rootdk.lab.training.store import Store
from rootdk.lab.training.sweep import sweep
from rootdk.untrusted import shown_text
from rootdk.version import __version__

from .command import check_writable
from .ending import last_words
from .trained import lines
from .training import shown


@dataclass(frozen=True, slots=True)
class Order:
    """What was asked for."""

    size: str
    tasks: tuple[str, ...]
    spec: Path | None
    runs: Path | None
    workers: int | None
    engine: str
    address: str | None
    fresh: bool

    def specs(self) -> tuple[RunSpec, ...]:
        """The runs to do, checked."""
        if self.spec is not None:
            return read_specs(self.spec)
        from rootdk.lab.training.run_lists import plan

        return plan(self.size, self.tasks) if self.tasks else plan(self.size)

    def start_engine(self) -> Engine:
        """Where the runs are done."""
        if self.engine == "ray":
            check_ray()
            from rootdk.lab.training.ray_engine import RayEngine

            return RayEngine(self.address, self.workers)
        from rootdk.lab.training.local_engine import LocalEngine

        return LocalEngine(self.workers)


def answer(order: Order, *, out: Path | None, report: Path | None, as_json: bool) -> None:
    """Do the order. What is wrong with it is said before anything runs."""
    kept = f"finished runs are kept in {shown_text(Store(order.runs).place)}, and the same command goes on from there"
    with last_words(f"interrupted; {kept}"):
        _answer(order, out, report, as_json)


def _answer(order: Order, out: Path | None, report: Path | None, as_json: bool) -> None:
    specs = order.specs()
    check_installed(specs)
    if out is not None:
        check_writable(out, "--out")
    if report is not None:
        from rootdk.lab.report import check_plotly

        check_plotly()
        check_writable(report, "--report")
    results = _results(order, specs)
    if as_json:
        click.echo(results.to_json(), nl=False)
    else:
        click.echo("\n".join(lines(results)))
    if out is not None:
        _write("--out", out, results.to_json())
        click.echo(f"Results: {out}", err=as_json)
    if report is not None:
        from rootdk.lab.report import render_training

        _write("--report", report, render_training(results))
        click.echo(f"Report: {report}", err=as_json)


def _results(order: Order, specs: Sequence[RunSpec]) -> Results:
    start, notes = time.monotonic(), list[str]()
    store = Store(order.runs, notes.append)
    try:
        engine = order.start_engine()
        with shown(specs) as tell:
            runs = sweep(specs, store, engine, tell, order.fresh)
    finally:
        for note in dict.fromkeys(notes):
            click.echo(note, err=True)
    return Results.of(runs, **_about(order, time.monotonic() - start))


def _about(order: Order, seconds: float) -> dict[str, str]:
    """What made the runs. A run says itself how long it took; seconds is for all of them, kept ones for nothing."""
    from importlib.metadata import version

    from rootdk.backends import kernel

    return {
        "rootdk": __version__,
        "torch": version("torch"),
        "numpy": version("numpy"),
        "python": platform.python_version(),
        "size": order.size if order.spec is None else order.spec.name,
        "tasks": " ".join(order.tasks) or "all",
        "cpus": str(os.cpu_count()),
        "machine": platform.machine(),
        "kernel": kernel().target(),
        "seconds": f"{seconds:.1f}",
    }


def _write(option: str, path: Path, text: str) -> None:
    try:
        write_atomically(path, text)
    except OSError as error:
        raise click.ClickException(f"{option}: cannot write {path}: {error.strerror or error}") from error
