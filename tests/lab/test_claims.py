"""Every claim: its verdict, that other inputs and other evidence lead to another one, and anchors from outside."""

import json
import math
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from invented_runs import ladder, transplants
from scipy.optimize import minimize_scalar

from rootdk.cli.claims import lines
from rootdk.lab.checks import (
    CONDITIONAL,
    FAILS,
    HOLDS,
    LEDGER,
    NOT_REPRODUCED,
    OPEN,
    UNDECIDED,
    VERDICTS,
    CheckedClaim,
    Comparison,
    Sampling,
)
from rootdk.lab.checks.exact import EIGHTH, POWERS, TENTH, by_the_formula, softmax
from rootdk.lab.checks.gradient_flow import jacobian_of_softmax, live_entries
from rootdk.lab.checks.ledger import COMMON
from rootdk.lab.checks.sampler import generator, normal, over_groups, reading
from rootdk.lab.checks.sharpness import root
from rootdk.theory import attention_moments, relative_gradient, softmax_jacobian

QUICK = Sampling(rows=1024)
EXPECTED = {
    **dict.fromkeys((1, 3, 4, 5, 6, 8, 10, 14), HOLDS),
    **dict.fromkeys((2, 9, 11, 12, 13, 15, 16, 18, 19, 20, 22, 27, 28, 31, 33), CONDITIONAL),
    **dict.fromkeys((7, 17, 24, 25, 26, 29, 30), FAILS),
    **dict.fromkeys((23, 32), NOT_REPRODUCED),
    21: UNDECIDED,
}


@pytest.fixture(scope="module")
def records() -> dict[int, CheckedClaim]:
    return {record.id: record for record in LEDGER.check(sampling=QUICK)}


def test_every_claim_is_there(records: dict[int, CheckedClaim]) -> None:
    assert LEDGER.ids == sorted(EXPECTED) == list(range(1, 34))
    for record in records.values():
        assert record.statement.endswith(".")
        assert record.source
        assert record.method
        assert record.verdict in VERDICTS
        assert bool(record.condition) == (record.verdict not in {HOLDS, OPEN})


@pytest.mark.parametrize("number", EXPECTED)
def test_a_source_has_title_and_link_or_quotes_nobody(number: int) -> None:
    source = LEDGER[number].source
    quoted = re.search(r"\d{4}, [A-Za-z][^,]{9,}, .*https://[a-z./0-9]+", source)
    assert quoted or source.startswith(COMMON), source


def test_gap_counting_is_judged_by_the_slack_that_was_set_before() -> None:
    """A tenth of the power; the nearest of the three powers, chosen after the result was seen, would pass them all."""
    decides = [comparison for comparison in LEDGER[32].check(QUICK).evidence if comparison.role == "decides"]
    assert [comparison.slack for comparison in decides] == [0.1 * comparison.predicted for comparison in decides]
    assert [comparison.agrees for comparison in decides] == [False, True, True]
    assert all(
        min((0.5, 1.0, 2.0), key=lambda p: abs(p - comparison.measured)) == comparison.predicted
        for comparison in decides
    )


@pytest.mark.parametrize("number", EXPECTED)
def test_verdict(records: dict[int, CheckedClaim], number: int) -> None:
    assert records[number].verdict == EXPECTED[number], records[number]


@pytest.mark.slow
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(seed=1), Sampling(rows=8192, seed=2)], ids=str)
def test_verdicts_depend_neither_on_the_seed_nor_on_the_size(sampling: Sampling) -> None:
    assert {record.id: record.verdict for record in LEDGER.check(sampling=sampling)} == EXPECTED


def test_the_same_seed_gives_the_same_evidence(records: dict[int, CheckedClaim]) -> None:
    reading.cache_clear()
    for number in (3, 11, 17):
        assert LEDGER[number].check(QUICK) == records[number]
        assert LEDGER[number].check(replace(QUICK, seed=5)) != records[number]


@pytest.mark.parametrize("number", EXPECTED)
def test_json_round_trip(records: dict[int, CheckedClaim], number: int) -> None:
    assert CheckedClaim.from_dict(json.loads(records[number].to_json())) == records[number]


def over_d_k(query: Any, key: Any, value: Any) -> Any:
    return by_the_formula(query / math.sqrt(query.shape[-1]), key, value)


def wide(rng: np.random.Generator, shape: tuple[int, ...]) -> Any:
    return normal(rng, shape) * np.float32(1.2)


def shifted(rng: np.random.Generator, shape: tuple[int, ...]) -> Any:
    return normal(rng, shape) + np.float32(0.5)


def all_positive(weights: Any) -> Any:
    return np.abs(softmax_jacobian(weights))


