"""`rootdk explore`: check what it needs, read the model if one is named, then serve the page or write it."""

import os
import sys
import threading
import time
import webbrowser
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from rootdk.errors import ArgumentError, RootdkError
from rootdk.untrusted import read_regular, shown_text

_NEEDED = ("plotly", "starlette", "uvicorn")
# Work that takes longer shows how far it is.
_PATIENCE = 2.0


class LabMissingError(RootdkError, ImportError):
    """The page needs the extra `lab`."""


def check_lab() -> None:
    """An error that says how to get what is missing."""
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        words = " and ".join(missing)
        verb = "is" if len(missing) == 1 else "are"
        raise LabMissingError(
            f"explore: needs {words}, which {verb} not installed; get it with: pip install 'rootdk[lab]'"
        )


def read_model(path: Path) -> dict[str, Any]:
    """An audit: read from JSON, or made of a checkpoint's weights. One that the page cannot show is an error here."""
    from rootdk.lab.explorer.audit_input import checked_audit

    if (
        path.is_file()
        and path.suffix == ".json"
        and not path.name.endswith(".index.json")
        and path.name != "config.json"
    ):
        from rootdk.lab.explorer.audit_input import checked_audit
        from rootdk.lab.explorer.bodies import LARGEST_BODY, parsed

        try:
            return dict(checked_audit(parsed(read_regular(path, LARGEST_BODY))))
        except OSError as error:
            raise ArgumentError(f"model: {shown_text(path)} cannot be read: {error.strerror or error}") from error
    from rootdk.audit import read_checkpoint

    from .auditing import bar

    with bar() as progress:
        return dict(checked_audit(read_checkpoint(path, progress=progress).to_dict()))


def check_address(at: str) -> None:
    """An error before the work, if there is no such view."""
    from rootdk.lab.explorer.address import started_at
    from rootdk.lab.explorer.chapters import CHAPTERS

    try:
        started_at(CHAPTERS, at)
    except RootdkError as error:
        raise click.BadParameter(str(error).removeprefix("at: "), param_hint="'--at'") from error


def serve(port: int, audit: Mapping[str, Any] | None, *, browser: bool, at: str | None = None) -> None:
    """Until Ctrl-C, a KeyboardInterrupt. The address goes to standard output before the first request can come."""
    from rootdk.lab.explorer.ports import listening
    from rootdk.lab.explorer.server import application, run
    from rootdk.lab.explorer.warm_up import warm_up

    with listening(port) as socket:
        host, found = socket.getsockname()
        if found != port:
            click.echo(f"Port {port} is taken: using {found}.", err=True)
        app = application(found, audit=audit)
        fragment = at.rpartition("#")[2] if at is not None else "model" if audit is not None else ""
        address = f"http://{host}:{found}/" + (f"#{fragment}" if fragment else "")
        click.echo(f"The explorer is at {address} until Ctrl-C.")
        if browser:
            _open(address)
        over = threading.Event()
        threading.Thread(target=warm_up, args=(over.is_set,), daemon=True).start()
        try:
            run(app, socket)
        finally:
            over.set()


def _open(address: str) -> None:
    """In the background: some browsers keep the caller waiting. Without a screen none: it would fill the terminal."""
    if sys.platform.startswith("linux") and not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        return
    threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()


def export_to(path: Path, audit: Mapping[str, Any] | None, at: str | None = None) -> None:
    """One HTML file, with a bar on standard error where that takes a while."""
    from rootdk.files import write_atomically
    from rootdk.lab.explorer.export import exported_page

    with late_bar() as progress:
        page = exported_page(audit=audit, progress=progress, at=at)
    try:
        write_atomically(path, page)
    except OSError as error:
        raise click.ClickException(f"--export: cannot write {path}: {error.strerror or error}") from error


@contextmanager
def late_bar() -> Iterator[Callable[[str, float], None]]:
    """A bar that appears after two seconds, on a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )
    shown = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
    task = shown.add_task("", total=1.0)
    start = time.monotonic()

    def progress(name: str, share: float) -> None:
        shown.update(task, completed=share, description=name)
        if not shown.live.is_started and time.monotonic() - start > _PATIENCE:
            shown.start()

    try:
        yield progress
    finally:
        shown.stop()
