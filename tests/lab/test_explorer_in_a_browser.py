"""The explorer in headless browsers: what it draws is what Python computes, by mouse and by keyboard, wide and narrow.

visit.py says which browsers. The page is generic, so most of it is tested on the two chapters of explorer_stand_in.py;
that each real chapter is drawn is tested in test_explorer_chapters_in_a_browser.py.

Every test runs in Chromium, in Firefox `make test` runs a few and `make test-all` all. The protocol that browsers share
cannot say yet that a person asks for dark colours or less motion, so what needs it has a Firefox whose settings ask.
"""

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import explorer_stand_in as stand_in
import pytest
from explorer_process import STAND_IN, Served, free_port
from explorer_visit import assert_shows, drawn, expected, open_at, until, violations
from visit import Visit, keep, launched

from rootdk.lab.explorer.export import exported_page

IN_FIREFOX_TOO = {
    "test_a_chapter_is_shown_whole",
    "test_a_slider_by_mouse_changes_what_is_plotted",
    "test_the_keyboard_is_enough",
    "test_a_bad_value_is_said_beside_its_knob",
    "test_a_tour_leads_from_step_to_step_by_mouse_and_by_keys",
    "test_an_exported_page_works_offline",
}
BROWSERS = {
    "test_colours_can_be_chosen": ["chromium"],
    "test_colours_follow_the_settings_until_they_are_chosen": ["firefox, dark and still"],
    "test_play_is_a_step_where_less_motion_is_asked_for": ["chromium", "firefox, dark and still"],
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "browser" in metafunc.fixturenames:
        name = metafunc.function.__name__
        marks = [] if name in IN_FIREFOX_TOO else [pytest.mark.slow]
        browsers = BROWSERS.get(name, ["chromium", "firefox"])
        parameters = [engine if engine == "chromium" else pytest.param(engine, marks=marks) for engine in browsers]
        metafunc.parametrize("browser", parameters, indirect=True, scope="module")


@pytest.fixture(scope="module")
def browser(request: pytest.FixtureRequest) -> Iterator[Any]:
    with launched(request.param) as started:
        yield started


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with Served(*STAND_IN, "0") as served:
        yield served


def test_a_chapter_is_shown_whole(visit: Visit, server: Served) -> None:
    page = open_at(visit, server.address)
    assert_shows(page, stand_in.POWERS)
    text = page.locator("main").inner_text()
    for sentence in (
        "Move the exponent.",
        "The curve bends.",
        "A power of x is straight.",
        "Only the first.",
        f"Chapter 1 of {len(stand_in.CHAPTERS) + 2}",
    ):
        assert sentence in text
    assert page.locator("main math").count() == 1
    assert page.title().startswith("Powers of")
    assert page.locator(".plot").first.get_attribute("role") == "img"
    assert page.locator(".plot").first.get_attribute("aria-describedby") == "text-curve"
    assert page.locator("h1").inner_text() == "Powers of dk"
    assert page.locator("h1 sub").inner_text() == "k"


def test_a_slider_by_mouse_changes_what_is_plotted(visit: Visit, server: Served) -> None:
    page = open_at(visit, server.address)
    box = page.locator("#knob-exponent").bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.mouse.down()
    for step in range(20):
        page.mouse.move(box["x"] + box["width"] * (0.5 + step / 50), box["y"] + box["height"] / 2)
    page.mouse.up()
    value = page.locator("#knob-exponent-typed").input_value()
    assert value != "1"
    until(lambda: drawn(page) == f"#powers?exponent={value}")
    assert_shows(page, stand_in.POWERS, exponent=value)
    assert page.evaluate("location.hash") == f"#powers?exponent={value}"


def test_the_keyboard_is_enough(visit: Visit, server: Served) -> None:
    """From the top of the page with nothing but keys: to the chapter, to a slider, to the next chapter."""
    page = open_at(visit, server.address)
    page.reload()
    until(lambda: drawn(page))

    def focused() -> str:
        return str(page.evaluate("document.activeElement.id || document.activeElement.textContent"))

    page.keyboard.press("Tab")
    assert focused() == "skip"
    assert page.locator("#skip").bounding_box()["y"] >= 0
    page.keyboard.press("Enter")
    assert focused() == "main"
    page.keyboard.press("Tab")
    assert focused() == "knob-exponent-typed"
    page.keyboard.press("Tab")
    assert focused() == "knob-exponent"
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    until(lambda: drawn(page) == "#powers?exponent=1.3")
    assert_shows(page, stand_in.POWERS, exponent="1.3")
    assert page.locator("#knob-exponent").get_attribute("aria-valuetext") == "1.3"
    page.keyboard.press("Home")
    until(lambda: drawn(page) == "#powers?exponent=-2")
    for _ in range(40):
        page.keyboard.press("Tab")
        if focused().startswith("next"):
            break
    page.keyboard.press("Enter")
    until(lambda: drawn(page) == "#matrix")
    assert focused() == "heading"


def test_the_address_is_the_state(visit: Visit, server: Served) -> None:
    address = "#powers?exponent=0.5&points=100&turned=true&seed=3"
    page = open_at(visit, server.address, address)
    raw = {"exponent": "0.5", "points": "100", "turned": "true", "seed": "3"}
    assert_shows(page, stand_in.POWERS, **raw)
    assert page.locator("#knob-turned").is_checked()
    page.reload()
    until(lambda: drawn(page) == address)
    assert_shows(page, stand_in.POWERS, **raw)
    page.get_by_role("button", name="Reset all knobs").click()
    until(lambda: drawn(page) == "#powers")
    assert page.evaluate("location.hash") == "#powers"
    assert_shows(page, stand_in.POWERS)


def test_back_and_forward(visit: Visit, server: Served) -> None:
    page = open_at(visit, server.address, "#powers")
    page.get_by_role("button", name="Draw again").click()
    until(lambda: drawn(page) == "#powers?seed=1")
    page.get_by_role("link", name="A matrix").first.click()
    until(lambda: drawn(page) == "#matrix")
    page.go_back()
    until(lambda: drawn(page) == "#powers?seed=1")
    assert_shows(page, stand_in.POWERS, seed="1")
    page.go_back()
    until(lambda: drawn(page) == "#powers")
    assert page.locator("#knob-seed").input_value() == "0"
    page.go_forward()
    page.go_forward()
    until(lambda: drawn(page) == "#matrix")
    assert_shows(page, stand_in.MATRIX)


def test_the_last_value_wins(visit: Visit, server: Served) -> None:
    """Sixty moves in a row: few are asked for, and the last is what is shown."""
    page = open_at(visit, server.address)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.evaluate(
        """() => { const slider = document.getElementById("knob-points");
        for (let at = 0; at < 60; at += 1) { slider.value = at; slider.dispatchEvent(new Event("input")); }
        slider.dispatchEvent(new Event("change")); }"""
    )
    value = page.locator("#knob-points-typed").input_value()
    until(lambda: drawn(page) == f"#powers?points={value}")
    assert_shows(page, stand_in.POWERS, points=value)
    assert len(asked) <= 5


def typed(field: Any, text: str, end: str = "Enter") -> None:
    """As a person does it: Firefox takes no value for changed that a script has set."""
    field.click()
    field.press("ControlOrMeta+a")
    field.press_sequentially(text)
    field.press(end)


def test_a_bad_value_is_said_beside_its_knob(browser: Any, server: Served) -> None:
    visit = Visit(browser, 1280, server=server.address)
    page = open_at(visit, server.address)
    field = page.locator("#knob-exponent-typed")
    typed(field, "7")
    said = page.locator("#problem-exponent")
    until(lambda: said.inner_text() == "must be a number from -2 to 2, got '7'")
    assert field.get_attribute("aria-invalid") == "true"
    assert "problem-exponent" in field.get_attribute("aria-describedby")
    # What was there before stays, and the next good value ends it.
    assert_shows(page, stand_in.POWERS)
    typed(field, "0.5")
    until(lambda: drawn(page) == "#powers?exponent=0.5")
    assert said.inner_text() == ""
    assert field.get_attribute("aria-invalid") == "false"
    # From an address that somebody wrote, and for knobs that do not fit each other.
    page.goto(f"{server.address}#powers?points=many")
    until(lambda: "must be a whole number" in page.locator("#problem-points").inner_text())
    page.goto(f"{server.address}#powers?exponent=1.5&turned=true")
    until(lambda: "must not be 1.5" in said.inner_text())
    page.goto(f"{server.address}#powers?nothing=1")
    until(lambda: "sets nothing. This chapter" in page.locator("#notice").inner_text())
    # The browser itself tells of each 422; nothing else is complained of.
    assert all("422" in complaint for complaint in visit.complaints), visit.complaints


def test_a_matrix_can_be_edited(visit: Visit, server: Served) -> None:
    page = open_at(visit, server.address, "#matrix")
    typed(page.get_by_label("entries, row 2, column 1"), "5", "ArrowUp")
    assert page.evaluate("document.activeElement.ariaLabel") == "entries, row 1, column 1"
    until(lambda: drawn(page) == "#matrix?entries=1+2%3B+5+4")
    assert_shows(page, stand_in.MATRIX, entries="1 2; 5 4")
    page.get_by_role("button", name="Add a column: entries").click()
    until(lambda: drawn(page) == "#matrix?entries=1+2+0%3B+5+4+0")
    assert_shows(page, stand_in.MATRIX, entries="1 2 0; 5 4 0")
    page.get_by_text("as text", exact=True).click()
    typed(page.locator("#knob-entries"), "1; 2; 3")
    until(lambda: drawn(page) == "#matrix?entries=1%3B+2%3B+3")
    assert page.locator(".matrix input").count() == 3
    page.get_by_label("ten").check()
    until(lambda: drawn(page).endswith("&unit=ten"))
    assert_shows(page, stand_in.MATRIX, entries="1; 2; 3", unit="ten")
    assert page.locator("td").all_inner_texts() == ["0", "10", "1", "20", "2", "30"]


def test_play_moves_a_knob_to_its_end(visit: Visit, server: Served) -> None:
    page = open_at(visit, server.address, "#powers?points=3500")
    before = int(page.locator("#knob-points-typed").input_value())
    page.get_by_role("button", name="Play: points").click()
    assert page.get_by_role("button", name="Pause: points").count() == 1
    until(lambda: drawn(page) == "#powers?points=4096")
    until(lambda: page.get_by_role("button", name="Play: points").count() == 1)
    assert before < 4096
    assert_shows(page, stand_in.POWERS, points="4096")


def test_play_is_a_step_where_less_motion_is_asked_for(browser: Any, server: Served) -> None:
    visit = Visit(browser, 1280, server=server.address, reduced_motion="reduce")
    page = open_at(visit, server.address)
    page.get_by_role("button", name="Step: points").click()
    until(lambda: drawn(page) != "#powers")
    value = page.locator("#knob-points-typed").input_value()
    time.sleep(0.5)
    assert drawn(page) == f"#powers?points={value}"
    assert visit.complaints == []


def test_a_screen_reader_hears_the_end_of_a_drag(visit: Visit, server: Served) -> None:
    page = open_at(visit, server.address)
    heard = "window.heard = []; new MutationObserver(() => heard.push(document.getElementById('spoken').textContent))"
    page.evaluate(heard + ".observe(document.getElementById('spoken'), {childList: true})")
    page.locator("#knob-exponent").focus()
    for _ in range(8):
        page.keyboard.press("ArrowRight")
    until(lambda: page.evaluate("heard.length"))
    view = expected(stand_in.POWERS, {"exponent": "1.8"})
    assert page.evaluate("heard") == [f"last value: {view['numbers'][0]['text']}; noise: {view['numbers'][1]['text']}"]


def test_a_tour_leads_from_step_to_step_by_mouse_and_by_keys(visit: Visit, server: Served) -> None:
    page = open_at(visit, server.address)
    page.locator("#tour").click()
    bar = page.locator("#steps")
    until(lambda: drawn(page) == "#powers?exponent=2")
    assert "The curve bends." in bar.inner_text()
    assert "1 of 3" in bar.inner_text()
    assert page.get_by_role("button", name="← Back").is_disabled()
    page.keyboard.press("ArrowRight")
    until(lambda: drawn(page) == "#matrix")
    page.get_by_role("button", name="Next →").click()
    until(lambda: drawn(page) == "#matrix?unit=ten")
    assert_shows(page, stand_in.MATRIX, unit="ten")
    page.keyboard.press("ArrowLeft")
    until(lambda: drawn(page) == "#matrix")
    # Arrow keys in a slider stay the slider's.
    page.keyboard.press("ArrowLeft")
    until(lambda: drawn(page) == "#powers?exponent=2")
    page.locator("#knob-points").focus()
    page.keyboard.press("ArrowRight")
    until(lambda: "points" in drawn(page))
    assert "1 of 3" in bar.inner_text()
    page.locator("h1").focus()
    page.keyboard.press("Escape")
    assert not bar.is_visible()


def test_presented_it_has_large_letters_and_one_figure(visit: Visit, server: Served) -> None:
    page = open_at(visit, server.address)
    size = "parseFloat(getComputedStyle(document.querySelector('.plot .xtick text')).fontSize)"
    before = page.evaluate(size)
    page.get_by_role("button", name="Present").click()
    until(lambda: page.evaluate(size) > before)
    assert not page.locator("#chapters").is_visible()
    assert not page.locator(".python").is_visible()
    assert page.locator("figure:visible").count() == 1
    assert page.locator("#knob-exponent").is_visible()
    page.keyboard.press("ArrowRight")
    until(lambda: drawn(page) == "#matrix")
    page.keyboard.press("ArrowLeft")
    until(lambda: drawn(page) == "#powers")
    page.keyboard.press("Escape")
    until(page.locator("#chapters").is_visible)
    until(lambda: page.evaluate(size) == before)


@pytest.mark.parametrize(
    ("hash_", "said", "shown"),
    [
        ("#nowhere", 'the chapter "nowhere", which does not exist', "#powers"),
        ("#matrix?scale=none&unit=ten", "sets scale. This chapter has no such knob", "#matrix?unit=ten"),
    ],
)
def test_a_wrong_link_is_said_at_the_top(visit: Visit, server: Served, hash_: str, said: str, shown: str) -> None:
    page = visit.page
    page.goto(f"{server.address}{hash_}")
    until(lambda: drawn(page) == shown)
    notice = page.locator("#notice")
    assert said in notice.inner_text()
    assert notice.bounding_box()["y"] < 200
    page.goto(f"{server.address}#powers?exponent=2")
    until(lambda: drawn(page) == "#powers?exponent=2")
    assert not notice.is_visible()


def test_a_value_in_a_link_that_cannot_be_used_is_said_at_the_top(browser: Any, server: Served) -> None:
    page = Visit(browser, 1280, server=server.address).page
    page.goto(f"{server.address}#powers?exponent=77")
    until(page.locator("#notice").is_visible)
    assert "exponent: must be a number from -2 to 2, got '77'" in page.locator("#notice").inner_text()


def test_on_a_phone_the_figure_stays_while_a_slider_moves(browser: Any, server: Served) -> None:
    visit = Visit(browser, 390, server=server.address)
    page = open_at(visit, server.address)
    slider = page.locator("#knob-points")
    slider.evaluate("node => node.scrollIntoView({block: 'end'})")
    figure, knob = page.locator("figure").first.bounding_box(), slider.bounding_box()
    assert figure["y"] >= 0
    assert figure["y"] + figure["height"] <= knob["y"]
    assert knob["y"] + knob["height"] <= 900
    visit.page.context.close()


def test_a_heading_that_gets_the_focus_has_no_frame(visit: Visit, server: Served) -> None:
    page = open_at(visit, server.address)
    page.get_by_role("link", name="A matrix").first.click()
    until(lambda: page.evaluate("document.activeElement.id") == "heading")
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "none"


def test_an_audit_can_be_chosen(browser: Any, server: Served, tmp_path: Path) -> None:
    visit = Visit(browser, 1280, server=server.address)
    page = open_at(visit, server.address, "#model")
    path = tmp_path / "audit.json"
    path.write_text(json.dumps({"layers": [1, 2, 3]}))
    page.set_input_files("#audit", path)
    until(lambda: page.locator(".number dd").all_inner_texts() == ["3"])
    assert visit.complaints == []
    for text, said in (("{", "must be JSON"), ('{"x": 1}', "must have layers")):
        path.write_text(text)
        page.set_input_files("#audit", path)
        until(lambda said=said: said in page.locator(".audit .problem").inner_text())


def test_a_restart_is_survived(browser: Any) -> None:
    port = free_port()
    with Served(*STAND_IN, str(port)) as first:
        visit = Visit(browser, 1280, server=first.address)
        page = open_at(visit, first.address)
        first.stop()
    slider = page.locator("#knob-exponent")
    slider.focus()
    page.keyboard.press("ArrowRight")
    banner = page.locator("#banner")
    until(banner.is_visible)
    assert f"rootdk explore --no-browser --port {port}" in banner.inner_text()
    page.keyboard.press("ArrowRight")
    with Served(*STAND_IN, str(port)):
        until(lambda: drawn(page) == "#powers?exponent=1.2")
        assert_shows(page, stand_in.POWERS, exponent="1.2")
        until(lambda: not banner.is_visible())
    assert all("Failed to load resource" in complaint for complaint in visit.complaints), visit.complaints


def test_colours_can_be_chosen(visit: Visit, server: Served) -> None:
    page = open_at(visit, server.address)
    ink = "getComputedStyle(document.querySelector('.plot .xtick text')).fill"
    light = page.evaluate(ink)
    page.locator("#theme").select_option("dark")
    until(lambda: page.evaluate(ink) != light)
    dark = page.evaluate(ink)
    page.reload()
    until(lambda: drawn(page))
    assert page.evaluate(ink) == dark
    page.locator("#theme").select_option("")
    until(lambda: page.evaluate(ink) == light)
    page.emulate_media(color_scheme="dark")
    until(lambda: page.evaluate(ink) == dark)


def test_colours_follow_the_settings_until_they_are_chosen(browser: Any, server: Served) -> None:
    visit = Visit(browser, 1280, server=server.address)
    page = open_at(visit, server.address)
    ink = "getComputedStyle(document.querySelector('.plot .xtick text')).fill"
    dark = page.evaluate(ink)
    page.locator("#theme").select_option("light")
    until(lambda: page.evaluate(ink) != dark)
    page.locator("#theme").select_option("dark")
    until(lambda: page.evaluate(ink) == dark)
    page.locator("#theme").select_option("")
    assert page.evaluate(ink) == dark
    assert visit.complaints == []


@pytest.mark.parametrize(
    ("width", "scheme"),
    [
        (1280, "light"),
        (390, "dark"),
        pytest.param(1280, "dark", marks=pytest.mark.slow),
        pytest.param(390, "light", marks=pytest.mark.slow),
    ],
)
def test_it_fits_and_breaks_no_rule_of_accessibility(
    browser: Any, server: Served, tmp_path: Path, width: int, scheme: str
) -> None:
    visit = Visit(browser, width, scheme, server.address)
    for chapter in ("#powers", "#matrix", "#model"):
        page = open_at(visit, server.address, chapter)
        assert page.evaluate("document.documentElement.scrollWidth === document.documentElement.clientWidth")
        assert visit.complaints == []
        assert violations(page) == []
        keep(page, tmp_path, f"explorer-stand-in-{chapter[1:]}-{width}-{scheme}")
        visit.complaints.clear()  # axe and the picture write a style, and Firefox says that the policy has stopped it


def test_the_rules_can_be_broken(visit: Visit, server: Served) -> None:
    page = open_at(visit, server.address)
    page.evaluate("document.querySelector('label[for=knob-exponent]').remove()")
    assert any(violation.startswith("label: ") for violation in violations(page))


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("export") / "page.html"
    path.write_text(exported_page(stand_in.CHAPTERS), "utf-8")
    return path


def test_an_exported_page_works_offline(browser: Any, exported: Path) -> None:
    visit = Visit(browser, 1280)
    page = open_at(visit, exported.as_uri())
    assert_shows(page, stand_in.POWERS)
    assert "A saved page" in page.locator("#note").inner_text()
    page.locator("#knob-exponent").focus()
    page.keyboard.press("End")
    until(lambda: drawn(page) == "#powers?exponent=2")
    assert_shows(page, stand_in.POWERS, exponent="2")
    # One knob at a time: the other goes back.
    page.locator("#knob-points").focus()
    page.keyboard.press("Home")
    until(lambda: drawn(page) == "#powers?points=2")
    assert page.locator("#knob-exponent-typed").input_value() == "1"
    assert_shows(page, stand_in.POWERS, points="2")
    page.locator("#knob-turned").check()
    until(lambda: drawn(page) == "#powers?turned=true")
    assert_shows(page, stand_in.POWERS, turned="true")
    page.goto(f"{exported.as_uri()}#matrix?unit=ten")
    until(lambda: drawn(page) == "#matrix?unit=ten")
    assert_shows(page, stand_in.MATRIX, unit="ten")
    assert page.locator(".matrix input").first.is_disabled()
    assert page.locator("#audit").count() == 0
    assert visit.outside == []
    assert visit.complaints == []


def test_an_exported_page_opens_with_the_state_that_was_saved(browser: Any, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    link = "http://127.0.0.1:8765/#matrix?unit=ten&entries=5+6%3B+7+8"
    path.write_text(exported_page(stand_in.CHAPTERS, at=link), "utf-8")
    visit = Visit(browser, 1280)
    page = visit.page
    page.goto(path.as_uri())
    until(lambda: drawn(page) == "#matrix")
    assert_shows(page, stand_in.MATRIX, unit="ten", entries="5 6; 7 8")
    page.goto(f"{path.as_uri()}#matrix?unit=one")
    until(lambda: drawn(page) == "#matrix?unit=one")
    assert_shows(page, stand_in.MATRIX, unit="one", entries="5 6; 7 8")
    assert visit.outside == []
    assert visit.complaints == []


def test_the_policy_of_an_exported_page_stops_requests(browser: Any, exported: Path, tmp_path: Path) -> None:
    asking = exported.read_text("utf-8").replace("<main", "<img src='http://example.invalid/x.png'><main", 1)
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', asking)
    assert policy is not None
    assert "unsafe-inline" not in policy[1].replace("style-src-attr 'unsafe-inline'", "")
    (tmp_path / "asking.html").write_text(asking, "utf-8")
    visit = Visit(browser, 1280)
    open_at(visit, (tmp_path / "asking.html").as_uri())
    assert visit.outside == []
    assert any(
        re.search("Content Security Policy|page’s settings blocked", complaint) for complaint in visit.complaints
    )


def test_what_is_chosen_for_firefox_exists() -> None:
    assert {name for name in globals() if name.startswith("test_")} > IN_FIREFOX_TOO | BROWSERS.keys()
