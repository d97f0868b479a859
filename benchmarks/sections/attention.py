"""Attention over a matrix of shapes, full and causal: alone, with its gradient, and measured.

What measuring adds to attention is a few per cent: it is read in ABBA blocks, see race.py. Beside that, `measure` takes
part in the forward race, where it is held against torch's call, which measures nothing, and at 4096 keys against what
a torch user would write to get the same numbers.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any

from rich.table import Table

import rootdk
from benchmarks.peers import OPEN, Peer
from benchmarks.problems import Inputs, Shape, make_inputs
from benchmarks.race import Call, abba, beside_sgemm, block_ratios, only_right, timing
from benchmarks.section import (
    STATISTICS,
    Cell,
    Report,
    Row,
    Section,
    Setting,
    Step,
    Verdict,
    at_least,
    at_most,
    cell,
    faster,
    filled,
    geometric_mean,
    judge_rows,
    mean,
    milliseconds,
    of_rows,
    ratio,
    slowest,
    table,
    times_faster,
)

BY_HAND_KEYS = 4096


def _both(batch: int, heads: int, n: int, d: int, kv_heads: int | None = None) -> tuple[Shape, Shape]:
    full = Shape(batch, heads, kv_heads or heads, n, d, causal=False)
    return full, replace(full, causal=True)


MATRIX = (
    *_both(1, 8, 2048, 64),
    *_both(1, 12, 1024, 64),
    *_both(1, 8, 512, 64),
    *_both(8, 8, 128, 64),
    *_both(1, 4, 4096, 128),
    *_both(1, 8, 2048, 32),
    *_both(2, 8, 1000, 80),
    *_both(1, 1, 4096, 64),
    *_both(1, 32, 1024, 128, kv_heads=8),
)
# Heads as wide as some models have them (Gemma; the shared keys of DeepSeek), and how many times faster than torch.
WIDE = {256: 1.15, 576: 1.1}
QUICK = (*_both(1, 8, 512, 64), *_both(2, 4, 250, 80), *_both(1, 8, 256, 128, kv_heads=2))


def shapes_of(setting: Setting) -> tuple[Shape, ...]:
    """The matrix, or some of it."""
    return QUICK if setting.quick else MATRIX


def forward_steps(setting: Setting) -> Iterator[Step]:
    """All peers, and `measure` where that section runs too."""
    return _forward_steps(setting, setting.peers)


def measure_steps(setting: Setting) -> Iterator[Step]:
    """ABBA blocks; and where the section "forward" does not run, its races with torch alone."""
    if "forward" not in setting.sections:
        yield from _forward_steps(setting, [peer for peer in setting.peers if peer.name == "torch"])
    for shape in shapes_of(setting):
        yield Step("measure", f"{shape.name}, measure", partial(measure, shape, setting.seconds(2.5)))


def _forward_steps(setting: Setting, peers: Sequence[Peer]) -> Iterator[Step]:
    measured, budget = "measure" in setting.sections, setting.seconds(6.0, 0.5)
    for shape in shapes_of(setting):
        yield Step("forward", shape.name, partial(forward, shape, peers, measured=measured, budget=budget))


def backward_steps(setting: Setting) -> Iterator[Step]:
    """Those peers whose gradient is compared."""
    budget = setting.seconds(6.0, 0.5)
    for shape in shapes_of(setting):
        yield Step("backward", f"{shape.name}, gradient", partial(backward, shape, setting.peers, budget=budget))


def wide_steps(setting: Setting) -> Iterator[Step]:
    """Wide heads, full and causal, forward and with the gradient; none without torch."""
    peers, budget = [peer for peer in setting.peers if peer.name == "torch"], setting.seconds(4.0)
    for shape in (shape for d in WIDE for shape in _both(1, 8, 64 if setting.quick else 1024, d) if peers):
        alone: Callable[[], Row] = partial(forward, shape, peers, measured=False, budget=budget)
        for label, race in (("", alone), (", gradient", partial(backward, shape, peers, budget=budget))):
            yield Step("wide", f"{shape.name}{label}", partial(_named, f"{shape.name}{label}", race))


def _named(name: str, race: Callable[[], Row]) -> Row:
    return race() | {"name": name, "gradient": name.endswith("gradient")}


def forward(shape: Shape, peers: Sequence[Peer], *, measured: bool, budget: float) -> Row:
    """Attention alone. With `measured`, rootdk.measure takes part, and at 4096 keys torch with all scores in memory."""
    inputs = make_inputs(shape)
    own_calls: dict[str, Call] = {"rootdk": lambda: rootdk.attention(*inputs.arrays, causal=shape.causal)}
    if measured:
        own_calls["measure"] = lambda: rootdk.measure(*inputs.arrays, causal=shape.causal)
    others = {peer.name: peer.prepare for peer in peers}
    if measured and shape.n == BY_HAND_KEYS and "torch" in others:
        others["torch by hand"] = torch_by_hand

    def check(name: str, result: Any) -> None:
        inputs.check(result[0] if name in ("measure", "torch by hand") else result)

    return _race(inputs, own_calls, others, check, budget)


def backward(shape: Shape, peers: Sequence[Peer], *, budget: float) -> Row:
    """Forward and the gradient to q, k and v."""
    inputs = make_inputs(shape)

    def own() -> Any:
        return rootdk.attention_vjp(*inputs.arrays, causal=shape.causal)[1](inputs.d_out)

    others = {peer.name: peer.prepare_backward for peer in peers if peer.prepare_backward is not None}
    return _race(inputs, {"rootdk": own}, others, lambda _, result: inputs.check_gradients(result), budget)


def _race(
    inputs: Inputs,
    own_calls: dict[str, Call],
    others: dict[str, Callable[[Inputs], Call]],
    check: Callable[[str, Any], Any],
    budget: float,
) -> Row:
    for name, call in own_calls.items():  # where rootdk itself is wrong, there is nothing to time
        check(name, call())
    prepared: dict[str, Call] = {}

    def first_call(name: str) -> Any:
        """Getting ready may fail as well."""
        prepared[name] = others[name](inputs)
        return prepared[name]()

    right, left_out = only_right({name: partial(first_call, name) for name in others}, check)
    calls = own_calls | {name: prepared[name] for name in right}
    facts = {"name": inputs.shape.name, "shape": asdict(inputs.shape), "flops": inputs.shape.flops}
    return facts | beside_sgemm(calls, left_out, budget, torch="torch" in others)


def torch_by_hand(inputs: Inputs) -> Call:
    """What `rootdk.measure` returns, as a torch user would get it: all scores in memory, then the sums over them."""
    import torch

    group = inputs.shape.heads // inputs.shape.kv_heads
    query, key, value = (torch.from_numpy(array) for array in inputs.arrays)
    key, value = (array.repeat_interleave(group, dim=1) for array in (key, value))
    hidden = torch.ones(inputs.shape.n, inputs.shape.n, dtype=torch.bool).triu(1) if inputs.shape.causal else None

    def call() -> Any:
        with torch.no_grad():
            scores = query @ key.transpose(-1, -2) / inputs.shape.d**0.5
            if hidden is None:
                low, mean, variance = scores.amin(-1), scores.mean(-1), scores.var(-1, correction=0)
            else:
                seen = (~hidden).sum(-1)
                low = scores.masked_fill(hidden, torch.inf).amin(-1)
                mean = scores.masked_fill(hidden, 0).sum(-1) / seen
                variance = (scores - mean[..., None]).masked_fill(hidden, 0).square().sum(-1) / seen
                scores = scores.masked_fill(hidden, -torch.inf)
            log_sum_exp = scores.logsumexp(-1)
            weights = (scores - log_sum_exp[..., None]).exp()
            entropy = log_sum_exp - (weights * scores.clamp(min=-1e30)).sum(-1)
            squared = weights * weights
            cubed = squared * weights
            out = weights @ value
            return out, (log_sum_exp, scores.amax(-1), low, mean, variance, entropy, squared.sum(-1), cubed.sum(-1))

    return call


def measure(shape: Shape, budget: float) -> Row:
    """attention and measure on the same arrays, in ABBA blocks. `forward` holds both against float64."""
    arrays = make_inputs(shape).arrays
    plain, measured = abba(
        lambda: rootdk.attention(*arrays, causal=shape.causal),
        lambda: rootdk.measure(*arrays, causal=shape.causal),
        budget,
    )
    return {
        "name": shape.name,
        "shape": asdict(shape),
        "seconds": {"rootdk": timing(plain), "measure": timing(measured)},
        "measure_over_attention": block_ratios(plain, measured),
        "left_out": {},
    }


def share_of_sgemm(row: Row, statistic: str) -> float:
    """rootdk's rate over visible pairs as a share of what a large matrix product reached in the same turns."""
    return float(row["flops"] / row["seconds"]["rootdk"][statistic] / row["sgemm"][statistic])


