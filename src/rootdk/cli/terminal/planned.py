"""`rootdk plan`: what a ring costs, and how the model of it does here."""

import textwrap
from collections.abc import Iterator
from typing import Any

from rootdk.distributed.cost import Pass, Ring

WIDTH = 80


def lines(ring: Ring, found: dict[str, Pass]) -> Iterator[str]:
    """The cost of both passes, side by side."""
    mask = f"causal, {ring.layout}" if ring.causal else "full"
    kv_heads = ring.kv_heads or ring.heads
    shared = "" if kv_heads == ring.heads else f" over {kv_heads}"
    yield from textwrap.wrap(
        f"Ring attention: {ring.batch} x {ring.tokens} tokens, {ring.heads}{shared} heads, d = {ring.d}, {ring.dtype}, "
        f"{mask}, {ring.ranks} ranks of {_scaled(ring.flops)}flop/s, {_scaled(ring.bandwidth)}B/s between neighbours",
        WIDTH,
    )
    yield ""
    passes = [found["forward"], found["backward"]]
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
        yield f"  {words:<32}" + "".join(f"{_scaled(getattr(one, field)) + unit:>14}" for one in passes)
    yield f"  {'efficiency':<32}" + "".join(f"{one.efficiency:>14.1%}" for one in passes)
    hidden = [1 - one.waiting / one.messages if one.messages else 1.0 for one in passes]
    yield f"  {'messages behind the work':<32}" + "".join(f"{share:>14.0%}" for share in hidden)


def checked(report: dict[str, Any]) -> Iterator[str]:
    """Measured beside predicted."""
    yield ""
    mask = "causal" if report["causal"] else "full"
    yield from textwrap.wrap(
        f"Checked here: {report['tokens']} tokens, {report['heads']} heads, d = {report['d']}, {mask}, ranks of one "
        f"thread on {report['cores']} cores; one process reaches {_scaled(report['forward'])}flop/s forward and "
        f"{_scaled(report['backward'])}flop/s backward on half the tokens, neighbours "
        f"{_scaled(report['bandwidth'])}B/s with {_scaled(report['latency'])}s of latency",
        WIDTH,
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
        yield f"{several} ranks share {report['cores']} cores here: each is expected to get its share of them."
    if (report["load_before"] or 0) > 0.5:
        yield f"Other processes were running (load {report['load_before']:.1f} at the start): look at the processor's."


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
