"""The numbers behind the figures as tables, and the ledger of claims. Every text is escaped."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from rootdk.lab.checks.result import Comparison, Result

_BADGES = {
    "holds": "good",
    "holds under a condition": "half",
    "does not hold": "bad",
}


def number(value: float | None) -> str:
    """Four digits, or a dash.

    >>> number(0.000123456), number(None)
    ('0.0001235', '–')
    """
    return "–" if value is None else f"{value:.4g}"


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


def comparisons(some: Sequence[Comparison]) -> str:
    """Every number of one experiment."""
    names = list(dict.fromkeys(name for one in some for name in one.setting))
    head = ["quantity", *names, "theory", "measured", "± 1 s.e.", "off by, s.e."]
    rows = []
    for one in some:
        off = "–" if one.disagreement is None else f"{one.disagreement:+.1f}"
        setting = [_plain(one.setting.get(name, "")) for name in names]
        rows.append([one.quantity, *setting, number(one.theory), number(one.measured), number(one.standard_error), off])
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
    found: dict[str, int] = dict.fromkeys(_BADGES, 0)
    for one in claims:
        found[str(one["verdict"])] = found.get(str(one["verdict"]), 0) + 1
    return {verdict: count for verdict, count in found.items() if count}


def badge(verdict: str, text: str) -> str:
    """A coloured word."""
    return f"<span class='badge {_BADGES.get(verdict, 'open')}'>{escape(text)}</span>"


def table(head: Sequence[str], rows: Sequence[Sequence[str]], raw: bool = False) -> str:
    """A table in a box that scrolls sideways on a narrow screen. raw: the cells are HTML already."""
    top = "".join(f"<th>{escape(name)}</th>" for name in head)
    cells = ("".join(f"<td>{cell if raw else escape(cell)}</td>" for cell in row) for row in rows)
    body = "".join(f"<tr>{row}</tr>" for row in cells)
    return f"<div class='scroll'><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>"


def _evidence(claim: Mapping[str, Any]) -> str:
    rows = []
    for one in claim.get("evidence", ()):
        error = "exact" if one["error"] is None else f"± {float(one['error']):.1g}"
        said = f"{one['relation']} {number(float(one['target']))}" if one["relation"] else ""
        verdict = "" if not said else ("yes" if one["agrees"] else "no")
        rows.append([str(one["name"]), number(float(one["value"])), error, said, verdict])
    if not rows:
        return ""
    inside = table(["evidence", "found", "s.e.", "said", "agrees"], rows) + _choices(claim["evidence"])
    return f"<details><summary>evidence ({len(rows)})</summary>{inside}</details>"


def _choices(evidence: Sequence[Mapping[str, Any]]) -> str:
    """Targets that the claim leaves open, with the reason for each."""
    found = dict.fromkeys(f"{number(float(one['target']))}: {one['choice']}" for one in evidence if one.get("choice"))
    if not found:
        return ""
    return f"<p class='dim'>Our choice, where the claim has no number: {escape('; '.join(found))}.</p>"


def _plain(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)
