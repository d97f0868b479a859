"""The chapters of the explorer: they show what the operator and the theory give, for every setting of the knobs."""

import contextlib
import io
import itertools
import json
import math
import random
import re
from inspect import signature
from xml.etree import ElementTree as ET

import numpy as np
import pytest

import rootdk
from rootdk import theory
from rootdk.audit.demonstration import demonstrate
from rootdk.errors import ArgumentError
from rootdk.explorer.audit_input import MOST_CELLS, checked_audit
from rootdk.explorer.chapter import KINDS, Chapter, Control, View, plain
from rootdk.explorer.chapters import CHAPTERS
from rootdk.explorer.curves import WIDTHS, flow_over_widths, median_over_widths, norm_over_widths
from rootdk.explorer.draws import vectors, vectors_in_python
from rootdk.explorer.model_view import model_view
from rootdk.explorer.values import RefusedValueError, read_value, read_values
from rootdk.explorer.warm_up import warm_up
from rootdk.lab.training import interval
from rootdk.theory.formats import FORMATS, spacing

BY_ID = {chapter.id: chapter for chapter in CHAPTERS}
# Whose lines take seconds: they are run once.
SLOW = ("claims", "model")


def view(chapter: str, **raw: object) -> View:
    one = BY_ID[chapter]
    return one.compute(read_values(one, {name: str(value) for name, value in raw.items()}))


def values_of(shown: View) -> dict[str, object]:
    return {number.id: number.value for number in shown.numbers}


def ends(control: Control) -> list[str]:
    """The extreme values of a knob, as the page would send them."""
    if control.kind == "choice":
        return list(control.choices)
    if control.kind == "flag":
        return ["true", "false"]
    if control.kind == "numbers":
        return [str(control.default)]
    return [f"{control.low:g}" if control.kind == "float" else str(int(control.low or 0)), str(control.high)]


def corners(chapter: Chapter, some: int) -> list[dict[str, str]]:
    """Each knob at each of its ends, all at one end, and some mixtures that are always the same."""
    knobs = {control.name: ends(control) for control in chapter.controls}
    found = [{}] + [{name: value} for name, values in knobs.items() for value in values]
    found += [{name: values[end] for name, values in knobs.items()} for end in (0, -1)]
    draw = random.Random(chapter.id)
    found += [{name: draw.choice(values) for name, values in knobs.items()} for _ in range(some)]
    return found


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


@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda one: one.id)
def test_a_chapter_is_complete(chapter: Chapter) -> None:
    names = [control.name for control in chapter.controls]
    assert len(set(names)) == len(names)
    assert re.fullmatch(r"[a-z]+(-[a-z]+)*", chapter.id)
    ET.fromstring(f"<div>{chapter.formula}</div>")
    assert "compute" not in json.loads(json.dumps(chapter.to_dict(), allow_nan=False))
    for control in chapter.controls:
        assert control.kind in KINDS
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
@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda one: one.id)
def test_texts_are_one_sentence_each_and_speak_of_nothing_else(chapter: Chapter, field: str) -> None:
    text = getattr(chapter, field)
    assert text.endswith(".")
    assert not re.search(r"[.!?] [A-Z]", text)
    assert len(text) < 300
    everything = json.dumps(chapter.to_dict(), ensure_ascii=False)
    foreign = r"\b(session|agent|helper|assistant|issue|TODO|stub|localhost|lead)\b|/tmp|/work|/home"
    assert not re.search(foreign, everything)


# Every figure that a text quotes, and what must be true for it. A text with a figure that is not here fails.
def _same_order() -> bool:
    query, key = np.array([[1.0, 2.0]]), np.array([[3.0, 1.0], [0.0, 1.0], [2.0, 2.0]])
    weights = [rootdk.attention(query, key, np.eye(3), scale=scale)[0] for scale in ("none", "sqrt", "dk")]
    return all((np.argsort(one) == np.argsort(weights[0])).all() for one in weights)


