"""What rootdk wants to reach, as ratios inside one run, and what a report reached of it.

A ratio is taken twice, from the best calls and from the medians, and the worse of the two is judged: a target that
only one of them meets is not met.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from rootdk.bench.ratios import geometric_mean

Row = dict[str, Any]
STATISTICS = ("best", "median")


def speed_ratio(row: Row, rival: str, ours: str, statistic: str) -> float:
    """How many times faster `ours` is than `rival` in this row."""
    seconds = row["seconds"]
    return float(seconds[rival][statistic] / seconds[ours][statistic])


def share_of_sgemm(row: Row, statistic: str) -> float:
    """rootdk's rate over visible pairs as a share of what a large matrix product reached in the same turns."""
    return float(row["flops"] / row["seconds"]["rootdk"][statistic] / row["sgemm"][statistic])


def judge(report: dict[str, Any]) -> list[dict[str, Any]]:
    """One record per target that was measured: what is wanted, what was reached, whether it is met.

    None for a quick report: the targets are about the shapes of a full one.
    """
    return [] if report.get("quick") else list(_judged(report))


def mebibytes(size: float) -> str:
    """Whole MiB; less than one is little, and not nothing."""
    return f"{size / 2**20:.0f} MiB" if size >= 2**20 else "under 1 MiB"


def _judged(report: dict[str, Any]) -> Iterator[dict[str, Any]]:
    forward: list[Row] = report.get("forward", [])
    backward: list[Row] = report.get("backward", [])
    torch_rows = _with(forward, "torch")
    if torch_rows and "forward" in report["sections"]:
        yield _at_least("forward against torch, geometric mean", 1.3, torch_rows, _faster_than("torch"), geometric_mean)
        yield _at_least("forward against torch, slowest shape", 1.0, torch_rows, _faster_than("torch"), min)
    long_full = [
        row for row in forward if row["shape"]["n"] >= 2048 and row["shape"]["d"] >= 64 and not row["shape"]["causal"]
    ]
    if long_full and "forward" in report["sections"]:
        yield _at_least("long full forward as a share of sgemm, lowest", 0.85, long_full, share_of_sgemm, min)
    measured = _with(forward, "measure")
    for name, limit, chosen in (
        ("measure / attention, d >= 64, highest", 1.06, [row for row in measured if row["shape"]["d"] >= 64]),
        ("measure / attention, d = 32, highest", 1.12, [row for row in measured if row["shape"]["d"] == 32]),
    ):
        if chosen:
            yield _at_most(
                name, limit, chosen, lambda row, statistic: speed_ratio(row, "measure", "rootdk", statistic), max
            )
    if measured_torch := _with(measured, "torch"):
        yield _at_least(
            "measure against torch unmeasured, slowest shape",
            1.0,
            measured_torch,
            _faster_than("torch", "measure"),
            min,
        )
    if by_hand := _with(measured, "torch by hand"):
        faster = _faster_than("torch by hand", "measure")
        yield _at_least("measure against torch by hand, 4096 keys, lowest", 5.0, by_hand, faster, min)
    if torch_backward := _with(backward, "torch"):
        yield _at_least(
            "forward + backward against torch, geometric mean",
            1.4,
            torch_backward,
            _faster_than("torch"),
            geometric_mean,
        )
        yield _at_least(
            "forward + backward against torch, slowest shape", 1.0, torch_backward, _faster_than("torch"), min
        )
    if memory := report.get("memory"):
        extra = memory["extra_bytes"]
        name = f"memory above inputs and output, {memory['keys']} keys"
        yield {"name": name, "wanted": "< 1024 MiB", "reached": mebibytes(extra), "met": extra < 2**30}


def _with(rows: Iterable[Row], contestant: str) -> list[Row]:
    return [row for row in rows if contestant in row["seconds"]]


def _faster_than(rival: str, ours: str = "rootdk") -> Callable[[Row, str], float]:
    return lambda row, statistic: speed_ratio(row, rival, ours, statistic)


def _both(
    rows: list[Row], value: Callable[[Row, str], float], over: Callable[[list[float]], float]
) -> tuple[list[float], str]:
    figures = [over([value(row, statistic) for row in rows]) for statistic in STATISTICS]
    return figures, " / ".join(f"{figure:.2f}" for figure in figures)


def _at_least(
    name: str, limit: float, rows: list[Row], value: Callable[[Row, str], float], over: Callable[[list[float]], float]
) -> dict[str, Any]:
    figures, reached = _both(rows, value, over)
    return {"name": name, "wanted": f">= {limit:.2f}", "reached": reached, "met": min(figures) >= limit}


def _at_most(
    name: str, limit: float, rows: list[Row], value: Callable[[Row, str], float], over: Callable[[list[float]], float]
) -> dict[str, Any]:
    figures, reached = _both(rows, value, over)
    return {"name": name, "wanted": f"<= {limit:.2f}", "reached": reached, "met": max(figures) <= limit}
