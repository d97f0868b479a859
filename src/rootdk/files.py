"""Files: written whole or not at all, and the folder for what is kept between two runs."""

import contextlib
import errno
import os
import secrets
import stat
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

from .errors import ArgumentError

# A flag for os.open: bytes as they are. Windows would turn line ends around, and end a file at the first 0x1a.
BINARY: int = getattr(os, "O_BINARY", 0)

_unfinished: set[Path] = set()
_changing = threading.Lock()


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
    with _beside(path) as (target, temporary):
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)
        # A temporary file is for its owner alone; a report is a file like others.
        temporary.chmod(0o666 & ~_umask())
        temporary.replace(target)


def check_destination(path: Path) -> None:
    """An OSError if `write_atomically` could not write there now: all of it is tried but the last step, the rename."""
    with _beside(path) as (target, _):
        if target.exists() and not os.access(target, os.W_OK):
            raise OSError(errno.EACCES, os.strerror(errno.EACCES))


def remove_unfinished() -> None:
    """For a process that ends without going through the blocks in which files are written."""
    _changing.acquire(timeout=0.1)  # never released: no file is begun any more
    for file in list(_unfinished):
        with contextlib.suppress(OSError):
            file.unlink()


@contextlib.contextmanager
def _beside(path: Path) -> Iterator[tuple[Path, Path]]:
    """What a path leads to, and an empty file beside it, which is gone afterwards if it was not renamed."""
    try:
        target = path.resolve()
    except RuntimeError as error:  # links in a circle, before Python 3.13
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP)) from error
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISREG(target.stat().st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file")
    # Names have a limit, often 255 bytes, and the target's may be near it.
    name = target.name if len(os.fsencode(target.name)) <= 200 else ""
    temporary = target.parent / f".{name}.{secrets.token_hex(8)}.part"
    try:
        with _changing:
            _unfinished.add(temporary)
            os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        yield target, temporary
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()
        _unfinished.discard(temporary)


def cache_folder() -> Path:
    """Where results are kept: ROOTDK_CACHE, or rootdk in the user's cache folder."""
    chosen = os.environ.get("ROOTDK_CACHE")
    if chosen:
        return Path(chosen)
    try:
        if sys.platform == "darwin":
            return Path.home() / "Library" / "Caches" / "rootdk"
        if sys.platform == "win32":
            return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "rootdk" / "cache"
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rootdk"
    except RuntimeError as error:  # as in a container: no HOME, and a user who has a number and no name
        raise ArgumentError("ROOTDK_CACHE: must name a folder for results, as this user has no home folder") from error


def _umask() -> int:
    """The process's umask. To read it one has to set it, so no other thread may ask or create a file meanwhile."""
    with _changing:
        mask = os.umask(0o077)
        os.umask(mask)
    return mask
