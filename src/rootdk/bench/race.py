"""One shape, all contestants: get ready, check the answers, take turns, write down the times."""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import rootdk
from rootdk.bench import sgemm, truth
from rootdk.bench.peers.peer import Peer, UnsupportedError
from rootdk.bench.shapes import Inputs, Shape, make_inputs
from rootdk.bench.timing import Call, interleave

BY_HAND_KEYS = 4096


def forward(shape: Shape, peers: Sequence[Peer], *, measured: bool, budget: float) -> dict[str, Any]:
    """Attention alone. With `measured`, rootdk.measure takes part, and at 4096 keys torch with all scores in memory."""
    inputs = make_inputs(shape)
    calls: dict[str, Call] = {"rootdk": lambda: _attention(inputs)}
    if measured:
        calls["measure"] = lambda: rootdk.measure(inputs.query, inputs.key, inputs.value, causal=shape.causal)
    left_out = {}
    truth.check(calls["rootdk"](), inputs)
    if measured:
        truth.check(calls["measure"]()[0], inputs)
    for peer in peers:
        try:
            call = peer.prepare(inputs)
            truth.check(call(), inputs)
            calls[peer.name] = call
        except Exception as error:  # noqa: BLE001 - see reason
            left_out[peer.name] = reason(error)
    if measured and shape.n == BY_HAND_KEYS and "torch" in calls:
        from rootdk.bench.peers.torch_peer import prepare_by_hand

        calls["torch by hand"] = prepare_by_hand(inputs)
        truth.check(calls["torch by hand"]()[0], inputs)
    return _race(shape, calls, left_out, peers, budget)


def backward(shape: Shape, peers: Sequence[Peer], *, budget: float) -> dict[str, Any]:
    """Forward and the gradient to q, k and v."""
    inputs = make_inputs(shape)
    calls: dict[str, Call] = {"rootdk": lambda: _gradients(inputs)}
    left_out = {}
    truth.check_gradients(calls["rootdk"](), inputs)
    for peer in peers:
        if peer.prepare_backward is None:
            continue
        try:
            call = peer.prepare_backward(inputs)
            truth.check_gradients(call(), inputs)
            calls[peer.name] = call
        except Exception as error:  # noqa: BLE001 - see reason
            left_out[peer.name] = reason(error)
    return _race(shape, calls, left_out, peers, budget)


def only_right(
    calls: dict[str, Call], check: Callable[[str, Any], Any], note: Callable[[str], Any] = str
) -> tuple[dict[str, Call], dict[str, str]]:
    """Call each once and hand its name and result to `check`: those that pass, and why the others are left out.

    `note` gets each name before its call.
    """
    right, left_out = {}, {}
    for name, call in calls.items():
        note(name)
        try:
            check(name, call())
            right[name] = call
        except Exception as error:  # noqa: BLE001 - see reason
            left_out[name] = reason(error)
    return right, left_out


def reason(error: Exception) -> str:
    """Why a peer does not take part in one shape. A foreign library fails in its own ways and must not end the run."""
    if isinstance(error, UnsupportedError | truth.WrongAnswerError):
        return str(error)
    return f"{type(error).__name__}: {(str(error).splitlines() or ['no message'])[0]}"


def _attention(inputs: Inputs) -> Any:
    return rootdk.attention(inputs.query, inputs.key, inputs.value, causal=inputs.shape.causal)


def _gradients(inputs: Inputs) -> Any:
    _, pull_back = rootdk.attention_vjp(inputs.query, inputs.key, inputs.value, causal=inputs.shape.causal)
    return pull_back(inputs.d_out)


def _race(
    shape: Shape, calls: dict[str, Call], left_out: dict[str, str], peers: Sequence[Peer], budget: float
) -> dict[str, Any]:
    facts = {"name": shape.name, "shape": asdict(shape), "flops": shape.flops}
    return facts | take_turns(calls, left_out, peers, budget)


def take_turns(
    calls: dict[str, Call], left_out: dict[str, str], peers: Sequence[Peer], budget: float
) -> dict[str, Any]:
    """Time the calls, with sgemm among them; the part of a row that is the same for every kind of race."""
    timings = interleave(calls | sgemm.contestants(peers), budget, together=("rootdk", "measure"))
    return {
        "sgemm": sgemm.rate(timings),
        "seconds": {name: asdict(timings[name]) for name in calls},
        "left_out": left_out,
    }
