"""`rootdk` without a command: check that the report can be written, work, print, write."""

import json
import platform
from collections.abc import Sequence
from pathlib import Path

import click

from rootdk.errors import RootdkError
from rootdk.files import check_destination, write_atomically
from rootdk.lab.checks import Cache
from rootdk.lab.report import check_plotly, render
from rootdk.lab.training import shipped
from rootdk.version import __version__

from .job import Findings, Job, bar, to_dict, work
from .overview import lines


def answer(job: Job, path: Path | None, *, asked_for: bool, cached: bool, as_json: bool) -> None:
    """Run the job; path is where the report goes, or None.

    Without plotly a report that was asked for by name is an error at once. One that comes by default is an error at
    the end: the summary is still worth printing, and the exit code still says that something is missing.
    """
    _ = job.specs  # an impossible combination is an error before anything runs
    missing = _missing_plotly() if path is not None else None
    if missing and asked_for:
        raise missing
    if path is not None and not missing:
        check_writable(path)
    notes: list[str] = []
    page = ""
    with bar() as progress:
        findings = work(job, Cache(note=notes.append) if cached else None, progress)
        if path is not None and not missing:
            page = render(findings.results, findings.claims, _about(findings), _cards(job), shipped())
    for note in dict.fromkeys(notes):
        click.echo(note, err=True)
    if as_json:
        click.echo(json.dumps(to_dict(findings), indent=2, allow_nan=False))
    else:
        click.echo("\n".join(lines(findings)))
    if missing:
        raise missing
    if path is not None:
        try:
            write_atomically(path, page)
        except OSError as error:
            raise click.ClickException(f"--out: cannot write {path}: {error.strerror or error}") from error
        click.echo(f"Report: {path}", err=as_json)


def _missing_plotly() -> RootdkError | None:
    try:
        check_plotly()
    except RootdkError as error:
        return error
    return None


def check_writable(path: Path, option: str = "--out") -> None:
    """Before the work, so that nobody waits for a report that has no place."""
    hint = f"'{option}'"
    if not path.parent.is_dir():
        raise click.BadParameter(f"folder {path.parent} does not exist", param_hint=hint)
    try:
        if path.exists() and not path.is_file():
            raise click.BadParameter(f"{path} is not a regular file", param_hint=hint)
        check_destination(path)
    except OSError as error:
        raise click.BadParameter(f"{path} is not writable: {error.strerror or error}", param_hint=hint) from error


def _about(findings: Findings) -> dict[str, str]:
    job = findings.job
    return {
        "version": __version__,
        "size": job.size,
        "seed": str(job.seed),
        "keys": str(job.keys),
        "python": platform.python_version(),
        "machine": platform.machine(),
        "seconds": f"{findings.seconds:.1f}",
    }


def _cards(job: Job) -> Sequence[tuple[str, str]]:
    return [(f"{d_k**-0.5:.4g}", f"the scale 1/√d_k for d_k = {d_k}") for d_k in job.d_k]
