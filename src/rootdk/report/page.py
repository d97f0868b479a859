"""The page: plotly.js, figures, tables and claims in one text that needs nothing from outside.

A content security policy in its head forbids every request, so that the promise does not hang on what plotly.js does.
"""

import json
from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from typing import Any

from rootdk.errors import RootdkError
from rootdk.study.result import Result

from . import formulas
from .drawing import Picture
from .figures import pictures
from .sections import SECTIONS, Section
from .tables import badge, comparisons, counts, ledger, overview

_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data: blob:; font-src data:"
)


_LEAD = (
    "Theory and measurement side by side, on random queries and keys: the state of attention at the start of training."
)
_AGAINST = (
    "Every experiment computes numbers and measures them. The table shows its largest disagreement in standard errors "
    "(s.e.); more than 4 would be a contradiction."
)


class PlotlyMissingError(RootdkError, ImportError):
    """The report needs plotly, which is an extra."""


def check_plotly() -> None:
    """An error that says how to get plotly, if it is missing."""
    try:
        import plotly.graph_objects  # noqa: F401
    except ImportError as error:
        raise PlotlyMissingError(
            "report: needs plotly, which is not installed; get it with: pip install 'rootdk[lab]'"
        ) from error


def render(
    results: Sequence[Result],
    claims: Sequence[Mapping[str, Any]] = (),
    about: Mapping[str, str] | None = None,
    cards: Sequence[tuple[str, str]] = (),
) -> str:
    """One HTML page.

    results  of the study, each shown in its section
    claims   checked claims as dictionaries: id, statement, source, method, verdict, condition, evidence
    about    facts for the foot of the page, such as version and seed
    cards    (large, small) texts for the top
    """
    check_plotly()
    from plotly.offline import get_plotlyjs

    shown = [(one, SECTIONS.get(one.experiment, Section(one.experiment, "")), pictures(one)) for one in results]
    links = [(one.experiment, section.heading) for one, section, _ in shown]
    links += [("claims", "The claims")] if claims else []
    navigation = "".join(f"<a href='#{escape(anchor)}'>{_rich(heading)}</a>" for anchor, heading in links)
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
        _claims(claims),
        _foot(about or {}),
    ]
    style, script = (files(__package__).joinpath(name).read_text("utf-8") for name in ("page.css", "page.js"))
    return (
        "<!DOCTYPE html>\n<html lang='en'><head><meta charset='utf-8'>"
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        "<meta name='viewport' content='width=device-width, initial-scale=1'>"
        "<link rel='icon' href='data:,'><title>rootdk: why the root of d_k</title>"
        f"<style>{style}</style></head>\n<body>"
        + "\n".join(body)
        + f"\n<script>{_script(get_plotlyjs())}</script>\n<script>{script}</script></body></html>\n"
    )


def _section(result: Result, section: Section, some: Sequence[Picture]) -> str:
    worst = result.worst.disagreement
    line = f"{result.compared} numbers compared" + (
        f"; the largest disagreement is {abs(worst):.1f} standard errors." if worst is not None else "."
    )
    groups = [[one for one in some if not _small(one)], [one for one in some if _small(one)]]
    figures = "".join(
        f"<div class='figures{' small' if number else ''}'>{''.join(map(_figure, group))}</div>"
        for number, group in enumerate(groups)
        if group
    )
    return (
        f"<section><h2 id='{escape(result.experiment)}'>{_rich(section.heading)}</h2><p>{_rich(section.text)}</p>"
        f"{section.formula}{figures}<details><summary>all numbers</summary>{comparisons(result.comparisons)}</details>"
        f"<p class='dim'>{line}</p></section>"
    )


def _small(picture: Picture) -> bool:
    return picture.name.startswith("jacobian")


def _figure(picture: Picture) -> str:
    data = json.dumps(picture.figure, allow_nan=False, default=_listed, separators=(",", ":")).replace("<", "\\u003c")
    return (
        f"<figure><h3>{_rich(picture.title)}</h3><div class='plot' id='plot-{escape(picture.name)}' role='img' "
        f"aria-label='{escape(picture.title)}'></div><figcaption>{_rich(picture.caption)}</figcaption>"
        f"<script type='application/json' data-plot='plot-{escape(picture.name)}'>{data}</script></figure>"
    )


def _cards(cards: Sequence[tuple[str, str]], claims: Sequence[Mapping[str, Any]]) -> str:
    found = [f"<div class='card'><strong>{_rich(large)}</strong><p>{_rich(small)}</p></div>" for large, small in cards]
    if claims:
        verdicts = " ".join(
            badge(verdict, f"{count} {_plural(verdict, count)}") for verdict, count in counts(claims).items()
        )
        found.append(f"<div class='card'><strong>{len(claims)} claims</strong><p>{verdicts}</p></div>")
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


def _foot(about: Mapping[str, str]) -> str:
    facts = " · ".join(f"{escape(name)} {escape(value)}" for name, value in about.items())
    return f"<footer>rootdk report{' · ' if facts else ''}{facts}</footer>"


def _rich(text: str) -> str:
    """Escaped, with d_k set as a person would write them."""
    return escape(text).replace("d_k", "<i>d<sub>k</sub></i>")


def _script(text: str) -> str:
    r"""JavaScript that cannot end the element that it stands in: in its strings `<\/` is `</`."""
    return text.replace("</script", "<\\/script")


def _listed(value: Any) -> Any:
    """Plotly keeps sequences as arrays or tuples."""
    return value.tolist() if hasattr(value, "tolist") else list(value)
