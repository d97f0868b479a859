"""Files: writing one so that nobody ever sees half of it, and the folder for what is kept between two runs."""

import contextlib
import errno
import os
import sys
import tempfile
from pathlib import Path


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write beside the target and rename: afterwards the file is whole, or what was there before.

    Through a link the file is written that it leads to. What is there and is no regular file, such as a device, is an
    OSError: a rename would put a file in its place.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     write_atomically(Path(folder) / "a.txt", "whole")
    ...     [(file.name, file.read_text()) for file in Path(folder).iterdir()]
    [('a.txt', 'whole')]
    """
    target = path.resolve()
    if target.exists() and not target.is_file():
        raise OSError(errno.EINVAL, "it is not a regular file")
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
        # A temporary file is for its owner alone; a report is a file like others.
        Path(temporary).chmod(0o666 & ~_umask())
        Path(temporary).replace(target)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(temporary).unlink()
        raise


def cache_folder() -> Path:
    """Where results are kept: ROOTDK_CACHE, or rootdk in the user's cache folder."""
    chosen = os.environ.get("ROOTDK_CACHE")
    if chosen:
        return Path(chosen)
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "rootdk"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rootdk"


def _umask() -> int:
    """The process's mask. The system tells it only in exchange for a new one."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
