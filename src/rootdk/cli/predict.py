"""`rootdk predict`: theory for one setting."""

import json
import shutil
import textwrap
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import click

from rootdk import rendering

from . import options

if TYPE_CHECKING:
    from rootdk.lab.recommendation import Recommendation

_START = "This is about the start of training. For a trained model: rootdk.measure or rootdk audit."
_FIELDS = (
    ("mean_variance", "score variance, inside a row"),
    ("max_logit", "largest score, of as many rows as keys"),
    ("mean_entropy_ratio", "entropy share, entropy / ln n"),
    ("median_effective_keys", "effective keys, 1 / sum p^2, of the median row"),
    ("mean_top_probability", "largest weight of a row, mean"),
    ("saturated", "rows of one key, with a weight over .99"),
    ("mean_jacobian_trace", "Jacobian trace, 1 - sum p^2, mean"),
)


def _spread(_ctx: click.Context, _option: click.Parameter, sigma: float) -> float:
    """A standard deviation; click's own range would let NaN pass."""
    if not 0.0 < sigma <= 1e3:
        raise click.BadParameter(f"must be a number above 0 and up to 1000, got {sigma:g}")
    return sigma


@click.command()
@click.option(
    "--d-k",
    type=options.Integer(1, 10**6),
    required=True,
    multiple=True,
    help="Number of components of q and k; repeat it for a table.",
)
@click.option("--keys", type=options.Integer(2, 10**12), required=True, help="Number of keys that each query sees.")
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

    Example: rootdk predict --d-k 128 --keys 8192

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
        width = min(shutil.get_terminal_size().columns, 80)
        click.echo("\n".join(_lines(reports[0], width) if len(reports) == 1 else _table(reports, width)))


def _lines(report: "Recommendation", width: int) -> Iterator[str]:
    """One setting: what to do, then the numbers."""
    from rootdk.lab.first_look import rule_label

    unit = "" if report.sigma == 1.0 else f", components of standard deviation {report.sigma:g}"
    yield from textwrap.wrap(f"{report.state.capitalize()}. {report.advice}", width)
    yield ""
    label = rule_label(report.rule)
    yield from textwrap.wrap(
        f"Theory for random q and k: d_k = {report.d_k}, {report.keys} keys, scale {label}{unit}", width
    )
    yield _line("scale", report.scale)
    yield _line("standard deviation of the scores", report.logit_std)
    yield _line("its limit, sqrt(2 ln n)", report.critical_std)
    for field, words in _FIELDS:
        yield _line(words, report.predicted[field])
    yield _line("relative gradient, |do/dq| / |o|", report.relative_gradient)
    yield ""
    yield from textwrap.wrap(_START, width)


def _table(reports: "Sequence[Recommendation]", width: int) -> Iterator[str]:
    """What to do at the last d_k, then a row per d_k."""
    from rootdk.lab.first_look import rule_label

    first = reports[0]
    unit = "" if first.sigma == 1.0 else f", components of standard deviation {first.sigma:g}"
    yield from textwrap.wrap(f"At d_k = {reports[-1].d_k}: {reports[-1].state}. {reports[-1].advice}", width)
    yield ""
    label = rule_label(first.rule)
    yield from textwrap.wrap(f"Theory for random q and k: {first.keys} keys, scale {label}{unit}", width)
    # A narrow terminal has no place for the last number.
    wide = width >= 68
    yield f"{'':>7} {'':>8} {'score':>8} {'entropy':>7} {'effective':>9} {'rows of':>7}{' Jacobian' * wide}"
    yield f"{'d_k':>7} {'scale':>8} {'variance':>8} {'share':>7} {'keys':>9} {'one key':>7}{'    trace' * wide} state"
    for report in reports:
        numbers = report.predicted
        trace = f" {numbers['mean_jacobian_trace']:>8.3f}" * wide
        yield (
            f"{report.d_k:>7} {report.scale:>8.4g} {numbers['mean_variance']:>8.3g} "
            f"{numbers['mean_entropy_ratio']:>7.3f} {numbers['median_effective_keys']:>9.4g} "
            f"{numbers['saturated']:>7.1%}{trace} {report.state}"
        )
    yield ""
    yield from textwrap.wrap(_START, width)


def _line(words: str, value: float) -> str:
    return f"  {words:<47}{rendering.short(value)}"
