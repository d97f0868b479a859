"""The masks that models pass, and a bias of every pair, against torch: forward, and with the gradient.

A mask is given to both as a bool array. "causal as a mask" has a third contestant, rootdk told by its flag: finding
out that a mask is a triangle must cost nearly nothing. Documents as segments tell rootdk the segments in place of
the mask, and have the same documents as a batch beside them: packed, they must cost what they cost apart. Those two
costs are ratios near 1, so they are read in ABBA blocks, see race.py. Sixteen documents have torch's compiled
FlexAttention beside them too, forward only: it has no gradient on the CPU.
"""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

import rootdk
from benchmarks.problems import Inputs, Shape, make_inputs
from benchmarks.race import Call, abba, beside_sgemm, block_ratios, only_right
from benchmarks.section import (
    Report,
    Row,
    Setting,
    Step,
    Verdict,
    at_least,
    at_most,
    faster,
    judge_rows,
    mean,
    milliseconds,
    of,
    of_rows,
    ratio,
    times_faster,
)

GRADIENT_SHARE = 0.8  # of a forward target, with the gradient
FLAG_LIMIT = 1.1
MEAN_OF_MASKS = 2.5
BATCH_LIMIT = 1.1


@dataclass(frozen=True, slots=True)
class Case:
    """One mask or bias. `wanted`: times faster than torch. `option`: the same said to rootdk by an option.

    segments   None, or what rootdk is told in place of the mask; then the documents as a batch are raced too
    flex       whether FlexAttention takes part, told by the segments
    """

    inputs: Inputs
    wanted: float
    option: dict[str, Any] = field(default_factory=dict)
    segments: Any = None
    flex: bool = False


def steps(setting: Setting) -> Iterator[Step]:
    """Every mask forward, then with the gradient."""
    if not setting.torch:
        return
    for gradient in (False, True):
        for label, make in CASES.items():
            name = f"{label}, {'forward + backward' if gradient else 'forward'}"
            shrink, budget = (4 if setting.quick else 1), setting.seconds(3.0)
            work = partial(race, name, make, shrink, gradient=gradient, budget=budget)
            yield Step("masks", name, work)


def race(name: str, make: Callable[[int], Case], shrink: int, *, gradient: bool, budget: float) -> Row:
    """rootdk and torch on the same tensors."""
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    case = make(shrink)
    inputs = case.inputs
    (kind, pairs), *_ = [(kind, inputs.options[kind]) for kind in ("mask", "bias") if kind in inputs.options]
    learned = gradient and kind == "bias"
    tensors = [torch.from_numpy(array) for array in (*inputs.arrays, pairs)]
    leaves = [tensor.clone().requires_grad_() for tensor in tensors[: 3 + learned]]
    rest = tensors[3 + learned :]
    d_out = torch.from_numpy(inputs.d_out)
    segments_option = {} if case.segments is None else {"segments": torch.from_numpy(case.segments)}
    attend: dict[str, Callable[..., Any]] = {
        "rootdk": lambda q, k, v, pairs: rootdk.attention(q, k, v, **(segments_option or {kind: pairs})),
        "torch": scaled_dot_product_attention,
    }
    if case.option:
        attend["option"] = lambda q, k, v, _: rootdk.attention(q, k, v, **case.option)
    apart = partial(_apart, documents=0 if case.segments is None else int(case.segments[-1]) + 1)
    if segments_option:
        attend["batch"] = lambda q, k, v, _: rootdk.attention(*(apart(t) for t in (q, k, v)))
    if case.flex and not gradient:
        attend["FlexAttention"] = _compiled_flex(torch.from_numpy(case.segments))

    def forward(side: str) -> Any:
        with torch.no_grad():
            return attend[side](*tensors)

    def backward(side: str) -> Any:
        return torch.autograd.grad(attend[side](*leaves, *rest), leaves, apart(d_out) if side == "batch" else d_out)

    def check(side: str, result: Any) -> None:
        if not gradient:
            inputs.check(result.transpose(0, 1).reshape(inputs.d_out.shape) if side == "batch" else result)
            return
        inputs.check_gradients(result[:3])
        if learned:
            inputs.check_shared_bias_gradient(result[3])

    calls: dict[str, Call] = {side: partial(backward if gradient else forward, side) for side in attend}
    calls, left_out = only_right(calls, check)
    wanted = max(case.wanted * (GRADIENT_SHARE if gradient and kind == "mask" else 1.0), 1.0)
    facts = {"name": name, "shape": asdict(inputs.shape), "gradient": gradient, "wanted": wanted}
    facts["kind"] = "segments" if segments_option else kind
    facts |= beside_sgemm(calls, left_out, budget, torch=True)
    for other in ("option", "batch"):
        if {"rootdk", other} <= calls.keys():
            facts[f"over_{other}"] = block_ratios(*abba(calls[other], calls["rootdk"], budget / 2))
    return facts


def _apart(packed: Any, documents: int) -> Any:
    """(1, heads, n, d) as a view: (documents, heads, n / documents, d)."""
    return packed[0].unflatten(1, (documents, -1)).transpose(0, 1)


def _compiled_flex(segments: Any) -> Callable[..., Any]:
    """torch's FlexAttention, compiled at its first call, with its map of blocks made before."""
    import torch
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    def same(_batch: Any, _head: Any, i: Any, j: Any) -> Any:
        return segments[i] == segments[j]

    blocks = create_block_mask(same, None, None, len(segments), len(segments), device="cpu")
    attend = torch.compile(flex_attention)
    return lambda q, k, v, _: attend(q, k, v, block_mask=blocks)


