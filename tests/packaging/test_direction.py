"""Imports point downward: from a room into itself and those below it, and from a test into no other test."""

import ast
from pathlib import Path

import pytest

import rootdk

SOURCE = Path(rootdk.__file__).parent

# From the bottom up; rooms on one line stand side by side and do not import each other. DESIGN.md has the picture.
FLOORS = [
    ["errors", "version", "_starting"],
    ["files", "processes", "rendering", "checks"],
    ["scaling"],
    ["summary", "options"],
    ["reading", "_kernel"],
    ["backends"],
    ["attention", "theory"],
    ["torch", "jax"],
    ["distributed"],
    ["audit"],
    ["integrations"],
    ["lab"],
    ["cli"],
    ["__init__"],
    ["__main__"],
]
FLOOR = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}


def imports(file: Path, source: Path) -> set[str]:
    """The rooms of the package that a file imports from, inside functions and under TYPE_CHECKING too."""
    place = file.relative_to(source).with_suffix("").parts
    rooms = set()
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            targets = [alias.name.split(".") for alias in node.names if alias.name.split(".")[0] == "rootdk"]
            rooms |= {path[1] if len(path) > 1 else "__init__" for path in targets}
        elif isinstance(node, ast.ImportFrom):
            names = [*(node.module or "").split(".")] if node.module else []
            if node.level:
                base = list(place[: len(place) - node.level])
            elif names[:1] == ["rootdk"]:
                base, names = [], names[1:]
            else:
                continue
            path = [*base, *names]
            if path:
                rooms.add(path[0])
            else:  # `from . import x` at the top: a room, or a public name of the package
                rooms |= {alias.name if alias.name in FLOOR else "__init__" for alias in node.names}
    return rooms


def into_tests(tests: Path) -> list[str]:
    """Every import of a test's file by another, as 'file -> file'. What several share lies in tests/support."""
    files = {file.stem: file for file in tests.rglob("test_*.py")}
    pairs = []
    for file in sorted(tests.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.Import):
                paths = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                paths = [node.module or "", *(alias.name for alias in node.names)]
            else:
                continue
            others = {name for path in paths for name in path.split(".") if name in files and name != file.stem}
            pairs += [f"{file.stem} -> {other}" for other in sorted(others)]
    return pairs


def upward(source: Path) -> list[str]:
    """Every import that points up or sideways, as 'file -> room'."""
    return [
        f"{file.relative_to(source).as_posix()} -> {other}"
        for file in sorted(source.rglob("*.py"))
        for room in [file.relative_to(source).with_suffix("").parts[0]]
        for other in sorted(imports(file, source) - {room})
        if other not in FLOOR or FLOOR[other] >= FLOOR[room]
    ]


def test_every_file_has_a_floor() -> None:
    rooms = {file.relative_to(SOURCE).with_suffix("").parts[0] for file in SOURCE.rglob("*.py")}
    assert rooms | {"_kernel"} == set(FLOOR)


def test_no_import_points_up() -> None:
    assert upward(SOURCE) == []


def test_no_test_imports_another() -> None:
    assert into_tests(Path(__file__).parents[1]) == []


@pytest.mark.parametrize(
    "line",
    [
        "import test_other as other",
        "from test_other import helper",
        "def f():\n    from tests.lab.test_other import helper",
        "from . import test_other",
    ],
)
@pytest.mark.parametrize("file", ["test_this.py", "support/shared.py"])
def test_an_import_of_a_test_is_found(tmp_path: Path, file: str, line: str) -> None:
    (tmp_path / "support").mkdir()
    (tmp_path / "test_other.py").write_text("helper = 1\n")
    (tmp_path / file).write_text(line + "\n")
    assert into_tests(tmp_path) == [f"{Path(file).stem} -> test_other"]


@pytest.mark.parametrize(
    ("file", "line", "room"),
    [
        ("errors.py", "from .reading import Reading", "reading"),
        ("scaling.py", "def f():\n    from rootdk.cli import main", "cli"),
        ("theory/deep/scores.py", "from ...attention import attention", "attention"),
        ("reading.py", "import rootdk", "__init__"),
        ("backends/reference.py", "from .. import watch", "__init__"),
        ("backends/reference.py", "from .. import attention", "attention"),
        ("errors.py", "import rootdk.torch", "torch"),
    ],
)
def test_an_import_that_points_up_is_found(tmp_path: Path, file: str, line: str, room: str) -> None:
    """The test above can fail: each way to write an import, in a package of one file."""
    place = tmp_path / file
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(line + "\n")
    assert upward(tmp_path) == [f"{file} -> {room}"]
