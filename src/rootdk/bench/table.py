"""A report on the terminal: targets first, then the shapes, then what they come to."""

from collections.abc import Callable
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from rootdk.bench.peers import NAMES
from rootdk.bench.ratios import geometric_mean
from rootdk.bench.targets import STATISTICS, mebibytes, share_of_sgemm, speed_ratio

Row = dict[str, Any]


def show(report: dict[str, Any]) -> None:
    """Print everything in a report."""
    console = Console()
    facts = report["machine"]
    console.print(
        f"rootdk {facts['rootdk']} ({facts['kernel target']}), float32, threads each: {report['threads']}, "
        f"{facts['cpu']}, {facts['compiler']}",
        highlight=False,
        markup=False,
    )
    peers = ", ".join(f"{name} {version}" for name, version in report["peers"].items())
    console.print(f"against {peers or 'nobody'}", highlight=False, markup=False)
    for name, reason in report["absent"].items():
        console.print(f"without {name}: {reason}", highlight=False, markup=False)
    if report["quick"]:
        console.print("quick: few calls on small shapes, no target judged: not for quoting", style="yellow")
    if (report["load_before"] or 0) > 0.5:
        line = f"other processes were running (load {report['load_before']:.1f} at the start): expect noise"
        console.print(line, style="yellow", highlight=False)
    if report["targets"]:
        console.print(_targets(report["targets"]))
    if "forward" in report:
        console.print(_own("Forward", report["forward"]))
        _rivals(console, "Forward", report["forward"])
    if "backward" in report:
        console.print(_own("Forward and gradient", report["backward"]))
        _rivals(console, "Forward and gradient", report["backward"])
    for row in report.get("forward", []) + report.get("backward", []):
        for name, reason in row["left_out"].items():
            console.print(f"{row['name']}: {name} left out: {reason}", highlight=False, markup=False)
    if "memory" in report:
        _memory(console, report["memory"])


def _table(title: str, *headings: str) -> Table:
    """First column to the left, the others to the right, as narrow as it gets: five peers must fit in 80 columns."""
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=0, min_width=len(title) + 2)
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="right" if number else "left", no_wrap=number == 0)
    return table


def _targets(targets: list[dict[str, Any]]) -> Table:
    table = _table("Targets, judged by the worse of best and median", "target", "wanted", "best / median", "")
    for target in targets:
        verdict = "[green]met[/]" if target["met"] else "[red]short[/]"
        table.add_row(target["name"], target["wanted"], target["reached"], verdict)
    return table


def _own(title: str, rows: list[Row]) -> Table:
    """rootdk alone: time, and for the forward pass its rate, its share of sgemm's, and what measuring adds."""
    # A gradient's operations depend on what is computed twice, so a rate would compare unlike things.
    columns: dict[str, Callable[[Row], str]] = {"ms, best / median": _milliseconds}
    if title == "Forward":
        columns |= {"GFLOP/s": _rate, "of sgemm": _share}
    if any("measure" in row["seconds"] for row in rows):
        columns["measure costs"] = _measure
    table = _table(f"{title}: rootdk", "shape", *columns)
    for row in rows:
        table.add_row(row["name"], *(cell(row) for cell in columns.values()))
    return table


def _rivals(console: Console, title: str, rows: list[Row]) -> None:
    """How many times faster rootdk is than each of the others."""
    names = [name for name in NAMES if any(name in row["seconds"] for row in rows)]
    if not names:
        return
    table = _table(f"{title}: how many times faster than the others, best/median", "shape", *names)
    for row in rows:
        table.add_row(row["name"], *(_faster([row], name, min) for name in names))
    table.add_section()
    table.add_row("geometric mean", *(_faster(rows, name, geometric_mean) for name in names))
    table.add_row("slowest shape", *(_faster(rows, name, min) for name in names))
    console.print(table)


def _milliseconds(row: Row) -> str:
    return " / ".join(f"{row['seconds']['rootdk'][statistic] * 1e3:.3g}" for statistic in STATISTICS)


def _rate(row: Row) -> str:
    return f"{row['flops'] / row['seconds']['rootdk']['best'] / 1e9:.0f}"


def _share(row: Row) -> str:
    return " / ".join(f"{share_of_sgemm(row, statistic):.0%}" for statistic in STATISTICS)


def _measure(row: Row) -> str:
    return " / ".join(f"{speed_ratio(row, 'measure', 'rootdk', statistic):.2f}" for statistic in STATISTICS)


def _faster(rows: list[Row], name: str, fold: Callable[[list[float]], float]) -> str:
    present = [row for row in rows if name in row["seconds"]]
    if not present:
        return "-"
    return "/".join(f"{fold([speed_ratio(row, name, 'rootdk', s) for row in present]):.2f}" for s in STATISTICS)


def _memory(console: Console, memory: dict[str, Any]) -> None:
    console.print(
        f"Memory: one head, {memory['keys']} keys, d = {memory['d']}: {mebibytes(memory['extra_bytes'])} above "
        f"inputs ({mebibytes(memory['input_bytes'])}) and output ({mebibytes(memory['output_bytes'])}) at the peak of "
        "the first call of a process, its scratch, its threads and the loaded kernel included; "
        f"all scores at once would be {mebibytes(memory['full_scores_bytes'])}.",
        highlight=False,
    )
