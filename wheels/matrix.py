"""The wheels of a build, each where it can be run: python wheels/matrix.py [--dist FOLDER] [ROW ...] [-- PYTEST OPTIONS].

Oldest and newest: every Python, with the oldest and the newest NumPy that it takes, and the oldest and the newest torch, and jax. A row
is a name of ROWS, all of them if none is given. What a row says goes to build/trials/ROW.log, and a line of the table in
docs/install.md is printed for it. Pythons that are not installed here are those of Debian, in a folder (wheels/elsewhere.py).
"""

import argparse
import dataclasses
import json
import re
import subprocess
import sys
import time
from pathlib import Path

from builder import ABIS, PLATFORMS, ROOT, Abi, BuildError, headers_here

LOGS = ROOT / "build" / "trials"
LINUX = "x86_64"


@dataclasses.dataclass(frozen=True)
class Row:
    """A wheel in an environment."""

    system: str
    python: str
    requirements: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The name of the row and of its log."""
        parts = [self.system, self.python, *(text.replace("==", "-") for text in self.requirements)]
        return "_".join(parts)

    @property
    def wheel(self) -> str:
        """The end of its file name."""
        minor = int(self.python.partition(".")[2])
        abi = next(abi for abi in reversed(ABIS) if abi.minor <= minor)
        platform = {"musl": "musl-x86_64", "windows": "windows-x86_64"}.get(self.system, f"linux-{self.system}")
        return f"-{abi.tag}-{PLATFORMS[platform].tag}.whl"


# The oldest NumPy with a wheel for 3.13 is 2.1, for 3.14 it is 2.3.2; 3.10 takes no newer one than 2.2.
ROWS = {
    row.name: row
    for row in (
        Row(LINUX, "3.10", ("numpy==1.26.4", "torch==2.6.0")),
        Row(LINUX, "3.10"),
        Row(LINUX, "3.11", ("numpy==1.26.4",)),
        Row(LINUX, "3.11", ("torch==2.13.0", "jax==0.10.2", "flax", "equinox", "flatbuffers")),
        Row(LINUX, "3.12", ("numpy==1.26.4",)),
        Row(LINUX, "3.12"),
        Row(LINUX, "3.13", ("numpy==2.1.0",)),
        Row(LINUX, "3.13"),
        Row(LINUX, "3.14", ("numpy==2.3.2",)),
        Row(LINUX, "3.14"),
        Row("aarch64", "3.13"),
        Row("musl", "3.13"),
        # NumPy 2 needs crealf of the C library, which wine 10 does not have.
        *(Row("windows", python, ("numpy==1.26.4",)) for python in ("3.10", "3.11", "3.12")),
    )
}


def interpreter(python: str) -> str | None:
    """An installed Python of that version, if there is one."""
    try:
        headers = headers_here(Abi(int(python.partition(".")[2])))
    except BuildError:
        return None
    program = headers.parents[1] / "bin" / f"python{python}"
    return str(program) if program.exists() else None


def command(row: Row, wheel: Path) -> list[str]:
    python = interpreter(row.python) if row.system == LINUX else None
    if python:
        return [python, "wheels/trial.py", str(wheel), *row.requirements]
    return [sys.executable, "wheels/elsewhere.py", row.system, str(wheel), f"--python={row.python}", *row.requirements]


def line(row: Row, log: str, minutes: float) -> str:
    """A line of the table: what was there, and how the tests ended."""
    match = re.search(r"^\{.*\}$", log, re.MULTILINE)
    facts = json.loads(match[0]) if match else {"python": row.python, "numpy": "?"}
    counts = {word: number for number, word in re.findall(r"(\d+) (passed|failed|errors?|skipped)", _last(log))}
    others = "".join(f", {text.replace('==', ' ')}" for text in row.requirements if not text.startswith("numpy"))
    bad = counts.get("failed", "0") if "passed" in counts else "did not run"
    return f"| {row.system} | {facts['python']} | {facts['numpy']}{others} | {counts.get('passed', 0)} | {bad} | {minutes:.0f} min |"


def _last(log: str) -> str:
    lines = [text for text in log.splitlines() if re.search(r"\d+ (passed|failed|error)", text)]
    return lines[-1] if lines else ""


def main() -> None:
    options = sys.argv[sys.argv.index("--") :] if "--" in sys.argv else []
    words = sys.argv[1 : sys.argv.index("--")] if "--" in sys.argv else sys.argv[1:]
    parser = argparse.ArgumentParser(prog="wheels/matrix.py", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("row", nargs="*", metavar="ROW", help=f"of {', '.join(ROWS)}")
    parser.add_argument("--dist", type=Path, default=ROOT / "dist", metavar="FOLDER")
    arguments = parser.parse_args(words)
    unknown = [name for name in arguments.row if name not in ROWS]
    if unknown:
        parser.error(f"ROW must be one of {', '.join(ROWS)}, got {unknown[0]}")
    LOGS.mkdir(parents=True, exist_ok=True)
    bad = 0
    for name in arguments.row or ROWS:
        row, begun = ROWS[name], time.monotonic()
        wheels = sorted(arguments.dist.glob(f"*{row.wheel}"))
        if len(wheels) != 1:
            sys.exit(
                f"rootdk: wheels/matrix.py: one wheel *{row.wheel} is wanted in {arguments.dist}, found {len(wheels)}"
            )
        with (LOGS / f"{name}.log").open("w", encoding="utf-8", newline="\n") as log:
            done = subprocess.run([*command(row, wheels[0]), *options], check=False, cwd=ROOT, stdout=log, stderr=log)
        bad += done.returncode != 0
        print(line(row, (LOGS / f"{name}.log").read_text("utf-8"), (time.monotonic() - begun) / 60), flush=True)
    sys.exit(f"rootdk: {bad} rows have failed: their logs lie in {LOGS.relative_to(ROOT)}" if bad else 0)


if __name__ == "__main__":
    main()
