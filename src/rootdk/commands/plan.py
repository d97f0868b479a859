"""`rootdk plan`: what attention on a ring of ranks costs."""

import json
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import click

from rootdk.errors import RootdkError

from . import options

_SIZE = click.IntRange(1, 10**12)
# Small enough for a laptop; with fewer tokens messages and merging count for more than the model knows of.
_CHECKED = {"heads": 4, "d": 64}
_CHECKED_TOKENS = 16384


def _rate(_ctx: click.Context, _option: click.Parameter, given: float) -> float:
    """A rate; click's own range would let NaN pass."""
    if not (given > 0.0 and math.isfinite(given)):
        raise click.BadParameter(f"must be a finite number above 0, got {given:g}")
    return given


@contextmanager
def _bar() -> Iterator[Callable[[str, float], None]]:
    """A bar on standard error, if that is a terminal: a check takes half a minute."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description:<22}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as shown:
        task = shown.add_task("starting", total=1.0)
        yield lambda text, share: shown.update(task, description=text, completed=share)


@click.command()
@click.option("--tokens", type=_SIZE, required=True, help="Length of the whole sequence.")
@click.option("--heads", type=_SIZE, default=32, show_default=True, help="Query heads.")
@click.option("--kv-heads", type=_SIZE, default=None, help="Key heads, if they are fewer.")
@click.option("--d", type=_SIZE, default=128, show_default=True, help="Numbers per head.")
@click.option("--batch", type=_SIZE, default=1, show_default=True, help="Sequences at once.")
@click.option("--ranks", type=_SIZE, required=True, help="Processes that share the sequence.")
@click.option(
    "--flops", type=float, required=True, callback=_rate, help="Operations per second of a rank, such as 2e12."
)
@click.option("--bandwidth", type=float, required=True, callback=_rate, help="Bytes per second to the next rank, 12e9.")
@click.option("--latency", type=float, default=50e-6, show_default=True, callback=_rate, help="Seconds per message.")
@click.option(
    "--dtype", type=click.Choice(["float32", "float64", "float16", "bfloat16"]), default="float32", show_default=True
)
@click.option("--full", is_flag=True, help="Every query sees every key; without it causal.")
@click.option("--layout", type=click.Choice(["balanced", "contiguous"]), default="balanced", show_default=True)
@click.option(
    "--validate",
    is_flag=True,
    help="Also run 1, 2 and 4 ranks here (4 heads, d = 64, balanced), and show measured beside predicted.",
)
@click.option(
    "--validate-tokens",
    type=click.IntRange(8, 2**20),
    default=_CHECKED_TOKENS,
    show_default=True,
    help="Length of the sequence that is run for it.",
)
@options.as_json("Print JSON in place of text.")
def plan(full: bool, validate: bool, validate_tokens: int, as_json: bool, **sizes: Any) -> None:
    """Work, messages, memory and time of each rank of a ring, from sizes and rates."""
    from rootdk.distributed.cost import Ring, cost
    from rootdk.terminal.planned import checked, lines

    try:
        ring = Ring(causal=not full, **sizes)
        found = cost(ring)
        report = None
        if validate:
            from rootdk.distributed.checking import check

            with _bar() as tell:
                report = check(validate_tokens, **_CHECKED, causal=not full, notify=tell)
    except RootdkError as error:
        raise click.ClickException(str(error)) from error
    if as_json:
        passes = {name: one.to_dict() for name, one in found.items()}
        asked = {"ring": asdict(ring)}
        click.echo(json.dumps(asked | passes | ({} if report is None else {"validation": report}), indent=2))
        return
    click.echo("\n".join(lines(ring, found)))
    if report is not None:
        click.echo("\n".join(checked(report)))