def _long(shrink: int) -> Shape:
    return Shape(1, 8, 8, 2048 // shrink, 64, causal=False)


def _batch(shrink: int) -> Shape:
    return Shape(8, 8, 8, 512 // shrink, 64, causal=False)


def _places(shape: Shape) -> tuple[Any, Any]:
    """Query i as a column, key j as a row."""
    return np.arange(shape.n)[:, None], np.arange(shape.n)[None]


def _shared(shape: Shape, seen: Any, wanted: float, **option: Any) -> Case:
    """One mask for every head."""
    return Case(make_inputs(shape, mask=seen[None, None]), wanted, option)


def documents(shrink: int) -> Case:
    """Eight documents, one after the other."""
    return replace(_packed(_long(shrink), 8), segments=None)


def documents_as_segments(shrink: int) -> Case:
    """The same, told by the number of its document for every token."""
    return _packed(_long(shrink), 8)


def sixteen_documents(shrink: int) -> Case:
    """Sixteen in 4096 tokens, told likewise: what a packed batch of short documents is."""
    return replace(_packed(Shape(1, 4, 4, 4096 // shrink, 64, causal=False), 16), flex=True)


def _packed(shape: Shape, documents: int) -> Case:
    """Documents of one length, by a mask for torch and by segments for rootdk."""
    of_token = np.arange(shape.n) // (shape.n // documents)
    return replace(_shared(shape, of_token[:, None] == of_token, 4.0), segments=of_token)


def causal(shrink: int) -> Case:
    """A triangle."""
    shape = _long(shrink)
    i, j = _places(shape)
    return _shared(shape, j <= i, 1.5, causal=True)


def window(shrink: int) -> Case:
    """Each query sees itself and the 255 keys before it."""
    shape = _long(shrink)
    i, j = _places(shape)
    return _shared(shape, (j <= i) & (i - j < 256 // shrink), 3.0)


def _lengths(shape: Shape) -> Any:
    """A third of all keys is padding: entries of 2/3 of the length, more or less. (batch, 1, 1, 1)."""
    return np.linspace(1 / 3, 1, shape.batch).reshape(-1, 1, 1, 1) * shape.n // 1


def padded_keys(shrink: int) -> Case:
    """(batch, 1, 1, n): what a tokenizer returns."""
    shape = _batch(shrink)
    return Case(make_inputs(shape, mask=np.arange(shape.n) < _lengths(shape)), 1.5)


def padded_pairs(shrink: int) -> Case:
    """(batch, 1, n, n): what a model makes of it."""
    shape = _batch(shrink)
    seen = np.broadcast_to(np.arange(shape.n) < _lengths(shape), (shape.batch, 1, shape.n, shape.n))
    return Case(make_inputs(shape, mask=seen.copy()), 1.5)


def left_padded(shrink: int) -> Case:
    """Causal, with the padding in front, as when several prompts are generated from; padding sees itself."""
    shape = _batch(shrink)
    i, j = _places(shape)
    return Case(make_inputs(shape, mask=((j <= i) & (j >= shape.n - _lengths(shape))) | (i == j)), 2.0)


def bias(shrink: int) -> Case:
    """One number for every pair, the same for every head."""
    shape = _long(shrink)
    numbers = np.random.default_rng(1).standard_normal((1, 1, shape.n, shape.n), dtype=np.float32)
    return Case(make_inputs(shape, bias=numbers), 1.3)


CASES = {
    "8 documents": documents,
    "8 documents as segments": documents_as_segments,
    "16 documents in 4096 tokens": sixteen_documents,
    "causal as a mask": causal,
    "window of 256 as a mask": window,
    "padding, (8, 1, 1, 512)": padded_keys,
    "padding, (8, 1, 512, 512)": padded_pairs,
    "left padding and causal": left_padded,
    "bias of every pair": bias,
}


def verdicts(report: Report) -> Iterator[Verdict]:
    """Each row has a target of its own; the masks together have a mean, and the triangle is held against the flag."""
    rows = report.get("masks", [])
    targets = [
        at_least(row["name"], row["wanted"], faster("torch"), "rootdk", "torch", counts=of("name", row["name"]))
        for row in rows
    ]
    targets += [
        mean("masks, forward", MEAN_OF_MASKS, lambda row: row["kind"] == "mask" and not row["gradient"]),
        mean(
            "masks, forward + backward",
            MEAN_OF_MASKS * GRADIENT_SHARE,
            lambda row: row["kind"] == "mask" and row["gradient"],
        ),
    ]
    flag = at_most(
        "causal as a mask over causal as a flag",
        FLAG_LIMIT,
        ratio("over_option"),
        "rootdk",
        counts=lambda row: "over_option" in row,
    )
    packed = at_most(
        "documents as segments over documents as a batch",
        BATCH_LIMIT,
        ratio("over_batch"),
        "rootdk",
        counts=lambda row: "over_batch" in row,
    )
    yield from judge_rows(report, "masks", [*targets, flag, packed], with_torch=True)


SECTIONS = (
    of_rows(
        "masks",
        steps,
        verdicts,
        "Masks and bias, float32",
        {
            "rootdk, ms": milliseconds("rootdk"),
            "torch, ms": milliseconds("torch"),
            "faster": times_faster("torch"),
            "Flex": times_faster("FlexAttention"),
        },
    ),
)
