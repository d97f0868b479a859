"""`rootdk info`: what is installed here."""

import json

import click

from rootdk.rendering import csv_text

from . import options


@click.command()
@options.data("Print JSON instead of a list.", "one row per fact")
def info(as_json: bool, as_csv: bool) -> None:
    """Version, instruction set in use, threads."""
    from rootdk.machine import describe

    facts = describe()
    if as_json:
        click.echo(json.dumps(facts, indent=2))
        return
    width = max(map(len, facts))
    listed = {name: ", ".join(value) if isinstance(value, list) else value for name, value in facts.items()}
    if as_csv:
        click.echo(csv_text({"name": name, "value": value} for name, value in listed.items()), nl=False)
        return
    for name, value in listed.items():
        click.echo(f"{name:<{width}}  {value}")
