"""The page of the study: figures, tables and claims. Every text is escaped."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from rootdk.lab import formulas
from rootdk.lab.answer import answer, answer_of, rows_as_widths_grow, rows_svg, rows_text, worked_example
from rootdk.lab.checks import AGREES, DISAGREES, EXPERIMENTS, VERDICTS, Comparison, Result
from rootdk.lab.checks.comparison import CLEAR
from rootdk.lab.formulas import WORDS
from rootdk.lab.training import Results

from ..drawing import badge, card, document, figures, foot, number, rich, table
from .training_page import training_section

_BADGES = dict(zip(VERDICTS, ("good", "half", "bad", "half", "open", "open"), strict=True))
_LEAD = "All of this is about random queries and keys, which is the state of attention at the start of training."
_CLAIMS = (
    "Statements about the scale, from papers, courses and blogs, in our words. Code checked each of them for this "
    "report, and the verdict follows from the numbers."
)
_AGAINST = (
    "Each experiment computes numbers from theory and measures the same numbers. The table shows the largest "
    f"difference between the two, in standard errors (s.e.). More than {CLEAR:g} would be a contradiction."
)
_EXAMPLE = (
    "One query and three keys with d_k = 64 components. The scores q·k are 14, 10 and 12. Without the scale, softmax "
    "gives the first key most of the weight. When the same scores are divided by √64 = 8, all three keys get a part."
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

    >>> from rootdk.lab.checks import EXPERIMENTS, LEDGER, run
    >>> variance = run(EXPERIMENTS["variance"].spec(d_k=(16,), laws=("sign",), rows=1000))
    >>> page = render([variance], [LEDGER[7].check().to_dict()])
    >>> page.startswith("<!DOCTYPE html>"), "does not hold" in page
    (True, True)
    """
    links = [("answer", "The answer")]
    links += [("claims", "What is true and what is not")] if claims else []
    links += [("example", "A worked example"), ("overview", "Theory against measurement")]
    links += [(result.experiment, _heading(result)) for result in results]
    links += [("training", "What training showed")] if trained else []
    against = f"<p>{_LEAD} {_AGAINST}</p>" + (f"<div class='overview'>{overview(results)}</div>" if results else "")
    body = [
        _answer(results, cards, claims),
        _claims(claims),
        _example(),
        f"<section><h2 id='overview'>Theory against measurement</h2>{against}{_words()}</section>",
        *map(_section, results),
        training_section(trained) if trained else "",
        foot(about or {}),
    ]
    return document("rootdk: why the root of d_k", links, body)


def _answer(results: Sequence[Result], cards: Sequence[tuple[str, str]], claims: Sequence[Mapping[str, Any]]) -> str:
    """The question, the answer in two sentences, and the drawing that shows it."""
    rules = next((result for result in results if result.experiment == "rules"), None)
    text = answer_of(rules) if rules is not None else answer(512, 1024)
    rows = rows_as_widths_grow()
    return (
        "<section class='answer'><h1 id='answer'>Why divide by √<i>d<sub>k</sub></i>, and is it true?</h1>"
        f"<div class='beside'><div><p class='lead'>{rich(text)}</p>{formulas.ATTENTION}{_cards(cards, claims)}</div>"
        "<figure class='drawing'><h2 id='title-rows'>The weights of one row as <i>d<sub>k</sub></i> grows</h2>"
        f"<div role='img' aria-labelledby='title-rows' aria-describedby='text-rows'>{rows_svg(rows)}</div>"
        f"<figcaption id='text-rows'>{rich(rows_text(rows))}</figcaption>"
        f"<script type='text/csv'>{_rows_csv(rows)}</script></figure></div></section>"
    )


def _rows_csv(rows: Mapping[int, Mapping[str, Any]]) -> str:
    lines = [f"{d_k},{rule},{place},{weight:.7g}" for d_k, row in rows.items() for rule, weights in row.items()
             for place, weight in enumerate(weights, 1)]  # fmt: skip
    return "\n".join(["d_k,rule,key by weight,weight", *lines])


def _words() -> str:
    rows = [[word.name, rich(word.meaning), word.equal, word.one_key] for word in WORDS]
    head = ["word", "what", "for n equal weights", "for one weight of 1"]
    return f"<details><summary>what the words mean</summary>{table(head, rows, raw=True)}</details>"


def _example() -> str:
    head, rows = worked_example()
    return f"<section><h2 id='example'>A worked example</h2><p>{rich(_EXAMPLE)}</p>{table(head, rows)}</section>"


def _heading(result: Result) -> str:
    experiment = EXPERIMENTS.get(result.experiment)
    return experiment.heading if experiment else result.experiment


def _section(result: Result) -> str:
    """The words and pictures of its experiment; a result of an experiment that is not known here has its numbers."""
    experiment = EXPERIMENTS.get(result.experiment)
    text, formula = (rich(experiment.text), experiment.formula) if experiment else ("", "")
    pictures = experiment.pictures(result) if experiment else ()
    worst, line = result.worst.disagreement, f"{result.compared} numbers compared"
    if worst is not None:
        line += f"; theory and measurement differ by at most {abs(worst):.1f} standard errors"
    return (
        f"<section><h2 id='{escape(result.experiment)}'>{rich(_heading(result))}</h2><p>{text}</p>{formula}"
        f"{figures(pictures) if pictures else ''}<p class='dim'>{line}.</p>"
        f"<details><summary>all numbers</summary>{comparisons(result.comparisons)}</details></section>"
    )


