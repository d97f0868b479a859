"""The ledger itself: how a verdict follows from evidence, how claims join, what goes to JSON and back."""

import json
import math
from dataclasses import replace

import pytest

from rootdk import ArgumentError
from rootdk.cli.claims import lines, summary
from rootdk.lab.checks import (
    CONDITIONAL,
    FAILS,
    HOLDS,
    LEDGER,
    OPEN,
    CheckedClaim,
    Claim,
    Comparison,
    Ledger,
    Sampling,
)
from rootdk.lab.checks.comparison import CLEAR

TRUE = Comparison("seen", 1.0, "=", 1.0)
FALSE = Comparison("seen", 2.0, "=", 1.0)


def record(*evidence: Comparison) -> CheckedClaim:
    return CheckedClaim(1, "It is so.", "somewhere", "by looking", evidence)


@pytest.mark.parametrize(
    ("evidence", "verdict"),
    [
        ([TRUE], HOLDS),
        ([FALSE], FAILS),
        ([TRUE, replace(FALSE, role="limits")], CONDITIONAL),
        ([FALSE, replace(FALSE, role="limits")], FAILS),
        ([TRUE, replace(TRUE, role="limits")], HOLDS),
        ([TRUE, replace(FALSE, role="shown")], HOLDS),
        ([replace(FALSE, role="shown")], OPEN),
        ([], OPEN),
    ],
)
def test_verdict_follows_from_the_evidence(evidence: list[Comparison], verdict: str) -> None:
    assert record(*evidence).verdict == verdict


def test_condition_is_what_the_disagreeing_evidence_says_and_each_thing_once() -> None:
    limit = replace(FALSE, role="limits", otherwise="only on Sundays")
    assert record(TRUE, limit, replace(limit, quantity="again")).condition == "only on Sundays"
    assert record(FALSE, limit).condition == "seen is 2, not = 1"
    assert record(TRUE).condition == ""


@pytest.mark.parametrize(
    ("evidence", "agrees"),
    [
        (Comparison("x", 1.04, "=", 1.0, standard_error=0.01), True),
        (Comparison("x", 1.06, "=", 1.0, standard_error=0.01), False),
        (Comparison("x", 0.94, "=", 1.0, standard_error=0.01), False),
        (Comparison("x", 1.06, "=", 1.0, standard_error=0.01, slack=0.02), True),
        (Comparison("x", 0.96, "<", 1.0, standard_error=0.01), False),
        (Comparison("x", 0.94, "<", 1.0, standard_error=0.01), True),
        (Comparison("x", 1.04, ">", 1.0, standard_error=0.01), False),
        (Comparison("x", 1.06, ">", 1.0, standard_error=0.01), True),
        (Comparison("x", 1.0, "<", 1.0), False),
        *((Comparison("x", math.nan, relation, 1.0), False) for relation in "=<>"),
        *((Comparison("x", 0.5, relation, 1.0, standard_error=math.nan), False) for relation in "=<>"),
    ],
)
def test_agreement_counts_standard_errors(evidence: Comparison, agrees: bool) -> None:
    assert CLEAR == 5
    assert evidence.agrees == agrees


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"relation": "~"}, "relation: must be"), ({"role": "helps"}, "role: must be"), ({"relation": ""}, "relation: ")],
)
def test_evidence_refuses_what_it_can_not_judge(changes: dict[str, str], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        replace(TRUE, **changes)


def test_json_and_back() -> None:
    full = record(
        TRUE, Comparison("wild", math.inf, "<", 2.0, standard_error=math.nan, role="limits", slack=0.5, otherwise="no")
    )
    again = CheckedClaim.from_dict(json.loads(full.to_json()))
    assert again.to_json() == full.to_json()
    assert (again.verdict, again.condition) == (full.verdict, full.condition) == (CONDITIONAL, "no")
    assert again.evidence[1].measured == math.inf


def test_a_verdict_that_was_typed_in_is_refused() -> None:
    data = record(FALSE).to_dict() | {"verdict": HOLDS}
    with pytest.raises(ArgumentError, match="verdict: must be 'does not hold' by the evidence, got 'holds'"):
        CheckedClaim.from_dict(data)
    with pytest.raises(ArgumentError, match=r"kind 'rootdk\.lab\.checks\.CheckedClaim'"):
        CheckedClaim.from_dict({"kind": "rootdk.Reading"})
    broken = record(TRUE).to_dict()
    del broken["evidence"][0]["measured"]
    with pytest.raises(ArgumentError, match=r"evidence: must hold .* got no 'measured'"):
        CheckedClaim.from_dict(broken)


def test_another_module_fills_in_what_is_open_and_nothing_else() -> None:
    ledger = Ledger()
    ledger.add(*LEDGER)
    ledger.add(Claim(24, "Learning slows.", "a study", "comes later"))
    assert ledger[24].check().verdict == OPEN

    @ledger.claim(24, statement="Learning slows.", source="a study", method="trained")
    def slows(_sampling: Sampling, steps: float = 3.0) -> list[Comparison]:
        return [Comparison("steps without / with", steps, ">", 1.0)]

    assert ledger[24].check().verdict == HOLDS
    assert ledger[24].check(steps=0.5).verdict == FAILS
    assert 24 not in LEDGER.ids, "the package's own ledger was not asked to change"
    with pytest.raises(ArgumentError, match="numbers that are free, got 24"):
        ledger.add(slows)
    with pytest.raises(ArgumentError, match="id: must be one of 1-24, got 25"):
        ledger.check([1, 25])
    ledger.add(Claim(30, "More.", "elsewhere", "later"))
    with pytest.raises(ArgumentError, match="one of 1-24, 30"):
        ledger[25]


def test_text_fits_and_marks_what_disagrees() -> None:
    long = Comparison("a name that is far too long for one line of a terminal of this width", 65432.1, "<", 2.0, 123.0)
    full = [record(TRUE, replace(long, role="limits")), record()]
    for width in (60, 80, 120):
        text = list(lines(full, width))
        assert max(map(len, text)) <= width
        marked = [line for line in text if line.endswith("  no")]
        assert len(marked) == 1
        assert "65432 ± 1e+02  < 2" in marked[0]
    assert summary(full) == "2 claims: holds under a condition 1, not checked 1"
