"""The claims that training decides: made-up runs lead to every verdict, so that the shipped ones could have, too."""

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

from rootdk.errors import ArgumentError
from rootdk.lab.checks import CONDITIONAL, FAILS, HOLDS, LEDGER, NOT_REPRODUCED, UNDECIDED
from rootdk.lab.training import Interval, Layer, Moment, Results, Run, RunSpec, grouped, interval
from rootdk.lab.training.results import best, difference, lost, outcomes, widths
from rootdk.lab.training.run import ADDITIVE, TASKS

START = 4.0
Loss = Callable[[RunSpec], float]


def made(spec: RunSpec, loss: float, entropy: float = 0.5, transplant: Any = (), accuracy: float = 0.5) -> Run:
    """A run that went from START to `loss`, give or take a little by its seed."""
    here = loss + 0.001 * (spec.seed - 1)
    layer = Layer(entropy, 0.0, 0.5, 1.0, 5.0, 1.0, 1.0)
    moments = tuple(Moment(step, value, value, accuracy, (layer,)) for step, value in ((0, START), (10, here)))
    return Run(spec, moments, transplant=transplant)


def study(
    loss: Loss, rules: tuple[str, ...] = ("none", "sqrt", ADDITIVE), rates: tuple[float, ...] = (1e-3,)
) -> Results:
    specs = [
        RunSpec(task=task, rule=rule, d_k=d_k, learning_rate=rate, seed=seed)
        for task, rule, d_k, rate, seed in product(TASKS, rules, (16, 64, 512), rates, range(3))
    ]
    return Results.of(made(spec, loss(spec)) for spec in specs)


def gap(by_d_k: dict[int, float]) -> Results:
    """Without the scale the loss is so much higher."""
    return study(lambda spec: 1.0 + (by_d_k[spec.d_k] if spec.rule == "none" else 0.0))


def test_interval_is_students() -> None:
    from scipy import stats

    rng = np.random.default_rng(0)
    values = rng.normal(size=5).tolist()
    low, high = stats.t.interval(0.95, 4, np.mean(values), stats.sem(values))
    found = interval(values)
    assert (found.mean - (found.half or 0), found.mean + (found.half or 0)) == pytest.approx((low, high))
    assert found.error == pytest.approx(stats.sem(values))


def test_one_value_says_nothing_about_others_and_a_diverged_run_is_not_left_out() -> None:
    assert interval([1.0]) == Interval(1.0, None, 1)
    assert interval([1.0]).error == math.inf
    assert interval([1.0, None]).mean == math.inf


def test_a_run_that_diverged_has_an_infinite_loss_and_nothing_right() -> None:
    spec = RunSpec(task="text", d_k=16)
    runs = [made(replace(spec, seed=seed), 1.0, accuracy=0.8) for seed in (0, 1)]
    (group,) = grouped([runs[0], replace(runs[1], diverged=True)])
    assert group.best.loss.mean == math.inf
    assert group.best.accuracy.mean == pytest.approx(0.4)
    assert group.best.diverged == 1


def test_differences_carry_both_errors() -> None:
    a, b = interval([1.0, 2.0, 3.0]), interval([0.0, 0.0, 3.0])
    value, error = difference(a, b)
    assert value == 1.0
    assert error == pytest.approx(math.hypot(a.error, b.error))


def test_the_best_learning_rate_is_chosen_for_every_rule_alike() -> None:
    results = study(lambda spec: 1.0 + (spec.learning_rate == 1e-3) * (spec.rule == "sqrt"), rates=(1e-3, 1e-2))
    assert best(results, task="text", rule="sqrt", d_k=64).rate == 1e-2
    assert [outcome.rate for outcome in outcomes(results, task="text", rule="none", d_k=64)] == [1e-3, 1e-2]
    worse, better = outcomes(results, task="text", rule="sqrt", d_k=64)
    assert lost(worse, better)[0] == pytest.approx(1 / 3)
    assert lost(worse, better)[1] == pytest.approx(difference(worse.loss, better.loss)[1] / 3)


def test_runs_that_are_missing_are_named() -> None:
    results = gap({16: 0.0, 64: 1.0, 512: 2.0})
    with pytest.raises(ArgumentError, match=r"results: must hold at least two runs with .*rule = dk"):
        best(results, task="text", rule="dk", d_k=16)
    with pytest.raises(ArgumentError, match=r"results: must hold text with rule 'dk' at two d_k"):
        widths(results, "text", "dk")


@pytest.mark.parametrize(
    ("by_d_k", "verdict"),
    [
        ({16: 0.1, 64: 0.5, 512: 2.0}, HOLDS),
        ({16: 0.0, 64: 0.5, 512: 2.0}, CONDITIONAL),
        ({16: 0.0, 64: 0.0, 512: 0.0}, UNDECIDED),
        ({16: 1.0, 64: 1.0, 512: 1.0}, UNDECIDED),  # slower, but no more so for larger d_k
        ({16: 0.0, 64: -0.5, 512: -1.0}, FAILS),
    ],
)
def test_whether_learning_slows(by_d_k: dict[int, float], verdict: str) -> None:
    assert LEDGER[16].check(results=gap(by_d_k)).verdict == verdict


