"""Starting Python once more so that it imports nothing from the folder that the user happens to stand in.

`python -c` and `python -m` search the current folder before the installed packages: a file numpy.py that lies there
would run in place of NumPy. The option that forbids it, -P, came with Python 3.11.
"""

import sys
from pathlib import Path


def python(program: str, *arguments: str) -> list[str]:
    r"""The command that runs this text; it finds the arguments in sys.argv[1:].

    >>> import subprocess
    >>> subprocess.run(python("print('' in sys.path, *sys.argv[1:])", "a"), capture_output=True, text=True).stdout
    'False a\n'
    """
    return [
        sys.executable,
        "-c",
        f"import sys\nsys.path[:] = [place for place in sys.path if place]\n{program}",
        *arguments,
    ]


def call(function: str, *arguments: str, package: Path | None = None) -> list[str]:
    """The command that calls a function, written 'module:name', with these arguments.

    package   the folder of a package that is not installed: it can be imported there, and nothing that lies beside it
    """
    module, _, name = function.partition(":")
    found = (
        f"sys.path.insert(0, {str(package.parent)!r})\nimport {package.name}\ndel sys.path[0]\n"
        if package is not None
        else ""
    )
    return python(f"{found}from {module} import {name}\n{name}(*sys.argv[1:])", *arguments)
