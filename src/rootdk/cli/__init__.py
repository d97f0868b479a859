"""The command line: `rootdk` itself, and the way to its commands.

Each command is a file here: a click command of the file's name (with an underscore for a dash), and what it runs and
prints, in at most 80 columns. It imports what it needs inside its functions, so that `rootdk info` and `rootdk --help`
load nothing else. `main_job` is what `rootdk` does without a command. Several commands need `options`, and `lifetime`,
which shows the progress of a command and ends it early.
"""

import difflib
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from rootdk.errors import RootdkError
from rootdk.files import shown_text
from rootdk.version import __version__

from . import options

NAMES = ("audit", "claims", "explore", "figures", "info", "look", "plan", "predict", "prove", "train-study")
_LONGEST = 1200


class _Commands(click.Group):
    """Commands by name, each loaded when it is called or listed.

    An error of the package is shown as one line; a traceback would be for an error in the package. Ctrl-C ends in
    exit code 130.
    """

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run as a process of its own, as `rootdk` and `python -m rootdk` do: `lifetime` decides how a command ends."""
        from .lifetime import supervised

        return supervised(lambda: super(_Commands, self).__call__(*args, **kwargs))

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 -- the signature is click's
        return sorted(NAMES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in NAMES:
            return None
        name = cmd_name.replace("-", "_")
        command: click.Command = getattr(import_module(f".{name}", __name__), name)
        return command

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        """As click does, but an error suggests a command with a similar name."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            near = difflib.get_close_matches(args[0], NAMES, 1)
            if not near or "Did you mean" in error.message:
                raise
            raise click.UsageError(f"{error.message} Did you mean '{near[0]}'?", ctx) from error

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        with _errors_of_click():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> Any:
        with _errors_of_click():
            return super().invoke(ctx)


@contextmanager
def _errors_of_click() -> Iterator[None]:
    """Turn errors and Ctrl-C into exceptions of click, which ends the process accordingly."""
    try:
        yield
    except RootdkError as error:
        raise click.ClickException(shown_text(" ".join(str(error).splitlines()), _LONGEST)) from error
    except KeyboardInterrupt as stopped:
        from .lifetime import Interrupted

        raise Interrupted from stopped


@click.group(
    cls=_Commands,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "show_default": True},
)
@click.option("--quick", is_flag=True, help="Small: takes some seconds.")
@click.option("--full", is_flag=True, help="Large: takes some minutes, 20,000 rows for every number.")
@options.d_k()
@options.keys()
@options.rule()
@options.seed("Seed of the random numbers.")
@options.file("--out", "File for the report.  [default: rootdk-report.html]")
@click.option("--no-report", is_flag=True, help="Print the summary only; write no report.")
@click.option("--no-cache", is_flag=True, help="Compute everything again, and keep no results.")
@options.data("Print JSON instead of the summary; writes a report only with --out.", "one row per number")
@click.version_option(__version__, message="rootdk %(version)s")
@click.pass_context
def main(
    ctx: click.Context,
    quick: bool,
    full: bool,
    d_k: tuple[int, ...],
    keys: int,
    rule: tuple[str, ...],
    seed: int,
    out: Path | None,
    no_report: bool,
    no_cache: bool,
    as_json: bool,
    as_csv: bool,
) -> None:
    """Scaled dot-product attention that can measure itself.

    Without a command, rootdk answers: why divide by sqrt(d_k), and is it true? It computes, measures, checks claims,
    prints the answer on one screen and writes a report.

    Exit code 0: done; 1: something failed, or plotly, which the report needs, is not installed (the summary is printed
    anyway); 2: an option is wrong.
    """
    if ctx.invoked_subcommand is not None:
        _refuse_stray_options(ctx)
        return
    from rootdk.backends import kernel

    from .main_job import Job, answer

    kernel()  # so that a missing one is an error before anything is drawn
    for first, second, clash in (("--out", "--no-report", out and no_report), ("--quick", "--full", quick and full)):
        if clash:
            raise click.UsageError(f"{first} and {second} exclude each other", ctx)
    size = "quick" if quick else "full" if full else "default"
    job = Job(size, tuple(dict.fromkeys(d_k)), keys, rule, seed)
    path = out or (None if no_report or as_json or as_csv else Path("rootdk-report.html"))
    answer(job, path, asked_for=out is not None, cached=not no_cache, as_json=as_json, as_csv=as_csv)


def _refuse_stray_options(ctx: click.Context) -> None:
    """`rootdk --keys 9 info` would ignore the option silently; make it an error instead."""
    for name in ctx.params:
        if ctx.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE:
            option = next(p.opts[0] for p in ctx.command.params if p.name == name)
            raise click.UsageError(
                f"{option} belongs to rootdk without a command, not to '{ctx.invoked_subcommand}'", ctx
            )
