"""The tables of the smaller sections, from half types to a watched training step; import and memory."""

from collections.abc import Mapping
from typing import Any

from rich.console import Console

from rootdk.bench.cells import Cell, Row, faster_than, filled, time_of
from rootdk.bench.targets import mebibytes, share_of_plain_sum
from rootdk.bench.verdict import STATISTICS


def show(console: Console, report: dict[str, Any]) -> None:
    """Print those that are in the report."""
    for key, (title, columns) in _TABLES.items():
        if report.get(key):
            console.print(filled(title, "", report[key], columns))
    if report.get("ring"):
        _ring(console, report["ring"])
    if report.get("explorer"):
        console.print(
            filled("Explorer: one move of a knob over HTTP, ms, p50 / p95", "chapter", report["explorer"], _EXPLORER)
        )
    if "import" in report:
        _import(console, report["import"])
    if "memory" in report:
        _memory(console, report["memory"])


def _bandwidth(row: Row) -> str:
    if "rootdk" not in row["seconds"]:
        return "-"
    return " / ".join(f"{row['bytes'] / row['seconds']['rootdk'][statistic] / 1e9:.1f}" for statistic in STATISTICS)


def _share(row: Row) -> str:
    if "rootdk" not in row["seconds"]:
        return "-"
    return " / ".join(f"{share_of_plain_sum(row, statistic):.0%}" for statistic in STATISTICS)


def _watched_ratio(row: Row) -> str:
    return " / ".join(f"{row['watched_over_unwatched'][statistic]:.3f}" for statistic in STATISTICS)


_MILLI, _MICRO = 1e-3, 1e-6
_TABLES: dict[str, tuple[str, Mapping[str, Cell]]] = {
    "half": (
        "Half types, forward: times faster than torch",
        {
            "ms, best / median": time_of("rootdk", _MILLI),
            "torch": faster_than("torch"),
            "torch float32": faster_than("torch float32"),
        },
    ),
    "decode": (
        "Decoding, one query: K and V read per second, of a plain sum, against torch",
        {"GB/s": _bandwidth, "of the sum": _share, "x torch": faster_than("torch")},
    ),
    "options": (
        "Options, float32",
        {
            "rootdk, ms": time_of("rootdk", _MILLI),
            "torch, ms": time_of("torch", _MILLI),
            "faster": faster_than("torch"),
        },
    ),
    "tiny": (
        "Tiny calls, microseconds, best / median",
        {
            "rootdk, NumPy": time_of("rootdk", _MICRO),
            "rootdk, tensors": time_of("rootdk on tensors", _MICRO),
            "torch": time_of("torch", _MICRO),
        },
    ),
    "beside": (
        "Between two linear layers of torch, ms, best / median",
        {
            "rootdk": time_of("rootdk", _MILLI),
            "own pool": time_of("rootdk, own threads", _MILLI),
            "torch": time_of("torch", _MILLI),
            "layers": time_of("layers alone", _MILLI),
            "faster": faster_than("torch"),
        },
    ),
    "watch": (
        "A training step while rootdk.watch reads it, ms, best / median",
        {
            "unwatched": time_of("unwatched", _MILLI),
            "watched": time_of("watched", _MILLI),
            "ratio": _watched_ratio,
        },
    ),
}


def _efficiency(ranks: str) -> Cell:
    return lambda row: " / ".join(f"{row['efficiency'][ranks][statistic]:.2f}" for statistic in STATISTICS)


def _ring(console: Console, rows: list[Row]) -> None:
    columns: dict[str, Cell] = {
        "one process": time_of("one process", _MILLI),
        "1 rank": time_of("1 rank", _MILLI),
        "2 ranks": time_of("2 ranks", _MILLI),
        "eff. 1": _efficiency("1 rank"),
        "eff. 2": _efficiency("2 ranks"),
    }
    timed = [row for row in rows if "efficiency" in row]
    if timed:
        title = "A ring of ranks, one thread each, ms, and efficiency, best / median"
        console.print(filled(title, "", timed, columns))
    for row in rows:
        if "ranks" in row:
            console.print(
                f"Ring of {row['ranks']}, {row['tokens']} tokens, one head, d = {row['d']}: "
                f"{mebibytes(row['extra_bytes'])} a rank above its inputs at the peak of a forward pass, "
                f"{row['bytes_per_token']:.0f} bytes per token on a rank with the inputs; "
                f"the memory that is free now would hold {row['largest']} tokens on {row['ranks']} ranks.",
                highlight=False,
            )


def _percentiles(at: str) -> Cell:
    def cell(row: Row) -> str:
        found = row["seconds"].get(at)
        return "-" if found is None else " / ".join(f"{found[name] * 1e3:.1f}" for name in ("p50", "p95"))

    return cell


_EXPLORER: Mapping[str, Cell] = {
    "at defaults": _percentiles("defaults"),
    "others largest": _percentiles("largest"),
    "another draw": _percentiles("another draw"),
    "moves": lambda row: str(row["updates"]),
    "kB at most": lambda row: f"{row['largest_bytes'] / 1e3:.0f}",
}


def _import(console: Console, found: dict[str, Any]) -> None:
    whole, numpy, above = (
        " / ".join(f"{times[statistic]:.3f}" for statistic in STATISTICS)
        for times in (found["seconds"]["rootdk"], found["seconds"]["numpy"], found["above_numpy"])
    )
    console.print(
        f"import rootdk: {whole} s in a fresh process, best / median; NumPy alone {numpy} s, "
        f"the part above it {above} s; frameworks loaded: {', '.join(found['frameworks']) or 'none'}.",
        highlight=False,
    )


def _memory(console: Console, memory: dict[str, Any]) -> None:
    console.print(
        f"Memory: one head, {memory['keys']} keys, d = {memory['d']}: {mebibytes(memory['extra_bytes'])} above "
        f"inputs ({mebibytes(memory['input_bytes'])}) and output ({mebibytes(memory['output_bytes'])}) at the peak of "
        "the first call of a process, its scratch, its threads and the loaded kernel included; "
        f"all scores at once would be {mebibytes(memory['full_scores_bytes'])}.",
        highlight=False,
    )
