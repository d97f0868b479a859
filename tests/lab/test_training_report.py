"""Pictures of training runs hold the numbers of the runs, and the pages around them open offline.

tests/browser opens the page in a browser.
"""

import math
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import training_stand_in as stand_in
from html_page import Page, check_figures

from rootdk.lab.drawing import short
from rootdk.lab.report import render, render_training
from rootdk.lab.report.training_page import CHAPTERS, chapters, numbers
from rootdk.lab.training import Results, Run, RunSpec, grouped, interval, panels

SEEDS, RATES, SIZES = (0, 1, 2), (1e-3, 3e-3, 1e-2), (4, 16, 64, 256)
# As figures name the rules.
ROOT, OVER_D_K = "1/√d<sub>k</sub>", "1/d<sub>k</sub>"
KAPPAS = (0.1, 1.0, 10.0)
SPECS = [
    RunSpec(
        task=task,
        rule=rule,
        d_k=d_k,
        learning_rate=rate,
        seed=seed,
        steps=100,
        transplant=KAPPAS if rule == "sqrt" and d_k == 64 else (),
    )
    for task in ("recall", "digits")
    for rule in ("none", "sqrt", "dk", "additive")
    for d_k in SIZES
    for rate in RATES
    for seed in SEEDS
]
DIGITS = {"rtol": 5e-7}  # figures have seven digits


@pytest.fixture(scope="module")
def results() -> Results:
    return Results.of(stand_in.runs(SPECS), rootdk="0", size="<small>")


@pytest.fixture(scope="module")
def pictures(results: Results) -> dict[str, Any]:
    return {picture.name: picture for _, group in chapters(results) for picture in group}


def of(results: Results, **spec: Any) -> tuple[Run, ...]:
    return results.select(**spec)


def line(picture: Any, name: str) -> dict[str, Any]:
    """The trace with this name in the legend."""
    (curve,) = (trace for trace in picture.figure["data"] if trace.get("name") == name)
    return dict(curve)


def test_every_chapter_has_pictures_with_names_of_their_own(results: Results) -> None:
    parts = chapters(results)
    assert [chapter for chapter, _ in parts] == list(CHAPTERS)
    names = [picture.name for _, group in parts for picture in group]
    assert len(set(names)) == len(names)
    brief = [picture.name for _, group in chapters(results, brief=True) for picture in group]
    assert set(brief) < set(names)
    assert {re.match(r"[a-z]+", name)[0] for name in brief} == {re.match(r"[a-z]+", name)[0] for name in names}  # type: ignore[index]


def test_learning_curves_are_means_at_the_best_rate_with_their_interval(
    results: Results, pictures: dict[str, Any]
) -> None:
    picture = pictures["curves-recall-100-steps-256"]
    setting = {"task": "recall", "rule": "none", "d_k": 256}
    ends = {
        rate: interval(None if run.diverged else run.last.loss for run in of(results, **setting, learning_rate=rate))
        for rate in RATES
    }
    best = min(RATES, key=lambda rate: ends[rate].mean)
    runs = of(results, task="recall", rule="none", d_k=256, learning_rate=best)
    assert len(runs) == 3
    losses = np.array([run.along("loss")[1] for run in runs], float)
    drawn = line(picture, "none")
    assert list(drawn["x"]) == [moment.step for moment in runs[0].moments]
    np.testing.assert_allclose(drawn["y"], losses.mean(axis=0), **DIGITS)
    band = picture.figure["data"][0]
    upper = np.array(band["y"])[: losses.shape[1]]
    np.testing.assert_allclose(upper, [interval(column).mean + interval(column).half for column in losses.T], **DIGITS)
    assert f"none {best:.3g}" in picture.caption
    assert "3 seeds" in picture.caption


def test_loss_over_d_k_at_one_rate_and_at_the_best(results: Results, pictures: dict[str, Any]) -> None:
    best = line(pictures["best-recall-100-steps"], ROOT)
    expected = [
        min(interval(run.last.loss for run in of(results, task="recall", rule="sqrt", d_k=d_k, learning_rate=rate)).mean
            for rate in RATES)
        for d_k in SIZES
    ]  # fmt: skip
    np.testing.assert_allclose(best["y"], expected, **DIGITS)
    # Moved aside by a little, so that bars do not cover each other; the ticks stay.
    np.testing.assert_allclose(best["x"], SIZES, rtol=0.1)
    assert list(pictures["best-recall-100-steps"].figure["layout"]["xaxis"]["tickvals"]) == list(SIZES)
    equal = pictures["equal-recall-100-steps"]
    rate = float(re.search(r"Learning rate (\S+) for all", equal.caption)[1])  # type: ignore[index]
    runs = of(results, task="recall", rule="dk", d_k=64, learning_rate=rate)
    assert line(equal, OVER_D_K)["y"][2] == pytest.approx(interval(run.last.loss for run in runs).mean)
    assert line(equal, OVER_D_K)["error_y"]["array"][2] == pytest.approx(interval(run.last.loss for run in runs).half)


