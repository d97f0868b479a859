"""`rootdk claims`: the ledger, checked."""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from rootdk.errors import RootdkError

from . import options

if TYPE_CHECKING:
    from rootdk.lab.checks import CheckedClaim, Sampling


def _known_claims(_ctx: click.Context, _option: click.Parameter, ids: tuple[int, ...]) -> tuple[int, ...]:
    from rootdk.lab.checks import LEDGER

    try:
        for one in ids:
            LEDGER[one]
    except RootdkError as error:
        raise options.bad_parameter(error) from error
    return ids


@click.command()
@click.option("--id", "ids", type=int, multiple=True, callback=_known_claims, help="Only this claim; repeat it.")
@click.option(
    "--rows",
    type=click.IntRange(1024, 1_000_000),
    default=2048,
    show_default=True,
    help="Random rows per measured setting: 1024 for a quick look, 20000 for a thorough one.",
)
@options.seed("Seed of what is drawn.")
@options.as_json("Print JSON in place of text.")
def claims(ids: tuple[int, ...], rows: int, seed: int, as_json: bool) -> None:
    """What is said about the scale, checked.

    Each claim with its source, the evidence with its standard error, and the verdict that follows from it.
    """
    import shutil

    from rootdk.cli.terminal.checked import counts, lines
    from rootdk.lab.checks import Sampling

    checked = _checked(ids, Sampling(rows=rows, seed=seed))
    if as_json:
        plain = [claim.to_dict() for claim in checked]
        click.echo(json.dumps({"rows": rows, "seed": seed, "verdicts": counts(checked), "claims": plain}, indent=2))
    else:
        click.echo("\n".join(lines(checked, min(shutil.get_terminal_size().columns, 120))))


def _checked(ids: Sequence[int], sampling: "Sampling") -> list["CheckedClaim"]:
    """The claims, checked, with a bar on a terminal's standard error: the whole ledger takes some seconds."""
    from rich.console import Console
    from rich.progress import Progress

    from rootdk.lab.checks import LEDGER

    chosen = ids or LEDGER.ids
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        checking = LEDGER.check(chosen, sampling)
        return list(progress.track(checking, total=len(dict.fromkeys(chosen)), description="checking claims"))
