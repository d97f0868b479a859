"""What every page of a report is made of: one text with plotly.js, style and figures inside, that fetches nothing.

A content security policy in its head forbids every request, so that the promise does not hang on what plotly.js does.
"""

import json
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
    """An error that says how to get plotly, if it is missing."""
    try:
        import plotly.graph_objects  # noqa: F401
    except ImportError as error:
        raise PlotlyMissingError(
            "report: needs plotly, which is not installed; get it with: pip install 'rootdk[lab]'"
        ) from error


def document(title: str, body: Sequence[str]) -> str:
    """The whole page around its parts."""
    check_plotly()
    from plotly.offline import get_plotlyjs

    palette = files("rootdk.lab").joinpath("palette.css").read_text("utf-8")
    style, script = (files(__package__).joinpath(name).read_text("utf-8") for name in ("page.css", "page.js"))
    return (
        "<!DOCTYPE html>\n<html lang='en'><head><meta charset='utf-8'>"
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        "<meta name='viewport' content='width=device-width, initial-scale=1'>"
        f"<link rel='icon' href='data:,'><title>{escape(title)}</title>"
        f"<style>{palette}{style}</style></head>\n<body>"
        + "\n".join(body)
        + f"\n<script>{script_text(get_plotlyjs())}</script>\n<script>{script}</script></body></html>\n"
    )


def figure(picture: Picture) -> str:
    """A place for a picture, with its data beside it; page.js draws it."""
    data = json.dumps(picture.figure, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    return (
        f"<figure><h3>{rich(picture.title)}</h3><div class='plot' id='plot-{escape(picture.name)}' role='img' "
        f"aria-label='{escape(picture.title)}'></div><figcaption>{rich(picture.caption)}</figcaption>"
        f"<script type='application/json' data-plot='plot-{escape(picture.name)}'>{data}</script></figure>"
    )


def card(large: str, small: str) -> str:
    """A few words in large letters over some in small ones; both are HTML."""
    return f"<div class='card'><strong>{large}</strong><p>{small}</p></div>"


def foot(about: Mapping[str, str]) -> str:
    """Facts at the end of the page."""
    facts = " · ".join(f"{escape(name)} {escape(value)}" for name, value in about.items())
    return f"<footer>rootdk report{' · ' if facts else ''}{facts}</footer>"


def rich(text: str) -> str:
    """Escaped, with d_k set as a person would write them."""
    return escape(text).replace("d_k", "<i>d<sub>k</sub></i>")


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