def test_a_point_with_a_diverged_run_is_a_gap_that_is_counted(results: Results, pictures: dict[str, Any]) -> None:
    picture = pictures["rates-recall-100-steps-256"]
    runs = of(results, task="recall", rule="none", d_k=256)
    diverged = {run.spec.learning_rate for run in runs if run.diverged}
    assert diverged
    drawn = line(picture, "none")["y"]
    assert [value is None for value in drawn] == [rate in diverged for rate in RATES]
    assert f"{len(diverged)} point" in picture.caption


def test_curves_of_layers(results: Results, pictures: dict[str, Any]) -> None:
    runs = grouped(of(results, task="digits", rule="sqrt", d_k=256))[0].best.runs
    for layer in (0, 1):
        entropy = line(pictures[f"entropy-digits-100-steps-256-{layer}"], ROOT)
        np.testing.assert_allclose(
            entropy["y"][-1], np.mean([run.last.layers[layer].entropy for run in runs]), **DIGITS
        )
        largest = pictures[f"largest-digits-100-steps-256-{layer}"]
        expected = math.exp(np.mean([math.log(run.last.layers[layer].largest or 0) for run in runs]))
        np.testing.assert_allclose(line(largest, ROOT)["y"][-1], expected, **DIGITS)
        assert largest.figure["layout"]["yaxis"]["type"] == "log"
        assert "additive" not in {trace.get("name") for trace in largest.figure["data"]}


def test_transplants(results: Results, pictures: dict[str, Any]) -> None:
    for name, xs in (("kappa", KAPPAS), ("logit", [8 * kappa for kappa in KAPPAS])):
        drawn = line(pictures[f"transplant-{name}-recall-100-steps-64"], ROOT)
        np.testing.assert_allclose(drawn["x"], xs, **DIGITS)
        np.testing.assert_allclose(drawn["y"], [0.1 + math.log(kappa) ** 2 for kappa in KAPPAS], **DIGITS)


def test_every_seed_is_shown(results: Results, pictures: dict[str, Any]) -> None:
    runs = of(results, task="recall", rule="dk", d_k=64)
    dots = [trace for trace in pictures["rates-recall-100-steps-256"].figure["data"] if trace["mode"] == "markers"]
    assert sum(len(dot["y"]) for dot in dots) == sum(
        not run.diverged for run in results.runs
        if run.spec.task == "recall" and run.spec.d_k == 256 and run.spec.rule != "additive"
    )  # fmt: skip
    thin = [trace for trace in pictures["curves-recall-100-steps-64"].figure["data"] if trace["line"]["width"] == 0.8]
    assert len(thin) == 3 * len(SEEDS)
    assert any(trace["y"] == short(runs[-1].along("loss")[1]) for trace in thin)


def test_a_ladder_of_learning_rates() -> None:
    rates = (1e-3, 3e-3, 1e-2, 0.1)
    ladder = [RunSpec("text", steps=20, learning_rate=rate, seed=seed) for rate in rates for seed in SEEDS]
    results = Results(stand_in.runs([*ladder, replace(ladder[0], rule="none", d_k=16)]))
    pictures = {picture.name: picture for _, group in chapters(results) for picture in group}
    for name in ("loss", "entropy"):
        picture = pictures[f"ladder-{name}-text-20-steps-64"]
        assert [trace["name"] for trace in picture.figure["data"] if trace.get("name")] == [
            f"{rate:g}" for rate in rates
        ]
        assert "Diverged: 3 of 12 runs." in picture.caption
    runs = results.select(learning_rate=3e-3)
    drawn = line(pictures["ladder-entropy-text-20-steps-64"], "0.003")["y"][-1]
    assert drawn == pytest.approx(np.mean([min(layer.entropy or 0 for layer in run.last.layers) for run in runs]))


