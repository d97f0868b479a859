"""What is handed out: the wheel holds the package and nothing else, the source distribution all that a build reads.

Both are made as pip makes them, by the build backend, in the folder where `make` compiles: nothing is compiled twice.
"""

import os
import subprocess
import sys
import tarfile
import zipfile
from email import message_from_string
from pathlib import Path
from textwrap import dedent

import numpy as np
import pytest

import rootdk

ROOT = Path(__file__).parents[2]
MAKE = "import sys, scikit_build_core.build as build; print(getattr(build, sys.argv[1])(*map(eval, sys.argv[2:])))"


def made(function: str, folder: Path, *settings: str) -> Path:
    """The file that a hook of the build backend (PEP 517) makes."""
    tools = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    command = [sys.executable, "-c", MAKE, function, repr(str(folder)), *settings]
    env = os.environ | {"PATH": tools}
    run = subprocess.run(command, check=False, cwd=ROOT, env=env, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    return folder / run.stdout.splitlines()[-1]


def package_files() -> set[str]:
    """The package as it lies in src/, without what a run leaves behind."""
    source = ROOT / "src"
    files = {file.relative_to(source).as_posix() for file in (source / "rootdk").rglob("*") if file.is_file()}
    return {name for name in files if "__pycache__" not in name and not name.endswith(".so")}


def missing_and_stray(names: set[str]) -> tuple[set[str], set[str]]:
    """What a wheel with these files lacks, and what does not belong there."""
    kernels = {name for name in names if name.startswith("rootdk/_kernel.") and name.endswith(".so")}
    expected = package_files() | (kernels or {"rootdk/_kernel.*.so"})
    return expected - names, names - expected


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    return zipfile.ZipFile(made("build_wheel", tmp_path_factory.mktemp("wheel"), "{'build-dir': 'build/cmake'}"))


def test_the_wheel_holds_the_package_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    names = {name for name in wheel.namelist() if not name.startswith(f"rootdk-{rootdk.__version__}.dist-info/")}
    assert missing_and_stray(names) == (set(), set())
    assert {"rootdk/py.typed", "rootdk/_kernel.pyi", "rootdk/__main__.py"} <= names


def test_the_test_above_can_fail() -> None:
    whole = package_files() | {"rootdk/_kernel.cpython-311-x86_64-linux-gnu.so"}
    assert missing_and_stray(whole | {"benchmarks/race.py", "tests/conftest.py"}) == (
        set(), {"benchmarks/race.py", "tests/conftest.py"}
    )  # fmt: skip
    assert missing_and_stray(whole - {"rootdk/py.typed"}) == ({"rootdk/py.typed"}, set())
    assert missing_and_stray(package_files()) == ({"rootdk/_kernel.*.so"}, set())


def test_the_wheel_says_what_it_is(wheel: zipfile.ZipFile) -> None:
    notes = f"rootdk-{rootdk.__version__}.dist-info"
    facts = message_from_string(wheel.read(f"{notes}/METADATA").decode())
    assert (facts["Name"], facts["Version"]) == ("rootdk", rootdk.__version__)
    assert "rootdk = rootdk.cli:main" in wheel.read(f"{notes}/entry_points.txt").decode().splitlines()
    assert f"{notes}/licenses/LICENSE" in wheel.namelist()
    assert "Root-Is-Purelib: false" in wheel.read(f"{notes}/WHEEL").decode()


def test_the_wheel_works_alone(wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    """Without site-packages (-S), where an editable install would be in front of it; NumPy is found where it lies."""
    wheel.extractall(tmp_path)
    places = [str(tmp_path), str(Path(np.__file__).parents[1])]
    code = f"""
        import sys
        sys.path += {places!r}
        import numpy, rootdk
        print(rootdk.__file__, rootdk.attention(*[numpy.zeros((1, 4))] * 2, numpy.ones((1, 1))))
    """
    command = [sys.executable, "-I", "-S", "-c", dedent(code)]
    run = subprocess.run(command, check=False, capture_output=True, text=True)
    assert run.stdout.split() == [str(tmp_path / "rootdk" / "__init__.py"), "[[1.]]"], run.stderr


def test_the_source_distribution_holds_all_that_a_build_reads(tmp_path: Path) -> None:
    with tarfile.open(made("build_sdist", tmp_path)) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    read = {f"src/{name}" for name in package_files()} | {"CMakeLists.txt", "pyproject.toml", "LICENSE", "README.md"}
    for folder in ("kernel", "bindings"):
        files = (file for file in (ROOT / folder).rglob("*") if file.is_file() and "__pycache__" not in file.parts)
        read |= {file.relative_to(ROOT).as_posix() for file in files}
    assert read - names == set()
    left = {name for name in names if name.startswith(("build/", ".venv/", ".git/", ".ci")) or "__pycache__" in name}
    assert left == set()
