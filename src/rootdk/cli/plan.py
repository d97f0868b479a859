"""`rootdk plan`: what attention on a ring of ranks costs."""

import math
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from . import options

if TYPE_CHECKING:
    from rootdk.distributed.cost import Pass, Ring

_SIZE = options.Integer(1, 10**12)
_CHECKED = {"heads": 4, "d": 64}  # small enough for a laptop


def _rate(_ctx: click.Context, _option: click.Parameter, rate: float) -> float:
    """A rate; click's own range would let NaN pass."""
    if not (rate > 0.0 and math.isfinite(rate)):
        raise click.BadParameter(f"must be a finite number above 0, got {rate:g}")
    return rate


@click.command()
@click.option("--tokens", type=_SIZE, required=True, help="Length of the whole sequence.")
@click.option("--heads", type=_SIZE, default=32, help="Query heads.")
@click.option("--kv-heads", type=_SIZE, default=None, help="Key heads, if there are fewer.")
@click.option("--d", type=_SIZE, default=128, help="Components per head.")
@click.option("--batch", type=_SIZE, default=1, help="Sequences at once.")
@click.option("--ranks", type=_SIZE, required=True, help="Processes that share the sequence.")
@click.option(
    "--flops", type=float, required=True, callback=_rate, help="Operations per second of one rank, such as 2e12."
)
@click.option(
    "--bandwidth", type=float, required=True, callback=_rate, help="Bytes per second to the next rank, such as 12e9."
)
@click.option("--latency", type=float, default=50e-6, callback=_rate, help="Seconds per message.")
@click.option("--dtype", type=click.Choice(["float32", "float64", "float16", "bfloat16"]), default="float32")
@click.option("--full", is_flag=True, help="Every query sees every key; without this, causal.")
@click.option("--layout", type=click.Choice(["balanced", "contiguous"]), default="balanced")
@click.option(
    "--validate",
    is_flag=True,
    help="Also run 1, 2 and 4 ranks here (4 heads, d = 64, balanced), and compare measured with predicted.",
)
# With fewer tokens messages and merging cost more than the model assumes.
@options.number("--validate-tokens", 8, 2**20, 16384, "Length of the sequence for --validate.")
@options.data("Print JSON instead of text.", "one row per pass")
def plan(full: bool, validate: bool, validate_tokens: int, as_json: bool, as_csv: bool, **sizes: Any) -> None:
    """Predict the cost of attention on a ring of ranks.

    Work, messages, memory and time of each rank, from sizes and rates. A rank is one of the processes that share the
    sequence, usually one per machine.

    Example: rootdk plan --tokens 1000000 --ranks 64 --flops 2e12 --bandwidth 12e9
    """
    from rootdk.distributed.cost import Ring, check, cost

    from .lifetime import Bars

    ring = Ring(causal=not full, **sizes)
    costs = cost(ring)
    report = None
    if validate:
        with Bars() as bars:
            report = check(validate_tokens, **_CHECKED, causal=not full, notify=bars)
    passes = {name: asdict(direction) for name, direction in costs.items()}
    plain: dict[str, Any] = {"ring": asdict(ring)} | passes
    rows = [{"pass": name, "ranks": ring.ranks, **numbers} for name, numbers in passes.items()]
    if report is not None:
        plain["validation"] = report
        rows += report["rows"]  # rows of their own: other sizes, and measured numbers
    options.show(as_json, as_csv, plain, rows, lambda width: _lines(ring, costs, report, min(width, 80)))


def _lines(ring: "Ring", costs: Mapping[str, "Pass"], report: Mapping[str, Any] | None, width: int) -> Iterator[str]:
    yield from _costs(ring, costs, width)
    if report is not None:
        yield from _validation(report, width)


