"""The page in Firefox: the tests of test_explorer_in_a_browser.py once more, by the protocol that all browsers share.

`make test` runs a few of them, `make test-all` all. The protocol cannot say yet that a person asks for dark colours or
less motion, so the two tests that need it have a Firefox of their own here, with settings that ask for both.
"""

import types
from collections.abc import Iterator
from typing import Any

import pytest
import test_explorer_in_a_browser as in_chromium
from visit import firefox

ASKED_BY_SETTINGS = {
    "test_colours_can_be_chosen",
    "test_play_is_a_step_where_less_motion_is_asked_for",
}
ALWAYS = {
    "test_a_chapter_is_shown_whole",
    "test_a_slider_by_mouse_changes_what_is_plotted",
    "test_the_keyboard_is_enough",
    "test_a_bad_value_is_said_beside_its_knob",
    "test_a_tour_leads_from_step_to_step_by_mouse_and_by_keys",
    "test_an_exported_page_works_offline",
}
TESTS = {name: test for name, test in vars(in_chromium).items() if name.startswith("test_")}
server, exported = in_chromium.server, in_chromium.exported


def once_more(test: Any) -> Any:
    """A function of its own, so that its marks are too."""
    same = types.FunctionType(test.__code__, test.__globals__, test.__name__, test.__defaults__, test.__closure__)
    same.__dict__.update(test.__dict__)
    same.__annotations__ = test.__annotations__
    return same if test.__name__ in ALWAYS else pytest.mark.slow(same)


globals().update({name: once_more(test) for name, test in TESTS.items() if name not in ASKED_BY_SETTINGS})


@pytest.fixture(scope="module")
def play() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as started:
        yield started


@pytest.fixture(scope="module")
def browser(play: Any) -> Iterator[Any]:
    """Not the Firefox that playwright patches for itself: the one that people have."""
    started = play.firefox.launch(channel="moz-firefox", executable_path=firefox())
    yield started
    started.close()


@pytest.fixture(scope="module")
def asking(play: Any) -> Iterator[Any]:
    """A Firefox whose user asks for dark colours and less motion."""
    settings = {
        "layout.css.prefers-color-scheme.content-override": 0,
        "ui.prefersReducedMotion": 1,
        "ui.systemUsesDarkTheme": 1,
    }
    started = play.firefox.launch(channel="moz-firefox", executable_path=firefox(), firefox_user_prefs=settings)
    yield started
    started.close()


def test_play_is_a_step_where_less_motion_is_asked_for(asking: Any, server: Any) -> None:
    in_chromium.test_play_is_a_step_where_less_motion_is_asked_for(asking, server)


def test_colours_follow_the_settings_until_they_are_chosen(asking: Any, server: Any) -> None:
    visit = in_chromium.Visit(asking, 1280, server=server.address)
    page = in_chromium.open_at(visit, server.address)
    ink = "getComputedStyle(document.querySelector('.plot .xtick text')).fill"
    asked = page.evaluate(ink)
    page.locator("#theme").select_option("light")
    in_chromium.until(lambda: page.evaluate(ink) != asked)
    page.locator("#theme").select_option("dark")
    in_chromium.until(lambda: page.evaluate(ink) == asked)
    page.locator("#theme").select_option("")
    assert page.evaluate(ink) == asked
    assert visit.complaints == []


def test_the_lists_name_tests_that_exist() -> None:
    assert TESTS.keys() >= ASKED_BY_SETTINGS | ALWAYS
