"""The bench: its arithmetic, its shapes, that peers are right and a wrong one is caught. Nothing is timed."""

import json
import subprocess
import sys

import numpy as np
import pytest

from rootdk.bench import memory, race, sgemm, truth
from rootdk.bench import timing as timing_module
from rootdk.bench.launch import environment
from rootdk.bench.peers import NAMES, open_peers
from rootdk.bench.peers.peer import Peer
from rootdk.bench.ratios import geometric_mean, timing
from rootdk.bench.shapes import MATRIX, QUICK, Inputs, Shape, make_inputs
from rootdk.bench.timing import Call, interleave

TINY = (Shape(2, 4, 4, 19, 8, causal=False), Shape(2, 4, 4, 19, 8, causal=True), Shape(1, 4, 2, 17, 16, causal=True))


def test_geometric_mean() -> None:
    assert geometric_mean([2.0, 0.5]) == pytest.approx(1.0)
    assert geometric_mean([1.0, 10.0, 100.0]) == pytest.approx(10.0)
    assert geometric_mean([1e300, 1e300]) == pytest.approx(1e300)
    with pytest.raises(ValueError, match="at least one"):
        geometric_mean([])


def test_timing_keeps_best_and_median() -> None:
    summed = timing([3.0, 1.0, 8.0])
    assert (summed.best, summed.median, summed.calls) == (1.0, 3.0, 3)


def test_shape_matrix() -> None:
    assert len(MATRIX) == 18
    assert len(set(MATRIX)) == 18
    plain = {(s.batch, s.heads, s.n, s.d) for s in MATRIX if s.heads == s.kv_heads}
    assert plain == {
        (1, 8, 2048, 64),
        (1, 12, 1024, 64),
        (1, 8, 512, 64),
        (8, 8, 128, 64),
        (1, 4, 4096, 128),
        (1, 8, 2048, 32),
        (2, 8, 1000, 80),
        (1, 1, 4096, 64),
    }
    assert {(s.heads, s.kv_heads, s.n, s.d) for s in MATRIX if s.heads != s.kv_heads} == {(32, 8, 1024, 128)}
    for shapes in (MATRIX, QUICK):
        assert sum(shape.causal for shape in shapes) * 2 == len(shapes)


def test_operations_are_counted_over_visible_pairs() -> None:
    assert Shape(1, 1, 1, 3, 5, causal=False).flops == 4 * 9 * 5
    assert Shape(1, 1, 1, 3, 5, causal=True).flops == 4 * 6 * 5
    assert Shape(2, 6, 3, 3, 5, causal=True).flops == 2 * 6 * 4 * 6 * 5


@pytest.mark.parametrize("shape", TINY, ids=lambda shape: shape.name)
@pytest.mark.parametrize("name", ["numpy", "torch"])
def test_peers_are_right(name: str, shape: Shape) -> None:
    (peer,), absent = open_peers([name], 1)
    assert not absent
    inputs = make_inputs(shape)
    assert truth.check(peer.prepare(inputs)(), inputs) < 1e-5
    if peer.prepare_backward is not None:
        assert truth.check_gradients(peer.prepare_backward(inputs)(), inputs) < 1e-5


@pytest.mark.parametrize("shape", TINY, ids=lambda shape: shape.name)
def test_truth_is_the_definition(shape: Shape) -> None:
    """The check's own float64 against a second way to write it: one query at a time."""
    inputs = make_inputs(shape)
    rows = np.array([0, 1, shape.n - 1])
    found = truth.attention_rows(inputs, rows)
    for batch in range(shape.batch):
        for head in range(shape.heads):
            of_head = head * shape.kv_heads // shape.heads
            for place, row in enumerate(rows):
                seen = row + 1 if shape.causal else shape.n
                scores = inputs.key[batch, of_head, :seen].astype(float) @ inputs.query[batch, head, row] / shape.d**0.5
                weights = np.exp(scores) / np.exp(scores).sum()
                np.testing.assert_allclose(
                    found[batch, head, place], weights @ inputs.value[batch, of_head, :seen], rtol=1e-12
                )


def test_a_wrong_answer_is_caught() -> None:
    inputs = make_inputs(TINY[0])
    right = open_peers(["numpy"], 1)[0][0].prepare(inputs)()
    truth.check(right, inputs)
    with pytest.raises(truth.WrongAnswerError, match="relative error"):
        truth.check(right * 1.001, inputs)
    with pytest.raises(truth.WrongAnswerError, match="relative error"):
        truth.check(np.where(np.arange(TINY[0].d) == 3, np.nan, right), inputs)
    with pytest.raises(truth.WrongAnswerError, match="shape"):
        truth.check(right[:, :1], inputs)
    # A result rounded to bfloat16 is what a library gives that computes in it: not float32, so not timed as float32.
    bits = right.view(np.uint32) & np.uint32(0xFFFF0000)
    with pytest.raises(truth.WrongAnswerError, match="relative error"):
        truth.check(bits.view(np.float32), inputs)


