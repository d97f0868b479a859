"""A wheel in a new environment, tested there: python wheels/trial.py WHEEL [REQUIREMENT ...] [-- PYTEST OPTIONS].

The environment is of the Python that runs this. It gets the wheel as pip installs it for a user, from the file; then what the
operator's tests import, without torch unless a requirement asks for it; then the tests run against what was installed. Without
torch, files of tests that import it are left out, and named. With jax, flax and equinox those of tests/jax run too.
"""

import ast
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
TESTS = ("pytest>=9", "hypothesis>=6.100", "mpmath>=1.3", "ml_dtypes>=0.5")  # what they import
WITH_TORCH = "tests/operator/test_kernel_interrupt.py::test_it_ends_and_the_next_call_is_right[beside torch]"


def left_out(with_torch: bool) -> list[str]:
    """Files of the operator's tests that cannot run there."""
    files = sorted((ROOT / "tests/operator").glob("test_*.py"))
    return [*LEFT_OUT, *(file.name for file in files if not with_torch and _imports_torch(file))]


def _imports_torch(file: Path) -> bool:
    names = set()
    for node in ast.parse(file.read_text("utf-8")).body:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(str(node.module))
    return bool(names & {"torch", "tensors"})


def pytest_command(with_torch: bool, with_jax: bool) -> list[str]:
    """What follows the name of the interpreter, to run the operator's tests; what is left out is printed."""
    names = left_out(with_torch)
    single = [] if with_torch else [WITH_TORCH]
    print(f"left out: {', '.join([*names, *single])}", flush=True)
    command = ["-m", "pytest", "-q", "-m", "not slow", "-p", "no:cacheprovider", "tests/operator"]
    command += ["tests/jax"] if with_jax else []
    command += [f"--ignore=tests/operator/{name}" for name in names]
    return [*command, *(f"--deselect={test}" for test in single)]


def main() -> None:
    words = sys.argv[1:]
    options = words[words.index("--") + 1 :] if "--" in words else []
    words = words[: words.index("--")] if "--" in words else words
    if not words or not words[0].endswith(".whl") or not Path(words[0]).is_file():
        sys.exit(f"rootdk: wheels/trial.py: WHEEL must be a file that ends in .whl, got {words[:1] or 'nothing'}")
    wheel, requirements = Path(words[0]).resolve(), words[1:]
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "environment"
        venv.create(home, with_pip=True)
        python = str(home / ("Scripts/python.exe" if os.name == "nt" else "bin/python"))
        install = [python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
        begun = time.monotonic()
        subprocess.run([*install, "--only-binary=:all:", str(wheel), *requirements], check=True)
        seconds = time.monotonic() - begun
        completed = subprocess.run([python, "-I", "-c", FIRST], check=True, cwd=folder, capture_output=True, text=True)
        print(json.dumps({"pip install": round(seconds, 1), **json.loads(completed.stdout)}), flush=True)
        # The requirements once more: else pip would take a newer NumPy where one of these wants it.
        subprocess.run([*install, *requirements, *TESTS], check=True)
        find = (
            "import importlib.util as u, json; print(json.dumps([bool(u.find_spec(n)) for n in ('torch', 'equinox')]))"
        )
        lookup = subprocess.run([python, "-I", "-c", find], check=True, cwd=folder, capture_output=True, text=True)
        command = [python, *pytest_command(*json.loads(lookup.stdout)), *options]
        env = {name: value for name, value in os.environ.items() if name != "CI"}  # no torch is no failure here
        sys.exit(subprocess.run(command, check=False, cwd=ROOT, env=env).returncode)


if __name__ == "__main__":
    main()
