"""The suite's own rule (tests/support/missing_is_failure.py): where CI is set, a missing module is a failure."""

import subprocess
import sys
from pathlib import Path

import pytest

SUPPORT = Path(__file__).parents[1] / "support"

CASES = {
    "in_a_test": ("import pytest\ndef test_it():\n    pytest.importorskip('no_such_module')\n", True),
    "in_a_file": ("import pytest\npytest.importorskip('no_such_module')\ndef test_it(): pass\n", True),
    "by_a_mark": (
        "import pytest\n@pytest.mark.skipif(True, reason='torch is not installed')\ndef test_it(): pass\n",
        True,
    ),
    "for_another_reason": ("import pytest\n@pytest.mark.skip(reason='needs two CPUs')\ndef test_it(): pass\n", False),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("ci", [True, False])
def test_missing_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str, ci: bool) -> None:
    program, about_a_module = CASES[case]
    (tmp_path / "test_it.py").write_text(program)
    if ci:
        monkeypatch.setenv("CI", "true")
    else:
        monkeypatch.delenv("CI", raising=False)
    monkeypatch.setenv("PYTHONPATH", str(SUPPORT))
    options = ["-q", "-p", "no:cacheprovider", "-p", "missing_is_failure", "--rootdir", str(tmp_path)]
    command = [sys.executable, "-m", "pytest", *options, str(tmp_path)]
    finished = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    failed = " failed" in finished.stdout or " error" in finished.stdout
    assert failed == (ci and about_a_module), finished.stdout
    assert ("CI is set" in finished.stdout) == failed
