"""The page of the study: figures, tables and claims. Every text is escaped."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from rootdk.lab import formulas
from rootdk.lab.checks import EXPERIMENTS, Comparison, Result
from rootdk.lab.checks.comparison import CLEAR
from rootdk.lab.drawing import Picture
from rootdk.lab.training import Results

from .document import card, check_plotly, document, figure, foot, number, rich, table
from .training_page import training_section

_BADGES = {
    "holds": "good",
    "holds under a condition": "half",
    "does not hold": "bad",
}
_LEAD = (
    "Theory and measurement side by side, on random queries and keys: the state of attention at the start of training."
)
_AGAINST = (
    "Every experiment computes numbers and measures them. The table shows its largest disagreement in standard errors "
    f"(s.e.); more than {CLEAR:g} would be a contradiction."
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
    links = [(result.experiment, _heading(result)) for result in results]
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
        *map(_section, results),
        training_section(trained) if trained else "",
        _claims(claims),
        foot(about or {}),
    ]
    return document("rootdk: why the root of d_k", body)


def _heading(result: Result) -> str:
    experiment = EXPERIMENTS.get(result.experiment)
    return experiment.heading if experiment else result.experiment


def _section(result: Result) -> str:
    """The words and pictures of its experiment; a result of an experiment that is not known here has its numbers."""
    experiment = EXPERIMENTS.get(result.experiment)
    text, formula = (rich(experiment.text), experiment.formula) if experiment else ("", "")
    pictures = experiment.pictures(result) if experiment else ()
    worst = result.worst.disagreement
    line = f"{result.compared} numbers compared" + (
        f"; the largest disagreement is {abs(worst):.1f} standard errors." if worst is not None else "."
    )
    groups = [[one for one in pictures if not _small(one)], [one for one in pictures if _small(one)]]
    figures = "".join(
        f"<div class='figures{' small' if number else ''}'>{''.join(map(figure, group))}</div>"
        for number, group in enumerate(groups)
        if group
    )
    return (
        f"<section><h2 id='{escape(result.experiment)}'>{rich(_heading(result))}</h2><p>{text}</p>"
        f"{formula}{figures}<details><summary>all numbers</summary>{comparisons(result.comparisons)}</details>"
        f"<p class='dim'>{line}</p></section>"
    )


def _small(picture: Picture) -> bool:
    return picture.name.startswith("jacobian")


def _cards(cards: Sequence[tuple[str, str]], claims: Sequence[Mapping[str, Any]]) -> str:
    shown = [card(rich(large), rich(small)) for large, small in cards]
    if claims:
        verdicts = " ".join(
            badge(verdict, f"{count} {_plural(verdict, count)}") for verdict, count in counts(claims).items()
        )
        shown.append(card(f"{len(claims)} claims", verdicts))
    return f"<div class='cards'>{''.join(shown)}</div>" if shown else ""


def _plural(verdict: str, count: int) -> str:
    return verdict if count == 1 else verdict.replace("holds", "hold").replace("does not", "do not")


def _claims(claims: Sequence[Mapping[str, Any]]) -> str:
    if not claims:
        return ""
    return (
        "<section><h2 id='claims'>The claims</h2><p>What is said about the scale, in our words, each with a check that "
        f"ran and a verdict that follows from what it found.</p>{ledger(claims)}</section>"
    )


def overview(results: Sequence[Result]) -> str:
    """One row per experiment: how much was compared, and the largest disagreement."""
    rows = []
    for one in results:
        worst = one.worst
        where = ", ".join(f"{name} {_plain(value)}" for name, value in worst.setting.items())
        off = f"{worst.disagreement:+.1f}" if worst.disagreement is not None else "–"
        rows.append([f"<a href='#{one.experiment}'>{escape(one.experiment)}</a>", str(one.compared), off,
                     f"{escape(worst.quantity)} <span class='dim'>({escape(where)})</span>"])  # fmt: skip
    return table(["experiment", "compared", "largest, s.e.", "where"], rows, raw=True)


def comparisons(numbers: Sequence[Comparison]) -> str:
    """Every number of one experiment."""
    names = list(dict.fromkeys(name for one in numbers for name in one.setting))
    head = ["quantity", *names, "theory", "measured", "± 1 s.e.", "off by, s.e."]
    rows = []
    for one in numbers:
        off = "–" if one.disagreement is None else f"{one.disagreement:+.1f}"
        setting = [_plain(one.setting.get(name, "")) for name in names]
        rows.append(
            [one.quantity, *setting, number(one.predicted), number(one.measured), number(one.standard_error), off]
        )
    return table(head, rows)


def ledger(claims: Sequence[Mapping[str, Any]]) -> str:
    """One block per claim, in plain dictionaries: id, statement, source, method, verdict, condition, evidence."""
    blocks = []
    for one in claims:
        verdict = str(one["verdict"])
        condition = f"<p class='condition'>{escape(str(one['condition']))}</p>" if one.get("condition") else ""
        blocks.append(
            f"<article class='claim' id='claim-{int(one['id'])}'><header><span class='id'>{int(one['id'])}</span>"
            f"<span class='badge {_BADGES.get(verdict, 'open')}'>{escape(verdict)}</span></header>"
            f"<p>{escape(str(one['statement']))}</p>{condition}"
            f"<p class='dim'>{escape(str(one['source']))} · {escape(str(one['method']))}</p>{_evidence(one)}</article>"
        )
    return f"<div class='claims'>{''.join(blocks)}</div>"


def counts(claims: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """How many claims came to which verdict, in the order of the ledger's words."""
    by_verdict: dict[str, int] = dict.fromkeys(_BADGES, 0)
    for claim in claims:
        verdict = str(claim["verdict"])
        by_verdict[verdict] = by_verdict.get(verdict, 0) + 1
    return {verdict: count for verdict, count in by_verdict.items() if count}


def badge(verdict: str, text: str) -> str:
    """A coloured word."""
    return f"<span class='badge {_BADGES.get(verdict, 'open')}'>{escape(text)}</span>"


def _evidence(claim: Mapping[str, Any]) -> str:
    rows = []
    for one in claim.get("evidence", ()):
        error = "exact" if one["standard_error"] is None else f"± {float(one['standard_error']):.1g}"
        asked = f"{one['relation']} {number(float(one['predicted']))}" if one["relation"] else ""
        verdict = "" if not asked else ("yes" if one["agrees"] else "no")
        measured = None if one["measured"] is None else float(one["measured"])
        rows.append([str(one["quantity"]), number(measured), error, asked, verdict])
    if not rows:
        return ""
    inside = table(["evidence", "measured", "s.e.", "said", "agrees"], rows) + _choices(claim["evidence"])
    return f"<details><summary>evidence ({len(rows)})</summary>{inside}</details>"


def _choices(evidence: Sequence[Mapping[str, Any]]) -> str:
    """Targets that the claim leaves open, with the reason for each."""
    chosen = [one for one in evidence if one.get("choice")]
    texts = dict.fromkeys(f"{number(float(one['predicted']))}: {one['choice']}" for one in chosen)
    if not texts:
        return ""
    return f"<p class='dim'>Our choice, where the claim has no number: {escape('; '.join(texts))}.</p>"


def _plain(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)
