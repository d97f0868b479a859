"""`rootdk train-study`: what the scale does when a model learns."""

import math
import os
import platform
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rootdk.files import shown_text
from rootdk.rendering import csv_text

from . import options

if TYPE_CHECKING:
    from rootdk.lab.training import Group, Interval, Results, RunSpec
    from rootdk.lab.training.engine import Engine, Event
    from rootdk.lab.training.sweep import Tally

    from .lifetime import Bars

WIDTH = 80
_NAME = 25
_SECONDS_BETWEEN_LINES = 30.0
_SECONDS_BETWEEN_DRAWINGS = 0.25


@click.command()
@click.option(
    "--quick",
    "size",
    flag_value="quick",
    help="Few and short runs, one learning rate each: minutes on two cores. Without it, about three hours.",
)
@click.option("--missing", is_flag=True, help="Only the runs of the plan that the shipped results lack.")
@click.option(
    "--task",
    "tasks",
    type=click.Choice(["recall", "text", "digits"]),
    multiple=True,
    help="Only this task; can be repeated.",
)
@options.rule("Only this rule. ", ())
@click.option(
    "--spec",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A JSON file that lists the runs; replaces --quick, --missing, --task and --rule.",
)
@click.option(
    "--runs",
    type=click.Path(path_type=Path),
    help="Where finished runs are kept.  [default: training in the cache folder]",
)
@click.option("--workers", type=options.Integer(1, 4096), help="Runs at a time. Default: one per core.")
@click.option(
    "--engine",
    type=click.Choice(["local", "ray"]),
    default="local",
    show_default=True,
    help="Where runs are done: on this machine, or on a Ray cluster.",
)
@click.option(
    "--address",
    help="Address of the Ray cluster, as host:port. Default: a cluster on this machine that ends with the study.",
)
@options.file("--out", "Write everything that was recorded, as JSON.")
@options.file("--report", "Write a page to look at: one HTML file that opens offline.")
@click.option("--fresh", is_flag=True, help="Run everything again, also the runs that are kept.")
@options.data("Print JSON instead of the summary.", "one row per run, with its last numbers")
@click.pass_context
def train_study(
    ctx: click.Context, /, size: str | None, missing: bool, tasks: tuple[str, ...], rule: tuple[str, ...],
    spec: Path | None, runs: Path | None, workers: int | None, engine: str, address: str | None, out: Path | None,
    report: Path | None, fresh: bool, as_json: bool, as_csv: bool,
) -> None:  # fmt: skip
    """What the scale does when a model learns.

    Trains small models under several scale rules, d_k, learning rates and seeds, one run per core at a time. Finished
    runs are kept: after an interruption, the same command continues.

    Exit code 0: done; 1: a run or a file failed, or another study uses the folder of runs; 2: an option is wrong; 130:
    interrupted.
    """
    if spec is not None and (size or tasks or rule or missing):
        other = f"--{size}" if size else "--task" if tasks else "--rule" if rule else "--missing"
        raise click.UsageError(f"--spec and {other} exclude each other", ctx)
    if address is not None and engine != "ray":
        raise click.UsageError("--address needs --engine ray", ctx)
    from rootdk.lab.training import Results
    from rootdk.lab.training.engine import check_installed
    from rootdk.lab.training.store import Store
    from rootdk.lab.training.sweep import sweep

    from .lifetime import last_words

    notes = list[str]()
    store = Store(runs, notes.append)
    hint = f"finished runs are kept in {shown_text(store.place)}, and the same command continues from there"
    with last_words(f"interrupted; {hint}"):
        # If the request is wrong, there is an error before anything runs.
        specs = _specs(spec, size or "default", tasks, rule, missing)
        if not specs:
            click.echo("Nothing is missing: the shipped results have every run of this plan.")
            return
        check_installed(specs)
        if out is not None:
            options.check_writable(out, "--out")
        if report is not None:
            from rootdk.lab.report import check_plotly

            check_plotly()
            options.check_writable(report, "--report")
        start = time.monotonic()
        try:
            chosen = start_engine(engine, workers, address)
            with _shown(specs) as show:
                made = sweep(specs, store, chosen, show, fresh)
        finally:
            for note in dict.fromkeys(notes):
                click.echo(note, err=True)
        study = size or "default" if spec is None else spec.name
        results = Results.of(made, **_about(study, tasks, time.monotonic() - start))
        if as_json:
            click.echo(results.to_json(), nl=False)
        elif as_csv:
            click.echo(csv_text(_ends(results)), nl=False)
        else:
            click.echo("\n".join(lines(results)))
        if out is not None:
            options.write(out, results.to_json(), "--out")
            click.echo(f"Results: {out}", err=as_json or as_csv)
        if report is not None:
            from rootdk.lab.report import render_training

            options.write(report, render_training(results), "--report")
            click.echo(f"Report: {report}", err=as_json or as_csv)