def _factor(d_k: int) -> float:
    return float(rootdk.scaling.rule("sqrt").factor(d_k, None, None))


QUOTED = {
    "formula": {"4": lambda: _factor(4) == 0.5, "64": _same_order, "8": lambda: _factor(64) == 1 / 8},
    "growth": {},
    "proof": {"1": lambda: theory.square_terms(5).trace() == 5.0, "0": lambda: theory.square_terms(5).sum() == 5.0},
    "sharpening": {
        "1024": lambda: True,  # the keys of the next two, as 99 % is what `saturated` asks
        "99": lambda: True,
        "512": lambda: 0.45 < rootdk.predict(512, 1024, "none").saturated[0] < 0.55,
        "64": lambda: 0.08 < rootdk.predict(64, 1024, "none").saturated[0] < 0.12,
    },
    "gradients": {},
    "not-dk": {},
    "choosing": {
        "4": lambda: all(abs(view("choosing", keys=n).numbers[4].value - 1) < 0.04 for n in (16, 512, 4096)),
        "16": lambda: WIDTHS[0] == 16,
        "1024": lambda: WIDTHS[-1] == 1024,
        "0.84": lambda: np.allclose(flow_over_widths(16, 0.5), 0.84, atol=0.006),
        "1": lambda: np.allclose(flow_over_widths(4096, 0.5), 1, atol=0.04),
    },
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


@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda one: one.id)
def test_every_figure_in_what_is_true_is_true(chapter: Chapter) -> None:
    quoted = set(re.findall(r"\d+(?:\.\d+)?", re.sub(NAMES, "", chapter.true + chapter.to_see)))
    assert quoted <= set(QUOTED[chapter.id])
    for figure in quoted:
        assert QUOTED[chapter.id][figure](), figure


def test_what_the_gradients_chapter_says() -> None:
    def trace(rows: object) -> float:
        return float(np.median(rows.jacobian_trace))

    none, root = norm_over_widths(512, 0.0), norm_over_widths(512, 0.5)
    assert (none > root).all()
    assert (np.diff(flow_over_widths(512, 0.0)) > 0).all()
    assert median_over_widths(512, 0.0, trace)[-1] < 0.01
    assert median_over_widths(512, 0.5, trace)[-1] > 0.99
    assert median_over_widths(512, 1.0, trace)[-1] > 0.99
    assert flow_over_widths(512, 1.0)[-1] < 0.05


def test_what_the_not_dk_chapter_says() -> None:
    for d_k in (16, 64, 256, 1024):
        found = values_of(view("not-dk", d_k=d_k))
        assert found["ratio"] == pytest.approx(math.sqrt(d_k), rel=0.05)
        assert found["error_dk"] < found["error_sqrt"]
        assert found["entropy_dk"] > 0.99
    grown, usual = values_of(view("not-dk", d_k=256, grown=4)), values_of(view("not-dk", d_k=256))
    assert grown["entropy_dk"] == usual["entropy_sqrt"]
    assert grown["top_dk"] == usual["top_sqrt"]


def test_what_the_context_chapter_says() -> None:
    shares = [values_of(view("context", keys=keys)) for keys in (10**3, 10**6, 10**9)]
    for name, rises in (("sqrt", True), ("entropy_invariant", False), ("ssmax", False)):
        steps = np.diff([one[f"entropy_{name}"] for one in shares])
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
    assert keys["felt_theory"] == pytest.approx(1)
    assert values_of(view("growth", mean_query=2))["felt_theory"] == pytest.approx(5)


# Every setting


@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda one: one.id)
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
                    assert all(isinstance(one, str) or math.isfinite(one) for one in flat), (raw, figure.id, name)
                    size = max(size, len(flat))
                assert size <= 2000
            layout = json.dumps(plain(figure.plot["layout"]))
            assert "gridcolor" not in layout
            assert '"font": {"color' not in layout
    assert seen > 2


