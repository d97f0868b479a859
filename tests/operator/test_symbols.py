"""No function that is compiled for one instruction set can become the copy that every CPU runs.

An inline function or a template is a weak symbol in every object file that uses it, and the linker keeps one of them.
If it is in a file compiled for AVX-512 and its name says nothing of that, a CPU without it may get that copy.
"""

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WEAK = frozenset("WVuwv")  # nm's letters: weak functions, weak data, unique
NAMES = ("plain", "avx2", "avx512", "amx", "neon")


def shared_names(object_file: Path, target: str) -> list[str]:
    """Weak symbols that the file defines and that other files may define too: those that do not name the target."""
    listed = subprocess.run(
        ["nm", "-P", "--defined-only", str(object_file)], capture_output=True, text=True, check=True
    ).stdout
    own = f"6rootdk{len(target)}{target}"  # how a compiler spells rootdk::<target>, alone and as part of a template
    weak = [line.split()[0] for line in listed.splitlines() if line.split()[1] in WEAK]
    # A pointer to the language's own routine of exceptions, the same in all files.
    return [name for name in weak if own not in name and name != "DW.ref.__gxx_personality_v0"]


@pytest.fixture(scope="module")
def objects() -> dict[str, Path]:
    """The object files of the targets: those of the package's own build, or the same compiled here."""
    built = ROOT / "build" / "cmake" / "CMakeFiles" / "kernel.dir" / "kernel"
    files = {name: built / f"target_{name}.cc.o" for name in NAMES}
    files = {name: path for name, path in files.items() if path.exists()}
    if files:
        return files
    subprocess.run(["make", "build/guarded/kernel_fuzz"], cwd=ROOT, check=True, timeout=3600)
    files = {name: ROOT / "build" / "guarded" / f"target_{name}.o" for name in NAMES}
    return {name: path for name, path in files.items() if path.exists()}


def test_every_weak_symbol_names_its_target(objects: dict[str, Path]) -> None:
    assert len(objects) >= 2
    assert {name: shared_names(path, name) for name, path in objects.items()} == {name: [] for name in objects}


INLINE = "inline __attribute__((noinline)) int shared(int x) { return x + 1; }"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (INLINE, ["_Z6sharedi"]),
        ("template <typename t> __attribute__((noinline)) t shared(t x) { return x + 1; }", ["_Z6sharedIiET_S0_"]),
        ("namespace rootdk::avx2 { " + INLINE + " } using rootdk::avx2::shared;", []),
        (INLINE.replace("inline ", "static "), []),
    ],
)
def test_a_shared_one_is_seen(tmp_path: Path, source: str, expected: list[str]) -> None:
    program, made = tmp_path / "target.cc", tmp_path / "target.o"
    program.write_text(source + "\nint use(int x) { return shared(x); }\n", "utf-8")
    subprocess.run(["c++", "-std=c++17", "-O2", "-c", str(program), "-o", str(made)], check=True)
    assert shared_names(made, "avx2") == expected
