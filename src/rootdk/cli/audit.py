"""`rootdk audit`: the health of a model's attention."""

import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from rootdk.files import kind_of, shown_text
from rootdk.rendering import csv_text
from rootdk.version import __version__

from . import options

if TYPE_CHECKING:
    from rootdk.audit.result import Phase


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
@options.rule("Without PATH: a scale of the example. ")
@click.option("--layers", is_flag=True, help="Without PATH: print every layer and all findings, as for a model.")
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
    rule: tuple[str, ...],
    layers: bool,
    maps: bool,
    as_json: bool,
    as_csv: bool,
    fail_on: str | None,
) -> None:
    """Check the attention of a model.

    PATH is a model folder, or a file: .safetensors, .gguf, .bin, .pt, .onnx, .npz, or an index of shards. Its weights
    are read head by head, without model code and with little memory. --text or --tokens also run the model, if it is a
    folder of transformers. Without PATH you see an example: a small random model with several scales. A model has its
    own scale, so --rule is for the example only.

    Exit code 0: done; 1: something failed; 2: an option is wrong; 3: --fail-on; 130: Ctrl-C.
    """
    from rich.console import Console

    from rootdk.audit.view import view

    from .lifetime import Bars

    if text is not None and tokens is not None:
        raise click.UsageError("--text and --tokens exclude each other", ctx)
    if path is None and (text is not None or tokens is not None):
        raise click.UsageError(f"{'--text' if text is not None else '--tokens'} needs a PATH to run", ctx)
    if path is None and heads is not None:
        raise click.UsageError("--heads needs a PATH to read", ctx)
    if path is not None and ctx.get_parameter_source("rule") is not ParameterSource.DEFAULT:
        raise click.UsageError("--rule is for the example: a model is checked with its own scale", ctx)
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
        result = audit_of(path, words, tokens, keys, phase, seed, bars, heads, rule)
    if as_json:
        click.echo(json.dumps(result, indent=2, allow_nan=False))
    elif as_csv:
        rows = (
            {"layer": layer["name"], "head": number, **head}
            for layer in result["layers"]
            for number, head in enumerate(layer["heads"])
        )
        click.echo(csv_text(rows), nl=False)
    elif path is None and not (layers or maps):
        click.echo("\n".join(_example(result, rule, shutil.get_terminal_size().columns)))
    else:
        Console().print(view(result, maps=maps))
    if out is not None:
        from rootdk.lab.report import render_audit

        about = {"version": __version__} | ({} if path is None else {"path": shown_text(path)})
        options.write(out, render_audit(result, about), "--out")
        click.echo(f"Report: {out}", err=as_json or as_csv)
    if fail_on is not None and result["verdict"] in ("critical", fail_on):
        ctx.exit(3)  # 1 is an error and 2 a wrong option


# The metrics that are shown, each with the number of theory.
_SHOWN = ("logit_deviation", "entropy_ratio", "saturated")


def _example(result: Mapping[str, Any], rules: Sequence[str], width: int) -> Iterator[str]:
    """Which scales are not healthy and what to do, a line for each scale, and what to run next: one screen."""
    from statistics import median

    from rootdk.audit.metrics import METRICS, grouped
    from rootdk.audit.result import SEVERITIES, VERDICTS
    from rootdk.audit.running import D_K, HEADS, LAYERS, TOKENS
    from rootdk.lab.first_look import rule_label

    from .look import filled

    layers = {
        rule: [layer for layer in result["layers"] if layer["name"].startswith(f"{rule}.layers.")] for rule in rules
    }
    severities = {
        rule: {finding["severity"] for finding in result["findings"] if finding["layer"].startswith(f"{rule}.layers.")}
        for rule in rules
    }
    verdicts = {rule: next((v for v in VERDICTS if v in severities[rule]), "healthy") for rule in rules}
    labels = {rule: rule_label(rule) for rule in rules}
    healthy = [labels[rule] for rule in rules if verdicts[rule] == "healthy"]
    ill = [f"{labels[rule]} ({verdicts[rule]})" for rule in rules if verdicts[rule] != "healthy"]
    sentences = [f"Not healthy: the scale {', '.join(ill)}."] if ill else []
    sentences += [f"Healthy: {', '.join(healthy)}."] if healthy else []
    if ill:
        worst = next(group for group in grouped(result) if group.severity in SEVERITIES[:2])
        metric = next((known.short for known in METRICS if known.name == worst.metric), worst.metric)
        sentences += [f"The worst: {metric} {worst.value}, limit {worst.limit}."]
        sentences += [f"What to do: divide the scores by sqrt(d_k), here {D_K**0.5:g}; rootdk does this by default."]
    yield from filled(" ".join(sentences), width)
    yield ""
    yield from filled(
        f"The example: a random model of {LAYERS} layers, {HEADS} heads, d_k = {D_K}, {TOKENS} tokens. Only its scale "
        "changes.",
        width,
    )
    longest = max(11, *map(len, labels.values()))
    # A narrow terminal has no place for the last pair.
    wide = width >= longest + 57
    shown = _SHOWN if wide else _SHOWN[:-1]
    yield f"{'':{longest}}       score std   entropy share{' rows of one key' * wide}"
    yield f"{'scale':{longest}}{' theory measured' * len(shown)} verdict"
    for rule in rules:
        heads = [head for layer in layers[rule] for head in layer["heads"]]
        numbers = (
            f" {_number(median(layer['baseline'][name] for layer in layers[rule])):>6}"
            f" {_number(median(head[name] for head in heads)):>8}"
            for name in shown
        )
        yield f"{labels[rule]:{longest}}{''.join(numbers)} {verdicts[rule]}"
    of_the_last = "Rows of one key: one key has over 99 % of the weight. "
    yield from filled(
        "Score std: standard deviation of the scores inside a row. Entropy share: 1 is equal weights, 0 is one key. "
        f"{of_the_last * wide}Medians over all heads; theory is for random q and k.",
        width,
    )
    yield ""
    yield "Every layer, and all findings:  rootdk audit --layers"
    yield "Your model:                     rootdk audit PATH"
    yield "Your scale in the example:      rootdk audit --rule 0.2"


def _number(value: float) -> str:
    return "0" if abs(value) < 5e-4 else f"{value:.3f}" if value < 1.0 else f"{value:.3g}"


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
    progress: Callable[[str, float], None],
    heads: int | None,
    rules: Sequence[str],
) -> dict[str, Any]:
    """The audit as the dictionary that is its JSON; without a path, that of the demonstration under these rules."""
    if path is None:
        from rootdk.audit.running import demonstrate

        return demonstrate(rules, seed, progress).to_dict()
    from rootdk.audit import read_checkpoint

    if text is None and tokens is None:
        return read_checkpoint(path, heads=heads, keys=keys, phase=phase, progress=progress).to_dict()
    share = 0.3  # of the progress bar for reading the weights
    weights = read_checkpoint(
        path, heads=heads, keys=keys, phase=phase, progress=lambda name, done: progress(name, share * done)
    )
    from rootdk.audit.running import run_checkpoint

    run = run_checkpoint(
        path, text=text, tokens=tokens, seed=seed, phase=phase,
        progress=lambda name, done: progress(name, share + (1 - share) * done),
    )  # fmt: skip
    return weights.merge(run).to_dict()
