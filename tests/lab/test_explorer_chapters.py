"""The chapters of the explorer: they show what the operator and the theory give, for every setting of the knobs."""

import ast
import importlib
import itertools
import json
import math
import random
import re
from inspect import signature
from xml.etree import ElementTree as ET

import numpy as np
import pytest
from explorer_views import BY_ID, compare, values_of, view

import rootdk
from rootdk import theory
from rootdk.errors import ArgumentError
from rootdk.lab.answer import answer
from rootdk.lab.explorer.chapter import Chapter, Control, View, plain
from rootdk.lab.explorer.chapters import CHAPTERS, TOUR
from rootdk.lab.explorer.export import texts_of
from rootdk.lab.explorer.server import warm_up
from rootdk.lab.explorer.shared import WIDTHS, over_widths
from rootdk.lab.explorer.values import read_address, read_values
from rootdk.lab.training import interval
from rootdk.theory.formats import FORMATS, spacing

# Whose lines take seconds: they are run once.
SLOW = ("claims", "model")


def ends(control: Control) -> list[str]:
    """The extreme values of a knob, as the page would send them."""
    if control.kind == "choice":
        return list(control.choices)
    if control.kind == "flag":
        return ["true", "false"]
    if control.kind == "numbers":
        return [str(control.default)]
    return [f"{control.low:g}" if control.kind == "float" else str(int(control.low or 0)), str(control.high)]


def corners(chapter: Chapter, mixtures: int) -> list[dict[str, str]]:
    """Each knob at each of its ends, all at one end, and some mixtures that are always the same."""
    knobs = {control.name: ends(control) for control in chapter.controls}
    settings = [{}] + [{name: value} for name, values in knobs.items() for value in values]
    settings += [{name: values[end] for name, values in knobs.items()} for end in (0, -1)]
    draw = random.Random(chapter.id)
    settings += [{name: draw.choice(values) for name, values in knobs.items()} for _ in range(mixtures)]
    return settings


def shown_at(chapter: Chapter, raw: dict[str, str]) -> View | None:
    """None where knobs that do not fit each other are refused, by the name of one of them."""
    values = read_values(chapter, raw)
    try:
        return chapter.compute(values)
    except ArgumentError as error:
        refused = str(error).split(":")[0]
    assert refused in values
    return None


# What a chapter is


@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda chapter: chapter.id)
def test_a_chapter_is_complete(chapter: Chapter) -> None:
    names = [control.name for control in chapter.controls]
    assert len(set(names)) == len(names)
    assert re.fullmatch(r"[a-z]+(-[a-z]+)*", chapter.id)
    ET.fromstring(f"<div>{chapter.formula}</div>")
    assert "compute" not in json.loads(json.dumps(chapter.to_dict(), allow_nan=False))
    for control in chapter.controls:
        assert control.kind in ("int", "float", "choice", "flag", "numbers")
        assert len(control.labels) in (0, len(control.choices))
        if control.kind in ("int", "float", "numbers"):
            assert control.low is not None
            assert control.high is not None
            assert control.low < control.high
        if control.kind == "numbers":
            assert control.rows
            assert control.columns
        assert not control.log or (control.low or 0) > 0
        for value, others in control.sets.items():
            assert value in control.choices
            assert value != control.choices[0]
            assert set(others) <= set(names)


def test_chapters_are_told_apart() -> None:
    assert len(BY_ID) == len(CHAPTERS)


SENTENCES = ("to_try", "to_see", "said", "true")


@pytest.mark.parametrize("field", SENTENCES)
@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda chapter: chapter.id)
def test_texts_are_a_few_short_sentences(chapter: Chapter, field: str) -> None:
    text = getattr(chapter, field)
    sentences = re.split(r"(?<=[.!?]) (?=[A-Z1√])", text)
    assert text.endswith(".")
    assert len(sentences) <= 4
    assert all(len(sentence) <= 260 for sentence in sentences)
    assert len(text) < 300


# Every figure that a text quotes, and what must be true for it. A text with a figure that is not here fails.
def _same_order() -> bool:
    query, key = np.array([[1.0, 2.0]]), np.array([[3.0, 1.0], [0.0, 1.0], [2.0, 2.0]])
    weights = [rootdk.attention(query, key, np.eye(3), scale=scale)[0] for scale in ("none", "sqrt", "dk")]
    return all((np.argsort(weight) == np.argsort(weights[0])).all() for weight in weights)


def _factor(d_k: int) -> float:
    return float(rootdk.scaling.rule("sqrt").factor(d_k, None, None))


