"""One training run: the model starts where the theory says, tasks are what they claim to be, runs repeat and resume."""

import dataclasses
import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rootdk.errors import ArgumentError, ArgumentTypeError
from rootdk.lab.training import Moment, RunSpec
from rootdk.lab.training import train as training
from rootdk.lab.training.model import (
    _SPREAD_OF_TANH,
    IGNORED,
    TEST,
    VALID,
    AdditiveAttention,
    Transformer,
    projections,
    task_named,
)
from rootdk.lab.training.run import TASKS
from rootdk.lab.training.sweep import MATCHED_D_K, SIZES, plan
from rootdk.lab.training.train import ended, is_spike, look, looks_of, train

pytestmark = pytest.mark.usefixtures("one_thread")
SMALL: dict[str, Any] = {"task": "digits", "d_k": 8, "steps": 6, "width": 16}


def model_of(spec: RunSpec) -> tuple[Transformer, Any]:
    task = task_named(spec.task)
    torch.manual_seed(spec.seed)
    return Transformer(spec, task.embedding(spec.width), task.length, task.classes, task.causal), task


def held_out(task: Any) -> dict[str, Any]:
    return {part: task.held_out(part) for part in (VALID, TEST)}


@pytest.mark.parametrize("d_k", [16, 32, 256])
@pytest.mark.parametrize("rule", ["none", "sqrt"])
def test_logits_start_with_the_variance_of_the_rule(rule: str, d_k: int) -> None:
    """Behind a norm every q.k is a sum of d_k products of unit variance: rows differ by the luck of two weights."""
    spec = RunSpec(rule=rule, d_k=d_k, heads=2, width=64)
    seen = []
    for seed in range(4):
        model, task = model_of(dataclasses.replace(spec, seed=seed))
        layers = look(model, task, 0, None, held_out(task)).layers
        seen += [layer.std**2 for layer in layers if layer.std is not None]
    expected = d_k if rule == "none" else 1.0
    # Over weights the variance of a row has a relative deviation of about sqrt(2/d_k + 2/width) per head and layer.
    error = np.sqrt(2 / d_k + 2 / spec.width) / np.sqrt(len(seen))
    assert np.mean(seen) == pytest.approx(expected, rel=4 * error)


def test_d_k_changes_queries_and_keys_alone() -> None:
    shapes = {}
    for d_k in (8, 512):
        model, _ = model_of(RunSpec(d_k=d_k))
        own = {id(weight) for block in model.blocks for weight in projections(block)}
        shapes[d_k] = [tuple(w.shape) for w in model.parameters() if id(w) not in own]
        assert [tuple(w.shape) for w in projections(model.blocks[0])] == [(d_k, 32)] * 2
    assert shapes[8] == shapes[512]


def test_a_decoder_sees_no_future_and_an_encoder_does() -> None:
    model, task = model_of(RunSpec(task="text", d_k=8, width=16))
    inputs, _ = task.batch(0, 0)
    changed = inputs.clone()
    changed[:, -1] = (changed[:, -1] + 1) % 90
    assert torch.equal(model(inputs)[:, :-1], model(changed)[:, :-1])
    model.causal = False
    assert not torch.equal(model(inputs)[:, :-1], model(changed)[:, :-1])


