"""The command line. Each command imports what it needs inside itself, so that `rootdk info` pays for nothing else."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rootdk import RootdkError, __version__

if TYPE_CHECKING:
    from rootdk.claims import Record
    from rootdk.first_look import Look

# Past this a look or a study would take too long; the operator itself has no such limit.
LARGEST_D_K, LARGEST_KEYS, LARGEST_ROWS = 8192, 262_144, 65_536


class _Commands(click.Group):
    """Every command shows an error of the package as one line; a traceback would be for an error in the package."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except RootdkError as error:
            raise click.ClickException(" ".join(str(error).splitlines())) from error


def _known_rules(_ctx: click.Context, _option: click.Parameter, names: tuple[str, ...]) -> tuple[str, ...]:
    from rootdk.scaling import rule

    try:
        for name in names:
            rule(name)
    except RootdkError as error:
        # What follows the name that the argument has in Python: click puts --rule in its place.
        raise click.BadParameter(str(error).partition(": ")[2]) from error
    return names


_RULE_OPTION: dict[str, Any] = {
    "multiple": True,
    "callback": _known_rules,
    "default": ("none", "sqrt", "dk"),
    "show_default": True,
    "help": "Name of a scale rule; repeat it.",
}
_SEED: dict[str, Any] = {"type": click.IntRange(0, 2**63 - 1), "default": 0, "show_default": True}


@click.group(cls=_Commands, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--quick", "size", flag_value="quick", help="Some seconds: to see that it works.")
@click.option("--full", "size", flag_value="full", help="Some minutes: 20,000 rows for every number.")
@click.option(
    "--d-k",
    type=click.IntRange(1, LARGEST_D_K),
    multiple=True,
    default=(64, 512),
    show_default=True,
    help="Your d_k, the length of q and k; repeat it.",
)
@click.option(
    "--keys", type=click.IntRange(2, LARGEST_KEYS), default=1024, show_default=True, help="Keys that each query sees."
)
@click.option("--rule", **_RULE_OPTION)
@click.option("--seed", help="Seed of all that is drawn.", **_SEED)
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    default=None,
    help="Where to write the report.  [default: rootdk-report.html]",
)
@click.option("--no-report", is_flag=True, help="Print the summary and write nothing.")
@click.option("--no-cache", is_flag=True, help="Run everything again, and keep nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON in place of the summary; a report only with --out.")
@click.version_option(__version__, message="rootdk %(version)s")
@click.pass_context
def main(
    ctx: click.Context,
    size: str | None,
    d_k: tuple[int, ...],
    keys: int,
    rule: tuple[str, ...],
    seed: int,
    out: Path | None,
    no_report: bool,
    no_cache: bool,
    as_json: bool,
) -> None:
    """Attention that can be measured.

    Without a command: why 1/sqrt(d_k), and is it true? Runs the study and the claims, prints a summary, and writes a
    report to look at. Exit code 0: done; 1: something failed, or the report needs plotly and it is not installed (the
    summary is printed all the same); 2: an option is wrong.
    """
    if ctx.invoked_subcommand is not None:
        _refuse_stray_options(ctx)
        return
    from rootdk._backends import kernel
    from rootdk.terminal.command import answer
    from rootdk.terminal.job import Job

    kernel()  # so that a missing one is an error before anything is drawn
    if no_report and out is not None:
        raise click.UsageError("--out and --no-report exclude each other", ctx)
    job = Job(size or "default", tuple(dict.fromkeys(d_k)), keys, tuple(dict.fromkeys(rule)), seed)
    wanted = out or (None if no_report or as_json else Path("rootdk-report.html"))
    answer(job, wanted, asked_for=out is not None, cached=not no_cache, as_json=as_json)


def _refuse_stray_options(ctx: click.Context) -> None:
    """`rootdk --keys 9 info` would drop the option without a word; say so instead."""
    for name in ctx.params:
        if ctx.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE:
            option = next(p.opts[0] for p in ctx.command.params if p.name == name)
            raise click.UsageError(f"{option} belongs to rootdk itself and not to '{ctx.invoked_subcommand}'", ctx)


