"""Small calls: 16 queries over 16 keys, a head of 32 tokens, 32 heads with one key.

The arithmetic takes a microsecond or two; the rest is the way there and back. The whole call is judged, arithmetic
included, so nothing is subtracted that could hide overhead. One timed call is a loop of LOOP of them, for every
contestant alike, because a clock reading costs a part of a microsecond itself.
"""

from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from typing import Any

import rootdk
from benchmarks.peers import torch_backward, torch_forward
from benchmarks.problems import Inputs, Shape, make_inputs
from benchmarks.race import Call, interleave, only_right
from benchmarks.section import Figure, Row, Setting, Step, at_least, at_most, cell, faster, judge_rows, of_rows

LOOP = 100
TINY = (Shape(1, 1, 1, 16, 64, causal=False), Shape(1, 8, 8, 16, 64, causal=True))
SMALL = (Shape(1, 1, 1, 32, 64, causal=False), Shape(1, 32, 32, 1, 64, causal=False))
SHAPES = (*TINY, *SMALL)


def steps(setting: Setting) -> Iterator[Step]:
    """Each shape forward, and with gradient where torch takes part."""
    for shape in SHAPES:
        for gradient in (False, True) if setting.torch else (False,):
            name = f"{shape.name}{', gradient' if gradient else ''}"
            work = partial(race, name, shape, gradient=gradient, torch=setting.torch, budget=setting.seconds(2.0))
            yield Step("tiny", f"tiny {name}", work)


def race(name: str, shape: Shape, *, gradient: bool, torch: bool, budget: float) -> Row:
    """rootdk on arrays (forward and pull-back for the gradient), rootdk on tensors, torch on the same tensors."""
    inputs = make_inputs(shape)
    calls = {"rootdk": _on_arrays(inputs, gradient)} | (_on_tensors(inputs, gradient) if torch else {})
    check = inputs.check_gradients if gradient else inputs.check
    calls, left_out = only_right(calls, lambda _, result: check(result))
    loops = interleave({contestant: partial(_loop, call) for contestant, call in calls.items()}, budget)
    seconds = {
        contestant: {"best": times["best"] / LOOP, "median": times["median"] / LOOP, "calls": times["calls"] * LOOP}
        for contestant, times in loops.items()
    }
    return {"name": name, "shape": asdict(shape), "gradient": gradient, "seconds": seconds, "left_out": left_out}


def _loop(call: Call) -> None:
    for _ in range(LOOP):
        call()


def _on_arrays(inputs: Inputs, gradient: bool) -> Call:
    arrays, causal = inputs.arrays, inputs.shape.causal
    if gradient:
        return lambda: rootdk.attention_vjp(*arrays, causal=causal)[1](inputs.d_out)
    return lambda: rootdk.attention(*arrays, causal=causal)


def _on_tensors(inputs: Inputs, gradient: bool) -> dict[str, Call]:
    import torch

    from rootdk.torch import scaled_dot_product_attention

    query, key, value = (torch.from_numpy(array) for array in inputs.arrays)
    leaves = [tensor.clone().requires_grad_() for tensor in (query, key, value)]
    d_out, causal = torch.from_numpy(inputs.d_out), inputs.shape.causal

    def forward() -> Any:
        with torch.no_grad():
            return scaled_dot_product_attention(query, key, value, is_causal=causal)

    def backward() -> Any:
        out = scaled_dot_product_attention(leaves[0], leaves[1], leaves[2], is_causal=causal)
        return torch.autograd.grad(out, leaves, d_out)

    if gradient:
        return {"rootdk on tensors": backward, "torch": torch_backward(inputs)}
    return {"rootdk on tensors": forward, "torch": torch_forward(inputs)}


def _microseconds(name: str) -> Figure:
    return lambda row, statistic: float(row["seconds"][name][statistic] * 1e6)


def _is(shapes: tuple[Shape, ...], *, gradient: bool) -> Callable[[Row], bool]:
    return lambda row: Shape(**row["shape"]) in shapes and row["gradient"] == gradient


_OF_TORCH, _BOTH = faster("rootdk on tensors", "torch"), ("rootdk on tensors", "torch")
_AGAINST_TORCH = faster("torch", "rootdk on tensors")
TARGETS = (
    at_most(
        "tiny call in NumPy, microseconds",
        15.0,
        _microseconds("rootdk"),
        "rootdk",
        counts=_is(TINY[:1], gradient=False),
    ),
    at_most("tiny call on tensors / torch's, highest", 1.5, _OF_TORCH, *_BOTH, counts=_is(TINY, gradient=False)),
    at_most("tiny forward + backward / torch's, highest", 1.5, _OF_TORCH, *_BOTH, counts=_is(TINY, gradient=True)),
    at_least("small call against torch, lowest", 1.0, _AGAINST_TORCH, *_BOTH, counts=_is(SMALL, gradient=False)),
    at_least("small forward + backward, lowest", 0.9, _AGAINST_TORCH, *_BOTH, counts=_is(SMALL, gradient=True)),
)
SECTIONS = (
    of_rows(
        "tiny",
        steps,
        partial(judge_rows, key="tiny", targets=TARGETS),
        "Small calls, microseconds, best / median",
        {
            "rootdk, NumPy": cell(_microseconds("rootdk"), ".3g", "rootdk"),
            "rootdk, tensors": cell(_microseconds("rootdk on tensors"), ".3g", "rootdk on tensors"),
            "torch": cell(_microseconds("torch"), ".3g", "torch"),
        },
    ),
)
