"""Options that several commands have, so that each means the same everywhere; and the forms and files they ask for."""

import json
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click

from rootdk.errors import RootdkError
from rootdk.files import check_destination, write_atomically
from rootdk.processes import current_folder
from rootdk.rendering import csv_text

# Beyond this a look or a study would take too long; the operator itself has no such limit.
LARGEST_D_K, LARGEST_KEYS = 8192, 262_144

Command = TypeVar("Command", bound=Callable[..., Any])
Option = Callable[[Command], Command]


class Integer(click.IntRange):
    """A whole number in a range; click calls such a type "integer range", in its help and in its errors."""

    name = "integer"


def number(name: str, least: int, most: int, default: Any, words: str, **more: Any) -> Option[Any]:
    """An option for a whole number."""
    return click.option(name, type=Integer(least, most), default=default, help=words, **more)


def d_k() -> Option[Any]:
    """--d-k, which may be given several times."""
    words = "Number of components of q and k; can be repeated."
    return number("--d-k", 1, LARGEST_D_K, (64, 512), words, multiple=True)


def keys() -> Option[Any]:
    """--keys, one number."""
    return number("--keys", 2, LARGEST_KEYS, 1024, "Number of keys that each query sees.")


def rule(words: str = "", default: tuple[str, ...] = ("none", "sqrt", "dk")) -> Option[Any]:
    """--rule as text, which may be given several times; the command gets the names of rules that exist."""
    return click.option(
        "--rule",
        multiple=True,
        callback=lambda _ctx, _option, texts: tuple(dict.fromkeys(map(rule_name, texts))),
        default=default,
        help=f"{words}A scale: a name, mup(64), a number, or module:name of your own; can be repeated.",
    )


def seed(words: str) -> Option[Any]:
    """--seed."""
    return number("--seed", 0, 2**63 - 1, 0, words)


def data(words: str, rows: str) -> Option[Any]:
    """--json, and --csv, whose rows are those of a table. One of them at a time."""

    def both(command: Any) -> Any:
        as_csv = click.option("--csv", "as_csv", is_flag=True, callback=_either, help=f"The same as CSV: {rows}.")
        as_json = click.option("--json", "as_json", is_flag=True, callback=_either, help=words)
        return as_json(as_csv(command))

    return both


def _either(ctx: click.Context, option: click.Parameter, chosen: bool) -> bool:
    other = "as_csv" if option.name == "as_json" else "as_json"
    if chosen and ctx.params.get(other):
        raise click.UsageError("--json and --csv exclude each other", ctx)
    return chosen


def show(
    as_json: bool, as_csv: bool, plain: Any, rows: Iterable[Mapping[str, Any]], lines: Callable[[int], Iterable[str]]
) -> None:
    """Print in the form that `data` was asked for: plain as JSON, rows as CSV, or the lines for a width of terminal."""
    if as_json:
        click.echo(json.dumps(plain, indent=2))
    elif as_csv:
        click.echo(csv_text(rows), nl=False)
    else:
        click.echo("\n".join(lines(shutil.get_terminal_size().columns)))


def file(name: str, words: str) -> Option[Any]:
    """An option that names a file to write."""
    return click.option(name, type=click.Path(dir_okay=False, path_type=Path), default=None, help=words)


def check_writable(path: Path, option: str) -> None:
    """An error before the work if the file cannot be written."""
    hint = f"'{option}'"
    if not path.parent.is_dir():
        raise click.BadParameter(f"folder {path.parent} does not exist", param_hint=hint)
    try:
        if path.exists() and not path.is_file():
            kind = "a folder" if path.is_dir() else "not a regular file"
            raise click.BadParameter(f"{path} is {kind}", param_hint=hint)
        check_destination(path)
    except OSError as error:
        raise click.BadParameter(f"{path} is not writable: {error.strerror or error}", param_hint=hint) from error


def write(path: Path, text: str, option: str) -> None:
    """The file that the option names, whole or not at all."""
    try:
        write_atomically(path, text)
    except OSError as error:
        raise click.ClickException(f"{option}: cannot write {path}: {error.strerror or error}") from error


def bad_parameter(error: RootdkError) -> click.BadParameter:
    """The error without the name that the argument has in Python: click puts the option in its place."""
    return click.BadParameter(str(error).partition(": ")[2])


def rule_name(text: str) -> str:
    """The name of the rule that a person wrote. `module:name` is imported, from the current folder last of all."""
    from rootdk import scaling

    try:
        if ":" in text:
            folder = current_folder()
            if folder is not None and folder not in sys.path:
                sys.path.append(folder)
            chosen = scaling.load(text)
        else:
            chosen = scaling.rule(text)
    except RootdkError as error:
        raise bad_parameter(error) from error
    if chosen.unit_length:
        raise click.BadParameter(f"must be a rule for q and k as they are, got {text}, which wants them of length 1")
    return chosen.name
