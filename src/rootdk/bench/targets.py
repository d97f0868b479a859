"""What rootdk wants to reach, as ratios inside one run, and what a report reached of it."""

from collections.abc import Callable, Iterator
from typing import Any

from rootdk.bench import explorer
from rootdk.bench.decode import PREFIX as PLAIN_SUM
from rootdk.bench.half import KINDS
from rootdk.bench.ratios import geometric_mean
from rootdk.bench.verdict import Figure, Row, Target, Verdict, verdict

IMPORT_SECONDS = 0.15


def speed_ratio(row: Row, rival: str, ours: str, statistic: str) -> float:
    """How many times faster `ours` is than `rival` in this row."""
    seconds = row["seconds"]
    return float(seconds[rival][statistic] / seconds[ours][statistic])


def share_of_sgemm(row: Row, statistic: str) -> float:
    """rootdk's rate over visible pairs as a share of what a large matrix product reached in the same turns."""
    return float(row["flops"] / row["seconds"]["rootdk"][statistic] / row["sgemm"][statistic])


def share_of_plain_sum(row: Row, statistic: str) -> float:
    """Bytes of K and V per second, as a share of what the fastest plain sum over them reached in the same turns."""
    sums = [found[statistic] for name, found in row["seconds"].items() if name.startswith(PLAIN_SUM)]
    return float(min(sums) / row["seconds"]["rootdk"][statistic])


def judge(report: dict[str, Any]) -> list[Verdict]:
    """One record per target of the sections that were run: what is wanted, what was reached, whether it is met.

    A target that could not be judged is there too, with the reason. A quick report shows what it reached and judges
    nothing: the targets are about the shapes of a full one.
    """
    found = list(_judged(report))
    if report.get("quick"):
        return [one | {"met": None, "why": one["why"] or "quick"} for one in found]
    return found


def mebibytes(size: float) -> str:
    """Whole MiB; less than one is little, and not nothing."""
    return f"{size / 2**20:.0f} MiB" if size >= 2**20 else "under 1 MiB"


def _judged(report: dict[str, Any]) -> Iterator[Verdict]:
    sections: set[str] = set(report["sections"])
    no_torch = f"torch {report.get('absent', {}).get('torch', 'takes no part')}"
    for section, of_section in _BY_ROWS.items():
        if section in sections:
            for key, chosen, target in of_section:
                rows: list[Row] = report.get(key, [])
                needs_torch = section in ("watch", "ring") or "torch" in target.needs
                without_torch = needs_torch and "torch" not in report.get("peers", {"torch": ""})
                picked = [row for row in rows if chosen(row)]
                yield target.judge(picked, no_torch if without_torch else "no such shape in this run")
    if "options" in sections:
        yield from _one_by_one(report.get("options", []), "", no_torch)
    if "beside" in sections:
        yield from _one_by_one(report.get("beside", []), "between torch's layers, ", no_torch)
    if "explorer" in sections:
        yield _explorer(report.get("explorer", []))
    if "import" in sections:
        yield from _import(report["import"])
    if "memory" in sections:
        extra = report["memory"]["extra_bytes"]
        name = f"memory above inputs and output, {report['memory']['keys']} keys"
        yield verdict(name, "< 1024 MiB", mebibytes(extra), met=extra < 2**30)


def _one_by_one(rows: list[Row], prefix: str, no_torch: str) -> Iterator[Verdict]:
    """No option and no place may be slower than torch, so each row is a target."""
    for row in rows:
        yield _slowest(f"{prefix}{row['name']}").judge([row])
    if not rows:
        yield verdict(prefix.rstrip(", ") or "fused options against torch", ">= 1.00", "-", met=None, why=no_torch)


def _explorer(rows: list[Row]) -> Verdict:
    """The slowest chapter counts, at the defaults and with the knobs at their largest."""
    name, wanted = "explorer, a move of a knob, p95, ms", f"<= {explorer.LIMIT * 1e3:.0f}"
    worst = (
        [max(row["seconds"][at]["p95"] for row in rows if at in row["seconds"]) for at in explorer.AT] if rows else []
    )
    if not worst:
        return verdict(name, wanted, "-", met=None, why=f"not installed: {explorer.missing()}")
    slowest = max(rows, key=lambda row: max(one["p95"] for one in row["seconds"].values()))["name"]
    reached = " / ".join(f"{seconds * 1e3:.1f}" for seconds in worst)
    return verdict(name, wanted, reached, met=max(worst) <= explorer.LIMIT, why=f"at defaults / largest; {slowest}")


def _import(found: dict[str, Any]) -> Iterator[Verdict]:
    both = [found["seconds"]["rootdk"][statistic] for statistic in ("best", "median")]
    reached = " / ".join(f"{seconds:.3f}" for seconds in both)
    yield verdict("import rootdk, seconds", f"<= {IMPORT_SECONDS:.2f}", reached, met=max(both) <= IMPORT_SECONDS)
    loaded = ", ".join(found["frameworks"]) or "none"
    yield verdict("import rootdk, frameworks loaded", "none", loaded, met=not found["frameworks"])