def test_additive_attention_is_its_formula() -> None:
    torch.manual_seed(0)
    layer = AdditiveAttention(8, 2, 5)
    x = torch.randn(3, 6, 8)
    mask = torch.ones(6, 6, dtype=torch.bool).triu(1)
    q, k, v = (
        torch.nn.functional.linear(x.double(), w.double()).unflatten(-1, (2, -1))
        for w in (layer.q_proj_weight, layer.k_proj_weight, layer.v_proj_weight)
    )
    scores = torch.einsum("bqkhd,hd->bhqk", torch.tanh(q[:, :, None] + k[:, None]), layer.direction.double())
    weights = scores.masked_fill(mask, -torch.inf).softmax(-1)
    expected = torch.einsum("bhqk,bkhd->bqhd", weights, v).flatten(2) @ layer.out_proj.weight.double().T
    got = layer(x, x, x, attn_mask=mask)[0]
    torch.testing.assert_close(got.double(), expected, rtol=1e-5, atol=1e-6)
    layer.measure = True
    layer(x, x, x, attn_mask=mask)
    entropy = -(weights * weights.clamp_min(1e-30).log()).sum(-1)
    torch.testing.assert_close(layer.last_reading.entropy.double(), entropy, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("size", "variance"), [(1.0, 1.0), (8.0, 64.0)])
def test_additive_scores_start_with_the_variance_of_a_dot_product(size: float, variance: float) -> None:
    """Inside a row, over seeds: that of q.k/sqrt(d_k), and with v larger by sqrt(d_k) that of q.k."""
    seen = []
    for seed in range(6):
        model, task = model_of(RunSpec(rule="additive", d_k=64, v_size=size, seed=seed))
        seen += [layer.std**2 for layer in look(model, task, 0, None, held_out(task)).layers if layer.std is not None]
    error = np.sqrt(2 / 64 + 2 / 32) / np.sqrt(len(seen))
    assert np.mean(seen) == pytest.approx(variance, rel=4 * error)


def test_the_spread_of_tanh_is_its_integral() -> None:
    x, weight = np.polynomial.hermite_e.hermegauss(120)
    weight = weight / weight.sum()
    tanh = np.tanh(x[:, None] + x)
    spread = weight @ (tanh**2 @ weight - (tanh @ weight) ** 2)
    assert spread == pytest.approx(_SPREAD_OF_TANH, rel=1e-6)


def test_recall_asks_for_what_was_shown() -> None:
    inputs, targets = task_named("recall").batch(3, 7)
    names, values = inputs[..., 0], inputs[..., 1]
    asked = values == 0
    assert torch.equal(targets != IGNORED, asked)
    for row in range(len(inputs)):
        shown = dict(zip(names[row][~asked[row]].tolist(), values[row][~asked[row]].tolist(), strict=True))
        assert [shown[name] for name in names[row][asked[row]].tolist()] == targets[row][asked[row]].tolist()


def test_text_is_python_and_its_target_the_next_character() -> None:
    task = task_named("text")
    inputs, targets = task.batch(0, 0)
    assert torch.equal(inputs[:, 1:], targets[:, :-1])
    text = "".join(chr(c + 32) if c < 95 else "\n" for c in torch.cat([b[0].flatten() for b in task.held_out()]))
    assert "self" in text
    assert "return" in text


@pytest.mark.parametrize("name", TASKS)
def test_batches_depend_on_seed_and_step_alone(name: str) -> None:
    task = task_named(name)
    assert all(torch.equal(a, b) for a, b in zip(task.batch(1, 5), task.batch(1, 5), strict=True))
    assert not torch.equal(task.batch(1, 5)[0], task.batch(1, 6)[0])
    assert not torch.equal(task.batch(1, 5)[0], task.batch(2, 5)[0])
    assert torch.equal(task.held_out()[0][0], task.held_out()[0][0])


def test_digits_that_are_held_out_are_never_trained_on() -> None:
    task = task_named("digits")
    chosen_by, held = ({row.numpy().tobytes() for row in task.held_out(part)[0][0]} for part in (VALID, TEST))
    seen = {row.numpy().tobytes() for step in range(60) for row in task.batch(0, step)[0]}
    assert len(seen) > 500
    # Two images of the set may be equal to the last pixel; none is here.
    assert len(held) > 200
    assert not held & seen
    assert not chosen_by & seen
    assert not chosen_by & held


def test_the_same_spec_gives_the_same_run() -> None:
    assert train(RunSpec(**SMALL)) == train(RunSpec(**SMALL))
    assert train(RunSpec(**SMALL)) != train(RunSpec(**SMALL, seed=1))


