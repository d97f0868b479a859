"""`rootdk bench`: side by side with other libraries."""

import json
from pathlib import Path
from typing import Any

import click

from . import options

# The sections of rootdk.bench.setting, whose import this file spares every other command; a test holds them together.
NAMES = (
    "forward", "measure", "backward", "half", "decode", "options", "tiny", "beside", "watch", "ring", "explorer",
    "import", "memory",
)  # fmt: skip


@click.command()
@click.option(
    "--what",
    type=click.Choice([*NAMES, "all"]),
    metavar="SECTION",
    multiple=True,
    default=("all",),
    show_default=True,
    help=f"What to time; repeat it: {', '.join(NAMES)}.",
)
@click.option(
    "--peer",
    "peers",
    type=click.Choice(["torch", "onnxruntime", "jax", "openvino", "numpy"]),
    multiple=True,
    help="Compare with this library only; repeat it. Default: all that are installed.",
)
@click.option(
    "--threads",
    type=click.IntRange(1, 1024),
    default=None,
    help="Threads for every contestant. Default: the CPUs this process may use.",
)
@click.option("--quick", is_flag=True, help="A few small shapes and few calls: to see that it works, not to quote.")
@options.as_json("Print JSON in place of tables.")
@options.file("--output", "Write the JSON to this file too.")
def bench(
    what: tuple[str, ...], peers: tuple[str, ...], threads: int | None, quick: bool, as_json: bool, output: Path | None
) -> None:
    """Side by side with other libraries, call by call in one run."""
    from rootdk.backends import kernel
    from rootdk.bench.launch import BenchError, Options, run
    from rootdk.bench.machine import cpus_allowed
    from rootdk.bench.setting import SECTIONS
    from rootdk.files import write_atomically

    kernel()  # so that a missing one is an error here and not in the middle of another process's output
    sections = SECTIONS if "all" in what else what
    asked = Options(sections=sections, peers=peers, threads=threads or cpus_allowed(), quick=quick)
    try:
        report: dict[str, Any] = run(asked)
    except BenchError as error:
        raise click.ClickException(str(error)) from error
    if as_json:
        click.echo(json.dumps(report, indent=2))
    else:
        from rootdk.bench.table import show

        show(report)
    # Last, so that a full disk does not cost the minutes just spent.
    if output is not None:
        try:
            output.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(output, json.dumps(report, indent=2) + "\n")
        except OSError as error:
            raise click.ClickException(f"--output: cannot write {output}: {error.strerror}") from error
        click.echo(f"written to {output}", err=True)
