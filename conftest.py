"""No test runs against a stale build. Options and fixtures of the tests themselves live in tests/conftest.py."""

import importlib
import runpy
import signal
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent
pytest_plugins = ["missing_is_failure"]


def stale(root: Path, package: Path, compiled_from: str | None) -> str:
    """Why the package is not what lies in root, in one line; empty if it is."""
    source = root / "src" / "rootdk"
    if package != source:
        for file in sorted(source.rglob("*.py")):
            installed = package / file.relative_to(source)
            if not installed.is_file() or installed.read_bytes() != file.read_bytes():
                name = file.relative_to(root).as_posix()
                return f"rootdk: the installed package is not what lies in src/ ({name} differs): run `make dev`"
    digest = runpy.run_path(str(root / "bindings" / "sources.py"))["digest"]
    if compiled_from is None:
        return "rootdk: there is no compiled kernel: run `make dev`"
    if compiled_from != digest(root):
        return "rootdk: the compiled kernel is not what lies in kernel/ and bindings/: run `make dev`"
    return ""


# To rewrite the asserts of all tests takes every process five seconds: the result is kept, also where Python is told to
# keep nothing. Only while tests are collected: what they do themselves is done as usual.
_KEPT_NOTHING = sys.dont_write_bytecode


def pytest_collection_finish() -> None:
    sys.dont_write_bytecode = _KEPT_NOTHING


def pytest_configure() -> None:
    sys.dont_write_bytecode = False
    # A shell that starts the tests in the background has SIGINT ignored in them and in all that they start, and no
    # test of Ctrl-C could pass. With a handler here, their children begin with the default.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    import rootdk

    try:
        kernel = importlib.import_module("rootdk._kernel")
        compiled_from = kernel.sources() if hasattr(kernel, "sources") else ""
    except ImportError:
        compiled_from = None
    reason = stale(ROOT, Path(rootdk.__file__).parent, compiled_from)
    if reason:
        raise pytest.UsageError(reason)