def _specs(
    spec: Path | None, size: str, tasks: Sequence[str], rules: Sequence[str], missing: bool
) -> tuple["RunSpec", ...]:
    """The runs to do, checked."""
    from rootdk.lab.training import shipped
    from rootdk.lab.training.run import TASKS
    from rootdk.lab.training.sweep import plan, read_specs

    if spec is not None:
        return read_specs(spec)
    have = {run.spec for run in shipped().runs} if missing else set()
    return tuple(spec for spec in plan(size, tasks or TASKS, rules) if spec not in have)


def start_engine(engine: str, workers: int | None, address: str | None) -> "Engine":
    """The engine that does the runs."""
    from rootdk.lab.training.engine import LocalEngine, check_ray

    if engine == "local":
        return LocalEngine(workers)
    check_ray()
    from rootdk.lab.training.ray_engine import RayEngine

    return RayEngine(address, workers)


def _ends(results: "Results") -> Iterator[dict[str, Any]]:
    from rootdk.lab.training.results import lowest, steps_to

    for run in results.runs:
        row = {name: value for name, value in run.spec.to_dict().items() if name != "transplant"}
        best = lowest(run)
        row |= {"loss": best.loss, "accuracy": best.accuracy, "valid_loss": best.valid_loss, "best_step": best.step}
        row |= {"last_step": run.last.step, "end": run.end, "steps_to_90": steps_to(run), "spikes": run.spikes}
        yield row | {"seconds": run.seconds}


def _about(study: str, tasks: Sequence[str], seconds: float) -> dict[str, str]:
    """How the runs were made. Each run has its own time; seconds is for all together, kept runs count as 0."""
    from importlib.metadata import version

    from rootdk.backends import kernel
    from rootdk.version import __version__

    return {
        "rootdk": __version__,
        "torch": version("torch"),
        "numpy": version("numpy"),
        "python": platform.python_version(),
        "size": study,
        "tasks": " ".join(tasks) or "all",
        "cpus": str(os.cpu_count()),
        "machine": platform.machine(),
        "kernel": kernel().target(),
        "seconds": f"{seconds:.1f}",
    }


@contextmanager
def _shown(specs: Sequence["RunSpec"]) -> Iterator[Callable[["Event"], None]]:
    """Inside the block, a handler for events: bars on a terminal, elsewhere a line now and then."""
    from rootdk.lab.training.engine import Again, Failed, title
    from rootdk.lab.training.sweep import Tally

    from .lifetime import Bars

    tally = Tally(specs)
    shown = tally.begun
    with Bars() as bars:
        console = bars.console
        between = _SECONDS_BETWEEN_DRAWINGS if console.is_terminal else _SECONDS_BETWEEN_LINES

        def say(line: str) -> None:
            console.print(line, markup=False, highlight=False, soft_wrap=True)

        def show(event: "Event") -> None:
            nonlocal shown
            tally.count(event)
            if isinstance(event, Failed | Again):
                word = "failed" if isinstance(event, Failed) else "continues from its saved state"
                say(f"{title(event.spec)}: {word}: {event.reason}")
            now = tally.clock()
            if now - shown >= between:
                shown = now
                if console.is_terminal:
                    _draw(tally, bars)
                else:
                    say(tally.line)

        yield show


