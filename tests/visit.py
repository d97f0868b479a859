"""A headless Chromium, and a visit to a page on which nothing may leave and nothing may be complained of.

It needs a Chromium that is installed (Debian: apt install chromium) or named by ROOTDK_CHROMIUM. Screenshots go to
pytest's temporary folder; ROOTDK_SCREENSHOTS names another one.
"""

import os
import shutil
from pathlib import Path
from typing import Any


def chromium() -> str:
    named = os.environ.get("ROOTDK_CHROMIUM")
    found = named or next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    assert found, "no Chromium: install one (Debian: apt install chromium) or set ROOTDK_CHROMIUM"
    return found


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
