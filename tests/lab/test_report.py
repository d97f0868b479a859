"""The page that `rootdk` writes, read by a parser: nothing to fetch, every figure there, every text escaped.

tests/browser opens it in a browser.
"""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from html_page import Page, check_figures

from rootdk.files import write_atomically
from rootdk.lab.answer import answer_of
from rootdk.lab.checks import EXPERIMENTS, LEDGER, Claim, Comparison, Result, plan, run_all
from rootdk.lab.checks.sampler import computed
from rootdk.lab.report import render
from rootdk.lab.report.study_page import comparisons, ledger


@pytest.fixture(scope="module")
def results() -> list[Result]:
    return run_all(plan("quick", d_k=(16,), keys=64))


@pytest.fixture(scope="module")
def claims() -> list[dict[str, Any]]:
    open_one = Claim(24, "More is better.", "nowhere", "comes later").check()
    return [record.to_dict() for record in (*LEDGER.check([1, 7, 8, 16]), open_one)]


@pytest.fixture(scope="module")
def page(results: list[Result], claims: list[dict[str, Any]]) -> Page:
    return Page(render(results, claims, {"seed": "0"}, [("0.25", "the scale for d_k = 16")]))


def test_every_element_closes(page: Page) -> None:
    assert page.open == []


def test_nothing_to_fetch(page: Page) -> None:
    """Links stay inside the page; the policy in the head forbids the rest, plotly.js included."""
    assert page.links
    for tag, link in page.links:
        assert link.startswith("#") or (tag, link) == ("link", "data:,")
    assert not set(page.tags) & {"img", "iframe", "object", "embed", "video", "audio", "source", "base", "form"}


def test_the_policy_forbids_requests(results: list[Result]) -> None:
    head = render(results[:1]).partition("</head>")[0]
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', head)
    assert policy is not None
    rules = dict(part.strip().split(" ", 1) for part in policy[1].split(";"))
    assert rules["default-src"] == "'none'"
    assert "http" not in policy[1]
    assert "*" not in policy[1]


def test_links_lead_somewhere(page: Page) -> None:
    for tag, link in page.links:
        if tag == "a":
            assert link[1:] in page.ids
    assert len(page.ids) == len(set(page.ids))


def test_every_figure_has_its_place_and_its_numbers(page: Page, results: list[Result]) -> None:
    plots = page.plots
    expected = [picture.name for result in results for picture in EXPERIMENTS[result.experiment].pictures(result)]
    assert list(plots) == [f"plot-{name}" for name in expected]
    assert set(plots) <= set(page.ids)
    for wanted in (
        "variance", "scores-none", "scores-sqrt", "weights-16", "jacobian-1.0", "entropy-dk", "trace-dk", "entropy-n",
        "flow", "formats", "premises",
    ):  # fmt: skip
        assert f"plot-{wanted}" in plots
    for figure in plots.values():
        assert figure["data"]


def test_figures_show_the_results(page: Page, results: list[Result]) -> None:
    plots = page.plots
    (length,) = (result for result in results if result.experiment == "length")
    predicted = {
        comparison.setting["keys"]: float(f"{comparison.predicted:.7g}")
        for comparison in length.select("entropy", rule="sqrt")
    }
    line = next(trace for trace in plots["plot-entropy-n"]["data"] if trace["name"] == "1/√d<sub>k</sub>")
    assert dict(zip(line["x"], line["y"], strict=True)) == predicted
    assert max(line["x"]) == 10**9
    (gradient,) = (result for result in results if result.experiment == "gradient")
    (grid,) = (grid for grid in gradient.grids if grid.kind == "measured" and grid.setting["sigma"] == 1.0)
    assert plots["plot-jacobian-1.0"]["data"][0]["z"] == [[float(f"{entry:.7g}") for entry in row] for row in grid.rows]


def test_plotly_is_inside_and_waits_as_text(page: Page) -> None:
    attributes, text = page.scripts[-2]
    assert attributes == {"type": "text/plain", "id": "plotly"}
    assert len(text) > 1_000_000
    assert "Plotly.react" in page.scripts[-1][1]


def test_the_page_opens_with_the_answer_and_a_drawing(page: Page, results: list[Result]) -> None:
    (rules,) = (result for result in results if result.experiment == "rules")
    text = re.sub(r"d_k", "dk", answer_of(rules))
    opening = "".join(page.words).replace("\u00a0", " ")
    assert text in opening
    assert opening.index(text) < opening.index("What is true and what is not", opening.index(text))
    assert page.tags.index("svg") < page.tags.index("article")
    # Three rules at three widths, 16 keys each.
    assert page.tags.count("rect") == 3 * 3 * 16


