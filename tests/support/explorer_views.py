"""Views of the explorer's chapters by their names, and their Python lines, run."""

import contextlib
import io

import pytest

from rootdk.lab.explorer.chapter import View
from rootdk.lab.explorer.chapters import CHAPTERS
from rootdk.lab.explorer.values import read_values

BY_ID = {chapter.id: chapter for chapter in CHAPTERS}


def view(chapter: str, **raw: object) -> View:
    entry = BY_ID[chapter]
    return entry.compute(read_values(entry, {name: str(value) for name, value in raw.items()}))


def values_of(shown: View) -> dict[str, object]:
    return {number.id: number.value for number in shown.numbers}


def _printed(lines: str) -> dict[str, str]:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(lines, "<python>", "exec"), {})  # the chapter's own lines
    return dict(line.split(" ", 1) for line in out.getvalue().splitlines())


def compare(shown: View) -> None:
    """What the lines print is what is shown."""
    printed = _printed(shown.python)
    assert set(printed) == {number.id for number in shown.numbers}
    for number in shown.numbers:
        if isinstance(number.value, str):
            assert printed[number.id] == number.value
        else:
            # The lines may take another way to the same number, such as d x d matrices in place of their eigenvalues.
            assert float(printed[number.id]) == pytest.approx(number.value, rel=1e-9, abs=1e-12), number.id
