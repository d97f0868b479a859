"""`rootdk predict`: theory for one setting."""

import json
import textwrap
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import click

from rootdk import rendering

from . import options

if TYPE_CHECKING:
    from rootdk.lab.recommendation import Recommendation

WIDTH = 80
_FIELDS = (
    ("mean_variance", "variance of the logits inside a row"),
    ("max_logit", "largest logit, for as many rows as keys"),
    ("mean_entropy_ratio", "entropy as a share of ln n"),
    ("median_effective_keys", "effective keys, 1/sum p^2, in the median row"),
    ("mean_top_probability", "largest weight of a row, on average"),
    ("saturated", "share of rows with a weight above .99"),
    ("mean_jacobian_trace", "trace of the softmax Jacobian"),
)


def _spread(_ctx: click.Context, _option: click.Parameter, sigma: float) -> float:
    """A standard deviation; click's own range would let NaN pass."""
    if not 0.0 < sigma <= 1e3:
        raise click.BadParameter(f"must be a number above 0 and up to 1000, got {sigma:g}")
    return sigma


@click.command()
@click.option(
    "--d-k",
    type=click.IntRange(1, 10**6),
    required=True,
    multiple=True,
    help="Number of components of q and k; repeat it for a table.",
)
@click.option("--keys", type=click.IntRange(2, 10**12), required=True, help="Number of keys that each query sees.")
@click.option(
    "--rule",
    default="sqrt",
    show_default=True,
    callback=lambda _ctx, _option, text: options.rule_name(text),
    help="A scale: a name, mup(64), a number, or module:name of your own.",
)
@click.option(
    "--sigma",
    type=float,
    default=1.0,
    show_default=True,
    callback=_spread,
    help="Standard deviation of the components of q and k.",
)
@options.data("Print JSON instead of text.", "one row per d_k")
def predict(d_k: tuple[int, ...], keys: int, rule: str, sigma: float, as_json: bool, as_csv: bool) -> None:
    """What theory predicts for your numbers, with advice. It uses no random numbers.

    With several --d-k it prints a table, with one row for each.
    """
    from rootdk.lab.recommendation import recommend

    reports = [recommend(width, keys, rule, sigma) for width in dict.fromkeys(d_k)]
    if as_csv:
        click.echo(rendering.csv_text(report.to_dict() for report in reports), nl=False)
    elif as_json:
        plain = [report.to_dict() for report in reports]
        click.echo(json.dumps(plain if len(plain) > 1 else plain[0], indent=2))
    else:
        click.echo("\n".join(_lines(reports[0]) if len(reports) == 1 else _table(reports)))


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
    yield "This is about the start of training. For trained weights use rootdk.measure."


def _table(reports: "Sequence[Recommendation]") -> Iterator[str]:
    """A row per d_k, in the same words as the others use."""
    first = reports[0]
    unit = "" if first.sigma == 1.0 else f", components of standard deviation {first.sigma:g}"
    yield from textwrap.wrap(f"Attention with random q and k: {first.keys} keys, rule {first.rule}{unit}", WIDTH)
    yield ""
    yield f"{'':>7} {'':>9} {'score':>9} {'entropy':>8} {'effective':>9} {'rows of':>8} {'Jacobian':>9}"
    yield f"{'d_k':>7} {'scale':>9} {'variance':>9} {'share':>8} {'keys':>9} {'one key':>8} {'trace':>9}  state"
    for report in reports:
        numbers = report.predicted
        yield (
            f"{report.d_k:>7} {report.scale:>9.4g} {numbers['mean_variance']:>9.3g} "
            f"{numbers['mean_entropy_ratio']:>8.3f} {numbers['median_effective_keys']:>9.4g} "
            f"{numbers['saturated']:>8.1%} {numbers['mean_jacobian_trace']:>9.3f}  {report.state}"
        )
    yield ""
    yield from textwrap.wrap(f"At d_k = {reports[-1].d_k}: {reports[-1].state}. {reports[-1].advice}", WIDTH)


def _line(words: str, value: float) -> str:
    return f"  {words:<50}{rendering.short(value)}"
