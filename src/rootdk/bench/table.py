"""A report on the terminal: what falls short, the targets, then the shapes, then what they come to."""

from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.table import Table

from rootdk.bench import section_tables
from rootdk.bench.cells import Cell, Row, filled, table, time_of
from rootdk.bench.peers import NAMES
from rootdk.bench.ratios import geometric_mean
from rootdk.bench.targets import share_of_sgemm, speed_ratio
from rootdk.bench.verdict import STATISTICS, Verdict, headline

WITH_LEFT_OUT = ("forward", "backward", "half", "decode", "options", "tiny", "beside")


def show(report: dict[str, Any]) -> None:
    """Print everything in a report."""
    console = Console()
    _head(console, report)
    if report["targets"]:
        console.print(_targets(report["targets"]))
    pairs = {row["name"]: row for row in report.get("pairs", [])}
    for title, rows in (("Forward", report.get("forward")), ("Forward and gradient", report.get("backward"))):
        if rows:
            console.print(_own(title, rows, pairs))
            _rivals(console, title, rows)
    section_tables.show(console, report)
    for row in [row for key in WITH_LEFT_OUT for row in report.get(key, [])]:
        for name, reason in row["left_out"].items():
            _say(console, f"{row['name']}: {name} left out: {reason}")
        for name, note in row.get("notes", {}).items():
            _say(console, f"{row['name']}: {name} {note}")


def _head(console: Console, report: dict[str, Any]) -> None:
    if report["quick"]:
        console.print("quick: few calls on small shapes, no target judged: not for quoting", style="yellow")
    else:
        for line in headline(report["targets"]):
            _say(console, line)
    facts = report["machine"]
    _say(
        console,
        f"rootdk {facts['rootdk']} ({facts['kernel target']}), float32 unless named, "
        f"threads each: {report['threads']}, {facts['cpu']}, {facts['compiler']}",
    )
    peers = ", ".join(f"{name} {version}" for name, version in report["peers"].items())
    _say(console, f"against {peers or 'nobody'}")
    for name, reason in report["absent"].items():
        _say(console, f"without {name}: {reason}")
    if line := sgemm_line(report):
        _say(console, line)
    if (report["load_before"] or 0) > 0.5:
        line = f"other processes were running (load {report['load_before']:.1f} at the start): expect noise"
        console.print(line, style="yellow", highlight=False)


def sgemm_line(report: dict[str, Any]) -> str:
    """What a large sgemm reached in this run: over all races, the span of its best calls and of its medians."""
    rates = [row["sgemm"] for key in WITH_LEFT_OUT for row in report.get(key, []) if "sgemm" in row]
    if not rates:
        return ""
    best, median = ([rate[statistic] / 1e9 for rate in rates] for statistic in STATISTICS)
    return (
        f"sgemm in this run: {min(best):.0f} to {max(best):.0f} GFLOP/s in the best calls of a race, "
        f"{min(median):.0f} to {max(median):.0f} in the medians"
    )


def _say(console: Console, line: str) -> None:
    console.print(line, highlight=False, markup=False)


def _targets(targets: list[Verdict]) -> Table:
    made = table("Targets, judged by the worse of best and median", "target", "wanted", "best / median", "")
    words = {True: "[green]met[/]", False: "[red]short[/]", None: "-"}
    for target in targets:
        made.add_row(target["name"], target["wanted"], target["reached"], words[target["met"]])
    return made


def _own(title: str, rows: list[Row], pairs: dict[str, Row]) -> Table:
    """rootdk alone: time, and for the forward pass its rate, its share of sgemm's, and what measuring adds."""
    # A gradient's operations depend on what is computed twice, so a rate would compare unlike things.
    columns: dict[str, Cell] = {"ms, best / median": time_of("rootdk", 1e-3)}
    if title == "Forward":
        columns |= {"GFLOP/s": _rate, "of sgemm": _share}
        if pairs:
            columns["measure costs"] = lambda row: _measure(pairs[row["name"]])
    return filled(f"{title}: rootdk", "shape", rows, columns)


def _rivals(console: Console, title: str, rows: list[Row]) -> None:
    """How many times faster rootdk is than each of the others."""
    names = [name for name in NAMES if any(name in row["seconds"] for row in rows)]
    if not names:
        return
    made = table(f"{title}: how many times faster than the others, best/median", "shape", *names)
    for row in rows:
        made.add_row(row["name"], *(_faster([row], name, min) for name in names))
    made.add_section()
    made.add_row("geometric mean", *(_faster(rows, name, geometric_mean) for name in names))
    made.add_row("slowest shape", *(_faster(rows, name, min) for name in names))
    console.print(made)


def _rate(row: Row) -> str:
    return f"{row['flops'] / row['seconds']['rootdk']['best'] / 1e9:.0f}"


def _share(row: Row) -> str:
    return " / ".join(f"{share_of_sgemm(row, statistic):.0%}" for statistic in STATISTICS)


def _measure(pair: Row) -> str:
    return " / ".join(f"{pair['measure_over_attention'][statistic]:.2f}" for statistic in STATISTICS)


def _faster(rows: list[Row], name: str, fold: Callable[[list[float]], float]) -> str:
    present = [row for row in rows if name in row["seconds"]]
    if not present:
        return "-"
    return "/".join(f"{fold([speed_ratio(row, name, 'rootdk', s) for row in present]):.2f}" for s in STATISTICS)