def run(lines: str) -> dict[str, str]:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(lines, "<python>", "exec"), {})  # the chapter's own lines
    return dict(line.split(" ", 1) for line in out.getvalue().splitlines())


def compare(shown: View) -> None:
    printed = run(shown.python)
    assert set(printed) == {number.id for number in shown.numbers}
    for number in shown.numbers:
        if isinstance(number.value, str):
            assert printed[number.id] == number.value
        else:
            # The lines may take another way to the same number, such as d x d matrices in place of their eigenvalues.
            assert float(printed[number.id]) == pytest.approx(number.value, rel=1e-9, abs=1e-12), number.id


@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda one: one.id)
def test_the_python_lines_print_the_numbers_that_are_shown(chapter: Chapter) -> None:
    settings = [{}] if chapter.id in SLOW else [{}, *corners(chapter, 3)[-5:]]
    for raw in settings:
        # Eigenvalues of 1024 x 1024 matrices take long.
        shown = shown_at(chapter, raw | ({"d_k": "96"} if chapter.id == "growth" else {}))
        if shown is not None:
            compare(shown)


def test_the_examples_of_the_formula() -> None:
    def weights(example: str, rule: str) -> list[float]:
        return view("formula", example=example, rule=rule).figures[1].plot["data"][0]["y"]

    assert np.round(weights("sixty-four", "none"), 3).tolist() == [0.867, 0.016, 0.117]
    assert np.round(weights("sixty-four", "sqrt"), 3).tolist() == [0.419, 0.254, 0.326]
    assert np.round(weights("hundred", "none"), 3).tolist() == [1, 0, 0]
    assert np.round(weights("hundred", "sqrt"), 3).tolist() == [0.971, 0.018, 0.011]
    first = view("formula", example="four").table.rows[0]
    assert first[1:3] == ("1", "0.5")


# Measured beside theory

CLEAR = 5.0  # standard errors


@pytest.mark.parametrize(
    "raw",
    [
        {},
        {"d_k": 1024, "law": "sign"},
        {"d_k": 4, "law": "uniform"},
        {"d_k": 256, "law": "student"},
        {"correlation_query": 0.2, "correlation_key": 0.3},
        {"mean_query": 1.5, "mean_key": -1, "d_k": 100},
        {"mean_query": 0.5, "correlation_key": 0.2, "law": "sign"},
    ],
)
def test_scores_spread_as_theory_says(raw: dict[str, object]) -> None:
    found = [values_of(view("growth", seed=seed, **raw)) for seed in range(8)]
    for measured, told in (("variance", "variance_theory"), ("felt", "felt_theory")):
        seen = np.array([one[measured] for one in found])
        assert abs(seen.mean() - found[0][told]) < CLEAR * seen.std(ddof=1) / math.sqrt(len(seen))
    one = found[0]
    assert abs(one["variance"] - one["variance_theory"]) < CLEAR * one["variance_error"]


@pytest.mark.parametrize("d", [2, 7, 16])
def test_averages_of_terms_settle_where_the_proof_says(d: int) -> None:
    found = values_of(view("proof", d=d, samples=16384))
    for name, told in (("ones", 1.0), ("zeros", 0.0), ("total", found["total_theory"])):
        assert abs(found[name] - told) < CLEAR * found[f"{name}_error"]


@pytest.mark.parametrize(
    ("chapter", "raw", "names"),
    [
        ("sharpening", {"d_k": 64, "keys": 128}, ("entropy", "effective", "top")),
        ("sharpening", {"d_k": 16, "keys": 512, "rule": "none"}, ("entropy", "top")),
        ("sharpening", {"d_k": 256, "keys": 64, "rule": "dk"}, ("entropy", "effective", "top")),
        ("gradients", {"d_k": 64}, ("trace", "norm", "flow")),
        ("gradients", {"d_k": 128, "rule": "none"}, ("trace", "norm", "flow")),
        ("gradients", {"d_k": 128, "rule": "dk"}, ("trace", "norm", "flow")),
    ],
)
def test_rows_are_as_theory_says(chapter: str, raw: dict[str, object], names: tuple[str, ...]) -> None:
    found = [values_of(view(chapter, seed=seed, **raw)) for seed in range(16)]
    for name in names:
        seen, told = np.array([one[name] for one in found]), found[0][f"{name}_theory"]
        # The medians of theory may have half a percent of the rows on the wrong side.
        slack = 0.005 * told
        assert abs(seen.mean() - told) < CLEAR * seen.std(ddof=1) / math.sqrt(len(seen)) + slack, name


