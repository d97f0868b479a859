"""The suite's own rule (tests/support/missing_is_failure.py): where CI is set, a missing module is a failure."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

SUPPORT = Path(__file__).parents[1] / "support"

FOR_A_MODULE = {
    "in_a_test": "import pytest\ndef test_it():\n    pytest.importorskip('no_such_module')\n",
    "in_a_file": "import pytest\npytest.importorskip('no_such_module')\ndef test_it(): pass\n",
    "by_a_mark": "import pytest\n@pytest.mark.skipif(True, reason='torch is not installed')\ndef test_it(): pass\n",
}
FOR_ANOTHER_REASON = "import pytest\n@pytest.mark.skip(reason='needs two CPUs')\ndef test_it(): pass\n"


# In this process's own child, and in one of pytest-xdist, whose reports come to the first one.
@pytest.mark.parametrize(("ci", "shared"), [(True, False), (False, False), (True, True)])
def test_missing_module(tmp_path: Path, ci: bool, shared: bool) -> None:
    for name, program in (FOR_A_MODULE | {"for_another_reason": FOR_ANOTHER_REASON}).items():
        (tmp_path / f"test_{name}.py").write_text(program)
    # Other plugins take seconds to load and have no say in this.
    environment = {**os.environ, "PYTHONPATH": str(SUPPORT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "CI": "true"}
    if not ci:
        del environment["CI"]
    options = ["-q", "--continue-on-collection-errors", "-p", "no:cacheprovider", "-p", "missing_is_failure"]
    options += ["-p", "xdist", "-n", "1"] if shared else []
    finished = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "--rootdir", str(tmp_path), str(tmp_path)],
        cwd=tmp_path, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    failed = set(re.findall(r"^(?:FAILED|ERROR) test_(\w+)\.py", finished.stdout, re.MULTILINE))
    assert failed == (set(FOR_A_MODULE) if ci else set()), finished.stdout
    assert ("CI is set" in finished.stdout) == ci
