"""conftest.py at the top: pytest refuses a package or a kernel that is not what lies in the source tree."""

import runpy
import shutil
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


CONFTEST = runpy.run_path(str(ROOT / "conftest.py"))
stale = CONFTEST["stale"]
digest = runpy.run_path(str(ROOT / "bindings" / "sources.py"))["digest"]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of what the package is built from."""
    for room in ("src/rootdk", "kernel", "bindings"):
        shutil.copytree(ROOT / room, tmp_path / room, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    shutil.copy(ROOT / "CMakeLists.txt", tmp_path)
    return tmp_path


def test_what_runs_here_is_what_lies_here() -> None:
    import rootdk
    from rootdk import _kernel

    assert stale(ROOT, Path(rootdk.__file__).parent, _kernel.sources()) == ""


def test_an_installed_copy_that_is_the_same(tree: Path) -> None:
    assert stale(tree, ROOT / "src" / "rootdk", digest(tree)) == ""


@pytest.mark.parametrize("change", ["edited", "new"])
def test_an_installed_copy_that_is_older(tree: Path, change: str) -> None:
    file = tree / "src" / "rootdk" / ("errors.py" if change == "edited" else "later.py")
    file.write_text("# another line\n")
    assert stale(tree, ROOT / "src" / "rootdk", digest(tree)).endswith(f"{file.name} differs): run `make dev`")


@pytest.mark.parametrize(
    "file", ["kernel/pool.cc", "kernel/attention.h", "kernel/targets.txt", "bindings/module.cc", "CMakeLists.txt"]
)
def test_a_kernel_that_is_older(tree: Path, file: str) -> None:
    before = digest(tree)
    with (tree / file).open("a") as text:
        text.write("\n")
    assert "compiled kernel is not what lies" in stale(tree, tree / "src" / "rootdk", before)


def test_no_kernel_and_one_that_cannot_say(tree: Path) -> None:
    assert "no compiled kernel" in stale(tree, tree / "src" / "rootdk", None)
    assert "compiled kernel is not what lies" in stale(tree, tree / "src" / "rootdk", "")


def test_pytest_stops_with_that_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hook itself, with a kernel that says something else."""
    from rootdk import _kernel

    monkeypatch.setitem(sys.modules, "rootdk._kernel", ModuleType("other"))
    with pytest.raises(pytest.UsageError, match="run `make dev`"):
        CONFTEST["pytest_configure"]()
    monkeypatch.setitem(sys.modules, "rootdk._kernel", _kernel)
    CONFTEST["pytest_configure"]()