def _cards(cards: Sequence[tuple[str, str]], claims: Sequence[Mapping[str, Any]]) -> str:
    shown = [card(rich(large), rich(small)) for large, small in cards]
    if claims:
        groups = _by_verdict(claims).items()
        verdicts = " ".join(badge(_BADGES.get(verdict, "open"), _counted(verdict, group)) for verdict, group in groups)
        shown.append(card(f"{len(claims)} claims", verdicts))
    return f"<div class='cards'>{''.join(shown)}</div>" if shown else ""


def _counted(verdict: str, group: Sequence[Any]) -> str:
    words = verdict if len(group) == 1 else verdict.replace("holds", "hold").replace("does not", "do not")
    return f"{len(group)} {words}"


def _claims(claims: Sequence[Mapping[str, Any]]) -> str:
    if not claims:
        return ""
    many, few = "", ""
    for verdict, group in _by_verdict(claims).items():
        block = f"<h3>{escape(_counted(verdict, group))}</h3>{ledger(group)}"
        # A verdict on one claim or two does not fill a row: these stand side by side.
        if len(group) > 2:
            many += block
        else:
            few += f"<div>{block}</div>"
    return (
        f"<section><h2 id='claims'>What is true and what is not</h2><p>{_CLAIMS}</p>{many}"
        f"<div class='few'>{few}</div></section>"
    )


def _by_verdict(claims: Sequence[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    """The claims of each verdict, in the order of the ledger's words."""
    groups: dict[str, list[Mapping[str, Any]]] = {verdict: [] for verdict in _BADGES}
    for claim in claims:
        groups.setdefault(str(claim["verdict"]), []).append(claim)
    return {verdict: group for verdict, group in groups.items() if group}


def overview(results: Sequence[Result]) -> str:
    """One row per experiment: how much was compared, and the largest disagreement."""
    rows = []
    for result in results:
        worst = result.worst
        where = ", ".join(f"{name} {_plain(value)}" for name, value in worst.setting.items())
        link = f"<a href='#{result.experiment}'>{escape(result.experiment)}</a>"
        place = f"{escape(worst.quantity)} <span class='dim'>({escape(where)})</span>"
        rows.append([link, str(result.compared), _off(worst), place])
    return table(["experiment", "numbers compared", "largest difference, s.e.", "where"], rows, raw=True)


def comparisons(compared: Sequence[Comparison]) -> str:
    """Every number of one experiment."""
    names = list(dict.fromkeys(name for comparison in compared for name in comparison.setting))
    head = ["quantity", *names, "theory", "measured", "± 1 s.e.", "difference, s.e."]
    rows = []
    for comparison in compared:
        setting = [_plain(comparison.setting.get(name, "")) for name in names]
        numbers = (comparison.predicted, comparison.measured, comparison.standard_error)
        rows.append([comparison.quantity, *setting, *map(number, numbers), _off(comparison)])
    return table(head, rows)


def _off(comparison: Comparison) -> str:
    return "–" if comparison.disagreement is None else f"{comparison.disagreement:+.1f}"


def ledger(claims: Sequence[Mapping[str, Any]]) -> str:
    """A card per claim, of plain dictionaries: id, statement, source, method, verdict, condition, evidence.

    The verdict is the heading above the cards; a card has its colour.
    """
    return f"<div class='claims'>{''.join(map(_claim, claims))}</div>"


def _claim(claim: Mapping[str, Any]) -> str:
    verdict, place = str(claim["verdict"]), int(claim["id"])
    condition = f"<p class='condition'>{rich(str(claim['condition']))}</p>" if claim.get("condition") else ""
    source, method = (escape(str(claim[name])) for name in ("source", "method"))
    return (
        f"<article class='claim is-{_BADGES.get(verdict, 'open')}' id='claim-{place}'>"
        f"<p><span class='id'>{place}</span> {rich(str(claim['statement']))}</p>{condition}"
        f"<details><summary>source, and how it was checked</summary><p class='dim'>{source} · {method}</p>"
        f"{_evidence(claim)}</details></article>"
    )


def _evidence(claim: Mapping[str, Any]) -> str:
    rows = []
    for comparison in claim.get("evidence", ()):
        error = "exact" if comparison["standard_error"] is None else f"± {float(comparison['standard_error']):.1g}"
        measured = None if comparison["measured"] is None else float(comparison["measured"])
        relation, verdict = "", ""
        if comparison["relation"]:
            relation = f"{comparison['relation']} {number(float(comparison['predicted']))}"
            verdict = {AGREES: "yes", DISAGREES: "no"}.get(comparison["state"], "not decided")
        rows.append([str(comparison["quantity"]), number(measured), error, relation, verdict])
    return table(["evidence", "measured", "s.e.", "claim", "true?"], rows) + _choices(claim["evidence"]) if rows else ""


def _choices(evidence: Sequence[Mapping[str, Any]]) -> str:
    """Targets that the claim leaves open, with the reason for each."""
    chosen = [comparison for comparison in evidence if comparison.get("choice")]
    texts = dict.fromkeys(f"{number(float(comparison['predicted']))}: {comparison['choice']}" for comparison in chosen)
    if not texts:
        return ""
    return f"<p class='dim'>The claim gives no number here; we chose: {escape('; '.join(texts))}.</p>"


def _plain(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)