class StopHereError(Exception):
    """The run is interrupted."""


def test_an_interrupted_run_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = train(RunSpec(**SMALL))
    monkeypatch.setattr(training, "_SECONDS_BETWEEN_STATES", 0.0)
    keep, steps = tmp_path / "state", []

    def stop(step: int) -> None:
        if step == 4:
            raise StopHereError

    with pytest.raises(StopHereError):
        train(RunSpec(**SMALL), keep=keep, progress=stop)
    assert keep.exists()
    assert train(RunSpec(**SMALL), keep=keep, progress=steps.append) == whole
    assert steps[0] == 4  # the state of step 3 was the last to be written: step 4 is done again
    assert steps[-1] == 6


def test_a_run_whose_loss_is_no_number_ends_there_and_says_so() -> None:
    run = train(RunSpec(**{**SMALL, "steps": 40}, optimizer="sgd", learning_rate=1e8))
    assert run.diverged
    assert run.last.step < 40
    assert run.last.train_loss is None


def test_a_diverged_run_that_was_interrupted_comes_out_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = RunSpec(**{**SMALL, "steps": 40}, optimizer="sgd", learning_rate=1e8)
    whole = train(spec)
    monkeypatch.setattr(training, "_SECONDS_BETWEEN_STATES", 0.0)
    monkeypatch.setattr(training, "Run", stop_at_the_end(training.Run))
    with pytest.raises(StopHereError):
        train(spec, keep=tmp_path / "state")
    monkeypatch.undo()
    assert train(spec, keep=tmp_path / "state") == whole


def stop_at_the_end(run: Any) -> Any:
    """Run, but for the last one of all, which is made with six arguments."""

    class Stopping:
        from_dict = run.from_dict

        def __new__(cls, *given: Any, **named: Any) -> Any:
            if len(given) == 6:
                raise StopHereError
            return run(*given, **named)

    return Stopping


def moment(step: int, valid_loss: float | None, valid_accuracy: float = 0.0) -> Moment:
    """The test set says nothing: no run may end by it."""
    return Moment(step, None, None, None, valid_loss, valid_accuracy, ())


def test_a_run_ends_when_it_has_learned_at_three_looks_in_a_row() -> None:
    spec = RunSpec(steps=1000, stop="learned")
    learned = [moment(step, 0.1, right) for step, right in ((0, 0.1), (10, 0.995), (20, 0.98), (30, 0.99), (40, 1.0))]
    assert ended(spec, learned) == ""
    assert ended(spec, [*learned, moment(50, 0.1, 0.99)]) == "learned"
    assert ended(dataclasses.replace(spec, stop="budget"), [*learned, moment(50, 0.1, 0.99)]) == ""
    assert ended(spec, [moment(1000, 2.0)]) == "budget"


def test_a_run_ends_when_the_second_half_of_its_steps_brought_nothing() -> None:
    spec = RunSpec(steps=1000, stop="flat")
    flat = [moment(step, loss) for step, loss in ((0, 3.0), (50, 1.0), (99, 0.995))]
    assert ended(spec, flat) == ""  # too few steps to tell
    assert ended(spec, [*flat, moment(120, 0.992)]) == "flat"
    assert ended(spec, [*flat, moment(120, 0.98)]) == ""
    assert ended(dataclasses.replace(spec, stop="learned"), [*flat, moment(120, 0.992)]) == ""


def test_a_run_that_has_learned_stops_there_with_a_look_into_its_layers() -> None:
    spec = RunSpec(d_k=16, learning_rate=1e-2, steps=1500, stop="learned")
    run = train(spec)
    assert run.end == "learned"
    assert run.last.step < 500
    assert min(point.valid_accuracy or 0.0 for point in run.moments[-3:]) >= 0.99
    assert len(run.last.layers) == len(run.moments[0].layers) == 2
    assert {bool(point.layers) for point in run.moments} == {True, False}