@pytest.mark.parametrize("name", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("spread", [1, 8])
def test_rounding_is_as_theory_says(name: str, spread: int) -> None:
    found = values_of(view("formats", format=name, spread=spread))
    # The mean of 20,000 squares whose fourth moment is below 6: the root is off by sqrt(5/20000)/2 of itself.
    assert found["error"] == pytest.approx(found["error_theory"], rel=CLEAR * math.sqrt(5 / 20_000) / 2)


def test_spacing_is_that_of_numpy() -> None:
    for size in (1e-3, 0.25, 1.0, 77.0, 4000.0, 60000.0):
        for name in ("float64", "float32", "float16"):
            assert spacing(size, name) == np.spacing(np.dtype(name).type(size))
    assert math.isinf(spacing(65505.0, "float16"))


# What is drawn


def traces(chapter: str, figure: str, **raw: object) -> dict[str, dict[str, object]]:
    """The traces of one figure by their names; the first of a name counts."""
    (found,) = (one for one in view(chapter, **raw).figures if one.id == figure)
    return {str(one.get("name", place)): one for place, one in reversed(list(enumerate(found.plot["data"])))}


DIGITS = {"rtol": 1e-6}  # a picture keeps seven


def test_histograms_and_densities_have_area_1_and_the_variance_of_theory() -> None:
    for figure, scale in (("scores", 1.0), ("scaled", 1 / 8)):
        found = traces("growth", figure)
        bars, curve = found["measured"], found["theory: exact density"]
        assert np.sum(bars["y"]) * bars["width"] == pytest.approx(1, abs=0.01)  # some lie beyond 5 deviations
        x, y = np.array(curve["x"]), np.array(curve["y"])
        assert np.trapezoid(y, x) == pytest.approx(1, abs=1e-3)
        assert np.trapezoid(y * x * x, x) == pytest.approx(64 * scale**2, rel=0.01)


def test_the_grid_of_the_proof_is_the_mean_of_its_terms() -> None:
    shown = view("proof", d=4, samples=100)
    grid = np.array(shown.figures[0].plot["data"][0]["z"])
    drawn = np.random.default_rng(0).standard_normal((100, 2, 4))
    terms = [np.outer(q * k, q * k) for q, k in drawn]
    np.testing.assert_allclose(grid, np.mean(terms, axis=0), **DIGITS, atol=1e-9)
    ends = {name: one["y"][-1] for name, one in traces("proof", "settling", d=4, samples=100).items()}
    found = values_of(shown)
    assert ends["diagonal"] == pytest.approx(found["ones"], rel=1e-6)
    assert ends["others"] == pytest.approx(found["zeros"], rel=1e-6)
    assert ends["sum / d"] == pytest.approx(found["total"] / 4, rel=1e-6)


def drawn_logits(keys: int, d_k: int, scale: float) -> np.ndarray:
    lines: dict[str, np.ndarray] = {"np": np}
    exec(vectors_in_python(0, keys, d_k), lines)
    return scale * lines["key"].astype(float) @ lines["query"][0].astype(float)


def test_keys_stay_while_more_of_them_or_of_their_components_are_asked_for() -> None:
    few, many = vectors(5, 700, 16)[1], vectors(5, 4096, 1024)[1]
    np.testing.assert_array_equal(few, many[:700, :16])
    lines: dict[str, np.ndarray] = {"np": np}
    exec(vectors_in_python(5, 4096, 1024), lines)
    np.testing.assert_array_equal(lines["key"], many)
    # Every block of keys has numbers of its own.
    assert len({part.tobytes() for part in many.reshape(8, 512, 1024)}) == 8
    assert abs(many.mean()) < 5 / np.sqrt(many.size)


@pytest.mark.parametrize(("rule", "scale"), [("none", 1.0), ("sqrt", 1 / 8), ("dk", 1 / 64)])
def test_the_weights_drawn_are_softmax_of_the_scores(rule: str, scale: float) -> None:
    logits = drawn_logits(100, 64, scale)
    weights = np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum()
    shown = traces("sharpening", "weights", keys=100, rule=rule, sorted="false")["weight"]["y"]
    # float32: a score of size s is off by some 2^-24 s sqrt(d_k), and its weight by that share.
    np.testing.assert_allclose(shown, weights, rtol=1e-4, atol=1e-7)
    first = traces("sharpening", "weights", keys=100, rule=rule)["weight"]["y"]
    np.testing.assert_allclose(first, np.sort(weights)[::-1], rtol=1e-4, atol=1e-7)


def test_the_entropy_drawn_is_that_of_theory() -> None:
    found = traces("sharpening", "entropy", keys=128)
    curve = found["entropy / ln n"]
    spread = traces("sharpening", "entropy", keys=128)["entropy / ln n"]["x"]
    told = theory.softmax_moments(128, np.array(spread)).entropy / math.log(128)
    np.testing.assert_allclose(curve["y"], told, **DIGITS)
    assert found["none"]["x"] == [8.0]


@pytest.mark.parametrize(("rule", "words"), [("none", "none"), ("sqrt", "1/√d<sub>k</sub>"), ("dk", "1/d<sub>k</sub>")])
def test_the_curves_of_the_gradients_are_those_of_predict(rule: str, words: str) -> None:
    told = rootdk.predict([16, 1024], 512, rule)
    scale = [rootdk.scaling.rule(rule).factor(d_k, None, None) for d_k in (16, 1024)]
    moments = theory.attention_moments(512, [16, 1024], scale)
    expected = {
        "trace": told.median_jacobian_trace,
        "norm": told.median_jacobian_norm,
        "rms": np.sqrt(moments.jacobian_norm_squared),
        "flow": theory.relative_gradient(512, [16, 1024], scale),
    }
    for shown, ends in expected.items():
        y = traces("gradients", "sizes", shown=shown)[words]["y"]
        np.testing.assert_allclose([y[0], y[-1]], ends, **DIGITS)
    y = traces("gradients", "sizes", shown="live")[words]["y"]
    np.testing.assert_allclose([y[0], y[-1]], 1 - told.saturated, atol=0.01)  # of 8192 rows; predict integrates
    if rule != "none":
        y = traces("not-dk", "gradient")[words]["y"]
        np.testing.assert_allclose([y[0], y[-1]], expected["flow"], **DIGITS)


def test_the_jacobian_drawn_is_that_of_the_formula() -> None:
    logits = np.sort(drawn_logits(16, 64, 1 / 8))[::-1]
    weights = np.exp(logits) / np.exp(logits).sum()
    grid = view("gradients", keys=16).figures[0].plot["data"][0]["z"]
    np.testing.assert_allclose(grid, theory.softmax_jacobian(weights), rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("shown", ["flow", "variance", "entropy"])
def test_the_curve_of_an_exponent_is_that_of_theory(shown: str) -> None:
    widths = np.array(WIDTHS, float)
    told = {
        "flow": lambda: theory.relative_gradient(512, widths, widths**-0.3),
        "variance": lambda: widths**0.4,
        "entropy": lambda: theory.attention_moments(512, widths, widths**-0.3).entropy / math.log(512),
    }[shown]()
    np.testing.assert_allclose(
        traces("choosing", "curves", shown=shown, exponent=0.3)["your a = 0.3"]["y"], told, **DIGITS
    )
    change = traces("choosing", "change", shown=shown, exponent=0.3)["your a = 0.3"]
    np.testing.assert_allclose(change["y"], [told[-1] / told[0]], **DIGITS)


def test_the_curves_over_n_are_those_of_theory() -> None:
    spread, share = traces("context", "spread", d_k=100), traces("context", "shares", d_k=100)
    lengths = np.array(share["none"]["x"])
    assert (lengths[0], lengths[-1]) == (10, 10**9)
    np.testing.assert_allclose(spread["none"]["y"], 10.0)
    told = theory.softmax_moments(lengths, 10.0).entropy / np.log(lengths)
    np.testing.assert_allclose(share["none"]["y"], told, **DIGITS)
    np.testing.assert_allclose(spread["s ln n / √d<sub>k</sub>"]["y"], 0.43 * np.log(lengths), **DIGITS)
    few = traces("context", "shares", shown="effective")["1/√d<sub>k</sub>"]["y"]
    np.testing.assert_allclose(few, 1 / theory.softmax_moments(lengths, 1.0).p_squared, **DIGITS)


def test_the_curves_of_the_formats_are_those_of_theory() -> None:
    for name in ("float32", "bfloat16", "float16"):
        curve = traces("formats", "errors")[name]
        np.testing.assert_allclose(curve["y"], theory.format_effect(np.array(curve["x"]), name).weight_error, rtol=1e-4)
        steps = traces("formats", "spacing")[name]
        np.testing.assert_allclose(steps["y"], [spacing(size, name) for size in steps["x"]], **DIGITS)


# What is refused


@pytest.mark.parametrize(
    ("chapter", "raw", "name", "words"),
    [
        ("growth", {"dk": "64"}, "dk", "must be one of d_k, rule"),
        ("growth", {"d_k": "x"}, "d_k", "must be a whole number from 4 to 1024"),
        ("growth", {"d_k": ""}, "d_k", "must be a whole number"),
        ("growth", {"d_k": "64.5"}, "d_k", "must be a whole number"),
        ("growth", {"d_k": "1_000"}, "d_k", "must be a whole number"),
        ("growth", {"d_k": "٦٤"}, "d_k", "must be a whole number"),
        ("growth", {"d_k": "3"}, "d_k", "from 4 to 1024"),
        ("growth", {"d_k": "1025"}, "d_k", "from 4 to 1024"),
        ("growth", {"d_k": "9" * 1999}, "d_k", "from 4 to 1024"),
        ("growth", {"d_k": "9" * 100_000}, "d_k", "at most 2000 characters"),
        ("growth", {"mean_query": "nan"}, "mean_query", "must be a number from -2 to 2"),
        ("growth", {"mean_query": "inf"}, "mean_query", "must be a number from -2 to 2"),
        ("growth", {"mean_query": "1e999"}, "mean_query", "must be a number from -2 to 2"),
        ("growth", {"mean_query": "-2.01"}, "mean_query", "from -2 to 2"),
        ("growth", {"mean_query": "٢"}, "mean_query", "must be a number"),
        ("growth", {"mean_query": "0x1"}, "mean_query", "must be a number"),
        ("growth", {"rule": "cube"}, "rule", "must be one of sqrt, none, dk"),
        ("growth", {"seed": "-1"}, "seed", "from 0 to 999"),
        ("sharpening", {"sorted": "maybe"}, "sorted", "must be true or false"),
        ("formula", {"query": ""}, "query", "at least one number"),
        ("formula", {"query": "1 2; 3 4"}, "query", "at most 1 rows"),
        ("formula", {"keys": "1 2; 3"}, "keys", "rows of one length"),
        ("formula", {"keys": "1 2 3 4 5 6 7 8 9"}, "keys", "at most 8 numbers in a row"),
        ("formula", {"keys": "1 2 x 4"}, "keys", "must be a number from -1000 to 1000"),
        ("formula", {"keys": "1 2 1001 4"}, "keys", "from -1000 to 1000"),
        ("formula", {"example": "claim"}, "example", "must be one of own, four"),
    ],
)
def test_bad_values_are_refused_by_name(chapter: str, raw: dict[str, str], name: str, words: str) -> None:
    with pytest.raises(RefusedValueError) as caught:
        read_values(BY_ID[chapter], raw)
    assert caught.value.name == name
    assert str(caught.value).startswith(f"{name}: ")
    assert words in str(caught.value)
    assert len(str(caught.value)) < 250


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"query": "1 2"}, "keys: must have 2 numbers in a row like the query, got 4"),
        ({"values": "1 0; 0 1"}, "values: must have 3 rows, one for each key, got 2"),
    ],
)
def test_knobs_that_do_not_fit_each_other_are_refused(raw: dict[str, str], message: str) -> None:
    with pytest.raises(ArgumentError, match=re.escape(message)):
        view("formula", **raw)


