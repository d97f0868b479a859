"""`rootdk look`: what the scale does to random q and k, as one table."""

import json
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from . import options

if TYPE_CHECKING:
    from rich.table import Table

    from rootdk.lab.first_look import Look


@click.command()
@options.d_k("Length of q and k; repeat it.")
@options.rule()
@options.keys()
@click.option(
    "--rows",
    type=click.IntRange(1, options.LARGEST_ROWS),
    default=1024,
    show_default=True,
    help="Queries to measure.",
)
@options.seed("Seed of the random q and k.")
@options.as_json("Print JSON in place of a table.")
def look(d_k: tuple[int, ...], rule: tuple[str, ...], keys: int, rows: int, seed: int, as_json: bool) -> None:
    """A first look at what the scale does.

    The same random q and k go through rootdk.measure under every rule.
    """
    from rootdk.lab.first_look import look as measured
    from rootdk.lab.first_look import meaning

    looks = measured(d_k, rule, keys, rows, seed)
    if as_json:
        click.echo(
            json.dumps({"seed": seed, "looks": [one.to_dict() for one in looks], "meaning": meaning(looks)}, indent=2)
        )
    else:
        _show(looks, meaning(looks))


def _show(looks: Sequence["Look"], meaning: str) -> None:
    """The table, with the rules' formulas above it and what it means below."""
    from rich.console import Console

    from rootdk.scaling import rule

    console = Console()
    names = dict.fromkeys(one.rule for one in looks)
    formulas = [f"{name} = {rule(name).formula}" for name in names]
    title = f"{looks[0].rows} random queries over {looks[0].keys} keys, scores times a scale:"
    pieces = [*title.split(), *(f"{formula}," for formula in formulas[:-1]), formulas[-1]]
    console.print(_fill(pieces, console.width), highlight=False, markup=False)
    console.print(_table(looks))
    console.print(meaning, highlight=False, markup=False)


def _table(looks: Sequence["Look"]) -> "Table":
    from rich import box
    from rich.table import Table

    table = Table(
        caption="means over queries of variance, entropy; medians of effective keys, trace of the softmax Jacobian",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        collapse_padding=True,
    )
    table.add_column("d_k", justify="right", no_wrap=True)
    table.add_column("scale", no_wrap=True)
    for heading in ("score\nvariance", "entropy /\nln n", "effective\nkeys", "rows with\np > .99", "Jacobian\ntrace"):
        table.add_column(heading, justify="right", no_wrap=True)
    for number, one in enumerate(looks):
        table.add_row(
            str(one.d_k),
            one.rule,
            *one.shown().values(),
            end_section=number + 1 == len(looks) or looks[number + 1].d_k != one.d_k,
        )
    return table


def _fill(pieces: Sequence[str], width: int) -> str:
    """The pieces one after the other, in lines that break only between two of them."""
    # A character that no text holds stands for the spaces inside a piece while the lines are made.
    text = " ".join(piece.replace(" ", "\0") for piece in pieces)
    return textwrap.fill(text, width, break_long_words=False, break_on_hyphens=False).replace("\0", " ")
