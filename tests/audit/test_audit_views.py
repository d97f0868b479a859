"""Maps of layers and heads in a terminal, findings as a person reads them, and the page of an audit."""

import json
import math
import re
from bisect import bisect_right
from typing import Any

import pytest
from html_page import Page, check_figures
from rich.console import Console

from rootdk.audit.metrics import METRICS, grid, grouped, short_names
from rootdk.audit.view import borders_of, heat_map, view
from rootdk.lab.report import render_audit

DEVIATION = next(metric for metric in METRICS if metric.name == "predicted_deviation")
ENTROPY = next(metric for metric in METRICS if metric.name == "entropy_ratio")


def printed(audit: dict[str, Any], width: int = 80) -> list[str]:
    console = Console(width=width, record=True, file=__import__("io").StringIO())
    console.print(view(audit, maps=True))
    return console.export_text().splitlines()


def audit(layers: int, heads: int, **more: Any) -> dict[str, Any]:
    entries = [
        {"name": f"model.layers.{i}.attn", "heads": [{"predicted_deviation": 0.1 * 2**i} for _ in range(heads)]}
        for i in range(layers)
    ]
    return {"verdict": "healthy", "layers": entries, "findings": [], "unknown": [], **more}


def finding(layer: int, head: int | None = None, **more: Any) -> dict[str, Any]:
    said = {
        "metric": "max_logit",
        "severity": "warning",
        "value": 120.0,
        "threshold": 100.0,
        "source": "s",
        "remedy": "r",
    }
    return {"layer": f"model.layers.{layer}.attn", "head": head, **said, **more}


def test_signs_follow_the_numbers() -> None:
    values = [0.01, 0.1, 1.0, 10.0, 100.0]
    borders = borders_of(DEVIATION, values)
    assert [bisect_right(borders, value) for value in values] == [0, 1, 2, 3, 4]
    lines = heat_map(DEVIATION, [values, values[::-1]], ["a", "b"], ["", "warning"], 80).plain.splitlines()
    assert lines[-2].split() == ["a", "··░░▒▒▓▓██"]
    assert lines[-1].split() == ["b", "██▓▓▒▒░░··", "warning"]
    for border in borders:
        assert f"{border:.3g}"[:4] in lines[1]


def test_small_differences_are_shown_alike() -> None:
    for metric, values in ((DEVIATION, [1.0, 1.3]), (ENTROPY, [0.98, 0.99])):
        borders = borders_of(metric, values)
        assert {bisect_right(borders, value) for value in values} == {2}


@pytest.mark.parametrize("value", [0.0, 7.0])
def test_one_number_everywhere(value: float) -> None:
    lines = heat_map(DEVIATION, [[value] * 3], ["a"], [""], 80).plain.splitlines()
    assert lines[1] == f"▒▒ {value:g} everywhere"
    assert lines[-1].split() == ["a", "▒▒▒▒▒▒"]


@pytest.mark.parametrize("values", [[0.0, 0.0], [math.nan, 1.0], [math.nan], [math.inf, 1.0]])
def test_numbers_that_there_are_none_of(values: list[float]) -> None:
    lines = heat_map(DEVIATION, [values], ["a"], [""], 80).plain.splitlines()
    assert len(lines[-1].rstrip()) <= 5 + 2 + 2 * len(values)


@pytest.mark.parametrize("heads", [1, 12, 40, 64, 128])
@pytest.mark.parametrize("width", [60, 80, 120])
def test_every_head_has_its_place_and_no_line_is_too_long(heads: int, width: int) -> None:
    lines = printed(audit(3, heads), width)
    assert max(map(len, lines)) <= width
    cells = sum(line.count(sign) for line in lines[5:] for sign in "·░▒▓█")
    assert cells in (3 * heads, 6 * heads)


def test_layers_that_are_ill_are_marked() -> None:
    report = audit(3, 4, verdict="critical", findings=[finding(1), finding(2, 1), finding(2, 1, severity="critical")])
    lines = printed(report)
    assert [line.split()[-1] for line in lines if re.match(r"[012] ", line)] == ["········", "warning", "critical"]


def test_names_that_were_not_understood_are_shown() -> None:
    text = " ".join(printed(audit(2, 4, unknown=[f"layer.{i}.strange" for i in range(9)])))
    assert "Not understood, so not read: layer.0.strange" in text
    assert "and 3 more" in text


def test_findings_that_say_the_same_are_one() -> None:
    findings = [finding(layer, head) for layer in range(2) for head in range(4)]
    findings += [finding(2, 1), finding(0, None, severity="note"), finding(1, 0, severity="critical", value=None)]
    groups = grouped(audit(3, 4, findings=findings))
    assert [(group.severity, group.value, group.places) for group in groups] == [
        ("critical", "not a number", "model.layers.1.attn, head 0"),
        ("warning", "120", "model.layers.{0,1}.attn, all heads; model.layers.2.attn, head 1"),
        ("note", "120", "model.layers.0.attn"),
    ]


def test_short_names_stay_apart() -> None:
    names = [f"decoder.block.{i}.layer.{j}.{kind}" for i in range(3) for j, kind in enumerate(("Self", "EncDec"))]
    assert len(set(short_names(names, 12))) == len(names)
    assert max(map(len, short_names(names, 12))) <= 12
    assert short_names(["a.b", "a.b.c"]) == ["a.b", "a.b.c"]