def test_the_drawing_is_of_the_weights_of_the_operator(page: Page) -> None:
    (csv,) = (text for attributes, text in page.scripts if attributes.get("type") == "text/csv")
    rows = [line.split(",") for line in csv.splitlines()[1:]]
    rng = np.random.default_rng(0)
    query, key = rng.standard_normal((1, 512)), rng.standard_normal((16, 512))
    for d_k, factor, rule in ((4, 0.5, "sqrt"), (512, 1.0, "none"), (64, 1 / 64, "dk")):
        z = factor * key[:, :d_k] @ query[0, :d_k]
        weights = np.sort(np.exp(z - z.max()) / np.exp(z - z.max()).sum())[::-1]
        drawn = [float(row[3]) for row in rows if row[:2] == [str(d_k), rule]]
        np.testing.assert_allclose(drawn, weights, rtol=1e-6, atol=1e-9)


def test_the_worked_example_is_computed(page: Page) -> None:
    words = set(page.words)
    assert {"14", "1.75", "0.8668", "0.4192"} <= words


def test_every_number_is_in_a_table(page: Page, results: list[Result]) -> None:
    words = set(page.words)
    for result in results:
        for comparison in result.comparisons:
            assert f"{comparison.predicted:.4g}" in words
            assert comparison.measured is None or f"{comparison.measured:.4g}" in words


def test_the_ledger_is_there(page: Page, claims: list[dict[str, Any]]) -> None:
    text = "".join(page.words).replace("\u00a0", " ")
    for claim in claims:
        assert f"claim-{claim['id']}" in page.ids
        assert re.sub(r"\b([A-Za-z])_([a-z])\b", r"\1\2", claim["statement"]) in text
        several = claim["verdict"].replace("holds", "hold").replace("does not", "do not")
        assert any(re.fullmatch(rf"\d+ (?:{claim['verdict']}|{several})", word) for word in page.words)
    assert "1 does not hold" in page.words
    assert "1 not checked" in page.words


def test_formulas_are_mathml(page: Page) -> None:
    assert page.tags.count("math") >= 5
    assert "$" not in "".join(page.words)


def test_texts_are_escaped() -> None:
    bad = "<script>alert(1)</script>&"
    comparison = Comparison(bad, 1.0, "=", 1.0, 0.1, setting={"d_k": 4, bad: bad})
    claim = {
        "id": 1, "statement": bad, "source": bad, "method": bad, "verdict": bad, "condition": bad,
        "evidence": [
            {"quantity": bad, "measured": 1.0, "standard_error": None, "relation": "=", "predicted": 1.0,
             "state": "agrees"},
        ],
    }  # fmt: skip
    for text in (comparisons([comparison]), ledger([claim])):
        assert "<script" not in text
        assert "&lt;script&gt;alert(1)&lt;/script&gt;&amp;" in text
    whole = Page(render([Result("other", {}, (comparison,))], [claim], {bad: bad}, [(bad, bad)]))
    assert whole.open == []
    assert [attributes.get("type") for attributes, _ in whole.scripts] == ["text/csv", "text/plain", None]


def test_a_name_cannot_end_the_script_that_holds_it() -> None:
    bad = "</script><b>"
    entropies = tuple(computed("entropy", {"keys": n, "rule": bad, "d_k": 4}, 1.0) for n in (2, 4))
    whole = Page(render([Result("length", {}, entropies)]))
    assert whole.open == []
    assert "b" not in whole.tags


def test_an_unknown_experiment_has_a_table_and_no_figure() -> None:
    whole = Page(render([Result("other", {}, (computed("x", {}, 2.0),))]))
    assert "other" in whole.words
    assert "all numbers" in whole.words


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_has_words_and_pictures_in_the_page(page: Page, results: list[Result], name: str) -> None:
    experiment = EXPERIMENTS[name]
    assert name in page.ids
    assert experiment.text.partition("d_k")[0] in page.words
    assert all(experiment.pictures(result) for result in results if result.experiment == name)


def test_every_figure_is_one_that_plotly_knows(page: Page) -> None:
    check_figures(page)
    wrong = json.dumps({"data": [{"type": "scatter", "line": {"colour": "red"}}]})
    with pytest.raises(ValueError, match="colour"):
        check_figures(Page(f"<script data-plot='x'>{wrong}</script>"))


def test_without_results_it_is_still_a_page() -> None:
    assert Page(render([])).open == []


def test_atomic_write_keeps_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a.html"
    write_atomically(path, "old")
    with pytest.raises(UnicodeEncodeError):
        write_atomically(path, "half of it" * 10_000 + "\udcff")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(FileNotFoundError):
        write_atomically(tmp_path / "none" / "a.html", "x")


def test_a_written_file_has_the_usual_permissions(tmp_path: Path) -> None:
    write_atomically(tmp_path / "a", "x")
    (tmp_path / "b").write_text("x")
    assert (tmp_path / "a").stat().st_mode == (tmp_path / "b").stat().st_mode
