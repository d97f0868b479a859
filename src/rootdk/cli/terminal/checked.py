"""`rootdk claims`: a ledger as text, what is said, where, what was measured, and what follows."""

import textwrap
from collections.abc import Iterator, Sequence

from rootdk.lab.checks.comparison import SHOWN, Comparison, number
from rootdk.lab.checks.ledger import CONDITIONAL, OPEN, VERDICTS, CheckedClaim

_INDENT, _LABEL, _FIGURES = 4, 11, 33


def lines(claims: Sequence[CheckedClaim], width: int = 80) -> Iterator[str]:
    r"""Line after line, none longer than the width (at least 60).

    >>> evidence = (Comparison("score variance", 0.98, "=", 1.0, 0.01), Comparison("d_k", 64.0, role="shown"))
    >>> print(*lines([CheckedClaim(3, "It is 1.", "a paper", "measured", evidence)]), sep="\n")
      3 holds
        claim      It is 1.
        said in    a paper
        checked    measured
        evidence
          score variance                                0.98 ± 0.01   = 1
          d_k                                             64 exact
    <BLANKLINE>
    1 claim: holds 1
    """
    width = max(width, 60)
    for claim in claims:
        yield f"{claim.id:>3} {claim.verdict}"
        yield from _entry("claim", claim.statement, width)
        yield from _entry("said in", claim.source, width)
        yield from _entry("checked" if claim.verdict != OPEN else "to check", claim.method, width)
        if claim.condition:
            yield from _entry("condition" if claim.verdict == CONDITIONAL else "because", claim.condition, width)
        if claim.evidence:
            yield " " * _INDENT + "evidence"
        for one in claim.evidence:
            yield from _number(one, width)
        for text in dict.fromkeys(f"{number(one.predicted)}: {one.choice}" for one in claim.evidence if one.choice):
            yield from _entry("our choice", text, width)
        yield ""
    yield from textwrap.wrap(summary(claims), width)


def counts(claims: Sequence[CheckedClaim]) -> dict[str, int]:
    """How many claims came to which verdict."""
    return {verdict: sum(claim.verdict == verdict for claim in claims) for verdict in VERDICTS}


def summary(claims: Sequence[CheckedClaim]) -> str:
    """The same as a sentence, without the verdicts that none came to."""
    counted = ", ".join(f"{verdict} {count}" for verdict, count in counts(claims).items() if count)
    return f"{len(claims)} claim{'' if len(claims) == 1 else 's'}: {counted}"


def _entry(label: str, text: str, width: int) -> Iterator[str]:
    start = " " * _INDENT + f"{label:<{_LABEL}}"
    yield from textwrap.wrap(
        text, width, initial_indent=start, subsequent_indent=" " * len(start), break_on_hyphens=False
    )


def _number(one: Comparison, width: int) -> Iterator[str]:
    """Name, value, standard error or 'exact', what the claim says of it, and "no" where it is not so."""
    columns = width - _INDENT - 2 - _FIGURES
    error = "exact" if one.standard_error is None else f"± {one.standard_error:.1g}"
    asked = f"{one.relation} {number(one.predicted)}" if one.relation else ""
    wrong = "" if one.agrees or one.role == SHOWN else "  no"
    measured = "–" if one.measured is None else number(one.measured)
    first, *rest = textwrap.wrap(one.quantity, columns, break_on_hyphens=False)
    yield f"{'':{_INDENT + 2}}{first:<{columns}}{measured:>10} {error:<8} {asked}{wrong}".rstrip()
    yield from (" " * (_INDENT + 4) + line for line in rest)