def test_a_grid_has_a_place_for_every_head() -> None:
    layers = [{"name": "a", "heads": [{"x": 1.0}, {"x": None}]}, {"name": "b", "heads": [{"x": 3}]}]
    first, second = grid(layers, "x")
    assert first[0] == 1.0
    assert math.isnan(first[1])
    assert second[0] == 3.0
    assert math.isnan(second[1])


def test_the_page_fetches_nothing_and_escapes_everything() -> None:
    evil = "<script>alert('x')</script>"
    more = {"model": {"model_type": evil, "scale": 0.5, "scale_source": evil, "d_k": 64, "heads": 4, "key_heads": 2}}
    report = audit(3, 4, findings=[finding(1, 2, source=evil, remedy=evil)], unknown=[evil], **more)
    report["layers"][0]["name"] = evil
    page = render_audit(report, {"path": evil})
    assert evil not in page
    # plotly.js apart, which the policy holds in check, no attribute names anything outside.
    own = re.sub(r"<script(?: type='text/plain' id='plotly')?>.*?</script>", "", page, flags=re.DOTALL)
    assert all(link.startswith(("#", "data:")) for link in re.findall(r"(?:href|src)='([^']*)'", own))
    assert "default-src 'none'" in own
    assert "1/√<i>d<sub>k</sub></i> is 0.125" in own


def test_every_number_is_on_the_page() -> None:
    report = audit(2, 3)
    page = render_audit(report)
    (data,) = re.findall(r"data-plot='plot-map-predicted_deviation'>(.*?)</script>", page, re.DOTALL)
    figure = json.loads(data)
    assert figure["data"][0]["z"] == [[pytest.approx(math.log10(0.1 * 2**i))] * 3 for i in range(2)]
    assert figure["data"][0]["customdata"][1][2] == ["0.200", "model.layers.1.attn"]
    assert page.count("<td>model.layers.1.attn</td>") == 1 + 3
    assert "Nothing is outside its range." in page


def test_a_large_model_shows_layers_and_says_where_the_heads_are() -> None:
    page = render_audit(audit(40, 64))
    assert page.count("<td>model.layers.7.attn</td>") == 1
    assert "rootdk audit --json" in page


def test_every_figure_is_one_that_plotly_knows() -> None:
    made = audit(3, 4)
    for layer in made["layers"]:
        layer["baseline"] = {"predicted_deviation": 1.0}
    check_figures(Page(render_audit(made)))


def test_every_heading_of_the_layers_is_explained() -> None:
    from rootdk.audit import view

    assert all(meaning for *_, meaning in (*view._MEASURED, *view._OF_WEIGHTS))
    layers = [{"name": "a", "scale": 0.5, "heads": [{"logit_deviation": 1.0}], "baseline": {"logit_deviation": 1.0}}]
    words = view._words({"layers": layers, "findings": [], "verdict": "healthy"})
    assert words.startswith("score std: standard deviation of the scores")
    assert words.endswith("The lower number is that of theory, for random q and k.")


def test_a_note_on_many_heads_is_short() -> None:
    """Layers are named where three groups of heads or fewer are meant; a warning names them all."""
    sizes = [{"name": f"blk.{layer}", "heads": [{}] * 9} for layer in range(5)]
    for severity, words in (("note", "heads of 5 of 5 layers, from blk.0 to blk.4"), ("warning", "blk.4, heads 0, 4")):
        same = {"metric": "spectral_bound", "severity": severity, "threshold": 1e3, "source": "s", "remedy": "r"}
        findings = [{"layer": f"blk.{n}", "head": head, "value": 2e3, **same} for n in range(5) for head in {0, n}]
        (group,) = grouped({"layers": sizes, "findings": findings})
        assert words in group.places


def test_a_note_that_states_a_number_shows_no_limit() -> None:
    for threshold, value, severity, limit in (
        (0.177, 0.177, "note", ""),
        (0.0, 6.0, "note", ""),
        (0.2, 0.1, "note", "0.200"),
        (0.0, 0.5, "critical", "0"),
    ):
        fields = {"metric": "m", "severity": severity, "threshold": threshold, "source": "s", "remedy": "r"}
        (group,) = grouped({"layers": [], "findings": [{"layer": "a", "head": None, "value": value, **fields}]})
        assert group.limit == limit


def test_a_number_and_its_limit_are_told_apart() -> None:
    """2.78 against a limit of 2.78 says nothing, and rounding must not turn the two around."""
    same = {"layer": "a", "head": None, "metric": "m", "severity": "warning", "source": "s", "remedy": "r"}
    for value, limit, shown in ((2.7791, 2.7784, ("2.779", "2.778")), (100.04, 100.0, ("100.04", "100"))):
        (group,) = grouped({"layers": [], "findings": [{"value": value, "threshold": limit, **same}]})
        assert (group.value, group.limit) == shown


def test_numbers_of_layers_are_a_range_in_what_to_do() -> None:
    same = {"metric": "logit_deviation", "severity": "critical", "threshold": 3.1, "source": "s", "head": 0}
    findings = [
        {"layer": name, "value": 8.0, "remedy": f"divide the scale by {by}, or clip(layers={[name]!r})", **same}
        for name, by in (("h.0", "7.86"), ("h.1", "8.1"))
    ]
    (group,) = grouped({"layers": [], "findings": findings})
    assert group.remedy == "divide the scale by 7.86 to 8.1, or clip(layers=['h.0', 'h.1'])"