def _draw(tally: "Tally", bars: "Bars") -> None:
    """A bar for all, one per task, and one for each run that is running."""
    from rootdk.lab.training.engine import title
    from rootdk.lab.training.sweep import clock_face

    left = "" if tally.remaining is None else f", about {clock_face(tally.remaining)} left"
    bars(f"{tally.finished} of {len(tally.specs)} runs{left}", tally.done(tally.specs))
    for task in dict.fromkeys(spec.task for spec in tally.specs):
        runs = [spec for spec in tally.specs if spec.task == task]
        count = sum(tally.share[spec] == 1.0 for spec in runs)
        bars(f"{task} {count}/{len(runs)}", tally.done(runs), task)
    for spec in tally.specs:
        if spec in tally.active:
            bars(title(spec), tally.share[spec], spec)
        else:
            bars.drop(spec)


def lines(results: "Results") -> Iterator[str]:
    """The summary: a row per task, rule and d_k. Of learning rates it says only what these runs show."""
    from rootdk.lab.training import grouped, panels

    groups = grouped(results.runs)
    seeds = sorted({len(group.best.runs) for group in groups})
    number = f"{seeds[0]}" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    interval = f"{number} seeds ± 95% interval" if seeds[-1] > 1 else "one seed"
    yield f"{len(results.runs)} run{'s' * (len(results.runs) != 1)}; {interval}"
    explained = f"Loss: of the test set where that of the validation set is lowest. {_of_rates(groups)}"
    yield from textwrap.wrap(explained, WIDTH)
    for heading, panel in panels(groups).items():
        yield ""
        yield from textwrap.wrap(heading, WIDTH, subsequent_indent="  ")
        learning = panel[0].spec.stop == "learned"
        last = "to 90%" if learning else "diverged"
        yield f"{'rule':<{_NAME}} {'d_k':>4}  {'loss':>13}  {'accuracy':>8}  {'rate':>8}  {last:>11}"
        for group in sorted(panel, key=lambda group: group.spec.d_k):
            yield from _row(group, learning)
        if learning and (lost := sum(group.diverged for group in panel)):
            yield f"{lost} of {sum(len(group.runs) for group in panel)} runs diverged"


def _of_rates(groups: Sequence["Group"]) -> str:
    """What the learning rates of these groups are, and which of them may not be the best."""
    several = [group for group in groups if len(group.rates) > 1]
    if not several:
        return "One learning rate each: whether another would be better, these runs do not say"
    chosen = "Rate: of those tried, the best by the validation set"
    only = "; where one was tried, that one" if len(several) < len(groups) else ""
    ends = {group.edge for group in several} - {""}
    marks = "; < > the lowest or highest tried: a better one may lie beyond" if ends else ""
    return chosen + only + marks


def _row(group: "Group", learning: bool) -> Iterator[str]:
    best = group.best
    right = f"{100 * best.accuracy.mean:.1f}%" if math.isfinite(best.loss.mean) else "-"
    last = f"{group.diverged} of {sum(len(outcome.runs) for outcome in group.outcomes)}" if group.diverged else "-"
    if learning:
        steps = best.median_steps
        last = f"{'-' if steps is None else f'{steps:.0f}'} ({best.learned}/{len(best.runs)})"
    rate = f"{ {'lowest': '<', 'highest': '>'}.get(group.edge, '') }{best.rate:.3g}"
    name = group.line
    if len(name) > _NAME:
        yield name
        name = ""
    yield f"{name:<{_NAME}} {group.spec.d_k:>4}  {_spread(best.loss):>13}  {right:>8}  {rate:>8}  {last:>11}"


def _spread(loss: "Interval") -> str:
    """mean ± half, or the mean alone where one seed says nothing about others.

    >>> from rootdk.lab.training import Interval
    >>> _spread(Interval(1.2345, 0.0678, 3)), _spread(Interval(float("inf"), float("inf"), 3))
    ('1.234 ± 0.068', 'diverged')
    """
    if not math.isfinite(loss.mean):
        return "diverged"
    if loss.half is None:
        return f"{loss.mean:.3f}"
    return f"{loss.mean:.3f} ± {loss.half:.3f}"