def too_large(keys: Any, d_k: Any, scale: Any) -> Any:
    return relative_gradient(keys, d_k, scale * np.sqrt(d_k))


# What is put in the place of a check's own input, and what must come out then. At least one line per claim.
PERTURBED: list[tuple[int, dict[str, Any], str]] = [
    (1, {"formula": over_d_k}, FAILS),
    (2, {"scale": root}, FAILS),
    (3, {"samplers": {"wide": wide}}, FAILS),
    (3, {"samplers": {"shifted": shifted}}, FAILS),
    (3, {"laws": {"loaded": {-1: "1/4", 1: "3/4"}}}, FAILS),
    (3, {"laws": {"large": {-2: "1/2", 2: "1/2"}}}, FAILS),
    (4, {"samplers": {"wide": wide}}, FAILS),
    (4, {"laws": {"loaded": {-1: "1/4", 1: "3/4"}}}, FAILS),
    (5, {"law": {-1: "1/4", 1: "3/4"}}, FAILS),
    (5, {"counted": {3: (9, 4, 5)}}, FAILS),
    (5, {"counted": {64: (4096, 64, 4031)}}, FAILS),
    (6, {"scale": "dk"}, FAILS),
    (6, {"printed": ("2.67", "1.33")}, FAILS),
    (7, {"printed": {**POWERS, 50: "5,184,705,528,587,072,464,087"}}, HOLDS),
    (7, {"printed": {1: "2.718", 5: "148.4"}}, HOLDS),
    (8, {"examples": (TENTH[0], (TENTH[1][0], ("0.971", "0.019", "0.011")))}, FAILS),
    (9, {"key": (1, 1, 1, 1)}, FAILS),
    (9, {"hardly": 0.2}, HOLDS),
    (9, {"without": root}, FAILS),
    (10, {"d_k": 16}, FAILS),
    (10, {"examples": (EIGHTH[0], (EIGHTH[1][0], ("0.419", "0.254", "0.327")))}, FAILS),
    (11, {"scale": root}, FAILS),
    (11, {"usual": 1024, "keys": (64, 512)}, HOLDS),
    (12, {"rule": "sqrt"}, FAILS),
    (12, {"growth": lambda d_k: 1.0}, HOLDS),
    (13, {"upstream": (1.0,)}, FAILS),
    (13, {"formats": ("float32", "bfloat16")}, FAILS),
    (13, {"twice": 0.1}, HOLDS),
    (14, {"formula": all_positive}, FAILS),
    (15, {"scale": root}, FAILS),
    (15, {"spreads": (8, 16, 32, 64)}, HOLDS),
    (16, {"without": "dk"}, FAILS),
    (16, {"tasks": ("recall",), "without": "sqrt"}, FAILS),
    (17, {"d_model": 1}, HOLDS),
    (18, {"exponent": 1.0}, FAILS),
    (18, {"rule": "none"}, UNDECIDED),
    (19, {"exponent": 1.0}, FAILS),
    (19, {"law": {-2: "1/2", 2: "1/2"}}, FAILS),
    (19, {"correlation": 0.0}, HOLDS),
    (20, {"divided": math.sqrt}, FAILS),
    (20, {"multiplied": root}, HOLDS),
    (21, {"alike": -1.0}, FAILS),
    (22, {"results": transplants(1.1, 3.0, 2.0)}, HOLDS),
    (23, {"results": ladder(0.01, 3, 0.4)}, HOLDS),
    (24, {"laws": {"loaded": {-1: "1/4", 1: "3/4"}}}, HOLDS),
    (25, {"divisors": (math.sqrt,)}, HOLDS),
    (26, {"growth": lambda keys: math.sqrt(math.log(keys) / math.log(512))}, HOLDS),
    (27, {"gain": lambda _: 1.0}, HOLDS),
    (27, {"scale": 1 / 16}, FAILS),
    (28, {"unscaled": 1.0}, HOLDS),
    (28, {"deviation": 22.6}, FAILS),
    (28, {"gap": 20.0}, FAILS),
    (29, {"scale": lambda d_k: float(d_k**2)}, HOLDS),
    (30, {"suspected": "none", "tasks": ("digits", "recall")}, HOLDS),
    (31, {"s": 0.1}, FAILS),
    (31, {"figures": (0.129, 0.9997)}, FAILS),
    (32, {"powers": (0.6, 1.0, 2.0)}, HOLDS),
    (33, {"kind": "new"}, FAILS),
    (33, {"deviations": 2.0}, FAILS),
]


@pytest.mark.parametrize(
    ("number", "inputs", "verdict"), PERTURBED, ids=lambda x: " ".join(x) if isinstance(x, dict) else str(x)
)
def test_another_input_leads_to_another_verdict(number: int, inputs: dict[str, Any], verdict: str) -> None:
    assert verdict != EXPECTED[number]
    assert LEDGER[number].check(QUICK, **inputs).verdict == verdict


