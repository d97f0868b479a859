"""The bars of every command: on a terminal and nowhere else, gone when the command is done, texts shown as they are."""

import io

import pytest
from rich.console import Console

from rootdk.cli.lifetime import Bars


def console(*, terminal: bool) -> Console:
    return Console(file=io.StringIO(), width=80, force_terminal=terminal, color_system=None)


def text_of(screen: Console) -> str:
    return str(screen.file.getvalue())  # type: ignore[attr-defined]


def test_share_and_text_are_shown() -> None:
    screen = console(terminal=True)
    with Bars(screen) as bars:
        bars("reading", 0.25)
        bars("a run", 0.5, "run")
        bars("reading on", 0.75)
    shown = text_of(screen)
    assert "75%" in shown
    assert "reading on" in shown
    assert "50%" in shown
    assert "a run" in shown


def test_a_row_that_is_dropped_is_gone() -> None:
    screen = console(terminal=True)
    with Bars(screen) as bars:
        bars("a run", 0.5, "run")
        bars.drop("run")
        bars.drop("run")
        bars("all", 1.0)
    last = text_of(screen).partition("\x1b[?25h")[0].rpartition("\x1b[2K")[2]  # what follows wipes it off
    assert "100%" in last
    assert "all" in last
    assert "a run" not in last


def test_nothing_is_written_elsewhere() -> None:
    screen = console(terminal=False)
    with Bars(screen) as bars:
        bars("reading", 0.5)
    assert text_of(screen) == ""


def test_a_name_from_a_file_is_neither_markup_nor_a_control_code() -> None:
    screen = console(terminal=True)
    with Bars(screen) as bars:
        bars("[bold]layer[/bold] \x1b[31m", 0.5)
    assert "[bold]layer[/bold] \\x1b[31m" in text_of(screen)


def test_the_bars_end_with_the_block_that_fails() -> None:
    screen = console(terminal=True)
    with pytest.raises(KeyboardInterrupt), Bars(screen):
        raise KeyboardInterrupt
    assert text_of(screen).rpartition("\x1b[?25h")[1]  # the cursor is shown again
