"""A wheel in a new environment, tested there: python wheels/trial.py WHEEL [REQUIREMENT ...] [-- PYTEST OPTIONS].

The environment is of the Python that runs this. It gets the wheel as pip installs it for a user, from the file; then what the
operator's tests import, without torch unless a requirement asks for it; then the tests run against what was installed.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FIRST = """
import time; begun = time.perf_counter()
import numpy; numpy_there = time.perf_counter()
import rootdk
imported = time.perf_counter()
rootdk.attention(*[numpy.ones((2, 4, 8), "float32")] * 3)
called = time.perf_counter()
import json, platform
from rootdk.backends import kernel
print(json.dumps({"python": platform.python_version(), "numpy": numpy.__version__, "rootdk": rootdk.__version__,
                  "targets": kernel().targets(), "compiler": kernel().compiler(), "import NumPy": numpy_there - begun,
                  "import rootdk": imported - numpy_there, "first call": called - imported, "file": rootdk.__file__}))
"""
# Tests of the operator on arrays; the C++ compiler, nm and the build's own folder are not part of a wheel.
LEFT_OUT = ("test_symbols.py",)


def main() -> None:
    given = sys.argv[1:]
    options = given[given.index("--") + 1 :] if "--" in given else []
    given = given[: given.index("--")] if "--" in given else given
    if not given or not given[0].endswith(".whl") or not Path(given[0]).is_file():
        sys.exit(f"rootdk: wheels/trial.py: WHEEL must be a file that ends in .whl, got {given[:1] or 'nothing'}")
    wheel, requirements = Path(given[0]).resolve(), given[1:]
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "environment"
        venv.create(home, with_pip=True)
        python = str(home / ("Scripts/python.exe" if os.name == "nt" else "bin/python"))
        install = [python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
        begun = time.monotonic()
        subprocess.run([*install, "--only-binary=:all:", str(wheel), *requirements], check=True)
        seconds = time.monotonic() - begun
        told = subprocess.run([python, "-I", "-c", FIRST], check=True, cwd=folder, capture_output=True, text=True)
        print(json.dumps({"pip install": round(seconds, 1), **json.loads(told.stdout)}), flush=True)
        subprocess.run([*install, "pytest>=9", "hypothesis>=6.100", "mpmath>=1.3", "ml_dtypes>=0.5"], check=True)
        ignored = [f"--ignore=tests/operator/{name}" for name in LEFT_OUT]
        command = [
            python,
            "-m",
            "pytest",
            "-q",
            "-m",
            "not slow",
            "-p",
            "no:cacheprovider",
            *ignored,
            "tests/operator",
            *options,
        ]
        env = {
            name: value for name, value in os.environ.items() if name != "CI"
        }  # tests of torch are left out, not failed
        sys.exit(subprocess.run(command, check=False, cwd=ROOT, env=env).returncode)


if __name__ == "__main__":
    main()