def test_no_claim_goes_without_another_input() -> None:
    assert {number for number, *_ in PERTURBED} == set(EXPECTED)


@pytest.mark.parametrize("number", EXPECTED)
def test_other_evidence_leads_to_another_verdict(records: dict[int, CheckedClaim], number: int) -> None:
    """Every number that decides or limits, moved to the other side of its target for sure, and nothing else touched."""
    record = records[number]
    refuted = NOT_REPRODUCED if record.elsewhere else FAILS
    for place, comparison in enumerate(record.evidence):
        if comparison.role != "shown":
            moved = _other_side(comparison)
            assert moved.agrees != comparison.agrees
            if comparison.agrees and comparison.role == "decides":
                evidence = (*record.evidence[:place], moved, *record.evidence[place + 1 :])
                assert replace(record, evidence=evidence).verdict == refuted
    for role in ("decides", "limits"):
        # Those that do not agree share what they say: together they turn the verdict, alone one of many does not.
        against = [comparison for comparison in record.evidence if comparison.role == role and not comparison.agrees]
        turned = tuple(
            _other_side(comparison) if comparison in against else comparison for comparison in record.evidence
        )
        if against and (role == "decides" or record.verdict == CONDITIONAL):
            assert replace(record, evidence=turned).verdict != record.verdict


def _other_side(comparison: Comparison) -> Comparison:
    reach = comparison.slack + abs(comparison.predicted) + 1.0
    if comparison.relation == "=":
        measured = comparison.predicted + 2 * reach if comparison.agrees else comparison.predicted
    else:
        measured = comparison.predicted + (reach if (comparison.relation == ">") != comparison.agrees else -reach)
    return replace(comparison, measured=measured, standard_error=None)


@pytest.mark.parametrize("number", EXPECTED)
@pytest.mark.parametrize("times", [2.0, 10.0, 1e6])
def test_noise_pleases_no_claim(records: dict[int, CheckedClaim], number: int, times: float) -> None:
    """Standard errors grown: what does not hold or is undecided never holds by it, a condition never goes away."""
    record = records[number]
    evidence = [
        replace(comparison, standard_error=comparison.standard_error and comparison.standard_error * times)
        for comparison in record.evidence
    ]
    noisy = replace(record, evidence=tuple(evidence)).verdict
    better = {
        HOLDS: (HOLDS, CONDITIONAL, UNDECIDED),
        CONDITIONAL: (CONDITIONAL, UNDECIDED),
        UNDECIDED: (UNDECIDED,),
        FAILS: (FAILS, UNDECIDED),
        NOT_REPRODUCED: (NOT_REPRODUCED, UNDECIDED),
        OPEN: (OPEN,),
    }
    assert noisy in better[record.verdict]


def test_the_readme_counts_right(records: dict[int, CheckedClaim]) -> None:
    verdicts = (HOLDS, CONDITIONAL, FAILS, NOT_REPRODUCED, UNDECIDED)
    counts = [sum(record.verdict == verdict for record in records.values()) for verdict in verdicts]
    text = " ".join((Path(__file__).parents[2] / "README.md").read_text("utf-8").split())
    assert f"checks {len(records)} statements about the scale" in text
    assert (
        f"{counts[0]} hold, {counts[1]} hold under a condition, {counts[2]} do not hold (one of them is a misprint)"
        in text
    )
    assert f"{counts[3]} were not reproduced here, and {counts[4]} is undecided" in text
    assert sum(counts) == len(records)


# Anchors: numbers that do not come from the checks.


def test_the_misprint_is_found(records: dict[int, CheckedClaim]) -> None:
    wrong = [comparison for comparison in records[7].evidence if not comparison.agrees]
    assert [comparison.quantity.partition(":")[0] for comparison in wrong] == ["e^50"]
    factor = next(
        comparison.measured for comparison in records[7].evidence if comparison.quantity == "e^50: true / printed"
    )
    assert factor == pytest.approx(math.exp(50) / 5184705528587072045, rel=1e-12)
    assert "5,184,705,528,587,072,464,087" in records[7].condition


def test_derivative_is_that_of_torch() -> None:
    import torch

    logits = np.random.default_rng(0).standard_normal(9)
    by_torch = torch.autograd.functional.jacobian(lambda s: s.softmax(0), torch.tensor(logits)).numpy()
    assert np.abs(softmax_jacobian(softmax(logits)) - by_torch).max() < 1e-15
    assert np.abs(jacobian_of_softmax(logits[None])[0] - by_torch).max() < 1e-14