def test_what_is_not_sent_is_the_default_or_what_a_choice_sets() -> None:
    found = read_values(BY_ID["formula"], {"example": "sixty-four", "zeros": "7"})
    assert found["query"] == ((2.0,),)
    assert found["zeros"] == 7
    assert read_values(BY_ID["growth"], {}) | {"d_k": 0} == read_values(BY_ID["growth"], {"d_k": "4"}) | {"d_k": 0}


def test_every_way_to_write_a_number_is_read() -> None:
    knob = Control("a", "a", "numbers", "1", -10, 10, rows=2, columns=3)
    assert read_value(knob, " 1,2 -3 ;\n .5 +1. 1e-1 \n") == ((1.0, 2.0, -3.0), (0.5, 1.0, 0.1))
    assert read_value(Control("s", "s", "flag", False), "TRUE") is True


def test_a_knob_without_bounds_still_refuses_what_is_not_finite() -> None:
    with pytest.raises(RefusedValueError, match="a: must be a number, got '1e999'"):
        read_value(Control("a", "a", "float", 0.0), "1e999")


# The reader's own model


def audit() -> dict[str, object]:
    heads = [{"logit_deviation": 1.0 + head, "entropy_ratio": None} for head in range(3)]
    finding = {
        "layer": "a.0", "head": 2, "metric": "logit_deviation", "severity": "warning", "value": 3.0, "threshold": 2.5,
        "source": "theory", "remedy": "look",
    }  # fmt: skip
    layers = [
        {"name": "a.0", "heads": heads, "baseline": {"logit_deviation": 1.5}},
        {"name": "a.1", "heads": heads[:2], "baseline": {}},
    ]
    return {"verdict": "warning", "layers": layers, "findings": [finding]}


