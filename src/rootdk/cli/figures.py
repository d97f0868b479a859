"""`rootdk figures`: every figure of the report for a paper, with its data."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from . import options

if TYPE_CHECKING:
    from rootdk.lab.checks import Result
    from rootdk.lab.drawing import Picture


@click.command()
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@click.option(
    "--size",
    type=click.Choice(["quick", "default", "full"]),
    default="default",
    show_default=True,
    help="How much is measured: as rootdk --quick, rootdk, rootdk --full.",
)
@options.d_k("Number of components of q and k; can be repeated.")
@options.keys()
@options.rule()
@options.seed("Seed of the random numbers.")
@click.option(
    "--width",
    type=click.FloatRange(1.5, 12.0),
    default=3.4,
    show_default=True,
    help="Width in inches; 3.4 is one column of a paper.",
)
@click.option(
    "--format",
    "formats",
    type=click.Choice(["svg", "pdf", "png"]),
    multiple=True,
    default=("svg",),
    show_default=True,
    help="File format; can be repeated.",
)
def figures(
    folder: Path,
    size: str,
    d_k: tuple[int, ...],
    keys: int,
    rule: tuple[str, ...],
    seed: int,
    width: float,
    formats: tuple[str, ...],
) -> None:
    """Write figures for a paper, each with its data.

    Every figure goes into FOLDER, with its data as CSV beside it.
    The figures of the study are measured now. Those of training come from runs that are part of the package. FOLDER is
    created if it does not exist; files with the same names are replaced.
    """
    from rootdk.lab.checks import Cache, plan, run
    from rootdk.lab.report.paper import check_matplotlib, write_figure

    from .progress import Bars

    check_matplotlib()
    specs = plan(size, d_k=tuple(dict.fromkeys(d_k)), keys=keys, rules=rule, seed=seed)
    existing = next(place for place in (folder.absolute(), *folder.absolute().parents) if place.exists())
    if not (existing.is_dir() and os.access(existing, os.W_OK)):  # an error now, before the long work
        raise click.BadParameter(f"cannot write to {existing}", param_hint="'FOLDER'")
    try:
        with Bars() as bars:
            results = []
            for number, spec in enumerate(specs):
                results.append(run(spec, cache=Cache()))
                bars("measuring", 0.5 * (number + 1) / len(specs))
            pictures = list(_pictures(results))
            folder.mkdir(parents=True, exist_ok=True)
            for number, picture in enumerate(pictures):
                write_figure(picture, folder, width, tuple(dict.fromkeys(formats)))
                bars("drawing", 0.5 + 0.5 * (number + 1) / len(pictures))
        listed = (f"- {picture.name}: {picture.title}. {picture.caption}\n" for picture in pictures)
        options.write(folder / "figures.md", "".join(listed), "FOLDER")
    except OSError as error:
        raise click.ClickException(f"FOLDER: cannot write to {folder}: {error.strerror or error}") from error
    click.echo(f"{len(pictures)} figures in {folder}, each with its data; figures.md says what they show.")


def _pictures(results: "Sequence[Result]") -> "Iterator[Picture]":
    from rootdk.lab.answer import rows_pictures
    from rootdk.lab.checks import EXPERIMENTS
    from rootdk.lab.report.training_page import chapters
    from rootdk.lab.training import shipped

    yield from rows_pictures()
    for result in results:
        yield from EXPERIMENTS[result.experiment].pictures(result)
    for _, pictures in chapters(shipped()):
        yield from pictures