def test_looks_are_a_tenth_apart() -> None:
    for steps in (1, 7, 300, 1500):
        looks = looks_of(steps)
        assert (looks[0], looks[-1]) == (0, steps)
        assert looks == sorted(set(looks))
        assert all(b - a <= max(0.1 * a, 0.01 * steps, 2) for a, b in itertools.pairwise(looks))


def test_a_spike_stands_out_of_fifty_steps() -> None:
    before = [1.0, 1.2] * 25  # mean 1.1, deviation .1
    assert is_spike(1.71, before)
    assert not is_spike(1.69, before)
    assert is_spike(math.nan, before)
    assert not is_spike(9.0, before[1:])


def test_adam_does_not_see_the_size_of_a_gradient_and_sgd_does() -> None:
    """Gradients of W_q and W_k times 16: Adam divides them by their own size, up to its epsilon."""
    for optimizer, rate, alike in (("adam", 1e-3, True), ("sgd", 0.1, False)):
        spec = RunSpec(**{**SMALL, "steps": 20}, optimizer=optimizer, learning_rate=rate)
        plain, larger = (train(dataclasses.replace(spec, qk_gradient=factor)).last.loss for factor in (1.0, 16.0))
        assert (plain == pytest.approx(larger, rel=1e-3)) == alike


def test_warm_up_takes_small_steps_first() -> None:
    spec = RunSpec(**{**SMALL, "steps": 1}, optimizer="sgd", learning_rate=0.1)
    warm = train(dataclasses.replace(spec, warmup=10, learning_rate=1.0))
    assert warm.last.loss == train(spec).last.loss  # a tenth of ten times the rate
    assert warm.last.loss != train(dataclasses.replace(spec, learning_rate=1.0)).last.loss


def test_normalised_queries_and_keys_do_not_depend_on_the_size_of_their_weights() -> None:
    logits = []
    for size in (1.0, 7.0):
        model, task = model_of(RunSpec(**SMALL, qk_norm=True, qk_size=size))
        logits.append(model(task.batch(0, 0)[0]))
    torch.testing.assert_close(*logits, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("optimizer", "rate", "qk_rate"), [("sgd", 0.1, MATCHED_D_K**0.5), ("adam", 1e-3, MATCHED_D_K**0.25)]
)
def test_one_over_d_k_is_one_over_its_root_with_another_start_and_rate(
    optimizer: str, rate: float, qk_rate: float
) -> None:
    """z = q.k/d = (q d^-1/4).(k d^-1/4)/sqrt(d): the rules differ in how large W_q and W_k start and how far they move.

    With d_k = 256 every factor is a power of two, so that not one digit changes under SGD; Adam has an epsilon.
    """
    same: dict[str, Any] = {**SMALL, "d_k": MATCHED_D_K, "optimizer": optimizer, "learning_rate": rate, "steps": 10}
    root = train(RunSpec(rule="sqrt", **same))
    matched = train(RunSpec(rule="dk", qk_rate=qk_rate, qk_size=MATCHED_D_K**0.25, **same))
    only_rate = train(RunSpec(rule="dk", qk_rate=qk_rate, **same))
    tolerance = 0.0 if optimizer == "sgd" else 1e-3
    for a, b in zip(root.moments, matched.moments, strict=True):
        assert b.loss == pytest.approx(a.loss, rel=tolerance)
    assert only_rate.last.loss != pytest.approx(root.last.loss, rel=1e-3)


def test_transplant_sets_the_size_of_queries_and_keys() -> None:
    """With sqrt(kappa) x/rms(x) every |q| is sqrt(kappa d_k), so that |z| <= scale kappa d_k, and kappa is a factor."""
    run = train(RunSpec(**SMALL, layers=1, transplant=(0.25, 1.0, 64.0)))
    largest = [row[2] for row in run.transplant]
    assert largest[1] == pytest.approx(4 * largest[0], rel=1e-4)
    assert largest[2] == pytest.approx(64 * largest[1], rel=1e-4)
    assert all(row <= kappa * 8**0.5 * (1 + 1e-5) for (kappa, _, row) in run.transplant)


