"""How a race is run: who takes turns with whom, what is warmed up, what is made of the times. Nothing is timed."""

import itertools
import math

import numpy as np
import pytest

from benchmarks import race
from benchmarks.race import Call, abba, block_ratios, interleave, median_interval, rounds, timing


def record_turns(monkeypatch: pytest.MonkeyPatch, names: str, seconds: float) -> tuple[dict[str, Call], list[str]]:
    """Contestants that note each of their calls, timed ones in capitals, on a clock that stands at `seconds` a call."""
    noted: list[str] = []
    calls: dict[str, Call] = {name: (lambda name=name: noted.append(name)) for name in names}
    name_of = {call: name for name, call in calls.items()}

    def timed(call: Call) -> float:
        noted.append(name_of[call].upper())
        return seconds

    monkeypatch.setattr(race, "timed", timed)
    monkeypatch.setattr(race, "settle", lambda: noted.append("-"))
    return calls, noted


def test_interleaving_is_turn_by_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    calls, noted = record_turns(monkeypatch, "abc", seconds=0.1)
    timings = interleave(calls, budget=0.01, fewest=4, most=4)
    assert {times["calls"] for times in timings.values()} == {4}
    # One call to get ready and one to estimate each; a call of 0.1 s then needs no warm-up.
    assert noted[:6] == ["a", "A", "b", "B", "c", "C"]
    turns = "".join(noted[6:])
    assert turns.count("-") == 12
    assert all(len(turn) == 1 for turn in turns.split("-")[1:])
    of_rounds = [tuple(turns.replace("-", "")[i : i + 3]) for i in range(0, 12, 3)]
    assert all(sorted(order) == ["A", "B", "C"] for order in of_rounds)
    assert len(set(of_rounds)) > 1


def test_a_short_call_is_warmed_up_and_timed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls, noted = record_turns(monkeypatch, "a", seconds=1e-5)
    monkeypatch.setattr(race, "WARM_UP", 1e-4)
    assert interleave(calls, budget=0.01, fewest=3, most=3)["a"]["calls"] == 3
    turns = "".join(noted[2:]).split("-")[1:]
    assert len(turns) == 3
    assert all(turn.endswith("aA") and turn.count("A") == 1 for turn in turns)


def test_rounds_fill_the_budget_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    calls, _ = record_turns(monkeypatch, "a", seconds=1e-5)
    monkeypatch.setattr(race, "WARM_UP", 1e-5)
    assert interleave(calls, budget=1e9)["a"]["calls"] == 60
    # A round is two windows of waiting and the call; seven of them fit, and an eighth does not.
    calls, _ = record_turns(monkeypatch, "a", seconds=1.0)
    assert interleave(calls, budget=7.9)["a"]["calls"] == 7
    assert interleave(calls, budget=0.0)["a"]["calls"] == 5


