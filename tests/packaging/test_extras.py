"""Every extra can be had on a clean machine: pip finds versions that fit, and torch is the one that is pinned."""

import json
import re
import subprocess
import venv
from importlib.metadata import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
DECLARED = metadata("rootdk")
REQUIREMENTS = [Requirement(line) for line in DECLARED.get_all("Requires-Dist") or ()]
EXTRAS = sorted(DECLARED.get_all("Provides-Extra") or ())


def test_there_are_extras_to_try() -> None:
    assert {"torch", "lab", "audit", "test", "dev"} <= set(EXTRAS)


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """That of an environment with nothing but a new pip."""
    home = tmp_path_factory.mktemp("clean")
    venv.create(home, with_pip=True)
    python = str(home / "bin" / "python")
    subprocess.run([python, "-m", "pip", "install", "--quiet", "--upgrade", "pip"], check=True)
    return python


@pytest.mark.slow
@pytest.mark.parametrize("extra", ["", *EXTRAS])
def test_an_extra_resolves(extra: str, python: str, tmp_path: Path) -> None:
    """Only chosen, not installed: of most packages pip reads what they need and not the package."""
    report = tmp_path / "report.json"
    wanted = f"{ROOT}[{extra}]" if extra else str(ROOT)
    command = [
        python,
        "-m",
        "pip",
        "--disable-pip-version-check",
        "install",
        "--quiet",
        "--dry-run",
        "--report",
        report,
    ]
    done = subprocess.run(
        [*command, "-c", ROOT / "constraints.txt", wanted], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    chosen = {
        canonicalize_name(item["metadata"]["name"]): item["metadata"]["version"]
        for item in json.loads(report.read_text("utf-8"))["install"]
    }
    needs = [need for need in REQUIREMENTS if need.marker is None or need.marker.evaluate({"extra": extra})]
    assert {"rootdk", *(canonicalize_name(need.name) for need in needs)} <= set(chosen)
    if "torch" in chosen:
        pinned = re.search(r"^torch==(.*)$", (ROOT / "constraints.txt").read_text("utf-8"), re.MULTILINE)
        assert pinned is not None
        assert chosen["torch"].partition("+")[0] == pinned[1]
