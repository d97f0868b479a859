"""`rootdk predict`: one setting, in words and numbers."""

import textwrap
from collections.abc import Iterator

from rootdk import _views
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


def lines(report: Recommendation) -> Iterator[str]:
    """The whole answer."""
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
    return f"  {words:<50}{_views.short(value)}"