def test_additive_stands_beside_dot_products_and_nowhere_else(pictures: dict[str, Any]) -> None:
    shown = {
        name
        for name, picture in pictures.items()
        if "additive" in {data.get("name") for data in picture.figure["data"]}
    }
    assert shown == {"additive-best-recall-100-steps", "additive-best-digits-100-steps"}
    picture = pictures["additive-best-recall-100-steps"]
    assert {trace["name"] for trace in picture.figure["data"] if "name" in trace} == {"additive", "none", ROOT}


def test_a_rate_of_its_own_for_w_q_and_w_k_is_a_line_of_its_own() -> None:
    matched = [replace(spec, qk_rate=spec.d_k**0.5) for spec in SPECS if spec.rule == "dk" and spec.task == "recall"]
    results = Results(stand_in.runs([*SPECS, *matched]))
    pictures = {picture.name: picture for _, group in chapters(results) for picture in group}
    picture = pictures["best-recall-100-steps"]
    special = line(picture, f"{OVER_D_K}, qk rate √d<sub>k</sub>")
    assert len(special["x"]) == len(SIZES)
    assert special["line"]["dash"] != line(picture, OVER_D_K)["line"]["dash"]
    assert special["line"]["color"] == line(picture, OVER_D_K)["line"]["color"]


def test_one_seed_and_one_rate_are_enough_for_a_page() -> None:
    results = Results(stand_in.runs([RunSpec(steps=10)]))
    (learning,) = chapters(results)[0][1]
    assert "One seed, so no interval." in learning.caption
    assert "loss" in render_training(results)


def test_runs_that_all_diverged_are_a_page_too() -> None:
    lost = Results(
        stand_in.runs([RunSpec(rule="none", steps=10, seed=seed, learning_rate=0.1 * seed) for seed in (1, 2)])
    )
    assert all(run.diverged for run in lost.runs)
    assert "Diverged: 1 of 1 runs of none" in render_training(lost)


def test_the_page_opens_offline_and_escapes(results: Results) -> None:
    text = render_training(results)
    page = Page(text)
    assert page.open == []
    assert len(set(page.ids)) == len(page.ids)
    assert {value for _, value in page.links if not value.startswith(("#", "data:"))} == set()
    assert {value[1:] for _, value in page.links if value.startswith("#")} <= set(page.ids)
    drawn = list(page.plots.values())
    check_figures(page)
    assert len(drawn) == sum(len(group) for _, group in chapters(results))
    assert "<small>" not in text
    assert "&lt;small&gt;" in text


def test_the_section_of_the_main_page(results: Results) -> None:
    page = Page(render((), trained=results))
    assert page.open == []
    assert "training" in page.ids
    assert "#training" in {value for _, value in page.links}
    assert "training" not in Page(render(())).ids


def test_the_text_of_chapters_holds_no_number() -> None:
    for chapter in CHAPTERS:
        assert re.findall(r"\d+", chapter.text.replace("1/d_k", "").replace("1/√d_k", "")) == []


def test_the_table_has_every_setting(results: Results) -> None:
    rows = numbers(results).count("<tr>") - 1
    assert rows == len({(s.task, s.rule, s.d_k, s.learning_rate) for s in SPECS})


# What belongs together.


def test_groups_are_what_differs_in_seed_and_rate_alone(results: Results) -> None:
    groups = grouped(results.runs)
    assert len(groups) == 2 * 4 * len(SIZES)
    assert all(len(group.runs) == len(SEEDS) * len(RATES) for group in groups)
    assert list(panels(groups)) == ["recall, 100 steps", "digits, 100 steps"]
    twice = Results((*results.runs, replace(results.runs[0], spec=replace(SPECS[0], transplant=(2.0,)))))
    assert len(grouped(twice.runs)) == len(groups)
    assert len(grouped(twice.runs)[0].at(RATES[0]).runs) == len(SEEDS)


def test_the_best_rate_is_not_one_at_which_a_seed_diverged() -> None:
    good = stand_in.runs([RunSpec(seed=seed, steps=10, learning_rate=1e-3) for seed in (0, 1)])
    fast = stand_in.runs([RunSpec(seed=seed, steps=10, learning_rate=1e-2) for seed in (0, 1)])
    (group,) = grouped([*good, *fast])
    assert group.best.rate == 1e-2
    (group,) = grouped([*good, fast[0], replace(fast[1], end="diverged")])
    assert group.best.rate == 1e-3
    assert group.diverged == 1
