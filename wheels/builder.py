"""Wheels for every system, all built on this one: python wheels/builder.py [PLATFORM ...]. `make wheels` sets up what it needs.

zig, which comes as a Python package, is a compiler for all of them with their C libraries. The kernel knows no Python, so it is
compiled once per platform; the binding once per platform and ABI: CPython 3.10, CPython 3.11, and the stable ABI from 3.12 on.
Of Python only the headers are needed. They are the same on every system but for pyconfig.h, which is written here. Of jax too:
three headers of an old jaxlib, which pip fetches. For macOS lld links, which zig does not bring: its own linker shows names that
are to stay inside.

The same source gives the same bytes: files in the order of their names, one date (SOURCE_DATE_EPOCH, or that of the last commit),
no paths of this machine.
"""

import argparse
import base64
import csv
import dataclasses
import hashlib
import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from importlib import import_module, metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
WORK = ROOT / "build" / "wheels"


@dataclasses.dataclass(frozen=True)
class Platform:
    """A system and machine to build for."""

    name: str
    zig: str  # the compiler's name for it, with the oldest version of the system
    tag: str  # pip's name for it
    suffix: str  # of a compiled module, after the interpreter's name
    format: str = "elf"

    @property
    def machine(self) -> str:
        return self.zig.partition("-")[0]

    @property
    def has_jax(self) -> bool:
        """Whether its wheels have the part that jax calls: not where jax has no wheels, nor where that part was never tried."""
        return self.format != "pe" and "musl" not in self.zig


# manylinux2014 is glibc 2.17, of 2012; macOS 11 is the first with Apple's own processors; Windows is 10 or newer, by its C library.
PLATFORMS = {
    platform.name: platform
    for platform in (
        Platform(
            "linux-x86_64",
            "x86_64-linux-gnu.2.17",
            "manylinux_2_17_x86_64.manylinux2014_x86_64",
            "x86_64-linux-gnu.so",
        ),
        Platform(
            "linux-aarch64",
            "aarch64-linux-gnu.2.17",
            "manylinux_2_17_aarch64.manylinux2014_aarch64",
            "aarch64-linux-gnu.so",
        ),
        Platform("musl-x86_64", "x86_64-linux-musl", "musllinux_1_2_x86_64", "x86_64-linux-musl.so"),
        Platform("macos-arm64", "aarch64-macos.11.0", "macosx_11_0_arm64", "darwin.so", "macho"),
        Platform("macos-x86_64", "x86_64-macos.11.0", "macosx_11_0_x86_64", "darwin.so", "macho"),
        Platform("windows-x86_64", "x86_64-windows-gnu", "win_amd64", "win_amd64.pyd", "pe"),
    )
}


@dataclasses.dataclass(frozen=True)
class Abi:
    """A binary interface of CPython."""

    minor: int
    stable: bool = False

    @property
    def python(self) -> str:
        return f"3.{self.minor}"

    @property
    def tag(self) -> str:
        return f"cp3{self.minor}-{'abi3' if self.stable else f'cp3{self.minor}'}"

    def module(self, platform: Platform) -> str:
        """What the compiled module is called, so that this Python finds it."""
        windows = platform.format == "pe"
        if self.stable:
            return "_kernel.pyd" if windows else "_kernel.abi3.so"
        return f"_kernel.{'cp' if windows else 'cpython-'}3{self.minor}-{platform.suffix}"

    @property
    def library(self) -> str:
        """The library on Windows that has the functions of Python."""
        return "python3" if self.stable else f"python3{self.minor}"


ABIS = (Abi(10), Abi(11), Abi(12, stable=True))


# The part for jax is compiled with the headers of this jaxlib: jax accepts what was compiled for its own version of the interface or an
# older one.
JAXLIB = "0.5.3"


class BuildError(Exception):
    """What is missing or wrong, in a line."""


# The compiler