@main.command()
@click.option(
    "--d-k",
    type=click.IntRange(1, LARGEST_D_K),
    multiple=True,
    default=(64, 512),
    show_default=True,
    help="Length of q and k; repeat it.",
)
@click.option("--rule", **_RULE_OPTION)
@click.option(
    "--keys", type=click.IntRange(2, LARGEST_KEYS), default=1024, show_default=True, help="Keys that each query sees."
)
@click.option(
    "--rows", type=click.IntRange(1, LARGEST_ROWS), default=1024, show_default=True, help="Queries to measure."
)
@click.option("--seed", help="Seed of the random q and k.", **_SEED)
@click.option("--json", "as_json", is_flag=True, help="Print JSON in place of a table.")
def look(d_k: tuple[int, ...], rule: tuple[str, ...], keys: int, rows: int, seed: int, as_json: bool) -> None:
    """A first look at what the scale does.

    The same random q and k go through rootdk.measure under every rule.
    """
    from rootdk.first_look import look as measured
    from rootdk.first_look import meaning

    looks = measured(d_k, rule, keys, rows, seed)
    if as_json:
        click.echo(
            json.dumps({"seed": seed, "looks": [one.to_dict() for one in looks], "meaning": meaning(looks)}, indent=2)
        )
    else:
        _print_looks(looks, meaning(looks))


def _rule_or_number(_ctx: click.Context, _option: click.Parameter, given: str) -> str | float:
    """A name of a rule, or the scale itself."""
    import math

    from rootdk.scaling import rule

    try:
        number = float(given)
    except ValueError:
        try:
            return rule(given).name
        except RootdkError as error:
            raise click.BadParameter(f"{str(error).partition(': ')[2]}; a number is taken as the scale") from error
    if not math.isfinite(number) or abs(number) > 1e3:
        raise click.BadParameter(f"must be the name of a rule or a number up to 1000 in size, got {given}")
    return number


def _spread(_ctx: click.Context, _option: click.Parameter, given: float) -> float:
    """A standard deviation; click's own range would let NaN pass."""
    if not 0.0 < given <= 1e3:
        raise click.BadParameter(f"must be a number above 0 and up to 1000, got {given:g}")
    return given


@main.command()
@click.option("--d-k", type=click.IntRange(1, 10**6), required=True, help="Length of q and k.")
@click.option("--keys", type=click.IntRange(2, 10**12), required=True, help="Keys that each query sees.")
@click.option(
    "--rule", default="sqrt", show_default=True, callback=_rule_or_number, help="Name of a rule, or the scale itself."
)
@click.option(
    "--sigma",
    type=float,
    default=1.0,
    show_default=True,
    callback=_spread,
    help="Standard deviation of the components of q and k.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON in place of text.")
def predict(d_k: int, keys: int, rule: str | float, sigma: float, as_json: bool) -> None:
    """Theory for one setting, with a recommendation. Nothing is drawn."""
    from rootdk.study import setting
    from rootdk.terminal.predicted import lines

    report = setting(d_k, keys, rule, sigma)
    click.echo(json.dumps(report.to_dict(), indent=2) if as_json else "\n".join(lines(report)))


@main.command()
@click.option("--d", type=click.IntRange(1, 10**6), default=3, show_default=True, help="Length of q and k.")
@click.option("--seed", help="Seed of the random pairs.", **_SEED)
@click.option("--json", "as_json", is_flag=True, help="Print JSON in place of text.")
def prove(d: int, seed: int, as_json: bool) -> None:
    """Why the variance of q.k is d, step by step with the actual terms."""
    from rootdk.study import prove as proof_of
    from rootdk.terminal.proved import lines

    proof = proof_of(d, seed)
    click.echo(json.dumps(proof.to_dict(), indent=2) if as_json else "\n".join(lines(proof)))


def _print_looks(looks: Sequence["Look"], line: str) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from rootdk.scaling import rule

    table = Table(
        caption="means over queries of variance, entropy; medians of effective keys, trace of the softmax Jacobian",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        collapse_padding=True,
    )
    table.add_column("d_k", justify="right", no_wrap=True)
    table.add_column("scale", no_wrap=True)
    for heading in ("score\nvariance", "entropy /\nln n", "effective\nkeys", "rows with\np > .99", "Jacobian\ntrace"):
        table.add_column(heading, justify="right", no_wrap=True)
    for number, one in enumerate(looks):
        table.add_row(
            str(one.d_k),
            one.rule,
            *one.shown().values(),
            end_section=number + 1 == len(looks) or looks[number + 1].d_k != one.d_k,
        )
    console = Console()
    names = dict.fromkeys(one.rule for one in looks)
    formulas = [f"{name} = {rule(name).formula}" for name in names]
    title = f"{looks[0].rows} random queries over {looks[0].keys} keys, scores times a scale:"
    pieces = [*title.split(), *(f"{formula}," for formula in formulas[:-1]), formulas[-1]]
    console.print(_fill(pieces, console.width), highlight=False, markup=False)
    console.print(table)
    console.print(line, highlight=False, markup=False)


