"""What the training study needs beyond the package itself, asked for without loading it."""

from collections.abc import Iterable
from importlib.util import find_spec

from rootdk.errors import RootdkError
from rootdk.lab.training import RunSpec


class TrainingMissingError(RootdkError, ImportError):
    """A package that a run or an engine needs is not installed; the message names the extra that brings it."""


def check_installed(specs: Iterable[RunSpec]) -> None:
    """An error that says what to install, before anything runs: torch, and scikit-learn where digits are learned."""
    _need("training", "torch", "torch", "train")
    if any(spec.task == "digits" for spec in specs):
        _need("digits", "sklearn", "scikit-learn", "train")


def check_ray() -> None:
    """The same for the engine that runs on a cluster."""
    _need("engine ray", "ray", "ray", "dist")


def _need(what: str, module: str, package: str, extra: str) -> None:
    try:
        found = find_spec(module)
    except ValueError:  # a module that was loaded by other means than a file
        found = None
    if found is None:
        raise TrainingMissingError(
            f"{what}: needs {package}, which is not installed; get it with: pip install 'rootdk[{extra}]'"
        )