QUOTED = {
    "answer": {},
    "formula": {"4": lambda: _factor(4) == 0.5, "64": _same_order, "8": lambda: _factor(64) == 1 / 8},
    "growth": {},
    "proof": {"1": lambda: theory.square_terms(5).trace() == 5.0, "0": lambda: theory.square_terms(5).sum() == 5.0},
    "sharpening": {
        "1024": lambda: True,  # the keys of the next two, as 99 % is what `saturated` asks
        "99": lambda: True,
        "512": lambda: 0.45 < rootdk.predict(512, 1024, "none").saturated[0] < 0.55,
        "64": lambda: 0.08 < rootdk.predict(64, 1024, "none").saturated[0] < 0.12,
    },
    "gradients": {"0": lambda: over_widths("trace", 512, 0.0)[-1] < 0.01},
    "not-dk": {},
    "choosing": {
        "4": lambda: all(abs(view("choosing", keys=n).numbers[4].value - 1) < 0.04 for n in (16, 512, 4096)),
        "16": lambda: WIDTHS[0] == 16,
        "1024": lambda: WIDTHS[-1] == 1024,
        "0.84": lambda: np.allclose(over_widths("flow", 16, 0.5), 0.84, atol=0.006),
        "1": lambda: np.allclose(over_widths("flow", 4096, 0.5), 1, atol=0.04),
    },
    "aligned": {},
    "context": {
        "3.7": lambda: round(float(theory.critical_sigma(1000)), 1) == 3.7,
        "6.4": lambda: round(float(theory.critical_sigma(1e9)), 1) == 6.4,
    },
    "formats": {
        "128": lambda: spacing(128.0, "bfloat16") == 1,
        "1": lambda: spacing(127.9, "bfloat16") < 1,
        "65504": lambda: FORMATS["float16"].largest == 65504 == np.finfo(np.float16).max,
    },
    "training": {
        "95": lambda: signature(interval).parameters["level"].default == 0.95,
        "16": lambda: "slows" in rootdk.lab.checks.LEDGER[16].statement,
        "18": lambda: "range of d_k" in rootdk.lab.checks.LEDGER[18].statement,
    },
    "model": {},
    "claims": {},
}
# Figures that are part of a formula or of a name.
NAMES = r"1/√?d_k|√\(2 ln n\)|1/n|= 1/2|power 1/4|b?float16"


@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda chapter: chapter.id)
def test_every_figure_in_what_is_true_is_true(chapter: Chapter) -> None:
    quoted = set(re.findall(r"\d+(?:\.\d+)?", re.sub(NAMES, "", chapter.true + chapter.to_see)))
    assert quoted <= set(QUOTED[chapter.id])
    for figure in quoted:
        assert QUOTED[chapter.id][figure](), figure


def test_what_the_gradients_chapter_says() -> None:
    assert (over_widths("rms", 512, 0.0) > over_widths("rms", 512, 0.5)).all()
    assert (np.diff(over_widths("flow", 512, 0.0)) > 0).all()
    assert over_widths("trace", 512, 0.0)[-1] < 0.01
    assert over_widths("trace", 512, 0.5)[-1] > 0.99
    assert over_widths("trace", 512, 1.0)[-1] > 0.99
    assert over_widths("flow", 512, 1.0)[-1] < 0.05


def test_what_the_not_dk_chapter_says() -> None:
    for d_k in (16, 64, 256, 1024):
        values = values_of(view("not-dk", d_k=d_k))
        assert values["ratio"] == pytest.approx(math.sqrt(d_k), rel=0.05)
        assert values["error_dk"] < values["error_sqrt"]
        assert values["entropy_dk"] > 0.99
    grown, usual = values_of(view("not-dk", d_k=256, grown=4)), values_of(view("not-dk", d_k=256))
    assert grown["entropy_dk"] == usual["entropy_sqrt"]
    assert grown["top_dk"] == usual["top_sqrt"]


def test_what_the_aligned_chapter_says() -> None:
    """Drawn pairs against theory; flat lines where the text says so; the table is that of the claim."""
    for r, flat, rises in ((0.0, "over_root", ()), (0.3, None, ("over_root",)), (1.0, "over_width", ("over_root",))):
        views = [values_of(view("aligned", correlation=r, d_k=d_k)) for d_k in (64, 256, 1024)]
        for numbers in views:
            assert numbers["mean"] == pytest.approx(
                numbers["mean_theory"], abs=5 * math.sqrt(numbers["variance_theory"] / 1024)
            )
            assert numbers["size"] == pytest.approx(numbers["size_theory"], rel=0.15)
        if flat:
            values = [numbers[flat] for numbers in views]
            assert max(values) / min(values) < 1.05
        for name in rises:
            assert views[0][name] < 0.7 * views[1][name] < 0.5 * views[2][name]
    assert values_of(view("aligned", correlation=0))["exponent"] == pytest.approx(0.5)
    shown = view("aligned").table
    assert shown is not None
    for row in shown.rows:
        assert float(row[3]) > 0.5 > abs(float(row[4]))


