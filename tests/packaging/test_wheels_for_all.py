"""wheels/: what is built for which system, and what the checks of finished wheels refuse. A build is a slow test."""

import hashlib
import importlib
import re
import shutil
import struct
import subprocess
import sys
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
METADATA = "rootdk-9.9.dist-info/METADATA"


@pytest.fixture(scope="module")
def builder() -> ModuleType:
    return script("builder")


@pytest.fixture(scope="module")
def checks(builder: ModuleType) -> ModuleType:
    return script("checker")


def script(name: str) -> ModuleType:
    """One of wheels/, as its neighbours import it."""
    sys.path.insert(0, str(ROOT / "wheels"))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.pop(0)


@pytest.mark.parametrize(
    ("platform", "minor", "tag", "module"),
    [
        ("linux-x86_64", 10, "cp310-cp310", "_kernel.cpython-310-x86_64-linux-gnu.so"),
        ("linux-aarch64", 11, "cp311-cp311", "_kernel.cpython-311-aarch64-linux-gnu.so"),
        ("musl-x86_64", 11, "cp311-cp311", "_kernel.cpython-311-x86_64-linux-musl.so"),
        ("macos-arm64", 10, "cp310-cp310", "_kernel.cpython-310-darwin.so"),
        ("macos-x86_64", 12, "cp312-abi3", "_kernel.abi3.so"),
        ("windows-x86_64", 11, "cp311-cp311", "_kernel.cp311-win_amd64.pyd"),
        ("windows-x86_64", 12, "cp312-abi3", "_kernel.pyd"),
    ],
)
def test_names_are_those_that_python_looks_for(
    builder: ModuleType, platform: str, minor: int, tag: str, module: str
) -> None:
    abi = next(abi for abi in builder.ABIS if abi.minor == minor)
    assert (abi.tag, abi.module(builder.PLATFORMS[platform])) == (tag, module)


def test_this_python_would_find_its_module(builder: ModuleType) -> None:
    from importlib.machinery import EXTENSION_SUFFIXES

    here = next((abi for abi in builder.ABIS if abi.minor == sys.version_info[1]), builder.ABIS[-1])
    names = {here.module(platform) for platform in builder.PLATFORMS.values()}
    assert any(name.removeprefix("_kernel") in EXTENSION_SUFFIXES for name in names)


def test_a_machine_gets_its_instruction_sets_with_their_flags(builder: ModuleType) -> None:
    assert list(builder.targets("x86_64")) == ["plain", "avx2", "avx512", "amx"]
    assert list(builder.targets("aarch64")) == ["plain", "neon"]
    assert builder.targets("x86_64")["avx2"] == ("-mavx2", "-mfma", "-mf16c")
    for machine in ("x86_64", "aarch64"):
        assert builder.targets(machine)["plain"] == ()
    files = {file.stem.removeprefix("target_") for file in (ROOT / "kernel").glob("target_*.cc")}
    assert files == {*builder.targets("x86_64"), *builder.targets("aarch64")}


