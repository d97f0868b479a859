"""Every chapter of the explorer in headless Chromium: drawn, with Python's numbers, before and after a knob moves."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from explorer_process import Served, explore, free_port
from explorer_visit import assert_shows, drawn, open_at, until, violations
from visit import Visit, keep

from rootdk.lab.explorer.chapter import Chapter
from rootdk.lab.explorer.chapters import CHAPTERS, TOUR
from rootdk.lab.explorer.export import exported_page


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with Served(*explore(free_port())) as served:
        yield served


def first_knob(chapter: Chapter) -> str:
    sliders = [
        control.name for control in chapter.controls if control.kind in ("int", "float") and control.name != "seed"
    ]
    return sliders[0] if sliders else ""


def moved(page: Any, chapter: Chapter) -> dict[str, str]:
    """One key press on the first slider, and the value that it came to."""
    name = first_knob(chapter)
    page.locator(f"#knob-{name}").focus()
    page.keyboard.press("ArrowRight")
    value = page.locator(f"#knob-{name}-typed").input_value()
    until(lambda: drawn(page) == f"#{chapter.id}?{name}={value}")
    return {name: value}


@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda chapter: chapter.id)
def test_what_is_drawn_is_what_python_computes(visit: Visit, server: Served, chapter: Chapter) -> None:
    page = open_at(visit, server.address, f"#{chapter.id}")
    assert_shows(page, chapter)
    assert page.evaluate("[...document.querySelectorAll('.plot')].every(plot => plot.querySelector('svg.main-svg'))")
    if first_knob(chapter):
        assert_shows(page, chapter, **moved(page, chapter))


def test_a_column_is_added_to_queries_and_keys_together(visit: Visit, server: Served) -> None:
    page = open_at(visit, server.address, "#formula")
    page.get_by_role("button", name="Add a column: keys").click()
    until(lambda: "query=1+0+1+0+0" in drawn(page))
    assert "keys=0+1+1+1+0%3B+1+0+1+0+0%3B+0+1+0+1+0" in drawn(page)
    assert page.locator(".number dd").first.inner_text() == "5"
    page.get_by_role("button", name="Take the last row away: values").click()
    until(lambda: drawn(page).count("%3B") == 2)
    assert page.locator(".problem:visible").count() == 0


def test_what_is_tried_is_in_view_with_the_figure(browser: Any, server: Served) -> None:
    """At 1280 x 800, without scrolling: the first knob, and the first figure down to its axis."""
    visit = Visit(browser, 1280, server=server.address)
    visit.page.set_viewport_size({"width": 1280, "height": 800})
    for chapter in CHAPTERS[:-4]:
        page = open_at(visit, server.address, f"#{chapter.id}")
        knob, plot = (page.locator(what).first.bounding_box() for what in (".knob", ".plot"))
        assert knob["y"] + knob["height"] < 800, chapter.id
        assert plot["y"] + plot["height"] < 800, chapter.id
    # "Choose the example ... and set the scale": both.
    asked = open_at(visit, server.address, "#formula").locator(".knob").nth(1).bounding_box()
    assert asked["y"] + asked["height"] < 800
    visit.page.context.close()


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_every_chapter_fits_and_breaks_no_rule(
    browser: Any, server: Served, tmp_path: Path, width: int, scheme: str
) -> None:
    visit = Visit(browser, width, scheme, server.address)
    broken: dict[str, list[str]] = {}
    for chapter in CHAPTERS:
        page = open_at(visit, server.address, f"#{chapter.id}")
        keep(page, tmp_path, f"explorer-{chapter.id}-{width}-{scheme}")
        assert page.evaluate("document.documentElement.scrollWidth") == width, chapter.id
        if faults := violations(page):
            broken[chapter.id] = faults
    assert broken == {}
    assert visit.complaints == []
    visit.page.context.close()


@pytest.mark.slow
def test_every_chapter_of_an_exported_page(browser: Any, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text(exported_page(), "utf-8")
    # plotly.js is near 5 MB of it.
    assert path.stat().st_size < 13e6
    visit = Visit(browser, 1280)
    for address, _ in TOUR:
        open_at(visit, path.as_uri(), f"#{address}")
        assert not visit.page.locator("#notice").is_visible(), address
    for chapter in CHAPTERS:
        page = open_at(visit, path.as_uri(), f"#{chapter.id}")
        assert_shows(page, chapter)
        if first_knob(chapter):
            assert_shows(page, chapter, **moved(page, chapter))
    assert visit.outside == []
    assert visit.complaints == []
