"""A page of the report, read by a parser."""

import json
from html.parser import HTMLParser
from typing import Any

VOID = {"meta", "link", "br", "mspace"}
FETCHING = {"src", "href", "srcset", "data", "poster", "action", "xlink:href"}


class Page(HTMLParser):
    """Elements that close in order, what each could fetch, and the texts of scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.links: list[tuple[str, str]] = []
        self.ids: list[str] = []
        self.tags: list[str] = []
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        self.tags.append(tag)
        self.links += [(tag, value or "") for name, value in attrs if name in FETCHING]
        self.ids += [value or "" for name, value in attrs if name == "id"]
        if tag == "script":
            self.scripts.append((attributes, ""))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "script":
            attributes, before = self.scripts[-1]
            self.scripts[-1] = (attributes, before + data)
        elif "style" not in self.open:
            self.words.append(data)

    @property
    def plots(self) -> dict[str, Any]:
        """The figures by the name of their place."""
        return {
            str(attributes["data-plot"]): json.loads(text)
            for attributes, text in self.scripts
            if "data-plot" in attributes
        }


def check_figures(page: Page) -> None:
    """Figures are made as plain dictionaries; plotly's own classes refuse a field or a value that there is not."""
    import plotly.graph_objects as go

    assert page.plots
    for figure in page.plots.values():
        go.Figure(figure)
