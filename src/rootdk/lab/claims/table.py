"""A ledger as text: what is said, where, what was found, and what follows."""

import textwrap
from collections.abc import Iterator, Sequence

from .evidence import SHOWN, Evidence, number
from .record import CONDITIONAL, OPEN, VERDICTS, Record

_INDENT, _LABEL, _FIGURES = 4, 11, 33


def lines(records: Sequence[Record], width: int = 80) -> Iterator[str]:
    r"""Line after line, none longer than the width (at least 60).

    >>> seen = (Evidence("score variance", 0.98, "=", 1.0, error=0.01), Evidence("d_k", 64.0, role="shown"))
    >>> print(*lines([Record(3, "It is 1.", "a paper", "measured", seen)]), sep="\n")
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
    for record in records:
        yield f"{record.id:>3} {record.verdict}"
        yield from _entry("claim", record.statement, width)
        yield from _entry("said in", record.source, width)
        yield from _entry("checked" if record.verdict != OPEN else "to check", record.method, width)
        if record.condition:
            yield from _entry("condition" if record.verdict == CONDITIONAL else "because", record.condition, width)
        if record.evidence:
            yield " " * _INDENT + "evidence"
        for one in record.evidence:
            yield from _number(one, width)
        for text in dict.fromkeys(f"{number(one.target)}: {one.choice}" for one in record.evidence if one.choice):
            yield from _entry("our choice", text, width)
        yield ""
    yield from textwrap.wrap(summary(records), width)


def counts(records: Sequence[Record]) -> dict[str, int]:
    """How many claims came to which verdict."""
    return {verdict: sum(record.verdict == verdict for record in records) for verdict in VERDICTS}


def summary(records: Sequence[Record]) -> str:
    """The same as a sentence, without the verdicts that none came to."""
    found = ", ".join(f"{verdict} {count}" for verdict, count in counts(records).items() if count)
    return f"{len(records)} claim{'' if len(records) == 1 else 's'}: {found}"


def _entry(label: str, text: str, width: int) -> Iterator[str]:
    start = " " * _INDENT + f"{label:<{_LABEL}}"
    yield from textwrap.wrap(
        text, width, initial_indent=start, subsequent_indent=" " * len(start), break_on_hyphens=False
    )


def _number(one: Evidence, width: int) -> Iterator[str]:
    """Name, value, standard error or 'exact', what the claim says of it, and "no" where it is not so."""
    columns = width - _INDENT - 2 - _FIGURES
    error = "exact" if one.error is None else f"± {one.error:.1g}"
    said = f"{one.relation} {number(one.target)}" if one.relation else ""
    wrong = "" if one.agrees or one.role == SHOWN else "  no"
    first, *rest = textwrap.wrap(one.name, columns, break_on_hyphens=False)
    yield f"{'':{_INDENT + 2}}{first:<{columns}}{number(one.value):>10} {error:<8} {said}{wrong}".rstrip()
    yield from (" " * (_INDENT + 4) + line for line in rest)