def test_torch_by_hand_computes_what_measure_returns() -> None:
    import rootdk
    from rootdk.bench.peers.torch_peer import prepare_by_hand

    for shape in TINY:
        inputs = make_inputs(shape)
        out, numbers = prepare_by_hand(inputs)()
        truth.check(out, inputs)
        _, reading = rootdk.measure(inputs.query, inputs.key, inputs.value, causal=shape.causal)
        names = ("log_sum_exp", "max", "min", "mean", "variance", "entropy", "p_squared", "p_cubed")
        for name, number in zip(names, numbers, strict=True):
            np.testing.assert_allclose(number.numpy(), getattr(reading, name), rtol=1e-4, atol=1e-5, err_msg=name)


def test_absent_peers_are_named_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    ready, absent = open_peers(["torch", "numpy"], 1)
    assert [peer.name for peer in ready] == ["numpy"]
    assert set(absent) == {"torch"}
    assert "not installed" in absent["torch"]


def test_every_peer_has_a_file() -> None:
    ready, absent = open_peers(NAMES, 1)
    assert {peer.name for peer in ready} | set(absent) == set(NAMES)
    assert all("rootdk.bench.peers" not in reason for reason in absent.values())


def record_turns(monkeypatch: pytest.MonkeyPatch, names: str, seconds: float) -> tuple[dict[str, Call], list[str]]:
    """Contestants that note each of their calls, timed ones in capitals, on a clock that stands at `seconds` a call."""
    noted: list[str] = []
    calls: dict[str, Call] = {name: (lambda name=name: noted.append(name)) for name in names}
    name_of = {call: name for name, call in calls.items()}

    def timed(call: Call) -> float:
        noted.append(name_of[call].upper())
        return seconds

    monkeypatch.setattr(timing_module, "timed", timed)
    monkeypatch.setattr(timing_module, "settle", lambda: noted.append("-"))
    return calls, noted


def test_interleaving_is_turn_by_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    calls, noted = record_turns(monkeypatch, "abc", seconds=0.1)
    timings = interleave(calls, budget=0.01, fewest=4, most=4)
    assert {t.calls for t in timings.values()} == {4}
    # One call to get ready and one to estimate each; a call of 0.1 s then needs no warm-up.
    assert noted[:6] == ["a", "A", "b", "B", "c", "C"]
    turns = "".join(noted[6:])
    assert turns.count("-") == 12
    assert all(len(turn) == 1 for turn in turns.split("-")[1:])
    rounds = [tuple(turns.replace("-", "")[i : i + 3]) for i in range(0, 12, 3)]
    assert all(sorted(one) == ["A", "B", "C"] for one in rounds)
    assert len(set(rounds)) > 1


def test_a_short_call_is_warmed_up_and_timed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls, noted = record_turns(monkeypatch, "a", seconds=1e-5)
    monkeypatch.setattr(timing_module, "WARM_UP", 1e-4)
    assert interleave(calls, budget=0.01, fewest=3, most=3)["a"].calls == 3
    turns = "".join(noted[2:]).split("-")[1:]
    assert len(turns) == 3
    assert all(turn.endswith("aA") and turn.count("A") == 1 for turn in turns)


def test_short_contestants_get_sixty_rounds_if_the_budget_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    calls, _ = record_turns(monkeypatch, "a", seconds=1e-5)
    monkeypatch.setattr(timing_module, "WARM_UP", 1e-5)
    assert interleave(calls, budget=1e9)["a"].calls == 60
    # A round is two windows of waiting and the call; seven of them fit, and an eighth does not.
    calls, _ = record_turns(monkeypatch, "a", seconds=1.0)
    assert interleave(calls, budget=7.9)["a"].calls == 7
    assert interleave(calls, budget=0.0)["a"].calls == 5


