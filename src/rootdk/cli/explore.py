"""`rootdk explore`: a local page where a person moves a knob and sees why."""

import os
import sys
import threading
import webbrowser
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from rootdk.errors import ArgumentError, RootdkError
from rootdk.files import read_regular, shown_text

from . import options

# The same as in rootdk.lab.explorer.server, which other commands need not import; a test compares the two.
PORT = 8765


@click.command()
@options.number("--port", 1, 65535, PORT, "Port on 127.0.0.1; if it is taken, the next free one.")
@click.option("--no-browser", is_flag=True, help="Print the address and open nothing.")
@click.option(
    "--model",
    type=click.Path(exists=True, path_type=Path),
    help="Show this model: a folder or file that `rootdk audit` can read, or the output of `rootdk audit --json`.",
)
@options.rule("Add this scale to the page. ", ())
@click.option(
    "--at", metavar="ADDRESS", help="Open this view: a copied link, or its last part, such as growth?d_k=512."
)
@options.file("--export", "Write the page to one HTML file that works offline, and start no server.")
def explore(
    port: int, no_browser: bool, model: Path | None, rule: tuple[str, ...], at: str | None, export: Path | None
) -> None:
    """Why 1/sqrt(d_k): a page with knobs, in your browser.

    Runs on this machine until Ctrl-C. All numbers come from the operator and the theory, each time a knob moves.

    Exit code 0: exported; 1: something failed; 2: an option is wrong; 130: stopped by Ctrl-C.
    """
    check_lab()
    if at is not None:
        check_address(at, rule)
    if export is not None:
        options.check_writable(export, "--export")
    audit = None if model is None else read_model(model)
    if export is not None:
        export_to(export, audit, at, rule)
        click.echo(f"Page: {export}")
    else:
        serve(port, audit, at, rule, browser=not no_browser)


class LabMissingError(RootdkError, ImportError):
    """The page needs the extra `lab`."""


def check_lab() -> None:
    """An error that says how to get what is missing."""
    missing = [name for name in ("plotly", "starlette", "uvicorn") if find_spec(name) is None]
    if missing:
        words = " and ".join(filter(None, [", ".join(missing[:-1]), missing[-1]]))
        verb, pronoun = ("is", "it") if len(missing) == 1 else ("are", "them")
        raise LabMissingError(
            f"explore: needs {words}, which {verb} not installed; get {pronoun} with: pip install 'rootdk[lab]'"
        )


def read_model(path: Path) -> dict[str, Any]:
    """An audit: read from JSON, or made of a checkpoint's weights. One that the page cannot show is an error here."""
    from rootdk.lab.explorer.values import LARGEST_BODY, checked_audit, parsed

    part_of_a_model = path.name.endswith(".index.json") or path.name == "config.json"
    if path.is_file() and path.suffix == ".json" and not part_of_a_model:
        try:
            return dict(checked_audit(parsed(read_regular(path, LARGEST_BODY))))
        except OSError as error:
            raise ArgumentError(f"model: {shown_text(path)} cannot be read: {error.strerror or error}") from error
    from rootdk.audit import read_checkpoint

    from .lifetime import Bars

    with Bars() as bars:
        return dict(checked_audit(read_checkpoint(path, progress=bars).to_dict()))


def check_address(at: str, rules: Sequence[str]) -> None:
    """An error before the work, if there is no such view."""
    from rootdk.lab.explorer.chapters import CHAPTERS
    from rootdk.lab.explorer.shared import with_rules
    from rootdk.lab.explorer.values import started_at

    try:
        started_at(with_rules(CHAPTERS, rules), at)
    except RootdkError as error:
        raise click.BadParameter(str(error).removeprefix("at: "), param_hint="'--at'") from error


def serve(port: int, audit: Mapping[str, Any] | None, at: str | None, rules: Sequence[str], *, browser: bool) -> None:
    """Serve until Ctrl-C, a KeyboardInterrupt. The address is printed before the first request can come."""
    from rootdk.lab.explorer.server import application, listening, run, warm_up

    with listening(port) as socket:
        host, free = socket.getsockname()
        if free != port:
            click.echo(f"Port {port} is taken: using {free}.", err=True)
        app = application(free, audit=audit, rules=rules)
        fragment = at.rpartition("#")[2] if at is not None else "model" if audit is not None else ""
        address = f"http://{host}:{free}/" + (f"#{fragment}" if fragment else "")
        click.echo(f"The page is at {address} (Ctrl-C stops it).")
        if browser:
            _open(address)
        over = threading.Event()
        threading.Thread(target=warm_up, args=(over.is_set,), daemon=True).start()
        try:
            run(app, socket)
        finally:
            over.set()


def _open(address: str) -> None:
    """Open a browser in the background, as some block the caller; none without a screen: it would fill the terminal."""
    if sys.platform.startswith("linux") and not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        return
    threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()


def export_to(path: Path, audit: Mapping[str, Any] | None, at: str | None, rules: Sequence[str]) -> None:
    """Write one HTML file, with a progress bar."""
    from rootdk.lab.explorer.export import exported_page

    from .lifetime import Bars

    with Bars() as bars:
        page = exported_page(audit=audit, progress=bars, at=at, rules=rules)
    options.write(path, page, "--export")