def _fill(pieces: Sequence[str], width: int) -> str:
    """The pieces one after the other, in lines that break only between two of them."""
    import textwrap

    # A character that no text holds stands for the spaces inside a piece while the lines are made.
    text = " ".join(piece.replace(" ", "\0") for piece in pieces)
    return textwrap.fill(text, width, break_long_words=False, break_on_hyphens=False).replace("\0", " ")


@main.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON in place of a list.")
def info(as_json: bool) -> None:
    """Version, kernel target in use, threads."""
    from rootdk.bench.machine import describe

    facts = describe()
    if as_json:
        click.echo(json.dumps(facts, indent=2))
        return
    width = max(map(len, facts))
    for name, value in facts.items():
        click.echo(f"{name:<{width}}  {', '.join(value) if isinstance(value, list) else value}")


def _known_claims(_ctx: click.Context, _option: click.Parameter, ids: tuple[int, ...]) -> tuple[int, ...]:
    from rootdk.claims import LEDGER

    try:
        for one in ids:
            LEDGER[one]
    except RootdkError as error:
        raise click.BadParameter(str(error).partition(": ")[2]) from error
    return ids


@main.command()
@click.option("--id", "ids", type=int, multiple=True, callback=_known_claims, help="Only this claim; repeat it.")
@click.option(
    "--rows",
    type=click.IntRange(1024, 1_000_000),
    default=2048,
    show_default=True,
    help="Random rows per measured setting: 1024 for a quick look, 20000 for a thorough one.",
)
@click.option("--seed", type=click.IntRange(0, 2**63 - 1), default=0, show_default=True, help="Seed of what is drawn.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON in place of text.")
def claims(ids: tuple[int, ...], rows: int, seed: int, as_json: bool) -> None:
    """What is said about the scale, checked.

    Each claim with its source, the evidence with its standard error, and the verdict that follows from it.
    """
    import shutil

    from rootdk.claims import Setting
    from rootdk.claims.table import counts, lines

    records = _checked(ids, Setting(rows=rows, seed=seed))
    if as_json:
        found = [one.to_dict() for one in records]
        click.echo(json.dumps({"rows": rows, "seed": seed, "verdicts": counts(records), "claims": found}, indent=2))
    else:
        click.echo("\n".join(lines(records, min(shutil.get_terminal_size().columns, 120))))


def _checked(ids: Sequence[int], setting: Any) -> list["Record"]:
    """The records, with a bar on a terminal's standard error: the whole ledger takes some seconds."""
    from rich.console import Console
    from rich.progress import Progress

    from rootdk.claims import LEDGER

    chosen = ids or LEDGER.ids
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        found = LEDGER.check(chosen, setting)
        return list(progress.track(found, total=len(dict.fromkeys(chosen)), description="checking claims"))


@main.command()
@click.option(
    "--what",
    type=click.Choice(
        ["forward", "measure", "backward", "half", "decode", "options", "tiny", "beside", "import", "memory", "all"]
    ),
    metavar="SECTION",
    multiple=True,
    default=("all",),
    show_default=True,
    help="What to time; repeat it: forward, measure, backward, half, decode, options, tiny, beside, import, memory.",
)
@click.option(
    "--peer",
    "peers",
    type=click.Choice(["torch", "onnxruntime", "jax", "openvino", "numpy"]),
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
def bench(
    what: tuple[str, ...], peers: tuple[str, ...], threads: int | None, quick: bool, as_json: bool, output: Path | None
) -> None:
    """Side by side with other libraries, call by call in one run."""
    from rootdk._backends import kernel
    from rootdk.bench.launch import BenchError, Options, run
    from rootdk.bench.machine import cpus_allowed
    from rootdk.bench.setting import SECTIONS

    kernel()  # so that a missing one is an error here and not in the middle of another process's output
    sections = SECTIONS if "all" in what else what
    options = Options(sections=sections, peers=peers, threads=threads or cpus_allowed(), quick=quick)
    try:
        report: dict[str, Any] = run(options)
    except BenchError as error:
        raise click.ClickException(str(error)) from error
    if as_json:
        click.echo(json.dumps(report, indent=2))
    else:
        from rootdk.bench.table import show

        show(report)
    # Last, so that a full disk does not cost the minutes just spent.
    if output is not None:
        try:
            output.parent.mkdir(parents=True, exist_ok=True)
            output.write_text(json.dumps(report, indent=2) + "\n")
        except OSError as error:
            raise click.ClickException(f"--output: cannot write {output}: {error.strerror}") from error
        click.echo(f"written to {output}", err=True)