def test_measured_rows_agree_with_theory() -> None:
    """What claims 2, 11 and 12 rest on: the readings are of standard normal q and k."""
    sampling = Sampling()
    for d_k, scale in ((64, 1.0), (64, 1 / 8), (256, 1.0)):
        moments, rows = attention_moments(512, d_k, scale), reading(sampling, d_k, 512, scale)
        for measured, exact in ((rows.jacobian_trace, moments.jacobian_trace), (rows.entropy, moments.entropy)):
            mean, error = over_groups(measured)
            assert abs(mean - exact) < 5 * error
    median = np.median(reading(sampling, 64, 512, 1.0).jacobian_trace)
    assert 0.3 < median < 0.45


def test_live_entries_are_those_of_the_jacobian() -> None:
    """Against the whole table, for keys that are few enough to hold it."""
    sampling, d_k, keys = Sampling(rows=1024), 32, 24
    rng = generator(sampling.seed, d_k, keys, 15)
    query, key = normal(rng, (16, 4, d_k)).astype(np.float64), normal(rng, (16, keys, d_k)).astype(np.float64)
    table = softmax_jacobian(softmax(query @ np.swapaxes(key, -1, -2)))
    share, error = live_entries(sampling, d_k, keys, 1.0)
    assert share == pytest.approx((np.abs(table) >= 1e-3).mean(), abs=1e-12)
    assert 0 < share < 1
    assert error > 0


@pytest.mark.parametrize("keys", [16, 512])
def test_best_exponent_is_where_a_minimiser_puts_it(records: dict[int, CheckedClaim], keys: int) -> None:
    d_ks = np.array([16.0, 128.0, 1024.0])
    minimum = minimize_scalar(
        lambda a: float((np.log(relative_gradient(keys, d_ks, d_ks**-a)) ** 2).sum()),
        bounds=(0.3, 0.7),
        method="bounded",
        options={"xatol": 1e-4},
    )
    name = f"{keys} keys: a that keeps |do/dq|/|o| at 1"
    landed = next(comparison.measured for comparison in records[19].evidence if comparison.quantity == name)
    assert landed == pytest.approx(minimum.x, abs=1e-3)


def test_small_gradients_of_float16_are_what_decides_claim_13(records: dict[int, CheckedClaim]) -> None:
    """And it is the format and not the operator: the same gradient in float32 keeps its digits."""
    ratios = {
        comparison.quantity: comparison.measured for comparison in records[13].evidence if comparison.role == "limits"
    }
    large = {name for name, ratio in ratios.items() if ratio > 2}
    assert large == {"float16, d_k = 512: d_query, d_out 0.001"}
    assert len(ratios) == 9
    assert max(ratio for name, ratio in ratios.items() if name not in large) < 1.2
    assert "float16" in records[13].condition


def test_a_missing_format_is_told_and_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    record = LEDGER[13].check(QUICK)
    assert not any("bfloat16" in comparison.quantity for comparison in record.evidence if comparison.role == "limits")
    counted = next(comparison for comparison in record.evidence if "ml_dtypes" in comparison.quantity)
    assert (counted.measured, counted.predicted) == (2, 3)


def test_claims_load_nothing_above_them() -> None:
    code = """
        import sys, rootdk.lab.checks
        rootdk.lab.checks.LEDGER[8].check()
        rootdk.lab.checks.LEDGER[16].check()
        above = ("rootdk.cli", "rootdk.lab.report", "rootdk.lab.explorer")
        above += ("torch", "plotly", "click", "rich", "ml_dtypes")
        print(*(name for name in above if name in sys.modules))
    """
    command = [sys.executable, "-c", "\n".join(line.strip() for line in code.splitlines())]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


# Targets that follow from the claim or from rounding: no change, none at all, a bound on errors.
DERIVED = {(1, "error / rounding bound, float64"), (1, "error / rounding bound, float32"),
           (14, "largest gap to finite differences"), (14, "largest gap to attention_vjp")}  # fmt: skip


def test_a_target_that_is_a_choice_is_named_as_one(records: dict[int, CheckedClaim]) -> None:
    """Whoever says "extremely small" gives no number. Where one is put in, the record says that it is ours, and why."""
    for number, record in records.items():
        for comparison in record.evidence:
            if (
                comparison.relation in ("<", ">") and comparison.role != "shown" and comparison.predicted != 0.0
            ):  # a sign is no choice
                assert bool(comparison.choice) != ((number, comparison.quantity) in DERIVED), (
                    number,
                    comparison.quantity,
                )
    assert "our choice" in "\n".join(lines([records[13]]))
    assert CheckedClaim.from_dict(json.loads(records[13].to_json())).evidence[0].choice


def test_every_claim_has_a_title_that_two_of_fit_a_line() -> None:
    for record in LEDGER:
        assert 0 < len(record.title) <= 32
