"""The page as one file that opens offline: the same modules, with views that were computed before in place of a server.

For each chapter the file holds the view of the defaults and, knob by knob, views over a list of values with the other
knobs at their defaults: all combinations would be too many. If an address is given, the file opens with its state,
whose values are the defaults of that chapter. Nothing is fetched; the policy in its head forbids it.

The modules of the page become one script without any tool: they import by name from files beside them and export what
they declare, so that one after the other in one scope they work the same, as long as no two of them use a name for
different things. That is checked.
"""

import base64
import gzip
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from rootdk.errors import RootdkError
from rootdk.lab.drawing import script_text

from .chapter import Chapter, Control, plain
from .endpoints import Api, hashes, plotly_js, sheets_in, static_text
from .shared import with_rules
from .values import started_at

Progress = Callable[[str, float], None]

_NOTE = (
    "A saved page: every knob moves over a list of values, with the others as they were saved. "
    "To move them all, run: rootdk explore"
)
STOPS = 13
# More of them for a knob that can play by itself, so that it moves smoothly.
PLAYED_STOPS = 25
SEEDS = 5
_IMPORT = re.compile(r'^import \{[^}]*\} from "\./([a-z_]+\.js)";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?function |class |const )", re.MULTILINE)
_DECLARED = re.compile(r"^(?:export )?(?:async )?(?:function|class|const|let) (\w+)", re.MULTILINE)


def exported_page(
    chapters: tuple[Chapter, ...] | None = None,
    audit: Mapping[str, Any] | None = None,
    progress: Progress = lambda name, share: None,
    at: str | None = None,
    rules: Sequence[str] = (),
) -> str:
    """The whole page as HTML; `progress` gets the title of the chapter and the share that is done.

    at is the address of the view that it opens with, such as growth?d_k=512; rules are offered beside the usual ones.
    """
    tour: tuple[tuple[str, str], ...] = ()
    if chapters is None:
        from .chapters import CHAPTERS, TOUR

        chapters, tour = with_rules(CHAPTERS, rules), TOUR
    start = None
    if at is not None:
        start, chapters = started_at(chapters, at)
    return _inlined(static_text(), precomputed(Api(chapters, audit, tour), progress) | {"start": start})


def precomputed(api: Api, progress: Progress) -> dict[str, Any]:
    """What the server would answer: the description of the chapters, and their views by knob and value."""
    described = api.described()
    for record, chapter in zip(described["chapters"], api.chapters, strict=True):
        record["controls"] = [with_stops(control) for control in chapter.controls]
    settings = [(chapter, *setting) for chapter in api.chapters for setting in _settings(chapter)]
    views: dict[str, dict[str, list[Any]]] = {chapter.id: {} for chapter in api.chapters}
    for done, (chapter, name, raw) in enumerate(settings, start=1):
        try:
            view = api.shown(chapter, raw)
        except RootdkError as error:  # what the server would answer with 422
            view = {"error": str(error), "name": str(error).partition(":")[0]}
        views[chapter.id].setdefault(name, []).append(view)
        progress(chapter.title, done / len(settings))
    return {**described, "views": views}


def _settings(chapter: Chapter) -> Iterator[tuple[str, dict[str, str]]]:
    """The defaults under the name "", then each knob's values."""
    yield "", {}
    for control in chapter.controls:
        for text in texts_of(control):
            yield control.name, {control.name: text}


def _inlined(texts: Mapping[str, str], data: Mapping[str, Any]) -> str:
    """index.html with the linked files put in place, and a policy that allows exactly these texts by their hashes."""
    styles: list[str] = []
    # A browser reads \r\n in HTML as \n, and the hash is of what it read.
    scripts = [
        script_text(script).replace("\r\n", "\n")
        for script in (plotly_js(), bundle({name: text for name, text in texts.items() if name.endswith(".js")}))
    ]

    def styled(link: re.Match[str]) -> str:
        styles.append(texts[link["name"]])
        return f"<style{link['id'] or ''}>{texts[link['name']]}</style>"

    packed = base64.b64encode(gzip.compress(json.dumps(data, allow_nan=False, separators=(",", ":")).encode(), mtime=0))
    page = re.sub(
        r'<link rel="stylesheet"(?P<id> id="[^"]*")? href="/static/(?P<name>[^"]*)">', styled, texts["index.html"]
    )
    page = re.sub(r"<script [^>]*></script>\n", "", page)
    policy = (
        f"default-src 'none'; script-src {hashes(scripts)}; style-src-elem {hashes(styles + sheets_in(plotly_js()))}; "
        "style-src-attr 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
    )
    head, body = page.split("<head>\n", 1)
    views = f'<script type="application/octet-stream" id="exported" data-note="{_NOTE}">{packed.decode()}</script>\n'
    running = "".join(f"<script>{script}</script>\n" for script in scripts)
    return f'{head}<head>\n<meta http-equiv="Content-Security-Policy" content="{policy}">\n' + body.replace(
        "</body>", f"{views}{running}</body>"
    )


def texts_of(control: Control, number: int | None = None) -> list[str]:
    """The values as the page would send them, `number` of a slider; none for numbers, which have too many.

    >>> texts_of(Control("turned", "turned", "flag", False))
    ['false', 'true']
    """
    if control.kind == "choice":
        return list(control.choices)
    if control.kind == "flag":
        return ["false", "true"]
    return [str(stop) for stop in stops_of(control, number)]


def stops_of(control: Control, number: int | None = None) -> list[float]:
    """From low to high, evenly or by powers, with the default among them.

    >>> stops_of(Control("d_k", "d_k", "int", 64, 4, 1024, log=True))[:5]
    [4, 6, 10, 16, 25]
    >>> stops_of(Control("seed", "seed", "int", 0, 0, 2**31 - 1))
    [0, 1, 2, 3, 4]
    """
    if control.kind not in ("int", "float") or control.low is None or control.high is None:
        return []
    if control.name == "seed":
        return [seed for seed in range(control.default, control.default + (number or SEEDS)) if seed <= control.high]
    number = number or (PLAYED_STOPS if control.play else STOPS)
    if control.log and control.low > 0:
        spaced = np.geomspace(control.low, control.high, number)
    else:
        spaced = np.linspace(control.low, control.high, number)
        if control.step:
            spaced = control.low + control.step * np.round((spaced - control.low) / control.step)
    whole = control.kind == "int"
    tidy = {round(stop) if whole else float(f"{stop:.4g}") for stop in spaced.tolist()}
    return [stop for stop in sorted({*tidy, control.default}) if control.low <= stop <= control.high]


def with_stops(control: Control) -> dict[str, Any]:
    """The knob as the exported page gets it: numbers cannot be changed, the others stop where there is a view."""
    described: dict[str, Any] = plain(control)
    if control.kind == "numbers":
        return described | {"fixed": True}
    return described | ({"stops": stops_of(control)} if control.kind in ("int", "float") else {})


class BundleError(RootdkError):
    """The modules cannot be one script."""


def imports_of(module: str) -> list[str]:
    r"""Which files a module imports from.

    >>> imports_of('import { make, rich } from "./elements.js";\n')
    ['elements.js']
    """
    return _IMPORT.findall(module)


def bundle(modules: Mapping[str, str]) -> str:
    r"""One script: every module that main.js needs, each after those that it imports.

    >>> print(bundle({"main.js": 'import { a } from "./a.js";\na();\n', "a.js": "export function a() {}\n"}))
    (() => {
    "use strict";
    function a() {}
    a();
    })();
    """
    ordered: dict[str, str] = {}
    _collect("main.js", modules, ordered, ())
    owner: dict[str, str] = {}
    for name, text in ordered.items():
        for declared in _DECLARED.findall(text):
            if declared in owner:
                raise BundleError(f"{declared}: must be declared in one module, is in {owner[declared]} and {name}")
            owner[declared] = name
    body = "".join(_EXPORT.sub("", _IMPORT.sub("", text)) for text in ordered.values())
    if left := re.search(r"^(?:import|export)\b.*", body, re.MULTILINE):
        raise BundleError(f"modules: must import and export by name, got {left[0]}")
    return f'(() => {{\n"use strict";\n{body}}})();'


def _collect(name: str, modules: Mapping[str, str], ordered: dict[str, str], above: tuple[str, ...]) -> None:
    if name in above:
        raise BundleError(f"modules: must not import in a circle, got {' -> '.join((*above, name))}")
    if name in ordered:
        return
    for needed in imports_of(modules[name]):
        _collect(needed, modules, ordered, (*above, name))
    ordered[name] = modules[name]
