"""The ledger itself: how a verdict follows from evidence, how claims join, what goes to JSON and back."""

import json
import math
from dataclasses import replace

import pytest

from rootdk import ArgumentError
from rootdk.cli.claims import lines, summary
from rootdk.lab.checks import (
    AGREES,
    CONDITIONAL,
    DISAGREES,
    FAILS,
    HOLDS,
    LEDGER,
    NOT_REPRODUCED,
    OPEN,
    UNDECIDED,
    CheckedClaim,
    Claim,
    Comparison,
    Ledger,
    Sampling,
)
from rootdk.lab.checks.comparison import CLEAR

TRUE = Comparison("seen", 1.0, "=", 1.0)
FALSE = Comparison("seen", 2.0, "=", 1.0)
UNSURE = Comparison("seen", 1.1, ">", 1.0, 0.1)


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
        ([TRUE, UNSURE], UNDECIDED),
        ([FALSE, UNSURE], FAILS),
        ([TRUE, replace(UNSURE, role="limits")], CONDITIONAL),
        ([UNSURE, replace(FALSE, role="limits")], UNDECIDED),
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
    ("evidence", "state"),
    [
        (Comparison("x", 1.0, "=", 1.0, standard_error=0.01), UNDECIDED),
        (Comparison("x", 1.04, "=", 1.0, standard_error=0.01, slack=0.1), AGREES),
        (Comparison("x", 1.06, "=", 1.0, standard_error=0.01, slack=0.1), UNDECIDED),
        (Comparison("x", 0.94, "=", 1.0, standard_error=0.01, slack=0.1), UNDECIDED),
        (Comparison("x", 1.16, "=", 1.0, standard_error=0.01, slack=0.1), DISAGREES),
        (Comparison("x", 0.84, "=", 1.0, standard_error=0.01, slack=0.1), DISAGREES),
        (Comparison("x", 1.0, "=", 1.0, standard_error=0.0), AGREES),
        (Comparison("x", 1.04, "~", 1.0, standard_error=0.01, role="shown"), AGREES),
        (Comparison("x", 1.06, "~", 1.0, standard_error=0.01, role="shown"), DISAGREES),
        (Comparison("x", 0.96, "<", 1.0, standard_error=0.01), UNDECIDED),
        (Comparison("x", 0.94, "<", 1.0, standard_error=0.01), AGREES),
        (Comparison("x", 1.06, "<", 1.0, standard_error=0.01), DISAGREES),
        (Comparison("x", 1.04, ">", 1.0, standard_error=0.01), UNDECIDED),
        (Comparison("x", 1.06, ">", 1.0, standard_error=0.01), AGREES),
        (Comparison("x", 0.94, ">", 1.0, standard_error=0.01), DISAGREES),
        (Comparison("x", 1.0, "<", 1.0), DISAGREES),
        *((Comparison("x", bad, relation, 1.0), UNDECIDED) for relation in "=<>" for bad in (math.nan, math.inf)),
        *((Comparison("x", 0.5, relation, 1.0, standard_error=math.nan), UNDECIDED) for relation in "=<>"),
        (Comparison("x", None, "~", 1.0, role="shown"), AGREES),
    ],
)
def test_the_whole_interval_must_be_on_one_side(evidence: Comparison, state: str) -> None:
    assert CLEAR == 5
    assert evidence.state == state
    assert evidence.agrees == (state == AGREES)


@pytest.mark.parametrize(
    "unsure",
    [
        Comparison("x", 1.05, "=", 1.0, standard_error=0.02, slack=0.1),
        Comparison("x", 1.15, "=", 1.0, standard_error=0.02, slack=0.1),
        Comparison("x", 0.97, "<", 1.0, standard_error=0.02),
        Comparison("x", 0.97, ">", 1.0, standard_error=0.02),
    ],
)
def test_what_is_undecided_says_how_much_evidence_would_tell(unsure: Comparison) -> None:
    assert unsure.state == UNDECIDED
    assert unsure.needed is not None
    assert f"(about {unsure.needed:.2g} times as much data would tell)" in unsure.objection
    for share, decided in ((1.01, True), (0.99, False)):
        error = unsure.standard_error / math.sqrt(unsure.needed * share)
        assert (replace(unsure, standard_error=error).state != UNDECIDED) == decided
    assert replace(unsure, standard_error=math.nan).needed is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"relation": "!"}, "relation: must be one of"),
        ({"role": "helps"}, "role: must be"),
        ({"relation": ""}, "relation: must be '=', '<' or '>' for what decides"),
        ({"relation": "~"}, "relation: must be '=', '<' or '>' for what decides"),
    ],
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
    assert (
        (again.verdict, again.condition)
        == (full.verdict, full.condition)
        == (
            CONDITIONAL,
            "wild is inf ± nan, which does not decide whether it is < 2",
        )
    )
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
    free = max(LEDGER.ids) + 1
    ledger.add(Claim(free, "Learning slows.", "a study", "comes later"))
    assert ledger[free].check().verdict == OPEN

    @ledger.claim(free, statement="Learning slows.", source="a study", method="trained")
    def slows(_sampling: Sampling, steps: float = 3.0) -> list[Comparison]:
        return [Comparison("steps without / with", steps, ">", 1.0)]

    assert ledger[free].check().verdict == HOLDS
    assert ledger[free].check(steps=0.5).verdict == FAILS
    assert free not in LEDGER.ids, "the package's own ledger was not asked to change"
    with pytest.raises(ArgumentError, match=f"numbers that are free, got {free}"):
        ledger.add(slows)
    with pytest.raises(ArgumentError, match=f"id: must be one of 1-{free}, got {free + 1}"):
        ledger.check([1, free + 1])
    ledger.add(Claim(free + 9, "More.", "elsewhere", "later"))
    with pytest.raises(ArgumentError, match=f"one of 1-{free}, {free + 9}"):
        ledger[free + 1]


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


def test_what_is_said_of_other_models_is_not_reproduced_rather_than_false() -> None:
    large = replace(record(FALSE), elsewhere="models of a thousand layers")
    assert large.verdict == NOT_REPRODUCED
    assert large.condition == "seen is 2, not = 1. It is said of models of a thousand layers"
    assert CheckedClaim.from_dict(json.loads(large.to_json())) == large
    assert replace(large, evidence=(TRUE,)).verdict == HOLDS
