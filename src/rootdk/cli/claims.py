"""`rootdk claims`: the checked ledger: each claim, its sources, what was measured, and what follows."""

import textwrap
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import click

from rootdk.errors import RootdkError

from . import options

if TYPE_CHECKING:
    from rootdk.lab.checks import CheckedClaim, Comparison

_INDENT, _LABEL, _FIGURES = 4, 11, 33


def _known_claims(_ctx: click.Context, _option: click.Parameter, ids: tuple[int, ...]) -> tuple[int, ...]:
    from rootdk.lab.checks import LEDGER

    try:
        for number in ids:
            LEDGER[number]
    except RootdkError as error:
        raise options.bad_parameter(error) from error
    return ids


@click.command()
@click.option("--id", "ids", type=int, multiple=True, callback=_known_claims, help="Only this claim; can be repeated.")
@options.number(
    "--rows", 1024, 10**6, 2048, "Random rows per measured setting: 1024 for a quick look, 20000 for a thorough one."
)
@click.option("--evidence", is_flag=True, help="Print sources and evidence of every claim, not only of those of --id.")
@options.seed("Seed of the random numbers.")
@options.data("Print JSON instead of text.", "one row per number of the evidence")
def claims(ids: tuple[int, ...], rows: int, evidence: bool, seed: int, as_json: bool, as_csv: bool) -> None:
    """Check what papers, courses and blogs say about the scale.

    Prints what is true and what is not, and under which condition. With --id or --evidence it also prints the
    source of a claim, how it was checked, and the numbers from which the verdict follows.
    """
    from rootdk.lab.checks import LEDGER, Sampling

    from .lifetime import Bars

    chosen = tuple(dict.fromkeys(ids)) or LEDGER.ids
    checked: list[CheckedClaim] = []
    with Bars() as bars:
        for claim in LEDGER.check(chosen, Sampling(rows=rows, seed=seed)):
            checked.append(claim)
            bars("checking claims", len(checked) / len(chosen))
    plain = [claim.to_dict() for claim in checked]
    numbers = (
        {"id": claim.id, "title": LEDGER[claim.id].title, "verdict": claim.verdict, **comparison.to_dict()}
        for claim in checked
        for comparison in claim.evidence
    )
    options.show(
        as_json, as_csv, {"rows": rows, "seed": seed, "verdicts": counts(checked), "claims": plain}, numbers,
        lambda width: (lines if ids or evidence else overview)(checked, min(width, 120)),
    )  # fmt: skip


def overview(claims: Sequence["CheckedClaim"], width: int = 80) -> Iterator[str]:
    r"""What is true and what is not: the claims by verdict, with the condition or the reason.

    >>> from rootdk.lab.checks import CheckedClaim, Comparison
    >>> limit = Comparison("variance", 2.0, "=", 1.0, role="limits", otherwise="at the start of training")
    >>> print(*overview([CheckedClaim(3, "It is 1.", "a paper", "measured", (limit,))]), sep="\n")
    1 claim: holds under a condition 1
    <BLANKLINE>
    Holds under a condition
      3  It is 1.
         Condition: at the start of training
    <BLANKLINE>
    Source and evidence: rootdk claims --id 3; of all claims: --evidence
    """
    from rootdk.lab.checks import VERDICTS
    from rootdk.lab.checks.ledger import CONDITIONAL

    width = max(width, 60)
    yield from textwrap.wrap(summary(claims), width)
    for verdict in VERDICTS:
        group = [claim for claim in claims if claim.verdict == verdict]
        if group:
            yield ""
            yield verdict.capitalize()
        for claim in group:
            yield from _wrapped(claim.statement, f"{claim.id:>3}  ", width)
            if claim.condition:
                label = "Condition: " if verdict == CONDITIONAL else "Why: "
                yield from _wrapped(label + claim.condition, " " * 5, width)
    yield ""
    yield from textwrap.wrap(
        f"Source and evidence: rootdk claims --id {claims[-1].id}; of all claims: --evidence", width
    )


