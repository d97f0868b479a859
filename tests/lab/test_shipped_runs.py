"""The training runs that come with the package: complete, come out again from their spec, and say what the docs say."""

import importlib.util
import json
import math
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from rootdk.errors import RootdkError
from rootdk.lab.training import Outcome, Results, Run, RunSpec, grouped, shipped
from rootdk.lab.training.results import setting
from rootdk.lab.training.sweep import plan

DOCS = Path(__file__).parents[2] / "docs"


def test_they_are_runs_of_the_default_plan() -> None:
    """What is not there yet is listed in docs/training.md, which a test below holds to it."""
    specs = [run.spec for run in shipped().runs]
    assert set(specs) <= set(plan("default"))
    assert len(set(specs)) == len(specs)
    assert {"rootdk", "torch", "numpy", "python", "size", "kernel", "cpus"} <= set(shipped().about)
    assert shipped().about["size"] == "default"


def test_every_arm_has_the_same_seeds_at_each_of_its_rates() -> None:
    for group in grouped(shipped().runs):
        assert len({tuple(run.spec.seed for run in outcome.runs) for outcome in group.outcomes}) == 1, group.line


def test_they_are_small() -> None:
    assert files("rootdk.lab.training").joinpath("shipped.json.gz").stat().st_size < 1_000_000  # type: ignore[attr-defined]


def test_every_run_is_whole() -> None:
    for run in shipped().runs:
        assert run.moments[0].step == 0
        assert run.last.step == run.spec.steps if run.end == "budget" else run.last.step <= run.spec.steps
        assert run.end in {"budget", "diverged", run.spec.stop}
        assert len(run.moments[0].layers) == len(run.last.layers) == run.spec.layers
        assert len(run.transplant) == len(run.spec.transplant)
        assert run.moments[0].loss is not None


def test_files_of_version_0_2_are_read() -> None:
    """They had one part of the data that was not trained on, and did not count spikes."""
    plain = shipped().runs[0].to_dict()
    inside = plain.pop("inside")
    old = {name: plain[name] for name in ("kind", "seconds", "transplant", "layers")}
    old |= {name: [plain[name][at] for at in inside] for name in ("step", "train_loss", "loss", "accuracy")}
    known = ("task", "rule", "d_k", "optimizer", "learning_rate", "qk_rate", "qk_size", "seed", "steps", "layers",
             "width", "heads", "transplant")  # fmt: skip
    old |= {"spec": {name: plain["spec"][name] for name in known}, "diverged": True}
    run = Run.from_dict(old)
    assert run.diverged
    assert [moment.valid_loss for moment in run.moments] == old["loss"]
    assert run.moments[0].layers == shipped().runs[0].moments[0].layers


def test_json_goes_both_ways() -> None:
    few = Results.of(shipped().runs[:3], **shipped().about)
    assert Results.from_dict(json.loads(few.to_json())) == few
    assert Results.from_dict(few.to_dict()) == few
    broken = few.to_dict()
    del broken["runs"][0]["loss"]
    with pytest.raises(RootdkError, match="loss"):
        Results.from_dict(broken)


def again(spec: RunSpec) -> tuple[Run, Run, list[float]]:
    """The run done anew, the shipped one, and the losses of all its seeds."""
    from rootdk.lab.training.train import train

    (old,) = [run for run in shipped().runs if run.spec == spec]
    seeds = [run for run in shipped().runs if replace(run.spec, seed=0) == replace(spec, seed=0)]
    return train(spec), old, [run.last.loss for run in seeds if run.last.loss is not None]


def within(new: Run, losses: list[float]) -> bool:
    """Whether its loss may be one more of these: Student's interval for one more draw, not for the mean."""
    from scipy.stats import t

    half = t.ppf(0.995, len(losses) - 1) * np.std(losses, ddof=1) * math.sqrt(1 + 1 / len(losses))
    return new.last.loss is not None and abs(new.last.loss - float(np.mean(losses))) <= half


def spec_of(**wanted: object) -> RunSpec:
    usual = {"qk_rate": 1.0, "qk_size": 1.0, "qk_gradient": 1.0, "qk_norm": False, "warmup": 0, "width": 32}
    (spec,) = {run.spec for run in shipped().select(seed=0, **usual, **wanted)}
    return spec


