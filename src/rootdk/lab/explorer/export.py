"""The page as one file that opens offline: the same modules, with views that were computed before in place of a server.

For each chapter the file holds the view of the defaults and, knob by knob, views over a list of values with the other
knobs at their defaults: all combinations would be too many. A state that is given by its address is what the file
opens with, and its values are the defaults of that chapter. Nothing is fetched; the policy in its head forbids it.
"""

import base64
import gzip
import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from rootdk.errors import RootdkError
from rootdk.lab.report.document import script_text

from .address import started_at
from .assets import plotly_js, static_text
from .bundle import bundle
from .chapter import Chapter
from .endpoints import Api, ModelView
from .security import hashes, sheets_in
from .stops import texts_of, with_stops

Progress = Callable[[str, float], None]

_NOTE = (
    "A saved page: every knob moves over a list of values, with the others as they were saved. "
    "To move them all, run: rootdk explore"
)


def exported_page(
    chapters: tuple[Chapter, ...] | None = None,
    model_view: ModelView | None = None,
    audit: Mapping[str, Any] | None = None,
    progress: Progress = lambda name, share: None,
    at: str | None = None,
) -> str:
    """The whole page as HTML; `progress` gets the title of the chapter and the share that is done.

    at is the address of the view that it opens with, such as growth?d_k=512.
    """
    if chapters is None or model_view is None:
        from .chapters import CHAPTERS
        from .server import shown_audit

        chapters, model_view = chapters or CHAPTERS, model_view or shown_audit
    start = None
    if at is not None:
        start, chapters = started_at(chapters, at)
    return _inlined(static_text(), precomputed(Api(chapters, model_view, audit), progress) | {"start": start})


def precomputed(api: Api, progress: Progress = lambda name, share: None) -> dict[str, Any]:
    """What the server would answer: the description of the chapters, and their views by knob and value."""
    described = api.described()
    total = sum(1 + sum(len(texts_of(one)) for one in chapter.controls) for chapter in api.chapters)
    views: dict[str, dict[str, Any]] = {}
    done = 0
    for place, chapter in enumerate(api.chapters):
        described["chapters"][place]["controls"] = [with_stops(one) for one in chapter.controls]
        found: dict[str, Any] = {}
        for name, raw in _settings(chapter):
            found.setdefault(name, []).append(_shown(api, chapter, raw))
            done += 1
            progress(chapter.title, done / total)
        views[chapter.id] = found
    return {**described, "views": views}


def _settings(chapter: Chapter) -> Iterator[tuple[str, dict[str, str]]]:
    """The defaults under the name "", then each knob's values."""
    yield "", {}
    for control in chapter.controls:
        for text in texts_of(control):
            yield control.name, {control.name: text}


def _shown(api: Api, chapter: Chapter, raw: Mapping[str, str]) -> dict[str, Any]:
    """A view, or why there is none: what the server would answer with 422."""
    try:
        return api.shown(chapter, raw)
    except RootdkError as error:
        return {"error": str(error), "name": str(error).partition(":")[0]}


def _inlined(texts: Mapping[str, str], data: Mapping[str, Any]) -> str:
    """index.html with what it links put in its place, and a policy that allows exactly these texts by their hashes."""
    styles: list[str] = []
    # A browser reads \r\n in HTML as \n, and the hash is of what it read.
    scripts = [
        script_text(one).replace("\r\n", "\n")
        for one in (plotly_js(), bundle({name: text for name, text in texts.items() if name.endswith(".js")}))
    ]

    def styled(link: re.Match[str]) -> str:
        styles.append(texts[link["name"]])
        return f"<style{link['id'] or ''}>{texts[link['name']]}</style>"

    packed = base64.b64encode(gzip.compress(json.dumps(data, allow_nan=False, separators=(",", ":")).encode(), mtime=0))
    page = re.sub(
        r'<link rel="stylesheet"(?P<id> id="[^"]*")? href="/static/(?P<name>[^"]*)">', styled, texts["index.html"]
    )
    page = re.sub(r"<script [^>]*></script>\n", "", page)
    policy = "; ".join(
        (
            "default-src 'none'",
            f"script-src {hashes(scripts)}",
            f"style-src-elem {hashes(styles + sheets_in(plotly_js()))}",
            "style-src-attr 'unsafe-inline'",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
        )
    )
    head, body = page.split("<head>\n", 1)
    held = f'<script type="application/octet-stream" id="exported" data-note="{_NOTE}">{packed.decode()}</script>\n'
    running = "".join(f"<script>{one}</script>\n" for one in scripts)
    return f'{head}<head>\n<meta http-equiv="Content-Security-Policy" content="{policy}">\n' + body.replace(
        "</body>", f"{held}{running}</body>"
    )
