"""Text files are the same on every system: their encoding is named, and how their lines end."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = sorted(
    file
    for room in ("src", "benchmarks", "wheels", "docs", "bindings", "examples")
    for file in (ROOT / room).rglob("*.py")
)
# Where the encoding is among the arguments that have no name.
PLACE = {"write_text": 1, "read_text": 0}


def complaints(source: str) -> Iterator[str]:
    """Calls that open a text file and leave to the system what it holds."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        keywords = {keyword.arg for keyword in node.keywords}
        mode = "w" if name == "write_text" else "r"
        if name in ("open", "fdopen"):
            free = isinstance(node.func, ast.Name) or name == "fdopen"  # open(path, mode), not path.open(mode)
            given = (
                node.args[free]
                if len(node.args) > free
                else next((k.value for k in node.keywords if k.arg == "mode"), None)
            )
            mode = (
                given.value if isinstance(given, ast.Constant) and isinstance(given.value, str) else "r" if free else ""
            )
            if not re.fullmatch("[rwaxt+]+", mode):
                continue  # bytes, or something else that can be opened
        elif name not in PLACE:
            continue
        if "encoding" not in keywords and len(node.args) <= PLACE.get(name, 99):
            yield f"line {node.lineno}: {name} without an encoding"
        if set(mode) & set("wax+") and "newline" not in keywords:
            yield f"line {node.lineno}: {name} for writing without newline"


@pytest.mark.parametrize("file", SOURCES, ids=[file.relative_to(ROOT).as_posix() for file in SOURCES])
def test_text_files_name_their_encoding_and_line_ends(file: Path) -> None:
    assert list(complaints(file.read_text("utf-8"))) == []


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("path.read_text()", 1),
        ("path.read_text('utf-8')", 0),
        ("path.write_text('a', 'utf-8')", 1),
        ("path.write_text('a')", 2),
        ("path.write_text('a', encoding='utf-8', newline='')", 0),
        ("open('a')", 1),
        ("open('a', 'rb')", 0),
        ("open('a', 'w', encoding='utf-8')", 1),
        ("path.open('r')", 1),
        ("path.open(mode='x')", 2),
        ("os.fdopen(3, 'w')", 2),
        ("os.open(path, os.O_RDONLY), sink.open(), place.open(make)", 0),
    ],
)  # fmt: skip
def test_what_is_left_to_the_system_is_seen(line: str, expected: int) -> None:
    assert len(list(complaints(line))) == expected