def test_what_the_context_chapter_says() -> None:
    shares = [values_of(view("context", keys=keys)) for keys in (10**3, 10**6, 10**9)]
    for name, rises in (("sqrt", True), ("entropy_invariant", False), ("ssmax", False)):
        steps = np.diff([share[f"entropy_{name}"] for share in shares])
        assert (steps > 0).all() == rises
        assert (steps < 0).all() != rises


def test_what_the_growth_chapter_says() -> None:
    usual = values_of(view("growth", d_k=64))
    assert usual["variance_theory"] == 64
    alone = values_of(view("growth", correlation_query=0.5))
    both = values_of(view("growth", correlation_query=0.5, correlation_key=0.5))
    assert alone["variance_theory"] == pytest.approx(64)
    assert both["variance_theory"] > 10 * 64
    keys = values_of(view("growth", mean_key=2))
    assert keys["variance_theory"] == pytest.approx(5 * 64)
    assert keys["inside_theory"] == pytest.approx(1)
    assert values_of(view("growth", mean_query=2))["inside_theory"] == pytest.approx(5)


# Every setting


@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda chapter: chapter.id)
def test_views_are_finite_and_ready_for_json(chapter: Chapter) -> None:
    seen = 0
    for raw in corners(chapter, 20):
        shown = shown_at(chapter, raw)
        if shown is None:
            continue
        seen += 1
        text = json.dumps(shown.to_dict(), allow_nan=False)
        assert len(text) < 120_000, raw
        for number in shown.numbers:
            assert number.text, (raw, number.id)
            assert isinstance(number.value, str) or not math.isnan(number.value), (raw, number.id)
        for figure in shown.figures:
            assert figure.text.endswith(".")
            assert "nan" not in figure.text
            for trace in figure.plot["data"]:
                size = 0
                for name in ("x", "y", "z"):
                    entries = plain(trace.get(name, []))
                    flat = list(itertools.chain.from_iterable(entries)) if name == "z" else list(entries)
                    assert flat or name == "z", (raw, figure.id, name)
                    assert all(isinstance(entry, str) or math.isfinite(entry) for entry in flat), (raw, figure.id, name)
                    size = max(size, len(flat))
                assert size <= 2000
            layout = json.dumps(plain(figure.plot["layout"]))
            assert "gridcolor" not in layout
            assert '"font": {"color' not in layout
    assert seen > 2


@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda chapter: chapter.id)
def test_the_python_lines_print_the_numbers_that_are_shown(chapter: Chapter) -> None:
    settings = [{}] if chapter.id in SLOW else [{}, *corners(chapter, 3)[-5:]]
    for raw in settings:
        # Eigenvalues of 1024 x 1024 matrices take long.
        shown = shown_at(chapter, raw | ({"d_k": "96"} if chapter.id == "growth" else {}))
        if shown is not None:
            compare(shown)