def test_only_files_of_a_target_get_its_flags(builder: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = {step.source.name: step.flags for step in builder.kernel_steps(builder.PLATFORMS["linux-x86_64"])}
    wide = {name for name, flags in steps.items() if any(flag.startswith("-mavx") for flag in flags)}
    assert wide == {"target_avx2.cc", "target_avx512.cc", "target_amx.cc"}
    arm = {step.source.name for step in builder.kernel_steps(builder.PLATFORMS["linux-aarch64"])}
    assert {name for name in arm if name.startswith("target_")} == {"target_neon.cc", "target_plain.cc"}


def test_the_configuration_of_python_is_that_of_the_system(builder: ModuleType) -> None:
    windows, linux = (builder.pyconfig(builder.PLATFORMS[name]) for name in ("windows-x86_64", "linux-x86_64"))
    assert "#define SIZEOF_LONG 4\n" in windows
    assert "#define SIZEOF_WCHAR_T 2\n" in windows
    assert "#define MS_WINDOWS 1\n" in windows
    assert "HAVE_FORK" not in windows
    assert "#define SIZEOF_LONG 8\n" in linux
    assert "#define HAVE_FORK 1\n" in linux


def test_names_that_windows_imports(builder: ModuleType) -> None:
    names = builder.python_names(b"\0__imp_PyErr_Clear\0__imp_GetProcAddress\0__imp__Py_Dealloc\0PyErr_Print\0")
    assert names == {"PyErr_Clear", "_Py_Dealloc"}
    expected = "LIBRARY python3.dll\nEXPORTS\n    PyErr_Clear\n    _Py_Dealloc\n"
    assert builder.definition_file(builder.ABIS[-1], names) == expected


# Macros that read the insides of objects: the stable interface of Python, to which wheels from 3.12 on keep, has none.
NOT_STABLE = r"\bPy\w+_(?:AS|GET|SET)_[A-Z]+\b|\bPy_X?SETREF\b|\b_Py\w+|(?:->|\.)(?:tp|ob|sq|nb|mp)_\w+"


def test_the_binding_keeps_to_the_stable_interface() -> None:
    files = [file for file in (ROOT / "bindings").iterdir() if file.suffix in {".cc", ".h"}]
    assert any(file.name == "module.cc" for file in files)
    for file in files:
        assert re.findall(NOT_STABLE, file.read_text("utf-8")) == [], file.name


def test_what_is_not_stable_is_seen() -> None:
    bad = "Py_XSETREF(a, b); PyFloat_AS_DOUBLE(c); PyTuple_GET_ITEM(d, 0); _PyObject_New(e); f->tp_free; g->ob_type"
    assert len(re.findall(NOT_STABLE, bad)) == 6
    assert re.findall(NOT_STABLE, "NB_TUPLE_GET_SIZE(a); PyFloat_AsDouble(b); PyType_GetSlot(c, Py_tp_free)") == []


def packed(builder: ModuleType, folder: Path, files: dict[str, bytes] | None = None) -> Path:
    folder.mkdir(exist_ok=True)
    content = files or {"rootdk/b.py": b"b", "rootdk/a.py": b"a", METADATA: b"Name: rootdk\n"}
    return builder.pack(folder, builder.PLATFORMS["linux-x86_64"], builder.ABIS[1], content, b"module", 1_700_000_000)


def read(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_the_same_files_are_the_same_bytes(builder: ModuleType, checks: ModuleType, tmp_path: Path) -> None:
    first = packed(builder, tmp_path / "1")
    second = packed(builder, tmp_path / "2", {METADATA: b"Name: rootdk\n", "rootdk/a.py": b"a", "rootdk/b.py": b"b"})
    assert first.name == "rootdk-9.9-cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64.whl"
    assert first.read_bytes() == second.read_bytes()
    assert checks.archive_complaints(first.name, read(first)) == []


def test_a_wheel_that_is_not_what_it_says(builder: ModuleType, checks: ModuleType, tmp_path: Path) -> None:
    wheel = packed(builder, tmp_path)
    files = read(wheel)
    assert "RECORD" in checks.archive_complaints(wheel.name, files | {"rootdk/a.py": b"c"})[0]
    assert "says it is for" in checks.archive_complaints(wheel.name.replace("cp311-cp311", "cp310-cp310"), files)[0]
    without = {name: content for name, content in files.items() if name != "rootdk/a.py"}
    assert "not in the wheel" in checks.archive_complaints(wheel.name, without)[0]
    mixed = dict(reversed(files.items()))
    assert "order" in checks.archive_complaints(wheel.name, mixed)[0]
    path = packed(builder, tmp_path, {METADATA: b"", "rootdk/a.py": str(ROOT).encode()})
    assert any("path of this machine" in line for line in checks.archive_complaints(path.name, read(path)))


NANOBIND = {"PyInit__kernel", "_ZTVN8nanobind1aE"}
WITH_JAX = {"linux-x86_64", "linux-aarch64", "macos-arm64", "macos-x86_64"}
APPLE = "/usr/lib/libSystem.B.dylib"
LINUX = {"machine": "x86_64", "needed": ["libc.so.6", "libm.so.6"], "shown": {"PyInit__kernel"},
         "python": {"PyErr_Clear"}, "newest": {"GLIBC": (2, 17)}}  # fmt: skip


@pytest.mark.parametrize(
    ("platform", "abi", "change", "expected"),
    [
        ("linux-x86_64", 1, {}, ""),
        ("linux-x86_64", 1, {"machine": "aarch64"}, "is for aarch64"),
        ("linux-x86_64", 1, {"needed": ["libstdc++.so.6"]}, "needs libstdc++.so.6"),
        ("linux-x86_64", 1, {"newest": {"GLIBC": (2, 34)}}, "needs GLIBC 2.34, newer than 2.17"),
        ("linux-x86_64", 1, {"shown": {"PyInit__kernel", "__cxa_throw"}}, "shows"),
        ("linux-x86_64", 1, {"python": set()}, "uses nothing of Python"),
        ("linux-x86_64", 2, {"python": {"PyErr_Clear", "_PyObject_Private"}}, "uses _PyObject_Private"),
        ("musl-x86_64", 1, {}, "needs libc.so.6"),
        ("musl-x86_64", 1, {"needed": ["libc.so"], "newest": {}}, ""),
        ("macos-x86_64", 1, {"needed": [APPLE], "newest": {"macOS": (12, 0)}}, "needs macOS 12.0"),
        ("macos-x86_64", 1, {"needed": [APPLE], "newest": {"macOS": (11, 0)}}, ""),
        ("macos-arm64", 1, {"machine": "aarch64", "needed": [], "newest": {}, "signed": False}, "is not signed"),
        ("macos-arm64", 1, {"machine": "aarch64", "needed": [], "newest": {}, "coalesced": True}, "has weak symbols"),
        ("windows-x86_64", 2, {"needed": ["KERNEL32.dll", "python3.dll"], "newest": {}}, ""),
        ("windows-x86_64", 2, {"needed": ["KERNEL32.dll", "python311.dll"], "newest": {}}, "does not take Python"),
        ("windows-x86_64", 1, {"needed": ["python311.dll"], "newest": {}, "shown": NANOBIND}, ""),
        ("linux-x86_64", 1, {"shown": NANOBIND}, "shows ['PyInit__kernel', '_ZTV"),
        ("windows-x86_64", 1, {"needed": ["python311.dll", "libc++.dll"], "newest": {}}, "needs libc++.dll"),
    ],
)  # fmt: skip
def test_what_a_module_may_not_be(
    builder: ModuleType, checks: ModuleType, platform: str, abi: int, change: dict[str, object], expected: str
) -> None:
    facts = checks.Facts(**(LINUX | change))
    complaints = checks.complaints(facts, builder.PLATFORMS[platform], builder.ABIS[abi], {"PyErr_Clear"})
    assert any(line.startswith(expected) for line in complaints) if expected else complaints == []


def test_a_signature_is_of_these_bytes(checks: ModuleType) -> None:
    content, page = bytes(range(256)) * 20, 4096
    digests = b"".join(hashlib.sha256(content[start : start + page]).digest() for start in (0, page))
    directory = struct.pack(">9I4B", 0xFADE0C02, 40 + 64, 0x20400, 2, 40, 0, 0, 2, len(content), 32, 2, 0, 12) + digests
    signature = struct.pack(">5I", 0xFADE0CC0, 20 + len(directory), 1, 0, 20) + directory
    assert checks.is_signed(content + signature, signature)
    assert not checks.is_signed(b"\1" + content[1:] + signature, signature)
    assert not checks.is_signed(content + b"\0" + signature, signature)
    assert not checks.is_signed(content + bytes(len(signature)), bytes(len(signature)))


def test_jax_has_its_part_where_jax_has_wheels(builder: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builder, "xla_headers", lambda: builder.WORK / "xla")
    monkeypatch.setattr(builder, "python_headers", lambda *of: builder.WORK / "include")
    monkeypatch.setattr(builder, "nanobind", lambda: ROOT / "nanobind")
    monkeypatch.setattr(builder.metadata, "version", lambda of: "1")
    for platform in builder.PLATFORMS.values():
        (module,) = (step for step in builder.binding_steps(platform, builder.ABIS[0]) if step.source.stem == "module")
        parts = [step.source.name for step in builder.jax_steps(platform)]
        assert parts == (["xla.cc"] if platform.name in WITH_JAX else []), platform.name
        assert ("-DROOTDK_XLA" in module.flags) == bool(parts)


def test_without_the_linker_for_macos_is_one_line(builder: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builder.shutil, "which", lambda name: None)
    with pytest.raises(builder.BuildError, match=r"^ld64.lld, which links for macOS, was not found: install lld \("):
        builder.macos_linker.__wrapped__()


def test_without_torch_the_tests_that_import_it_are_left_out() -> None:
    trial = script("trial")
    assert trial.left_out(with_torch=True) == ["test_symbols.py"]
    names = set(trial.left_out(with_torch=False))
    assert {"test_api.py", "test_weights.py", "test_symbols.py"} <= names
    file, _, name = trial.WITH_TORCH.partition("::")
    assert f"def {name.partition('[')[0]}(" in (ROOT / file).read_text("utf-8")
    assert f"--deselect={trial.WITH_TORCH}" in trial.pytest_command(False, False)
    assert not any("--deselect" in word for word in trial.pytest_command(True, True))
    assert not {"test_edges.py", "test_kernel_random.py", "test_kernel_interrupt.py"} & names


def test_the_matrix_has_the_oldest_and_the_newest(builder: ModuleType, tmp_path: Path) -> None:
    """Of Python what the release is tried on, of NumPy and torch what is declared. Every row finds its wheel."""
    rows = script("matrix").ROWS
    names = [builder.pack(tmp_path, *pair, {METADATA: b""}, b"", 0).name for pair in every_pair(builder)]
    for row in rows.values():
        assert len([name for name in names if name.endswith(row.wheel)]) == 1, row.name
    release = (ROOT / ".github/workflows/release.yml").read_text("utf-8")
    pythons = {row.python for row in rows.values() if row.system == "x86_64"}
    assert f"python: [{', '.join(f'{chr(34)}{python}{chr(34)}' for python in sorted(pythons))}]" in release
    declared = (ROOT / "pyproject.toml").read_text("utf-8") + (ROOT / "constraints.txt").read_text("utf-8")
    asked = {requirement for row in rows.values() for requirement in row.requirements}
    for name, ends in (("numpy", "numpy>=1.26"), ("torch", "torch>=2.6")):
        assert f'"{ends}"' in declared
        assert any(requirement.startswith(ends.replace(">=", "==")) for requirement in asked), name
    assert "torch==2.13.0" in asked & set(declared.split())
    assert {row.system for row in rows.values()} == {"x86_64", "aarch64", "musl", "windows"}


def every_pair(builder: ModuleType) -> list[tuple[object, object]]:
    return [(platform, abi) for platform in builder.PLATFORMS.values() for abi in builder.ABIS]


def test_a_row_says_how_its_tests_ended() -> None:
    matrix = script("matrix")
    row = matrix.ROWS["x86_64_3.11_torch-2.13.0_jax-0.10.2_flax_equinox_flatbuffers"]
    output = 'x\n{"python": "3.11.7", "numpy": "2.4.6"}\nleft out: a\n'
    assert matrix.line(row, f"{output}2 failed, 7 passed in 3.1s\n", 1) == (
        "| x86_64 | 3.11.7 | 2.4.6, torch 2.13.0, jax 0.10.2, flax, equinox, flatbuffers | 7 | 2 | 1 min |"
    )
    assert "| 7 | 0 |" in matrix.line(row, f"{output}7 passed, 1 deselected in 3.1s\n", 1)
    assert "| 0 | did not run |" in matrix.line(row, f"{output}ImportError: 7\n", 1)
    assert "| 0 | did not run |" in matrix.line(row, "pip: no\n", 1)


def test_elsewhere_takes_the_newest_python_that_a_wheel_fits() -> None:
    elsewhere = script("elsewhere")
    assert elsewhere.newest("windows", "rootdk-1-cp310-cp310-win_amd64.whl") == "3.10"
    assert elsewhere.newest("windows", "rootdk-1-cp312-abi3-win_amd64.whl") == "3.13"
    assert elsewhere.newest("x86_64", "rootdk-1-cp312-abi3-manylinux2014_x86_64.whl") == "3.14"
    with pytest.raises(elsewhere.MissingError, match=r"^no Python for musl that takes rootdk.*: 3\.13 are to be had$"):
        elsewhere.newest("musl", "rootdk-1-cp310-cp310-musllinux_1_2_x86_64.whl")
    with pytest.raises(elsewhere.MissingError, match=r"^--python must be one of 3\.10, .* there, got 3\.9$"):
        elsewhere.of_windows("3.9")


def test_a_race_gives_the_time_of_the_wheel_over_that_of_what_is_here(monkeypatch: pytest.MonkeyPatch) -> None:
    race = script("race")
    clock = iter(range(1000))
    monkeypatch.setattr(race.time, "monotonic", lambda: float(next(clock)))
    order: list[str] = []

    def turn(name: str, seconds: float) -> float:
        order.append(name)
        return seconds + len(order) / 1000

    ratios = race.race([lambda: turn("here", 1.0), lambda: turn("wheel", 2.0)], 3.0)
    assert order[:4] == ["here", "wheel", "wheel", "here"]
    assert ratios["turns"] == order.count("here") == order.count("wheel") >= 6
    assert 1.9 < ratios["best"] < 2.1
    assert 1.9 < ratios["median"] < 2.1


def test_a_race_wants_a_wheel() -> None:
    command = [sys.executable, str(ROOT / "wheels" / "race.py"), "nowhere.whl"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 2
    assert "WHEEL must be the file of a wheel for this system and Python, got nowhere.whl" in done.stderr


def test_what_wine_lacks_names_tests_that_are_there() -> None:
    for name in script("elsewhere").WINE_LACKS:
        file, _, test = name.partition("::")
        assert f"def {test}(" in (ROOT / file).read_text("utf-8")


def test_an_unknown_platform_is_one_line() -> None:
    command = [sys.executable, str(ROOT / "wheels" / "builder.py"), "amiga"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 2
    assert "PLATFORM must be one of linux-x86_64" in done.stderr
    assert "got 'amiga'" in done.stderr


@pytest.mark.slow
def test_wheels_are_built_twice_alike_and_are_well(tmp_path: Path) -> None:
    """For this machine's own kind of system; `make wheels` sets up the compiler. Nothing of the first build is kept."""
    made = []
    for name in ("1", "2"):
        for folder in ("linux-x86_64", "cache"):
            shutil.rmtree(ROOT / "build/wheels" / folder, ignore_errors=True)
        options = f"linux-x86_64 --output {tmp_path / name}"
        subprocess.run(["make", "wheels", f"ARGS={options}"], cwd=ROOT, check=True, timeout=3600)
        made.append({file.name: file.read_bytes() for file in (tmp_path / name).iterdir()})
    assert made[0] == made[1]
    assert len([name for name in made[0] if name.endswith(".whl")]) == 3