@cache
def zig() -> list[str]:
    """The command of the compiler."""
    try:
        package = import_module("ziglang")
    except ImportError:
        raise BuildError("the compiler zig is missing: pip install ziglang, or run `make wheels`") from None
    return [str(Path(str(package.__file__)).parent / "zig")]


def run(command: list[str], **env: str) -> str:
    """The output of a command, or an error with that and the command. The compiler keeps what it compiled, in build/."""
    env |= {"ZIG_GLOBAL_CACHE_DIR": str(WORK / "cache"), "ZIG_LOCAL_CACHE_DIR": str(WORK / "cache")}
    done = subprocess.run(command, check=False, cwd=ROOT, env=os.environ | env, capture_output=True, text=True)
    if done.returncode != 0:
        raise BuildError(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def compiler_flags(platform: Platform) -> list[str]:
    """The same flags as in CMakeLists.txt, and no path of this machine."""
    flags = ["-target", platform.zig, "-std=c++17", "-O3", "-DNDEBUG", "-g0", "-fvisibility=hidden"]
    flags += ["-fno-sanitize=undefined", "-fno-stack-protector", "-ffunction-sections", "-fdata-sections"]
    flags += [f"-ffile-prefix-map={ROOT}=.", f"-ffile-prefix-map={nanobind()}=nanobind"]
    return flags if platform.format == "pe" else [*flags, "-fPIC"]


@cache
def nanobind() -> Path:
    """The folder of nanobind, whose version pyproject.toml pins."""
    wanted = re.search(r'"nanobind==([\d.]+)"', (ROOT / "pyproject.toml").read_text("utf-8"))
    assert wanted is not None
    try:
        package, version = import_module("nanobind"), metadata.version("nanobind")
    except ImportError:
        raise BuildError(f"nanobind {wanted[1]} is missing: run `make wheels`") from None
    if version != wanted[1]:
        raise BuildError(f"nanobind must be {wanted[1]}, found {version}: run `make wheels`")
    return Path(str(package.__file__)).parent


@dataclasses.dataclass(frozen=True)
class Step:
    """A file to compile."""

    platform: Platform
    source: Path
    made: Path
    flags: tuple[str, ...]

    def run(self) -> None:
        self.made.parent.mkdir(parents=True, exist_ok=True)
        flags = [*compiler_flags(self.platform), *self.flags]
        source = self.source.relative_to(ROOT) if self.source.is_relative_to(ROOT) else self.source
        run([*zig(), "c++", *flags, "-c", str(source), "-o", str(self.made)])


def targets(machine: str) -> dict[str, tuple[str, ...]]:
    """The instruction sets of a machine and the flags of each."""
    lines = (line.split() for line in (ROOT / "kernel/targets.txt").read_text("utf-8").splitlines())
    rows = [line for line in lines if line and line[0] != "#"]
    return {name: tuple(flags) for name, of, *flags in rows if of in ("any", machine)}


def kernel_steps(platform: Platform) -> list[Step]:
    """The kernel: files that every CPU runs, and one for each instruction set."""
    flags = ("-Ikernel", "-ffp-contract=fast", *(("-DROOTDK_AMX",) if platform.machine == "x86_64" else ()))
    steps = []
    chosen = targets(platform.machine)
    for source in sorted((ROOT / "kernel").glob("*.cc")):
        name = source.stem.removeprefix("target_")
        if source.stem.startswith("target_") and name not in chosen:
            continue
        extra_flags = chosen[name] if source.stem.startswith("target_") else ()
        steps.append(Step(platform, source, WORK / platform.name / f"{source.stem}.o", flags + extra_flags))
    return steps


def binding_steps(platform: Platform, abi: Abi) -> list[Step]:
    """The binding and nanobind, which need Python."""
    folder, headers = WORK / platform.name / abi.tag, python_headers(platform, abi)
    flags = [f"-I{headers}", f"-I{nanobind() / 'include'}", f"-I{nanobind() / 'ext/robin_map/include'}"]
    # The limited API leaves out <stdio.h>, which nanobind needs.
    flags += ["-fno-strict-aliasing", "-DNB_COMPACT_ASSERTIONS", "-include", "cstdio"]
    if abi.stable:
        flags.append(f"-DPy_LIMITED_API={hex(3 << 24 | abi.minor << 16)}")
    compiler = f'-DROOTDK_COMPILER="zig {metadata.version("ziglang")}"'
    digest = WORK / "source_digest.cc"
    jax = ("-DROOTDK_XLA",) if platform.has_jax else ()
    return [
        Step(platform, nanobind() / "src/nb_combined.cpp", folder / "nanobind.o", tuple(flags)),
        Step(platform, ROOT / "bindings/module.cc", folder / "module.o", (*flags, "-Ikernel", compiler, *jax)),
        Step(platform, digest, folder / "source_digest.o", ()),
    ]


def jax_steps(platform: Platform) -> list[Step]:
    """The part that jax calls, which needs no Python."""
    if not platform.has_jax:
        return []
    flags = ("-Ikernel", "-isystem", str(xla_headers().relative_to(ROOT)))
    return [Step(platform, ROOT / "bindings/xla.cc", WORK / platform.name / "xla.o", flags)]


@cache
def xla_headers() -> Path:
    """The folder with the headers of JAXLIB, whatever system that package is for, and its licence."""
    folder = WORK / f"jaxlib-{JAXLIB}"
    if not (folder / "LICENSE.txt").exists():
        with tempfile.TemporaryDirectory() as place:
            options = ["--only-binary=:all:", "--platform=manylinux2014_x86_64", "--python-version=3.11", "--no-deps"]
            run([sys.executable, "-m", "pip", "download", "--quiet", *options, "--dest", place, f"jaxlib=={JAXLIB}"])
            (wheel,) = Path(place).glob("*.whl")
            with zipfile.ZipFile(wheel) as archive:
                for path in archive.namelist():
                    name = path.removeprefix("jaxlib/include/").removeprefix(f"jaxlib-{JAXLIB}.dist-info/")
                    if name.startswith("xla/") or name == "LICENSE.txt":
                        (folder / name).parent.mkdir(parents=True, exist_ok=True)
                        (folder / name).write_bytes(archive.read(path))
    return folder


# Python's headers


def python_headers(platform: Platform, abi: Abi) -> Path:
    """A copy of the headers of this version, with the configuration of that platform."""
    folder = WORK / platform.name / f"include-{abi.python}"
    if not (folder / "Python.h").exists():
        shutil.copytree(headers_here(abi), folder, dirs_exist_ok=True)
    (folder / "pyconfig.h").write_text(pyconfig(platform), "utf-8", newline="\n")
    return folder


@cache
def headers_here(abi: Abi) -> Path:
    """The headers of an installed Python of this version, whatever it was built for."""
    program = "import sys, sysconfig; print(*sys.version_info[:2], sysconfig.get_path('include'))"
    for python in candidates(abi):
        answer = subprocess.run([python, "-c", program], check=False, capture_output=True, text=True)
        major, minor, folder = (*answer.stdout.strip().split(" ", 2), "", "", "")[:3]
        if answer.returncode == 0 and (major, minor) == ("3", str(abi.minor)) and (Path(folder) / "Python.h").exists():
            return Path(folder)
    where = f"python{abi.python} on PATH or ~/.pyenv/versions/{abi.python}.*"
    raise BuildError(f"the headers of Python {abi.python} are needed and were not found: install it ({where})")


def candidates(abi: Abi) -> Iterator[str]:
    yield sys.executable
    on_path = shutil.which(f"python{abi.python}")
    if on_path:
        yield on_path
    versions = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    yield from (str(python) for python in sorted(versions.glob(f"{abi.python}.*/bin/python"), reverse=True))


def pyconfig(platform: Platform) -> str:
    """The configuration that Python's public headers read. All platforms have 64 bits and are little-endian."""
    windows = platform.format == "pe"
    sizes = {"VOID_P": 8, "SIZE_T": 8, "INT": 4, "LONG_LONG": 8, "PID_T": 4, "TIME_T": 8, "DOUBLE": 8}
    sizes |= {"LONG": 4, "WCHAR_T": 2} if windows else {"LONG": 8, "WCHAR_T": 4}
    lines = [f"#define SIZEOF_{name} {size}" for name, size in sizes.items()]
    lines += ["#define ALIGNOF_MAX_ALIGN_T 16", '#define PY_FORMAT_SIZE_T "z"']
    have = ["ERRNO_H", "SYS_STAT_H", "WCHAR_H", "COPYSIGN", "HYPOT", "ROUND"]
    have += ["DECL_ISFINITE", "DECL_ISINF", "DECL_ISNAN"]
    if windows:
        names = ["MS_WINDOWS", "MS_WIN32", "MS_WIN64", "NT_THREADS", "Py_ENABLE_SHARED"]
        have += ["DECLSPEC_DLL"]
    else:
        names = ["TIME_WITH_SYS_TIME"]
        have += ["SSIZE_T", "SYS_TIME_H", "SYS_SELECT_H", "LANGINFO_H", "CLOCK_GETTIME", "FORK", "PTHREAD_H"]
    names += ["DOUBLE_IS_LITTLE_ENDIAN_IEEE754", "WITH_DOC_STRINGS", "WITH_PYMALLOC"]
    lines += [f"#define {name} 1" for name in (*names, *(f"HAVE_{name}" for name in have))]
    return f"/* Of {platform.name}, made by wheels/builder.py. */\n" + "\n".join(lines) + "\n"


# The module


def link(platform: Platform, abi: Abi) -> Path:
    """The compiled module of a wheel."""
    folder = WORK / platform.name / abi.tag
    module = folder / abi.module(platform)
    steps = (*binding_steps(platform, abi), *jax_steps(platform), *kernel_steps(platform))
    objects = [step.made for step in steps]
    if platform.format == "macho":
        link_for_macos(platform, objects, module)
        return module
    flags = ["-shared", "-s", "-O3", "-target", platform.zig]
    if platform.format == "elf":
        # Only one symbol is exported: a library in the same process may have others of the same names.
        exported = folder / "exported.map"
        exported.write_text("{ global: PyInit__kernel; local: *; };\n", "utf-8", newline="\n")
        flags += [f"-Wl,--version-script={exported}", "-Wl,--gc-sections"]
        if "gnu" in platform.zig:
            flags += ["-lpthread", "-ldl"]
        else:
            flags.append("-dynamic")
    else:
        flags.append(str(import_library(folder, abi, objects)))
    run([*zig(), "c++", *flags, *map(str, objects), "-o", str(module)])
    return module


def link_for_macos(platform: Platform, objects: list[Path], module: Path) -> None:
    """With lld, and what zig would have linked with.

    zig's linker shows operator new and delete of the C++ library inside, which macOS would then take for the whole process, and
    lets types of nanobind be taken from another module. It has no option against either.
    """
    oldest = platform.zig.partition("macos.")[2]
    flags = ["-dylib", "-arch", "arm64" if platform.machine == "aarch64" else platform.machine]
    flags += ["-platform_version", "macos", oldest, oldest, "-install_name", f"@rpath/{module.name}"]
    # Symbols that are not found here are Python's. Apple's processors run nothing without a signature; an anonymous one is enough.
    flags += ["-undefined", "dynamic_lookup", "-exported_symbol", "_PyInit__kernel", "-adhoc_codesign"]
    flags += ["-dead_strip", "-S"]
    run([macos_linker(), *flags, *map(str, objects), *macos_libraries(platform), "-o", str(module)])


@cache
def macos_linker() -> str:
    names = ["ld64.lld", *(f"ld64.lld-{version}" for version in range(30, 13, -1))]
    linker = next((path for path in map(shutil.which, names) if path), None)
    if linker is None:
        hint = "Debian, Ubuntu: apt install lld; macOS: brew install lld"
        raise BuildError(
            f"ld64.lld, which links for macOS, was not found: install lld ({hint}) or name other platforms"
        )
    return linker


@cache
def macos_libraries(platform: Platform) -> list[str]:
    """zig's C++ library and runtime, which it names when it links something small, and what the system's library has."""
    small = WORK / platform.name / "small.dylib"
    flags = ["-shared", "-s", "-O3", "-target", platform.zig]
    output = run([*zig(), "c++", *flags, str(WORK / "source_digest.cc"), "-o", str(small)], ZIG_VERBOSE_LINK="1")
    archives = [word for word in output.split() if word.endswith(".a")]
    if not any(path.endswith("libc++.a") for path in archives):
        raise BuildError(f"zig does not say what it links with for {platform.name}:\n{output}")
    # Processors newer than lld supports are left out; arm64e, the one of Apple's that is named, has what arm64 has.
    text = (Path(zig()[0]).parent / "lib/libc/darwin/libSystem.tbd").read_text("utf-8")
    text = re.sub(r",\s*arm64e\.\w+-\w+", "", text).replace("arm64e-", "arm64-")
    library = WORK / platform.name / "libSystem.tbd"
    library.write_text(text, "utf-8", newline="\n")
    return [*archives, str(library)]


def fuzz_program(folder: Path, platform: Platform) -> Path:
    """The fuzz program of the kernel (tests/kernel), with the same object files as the wheels of this platform."""
    if platform.format != "elf":
        raise BuildError(f"the fuzz program wants fork and guard pages, which it has not on {platform.name}")
    program = folder / f"kernel_fuzz-{platform.name}"
    flags = [*compiler_flags(platform), "-Ikernel", *(["-static"] if "musl" in platform.zig else ["-lpthread", "-ldl"])]
    objects = [str(step.made) for step in kernel_steps(platform)]
    run([*zig(), "c++", *flags, "tests/kernel/kernel_fuzz.cc", *objects, "-o", str(program)])
    return program


def import_library(folder: Path, abi: Abi, objects: Iterable[Path]) -> Path:
    """What a linker for Windows needs to know of Python's library: the names that are used, and the library's own."""
    used: set[str] = set()
    for object_file in objects:
        used |= python_names(object_file.read_bytes())
    definition, library = folder / f"{abi.library}.def", folder / f"{abi.library}.lib"
    definition.write_text(definition_file(abi, used), "utf-8", newline="\n")
    run([*zig(), "dlltool", "-m", "i386:x86-64", "-d", str(definition), "-l", str(library)])
    return library


def python_names(content: bytes) -> set[str]:
    """Functions and data of Python that an object file for Windows imports."""
    return {name.decode() for name in re.findall(rb"__imp_(_?Py[A-Za-z0-9_]+)", content)}


def definition_file(abi: Abi, used: Iterable[str]) -> str:
    return "\n".join([f"LIBRARY {abi.library}.dll", "EXPORTS", *(f"    {name}" for name in sorted(used))]) + "\n"


# The wheel


def build_date() -> int:
    """Seconds since 1970: SOURCE_DATE_EPOCH, else the last commit, else the earliest date that an archive can hold."""
    given = os.environ.get("SOURCE_DATE_EPOCH")
    if given:
        return int(given)
    completed = subprocess.run(
        ["git", "log", "-1", "--format=%ct"], check=False, cwd=ROOT, capture_output=True, text=True
    )
    return int(completed.stdout) if completed.stdout.strip() else 315532800


def package_files() -> dict[str, bytes]:
    """The Python files of the package, and what lies beside them."""
    source = ROOT / "src"
    files = (file for file in (source / "rootdk").rglob("*") if file.is_file() and "__pycache__" not in file.parts)
    chosen = (file for file in files if file.suffix not in {".so", ".pyd", ".pyc"})
    return {file.relative_to(source).as_posix(): file.read_bytes() for file in chosen}


def notes() -> dict[str, bytes]:
    """The .dist-info of a wheel as the build backend writes it, without what differs between wheels; and whose code is inside."""
    backend = import_module("scikit_build_core.build")
    with tempfile.TemporaryDirectory() as folder:
        previous_folder = os.getcwd()
        os.chdir(ROOT)
        try:
            name = backend.prepare_metadata_for_build_wheel(folder, {"wheel.cmake": "false"})
        finally:
            os.chdir(previous_folder)
        home = Path(folder) / name
        files = {
            f"{name}/{file.relative_to(home).as_posix()}": file.read_bytes()
            for file in home.rglob("*")
            if file.is_file()
        }
    files = {path: content for path, content in files.items() if path.rpartition("/")[2] not in {"WHEEL", "RECORD"}}
    for file in metadata.files("nanobind") or ():
        if file.name == "LICENSE" and "dist-info" in file.parts[0]:
            files[f"{name}/licenses/nanobind/LICENSE"] = file.read_binary()
    files[f"{name}/licenses/xla/LICENSE"] = (xla_headers() / "LICENSE.txt").read_bytes()
    header = (nanobind() / "ext/robin_map/include/tsl/robin_map.h").read_bytes()  # its licence is its first comment
    files[f"{name}/licenses/robin_map/LICENSE"] = header[: header.index(b"*/") + 3]
    return files


def pack(folder: Path, platform: Platform, abi: Abi, files: dict[str, bytes], module: bytes, date: int) -> Path:
    """A wheel of these files: PEP 427, in one order and with one date."""
    home = next(path for path in files if path.endswith(".dist-info/METADATA")).partition("/")[0]
    tags = "".join(f"Tag: {abi.tag}-{tag}\n" for tag in platform.tag.split("."))
    whole = {**files, f"rootdk/{abi.module(platform)}": module}
    whole[f"{home}/WHEEL"] = f"Wheel-Version: 1.0\nGenerator: rootdk\nRoot-Is-Purelib: false\n{tags}".encode()
    whole[f"{home}/RECORD"] = record(whole, f"{home}/RECORD")
    wheel = folder / f"{home.removesuffix('.dist-info')}-{abi.tag}-{platform.tag}.whl"
    stamp = time.gmtime(max(date, 315532800))[:6]
    with zipfile.ZipFile(wheel, "w") as archive:
        for path in sorted(whole):
            entry = zipfile.ZipInfo(path, stamp)
            entry.compress_type, entry.create_system = zipfile.ZIP_DEFLATED, 3
            entry.external_attr = (0o100755 if path.endswith((".so", ".pyd")) else 0o100644) << 16
            archive.writestr(entry, whole[path], compresslevel=9)
    return wheel


def record(files: dict[str, bytes], record_path: str) -> bytes:
    """Every file with its digest and size, as pip checks them."""
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    for path in sorted({*files, record_path}):
        if path == record_path:
            rows.writerow((path, "", ""))
            continue
        digest = base64.urlsafe_b64encode(hashlib.sha256(files[path]).digest()).rstrip(b"=").decode()
        rows.writerow((path, f"sha256={digest}", len(files[path])))
    return text.getvalue().encode()


def source_distribution(folder: Path, date: int) -> Path:
    """The same as the build backend makes."""
    code = "import sys, scikit_build_core.build as build; print(build.build_sdist(sys.argv[1]))"
    command = [sys.executable, "-c", code, str(folder)]
    env = os.environ | {"SOURCE_DATE_EPOCH": str(date)}
    done = subprocess.run(command, check=False, cwd=ROOT, env=env, capture_output=True, text=True)
    if done.returncode != 0:
        raise BuildError(f"the source distribution could not be made:\n{done.stdout}{done.stderr}")
    return folder / done.stdout.splitlines()[-1]


# All of it


class Progress:
    """One line that counts, on a terminal; a line for each twentieth part elsewhere."""

    def __init__(self, steps: int) -> None:
        self.steps, self.done, self.lock, self.begun = steps, 0, threading.Lock(), time.monotonic()

    def step(self, what: str) -> None:
        with self.lock:
            self.done += 1
            text = f"[{self.done:3d}/{self.steps}] {time.monotonic() - self.begun:4.0f} s  {what}"
            if sys.stderr.isatty():
                print(f"\r{text:<78.78}", end="\n" if self.done == self.steps else "", file=sys.stderr, flush=True)
            elif self.done == self.steps or self.done % max(1, self.steps // 20) == 0:
                print(text, file=sys.stderr, flush=True)


def build(folder: Path, platforms: list[Platform], jobs: int) -> list[Path]:
    """The wheels of these platforms."""
    folder.mkdir(parents=True, exist_ok=True)
    WORK.mkdir(parents=True, exist_ok=True)
    run([sys.executable, "bindings/sources.py", str(WORK / "source_digest.cc")])
    files, date = {**package_files(), **notes()}, build_date()
    pairs = [(platform, abi) for platform in platforms for abi in ABIS]
    steps = [step for platform in platforms for step in (*kernel_steps(platform), *jax_steps(platform))]
    steps += [step for pair in pairs for step in binding_steps(*pair)]
    progress = Progress(len(steps) + len(pairs))

    def compiled(step: Step) -> None:
        step.run()
        progress.step(f"{step.platform.name}: {step.source.stem}")

    def packed(pair: tuple[Platform, Abi]) -> Path:
        wheel = pack(folder, *pair, files, link(*pair).read_bytes(), date)
        progress.step(wheel.name)
        return wheel

    with ThreadPoolExecutor(jobs) as workers:
        list(workers.map(compiled, steps))
        return list(workers.map(packed, pairs))


def main() -> None:
    parser = argparse.ArgumentParser(prog="wheels/builder.py", description=__doc__)
    parser.add_argument("platform", nargs="*", metavar="PLATFORM", help=f"one of {', '.join(PLATFORMS)}; all of them")
    parser.add_argument("--output", type=Path, default=ROOT / "dist", metavar="FOLDER", help="default: dist")
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count() or 1, help="files that are compiled at the same time"
    )
    parser.add_argument("--fuzz", action="store_true", help="the program that attacks the kernel, too (Linux)")
    arguments = parser.parse_args()
    unknown = [name for name in arguments.platform if name not in PLATFORMS]
    if unknown:
        parser.error(f"PLATFORM must be one of {', '.join(PLATFORMS)}, got {unknown[0]!r}")
    chosen = [PLATFORMS[name] for name in arguments.platform or PLATFORMS]
    try:
        built = build(arguments.output, chosen, arguments.jobs)
        built.append(source_distribution(arguments.output, build_date()))
        for platform in chosen:
            if arguments.fuzz and (platform.format == "elf" or arguments.platform):
                print(fuzz_program(arguments.output, platform))
    except BuildError as error:
        sys.exit(f"rootdk: {error}")
    sums = arguments.output / "SHA256SUMS"
    lines = [f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in sorted(built)]
    sums.write_text("".join(lines), "utf-8", newline="\n")
    print(f"{built[-1].stat().st_size / 1e6:6.2f} MB      {built[-1].name}")
    print(
        f"{len(built)} files in {arguments.output}, their digests in {sums.name}; each wheel as a loader sees it:",
        flush=True,
    )
    sys.exit(subprocess.run([sys.executable, ROOT / "wheels/checker.py", *built[:-1]], check=False).returncode)


if __name__ == "__main__":
    main()
