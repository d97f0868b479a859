"""What every page of a report is made of: one text with plotly.js, style and figures inside, that fetches nothing.

A content security policy in its head forbids every request, so that the promise does not hang on what plotly.js does.
"""

import json
import re
from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files

from rootdk.errors import RootdkError
from rootdk.lab.drawing import Picture

_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data: blob:; font-src data:"
)


class PlotlyMissingError(RootdkError, ImportError):
    """The report needs plotly, which is an extra."""


def check_plotly() -> None:
    """An error that says how to get plotly, if it is missing.

    >>> check_plotly()  # it is installed here
    """
    try:
        import plotly.graph_objects  # noqa: F401
    except ImportError as error:
        raise PlotlyMissingError(
            "report: needs plotly, which is not installed; get it with: pip install 'rootdk[lab]'"
        ) from error


def document(title: str, links: Sequence[tuple[str, str]], body: Sequence[str]) -> str:
    """The whole page: a menu that stays, with (anchor, heading) for each section, beside its parts.

    plotly.js stands there as text, and runs when the first figure comes into view: opening does not wait for it.
    """
    check_plotly()
    from plotly.offline import get_plotlyjs

    palette = files("rootdk.lab").joinpath("palette.css").read_text("utf-8")
    style, script = (files(__package__).joinpath(name).read_text("utf-8") for name in ("page.css", "page.js"))
    menu = "".join(f"<a href='#{escape(anchor)}'>{rich(heading)}</a>" for anchor, heading in links)
    return (
        "<!DOCTYPE html>\n<html lang='en'><head><meta charset='utf-8'>"
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        "<meta name='viewport' content='width=device-width, initial-scale=1'>"
        f"<link rel='icon' href='data:,'><title>{escape(title)}</title>"
        f"<style>{palette}{style}</style></head>\n<body><nav aria-label='Sections'>{menu}</nav><main>"
        + "\n".join(body)
        + f"</main>\n<script type='text/plain' id='plotly'>{script_text(get_plotlyjs())}</script>"
        f"\n<script>{script}</script></body></html>\n"
    )


def figure(picture: Picture) -> str:
    """A place for a picture, with its data beside it; page.js draws it."""
    data = json.dumps(picture.figure, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    name = escape(picture.name)
    return (
        f"<figure><h3 id='title-{name}'>{rich(picture.title)}</h3><div class='plot' id='plot-{name}' role='img' "
        f"aria-labelledby='title-{name}'></div><figcaption>{rich(picture.caption)}</figcaption>"
        f"<script type='application/json' data-plot='plot-{name}'>{data}</script></figure>"
    )


def figures(pictures: Sequence[Picture], most: int | None = None) -> str:
    """Side by side where there is room; those past the first `most` are folded."""
    shown, folded = pictures[:most], pictures[len(pictures[:most]) :]
    grid = f"<div class='figures'>{''.join(map(figure, shown))}</div>"
    if folded:
        count = f"{len(folded)} more figure{'s' * (len(folded) > 1)}"
        grid += f"<details><summary>{count}</summary>{figures(folded)}</details>"
    return grid


def badge(kind: str, text: str) -> str:
    """A word in the colour of its kind: good, half, bad or open."""
    return f"<span class='badge {kind}'>{escape(text)}</span>"


def card(large: str, small: str) -> str:
    """A few words in large letters over some in small ones; both are HTML."""
    return f"<div class='card'><strong>{large}</strong><p>{small}</p></div>"


def foot(about: Mapping[str, str]) -> str:
    """Facts at the end of the page."""
    facts = " · ".join(f"{escape(name)} {escape(value)}" for name, value in about.items())
    return f"<footer>rootdk report{' · ' if facts else ''}{facts}</footer>"


def rich(text: str) -> str:
    r"""Escaped, with subscripts set as a person would write them; no line begins with % or = or ends with =.

    >>> rich("d_k < 4"), rich("49 %")
    ('<i>d<sub>k</sub></i> &lt; 4', '49\xa0%')
    """
    text = re.sub(r" (?=[=%])|(?<==) ", "\u00a0", text)
    return re.sub(r"\b([A-Za-z])_([a-z])\b", r"<i>\1<sub>\2</sub></i>", escape(text))


def script_text(text: str) -> str:
    r"""JavaScript that cannot end the element that it stands in: in its strings `<\/` is `</`."""
    return text.replace("</script", "<\\/script")


def number(value: float | None) -> str:
    """Four digits, or a dash.

    >>> number(0.000123456), number(None)
    ('0.0001235', '–')
    """
    return "–" if value is None else f"{value:.4g}"


def table(head: Sequence[str], rows: Sequence[Sequence[str]], raw: bool = False) -> str:
    """A table in a box that scrolls sideways on a narrow screen. raw: the cells are HTML already."""
    top = "".join(f"<th>{escape(name)}</th>" for name in head)
    cells = ("".join(f"<td>{cell if raw else escape(cell)}</td>" for cell in row) for row in rows)
    body = "".join(f"<tr>{row}</tr>" for row in cells)
    return f"<div class='scroll'><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>"