def _long_full(row: Row) -> bool:
    shape = row["shape"]
    return bool(shape["n"] >= 2048 and shape["d"] >= 64 and not shape["causal"])


def _is_wide(row: Row, d: int, gradient: bool) -> bool:
    return bool(row["shape"]["d"] == d and row["gradient"] == gradient)


_COSTS, _BOTH = ratio("measure_over_attention"), ("rootdk", "measure")
FORWARD = (
    mean("forward against torch", 1.5),
    slowest("forward against torch, slowest shape"),
    at_least("long full forward as a share of sgemm, lowest", 0.85, share_of_sgemm, "rootdk", counts=_long_full),
)
# With the gradient 0.8 of that, but never slower than torch.
WIDE_TARGETS = [
    at_least(
        f"d = {d}, {'forward + backward' if gradient else 'forward'}, lowest",
        max(0.8 * wanted, 1.0) if gradient else wanted,
        faster("torch"),
        "rootdk",
        "torch",
        counts=partial(_is_wide, d=d, gradient=gradient),
    )
    for gradient in (False, True)
    for d, wanted in WIDE.items()
]
BACKWARD = (mean("forward + backward against torch", 1.4), slowest("forward + backward against torch, slowest shape"))
MEASURE = (
    at_most("measure / attention, d >= 64, highest", 1.06, _COSTS, *_BOTH, counts=lambda row: row["shape"]["d"] >= 64),
    at_most("measure / attention, d = 32, highest", 1.12, _COSTS, *_BOTH, counts=lambda row: row["shape"]["d"] == 32),
)
MEASURE_AGAINST_TORCH = (
    at_least("measure against torch unmeasured, slowest shape", 1.0, faster("torch", "measure"), "measure", "torch"),
    at_least(
        "measure against torch by hand, 4096 keys, lowest",
        5.0,
        faster("torch by hand", "measure"),
        "measure",
        "torch by hand",
        counts=lambda row: bool(row["shape"]["n"] == BY_HAND_KEYS),
    ),
)


