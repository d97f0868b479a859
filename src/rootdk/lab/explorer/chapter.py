"""What a chapter is: texts, knobs, and a function from the knobs' values to figures and numbers.

Everything here is a record that turns into JSON. The page is generic: it draws knobs from their description and figures
from plotly's JSON, so a new chapter needs no JavaScript.

In every text that a person reads, "d_k" stands for d with the subscript k; the page sets it.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

Values = Mapping[str, Any]  # what the knobs of a chapter say, by name
Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Control:
    """One knob.

    name      the query parameter, such as "d_k"
    label     what a person reads
    kind      "int", "float", "choice", "flag", or "numbers": a short list or matrix as text, "1 0 1 0; 0 1 1 1",
              entries apart by blanks or commas, rows by semicolons or line ends
    default   of the kind's own type; text for "numbers"
    low, high inclusive bounds of an int or a float, and of each entry of numbers
    step      of the slider; not a rule for values, any value within the bounds is taken
    log       the slider moves by powers; an int is rounded
    choices   the values of a choice, and `labels` what a person reads for each (without them the values themselves)
    sets      of a choice: value -> {other knob: text}. Choosing the value writes these into the other knobs, and while
              it is chosen they are the defaults. Moving such a knob by hand puts the choice back to its first value,
              which sets nothing.
    rows, columns   the largest size of numbers
    rows_with, columns_with   another knob of numbers that gains and loses rows or columns together with this one
    play      the page offers a button that moves the knob by itself, from low to high
    """

    name: str
    label: str
    kind: str
    default: Any
    low: float | None = None
    high: float | None = None
    step: float | None = None
    log: bool = False
    choices: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    sets: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    help: str = ""
    rows: int | None = None
    columns: int | None = None
    rows_with: str = ""
    columns_with: str = ""
    play: bool = False


def choice(name: str, label: str, choices: Iterable[str], default: str = "", **more: Any) -> Control:
    """A knob that chooses; a mapping gives each value what a person reads, and the default is the first unless given.

    >>> choice("shown", "drawn", {"rms": "root mean square", "norm": "norm"}).labels
    ('root mean square', 'norm')
    """
    values, labels = tuple(choices), tuple(choices.values()) if isinstance(choices, Mapping) else ()
    return Control(name, label, "choice", default or values[0], choices=values, labels=labels, **more)


@dataclass(frozen=True, slots=True)
class Number:
    """One live number: its value, and the value written for a person.

    kind   "theory" where it is computed from a law, "measured" where it comes from drawn numbers, or ""
    """

    id: str
    label: str
    value: float | int | str | None
    text: str
    kind: str = ""


@dataclass(frozen=True, slots=True)
class Figure:
    """One picture: plotly's {"data": [...], "layout": {...}} without colours of text, grid and ground.

    text   what it shows, in a sentence with the numbers: what a screen reader says. It changes with the data.
    """

    id: str
    title: str
    plot: dict[str, Any]
    text: str


@dataclass(frozen=True, slots=True)
class Table:
    """A table below the figures; a cell is text or a number."""

    headings: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]


@dataclass(frozen=True, slots=True)
class View:
    """What a chapter shows for one setting of its knobs.

    python   lines that run as they stand. Each line that they print is the id of a number and its value, and it is the
             value shown: a test runs them.
    lead     a paragraph in large letters above the figures
    """

    figures: tuple[Figure, ...]
    numbers: tuple[Number, ...]
    python: str
    table: Table | None = None
    lead: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON: plain lists and numbers, None where a number is not finite."""
        view: dict[str, Any] = plain(self)
        return view


@dataclass(frozen=True, slots=True)
class Chapter:
    """One step of the argument.

    id        the slug in the URL
    formula   MathML
    to_try, to_see, said, true   a few short sentences: what to try, what to see, what is usually said, what is true
    compute   takes the values that `read_values` gives and returns a View. Where knobs must fit each other it raises
              ArgumentError, whose message begins with the knob's name like those of `read_values`.
    show_audit   the same for the audit of a model, which it takes before the values
    adds_rules   compute also takes `added`: names of further rules, which it shows beside those that it always shows
    """

    id: str
    title: str
    formula: str
    to_try: str
    to_see: str
    said: str
    true: str
    controls: tuple[Control, ...]
    compute: Callable[..., View]
    show_audit: Callable[[Mapping[str, Any], Values], View] | None = None
    adds_rules: bool = False

    def to_dict(self) -> dict[str, Any]:
        """All but the functions, ready for JSON."""
        names = [field.name for field in fields(self) if field.name not in ("compute", "show_audit", "adds_rules")]
        return {name: plain(getattr(self, name)) for name in names}


def number(name: str, label: str, value: Any, kind: str = "", digits: int = 4) -> Number:
    """The number of that id, with `digits` significant digits for a person.

    >>> number("variance", "variance of the scores", 64.12345, "measured").text
    '64.12'
    """
    value = value.item() if isinstance(value, np.generic) else value
    return Number(name, label, value, written(value, digits), kind)


def written(value: Any, digits: int = 4) -> str:
    """A value as a person reads it: whole numbers in full up to ten million, the rest in a few digits.

    >>> written(4096), written(0.000123456), written(1e9), written(float("inf"))
    ('4,096', '0.0001235', '1e+09', 'infinite')
    """
    if isinstance(value, str):
        return value
    if not math.isfinite(value):
        return "not a number" if math.isnan(value) else "infinite" if value > 0 else "minus infinite"
    if value == int(value) and abs(value) < 1e7:
        return f"{int(value):,}"
    return f"{value:.{digits}g}"


def plain(thing: Any) -> Any:
    """Records, tuples and arrays as dicts, lists and numbers that JSON has; None for what is not finite.

    >>> plain({"x": np.array([1.0, np.nan]), "n": np.int64(3)})
    {'x': [1.0, None], 'n': 3}
    """
    if isinstance(thing, float):
        return float(thing) if math.isfinite(thing) else None
    if thing is None or isinstance(thing, (str, bool, int)):
        return thing
    if isinstance(thing, (list, tuple)):
        return [plain(entry) for entry in thing]
    if isinstance(thing, Mapping):
        return {str(name): plain(value) for name, value in thing.items()}
    if isinstance(thing, np.ndarray):
        # Arrays are most of what is sent: one call for all their entries unless some must be replaced.
        return thing.tolist() if thing.dtype.kind in "iub" or np.isfinite(thing).all() else plain(thing.tolist())
    if isinstance(thing, np.generic):
        return plain(thing.item())
    if hasattr(thing, "__dataclass_fields__"):
        return {name: plain(getattr(thing, name)) for name in thing.__dataclass_fields__}
    raise TypeError(f"thing: must be made of records, lists, numbers and text, got {type(thing).__name__}")
