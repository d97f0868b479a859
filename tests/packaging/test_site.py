"""The site: built strictly from the documents, every picture drawn, no request to anybody, readable by everybody."""

import html
import http.server
import logging
import re
import runpy
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from explorer_visit import until, violations
from visit import Visit, keep

ROOT = Path(__file__).parents[2]
SITE = runpy.run_path(str(ROOT / "docs" / "build_site.py"))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All of it, with one chapter of the explorer in place of thirteen."""
    from rootdk.lab.explorer.chapters import claims, formula
    from rootdk.lab.explorer.export import exported_page

    folder = tmp_path_factory.mktemp("site") / "built"
    SITE["build"](folder, lambda: exported_page((formula.CHAPTER, claims.CHAPTER)))
    return folder


@pytest.fixture(scope="module")
def served(site: Path) -> Iterator[str]:
    """Its address; searching needs a server."""
    handler = partial(_Quiet, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_arguments: Any) -> None:
        pass


def pages(site: Path) -> list[Path]:
    return sorted(site.rglob("*.html"))


def test_every_document_and_module_has_its_page(site: Path) -> None:
    names = {page.relative_to(site).with_suffix(".md").as_posix() for page in pages(site)}
    assert {*SITE["PAGES"].values(), *(page for page, _ in SITE["GUIDE"])} < names
    assert {f"reference/{module}.md" for module in SITE["MODULES"]} < names
    documents = {path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md")} - {"docs/guide.md"}
    assert documents < SITE["PAGES"].keys()
    text = (site / "reference" / "rootdk.theory.html").read_text("utf-8")
    from rootdk import theory

    assert [name for name in theory.__all__ if f'id="rootdk.theory.{name}"' not in text] == []


def test_a_borrowed_signature_is_shown_whole(site: Path) -> None:
    text = (site / "reference" / "rootdk.distributed.html").read_text("utf-8")
    text = html.unescape(re.sub(r"<[^>]*>", "", text[text.index('id="rootdk.distributed.measure"') :]))
    signature = text[: text.index("->")]
    assert "arguments" not in signature
    assert "query_offset" in signature


def test_every_guide_has_a_picture_that_the_package_drew(site: Path) -> None:
    guides = {*(site / "guides").glob("*.html"), site / "learn" / "why-root-dk.html", site / "learn" / "explorer.html"}
    assert len(guides) == 12
    for page in guides:
        shown = re.findall(r'<img alt="([^"]+)" class="drawn" src="([^"]+)"', page.read_text("utf-8"))
        assert shown, page
        for words, picture in shown:
            assert len(words) > 20
            assert b"<svg" in (page.parent / picture).read_bytes()


def fetched(text: str) -> list[str]:
    """Addresses elsewhere that a browser would ask for when it shows the page or the style; links are none of them."""
    elements = r"<(?:script|img|iframe|link|source)\b[^>]*?"
    loads = re.findall(elements + r"""(?:src|href)=["']?((?:https?:)?//[^"'\s>]+)""", text)
    return loads + re.findall(r"""(?:url\(|@import )["']?((?:https?:)?//[^"')\s]+)""", text)


def test_no_page_and_no_style_asks_anybody_for_anything(site: Path) -> None:
    for file in [*pages(site), *site.rglob("*.css")]:
        if file.name != "page.html":  # it forbids itself every request
            assert fetched(file.read_text("utf-8")) == [], file
    assert "default-src 'none'" in (site / "learn" / "page.html").read_text("utf-8")
    assert fetched('<link rel="stylesheet" href="https://fonts.example/x.css"><a href="https://a.example">a</a>') == [
        "https://fonts.example/x.css"
    ]
    assert fetched("@font-face { src: url(//fonts.example/x.woff2) }") == ["//fonts.example/x.woff2"]


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_in_a_browser_it_fits_fetches_nothing_and_breaks_no_rule(
    browser: Any, site: Path, served: str, tmp_path: Path, width: int, scheme: str
) -> None:
    visit = Visit(browser, width, scheme, server=served)
    for page in ("index", "quickstart", "guides/claims", "guides/watch-and-audit", "reference/rootdk.scaling"):
        visit.page.goto(f"{served}/{page}.html")
        visit.page.wait_for_selector("article h1")
        keep(visit.page, tmp_path, f"site-{page.replace('/', '-')}-{width}-{scheme}")
        assert visit.page.evaluate("document.documentElement.scrollWidth") == width, page
        assert violations(visit.page) == [], page
    assert visit.outside == []
    assert visit.complaints == []


def test_it_can_be_searched_and_the_explorer_opens(browser: Any, site: Path, served: str) -> None:
    visit = Visit(browser, 1280, server=served)
    visit.page.goto(f"{served}/index.html")
    visit.page.keyboard.press("f")
    visit.page.keyboard.type("relative_gradient")
    links = until(lambda: visit.page.locator(".md-search-result__link").all())
    assert links[0].inner_text() == "rootdk.theory"
    visit.page.goto(f"{served}/learn/page.html")
    until(lambda: visit.page.evaluate("document.documentElement.dataset.drawn"))
    assert visit.page.locator("h1").inner_text() == "The formula"
    assert visit.outside == []


def test_a_link_that_leads_nowhere_stops_the_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    build = SITE["build"]
    bad = "# Home\n\n[there](nowhere.md) and [here](index.md#not-at-all)\n"
    monkeypatch.setitem(build.__globals__, "pages", lambda: iter([("index.md", bad)]))
    monkeypatch.setitem(build.__globals__, "draw", lambda folder: None)
    with caplog.at_level(logging.INFO, "mkdocs"), pytest.raises(SystemExit):
        build(tmp_path / "site", lambda: "")
    assert "nowhere.md" in caplog.text
    assert "not-at-all" in caplog.text


def test_links_between_documents_become_links_between_pages() -> None:
    linked = SITE["linked"]
    text = "[a](audit.md#in-training) [s](training.py) [d](../DESIGN.md) [u](https://a.example)"
    moved = "[a](watch-and-audit.md#in-training) s [d](../project/design/index.md) [u](https://a.example)"
    assert linked(text, "docs/guide.md", "guides/torch.md") == moved
    assert linked("[g](guide.md#which-scale)", "docs/faq.md", "faq.md") == "[g](guides/theory.md)"


def test_docstrings_are_set_as_text() -> None:
    docstring = "Say a < b_c.\n\nd_k   a number\n      above 0\n\n    a  b\n\n>>> 1 + 1\n2"
    markdown = "Say a &lt; b\\_c.\n\n- `d_k` a number above 0\n\n```text\na  b\n```\n\n```pycon\n>>> 1 + 1\n2\n```"
    assert SITE["as_markdown"](docstring) == markdown