@pytest.mark.parametrize("size", SIZES)
def test_plans_have_seeds_enough_and_no_run_twice(size: str) -> None:
    specs = plan(size)
    assert len(set(specs)) == len(specs)
    seeds: dict[RunSpec, set[int]] = {}
    for spec in specs:
        seeds.setdefault(dataclasses.replace(spec, seed=0), set()).add(spec.seed)
    assert min(map(len, seeds.values())) >= 3
    assert {spec.task for spec in specs} == set(TASKS)


@pytest.mark.parametrize("size", SIZES)
def test_of_every_setting_a_plan_has_as_many_seeds_at_each_rate(size: str) -> None:
    """Or a rate could be chosen by the luck of its seeds; where a verdict rests on them, eight."""
    seeds: dict[RunSpec, dict[float, set[int]]] = {}
    for spec in plan(size):
        arm = seeds.setdefault(dataclasses.replace(spec, seed=0, learning_rate=1.0), {})
        arm.setdefault(spec.learning_rate, set()).add(spec.seed)
    for arm, by_rate in seeds.items():
        assert len(set(map(frozenset, by_rate.values()))) == 1
        if size == "default" and not arm.warmup and arm.width == 32:
            assert len(next(iter(by_rate.values()))) >= 8


def test_a_plan_that_is_unknown_is_an_error() -> None:
    with pytest.raises(ArgumentError, match=r"size: must be one of 'quick', 'default', got 'huge'"):
        plan("huge")
    with pytest.raises(ArgumentError, match=r"tasks: must be among .* got 'chess'"):
        plan("quick", ["chess"])


@pytest.mark.parametrize(
    ("field", "value", "error", "says"),
    [
        ("task", "chess", ArgumentError, "task: must be one of"),
        ("rule", "cube", ArgumentError, "rule: must be one of the names"),
        ("optimizer", "lion", ArgumentError, "optimizer: must be one of"),
        ("d_k", 0, ArgumentError, "d_k: must be at least 1, got 0"),
        ("d_k", 1.5, ArgumentTypeError, "d_k: must be a whole number"),
        ("seed", -1, ArgumentError, "seed: must be at least 0"),
        ("heads", 3, ArgumentError, "heads: must divide width = 32, got 3"),
        ("learning_rate", float("nan"), ArgumentError, "learning_rate: must be positive"),
        ("qk_rate", 0.0, ArgumentError, "qk_rate: must be positive"),
        ("learning_rate", "fast", ArgumentTypeError, "learning_rate: must be a number"),
        ("stop", "soon", ArgumentError, "stop: must be one of 'budget', 'learned', 'flat', got 'soon'"),
        ("qk_norm", 2, ArgumentError, "qk_norm: must be one of False, True, got 2"),
        ("qk_gradient", 0.0, ArgumentError, "qk_gradient: must be positive"),
        ("warmup", -1, ArgumentError, "warmup: must be at least 0"),
        ("v_size", 2.0, ArgumentError, "v_size: must be 1 where there is no v, got 2.0 with rule 'sqrt'"),
        ("transplant", (1.0, -1.0), ArgumentError, "transplant: must be positive"),
        ("transplant", 3, ArgumentTypeError, "transplant: must be a list"),
        ("colour", 1, ArgumentError, "spec: must be one of"),
    ],
)
def test_a_bad_spec_is_named(field: str, value: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        RunSpec.from_dict({field: value})


def test_a_spec_goes_to_json_and_back() -> None:
    spec = RunSpec(rule="dk", d_k=3, transplant=(1.0, 10.0))
    assert RunSpec.from_dict(spec.to_dict()) == spec
