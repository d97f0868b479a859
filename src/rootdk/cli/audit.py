"""`rootdk audit`: the health of a model's attention."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rootdk.rendering import csv_text
from rootdk.untrusted import kind_of, shown_text
from rootdk.version import __version__

from . import options

if TYPE_CHECKING:
    from rootdk.audit.result import Phase

Progress = Callable[[str, float], None]

# As documented; 1 is an error and 2 a wrong option.
_FAILED = 3


@click.command()
@click.argument("path", type=click.Path(path_type=Path), required=False)
@click.option("--text", type=click.File(encoding="utf-8"), help="Also run the model on this text, with transformers.")
@click.option("--tokens", type=options.Integer(2, 2**20), help="Also run the model on this many random tokens.")
@click.option(
    "--heads", type=options.Integer(1, 1024), help="Query heads of a layer, for weights without a config.json."
)
@click.option(
    "--phase",
    type=click.Choice(["any", "init", "trained"]),
    default="any",
    show_default=True,
    help="State of the model; with init it is also compared with theory.",
)
@options.keys()
@options.seed("Seed of random tokens and of the example.")
@options.file("--out", "Write a report: one HTML file that works offline.")
@click.option("--maps", is_flag=True, help="Print maps of every head instead of the table of layers.")
@options.data("Print JSON instead of the table and the findings.", "one row per head")
@click.option(
    "--fail-on", type=click.Choice(["warning", "critical"]), help="Exit with code 3 if the verdict is this, or worse."
)
@click.pass_context
def audit(
    ctx: click.Context,
    path: Path | None,
    text: Any,
    tokens: int | None,
    heads: int | None,
    phase: "Phase",
    keys: int,
    seed: int,
    out: Path | None,
    maps: bool,
    as_json: bool,
    as_csv: bool,
    fail_on: str | None,
) -> None:
    """Check the attention of a model.

    PATH is a model folder, or a file: .safetensors, .gguf, .bin, .pt, .onnx, .npz, or an index of shards. Its weights
    are read head by head, without model code and with little memory. --text or --tokens also run the model, if it is a
    folder of transformers. Without PATH you see an example: a small random model with several scales.

    Exit code 0: done; 1: something failed; 2: an option is wrong; 3: --fail-on; 130: Ctrl-C.
    """
    from rich.console import Console

    from rootdk.audit.view import view

    from .progress import Bars

    if text is not None and tokens is not None:
        raise click.UsageError("--text and --tokens exclude each other", ctx)
    if path is None and (text is not None or tokens is not None):
        raise click.UsageError(f"{'--text' if text is not None else '--tokens'} needs a PATH to run", ctx)
    if path is None and heads is not None:
        raise click.UsageError("--heads needs a PATH to read", ctx)
    if out is not None:  # an error now, before the long work
        from rootdk.lab.report import check_plotly

        check_plotly()
        options.check_writable(out, "--out")
    words = None if text is None else _read(text)
    if path is not None and (words or tokens) and kind_of(path) and kind_of(path / "config.json") != "file":
        click.echo(
            f"{shown_text(path)} is no transformers folder and cannot be run: its weights alone are read.", err=True
        )
        words = tokens = None
    with Bars() as bars:
        result = audit_of(path, words, tokens, keys, phase, seed, bars, heads)
    if as_json:
        click.echo(json.dumps(result, indent=2, allow_nan=False))
    elif as_csv:
        click.echo(csv_text(_heads(result)), nl=False)
    else:
        Console().print(view(result, maps=maps))
    if out is not None:
        from rootdk.lab.report import render_audit

        about = {"version": __version__} | ({} if path is None else {"path": shown_text(path)})
        options.write(out, render_audit(result, about), "--out")
        click.echo(f"Report: {out}", err=as_json or as_csv)
    if fail_on is not None and result["verdict"] in ("critical", fail_on):
        ctx.exit(_FAILED)


def _heads(result: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for layer in result["layers"]:
        for number, head in enumerate(layer["heads"]):
            yield {"layer": layer["name"], "head": number, **head}


def _read(text: Any) -> str:
    from rootdk.audit.limits import LARGEST_TEXT

    try:
        words = str(text.read(LARGEST_TEXT + 1))
    except UnicodeDecodeError as error:
        raise click.BadParameter(f"{shown_text(text.name)} is not UTF-8 text", param_hint="'--text'") from error
    if len(words) > LARGEST_TEXT:
        raise click.BadParameter(
            f"{shown_text(text.name)} must have at most {LARGEST_TEXT} characters", param_hint="'--text'"
        )
    return words


def audit_of(
    path: Path | None,
    text: str | None,
    tokens: int | None,
    keys: int,
    phase: "Phase",
    seed: int,
    progress: Progress,
    heads: int | None = None,
) -> dict[str, Any]:
    """The audit as the dictionary that is its JSON; without a path, that of the demonstration."""
    if path is None:
        from rootdk.audit.demonstration import demonstrate

        return demonstrate(seed=seed, progress=progress).to_dict()
    from rootdk.audit import read_checkpoint

    watched = text is not None or tokens is not None
    share = 0.3 if watched else 1.0
    weights = read_checkpoint(
        path, heads=heads, keys=keys, phase=phase, progress=lambda name, done: progress(name, share * done)
    )
    if not watched:
        return weights.to_dict()
    from rootdk.audit.running import run_checkpoint

    run = run_checkpoint(
        path, text=text, tokens=tokens, seed=seed, phase=phase,
        progress=lambda name, done: progress(name, share + (1 - share) * done),
    )  # fmt: skip
    return weights.merge(run).to_dict()
