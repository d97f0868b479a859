"""The state of the page as its address has it: chapter?knob=value&knob=value, with what is not the default."""

from dataclasses import replace
from urllib.parse import parse_qsl, unquote

from rootdk.errors import ArgumentError

from .chapter import Chapter
from .values import read_values


def read_address(text: str) -> tuple[str, dict[str, str]]:
    """Chapter and values; the whole link of a view may be given too.

    >>> read_address("http://127.0.0.1:8765/#growth?d_k=512&rule=none")
    ('growth', {'d_k': '512', 'rule': 'none'})
    """
    chapter, _, query = text.rpartition("#")[2].partition("?")
    return unquote(chapter), dict(parse_qsl(query, keep_blank_values=True))


def started_at(chapters: tuple[Chapter, ...], text: str) -> tuple[str, tuple[Chapter, ...]]:
    """The chapter of an address, and the chapters with its values as the defaults of their knobs.

    An unknown chapter or knob, or a value out of bounds, is an error that names it.
    """
    wanted, raw = read_address(text)
    known = [one.id for one in chapters]
    if wanted not in known:
        raise ArgumentError(f"at: must begin with a chapter, one of {', '.join(known)}, got {wanted!r}")
    return wanted, tuple(_moved(one, raw) if one.id == wanted else one for one in chapters)


def _moved(chapter: Chapter, raw: dict[str, str]) -> Chapter:
    values = read_values(chapter, raw)
    # Numbers in rows stay the text that they were written as, as their defaults are.
    return replace(
        chapter,
        controls=tuple(
            replace(one, default=raw[one.name] if one.kind == "numbers" else values[one.name])
            if one.name in raw
            else one
            for one in chapter.controls
        ),
    )
