"""Files: written whole or not at all, the folder for what is kept between two runs, and files that somebody else wrote.

Foreign files are opened only if regular, read up to a size, parsed to a depth, and shown escaped: a downloaded model
was written by somebody else. Nothing here trusts a name, a size or a nesting before it is checked, and no text of such
a file reaches a terminal or a page unescaped.
"""

import contextlib
import errno
import json
import math
import os
import secrets
import stat
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

from rootdk.errors import ArgumentError

# A flag for os.open: bytes as they are. Windows would convert line ends, and end a file at the first 0x1a.
BINARY: int = getattr(os, "O_BINARY", 0)

_unfinished: set[Path] = set()
_changing = threading.Lock()


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write beside the target and rename: afterwards the file is complete, or as it was before.

    For a link, the file that it leads to is written. If the target exists and is no regular file, such as a device,
    this is an OSError: a rename would put a file in its place.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     write_atomically(Path(folder) / "a.txt", "whole")
    ...     [(file.name, file.read_text()) for file in Path(folder).iterdir()]
    [('a.txt', 'whole')]
    """
    with _beside(path) as (target, temporary):
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)
        # A temporary file is private to its owner; a report has the usual permissions.
        temporary.chmod(0o666 & ~_umask())
        temporary.replace(target)


def check_destination(path: Path) -> None:
    """An OSError if `write_atomically` could not write there now: all is tried except the last step, the rename."""
    with _beside(path) as (target, _):
        if target.exists() and not os.access(target, os.W_OK):
            raise OSError(errno.EACCES, os.strerror(errno.EACCES))


def remove_unfinished() -> None:
    """Remove half-written files: for a process that ends without leaving the blocks that write them."""
    _changing.acquire(timeout=0.1)  # never released: no file is begun any more
    for file in list(_unfinished):
        with contextlib.suppress(OSError):
            file.unlink()


@contextlib.contextmanager
def _beside(path: Path) -> Iterator[tuple[Path, Path]]:
    """The target of a path, and an empty file beside it, which is removed afterwards if it was not renamed."""
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
    """The process's umask. Reading it requires setting it: meanwhile no other thread may read it or create a file."""
    with _changing:
        mask = os.umask(0o077)
        os.umask(mask)
    return mask


LARGEST_JSON = 16 * 2**20
# The most values in one file. An empty list takes two bytes of a file and seventy of memory.
MOST_VALUES = 2_000_000
DEEPEST = 64
# A finite float64 has at most 309 digits; a longer number is infinite, as 1e400 is.
_MOST_DIGITS = 300


class JsonError(ArgumentError):
    """A text that is no JSON, or is larger than allowed."""


def open_regular(path: Path) -> int:
    """A descriptor for reading, of a regular file alone; an OSError for all else, at once.

    A pipe would keep its reader waiting, a device may never end, and to open one can have effects of its own. Hence the
    check before; the second check finds a file that was exchanged in between.
    """
    _check_regular(path.stat())
    no_effects = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)  # Windows has no such flags
    handle = os.open(path, os.O_RDONLY | BINARY | no_effects)
    try:
        _check_regular(os.fstat(handle))
    except OSError:
        os.close(handle)
        raise
    return handle


def kind_of(path: Path) -> str | None:
    """Whether a path is a "file" or a "folder", or None: absent, of another kind, or no path at all."""
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):
        return None
    return "file" if stat.S_ISREG(mode) else "folder" if stat.S_ISDIR(mode) else None


def _check_regular(status: os.stat_result) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file")


def read_regular(path: Path, most: int = LARGEST_JSON) -> bytes:
    """All bytes of a regular file; an OSError if it has more than `most`, before they are read."""
    too_large = OSError(errno.EFBIG, f"it is larger than {most / 2**20:g} MB")
    with os.fdopen(open_regular(path), "rb", buffering=0) as file:
        if os.fstat(file.fileno()).st_size > most:
            raise too_large
        content = bytearray()
        # Some system files report size 0 and never end, and another process may still be writing.
        while part := file.read(most + 1 - len(content)):
            content += part
    if len(content) > most:
        raise too_large
    return bytes(content)