@pytest.mark.parametrize("warm_up", [2e-3, 5e-4])
def test_a_shared_turn_is_warmed_up_by_the_same_rule(monkeypatch: pytest.MonkeyPatch, warm_up: float) -> None:
    """Calls of 1 ms: with a limit of 0.5 ms nobody warms up, with one of 2 ms all of a turn do, in its order."""
    monkeypatch.setattr(timing_module, "WARM_UP", warm_up)
    calls, noted = record_turns(monkeypatch, "abc", seconds=1e-3)
    interleave(calls, budget=0.01, fewest=4, most=4, together=("a", "c"))
    turns = "".join(noted[6:]).split("-")[1:]
    timed = ["".join(letter for letter in turn if letter.isupper()) for turn in turns]
    assert sorted(timed) == ["AC", "AC", "B", "B", "B", "B", "CA", "CA"]
    for turn, names in zip(turns, timed, strict=True):
        untimed = turn.removesuffix(names)
        assert untimed == names.lower() * (len(untimed) // len(names))
        assert bool(untimed) == (warm_up == 2e-3)


def test_a_pause_comes_right_before_every_timed_call(monkeypatch: pytest.MonkeyPatch) -> None:
    calls, noted = record_turns(monkeypatch, "ab", seconds=0.1)
    monkeypatch.setattr(timing_module.time, "sleep", lambda seconds: noted.append(f"{seconds:g} "))
    interleave(calls, budget=0.01, fewest=2, most=2, pause=0.5)
    assert sorted("".join(noted[4:]).split("-")[1:]) == ["0.5 A", "0.5 A", "0.5 B", "0.5 B"]
    # The pause counts when rounds are fitted into the budget: two windows, the call and the pause, twice a round.
    assert len(timing_module.rounds(calls, budget=6.5, pause=0.5)["a"]) == 5
    assert len(timing_module.rounds(calls, budget=12.5, pause=0.5)["a"]) == 10


def test_one_short_call_warms_up_its_whole_turn() -> None:
    assert timing_module._warms_itself([0.015, 0.4])
    assert not timing_module._warms_itself([0.0149, 0.4])


def test_sgemm_rate_is_that_of_the_faster_one() -> None:
    timings = {"rootdk": timing([1e-9]), "sgemm numpy": timing([2.0]), "sgemm torch": timing([1.0, 4.0, 4.0])}
    assert sgemm.rate(timings) == {"best": sgemm.FLOPS / 1.0, "median": sgemm.FLOPS / 2.0}


def test_the_childs_environment_gives_everyone_the_same_threads() -> None:
    assert {environment(3)[name] for name in ("ROOTDK_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")} == {"3"}


def test_race_checks_rootdk_too(monkeypatch: pytest.MonkeyPatch) -> None:
    import rootdk

    monkeypatch.setattr(rootdk, "attention", lambda query, *_, **__: np.zeros_like(query))
    with pytest.raises(truth.WrongAnswerError):
        race.forward(TINY[0], [], measured=False, budget=0.0)


def test_a_peer_that_fails_is_left_out_with_its_reason() -> None:
    def breaks(inputs: object) -> None:
        raise KeyError("no such operator")

    def lies(inputs: Inputs) -> Call:
        return lambda: np.zeros_like(inputs.query)

    peers = [Peer("breaks", "1", breaks), Peer("lies", "1", lies)]
    left_out = race.forward(TINY[0], peers, measured=False, budget=0.0)["left_out"]
    assert set(left_out) == {"breaks", "lies"}
    assert left_out["breaks"] == "KeyError: 'no such operator'"
    assert "relative error" in left_out["lies"]


def test_memory_counts_what_a_call_allocates() -> None:
    """Held against the truth: an attention that keeps all scores must be seen to do so."""
    program = (
        "import json, numpy as np, rootdk\n"
        "from rootdk.bench import memory\n"
        "def plain(q, k, v):\n"
        "    s = np.ones((q.shape[1], k.shape[1]), np.float32)\n"
        "    return v * s[0, 0]\n"
        "rootdk.attention = plain\n"
        "print(json.dumps(memory.measure_call(8192)))\n"
    )
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    greedy = json.loads(finished.stdout)
    assert greedy["extra_bytes"] >= 0.95 * greedy["full_scores_bytes"]
    frugal = memory.in_fresh_process(8192)
    assert frugal["extra_bytes"] < 0.5 * frugal["full_scores_bytes"]


def test_memory_is_that_of_the_first_call_of_the_process() -> None:
    """What only the first call allocates, and keeps, is counted: scratch and threads are no less memory for it."""
    program = (
        "import json, numpy as np, rootdk\n"
        "from rootdk.bench import memory\n"
        "kept = []\n"
        "def plain(q, k, v):\n"
        "    kept or kept.append(np.ones(2**23, np.float32))\n"
        "    return v * kept[0][0]\n"
        "rootdk.attention = plain\n"
        "print(json.dumps(memory.measure_call(1024)))\n"
    )
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert json.loads(finished.stdout)["extra_bytes"] >= 0.95 * 2**25


def test_a_peer_that_was_asked_for_and_is_absent_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    from rootdk.bench import child

    monkeypatch.setitem(sys.modules, "jax", None)
    monkeypatch.setattr(child, "_narrow_affinity", lambda threads: None)
    options = {"sections": ["memory"], "peers": ["jax"], "threads": 1, "quick": True}
    with pytest.raises(SystemExit, match="peer jax: not installed"):
        child.measure_all(options)
