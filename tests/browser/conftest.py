"""The browser that the tests of this folder share."""

from collections.abc import Iterator
from typing import Any

import pytest
from visit import chromium


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        started = play.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        yield started
        started.close()