def lines(claims: Sequence["CheckedClaim"], width: int = 80) -> Iterator[str]:
    r"""The ledger as text, none of its lines longer than the width (at least 60).

    >>> from rootdk.lab.checks import CheckedClaim, Comparison
    >>> variance = Comparison("score variance", 0.98, "=", 1.0, 0.01, slack=0.1)
    >>> evidence = (variance, Comparison("d_k", 64.0, role="shown"))
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
    from rootdk.lab.checks.ledger import CONDITIONAL, OPEN

    width = max(width, 60)

    def entry(label: str, text: str) -> list[str]:
        return _wrapped(text, " " * _INDENT + f"{label:<{_LABEL}}", width)

    for claim in claims:
        yield f"{claim.id:>3} {claim.verdict}"
        yield from entry("claim", claim.statement)
        yield from entry("said in", claim.source)
        yield from entry("checked" if claim.verdict != OPEN else "to check", claim.method)
        if claim.condition:
            yield from entry("condition" if claim.verdict == CONDITIONAL else "because", claim.condition)
        if claim.evidence:
            yield " " * _INDENT + "evidence"
        for comparison in claim.evidence:
            yield from _number(comparison, width)
        for text, targets in choices(claim.evidence).items():
            yield from entry("our choice", f"{', '.join(targets)}: {text}")
        yield ""
    yield from textwrap.wrap(summary(claims), width)


def choices(evidence: Sequence["Comparison"]) -> dict[str, list[str]]:
    """{reason for a limit that we chose: the limits it explains}, each limit once.

    >>> from rootdk.lab.checks import Comparison
    >>> equal = Comparison("variance", 1.01, "=", 1.0, 0.01, slack=0.25, choice="a quarter is little")
    >>> choices([equal, Comparison("weight", 0.1, "<", 0.5, choice="half is much")])
    {'a quarter is little': ['= 1 within 0.25'], 'half is much': ['< 0.5']}
    """
    from rootdk.lab.checks.comparison import number

    by_choice: dict[str, list[str]] = {}
    for comparison in evidence:
        if comparison.choice:
            within = f" within {number(comparison.slack)}" if comparison.relation == "=" else ""
            target = f"{comparison.relation} {number(comparison.predicted)}{within}"
            by_choice.setdefault(comparison.choice, []).append(target)
    return {choice: list(dict.fromkeys(targets)) for choice, targets in by_choice.items()}


def counts(claims: Sequence["CheckedClaim"]) -> dict[str, int]:
    """The number of claims with each verdict."""
    from rootdk.lab.checks import VERDICTS

    return {verdict: sum(claim.verdict == verdict for claim in claims) for verdict in VERDICTS}


def summary(claims: Sequence["CheckedClaim"]) -> str:
    """The same as a sentence, without verdicts that no claim has."""
    counted = ", ".join(f"{verdict} {count}" for verdict, count in counts(claims).items() if count)
    return f"{len(claims)} claim{'' if len(claims) == 1 else 's'}: {counted}"


def _wrapped(text: str, start: str, width: int) -> list[str]:
    indent = " " * len(start)
    return textwrap.wrap(text, width, initial_indent=start, subsequent_indent=indent, break_on_hyphens=False)


def _number(comparison: "Comparison", width: int) -> Iterator[str]:
    """Name, value, standard error or 'exact', what the claim expects, and "no" or "?" (unsure) if it does not hold."""
    from rootdk.lab.checks.comparison import AGREES, SHOWN, UNDECIDED, number

    columns = width - _INDENT - 2 - _FIGURES
    error = "exact" if comparison.standard_error is None else f"± {comparison.standard_error:.1g}"
    relation = f"{comparison.relation} {number(comparison.predicted)}" if comparison.relation else ""
    mark = {AGREES: "", UNDECIDED: "  ?"}.get(comparison.state, "  no") if comparison.role != SHOWN else ""
    measured = "–" if comparison.measured is None else number(comparison.measured)
    first, *rest = textwrap.wrap(comparison.quantity, columns, break_on_hyphens=False)
    yield f"{'':{_INDENT + 2}}{first:<{columns}}{measured:>10} {error:<8} {relation}{mark}".rstrip()
    yield from (" " * (_INDENT + 4) + line for line in rest)
