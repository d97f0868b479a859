"""`rootdk audit`: the health of a model's attention."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rootdk.untrusted import kind_of, shown_text

from . import options

if TYPE_CHECKING:
    from rootdk.audit.result import Phase

Progress = Callable[[str, float], None]

# As documented; 1 is an error and 2 a wrong option.
_FAILED = 3


@click.command()
@click.argument("path", type=click.Path(path_type=Path), required=False)
@click.option("--text", type=click.File(encoding="utf-8"), help="Run this text through the model, by transformers.")
@click.option("--tokens", type=click.IntRange(2, 2**20), help="The same with so many random tokens.")
@click.option(
    "--phase",
    type=click.Choice(["any", "init", "trained"]),
    default="any",
    show_default=True,
    help="What is known of the model: init makes theory a gate.",
)
@options.keys()
@options.seed("Seed of random tokens and of the demonstration.")
@options.file("--out", "Write a report to look at: one HTML file that opens offline.")
@options.as_json("Print JSON in place of maps and findings.")
@click.option(
    "--fail-on", type=click.Choice(["warning", "critical"]), help="Exit with code 3 if the verdict is that, or worse."
)
@click.pass_context
def audit(
    ctx: click.Context,
    path: Path | None,
    text: Any,
    tokens: int | None,
    phase: "Phase",
    keys: int,
    seed: int,
    out: Path | None,
    as_json: bool,
    fail_on: str | None,
) -> None:
    """The health of a model's attention.

    PATH is a model folder, a .safetensors file or an index of shards, with its config.json. Its weights are read head
    by head, without model code and in little memory; --text or --tokens run the model too, if it is a folder of
    transformers. Without PATH: a small model at its random start, under several scale rules.

    Exit code 0: done; 1: something failed; 2: an option is wrong; 3: --fail-on; 130: Ctrl-C.
    """
    from rich.console import Console

    from rootdk.audit.view import view

    from .progress import Bars

    if text is not None and tokens is not None:
        raise click.UsageError("--text and --tokens exclude each other", ctx)
    if path is None and (text is not None or tokens is not None):
        raise click.UsageError(f"{'--text' if text is not None else '--tokens'} needs a PATH to run", ctx)
    if out is not None:
        _check_report(out)
    words = _read(text)
    if path is not None and (words or tokens) and kind_of(path) and kind_of(path / "config.json") != "file":
        click.echo(
            f"{shown_text(path)} is no transformers folder and cannot be run: its weights alone are read.", err=True
        )
        words = tokens = None
    with Bars() as bars:
        found = audit_of(Order(path, words, tokens, keys, phase, seed), bars)
    if as_json:
        click.echo(json.dumps(found, indent=2, allow_nan=False))
    else:
        Console().print(view(found, maps=True))
    if out is not None:
        _write_report(found, out, path)
        click.echo(f"Report: {out}", err=as_json)
    if fail_on is not None and found["verdict"] in ("critical", fail_on):
        ctx.exit(_FAILED)


def _read(text: Any) -> str | None:
    from rootdk.audit.limits import LARGEST_TEXT

    if text is None:
        return None
    try:
        found = str(text.read(LARGEST_TEXT + 1))
    except UnicodeDecodeError as error:
        raise click.BadParameter(f"{shown_text(text.name)} is not UTF-8 text", param_hint="'--text'") from error
    if len(found) > LARGEST_TEXT:
        raise click.BadParameter(
            f"{shown_text(text.name)} must have at most {LARGEST_TEXT} characters", param_hint="'--text'"
        )
    return found


def _check_report(out: Path) -> None:
    """Before the work, so that nobody waits for a report that cannot be."""
    from rootdk.lab.report import check_plotly

    check_plotly()
    options.check_writable(out, "--out")


def _write_report(found: dict[str, Any], out: Path, path: Path | None) -> None:
    from rootdk.lab.report import render_audit
    from rootdk.version import __version__

    about = {"version": __version__} | ({} if path is None else {"path": shown_text(path)})
    options.write(out, render_audit(found, about), "--out")


@dataclass(frozen=True, slots=True)
class Order:
    """What was asked for; without a path, the demonstration."""

    path: Path | None
    text: str | None
    tokens: int | None
    keys: int
    phase: "Phase"
    seed: int


def audit_of(order: Order, progress: Progress) -> dict[str, Any]:
    """The audit as the dictionary that is its JSON."""
    if order.path is None:
        from rootdk.audit.demonstration import demonstrate

        return demonstrate(seed=order.seed, progress=progress).to_dict()
    from rootdk.audit import read_checkpoint

    watched = order.text is not None or order.tokens is not None
    share = 0.3 if watched else 1.0
    weights = read_checkpoint(
        order.path, keys=order.keys, phase=order.phase, progress=lambda name, done: progress(name, share * done)
    )
    if not watched:
        return weights.to_dict()
    from rootdk.audit.running import run_checkpoint

    run = run_checkpoint(
        order.path, text=order.text, tokens=order.tokens, seed=order.seed, phase=order.phase,
        progress=lambda name, done: progress(name, share + (1 - share) * done),
    )  # fmt: skip
    return weights.merge(run).to_dict()
