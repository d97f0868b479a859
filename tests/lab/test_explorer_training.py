"""The chapter of training curves, on invented runs: its numbers and lines are those of the runs."""

import contextlib
import io
import json
from dataclasses import replace

import pytest
import training_stand_in as stand_in

from rootdk.errors import ArgumentError
from rootdk.lab.explorer.chapter import Chapter
from rootdk.lab.explorer.chapters.training import training_chapter
from rootdk.lab.explorer.values import read_values
from rootdk.lab.report.training_pictures import slug
from rootdk.lab.training import Results, RunSpec, interval

RATES, SEEDS = (1e-3, 1e-2), (0, 1, 2)
SPECS = [
    RunSpec(task=task, rule=rule, d_k=d_k, learning_rate=rate, seed=seed, steps=100)
    for task, sizes in (("recall", (16, 64, 256)), ("digits", (16, 64)))
    for rule in ("none", "sqrt", "dk")
    for d_k in sizes
    for rate in RATES
    for seed in SEEDS
]
READ = """\
import training_stand_in
import test_explorer_training

results = test_explorer_training.made()"""


def made() -> Results:
    return Results.of(stand_in.runs(SPECS))


@pytest.fixture(scope="module")
def results() -> Results:
    return made()


@pytest.fixture(scope="module")
def chapter(results: Results) -> Chapter:
    return training_chapter(results, READ)


def test_the_choices_are_what_was_trained(chapter: Chapter) -> None:
    panel, d_k = chapter.controls
    assert panel.labels == ("recall, 100 steps", "digits, 100 steps")
    assert panel.default == "recall-100-steps"
    assert d_k.choices == ("16", "64", "256")
    assert d_k.default == "64"
    json.dumps(chapter.to_dict(), allow_nan=False)


@pytest.mark.parametrize("raw", [{}, {"d_k": "256"}, {"panel": "digits-100-steps", "d_k": "16"}])
def test_numbers_are_those_of_the_runs_and_of_the_lines(
    chapter: Chapter, results: Results, raw: dict[str, str]
) -> None:
    values = read_values(chapter, raw)
    shown = chapter.compute(values)
    json.dumps(shown.to_dict(), allow_nan=False)
    task = values["panel"].partition("-")[0]
    assert [number.id for number in shown.numbers] == ["loss_none", "loss_sqrt", "loss_dk"]
    for number in shown.numbers:
        rule = number.id.removeprefix("loss_")
        ends = [
            interval(None if run.diverged else run.last.loss for run in runs)
            for rate in RATES
            if (runs := results.select(task=task, rule=rule, d_k=int(values["d_k"]), learning_rate=rate))
        ]
        assert number.value == min(line_end.mean for line_end in ends)
    assert all(figure.text for figure in shown.figures)
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(shown.python, "<python>", "exec"), {})  # the chapter's own lines
    printed = dict(line.split(" ", 1) for line in out.getvalue().splitlines())
    assert {number.id: number.value for number in shown.numbers} == {
        name: float(text) for name, text in printed.items()
    }


def test_a_d_k_that_the_task_was_not_trained_with_is_refused(chapter: Chapter) -> None:
    with pytest.raises(ArgumentError, match="d_k: must be one that was trained with, 16, 64 for 'digits, 100 steps'"):
        chapter.compute(read_values(chapter, {"panel": "digits-100-steps", "d_k": "256"}))


def test_runs_that_diverged_say_so(results: Results) -> None:
    lost = [replace(run, end="diverged") if run.spec.rule == "none" else run for run in results.runs]
    chapter = training_chapter(Results.of(lost))
    shown = chapter.compute(read_values(chapter, {}))
    assert {number.id: number.text for number in shown.numbers}["loss_none"] == "diverged"
    assert shown.to_dict()["numbers"][0]["value"] is None


def test_slugs_tell_panels_apart(chapter: Chapter) -> None:
    assert len(set(chapter.controls[0].choices)) == len(chapter.controls[0].choices)
    assert slug("text, 300 steps, sgd") == "text-300-steps-sgd"