def parse_json(text: bytes, *, constants: bool = True, unique: bool = False, halves: bool = False) -> Any:
    """The value that a JSON text stands for; a JsonError if it is none, too deep, or of too many values.

    constants   whether NaN and Infinity are taken, which Python writes and JSON does not have
    unique      whether a key that comes twice in one object is an error; else the last counts, as in most readers
    halves      whether a text may hold half of a surrogate pair: for a caller who checks, and names the field

    >>> parse_json(b'{"heads": [4, 1e400]}')
    {'heads': [4, inf]}
    >>> parse_json(b"[" * 100_000)
    Traceback (most recent call last):
    ...
    rootdk.files.JsonError: nested deeper than 64 levels
    """
    if text.count(b",") + text.count(b"[") + text.count(b"{") > MOST_VALUES:
        raise JsonError(f"more than {MOST_VALUES:,} values")
    options: dict[str, Any] = {} if constants else {"parse_constant": _refuse_constant}
    if unique:
        options["object_pairs_hook"] = _unique
    try:
        tree = json.loads(text.decode("utf-8"), parse_int=_whole, **options)
    except RecursionError:
        raise JsonError(f"nested deeper than {DEEPEST} levels") from None
    except UnicodeDecodeError as error:
        raise JsonError(f"no UTF-8 at byte {error.start}") from None
    except json.JSONDecodeError as error:
        raise JsonError(f"{shown_text(error.msg)} at line {error.lineno}, column {error.colno}") from None
    level, depth = [tree], 0
    while level:
        if depth > DEEPEST:
            raise JsonError(f"nested deeper than {DEEPEST} levels")
        containers = (value for value in level if isinstance(value, (dict, list)))
        level = [inner for value in containers for inner in (value.values() if isinstance(value, dict) else value)]
        depth += 1
    if b"\\u" in text and not halves:  # only by an escape can half of a surrogate pair come in, and it has no UTF-8
        try:
            json.dumps(tree, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise JsonError("a text with half of a surrogate pair") from None
    return tree


def read_json(path: Path, most: int = LARGEST_JSON, *, unique: bool = False) -> Any:
    """parse_json() of a regular file of at most `most` bytes: an OSError or a JsonError, neither of which names it."""
    return parse_json(read_regular(path, most), unique=unique)


def _whole(digits: str) -> int | float:
    if len(digits) > _MOST_DIGITS:
        return -math.inf if digits.startswith("-") else math.inf
    return int(digits)


def _refuse_constant(name: str) -> NoReturn:
    raise JsonError(f"{name} is no JSON")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members: dict[str, Any] = {}
    for key, value in pairs:
        if key in members:
            raise JsonError(f"the key {shown_text(key, 80)!r} comes twice")
        members[key] = value
    return members


def printable(text: str) -> str:
    r"""Text of unknown origin on one line: characters that do not print, such as control codes, are escaped.

    >>> printable("layer\x1b[31m"), printable("größer")
    ('layer\\x1b[31m', 'größer')
    """
    if text.isprintable():
        return text
    return "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in text)


def shown_text(text: object, most: int = 200) -> str:
    r"""A text from a file, safe to show: characters that a terminal would obey or a reader not see are escaped.

    Control codes, changes of writing direction, invisible and unassigned characters and halves of surrogate pairs
    become escapes such as \x1b; of a long text the middle is left out. It is plain text, to be escaped once more for
    HTML, and never to be parsed as markup of rich.

    >>> shown_text("red \x1b[31m\u202e")
    'red \\x1b[31m\\u202e'
    >>> shown_text("a" * 1000, most=20)
    'aaaaaaaaaa…aaaaaaaaa'
    """
    whole = str(text)
    if len(whole) > most:
        whole = f"{whole[: most // 2]}…{whole[most // 2 + 1 - most :]}"
    return printable(whole)


def shown_values(value: Any, most: int = 600) -> Any:
    """The same for every text in dictionaries and lists, keys included."""
    if isinstance(value, str):
        return shown_text(value, most)
    if isinstance(value, Mapping):
        return {shown_text(key, most): shown_values(entry, most) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [shown_values(entry, most) for entry in value]
    return value
