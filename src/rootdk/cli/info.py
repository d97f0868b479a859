"""`rootdk info`: what is installed here."""

import json

import click

from . import options


@click.command()
@options.as_json("Print JSON in place of a list.")
def info(as_json: bool) -> None:
    """Version, kernel target in use, threads."""
    from rootdk.machine import describe

    facts = describe()
    if as_json:
        click.echo(json.dumps(facts, indent=2))
        return
    width = max(map(len, facts))
    for name, value in facts.items():
        click.echo(f"{name:<{width}}  {', '.join(value) if isinstance(value, list) else value}")
