"""What the tests of the explorer ask of its page: is it drawn, does it show Python's numbers, does it break a rule."""

import json
import re
import time
from collections.abc import Callable, Mapping
from typing import Any

from visit import Visit

from rootdk.lab.explorer.chapter import Chapter
from rootdk.lab.explorer.values import read_values


def until(true: Callable[[], Any], seconds: float = 120.0) -> Any:
    """Asked from here again and again: the page's policy forbids the waiting that playwright does inside it."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if answer := true():
            return answer
        time.sleep(0.02)
    raise AssertionError(f"not within {seconds} s: {true()!r}")


def drawn(page: Any) -> str:
    return str(page.evaluate("document.documentElement.dataset.drawn ?? ''"))


def open_at(visit: Visit, address: str, hash_: str = "#powers") -> Any:
    visit.page.bring_to_front()  # in Firefox a page behind another gets no events of the focus
    visit.page.goto(f"{address}{hash_}")
    until(lambda: drawn(visit.page) == hash_)
    return visit.page


def plotted(page: Any) -> dict[str, Any]:
    plots: dict[str, Any] = page.evaluate(
        "Object.fromEntries([...document.querySelectorAll('.plot')].map(plot => [plot.id.slice(5), plot.data]))"
    )
    return plots


def expected(chapter: Chapter, raw: Mapping[str, str]) -> dict[str, Any]:
    view = chapter.compute(read_values(chapter, raw)).to_dict()
    content: dict[str, Any] = json.loads(json.dumps(view))
    return content


def as_shown(text: str) -> str:
    """As the page sets it: d_k with a subscript, and what is between backticks as code."""
    return re.sub(r"\b([A-Za-z])_([a-z])\b", r"\1\2", text, flags=re.ASCII).replace("`", "")


def assert_shows(page: Any, chapter: Chapter, **raw: str) -> None:
    """Figures, their texts, the live numbers and the Python lines are those of these values."""
    view = expected(chapter, raw)
    assert plotted(page) == {figure["id"]: figure["plot"]["data"] for figure in view["figures"]}
    assert page.locator("figcaption").all_text_contents() == [as_shown(figure["text"]) for figure in view["figures"]]
    assert page.locator(".number dd").all_inner_texts() == [number["text"] for number in view["numbers"]]
    assert page.locator(".number .kind").all_inner_texts() == [number["kind"] for number in view["numbers"]]
    assert page.locator(".python code").inner_text().strip() == view["python"].strip()


def violations(page: Any) -> list[str]:
    from axe_playwright_python.sync_playwright import Axe

    broken = Axe().run(page).response["violations"]
    return [f"{rule['id']}: {node['html'][:200]} {node['failureSummary']}" for rule in broken for node in rule["nodes"]]
