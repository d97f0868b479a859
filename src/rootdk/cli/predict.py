"""`rootdk predict`: theory for one setting."""

import json
import math
import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from rootdk import rendering
from rootdk.errors import RootdkError

from . import options

if TYPE_CHECKING:
    from rootdk.lab.recommendation import Recommendation

WIDTH = 80
_FIELDS = (
    ("mean_variance", "variance of the logits inside a row"),
    ("max_logit", "largest logit of a call (as many rows as keys)"),
    ("mean_entropy_ratio", "entropy as a share of ln n"),
    ("median_effective_keys", "effective keys, 1/sum p^2, of the median row"),
    ("mean_top_probability", "largest weight of a row, on average"),
    ("saturated", "share of rows with a weight above .99"),
    ("mean_jacobian_trace", "trace of the softmax Jacobian"),
)


def _rule_or_number(_ctx: click.Context, _option: click.Parameter, text: str) -> str | float:
    """A name of a rule, or the scale itself."""
    from rootdk.scaling import rule

    try:
        number = float(text)
    except ValueError:
        try:
            return rule(text).name
        except RootdkError as error:
            raise options.bad_parameter(error, "; a number is taken as the scale") from error
    if not math.isfinite(number) or abs(number) > 1e3:
        raise click.BadParameter(f"must be the name of a rule or a number up to 1000 in size, got {text}")
    return number


def _spread(_ctx: click.Context, _option: click.Parameter, sigma: float) -> float:
    """A standard deviation; click's own range would let NaN pass."""
    if not 0.0 < sigma <= 1e3:
        raise click.BadParameter(f"must be a number above 0 and up to 1000, got {sigma:g}")
    return sigma


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
    from rootdk.lab.recommendation import recommend

    report = recommend(d_k, keys, rule, sigma)
    click.echo(json.dumps(report.to_dict(), indent=2) if as_json else "\n".join(_lines(report)))


def _lines(report: "Recommendation") -> Iterator[str]:
    """One setting, in words and numbers."""
    unit = "" if report.sigma == 1.0 else f", components of standard deviation {report.sigma:g}"
    yield from textwrap.wrap(
        f"Attention with random q and k: d_k = {report.d_k}, {report.keys} keys, rule {report.rule}{unit}", WIDTH
    )
    yield ""
    yield _line("scale", report.scale)
    yield _line("standard deviation of the logits", report.logit_std)
    yield _line("where softmax freezes, sqrt(2 ln n)", report.critical_std)
    for field, words in _FIELDS:
        yield _line(words, report.predicted[field])
    yield _line("gradient to q over output, |do/dq|/|o|", report.relative_gradient)
    yield ""
    yield from textwrap.wrap(f"{report.state.capitalize()}. {report.advice}", WIDTH)
    yield "This is the start of training. For trained weights: rootdk.measure."


def _line(words: str, value: float) -> str:
    return f"  {words:<50}{rendering.short(value)}"