@pytest.mark.parametrize("warm_up", [2e-3, 5e-4])
def test_a_shared_turn_is_warmed_up_by_the_same_rule(monkeypatch: pytest.MonkeyPatch, warm_up: float) -> None:
    """Calls of 1 ms: with a limit of 0.5 ms nobody warms up, with one of 2 ms all of a turn do, in its order."""
    monkeypatch.setattr(race, "WARM_UP", warm_up)
    calls, noted = record_turns(monkeypatch, "abc", seconds=1e-3)
    interleave(calls, budget=0.01, fewest=4, most=4, together=("a", "c"))
    turns = "".join(noted[6:]).split("-")[1:]
    timed = ["".join(letter for letter in turn if letter.isupper()) for turn in turns]
    assert sorted(timed) == ["AC", "AC", "B", "B", "B", "B", "CA", "CA"]
    for turn, names in zip(turns, timed, strict=True):
        untimed = turn.removesuffix(names)
        assert untimed == names.lower() * (len(untimed) // len(names))
        assert bool(untimed) == (warm_up == 2e-3)


def test_one_short_call_warms_up_its_whole_turn() -> None:
    assert race._warms_itself([0.015, 0.4])
    assert not race._warms_itself([0.0149, 0.4])


def test_a_pause_comes_right_before_every_timed_call(monkeypatch: pytest.MonkeyPatch) -> None:
    calls, noted = record_turns(monkeypatch, "ab", seconds=0.1)
    monkeypatch.setattr(race.time, "sleep", lambda seconds: noted.append(f"{seconds:g} "))
    interleave(calls, budget=0.01, fewest=2, most=2, pause=0.5)
    assert sorted("".join(noted[4:]).split("-")[1:]) == ["0.5 A", "0.5 A", "0.5 B", "0.5 B"]
    # The pause counts when rounds are fitted into the budget: two windows, the call and the pause, twice a round.
    assert len(rounds(calls, budget=6.5, pause=0.5)["a"]) == 5
    assert len(rounds(calls, budget=12.5, pause=0.5)["a"]) == 10


def test_sgemm_rate_is_that_of_the_faster_one() -> None:
    timings = {"rootdk": timing([1e-9]), "sgemm numpy": timing([2.0]), "sgemm torch": timing([1.0, 4.0, 4.0])}
    flops = 2 * race.SGEMM_SIZE**3
    assert race.sgemm_rate(timings) == {"best": flops / 1.0, "median": flops / 2.0}


def test_blocks_take_the_median_of_ratios() -> None:
    """Not the ratio of the medians: the machine was slow in the second half, and all calls of a block met that."""
    plain, measured = [1.0, 1.0, 3.0, 3.0, 3.0, 3.0], [1.1, 1.1, 3.3, 3.3, 2.7, 2.7]
    assert block_ratios(plain, measured)["median"] == pytest.approx(1.1)
    # Inside a block the two sides are added up: what drifts through it meets both alike.
    assert block_ratios([1.0, 4.0], [2.0, 3.0])["median"] == 1.0


def test_the_best_ratio_is_that_of_the_quietest_blocks() -> None:
    """Chosen by the time of all four calls: one fast call in a noisy block is luck, and lends itself to no side."""
    plain, measured = [3.0, 3.0] * 18 + [1.0, 1.0, 1.0, 1.0], [9.0, 9.0] * 18 + [1.5, 1.5, 1.1, 1.1]
    assert block_ratios(plain, measured)["best"] == pytest.approx(2.6 / 2)  # two blocks of twenty, added up
    lucky = [0.1, *measured[1:]]
    assert block_ratios(plain, lucky)["best"] == pytest.approx(2.6 / 2)


def test_blocks_go_on_until_the_median_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steady calls end with the budget; calls that scatter go on, at most PATIENCE budgets."""
    clock = iter(range(1_000_000)).__next__
    order: list[str] = []
    scattered = itertools.cycle([0.2, 1.0, 1.9, 0.7, 1.3, 0.4])
    for spread, blocks in ((lambda: 1.0, 100), (lambda: next(scattered), 100 * race.PATIENCE)):
        order.clear()
        monkeypatch.setattr(race, "timed", lambda call, spread=spread: (call(), spread())[1])
        a, b = abba(lambda: order.append("a"), lambda: order.append("b"), 100.0, lambda: float(clock()))
        assert abs(len(a) / 2 - blocks) <= 2  # the clock ticks once per block, and once or twice before
        assert len(a) == len(b)
        assert "".join(order[-8:]) in ("abbabaab", "baababba")


def test_the_interval_holds_the_median_as_often_as_it_says(rng: np.random.Generator) -> None:
    held = 0
    for _ in range(2000):
        low, high = median_interval(rng.exponential(size=41).tolist())
        held += low <= math.log(2) <= high
    # By ranks the interval is at least 95 % and, for 41 draws, below 98.5 %.
    assert 0.94 < held / 2000 < 0.995
