"""`rootdk predict`: theory for one setting."""

import textwrap
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import click

from rootdk import rendering

from . import options

if TYPE_CHECKING:
    from rootdk.lab.recommendation import Recommendation

_START = "This is about the start of training. For a trained model: rootdk.measure or rootdk audit."
_FIELDS = {
    "mean_variance": "score variance, inside a row",
    "max_logit": "largest score, of as many rows as keys",
    "mean_entropy_ratio": "entropy share, entropy / ln n",
    "median_effective_keys": "effective keys, 1 / sum p^2, of the median row",
    "mean_top_probability": "largest weight of a row, mean",
    "saturated": "rows of one key, with a weight over .99",
    "mean_jacobian_trace": "Jacobian trace, 1 - sum p^2, mean",
}


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
    callback=lambda _ctx, _option, text: options.rule_name(text),
    help="A scale: a name, mup(64), a number, or module:name of your own.",
)
@click.option(
    "--sigma", type=float, default=1.0, callback=_spread, help="Standard deviation of the components of q and k."
)
@options.data("Print JSON instead of text.", "one row per d_k")
def predict(d_k: tuple[int, ...], keys: int, rule: str, sigma: float, as_json: bool, as_csv: bool) -> None:
    """What theory predicts for your numbers, with advice. It uses no random numbers.

    Example: rootdk predict --d-k 128 --keys 8192

    With several --d-k it prints a table, with one row for each.
    """
    from rootdk.lab.recommendation import recommend

    reports = [recommend(width, keys, rule, sigma) for width in dict.fromkeys(d_k)]
    plain = [report.to_dict() for report in reports]
    shown = plain if len(plain) > 1 else plain[0]
    options.show(as_json, as_csv, shown, plain, lambda width: _lines(reports, min(width, 80)))


def _lines(reports: "Sequence[Recommendation]", width: int) -> Iterator[str]:
    """What to do, at the last d_k; then the numbers of one setting, or a row per d_k."""
    from rootdk.lab.first_look import rule_label

    last, alone = reports[-1], len(reports) == 1
    state = last.state.capitalize() if alone else f"At d_k = {last.d_k}: {last.state}"
    yield from textwrap.wrap(f"{state}. {last.advice}", width)
    yield ""
    setting = f"d_k = {last.d_k}, " * alone + f"{last.keys} keys, scale {rule_label(last.rule)}"
    unit = "" if last.sigma == 1.0 else f", components of standard deviation {last.sigma:g}"
    yield from textwrap.wrap(f"Theory for random q and k: {setting}{unit}", width)
    yield from _numbers(last) if alone else _table(reports, width)
    yield ""
    yield from textwrap.wrap(_START, width)


def _numbers(report: "Recommendation") -> Iterator[str]:
    named = {
        "scale": report.scale,
        "standard deviation of the scores": report.logit_std,
        "its limit, sqrt(2 ln n)": report.critical_std,
        **{words: report.predicted[field] for field, words in _FIELDS.items()},
        "relative gradient, |do/dq| / |o|": report.relative_gradient,
    }
    for words, value in named.items():
        yield f"  {words:<47}{rendering.short(value)}"


def _table(reports: "Sequence[Recommendation]", width: int) -> Iterator[str]:
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
