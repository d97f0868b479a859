"""What the package declares: no more than it imports, and a build that has nothing to complain of."""

import ast
import re
import sys
from importlib import metadata
from pathlib import Path

import rootdk

PYPROJECT = (Path(__file__).parents[2] / "pyproject.toml").read_text("utf-8")

IMPORTED_AS = {"scikit-learn": "sklearn"}  # distributions that are not called as they are imported


def imported_names() -> set[str]:
    """Top-level names of every import in the package, inside functions too."""
    names = set()
    for file in Path(rootdk.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.Import):
                names |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                names.add(node.module.partition(".")[0])
    return names - set(sys.stdlib_module_names) - {"rootdk"}


def declared() -> dict[str, set[str]]:
    """What the required distributions are imported as, by extra; "" holds those of every installation."""
    extras: dict[str, set[str]] = {}
    for line in metadata.requires("rootdk") or []:
        name, extra = re.match(r"[\w.-]+", line), re.search(r"extra == [\'\"]([\w-]+)", line)
        assert name is not None
        extras.setdefault(extra[1] if extra else "", set()).add(IMPORTED_AS.get(name[0], name[0]))
    return extras


def test_every_core_dependency_is_imported_and_the_reverse() -> None:
    core, imported = declared()[""], imported_names()
    assert core == {"numpy", "scipy", "click", "rich"}
    assert core <= imported
    optional = set().union(*(names for extra, names in declared().items() if extra))
    assert imported <= core | optional


def test_extras_are_those_that_have_code() -> None:
    assert set(metadata.metadata("rootdk").get_all("Provides-Extra") or []) == {
        "torch", "gpu", "half", "lab", "figures", "docs", "train", "dist", "audit", "check", "test", "bench",
        "bench-all", "dev",
    }  # fmt: skip


def test_the_version_is_that_of_the_package() -> None:
    assert metadata.version("rootdk") == rootdk.__version__


def test_the_build_asks_for_what_scikit_build_core_does_not_bring() -> None:
    """cmake and ninja come from it where the machine has none; listing them, or the old version table, is a warning."""
    requires = re.search(r"^requires = \[(.*)\]$", PYPROJECT, re.MULTILINE)
    assert requires is not None
    assert re.findall(r'"([a-z-]+)', requires[1]) == ["scikit-build-core", "nanobind"]
    for needed in ('cmake.version = ">=', 'ninja.version = ">=', "[[tool.dynamic-metadata]]"):
        assert needed in PYPROJECT
    assert "tool.scikit-build.metadata" not in PYPROJECT
