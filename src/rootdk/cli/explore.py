"""`rootdk explore`: a local page where a person moves a knob and sees why."""

from pathlib import Path

import click

from . import options

# That of rootdk.lab.explorer.ports, whose import this file spares every other command; a test holds them together.
PORT = 8765


@click.command()
@click.option(
    "--port",
    type=click.IntRange(1, 65535),
    default=PORT,
    show_default=True,
    help="Where to listen, on 127.0.0.1 alone; the next free one if it is taken.",
)
@click.option("--no-browser", is_flag=True, help="Print the address and open nothing.")
@click.option(
    "--model",
    type=click.Path(exists=True, path_type=Path),
    help="Show this model: a folder or file of safetensors, or what `rootdk audit --json` printed.",
)
@click.option("--at", metavar="ADDRESS", help="Open with this view: a copied link, or its end, as growth?d_k=512.")
@options.file(
    "--export", "Write the page with precomputed views to one HTML file that opens offline, and serve nothing."
)
def explore(port: int, no_browser: bool, model: Path | None, at: str | None, export: Path | None) -> None:
    """Why 1/sqrt(d_k): a page to play with.

    Serves it on this machine until Ctrl-C. Its numbers come from the operator and the theory, each time a knob moves.

    Exit code 0: exported; 1: something failed; 2: an option is wrong; 130: stopped by Ctrl-C.
    """
    from rootdk.cli.terminal.exploring import check_address, check_lab, export_to, read_model, serve

    check_lab()
    if at is not None:
        check_address(at)
    if export is not None:
        from rootdk.cli.terminal.command import check_writable

        check_writable(export, "--export")
    audit = None if model is None else read_model(model)
    if export is not None:
        export_to(export, audit, at)
        click.echo(f"Page: {export}")
    else:
        serve(port, audit, browser=not no_browser, at=at)
