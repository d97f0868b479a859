"""Tiny calls: 16 queries over 16 keys. The arithmetic takes about a microsecond; the rest is the way there and back.

The whole call is judged, arithmetic included, so nothing is subtracted that could hide overhead. One timed call is a
loop of LOOP of them, for every contestant alike, because a clock reading costs a part of a microsecond itself.
"""

from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from typing import Any

import rootdk
from rootdk.bench import race as races
from rootdk.bench import truth
from rootdk.bench.setting import Setting, Step
from rootdk.bench.shapes import Inputs, Shape, make_inputs
from rootdk.bench.timing import Call, interleave

LOOP = 100
SHAPES = (Shape(1, 1, 1, 16, 64, causal=False), Shape(1, 8, 8, 16, 64, causal=True))


def steps(setting: Setting) -> Iterator[Step]:
    """Each shape forward, and with gradient where torch takes part."""
    for shape in SHAPES:
        for gradient in (False, True) if setting.torch else (False,):
            name = f"{shape.name}{', gradient' if gradient else ''}"
            work = partial(race, name, shape, gradient=gradient, torch=setting.torch, budget=setting.seconds(2.0))
            yield Step("tiny", f"tiny {name}", work)


def race(name: str, shape: Shape, *, gradient: bool, torch: bool, budget: float) -> dict[str, Any]:
    """rootdk on arrays (forward and pull-back for the gradient), rootdk on tensors, torch on the same tensors."""
    inputs = make_inputs(shape)
    calls = {"rootdk": _on_arrays(inputs, gradient)} | (_on_tensors(inputs, gradient) if torch else {})
    check: Callable[[Any, Inputs], float] = truth.check_gradients if gradient else truth.check
    calls, left_out = races.only_right(calls, lambda _, found: check(found, inputs))
    timings = interleave({contestant: partial(_loop, call) for contestant, call in calls.items()}, budget)
    seconds = {
        contestant: {"best": one.best / LOOP, "median": one.median / LOOP, "calls": one.calls * LOOP}
        for contestant, one in timings.items()
    }
    return {"name": name, "shape": asdict(shape), "gradient": gradient, "seconds": seconds, "left_out": left_out}


def _loop(call: Call) -> None:
    for _ in range(LOOP):
        call()


def _on_arrays(inputs: Inputs, gradient: bool) -> Call:
    arrays, causal = (inputs.query, inputs.key, inputs.value), inputs.shape.causal
    if gradient:
        return lambda: rootdk.attention_vjp(*arrays, causal=causal)[1](inputs.d_out)
    return lambda: rootdk.attention(*arrays, causal=causal)


def _on_tensors(inputs: Inputs, gradient: bool) -> dict[str, Call]:
    import torch

    from rootdk.bench.peers.torch_peer import prepare, prepare_backward
    from rootdk.torch import scaled_dot_product_attention

    query, key, value = (torch.from_numpy(array) for array in (inputs.query, inputs.key, inputs.value))
    leaves = [tensor.clone().requires_grad_() for tensor in (query, key, value)]
    d_out, causal = torch.from_numpy(inputs.d_out), inputs.shape.causal

    def forward() -> Any:
        with torch.no_grad():
            return scaled_dot_product_attention(query, key, value, is_causal=causal)

    def backward() -> Any:
        out = scaled_dot_product_attention(leaves[0], leaves[1], leaves[2], is_causal=causal)
        return torch.autograd.grad(out, leaves, d_out)

    if gradient:
        return {"rootdk on tensors": backward, "torch": prepare_backward(inputs)}
    return {"rootdk on tensors": forward, "torch": prepare(inputs)}