def test_whether_it_works_for_every_d_k() -> None:
    def even(_spec: RunSpec) -> float:
        return 1.0

    def fast_fails(spec: RunSpec) -> float:
        return 3.5 if spec.d_k == 512 and spec.learning_rate == 1e-2 else 1.0

    def wide_fails(spec: RunSpec) -> float:
        return 3.5 if spec.d_k == 512 else 1.0

    check = LEDGER[18].check
    rates = (1e-3, 1e-2)
    assert check(results=study(even, rates=rates)).verdict == HOLDS
    limited = check(results=study(fast_fails, rates=rates))
    assert limited.verdict == CONDITIONAL
    assert "the highest that still learns is 0.01 at d_k = 16 and 0.001 at 512" in limited.condition
    assert check(results=study(wide_fails, rates=rates)).verdict == FAILS
    # The same runs, under a rule that does not keep the start alike.
    assert check(results=study(even, rates=rates), exponent=0.0).verdict == FAILS


@pytest.mark.parametrize(
    ("small", "large", "verdict"), [(0.0, 0.3, HOLDS), (0.0, 0.0, UNDECIDED), (0.5, 0.6, FAILS), (0.05, -0.3, FAILS)]
)
def test_additive_against_dot_product(small: float, large: float, verdict: str) -> None:
    worse = {16: small, 64: 0.1, 512: large}
    results = study(lambda spec: 1.0 + (worse[spec.d_k] if spec.rule == "none" else 0.0))
    assert LEDGER[21].check(results=results).verdict == verdict


def transplants(at_sixty: float, at_thousands: float, uniform: float) -> Results:
    curve = ((1e-3, uniform, 0.01), (1.0, 1.0, 6.0), (10.0, at_sixty, 60.0), (1e3, at_thousands, 6e3))
    specs = [RunSpec(task="text", seed=seed, transplant=(1.0,)) for seed in range(3)]
    return Results.of(
        made(spec, 1.0, transplant=tuple((k, loss + 0.001 * (spec.seed - 1), z) for k, loss, z in curve))
        for spec in specs
    )


@pytest.mark.parametrize(
    ("curve", "verdict", "says"),
    [
        ((1.1, 3.0, 2.0), HOLDS, ""),
        ((1.1, 1.3, 2.0), NOT_REPRODUCED, "30% of what attention is worth"),
        ((2.5, 3.0, 2.0), CONDITIONAL, "75% of the rise is there at logits under 100"),
        ((1.0, 1.0, 2.0), NOT_REPRODUCED, ""),
    ],
)
def test_whether_large_logits_break_the_loss(curve: tuple[float, float, float], verdict: str, says: str) -> None:
    record = LEDGER[22].check(results=transplants(*curve))
    assert record.verdict == verdict
    assert says in record.condition


def test_only_thousands_count_and_not_what_comes_after() -> None:
    """A curve that goes on rising past ten thousand: that is shown, and does not decide."""
    runs = [replace(run, transplant=(*run.transplant, (1e5, 9.0, 6e5))) for run in transplants(1.1, 1.3, 2.0).runs]
    record = LEDGER[22].check(results=Results.of(runs))
    assert record.verdict == NOT_REPRODUCED
    shown = {comparison.quantity: comparison.measured for comparison in record.evidence}
    assert shown["d_k = 64: loss risen at logits of 1e3 to 1e4"] == pytest.approx(0.3)
    assert shown["d_k = 64: loss risen at the largest kappa"] == pytest.approx(8.0, abs=0.01)


def test_runs_without_a_transplant_are_not_asked_about_it() -> None:
    with pytest.raises(ArgumentError, match=r"results: must hold runs of text .* and a transplant, got none"):
        LEDGER[22].check(results=gap({16: 0.0, 64: 1.0, 512: 2.0}))
    both = Results.of([*transplants(1.1, 3.0, 2.0).runs, *gap({16: 0.0, 64: 1.0, 512: 2.0}).select(d_k=16)])
    assert LEDGER[22].check(results=both).verdict == HOLDS


def ladder(entropy: float, loss: float, sharp_recall: float) -> Results:
    """Text at a good and at a high learning rate, and recall that is learned with this entropy."""
    runs = []
    for seed in range(3):
        runs.append(made(RunSpec(task="text", learning_rate=1e-3, seed=seed), 2.0))
        runs.append(made(RunSpec(task="text", learning_rate=0.1, seed=seed), loss, entropy))
        runs.append(made(RunSpec(task="recall", seed=seed), 0.01, sharp_recall, accuracy=1.0))
    return Results.of(runs)


@pytest.mark.parametrize(
    ("given", "verdict"),
    [
        ((0.01, 3.0, 0.4), HOLDS),
        ((0.01, 3.0, 0.01), CONDITIONAL),  # sharp and right
        ((0.4, 3.0, 0.4), FAILS),  # unstable without a collapse
        ((0.01, 1.9, 0.4), FAILS),  # collapsed, and the loss is better
    ],
)
def test_whether_a_collapse_goes_with_instability(given: tuple[float, float, float], verdict: str) -> None:
    assert LEDGER[23].check(results=ladder(*given)).verdict == verdict
