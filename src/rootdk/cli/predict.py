"""`rootdk predict`: theory for one setting."""

import json
import math

import click

from rootdk.errors import RootdkError

from . import options


def _rule_or_number(_ctx: click.Context, _option: click.Parameter, given: str) -> str | float:
    """A name of a rule, or the scale itself."""
    from rootdk.scaling import rule

    try:
        number = float(given)
    except ValueError:
        try:
            return rule(given).name
        except RootdkError as error:
            raise options.bad_parameter(error, "; a number is taken as the scale") from error
    if not math.isfinite(number) or abs(number) > 1e3:
        raise click.BadParameter(f"must be the name of a rule or a number up to 1000 in size, got {given}")
    return number


def _spread(_ctx: click.Context, _option: click.Parameter, given: float) -> float:
    """A standard deviation; click's own range would let NaN pass."""
    if not 0.0 < given <= 1e3:
        raise click.BadParameter(f"must be a number above 0 and up to 1000, got {given:g}")
    return given


@click.command()
@click.option("--d-k", type=click.IntRange(1, 10**6), required=True, help="Length of q and k.")
@click.option("--keys", type=click.IntRange(2, 10**12), required=True, help="Keys that each query sees.")
@click.option(
    "--rule", default="sqrt", show_default=True, callback=_rule_or_number, help="Name of a rule, or the scale itself."
)
@click.option(
    "--sigma",
    type=float,
    default=1.0,
    show_default=True,
    callback=_spread,
    help="Standard deviation of the components of q and k.",
)
@options.as_json("Print JSON in place of text.")
def predict(d_k: int, keys: int, rule: str | float, sigma: float, as_json: bool) -> None:
    """Theory for one setting, with a recommendation. Nothing is drawn."""
    from rootdk.cli.terminal.predicted import lines
    from rootdk.lab.recommendation import recommend

    report = recommend(d_k, keys, rule, sigma)
    click.echo(json.dumps(report.to_dict(), indent=2) if as_json else "\n".join(lines(report)))
