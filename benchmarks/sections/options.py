"""Fused options against torch: the same option where torch has it, else the way a torch user would write it.

A window is a band mask in torch, which knows no window. What rootdk cannot do is a row as well, and says so.
"""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

import rootdk
from benchmarks.problems import Inputs, Shape, check_dropped, make_inputs
from benchmarks.race import Call, beside_sgemm, only_right
from benchmarks.section import Row, Setting, Step, judge_each, milliseconds, of_rows, times_faster

RATE, WINDOW = 0.1, 128


@dataclass(frozen=True, slots=True)
class Case:
    """One option: the inputs with what rootdk is given, and what torch is given."""

    inputs: Inputs
    torch: dict[str, Any] = field(default_factory=dict)
    dropout: float = 0.0
    learned_bias: bool = False  # whether the gradient of the bias is asked for


def steps(setting: Setting) -> Iterator[Step]:
    """Forward for every option, and the gradient where it takes another way."""
    if not setting.torch:
        return
    shape = Shape(1, 4, 4, 250, 64, causal=False) if setting.quick else Shape(1, 8, 8, 1024, 64, causal=False)
    for cases, gradient in ((FORWARD, False), (BACKWARD, True)):
        for option, make in cases.items():
            name = f"{option}, {'forward + backward' if gradient else 'forward'}"
            work = partial(race, name, make, shape, gradient=gradient, budget=setting.seconds(3.0))
            yield Step("options", name, work)


def race(name: str, make: Callable[[Shape], Case], shape: Shape, *, gradient: bool, budget: float) -> Row:
    """rootdk and torch on the same tensors."""
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    case = make(shape)
    inputs, rate = case.inputs, case.dropout
    # Copies, because torch takes no array that cannot be written.
    ours = {
        name: torch.tensor(option) if isinstance(option, np.ndarray) else option
        for name, option in inputs.options.items()
    } | ({"dropout": rate} if rate else {})
    theirs = case.torch | ({"dropout_p": rate} if rate else {})
    tensors = [torch.from_numpy(array) for array in inputs.arrays]
    if case.learned_bias:
        tensors.append(ours.pop("bias"))
    leaves = [tensor.clone().requires_grad_() for tensor in tensors]
    d_out = torch.from_numpy(inputs.d_out)
    attend: dict[str, Callable[..., Any]] = {
        "rootdk": lambda q, k, v, *bias: rootdk.attention(q, k, v, **ours, **({"bias": bias[0]} if bias else {})),
        "torch": lambda q, k, v, *bias: scaled_dot_product_attention(q, k, v, *bias, **theirs),
    }

    def forward(side: str) -> Any:
        with torch.no_grad():
            return attend[side](*tensors)

    def backward(side: str) -> Any:
        return torch.autograd.grad(attend[side](*leaves), leaves, d_out)

    def check(_: str, result: Any) -> None:
        if rate and gradient:
            # Of the gradients only that of the values is a plain sum of weights.
            check_dropped(result[2][0, :1], inputs.first_gradients[2], rate)
        elif rate:
            check_dropped(inputs.chosen_rows(result), inputs.chosen_answer, rate)
        elif gradient:
            inputs.check_gradients(result)
        else:
            inputs.check(result)

    calls: dict[str, Call] = {side: partial(backward if gradient else forward, side) for side in attend}
    calls, left_out = only_right(calls, check)
    facts = {"name": name, "shape": asdict(inputs.shape), "gradient": gradient}
    return facts | beside_sgemm(calls, left_out, budget, torch=True)


def mask(shape: Shape) -> Case:
    """Half of all pairs hidden at random, the same for every head; each query sees itself."""
    import torch

    seen = np.random.default_rng(1).random((1, 1, shape.n, shape.n)) < 0.5
    seen |= np.eye(shape.n, dtype=bool)
    return Case(make_inputs(shape, mask=seen), {"attn_mask": torch.from_numpy(seen)})


def window(shape: Shape) -> Case:
    """Each query sees WINDOW keys to either side."""
    import torch

    place = torch.arange(shape.n)
    band = (place[:, None] - place).abs() <= WINDOW
    return Case(make_inputs(shape, window=WINDOW), {"attn_mask": band[None, None]})


def bias(shape: Shape) -> Case:
    """A fixed bias: a number of its own for every head and pair."""
    import torch

    inputs = _biased(shape)
    return Case(inputs, {"attn_mask": torch.from_numpy(inputs.options["bias"])})


def learned_bias(shape: Shape) -> Case:
    """A bias with a gradient."""
    return Case(_biased(shape), learned_bias=True)


def _biased(shape: Shape) -> Inputs:
    size = (1, shape.heads, shape.n, shape.n)
    return make_inputs(shape, bias=np.random.default_rng(1).standard_normal(size, dtype=np.float32))


def dropout(shape: Shape) -> Case:
    """One weight in ten is dropped."""
    return Case(make_inputs(shape), dropout=RATE)


def wide_value(shape: Shape) -> Case:
    """Values twice as long as keys."""
    wide = make_inputs(replace(shape, d=2 * shape.d), seed=1)
    return Case(replace(make_inputs(shape), value=wide.value, d_out=wide.d_out))


def grouped(shape: Shape) -> Case:
    """Four query heads to a key head."""
    return Case(make_inputs(replace(shape, kv_heads=shape.heads // 4)), {"enable_gqa": True})


FORWARD = {
    "bool mask": mask,
    "float bias": bias,
    "dropout": dropout,
    "d_v = 2 d_k": wide_value,
    "grouped heads": grouped,
    "window": window,
}
BACKWARD = {"bool mask": mask, "bias gradient": learned_bias, "dropout": dropout, "d_v = 2 d_k": wide_value}


SECTIONS = (
    of_rows(
        "options",
        steps,
        partial(judge_each, key="options", otherwise="fused options against torch"),
        "Options, float32",
        {"rootdk, ms": milliseconds("rootdk"), "torch, ms": milliseconds("torch"), "faster": times_faster("torch")},
    ),
)
