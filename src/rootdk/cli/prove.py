"""`rootdk prove`: the argument for the variance of a score."""

import json

import click

from . import options


@click.command()
@click.option("--d", type=click.IntRange(1, 10**6), default=3, show_default=True, help="Length of q and k.")
@options.seed("Seed of the random pairs.")
@options.as_json("Print JSON in place of text.")
def prove(d: int, seed: int, as_json: bool) -> None:
    """Why the variance of q.k is d, step by step with the actual terms."""
    from rootdk.cli.terminal.proved import lines
    from rootdk.lab.proof import prove as proof_of

    proof = proof_of(d, seed)
    click.echo(json.dumps(proof.to_dict(), indent=2) if as_json else "\n".join(lines(proof)))