def _costs(ring: "Ring", costs: Mapping[str, "Pass"], width: int) -> Iterator[str]:
    """Time and memory in a sentence, then the cost of both passes, side by side."""
    mask = f"causal, {ring.layout}" if ring.causal else "full"
    kv_heads = ring.kv_heads or ring.heads
    shared = "" if kv_heads == ring.heads else f" over {kv_heads}"
    forward, backward = costs["forward"], costs["backward"]
    yield from textwrap.wrap(
        f"A forward pass takes {_scaled(forward.seconds)}s and a backward pass {_scaled(backward.seconds)}s. Each rank "
        f"needs {_scaled(max(forward.memory_bytes, backward.memory_bytes))}B of memory.",
        width,
    )
    yield ""
    yield from textwrap.wrap(
        f"Ring attention: {ring.batch} x {ring.tokens} tokens, {ring.heads}{shared} heads, d = {ring.d}, {ring.dtype}, "
        f"{mask}, {ring.ranks} ranks of {_scaled(ring.flops)}flop/s, {_scaled(ring.bandwidth)}B/s between neighbours",
        width,
    )
    yield ""
    passes = [forward, backward]
    yield f"  {'each rank':<32}{'forward':>14}{'backward':>14}"
    for words, field, unit in (
        ("operations", "flops", "flop"),
        ("sent", "sent_bytes", "B"),
        ("memory at the peak", "memory_bytes", "B"),
        ("computing", "compute", "s"),
        ("messages", "messages", "s"),
        ("waiting for messages", "waiting", "s"),
        ("whole pass", "seconds", "s"),
    ):
        yield f"  {words:<32}" + "".join(f"{_scaled(getattr(direction, field)) + unit:>14}" for direction in passes)
    yield f"  {'efficiency':<32}" + "".join(f"{direction.efficiency:>14.1%}" for direction in passes)
    hidden = [1 - direction.waiting / direction.messages if direction.messages else 1.0 for direction in passes]
    yield f"  {'messages hidden behind the work':<32}" + "".join(f"{share:>14.0%}" for share in hidden)


def _validation(report: Mapping[str, Any], width: int) -> Iterator[str]:
    """The measured numbers beside the predicted ones."""
    yield ""
    mask = "causal" if report["causal"] else "full"
    yield from textwrap.wrap(
        f"Checked here: {report['tokens']} tokens, {report['heads']} heads, d = {report['d']}, {mask}, ranks of one "
        f"thread on {report['cores']} cores; one process reaches {_scaled(report['forward'])}flop/s forward and "
        f"{_scaled(report['backward'])}flop/s backward on half the tokens, neighbours "
        f"{_scaled(report['bandwidth'])}B/s with {_scaled(report['latency'])}s of latency",
        width,
    )
    yield ""
    yield f"  {'':<16}{'seconds':>9}{'predicted':>11}{'error':>7}   {'processor':>9}{'predicted':>11}{'error':>7}"
    for row in report["rows"]:
        numbers = ("measured", "predicted", "error", "worked", "predicted_work", "work_error")
        seconds, expected, error, worked, work, work_error = (row[number] for number in numbers)
        passed = f"{_scaled(seconds) + 's':>9}{_scaled(expected) + 's':>11}{error:>+7.0%}"
        busy = f"{_scaled(worked) + 's':>9}{_scaled(work) + 's':>11}{work_error:>+7.0%}"
        yield f"  {row['ranks']:<6}{row['pass']:<10}{passed}   {busy}"
    yield ""
    crowded = [ranks for ranks in sorted({row["ranks"] for row in report["rows"]}) if ranks > report["cores"]]
    if crowded:
        several = " and ".join(map(str, crowded))
        shared = f"{several} ranks share {report['cores']} cores here: each is expected to get its share of them."
        yield from textwrap.wrap(shared, width)
    if (report["load_before"] or 0) > 0.5:
        busy = f"Other processes were running (load {report['load_before']:.1f} at the start): look at the processor's."
        yield from textwrap.wrap(busy, width)


def _scaled(number: float) -> str:
    """Three digits and a prefix.

    >>> _scaled(2.5e12), _scaled(0.0), _scaled(3.21e-5)
    ('2.5 T', '0 ', '32.1 u')
    """
    if number == 0:
        return "0 "
    for factor, prefix in (
        (1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""), (1e-3, "m"), (1e-6, "u"),
    ):  # fmt: skip
        if abs(number) >= factor:
            return f"{number / factor:.3g} {prefix}"
    return f"{number / 1e-9:.3g} n"
