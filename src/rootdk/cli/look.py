"""`rootdk look`: what the scale does to random q and k, as one table."""

import json

import click

from . import options


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
        from rootdk.cli.terminal.looked import show

        show(looks, meaning(looks))
