"""Limits on how much of a checkpoint is read, each with what real models need, and fields read within them.

Anything beyond a limit is refused in one line before any work is done, so that a file can cost neither memory nor
hours. Within the limits work may take long: a progress bar shows how far it is, and Ctrl-C ends it.

The fields of a JSON object that somebody else wrote are each read with a type and a range. One that is absent, or null,
is None. One of another type or out of range is an error in one line: the file, the field, what was expected and what
came.
"""

import math
import reprlib
from collections import ChainMap
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from rootdk.errors import ArgumentError
from rootdk.files import shown_text

LARGEST_CONFIG = 16 * 2**20  # bytes; real ones have thousands
LARGEST_INDEX = 32 * 2**20  # bytes of an index of shards, or of the header of one file; real ones up to 13 MB
LARGEST_HEADERS = 64 * 2**20  # bytes of all headers together
MOST_SHARDS = 1024  # real ones: 191
MOST_TENSORS = 250_000  # real ones: 140,000
LONGEST_NAME = 512  # characters of the name of a tensor or of a model type
MOST_PARTS = 64  # of a name, between dots
MOST_RANK = 16  # axes of a tensor

MOST_LAYERS = 2048  # modules of attention; real ones: 200
MOST_HEADS = 1024  # of one layer; real ones: 128
MOST_HEADS_IN_ALL = 32_768  # of all layers; real ones: 16,128
LARGEST_HEAD = 1024  # d_k; real ones: 576
LARGEST_WIDTH = 2**17  # inputs of a projection; real ones: 16,384
LARGEST_RANK = 2048  # of the latent that queries or keys pass through; real ones: 1536
LARGEST_LENGTH = 2**40  # positions
LARGEST_NUMBER = 1e12  # of a scale, a cap, a factor; the smallest is one over it

MOST_BYTES = 2**38  # of query and key weights; a model of 405 billion parameters has 73 GB of them in bfloat16
MOST_WORK = 5e13  # multiply-adds; the same model needs 6e12

LARGEST_GRAMS = 16 * 2**20  # bytes of matrices that are held at a time where the rows of a head do not lie together
LARGEST_BLOCK = 2**19  # numbers of one block of weights

LARGEST_TEXT = 16 * 2**20  # characters of --text
# A model that is run may hold so many times the numbers of its weights: tied weights count twice, buffers are added.
MOST_GROWTH = 3.0
SMALL_MODEL = 2**26  # numbers that any model may hold, however few its weights have


_REPR = reprlib.Repr()
_REPR.maxstring = _REPR.maxother = 80
_REPR.maxlong = 40
_REPR.maxlevel = 2


class Fields:
    """One JSON object. `name` says in errors where it comes from.

    >>> fields = Fields({"heads": 4, "scale": "x", "cap": None}, "config.json")
    >>> fields.whole("heads", 1, 64), fields.number("cap")
    (4, None)
    >>> fields.number("scale")
    Traceback (most recent call last):
    ...
    rootdk.errors.ArgumentError: path: config.json: scale must be a number above 0 and at most 1e+12, got 'x'
    """

    def __init__(self, values: Mapping[str, Any], name: str) -> None:
        self.values, self.name = values, name

    def __bool__(self) -> bool:
        return bool(self.values)

    def __contains__(self, key: str) -> bool:
        return self.values.get(key) is not None

    def first(self, keys: Iterable[str]) -> str | None:
        """The first of the keys that is present; None, which is the key of no field, if none is."""
        return next((key for key in keys if key in self), None)

    def whole(self, key: str | None, least: int, most: int) -> int | None:
        """An integer of a range."""
        value = self._checked(
            key, lambda value: _is_number(value, int) and least <= value <= most, f"one integer from {least} to {most}"
        )
        return None if value is None else int(value)

    def number(self, key: str | None, most: float = LARGEST_NUMBER, *, zero: bool = False) -> float | None:
        """A number above 0, or from 0 on; no smaller than one over the largest that any field may have."""

        def fits(value: Any) -> bool:
            return _is_number(value, (int, float)) and (1 / LARGEST_NUMBER <= value <= most or (zero and value == 0))

        value = self._checked(key, fits, f"a number {'from 0 on' if zero else 'above 0'} and at most {most:g}")
        return None if value is None else float(value)

    def flag(self, key: str) -> bool | None:
        """True or false."""
        value: bool | None = self._checked(key, lambda value: isinstance(value, bool), "true or false")
        return value

    def text(self, key: str) -> str | None:
        """A text that is not longer than a name."""
        value: str | None = self._checked(
            key,
            lambda value: isinstance(value, str) and len(value) <= LONGEST_NAME,
            f"a text of at most {LONGEST_NAME} characters",
        )
        return value

    def part(self, key: str) -> "Fields":
        """An object inside, empty and so false where there is none."""
        value = self._checked(key, lambda value: isinstance(value, dict), "an object")
        return Fields(value or {}, f"{self.name}: {key}")

    def _checked(self, key: str | None, fits: Callable[[Any], bool], expected: str) -> Any:
        value = None if key is None else self.values.get(key)
        if value is not None and not fits(value):
            raise ArgumentError(f"path: {self.name}: {key} must be {expected}, got {came(value)}")
        return value

    def entry(self, key: str, index: int) -> Any:
        """One entry of a list; None if there is no list, or it is too short."""
        value = self.values.get(key)
        return value[index] if isinstance(value, list) and 0 <= index < len(value) else None

    def updated(self, values: Mapping[str, Any]) -> "Fields":
        """The same with other values for some fields; the others are not copied."""
        maps: Any = [values, self.values]  # only read, which ChainMap's type does not say
        return Fields(ChainMap(*maps), self.name) if values else self

    def of_layer(self, index: int, keys: Iterable[str]) -> "Fields":
        """The same, with the entry of one layer where a field is a list of them."""
        return self.updated({key: entry for key in keys if (entry := self.entry(key, index)) is not None})

    def leaves(self) -> Iterator[tuple[str, str, Any]]:
        """Every value at any depth that is neither object nor list: its place, its own key, and the value."""
        waiting: list[tuple[str, str, Any]] = [(str(key), str(key), value) for key, value in self.values.items()]
        while waiting:
            place, key, value = waiting.pop()
            if isinstance(value, dict):
                waiting += [(f"{place}.{inner}", str(inner), item) for inner, item in value.items()]
            elif isinstance(value, list):
                waiting += [(place, key, item) for item in value]
            else:
                yield place, key, value


def _is_number(value: Any, kind: Any) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


def came(value: Any) -> str:
    """What came instead of the expected value, in a few words."""
    if isinstance(value, float) and math.isinf(value):
        return f"{value} (beyond float64)"
    return shown_text(_REPR.repr(value), 120)
