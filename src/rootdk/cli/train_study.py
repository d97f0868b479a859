"""`rootdk train-study`: what the scale does when a model learns."""

from pathlib import Path

import click

from . import options


@click.command()
@click.option("--quick", "size", flag_value="quick", help="At most three minutes on two cores.")
@click.option("--full", "size", flag_value="full", help="For a night.")
@click.option(
    "--task", "tasks", type=click.Choice(["recall", "text", "digits"]), multiple=True, help="Only this; repeat it."
)
@click.option(
    "--spec",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A JSON file with the runs to do, in place of a plan.",
)
@click.option(
    "--runs",
    type=click.Path(path_type=Path),
    help="Where finished runs are kept.  [default: training in the cache folder]",
)
@click.option("--workers", type=click.IntRange(1, 4096), help="Runs at a time. Default: one per core.")
@click.option(
    "--engine", type=click.Choice(["local", "ray"]), default="local", show_default=True, help="Where runs are done."
)
@click.option("--address", help="Of the Ray cluster, as host:port. Default: one on this machine, for this sweep.")
@options.file("--out", "Write all that was recorded, as JSON.")
@options.file("--report", "Write a page to look at: one HTML file that opens offline.")
@click.option("--fresh", is_flag=True, help="Run again what is kept.")
@options.as_json("Print JSON in place of the summary.")
@click.pass_context
def train_study(
    ctx: click.Context,
    size: str | None,
    tasks: tuple[str, ...],
    spec: Path | None,
    runs: Path | None,
    workers: int | None,
    engine: str,
    address: str | None,
    out: Path | None,
    report: Path | None,
    fresh: bool,
    as_json: bool,
) -> None:
    """What the scale does when a model learns.

    Trains small models under several scale rules, d_k, learning rates and seeds, one run per core at a time. Finished
    runs are kept: interrupted, the same command goes on where it was. Exit code 0: done; 1: a run or a file failed, or
    another study uses the folder of runs; 2: an option is wrong; 130: interrupted.
    """
    from rootdk.cli.terminal.train_study import Order, answer

    if spec is not None and (size or tasks):
        raise click.UsageError(f"--spec and {f'--{size}' if size else '--task'} exclude each other", ctx)
    if address is not None and engine != "ray":
        raise click.UsageError("--address needs --engine ray", ctx)
    answer(
        Order(size or "default", tasks, spec, runs, workers, engine, address, fresh),
        out=out,
        report=report,
        as_json=as_json,
    )
