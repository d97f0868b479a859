"""Files that somebody else wrote: opened if regular, read up to a size, parsed to a depth, shown escaped.

Whoever downloads a model has not written it. Nothing here trusts a name, a size or a nesting before it is checked, and
nothing that such a file says reaches a terminal or a page as it stands.
"""

import errno
import json
import math
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from rootdk.errors import ArgumentError
from rootdk.files import BINARY

LARGEST_JSON = 16 * 2**20
# Values of one file. A list that is empty takes two bytes of a file and seventy of memory.
MOST_VALUES = 2_000_000
DEEPEST = 64
# What float64 holds has 309 digits at the most; a longer number is infinite, as 1e400 is.
_MOST_DIGITS = 300


class JsonError(ArgumentError):
    """A text that is no JSON, or more of it than is taken."""


def open_regular(path: Path) -> int:
    """A descriptor for reading, of a regular file alone; an OSError for all else, at once.

    A pipe would keep its reader waiting, a device may never end, and to open one can have effects of its own. Hence the
    look before; the second look is for what was exchanged in between.
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
        # Some files of the system say 0 and go on for ever, and another process may still be writing.
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
    rootdk.untrusted.JsonError: nested deeper than 64 levels
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


def read_json(path: Path, most: int = LARGEST_JSON, *, constants: bool = True, unique: bool = False) -> Any:
    """parse_json() of a regular file of at most `most` bytes: an OSError or a JsonError, neither of which names it."""
    return parse_json(read_regular(path, most), constants=constants, unique=unique)


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
    r"""Text of unknown making on one line: what does not print, such as a control code, is spelled out.

    >>> printable("layer\x1b[31m"), printable("größer")
    ('layer\\x1b[31m', 'größer')
    """
    if text.isprintable():
        return text
    return "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in text)


def shown_text(text: object, most: int = 200) -> str:
    r"""A text of a file as it may be shown: what a terminal would obey or a reader not see is spelled out.

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
