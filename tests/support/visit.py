"""A headless Chromium or Firefox, and a visit to a page on which nothing may leave and nothing may be complained of.

They are installed (Debian: apt install chromium firefox-esr) or named by ROOTDK_CHROMIUM and ROOTDK_FIREFOX.
Screenshots go to pytest's temporary folder; ROOTDK_SCREENSHOTS names another one.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

# Of a Firefox whose user asks for dark colours and less motion.
_DARK_AND_STILL = {
    "layout.css.prefers-color-scheme.content-override": 0,
    "ui.prefersReducedMotion": 1,
    "ui.systemUsesDarkTheme": 1,
}


@contextmanager
def launched(name: str) -> Iterator[Any]:
    """chromium, or the firefox that people have: not the one that playwright patches for itself."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        if name.startswith("firefox"):
            settings = _DARK_AND_STILL if name == "firefox, dark and still" else {}
            path = _installed("Firefox", "ROOTDK_FIREFOX", "firefox-esr", "firefox")
            started = play.firefox.launch(channel="moz-firefox", executable_path=path, firefox_user_prefs=settings)
        else:
            path = _installed("Chromium", "ROOTDK_CHROMIUM", "chromium", "chromium-browser", "google-chrome")
            started = play.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield started
        started.close()


def _installed(browser: str, variable: str, *names: str) -> str:
    path = os.environ.get(variable) or next(filter(None, map(shutil.which, names)), None)
    assert path, f"no {browser}: install one (Debian: apt install {names[0]}) or set {variable}"
    return path


class Visit:
    """A page on which every request but those for files is blocked and noted, and so is every complaint.

    server   an address from which the page may load too
    """

    def __init__(self, browser: Any, width: int, scheme: str = "light", server: str = "", **options: Any) -> None:
        self.allowed = ("file:", "data:", "blob:", *filter(None, [server]))
        self.outside: list[str] = []
        self.complaints: list[str] = []
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, **options)
        context.route("**/*", self._route)
        # A guard against hanging, not a measurement: a busy machine takes long to read plotly.js.
        context.set_default_timeout(120_000)
        self.page = context.new_page()
        self.page.on("console", lambda said: self.complaints.append(said.text) if said.type != "log" else None)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))

    def _route(self, route: Any) -> None:
        if route.request.url.startswith(self.allowed):
            route.continue_()
        else:
            self.outside.append(route.request.url)
            route.abort()

    def open(self, path: Path) -> Any:
        self.page.goto(path.as_uri())
        self.page.wait_for_selector("html[data-drawn=yes]")
        return self.page


def keep(page: Any, folder: Path, name: str) -> None:
    place = Path(os.environ.get("ROOTDK_SCREENSHOTS") or folder)
    page.screenshot(path=place / f"{name}.png", full_page=True)


def drawn_whole(page: Any) -> Any:
    """The page once every figure is drawn: those below wait until somebody scrolls to them."""
    for _ in range(200):
        undrawn = page.evaluate(
            """() => {
              const plots = [...document.querySelectorAll('.plot')];
              const waiting = plots.filter(plot => !plot.querySelector('svg.main-svg'));
              waiting[0]?.scrollIntoView();
              return waiting.length;
            }"""
        )
        if not undrawn:
            page.evaluate("scrollTo(0, 0)")
            return page
        page.wait_for_timeout(30)
    raise AssertionError(f"{undrawn} figures were never drawn")


def assert_opens_and_fits(
    browser: Any, path: Path, width: int, scheme: str, folder: Path, name: str, least: int = 1
) -> Any:
    """A report opens offline and without complaint, all of it inside the screen, with at least so many figures."""
    visit = Visit(browser, width, scheme)
    page = drawn_whole(visit.open(path))
    keep(page, folder, f"{name}-{width}-{scheme}")
    assert visit.outside == []
    assert visit.complaints == []
    assert page.evaluate("document.documentElement.scrollWidth") == width
    boxes = page.evaluate(
        "[...document.querySelectorAll('.plot .main-svg')].map(e => e.getBoundingClientRect().toJSON())"
    )
    assert page.locator(".plot").count() >= least
    assert all(box["left"] >= 0 and box["right"] <= width and box["height"] >= 200 for box in boxes)
    return page