def _judge_measure(report: Report) -> Iterator[Verdict]:
    yield from judge_rows(report, "measure", MEASURE)
    yield from judge_rows(report, "forward", MEASURE_AGAINST_TORCH)


def _show_forward(report: Report) -> Iterator[Table]:
    rows, costs = report["forward"], {row["name"]: row for row in report.get("measure", [])}
    measure_costs = cell(ratio("measure_over_attention"), ".2f")
    columns: dict[str, Cell] = {
        "ms, best / median": milliseconds("rootdk"),
        "GFLOP/s": lambda row: f"{row['flops'] / row['seconds']['rootdk']['best'] / 1e9:.0f}",
        "of sgemm": cell(share_of_sgemm, ".0%"),
    }
    if costs:
        columns["measure costs"] = lambda row: measure_costs(costs[row["name"]])
    yield filled("Forward: rootdk", "shape", rows, columns)
    yield from _rivals("Forward", rows)


def _show_backward(report: Report) -> Iterator[Table]:
    # A gradient's operations depend on what is computed twice, so a rate would compare unlike things.
    rows = report["backward"]
    yield filled("Forward and gradient: rootdk", "shape", rows, {"ms, best / median": milliseconds("rootdk")})
    yield from _rivals("Forward and gradient", rows)


def _rivals(title: str, rows: list[Row]) -> Iterator[Table]:
    """How many times faster rootdk is than each of the others."""
    names = [name for name in OPEN if any(name in row["seconds"] for row in rows)]
    if not names:
        return

    def folded(rows: list[Row], name: str, fold: Callable[[list[float]], float]) -> str:
        present = [row for row in rows if name in row["seconds"]]
        if not present:
            return "-"
        return "/".join(f"{fold([faster(name)(row, statistic) for row in present]):.2f}" for statistic in STATISTICS)

    lines = table(f"{title}: how many times faster than the others, best/median", "shape", *names)
    for row in rows:
        lines.add_row(row["name"], *(folded([row], name, min) for name in names))
    lines.add_section()
    lines.add_row("geometric mean", *(folded(rows, name, geometric_mean) for name in names))
    lines.add_row("slowest shape", *(folded(rows, name, min) for name in names))
    yield lines


SECTIONS = (
    Section("forward", forward_steps, lambda report: judge_rows(report, "forward", FORWARD), _show_forward),
    Section("measure", measure_steps, _judge_measure),
    Section("backward", backward_steps, lambda report: judge_rows(report, "backward", BACKWARD), _show_backward),
    of_rows(
        "wide",
        wide_steps,
        partial(judge_rows, key="wide", targets=WIDE_TARGETS, with_torch=True),
        "Wide heads, float32",
        {"rootdk, ms": milliseconds("rootdk"), "torch, ms": milliseconds("torch"), "faster": times_faster("torch")},
    ),
)
