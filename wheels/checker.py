"""Looks at finished wheels as an installer and a loader would: python wheels/checker.py WHEEL ... `make wheels` does it last.

The checks of auditwheel, delocate and abi3audit, for all systems alike: which libraries a module needs and how new, which functions of
Python it uses, what it exports, and that the wheel fits its name.
"""

import base64
import csv
import dataclasses
import hashlib
import io
import re
import struct
import sys
import zipfile
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import Any

from builder import ABIS, PLATFORMS, ROOT, Abi, Platform

Version = tuple[int, ...]

# The libraries that every system of the kind has, among those that a module may need.
SYSTEM = {
    "gnu": r"lib(c|m|dl|pthread|rt)\.so\.\d|ld-linux-(x86-64\.so\.2|aarch64\.so\.1)",
    "musl": r"libc\.so",
    "macho": r"/usr/lib/libSystem\.B\.dylib",
    "pe": r"(?i:kernel32\.dll|ntdll\.dll|api-ms-win-crt-[a-z]+-l1-1-0\.dll)",
}
GLIBC: Version = (2, 17)  # manylinux2014
MACOS: Version = (11, 0)


@dataclasses.dataclass
class Facts:
    """What a compiled module contains."""

    machine: str
    needed: list[str]
    shown: set[str]  # the symbols that it exports
    python: set[str]  # the symbols of Python that it uses
    newest: dict[str, Version]  # the newest version of each library's symbols that it uses: GLIBC, macOS
    signed: bool = True
    coalesced: bool = (
        False  # whether others' symbols of the same names may take the place of its own, or its own theirs (macOS)
    )


def facts_of(module: bytes) -> Facts:
    """Read with lief, which reads the files of all systems."""
    lief = import_module("lief")
    binary = lief.parse(io.BytesIO(module))
    if binary.format == lief.Binary.FORMATS.ELF:
        return _elf(binary)
    if binary.format == lief.Binary.FORMATS.MACHO:
        return _macho(binary, module)
    return _pe(binary)


def _elf(binary: Any) -> Facts:
    dynamic = list(binary.dynamic_symbols)
    newest: dict[str, Version] = {}
    for requirement in binary.symbols_version_requirement:
        for version in requirement.get_auxiliary_symbols():
            name, _, number = version.name.partition("_")
            if number:
                newest[name] = max(newest.get(name, ()), _version(number))
    return Facts(
        {"X86_64": "x86_64", "AARCH64": "aarch64"}[binary.header.machine_type.name],
        list(binary.libraries),
        {symbol.name for symbol in dynamic if symbol.exported and symbol.name},
        {symbol.name for symbol in dynamic if not symbol.exported and symbol.name.startswith(("Py", "_Py"))},
        newest,
    )


def _macho(binary: Any, module: bytes) -> Facts:
    names = {symbol.name.removeprefix("_") for symbol in binary.imported_symbols}
    return Facts(
        {"X86_64": "x86_64", "ARM64": "aarch64"}[binary.header.cpu_type.name],
        [library.name for library in binary.libraries if library.command.name != "ID_DYLIB"],
        {symbol.name.removeprefix("_") for symbol in binary.exported_symbols},
        {name for name in names if name.startswith(("Py", "_Py"))},
        {"macOS": tuple(binary.build_version.minos[:2])},
        signed=binary.has_code_signature
        and is_signed(module, module[binary.code_signature.data_offset :][: binary.code_signature.data_size]),
        coalesced=bool({flag.name for flag in binary.header.flags_list} & {"WEAK_DEFINES", "BINDS_TO_WEAK"}),
    )


def is_signed(module: bytes, signature: bytes) -> bool:
    """Whether a signature of macOS fits: its digest of every page of the file before it. Who signed does not matter."""
    magic, _, count = struct.unpack_from(">III", signature)
    if magic != 0xFADE0CC0:
        return False
    blobs = dict(struct.unpack_from(">II", signature, 12 + 8 * number) for number in range(count))
    if 0 not in blobs:
        return False
    directory = signature[blobs[0] :]
    magic, _, _, _, digests, _, _, pages, end, size, kind, _, shift = struct.unpack_from(">9I4B", directory)
    if (magic, size, kind) != (0xFADE0C02, 32, 2) or pages != -(-end >> shift) or end + len(signature) != len(module):
        return False
    starts = range(0, end, 1 << shift)
    wanted = (hashlib.sha256(module[start : min(start + (1 << shift), end)]).digest() for start in starts)
    return b"".join(wanted) == directory[digests : digests + 32 * pages]


def _pe(binary: Any) -> Facts:
    used = {entry.name for library in binary.imports for entry in library.entries}
    return Facts(
        {"AMD64": "x86_64", "ARM64": "aarch64"}[binary.header.machine.name],
        [library.name for library in binary.imports],
        {entry.name for entry in binary.get_export().entries},
        {name for name in used if name.startswith(("Py", "_Py"))},
        {},
    )


def _version(text: str) -> Version:
    return tuple(int(number) for number in re.findall(r"\d+", text))


