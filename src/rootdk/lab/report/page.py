"""The page of the study: figures, tables and claims."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from rootdk.lab.checks.result import Result
from rootdk.lab.training import Results

from . import formulas
from .document import card, check_plotly, document, figure, foot, rich
from .drawing import Picture
from .figures import pictures
from .sections import SECTIONS, Section
from .tables import badge, comparisons, counts, ledger, overview
from .training import training_section

_LEAD = (
    "Theory and measurement side by side, on random queries and keys: the state of attention at the start of training."
)
_AGAINST = (
    "Every experiment computes numbers and measures them. The table shows its largest disagreement in standard errors "
    "(s.e.); more than 4 would be a contradiction."
)


def render(
    results: Sequence[Result],
    claims: Sequence[Mapping[str, Any]] = (),
    about: Mapping[str, str] | None = None,
    cards: Sequence[tuple[str, str]] = (),
    trained: Results | None = None,
) -> str:
    """One HTML page.

    results  of the study, each shown in its section
    claims   checked claims as dictionaries: id, statement, source, method, verdict, condition, evidence
    about    facts for the foot of the page, such as version and seed
    cards    (large, small) texts for the top
    trained  runs of a training study, for a section in brief
    """
    check_plotly()
    shown = [(one, SECTIONS.get(one.experiment, Section(one.experiment, "")), pictures(one)) for one in results]
    links = [(one.experiment, section.heading) for one, section, _ in shown]
    links += [("training", "What training showed")] if trained else []
    links += [("claims", "The claims")] if claims else []
    navigation = "".join(f"<a href='#{escape(anchor)}'>{rich(heading)}</a>" for anchor, heading in links)
    body = [
        "<h1>Why divide by √<i>d<sub>k</sub></i>, and is it true?</h1>",
        f"<p>{_LEAD}</p>",
        formulas.ATTENTION,
        f"<nav>{navigation}</nav>",
        _cards(cards, claims),
        "<h2 id='overview'>Theory against measurement</h2>",
        f"<p>{_AGAINST}</p>",
        f"<div class='overview'>{overview(results)}</div>" if results else "",
        *(_section(*one) for one in shown),
        training_section(trained) if trained else "",
        _claims(claims),
        foot(about or {}),
    ]
    return document("rootdk: why the root of d_k", body)


def _section(result: Result, section: Section, some: Sequence[Picture]) -> str:
    worst = result.worst.disagreement
    line = f"{result.compared} numbers compared" + (
        f"; the largest disagreement is {abs(worst):.1f} standard errors." if worst is not None else "."
    )
    groups = [[one for one in some if not _small(one)], [one for one in some if _small(one)]]
    figures = "".join(
        f"<div class='figures{' small' if number else ''}'>{''.join(map(figure, group))}</div>"
        for number, group in enumerate(groups)
        if group
    )
    return (
        f"<section><h2 id='{escape(result.experiment)}'>{rich(section.heading)}</h2><p>{rich(section.text)}</p>"
        f"{section.formula}{figures}<details><summary>all numbers</summary>{comparisons(result.comparisons)}</details>"
        f"<p class='dim'>{line}</p></section>"
    )


def _small(picture: Picture) -> bool:
    return picture.name.startswith("jacobian")


def _cards(cards: Sequence[tuple[str, str]], claims: Sequence[Mapping[str, Any]]) -> str:
    found = [card(rich(large), rich(small)) for large, small in cards]
    if claims:
        verdicts = " ".join(
            badge(verdict, f"{count} {_plural(verdict, count)}") for verdict, count in counts(claims).items()
        )
        found.append(card(f"{len(claims)} claims", verdicts))
    return f"<div class='cards'>{''.join(found)}</div>" if found else ""


def _plural(verdict: str, count: int) -> str:
    return verdict if count == 1 else verdict.replace("holds", "hold").replace("does not", "do not")


def _claims(claims: Sequence[Mapping[str, Any]]) -> str:
    if not claims:
        return ""
    return (
        "<section><h2 id='claims'>The claims</h2><p>What is said about the scale, in our words, each with a check that "
        f"ran and a verdict that follows from what it found.</p>{ledger(claims)}</section>"
    )
