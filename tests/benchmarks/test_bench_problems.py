"""The right answer: peers that give it pass, and whoever does not is caught and left out by name."""

import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

import rootdk
from benchmarks.peers import Peer, open_peers
from benchmarks.problems import (
    STRETCH_ROWS,
    STRETCHES,
    Inputs,
    Shape,
    WrongAnswerError,
    answer,
    check_dropped,
    make_inputs,
)
from benchmarks.race import Call
from benchmarks.sections import attention

TINY = (
    Shape(2, 4, 4, 19, 8, causal=False),
    Shape(1, 4, 2, 17, 16, causal=True),
    Shape(2, 4, 2, 80, 8, causal=True),  # more rows than are looked at
)


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
    assert inputs.check(peer.prepare(inputs)()) < 1e-5
    if peer.prepare_backward is not None:
        assert inputs.check_gradients(peer.prepare_backward(inputs)()) < 1e-5


@pytest.mark.parametrize("options", [{}, {"window": 5}, {"mask": True}, {"bias": True}], ids=str)
def test_chosen_rows_are_rows_of_the_whole_answer(options: dict[str, object], rng: np.random.Generator) -> None:
    """The reference sees a few rows at a time; each must stand where it stood, with its own rows of mask and bias."""
    pairs = (1, 1, 80, 80)
    drawn = {"mask": rng.random(pairs) < 0.5, "bias": rng.standard_normal(pairs, dtype=np.float32)}
    inputs = make_inputs(TINY[2], **{name: drawn.get(name, option) for name, option in options.items()})
    whole = answer(*inputs.arrays, **inputs.options)
    assert inputs.chosen_answer.shape[-2] == STRETCHES * STRETCH_ROWS
    np.testing.assert_allclose(inputs.chosen_answer, inputs.chosen_rows(whole), rtol=1e-12)
    np.testing.assert_array_equal(inputs.chosen_rows(whole)[..., [0, -1], :], whole[..., [0, -1], :])


def test_a_wrong_answer_is_caught() -> None:
    inputs = make_inputs(TINY[0])
    right = open_peers(["numpy"], 1)[0][0].prepare(inputs)()
    inputs.check(right)
    # A result rounded to bfloat16 is what a library gives that computes in it: not float32, so not timed as float32.
    shortened = (right.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
    for wrong in (right * 1.001, np.where(np.arange(TINY[0].d) == 3, np.nan, right), shortened):
        with pytest.raises(WrongAnswerError, match="relative error"):
            inputs.check(wrong)
    with pytest.raises(WrongAnswerError, match="shape"):
        inputs.check(right[:, :1])


@pytest.mark.parametrize("which", range(3))
def test_a_wrong_gradient_is_caught(which: int) -> None:
    (peer,), _ = open_peers(["torch"], 1)
    inputs = make_inputs(TINY[1])
    gradients = [gradient.numpy() for gradient in peer.prepare_backward(inputs)()]
    gradients[which] = gradients[which] * 1.001
    with pytest.raises(WrongAnswerError, match="relative error"):
        inputs.check_gradients(gradients)
    gradients[which] = gradients[which][..., :1]
    with pytest.raises(WrongAnswerError, match=f"gradient of {('query', 'key', 'value')[which]} has shape"):
        inputs.check_gradients(gradients)


def test_dropout_that_does_not_rescale_is_a_wrong_answer() -> None:
    inputs = make_inputs(replace(TINY[0], n=200, d=16))
    full = answer(*inputs.arrays)
    dropped = rootdk.attention(*inputs.arrays, dropout=0.1, seed=1)
    check_dropped(dropped, full, 0.1)
    for wrong in (0.9 * dropped, full):
        with pytest.raises(WrongAnswerError, match="under dropout"):
            check_dropped(wrong, full, 0.1)


def test_torch_by_hand_computes_what_measure_returns() -> None:
    for shape in TINY:
        inputs = make_inputs(shape)
        out, numbers = attention.torch_by_hand(inputs)()
        inputs.check(out)
        _, reading = rootdk.measure(*inputs.arrays, causal=shape.causal)
        names = ("log_sum_exp", "max", "min", "mean", "variance", "entropy", "p_squared", "p_cubed")
        for name, number in zip(names, numbers, strict=True):
            np.testing.assert_allclose(number.numpy(), getattr(reading, name), rtol=1e-4, atol=1e-5, err_msg=name)


def test_absent_peers_are_named_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    ready, absent = open_peers(["torch", "numpy"], 1)
    assert [peer.name for peer in ready] == ["numpy"]
    assert set(absent) == {"torch"}
    assert "not installed" in absent["torch"]


def test_a_race_checks_rootdk_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rootdk, "attention", lambda query, *_, **__: np.zeros_like(query))
    with pytest.raises(WrongAnswerError):
        attention.forward(TINY[0], [], measured=False, budget=0.0)


def test_a_peer_that_fails_is_left_out_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.race.SGEMM_SIZE", 64)

    def breaks(inputs: Inputs) -> Call:
        raise KeyError("no such operator")

    def lies(inputs: Inputs) -> Call:
        return lambda: torch.zeros(inputs.query.shape)

    peers = [Peer("breaks", "1", breaks), Peer("lies", "1", lies)]
    row = attention.forward(TINY[0], peers, measured=False, budget=0.0)
    assert set(row["left_out"]) == {"breaks", "lies"}
    assert row["left_out"]["breaks"] == "KeyError: 'no such operator'"
    assert "relative error" in row["left_out"]["lies"]
    assert set(row["seconds"]) == {"rootdk"}