def test_an_audit_is_shown_with_its_theory_and_its_findings(tmp_path, monkeypatch) -> None:
    shown = model_view(audit(), {"metric": "first"})
    assert values_of(shown) == {
        "verdict": "warning", "layers": 2, "heads": 5, "critical": 0, "warning": 1, "note": 0,
        "smallest": 1.0, "middle": 2.0, "largest": 3.0, "theory": 1.5,
    }  # fmt: skip
    assert shown.table.rows == (("warning", "logit_deviation", "3", "2.5", "a.0, head 2", "look", "theory"),)
    assert "1 (a.0, head 0) to 3 (a.0, head 2)" in shown.figures[0].text
    json.dumps(shown.to_dict(), allow_nan=False)
    (tmp_path / "audit.json").write_text(json.dumps(audit()))
    monkeypatch.chdir(tmp_path)
    compare(shown)


def test_an_audit_of_one_layer_has_no_picture_along_layers() -> None:
    one = audit() | {"layers": audit()["layers"][:1], "findings": []}
    shown = model_view(one, {"metric": "logit_deviation"})
    assert [figure.id for figure in shown.figures] == ["map-logit_deviation"]
    assert shown.table is None


def test_the_example_is_the_demonstration() -> None:
    told = demonstrate().to_dict()
    assert view("model").to_dict()["numbers"] == model_view(told, {"metric": "first"}).to_dict()["numbers"]