@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda chapter: chapter.id)
def test_the_python_lines_use_public_names_alone(chapter: Chapter) -> None:
    settings = [{}, *({"format": name} for name in ("float32", "bfloat16") if chapter.id == "formats")]
    settings += [{"law": law} for law in ("sign", "uniform", "student") if chapter.id == "growth"]
    for raw in settings:
        shown = shown_at(chapter, raw)
        assert shown is not None
        for node in ast.walk(ast.parse(shown.python)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("rootdk"):
                module = importlib.import_module(node.module)
                documented = getattr(module, "__all__", None) or [name for name in vars(module) if name[0] != "_"]
                names = [alias.name for alias in node.names]
                assert set(names) <= {*documented, *(name for name in names if node.module == "rootdk")}
                assert not any(part.startswith("_") for part in node.module.split("."))
                assert "explorer" not in node.module
                assert not node.module.startswith("rootdk.lab.checks.")


def test_the_tour_is_ten_steps_that_a_saved_page_holds() -> None:
    assert len(TOUR) == 10
    for address, text in TOUR:
        chapter, raw = read_address(address)
        assert len(raw) <= 1
        read_values(BY_ID[chapter], raw)
        for name, value in raw.items():
            (knob,) = (control for control in BY_ID[chapter].controls if control.name == name)
            assert value in texts_of(knob)
        assert len(text) < 120


def test_what_the_tour_says() -> None:
    near = [values_of(view("answer", d_k=4))[f"alone_{rule}"] for rule in ("none", "sqrt", "dk")]
    assert near == [0, 0, 0]
    assert values_of(view("answer"))["alone_none"] > 0.4
    assert values_of(view("growth", d_k=16))["variance_theory"] == 16
    assert math.sqrt(1024 / 16) == 8
    assert view("growth", d_k=1024).figures[1].text.count("standard deviation 1 ") == 1


@pytest.mark.parametrize(("d_k", "keys"), [(512, 1024), (1024, 256)])
def test_the_answer_is_the_same_on_the_page_as_elsewhere(d_k: int, keys: int) -> None:
    """By theory, whatever the seed; and 64 measured rows are within four standard errors of it."""
    shown = view("answer", d_k=d_k, keys=keys)
    assert shown.lead.replace("\u00a0", " ") == answer(d_k, keys)
    share = float(re.search(r"scale, (\d+)\u00a0%", shown.lead)[1]) / 100
    assert values_of(shown)["alone_none"] == pytest.approx(share, abs=4 * 0.5 / 64**0.5)


def test_growth_keeps_its_axes_and_shows_the_other_rules() -> None:
    """What differs between two rules is the bell, not the axes."""
    axes, bells = [], []
    for rule in ("none", "sqrt", "dk"):
        figure = view("growth", rule=rule).figures[1].plot
        axes.append((figure["layout"]["xaxis"]["range"], figure["layout"]["yaxis"]["range"]))
        named = {trace["name"]: trace for trace in figure["data"]}
        bells.append(max(named["theory: exact density"]["y"]))
        ghosts = {"none", "1/√d<sub>k</sub>", "1/d<sub>k</sub>"} & set(named)
        assert len(ghosts) == 2
        assert all(named[ghost]["line"]["dash"] == "dot" for ghost in ghosts)
    assert axes[0] == axes[1] == axes[2]
    assert bells[0] < bells[1] / 5 < bells[2] / 25


def test_the_examples_of_the_formula() -> None:
    def weights(example: str, rule: str) -> list[float]:
        return view("formula", example=example, rule=rule).figures[1].plot["data"][0]["y"]

    assert np.round(weights("sixty-four", "none"), 3).tolist() == [0.867, 0.016, 0.117]
    assert np.round(weights("sixty-four", "sqrt"), 3).tolist() == [0.419, 0.254, 0.326]
    assert np.round(weights("hundred", "none"), 3).tolist() == [1, 0, 0]
    assert np.round(weights("hundred", "sqrt"), 3).tolist() == [0.971, 0.018, 0.011]
    first = view("formula", example="four").table.rows[0]
    assert first[1:3] == ("1", "0.5")


# The ledger


def test_the_ledger_shows_every_claim_and_filters_by_verdict() -> None:
    everything = view("claims").table.rows
    assert [row[0] for row in everything] == rootdk.lab.checks.LEDGER.ids
    for verdict in rootdk.lab.checks.VERDICTS:
        rows = view("claims", verdict=verdict).table.rows
        assert rows == tuple(row for row in everything if row[2] == verdict)


# Quickly


def test_warming_up_leaves_the_curves_computed(monkeypatch) -> None:
    warm_up()
    # Who still computes an average over d_k fails.
    monkeypatch.setattr("rootdk.theory.attention._attention_averages", None)
    monkeypatch.setattr("rootdk.lab.explorer.shared.row_law", None)
    for chapter in CHAPTERS:
        chapter.compute(read_values(chapter, {}))
    for exponent in ("0.05", "0.35", "0.95"):
        view("choosing", exponent=exponent)
    for shown in ("trace", "live", "norm", "rms", "flow"):
        view("gradients", shown=shown)


def test_warming_up_stops_when_asked(monkeypatch) -> None:
    asked, seen = itertools.count(), []

    def read(chapter: Chapter, raw: dict[str, str]) -> dict[str, object]:
        seen.append(chapter.id)
        return read_values(chapter, raw)

    monkeypatch.setattr("rootdk.lab.explorer.server.read_values", read)
    warm_up(lambda: next(asked) >= 2)
    assert len(seen) == 2


# The JSON of anything that is not plain is an error and no guess.


def test_plain_refuses_what_json_does_not_know() -> None:
    with pytest.raises(TypeError, match="must be made of"):
        plain({"x": object()})