def complaints(facts: Facts, platform: Platform, abi: Abi, stable: Iterable[str]) -> list[str]:
    """What is wrong with a module, in sentences. stable: the names of the stable ABI of that version."""
    faults = []
    if facts.machine != platform.machine:
        faults.append(f"is for {facts.machine}, not {platform.machine}")
    kind = platform.format if platform.format != "elf" else "musl" if "musl" in platform.zig else "gnu"
    allowed = SYSTEM[kind]
    if platform.format == "pe":
        allowed += rf"|{abi.library}\.dll"
        if f"{abi.library}.dll" not in facts.needed:
            faults.append(f"does not take Python from {abi.library}.dll")
    faults += [
        f"needs {name}, which not every such system has" for name in facts.needed if not re.fullmatch(allowed, name)
    ]
    # Windows looks up a symbol in one named library, so what nanobind exports there cannot clash with the same name elsewhere.
    shown = {name for name in facts.shown if platform.format != "pe" or not re.match(r"_ZT[VIS]N8nanobind", name)}
    if shown != {"PyInit__kernel"}:
        faults.append(f"shows {sorted(shown)[:5]}, not PyInit__kernel alone")
    for name, limit in (("GLIBC", GLIBC), ("macOS", MACOS)):
        if facts.newest.get(name, ()) > limit:
            faults.append(
                f"needs {name} {'.'.join(map(str, facts.newest[name]))}, newer than {'.'.join(map(str, limit))}"
            )
    if "GLIBCXX" in facts.newest:
        faults.append("needs the C++ library of the system")
    if platform.format == "macho" and platform.machine == "aarch64" and not facts.signed:
        faults.append("is not signed, or was changed after that, and Apple's processors run only what is")
    if facts.coalesced:
        faults.append("has weak symbols, which macOS would make one with those of other libraries")
    if not facts.python:
        faults.append("uses nothing of Python")
    if abi.stable:
        faults += [f"uses {name}, which is not in the stable ABI" for name in sorted(facts.python - set(stable))]
    return faults


def stable_names(abi: Abi) -> set[str]:
    """Functions and data of the stable ABI up to this version, and what every such Python has."""
    info = import_module("abi3info")
    known = {**info.FUNCTIONS, **info.DATAS}
    limit = (3, abi.minor)
    return {symbol.name for symbol, entry in known.items() if (entry.added.major, entry.added.minor) <= limit} | {
        "_Py_NoneStruct",
        "_Py_TrueStruct",
        "_Py_FalseStruct",
    }


def archive_complaints(name: str, files: dict[str, bytes]) -> list[str]:
    """What is wrong with a wheel as an archive, whatever it was built for."""
    faults = []
    package, version, python, interface, platforms = name.removesuffix(".whl").split("-")
    home = f"{package}-{version}.dist-info"
    tags = set(re.findall(r"^Tag: (.*)$", files.get(f"{home}/WHEEL", b"").decode(), re.MULTILINE))
    expected = {f"{python}-{interface}-{platform}" for platform in platforms.split(".")}
    if tags != expected:
        faults.append(f"says it is for {sorted(tags)}, its name {sorted(expected)}")
    listed = {row[0]: row[1:] for row in csv.reader(io.StringIO(files.get(f"{home}/RECORD", b"").decode()))}
    for path, content in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        if path != f"{home}/RECORD" and listed.get(path) != [f"sha256={digest}", str(len(content))]:
            faults.append(f"{path} is not as RECORD has it")
    faults += [f"{path} is in RECORD and not in the wheel" for path in sorted(set(listed) - set(files))]
    if list(files) != sorted(files):
        faults.append("its files are not in the order of their names")
    for path, content in files.items():
        for place in {str(ROOT), str(Path.home()), sys.prefix} - {"/", ""}:
            if place.encode() in content:
                faults.append(f"{path} holds a path of this machine")
    return faults


def check(file: Path) -> list[str]:
    """What is wrong with a wheel; nothing, if all is well."""
    with zipfile.ZipFile(file) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    faults = archive_complaints(file.name, files)
    tag = "-".join(file.name.split("-")[2:4])
    abi = next((abi for abi in ABIS if abi.tag == tag), None)
    platform = next((platform for platform in PLATFORMS.values() if file.name.endswith(f"-{platform.tag}.whl")), None)
    if abi is None or platform is None:
        return [*faults, "is for none of the platforms or Pythons that are built for"]
    module = files.get(f"rootdk/{abi.module(platform)}")
    if module is None:
        return [*faults, f"has no rootdk/{abi.module(platform)}"]
    return faults + complaints(facts_of(module), platform, abi, stable_names(abi) if abi.stable else ())


def main() -> None:
    wheels = [Path(name) for name in sys.argv[1:]]
    if not wheels:
        sys.exit("rootdk: wheels/checker.py: give one or more wheels")
    bad = 0
    for file in wheels:
        faults = check(file)
        bad += bool(faults)
        print(f"{file.stat().st_size / 1e6:6.2f} MB  {'ok' if not faults else 'NOT OK'}  {file.name}")
        for line in faults:
            print(f"           {line}")
    if bad:
        sys.exit(f"rootdk: {bad} of {len(wheels)} wheels are not as they should be")


if __name__ == "__main__":
    main()