def test_a_metric_that_the_audit_has_not_is_refused() -> None:
    with pytest.raises(ArgumentError, match="metric: must be one that this audit has, logit_deviation, got"):
        model_view(audit(), {"metric": "saturated"})


def _changed(*path: object, to: object) -> dict[str, object]:
    whole = audit()
    place = whole
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = to
    return whole


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([], "audit: must be the object"),
        (None, "audit: must be the object"),
        ({}, "audit.verdict: must be one of"),
        (_changed("verdict", to="good"), "audit.verdict: must be one of healthy, warning, critical, got 'good'"),
        (_changed("layers", to={}), "audit.layers: must be a list, got an object"),
        (_changed("layers", to=[]), "audit.layers: must hold at least one layer"),
        (_changed("layers", 0, to=3), "audit.layers[0]: must be an object with name and heads, got 3"),
        (_changed("layers", 0, "name", to=None), "audit.layers[0].name: must be a text"),
        (_changed("layers", 0, "name", to="a" * 2000), "audit.layers[0].name: must be a text of at most 1000"),
        (_changed("layers", 1, "heads", to="x"), "audit.layers[1].heads: must be a list, got a text"),
        (_changed("layers", 0, "heads", to=[{}] * (MOST_CELLS + 1)), "audit.layers: must make a map of 1 to 32768"),
        (_changed("layers", 0, "heads", 1, to=[]), "layers[0].heads[1]: must be an object of numbers, got a list"),
        (_changed("layers", 0, "heads", 1, "saturated", to="1"), "heads[1].saturated: must be a finite number or null"),
        (_changed("layers", 0, "heads", 1, "saturated", to=True), "heads[1].saturated: must be a finite number"),
        (_changed("layers", 0, "heads", 1, "saturated", to=math.nan), "heads[1].saturated: must be a finite number"),
        (_changed("layers", 0, "baseline", to=[1]), "audit.layers[0].baseline: must be an object of numbers"),
        (_changed("findings", to=None), "audit.findings: must be a list, got nothing"),
        (_changed("findings", 0, to="x"), "audit.findings[0]: must be an object, got a text"),
        (_changed("findings", 0, "severity", to="bad"), "audit.findings[0].severity: must be one of"),
        (_changed("findings", 0, "remedy", to=1), "audit.findings[0].remedy: must be a text"),
        (_changed("findings", 0, "head", to=1.5), "audit.findings[0].head: must be a whole number below"),
        (_changed("findings", 0, "threshold", to="x"), "audit.findings[0].threshold: must be a finite number, got"),
    ],
)  # fmt: skip
def test_what_is_no_audit_is_refused_by_place(given: object, message: str) -> None:
    with pytest.raises(ArgumentError, match=re.escape(message)):
        checked_audit(given)


# The ledger


def test_the_ledger_shows_every_claim_and_filters_by_verdict() -> None:
    everything = view("claims").table.rows
    assert [row[0] for row in everything] == rootdk.lab.checks.LEDGER.ids
    for verdict in rootdk.lab.checks.VERDICTS:
        some = view("claims", verdict=verdict).table.rows
        assert some == tuple(row for row in everything if row[2] == verdict)


# Quickly


def test_warming_up_leaves_the_curves_computed(monkeypatch) -> None:
    warm_up()
    # Who still computes an average over d_k fails.
    monkeypatch.setattr("rootdk.theory.attention._attention_averages", None)
    monkeypatch.setattr("rootdk.explorer.curves.row_law", None)
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

    monkeypatch.setattr("rootdk.explorer.warm_up.read_values", read)
    warm_up(lambda: next(asked) >= 2)
    assert seen == [CHAPTERS[0].id] * 2


# The JSON of anything that is not plain is an error and no guess.


def test_plain_refuses_what_json_does_not_know() -> None:
    with pytest.raises(TypeError, match="must be made of"):
        plain({"x": object()})
