"""What the package declares: no more than it imports, and a build that has nothing to complain of."""

import ast
import os
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

import rootdk

ROOT = Path(__file__).parents[2]
PYPROJECT = (ROOT / "pyproject.toml").read_text("utf-8")

IMPORTED_AS = {"scikit-learn": "sklearn"}  # distributions that are not called as they are imported
FOR_CHECKERS = {"typing_extensions"}  # type checkers carry it, and nothing else reads it


def test_what_is_for_checkers_is_never_imported() -> None:
    code = f"import sys, rootdk, rootdk.reading; print({sorted(FOR_CHECKERS)!r}[0] in sys.modules)"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.split() == ["False"]


def imported_names() -> set[str]:
    """Top-level names of every import in the package, inside functions too."""
    names = set()
    for file in Path(rootdk.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.Import):
                names |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                names.add(node.module.partition(".")[0])
    return names - set(sys.stdlib_module_names) - FOR_CHECKERS - {"rootdk"}


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
        "bench-all", "dev", "jax",
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


def test_one_version_everywhere_it_is_told() -> None:
    """The package, the citation, and the newest section of the changelog."""
    citation, changes = ((ROOT / name).read_text("utf-8") for name in ("CITATION.cff", "CHANGELOG.md"))
    assert f"\nversion: {rootdk.__version__}\n" in citation
    newest = re.search(r"^## \[([\d.]+)\]", changes, re.MULTILINE)
    assert newest is not None
    assert newest[1] == rootdk.__version__


def test_without_a_compiler_the_build_ends_with_one_line(tmp_path: Path) -> None:
    """What it needs and where wheels are, before anything else is looked for."""
    cmake = Path(sys.executable).parent / "cmake"
    command = [
        str(cmake),
        "-G",
        "Ninja",
        "-S",
        str(ROOT),
        "-B",
        str(tmp_path),
        f"-DCMAKE_MAKE_PROGRAM={cmake.parent / 'ninja'}",
    ]
    empty = {name: value for name, value in os.environ.items() if name not in {"CXX", "CC", "CXXFLAGS"}}
    done = subprocess.run(command, check=False, env=empty | {"PATH": str(tmp_path)}, capture_output=True, text=True)
    assert done.returncode != 0
    said = [line for line in done.stderr.splitlines() if "rootdk:" in line]
    assert len(said) == 1
    assert "a C++17 compiler is needed and none was found: install one" in said[0]
    assert "take a wheel" in said[0]
    assert "docs/install.md" in said[0]


@pytest.mark.slow
@pytest.mark.parametrize("extra", sorted(metadata.metadata("rootdk").get_all("Provides-Extra") or []))
def test_an_extra_resolves(extra: str, tmp_path: Path) -> None:
    """From nothing, as on a clean machine, within the versions that this repository pins; nothing is installed."""
    names = [line for line in metadata.requires("rootdk") or [] if re.search(rf"extra == [\'\"]{extra}[\'\"]", line)]
    needed = [line.partition(";")[0].strip() for line in names]
    needed = [name for name in needed if not name.startswith("rootdk[")]  # which has a test of its own
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--dry-run",
        "--ignore-installed",
        "--quiet",
        "-c",
        "constraints.txt",
    ]
    done = subprocess.run([*command, *needed], check=False, cwd=ROOT, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("program", sorted((ROOT / "tests" / "kernel").glob("*.cc")), ids=lambda program: program.stem)
def test_the_programs_that_attack_the_kernel_compile(program: Path) -> None:
    """Only `make fuzz` and `make sanitize` run them: a change of the kernel must not leave them behind."""
    compiler = [os.environ.get("CXX", "c++"), "-std=c++17", "-fsyntax-only", "-Wall", "-Wextra", "-Werror"]
    ran = subprocess.run([*compiler, "-Ikernel", str(program)], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr[-2000:]