def _faster(rival: str, ours: str = "rootdk") -> Figure:
    return lambda row, statistic: speed_ratio(row, rival, ours, statistic)


def _mean(name: str, limit: float) -> Target:
    return Target(f"{name}, geometric mean", limit, _faster("torch"), geometric_mean, ("rootdk", "torch"))


def _slowest(name: str) -> Target:
    return Target(name, 1.0, _faster("torch"), min, ("rootdk", "torch"))


def _measure_cost(name: str, limit: float) -> Target:
    # pairs.py: in the quietest tenth of the fours of calls, and the median over all fours.
    def figure(row: Row, statistic: str) -> float:
        return float(row["measure_over_attention"][statistic])

    return Target(name, limit, figure, max, ("rootdk", "measure"), at_most=True)


def _watch_cost(name: str, limit: float) -> Target:
    def figure(row: Row, statistic: str) -> float:
        return float(row["watched_over_unwatched"][statistic])

    return Target(name, limit, figure, max, ("watched", "unwatched"), at_most=True)


def _ring_efficiency(row: Row, statistic: str) -> float:
    return float(row["efficiency"]["2 ranks"][statistic])


def _tiny_in_torch(name: str) -> Target:
    figure: Figure = lambda row, statistic: speed_ratio(row, "rootdk on tensors", "torch", statistic)  # noqa: E731
    return Target(name, 1.5, figure, max, ("rootdk on tensors", "torch"), at_most=True)


def _any(row: Row) -> bool:  # noqa: ARG001 - one signature for all choices
    return True


def _long_full(row: Row) -> bool:
    shape = row["shape"]
    return bool(shape["n"] >= 2048 and shape["d"] >= 64 and not shape["causal"])


def _named(name: str) -> Callable[[Row], bool]:
    return lambda row: bool(row["name"] == name)


def _of_kind(kind: str) -> Callable[[Row], bool]:
    return lambda row: bool(row["kind"] == kind)


def _microseconds(row: Row, statistic: str) -> float:
    return float(row["seconds"]["rootdk"][statistic] * 1e6)


# Section: under which key of the report its rows are, which of them count, the target.
_BY_ROWS: dict[str, list[tuple[str, Callable[[Row], bool], Target]]] = {
    "forward": [
        ("forward", _any, _mean("forward against torch", 1.5)),
        ("forward", _any, _slowest("forward against torch, slowest shape")),
        (
            "forward",
            _long_full,
            Target("long full forward as a share of sgemm, lowest", 0.85, share_of_sgemm, min, ("rootdk",)),
        ),
    ],
    "backward": [
        ("backward", _any, _mean("forward + backward against torch", 1.4)),
        ("backward", _any, _slowest("forward + backward against torch, slowest shape")),
    ],
    "half": [("half", _of_kind(kind), _mean(f"{kind} forward against torch", 1.5)) for kind in KINDS],
    "decode": [
        (
            "decode",
            _of_kind(kind),
            Target(f"decode, {kind}, as a share of a plain sum", 0.85, share_of_plain_sum, min, ("rootdk",)),
        )
        for kind in ("float32", "bfloat16")
    ],
    "measure": [
        ("pairs", lambda row: row["shape"]["d"] >= 64, _measure_cost("measure / attention, d >= 64, highest", 1.06)),
        ("pairs", lambda row: row["shape"]["d"] == 32, _measure_cost("measure / attention, d = 32, highest", 1.12)),
        (
            "forward",
            _any,
            Target(
                "measure against torch unmeasured, slowest shape",
                1.0,
                _faster("torch", "measure"),
                min,
                ("measure", "torch"),
            ),
        ),
        (
            "forward",
            lambda row: row["shape"]["n"] == 4096,
            Target(
                "measure against torch by hand, 4096 keys, lowest",
                5.0,
                _faster("torch by hand", "measure"),
                min,
                ("measure", "torch by hand"),
            ),
        ),
    ],
    "watch": [
        ("watch", _named("exact"), _watch_cost("training step, watched exactly / unwatched", 1.25)),
        ("watch", _named("rows=64"), _watch_cost("training step, 64 rows watched / unwatched", 1.05)),
        ("watch", _named("every=10"), _watch_cost("training step, every tenth watched / unwatched", 1.03)),
    ],
    "ring": [
        (
            "ring",
            lambda row: "efficiency" in row,
            Target("ring of 2 ranks, efficiency, lowest", 0.8, _ring_efficiency, min, ("one process", "2 ranks")),
        ),
    ],
    "tiny": [
        (
            "tiny",
            lambda row: not row["gradient"] and row["shape"]["heads"] == 1,
            Target("tiny call in NumPy, microseconds", 15.0, _microseconds, max, ("rootdk",), at_most=True),
        ),
        ("tiny", lambda row: not row["gradient"], _tiny_in_torch("tiny call on tensors / torch's, highest")),
        ("tiny", lambda row: row["gradient"], _tiny_in_torch("tiny forward + backward / torch's, highest")),
    ],
}
