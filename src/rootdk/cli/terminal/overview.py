"""The summary of the main job: one screen, 80 columns. Every number in it is one of the findings."""

import textwrap
from collections.abc import Iterator, Sequence
from itertools import zip_longest

import numpy as np

from rootdk import _views
from rootdk.lab.checks import CONDITIONAL, FAILS, HOLDS, LEDGER, OPEN, Comparison
from rootdk.lab.checks.comparison import CLEAR
from rootdk.lab.checks.ledger import spans

from .job import Findings, worst

WIDTH = 80
# Heading, quantity of the experiment "rules", and whether it is a share from 0 to 1.
_COLUMNS = (
    ("variance", "score variance", False),
    ("H / ln n", "H / ln n", True),
    ("p > .99", "rows with p > .99", True),
    ("trace of J", "trace of J", True),
)


def lines(findings: Findings) -> Iterator[str]:
    """The whole summary, line by line."""
    job = findings.job
    yield f"Why 1/sqrt(d_k), and is it true?  {job.keys} keys, seed {job.seed}, {findings.seconds:.1f} s"
    yield ""
    yield from _table(findings)
    yield ""
    yield from _agreement(findings)
    yield from _claims(findings)
    yield ""
    yield from _scale(findings)


def _table(findings: Findings) -> Iterator[str]:
    rules = findings.of("rules")
    width = max(4, *(len(rule) for rule in findings.job.rules))
    yield f"{'':5} {'':{width}}" + "".join(f"  {heading:>12}" for heading, _, _ in _COLUMNS)
    yield f"{'d_k':>5} {'rule':{width}}" + "".join(f"  {'theory':>6} {'seen':>5}" for _ in _COLUMNS)
    for d_k in findings.job.d_k:
        for rule in findings.job.rules:
            cells = [_cell(rules.select(quantity, d_k=d_k, rule=rule)[0], share) for _, quantity, share in _COLUMNS]
            yield f"{d_k:>5} {rule:{width}}" + "".join(f"  {cell}" for cell in cells)


def _cell(one: Comparison, share: bool) -> str:
    """Both numbers; a theory of next to nothing is 0."""
    predicted = 0.0 if share and one.predicted < 1e-9 else one.predicted
    return f"{_views.brief(predicted, share):>6} {_views.brief(one.measured, share):>5}"


def _agreement(findings: Findings) -> Iterator[str]:
    compared = sum(one.compared for one in findings.results)
    result = worst(findings.results)
    off = abs(result.worst.disagreement or 0.0)
    text = f"Theory against measurement, {compared} numbers: at most {off:.1f} standard errors apart."
    if off > CLEAR:
        text += f" That is {result.worst.quantity} of {result.experiment}, and more than {CLEAR:g} is a "
        text += "contradiction: look into it."
    yield from textwrap.wrap(text, WIDTH)


def _claims(findings: Findings) -> Iterator[str]:
    """Numbers of the claims that hold or were not checked, the others by their titles."""
    groups: dict[str, list[int]] = {}
    for one in findings.claims:
        groups.setdefault(str(one["verdict"]), []).append(int(str(one["id"])))
    plain = [
        f"{len(ids)} {words}: {spans(ids)}"
        for verdict, words in ((HOLDS, "hold"), (OPEN, "need training"))
        if (ids := groups.get(verdict))
    ]
    if ids := groups.get(FAILS):
        titles = ", ".join(f"{number} ({LEDGER[number].title})" for number in ids)
        plain.append(f"{len(ids)} {'does' if len(ids) == 1 else 'do'} not hold: {titles}")
    if plain:
        yield from textwrap.wrap(f"Of {len(findings.claims)} claims {'; '.join(plain)}.", WIDTH)
    if ids := groups.get(CONDITIONAL):
        words = "holds" if len(ids) == 1 else "hold"
        yield f"{len(ids)} {words} under a condition (how: rootdk claims):"
        yield from _in_two_columns([f"{number:>4}  {LEDGER[number].title}" for number in ids])


def _in_two_columns(cells: Sequence[str]) -> Iterator[str]:
    """Read down and then across, as a list is."""
    half = (len(cells) + 1) // 2
    width = max(map(len, cells)) + 2
    for first, second in zip_longest(cells[:half], cells[half:], fillvalue=""):
        yield f"{first:<{width}}{second}".rstrip()


def _scale(findings: Findings) -> Iterator[str]:
    """The scale that keeps logits at variance 1, and what it does to the gradient."""
    from rootdk.theory import relative_gradient

    job = findings.job
    flows = relative_gradient(job.keys, np.array(job.d_k), np.array(job.d_k) ** -0.5)
    scales = ", ".join(f"{d_k**-0.5:.4g} at d_k = {d_k}" for d_k in job.d_k)
    flow = ", ".join(f"{one:.2f}" for one in flows)
    yield from textwrap.wrap(f"Your scale: {scales}; |do/dq|/|o|: {flow}.", WIDTH)
