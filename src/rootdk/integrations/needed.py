"""Packages that are loaded when they are needed, and one line that says what to install where they are not there."""

from importlib import import_module
from typing import Any

from rootdk.errors import RootdkError


class PackageMissingError(RootdkError, ImportError):
    """What was asked for needs a package that is not installed; the message names it."""


def needed(what: str, module: str, package: str, attribute: str) -> Any:
    """`attribute` of `module`, which `package` brings.

    The attribute is looked up here because a folder of the package's name, such as the one that wandb writes its runs
    to, can be imported as an empty package.

    >>> needed("Example", "no_such_module", "no-such-package", "thing")
    Traceback (most recent call last):
        ...
    rootdk.integrations.needed.PackageMissingError: Example: needs no-such-package, which is not installed; get it
    with: pip install no-such-package
    """
    try:
        return getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise PackageMissingError(
            f"{what}: needs {package}, which is not installed; get it with: pip install {package}"
        ) from error
