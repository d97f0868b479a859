"""The page of a training study in headless Chromium: it opens offline, fits, and draws every figure."""

from pathlib import Path
from typing import Any

import pytest
import training_stand_in as stand_in
from visit import assert_opens_and_fits

from rootdk.files import write_atomically
from rootdk.lab.report import render_training
from rootdk.lab.training import Results, RunSpec

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
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
def test_opens_offline_and_fits(browser: Any, report: Path, tmp_path: Path, width: int, scheme: str) -> None:
    page = assert_opens_and_fits(browser, report, width, scheme, tmp_path, "training", least=21)
    assert page.evaluate("[...document.querySelectorAll('.plot')].every(plot => plot.querySelector('svg .trace'))")