@pytest.mark.usefixtures("one_thread")
def test_a_run_comes_out_again() -> None:
    """Other processors round otherwise, and training makes much of little: so not the digits, but the interval."""
    new, old, losses = again(spec_of(task="digits", rule="sqrt", d_k=16, optimizer="adam", learning_rate=1e-3))
    # Before the first step nothing has been made much of.
    assert new.moments[0].loss == pytest.approx(old.moments[0].loss, rel=1e-4)
    assert within(new, losses)


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("task", ["recall", "digits"])
@pytest.mark.parametrize("rule", ["none", "sqrt", "dk"])
def test_a_point_of_every_task_comes_out_again(task: str, rule: str) -> None:
    new, old, losses = again(spec_of(task=task, rule=rule, d_k=16, learning_rate=3e-3))
    assert within(new, losses)
    # How it begins follows from the weights and the batch, on any machine.
    assert new.moments[0].loss == pytest.approx(old.moments[0].loss, rel=1e-4)
    for a, b in zip(new.moments[0].layers, old.moments[0].layers, strict=True):
        assert a.entropy == pytest.approx(b.entropy, rel=1e-2)


@pytest.fixture(scope="module")
def maker() -> ModuleType:
    spec = importlib.util.spec_from_file_location("training_text", DOCS / "training.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_text_is_what_the_runs_say(maker: ModuleType) -> None:
    assert (DOCS / "training.md").read_text("utf-8") == maker.text(), "run: python docs/training.py"


def steps(rule: str, d_k: int, **more: object) -> Outcome:
    return setting(shipped(), task="recall", rule=rule, d_k=d_k, **more).best


def test_without_the_scale_it_is_late_and_not_dead() -> None:
    for d_k in (16, 256):
        without, scaled = steps("none", d_k), steps("sqrt", d_k)
        assert min(len(without.runs), len(scaled.runs)) >= 8
        assert scaled.learned == len(scaled.runs)
        assert (without.median_steps or math.inf) > 1.5 * (scaled.median_steps or math.inf)
    assert steps("none", 256).learned >= 5


def test_the_refuted_sentences_are_gone() -> None:
    """Their numbers and words, wherever people read them."""
    home = DOCS.parent
    readable = [*DOCS.rglob("*.md"), home / "README.md", *(home / "src" / "rootdk" / "lab").rglob("*.py")]
    for path in readable:
        text = " ".join(path.read_text("utf-8").split())
        for refuted in ("does not learn at all", "nothing is learned", "not because its learning rate was a bad one",
                        "it fails at large d_k"):  # fmt: skip
            assert refuted not in text, path


def test_one_over_d_k_bears_higher_rates_and_is_late_at_low_ones() -> None:
    root, over = (setting(shipped(), task="recall", rule=rule, d_k=256) for rule in ("sqrt", "dk"))
    assert (over.at(1e-3).median_steps or math.inf) > 1.5 * (root.at(1e-3).median_steps or math.inf)
    assert over.at(1e-2).learned > root.at(1e-2).learned


def has(**spec: object) -> bool:
    return any(all(getattr(run.spec, name) == value for name, value in spec.items()) for run in shipped().runs)


def test_what_the_text_says_of_causes(maker: ModuleType) -> None:
    if "## Why 1/d_k is late" not in maker.text():
        assert not (has(qk_gradient=16.0) and has(qk_rate=4.0))
        return
    usual = {"rule": "dk", "d_k": 256}
    larger = maker.slower(shipped(), {**usual, "qk_gradient": 16.0}, usual, 1e-3)
    faster = maker.slower(shipped(), {**usual, "qk_rate": 4.0}, usual, 1e-3)
    assert abs(larger.value) < 0.1  # next to nothing
    # Most of the lag is gone.
    root = maker.slower(shipped(), {"rule": "sqrt", "d_k": 256}, usual, 1e-3)
    assert faster.high < 0.5 * root.value < 0


def test_what_the_text_says_of_additive_attention(maker: ModuleType) -> None:
    dot = {"task": "digits", "rule": "none", "d_k": 128}
    usual = maker.behind(shipped(), dot, {"task": "digits", "rule": "additive", "d_k": 128})
    same = maker.behind(shipped(), dot, {"task": "digits", "rule": "additive", "d_k": 128, "v_size": 128**0.5})
    assert usual.low > 0
    assert same.low < 0.05  # no longer clearly ahead
