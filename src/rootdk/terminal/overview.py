"""The summary of the main job: one screen, 80 columns. Every number in it is one of the findings."""

import textwrap
from collections.abc import Iterator, Sequence

from rootdk import _views
from rootdk.study import Comparison

from .job import Findings, worst

WIDTH = 80
_CONTRADICTION = 4.0
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
    yield ""
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
    told = 0.0 if share and one.theory < 1e-9 else one.theory
    return f"{_views.brief(told, share):>6} {_views.brief(one.measured, share):>5}"


def _agreement(findings: Findings) -> Iterator[str]:
    compared = sum(one.compared for one in findings.results)
    result = worst(findings.results)
    off = abs(result.worst.disagreement or 0.0)
    text = (
        f"Theory against measurement: {compared} numbers in {len(findings.results)} experiments; the largest "
        f"disagreement is {off:.1f} standard errors ({result.experiment}: {result.worst.quantity})."
    )
    if off > _CONTRADICTION:
        text += f" More than {_CONTRADICTION:g} is a contradiction: look into it."
    yield from textwrap.wrap(text, WIDTH)


def _claims(findings: Findings) -> Iterator[str]:
    """Numbers of the claims that hold or were not checked; a line for each of the others."""
    groups: dict[str, list[dict[str, object]]] = {}
    for one in findings.claims:
        groups.setdefault(str(one["verdict"]), []).append(one)
    for verdict in sorted(groups, key=_order):
        some = groups[verdict]
        head = f"{len(some)} claim{'s' * (len(some) != 1)}: {verdict}"
        if verdict in ("holds", "not checked"):
            yield from textwrap.wrap(f"{head}: {_ids(some)}", WIDTH, subsequent_indent="   ")
            continue
        yield head + (" (which: rootdk claims)" if "condition" in verdict else "")
        for one in some:
            yield f"{one['id']!s:>4}  " + textwrap.shorten(str(one["statement"]), WIDTH - 6, placeholder=" ...")


def _order(verdict: str) -> int:
    known = ("holds", "holds under a condition", "does not hold")
    return known.index(verdict) if verdict in known else len(known)


def _ids(claims: Sequence[dict[str, object]]) -> str:
    return ", ".join(str(one["id"]) for one in claims)


def _scale(findings: Findings) -> Iterator[str]:
    """The scale that keeps logits at variance 1, and what it does to the gradient."""
    from rootdk.theory import relative_gradient

    parts = []
    for d_k in findings.job.d_k:
        flow = float(relative_gradient(findings.job.keys, d_k, d_k**-0.5))
        parts.append(f"{d_k**-0.5:.4g} at d_k = {d_k} (|do/dq|/|o| = {flow:.2f})")
    text = "The scale for logits of variance 1: " + ", ".join(parts) + "."
    yield from textwrap.wrap(text, WIDTH)
