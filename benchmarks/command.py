"""The command line: which options there are, and the page that a report is shown as."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from benchmarks.children import BenchError, run
from benchmarks.peers import OPEN
from benchmarks.section import STATISTICS, Report, Row, Verdict, table
from benchmarks.sections import all_sections
from rootdk.backends import kernel
from rootdk.errors import RootdkError
from rootdk.files import write_atomically
from rootdk.processes import cpus_allowed


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--what",
    type=click.Choice([*all_sections(), "all"]),
    metavar="SECTION",
    multiple=True,
    default=("all",),
    show_default=True,
    help=f"What to time; repeat it: {', '.join(all_sections())}.",
)
@click.option(
    "--peer",
    "peers",
    type=click.Choice(list(OPEN)),
    multiple=True,
    help="Compare with this library only; repeat it. Default: all that are installed.",
)
@click.option(
    "--threads",
    type=click.IntRange(1, 1024),
    default=None,
    help="Threads for every contestant. Default: the CPUs this process may use.",
)
@click.option("--quick", is_flag=True, help="A few small shapes and few calls: to see that it works, not to quote.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON in place of tables.")
@click.option(
    "--output", type=click.Path(dir_okay=False, path_type=Path), default=None, help="Write the JSON to this file too."
)
def main(
    what: tuple[str, ...], peers: tuple[str, ...], threads: int | None, quick: bool, as_json: bool, output: Path | None
) -> None:
    """Side by side with other libraries, call by call in one run."""
    sections = tuple(all_sections()) if "all" in what else what
    try:
        kernel()  # so that a missing one is an error here and not in the middle of another process's output
        report = run(sections, peers, threads or cpus_allowed(), quick)
    except (BenchError, RootdkError) as error:
        raise click.ClickException(" ".join(str(error).splitlines())) from error
    if as_json:
        click.echo(json.dumps(report, indent=2))
    else:
        show(report)
    # Last, so that a full disk does not cost the minutes just spent.
    if output is not None:
        try:
            output.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(output, json.dumps(report, indent=2) + "\n")
        except OSError as error:
            raise click.ClickException(f"--output: cannot write {output}: {error.strerror}") from error
        click.echo(f"written to {output}", err=True)


def show(report: Report) -> None:
    """Print a page: what falls short, the machine, all targets, the sections, and who was left out of what."""
    console = Console()
    for part in _page(report):
        console.print(part, highlight=False, markup=False)


def _page(report: Report) -> Iterator[Table | Text | str]:
    if report["quick"]:
        yield Text("quick: few calls on small shapes, no target judged: not for quoting", "yellow")
    else:
        yield from headline(report["targets"])
    yield from _circumstances(report)
    if report["targets"]:
        yield _targets(report["targets"])
    for name, section in all_sections().items():
        if report.get(name):
            yield from section.show(report)
    for row in _rows(report):
        for name, reason in row["left_out"].items():
            yield f"{row['name']}: {name} left out: {reason}"
        for name, note in row.get("notes", {}).items():
            yield f"{row['name']}: {name} {note}"


def headline(verdicts: Sequence[Verdict]) -> Iterator[str]:
    """What stands at the top: what falls short, what was not judged, or that every target is reached."""
    short = [verdict for verdict in verdicts if verdict["met"] is False]
    unjudged = [verdict for verdict in verdicts if verdict["met"] is None]
    judged = len(verdicts) - len(unjudged)
    if short:
        yield f"falls short: {len(short)} of {judged} targets"
        for verdict in short:
            why = f" ({verdict['why']})" if verdict["why"] else ""
            yield f"  {verdict['name']}: {verdict['reached']}, wanted {verdict['wanted']}{why}"
    elif judged:
        yield "every target reached" if not unjudged else f"every target that was judged is reached ({judged})"
    if unjudged:
        yield f"not judged: {len(unjudged)}"
        for verdict in unjudged:
            yield f"  {verdict['name']}: {verdict['why']}"


def _circumstances(report: Report) -> Iterator[Text | str]:
    facts = report["machine"]
    yield (
        f"rootdk {facts['rootdk']} ({facts['kernel target']}), float32 unless named, "
        f"threads each: {report['threads']}, {facts['cpu']}, {facts['compiler']}"
    )
    peers = ", ".join(f"{name} {version}" for name, version in report["peers"].items())
    yield f"against {peers or 'nobody'}"
    for name, reason in report["absent"].items():
        yield f"without {name}: {reason}"
    # Over all races, the span of the best calls of a large sgemm and of its medians.
    if rates := [row["sgemm"] for row in _rows(report) if "sgemm" in row]:
        best, median = ([rate[statistic] / 1e9 for rate in rates] for statistic in STATISTICS)
        yield (
            f"sgemm in this run: {min(best):.0f} to {max(best):.0f} GFLOP/s in the best calls of a race, "
            f"{min(median):.0f} to {max(median):.0f} in the medians"
        )
    if (report["load_before"] or 0) > 0.5:
        line = f"other processes were running (load {report['load_before']:.1f} at the start): expect noise"
        yield Text(line, "yellow")


def _rows(report: Report) -> list[Row]:
    """Of all sections whose entry is a list of races."""
    return [row for name in all_sections() if isinstance(report.get(name), list) for row in report[name]]


def _targets(targets: Sequence[Verdict]) -> Table:
    lines = table("Targets, judged by the worse of best and median", "target", "wanted", "best / median", "")
    words = {True: Text("met", "green"), False: Text("short", "red"), None: Text("-")}
    for target in targets:
        lines.add_row(target["name"], target["wanted"], target["reached"], words[target["met"]])
    return lines
