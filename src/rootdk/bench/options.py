"""Fused options against torch: the same option where torch has it, else the way a torch user would write it.

A window is a band mask in torch, which knows no window. What rootdk cannot do yet is a row as well, and says so.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

import rootdk
from rootdk.bench import race as races
from rootdk.bench import truth
from rootdk.bench.peers.peer import Peer
from rootdk.bench.setting import Setting, Step
from rootdk.bench.shapes import Inputs, Shape, make_inputs
from rootdk.bench.timing import Call

RATE, WINDOW = 0.1, 128
Arguments = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Case:
    """One option: the inputs, what each side is given, and what it adds to the scores."""

    inputs: Inputs
    ours: Arguments = field(default_factory=dict)
    theirs: Arguments = field(default_factory=dict)
    added: truth.Added | None = None
    rate: float = 0.0
    learned: bool = False  # whether the gradient of `added` is asked for


def steps(setting: Setting) -> Iterator[Step]:
    """Forward for every option, and the gradient where it takes another way."""
    if not setting.torch:
        return
    shape = Shape(1, 4, 4, 250, 64, causal=False) if setting.quick else Shape(1, 8, 8, 1024, 64, causal=False)
    forward = {"bool mask": mask, "float bias": bias, "dropout": dropout, "d_v = 2 d_k": wide_value}
    forward |= {"grouped heads": grouped, "window": window}
    backward = {"bool mask": mask, "bias gradient": learned_bias, "dropout": dropout, "d_v = 2 d_k": wide_value}
    for names, gradient in ((forward, False), (backward, True)):
        for option, make in names.items():
            name = f"{option}, {'forward + backward' if gradient else 'forward'}"
            work = partial(race, name, make, shape, gradient=gradient, peers=setting.peers, budget=setting.seconds(3.0))
            yield Step("options", name, work)


def race(
    name: str, make: Callable[[Shape], Case], shape: Shape, *, gradient: bool, peers: Sequence[Peer], budget: float
) -> dict[str, Any]:
    """rootdk and torch on the same tensors."""
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    case = make(shape)
    attend: dict[str, Callable[..., Any]] = {
        "rootdk": lambda q, k, v, *learned: rootdk.attention(q, k, v, **case.ours, **_named("bias", learned)),
        "torch": lambda q, k, v, *learned: scaled_dot_product_attention(
            q, k, v, **case.theirs, **_named("attn_mask", learned)
        ),
    }
    inputs = case.inputs
    tensors = [torch.from_numpy(array) for array in (inputs.query, inputs.key, inputs.value)]
    if case.learned:
        tensors.append(torch.from_numpy(case.added))
    d_out = torch.from_numpy(inputs.d_out)
    leaves = [tensor.clone().requires_grad_() for tensor in tensors]

    def forward(side: str) -> Any:
        with torch.no_grad():
            return attend[side](*tensors)

    def backward(side: str) -> Any:
        return torch.autograd.grad(attend[side](*leaves), leaves, d_out)

    calls: dict[str, Call] = {side: partial(backward if gradient else forward, side) for side in attend}
    calls, left_out = races.only_right(calls, lambda _, found: _check(found, case, gradient))
    facts = {"name": name, "shape": asdict(inputs.shape), "gradient": gradient}
    return facts | races.take_turns(calls, left_out, peers, budget)


def _named(name: str, learned: tuple[Any, ...]) -> Arguments:
    return {name: learned[0]} if learned else {}


def _check(found: Any, case: Case, gradient: bool) -> None:
    if case.rate and gradient:
        # Of the gradients only that of the values is a plain sum of weights.
        truth.check_dropped(found[2][0, 0], truth.first_gradients(case.inputs, case.added)[2], case.rate)
    elif case.rate:
        rows = truth.sampled_rows(case.inputs.shape.n)
        truth.check_dropped(found[:, :, rows], truth.attention_rows(case.inputs, rows, case.added), case.rate)
    elif gradient:
        truth.check_gradients(found, case.inputs, case.added)
    else:
        truth.check(found, case.inputs, case.added)


def mask(shape: Shape) -> Case:
    """Half of all pairs hidden at random, the same for every head; each query sees itself."""
    seen = np.random.default_rng(1).random((1, 1, shape.n, shape.n)) < 0.5
    return _masked(shape, seen | np.eye(shape.n, dtype=bool))


def window(shape: Shape) -> Case:
    """Each query sees WINDOW keys to either side."""
    place = np.arange(shape.n)
    band = (np.abs(place[:, None] - place) <= WINDOW)[None, None]
    return replace(_masked(shape, band), ours={"window": WINDOW})


def _masked(shape: Shape, seen: npt.NDArray[np.bool_]) -> Case:
    import torch

    tensor = torch.from_numpy(seen)
    hidden = np.where(seen, np.float32(0), np.float32(-np.inf))
    return Case(make_inputs(shape), {"mask": tensor}, {"attn_mask": tensor}, added=hidden)


def _bias(shape: Shape) -> truth.Added:
    """A number of its own for every head and pair."""
    size = (1, shape.heads, shape.n, shape.n)
    return np.random.default_rng(1).standard_normal(size, dtype=np.float32)


def bias(shape: Shape) -> Case:
    """A fixed bias."""
    import torch

    added = _bias(shape)
    tensor = torch.from_numpy(added)
    return Case(make_inputs(shape), {"bias": tensor}, {"attn_mask": tensor}, added=added)


def learned_bias(shape: Shape) -> Case:
    """A bias with a gradient."""
    return Case(make_inputs(shape), added=_bias(shape), learned=True)


def dropout(shape: Shape) -> Case:
    """One weight in ten is dropped."""
    return Case(make_inputs(shape), {"dropout": RATE}, {"dropout_p": RATE}, rate=RATE)


def wide_value(shape: Shape) -> Case:
    """Values twice as long as keys."""
    wide = make_inputs(replace(shape, d=2 * shape.d), seed=1)
    return Case(replace(make_inputs(shape), value=wide.value, d_out=wide.d_out))


def grouped(shape: Shape) -> Case:
    """Four query heads to a key head."""
    return Case(make_inputs(replace(shape, kv_heads=shape.heads // 4)), theirs={"enable_gqa": True})
