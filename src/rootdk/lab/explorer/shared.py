"""What several chapters share, so that it looks and means the same everywhere.

Knobs; random queries and keys; the weights of a row, from the operator; and theory over d_k.

The random rows of a seed stay the same while a knob moves: they are drawn once, 1024 components wide, and a setting
takes the first d_k components of the first n keys. So dragging d_k or n adds numbers and changes none, and costs no
drawing. A point of theory takes milliseconds, and is kept once it is computed.
"""

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import lru_cache, partial
from threading import Lock
from typing import Any

import numpy as np

from rootdk.attention import measure, weights
from rootdk.lab.checks.sampler import factor_of
from rootdk.lab.drawing import COLOURS, HUES, ticks_at
from rootdk.lab.first_look import RULE_WORDS
from rootdk.reading import Reading
from rootdk.theory import attention_moments, relative_gradient
from rootdk.theory.row_law import RowLaw, row_law

from .chapter import Array, Chapter, Control, choice

_WORDS = {name: RULE_WORDS[name] for name in ("sqrt", "none", "dk")}
RULES = choice("rule", "scale", _WORDS, help="What every score is multiplied by before softmax.")


def with_rules(chapters: tuple[Chapter, ...], names: Sequence[str]) -> tuple[Chapter, ...]:
    """The chapters with further rules: to choose, where a person chooses one; shown, where several are compared."""
    added = tuple(name for name in names if name not in RULES.choices)
    if not added:
        return chapters
    for name in added:
        for d_k in (4, *WIDTHS):  # a rule that fails at some of what the page shows is an error now
            factor_of(name, d_k, 1024)
    wider = replace(RULES, choices=RULES.choices + added, labels=RULES.labels + added)
    return tuple(
        replace(
            chapter,
            controls=tuple(wider if control is RULES else control for control in chapter.controls),
            compute=partial(chapter.compute, added=added) if chapter.adds_rules else chapter.compute,
        )
        for chapter in chapters
    )


def compared(rule: str) -> dict[str, str]:
    """The three usual rules, and the chosen one if it is another: name and words."""
    return RULE_WORDS | ({} if rule in RULE_WORDS else {rule: rule})


def colour(rule: str, place: int = 0) -> str:
    """The colour that a rule has everywhere, or that of the place-th of the rules that were added."""
    return COLOURS.get(rule, HUES[3 + place % 3])


def in_python(rule: str, d_k: int, keys: int) -> str:
    """The scale in lines to run: by name for a usual rule, else the number."""
    return f'"{rule}"' if rule in RULE_WORDS else repr(factor_of(rule, d_k, keys))


def factor_in_python(rule: str, d_k: int, keys: int) -> str:
    """The same as a number, and how it is made."""
    known = {"none": "1.0", "sqrt": f"1 / {d_k} ** 0.5", "dk": f"1 / {d_k}"}
    return known.get(rule) or repr(factor_of(rule, d_k, keys))


SEED = Control("seed", "seed", "int", 0, 0, 999, 1, help="Which random numbers are drawn.")
QUERIES, WIDEST = 64, 1024

_BLOCK = 512
_KEYS = 7  # beside the seed and the block: no other draw of a chapter has three numbers for its seed
_drawers = ThreadPoolExecutor(2, "draws")  # NumPy draws without the interpreter's lock
# From 16 on: below, an average over the length of the query takes several times as long.
WIDTHS = (16, 32, 64, 128, 256, 512, 1024)
# Room for the first and the last number below the axis.
WIDTH_AXIS = ticks_at(WIDTHS) | {"range": [math.log10(14), math.log10(1180)]}
# For standard deviations of scores.
SPREAD_AXIS = ticks_at([1 / 32, 1 / 8, 1 / 2, 2, 8, 32]) | {"ticktext": ["1/32", "1/8", "1/2", "2", "8", "32"]}


def d_k_knob(default: int, low: int = 4) -> Control:
    """Components of a query and a key."""
    return Control("d_k", "d_k", "int", default, low, 1024, 1, log=True, help="Components of a query and a key.")


def keys_knob(default: int, low: int = 2, words: str = "Keys that the query sees.") -> Control:
    """Keys that a query sees."""
    return Control("keys", "keys n", "int", default, low, 4096, 1, log=True, help=words)


class _Vectors:
    """The vectors of one seed; keys are drawn when they are first asked for, 512 at a time, each from its own seed."""

    def __init__(self, seed: int) -> None:
        self._seed, self._lock = seed, Lock()
        self.query = np.random.default_rng(seed).standard_normal((QUERIES, WIDEST), np.float32)
        self._key = np.empty((0, WIDEST), np.float32)

    def keys(self, count: int) -> Array:
        with self._lock:  # requests come from several threads
            blocks, wanted = len(self._key) // _BLOCK, -(-count // _BLOCK)
            if wanted > blocks:
                grown = np.empty((wanted * _BLOCK, WIDEST), np.float32)
                grown[: len(self._key)] = self._key
                parts = [grown[at * _BLOCK : (at + 1) * _BLOCK] for at in range(blocks, wanted)]
                list(_drawers.map(self._draw, range(blocks, wanted), parts))
                self._key = grown
            return self._key[:count]

    def _draw(self, block: int, into: Array) -> None:
        np.random.default_rng([self._seed, _KEYS, block]).standard_normal(dtype=np.float32, out=into)


_vectors_of = lru_cache(maxsize=4)(_Vectors)


def vectors(seed: int, keys: int, d_k: int) -> tuple[Array, Array]:
    """Standard normal queries (64, d_k) and keys (keys, d_k), as the lines of `vectors_in_python` draw them.

    >>> query, key = vectors(0, 3, 8)
    >>> more = vectors(0, 700, 16)[1]
    >>> query.shape, key.shape, bool((more[:3, :8] == key).all())
    ((64, 8), (3, 8), True)
    """
    whole = _vectors_of(seed)
    return whole.query[:, :d_k], whole.keys(keys)[:, :d_k]


def vectors_in_python(seed: int, keys: int, d_k: int) -> str:
    """The same as lines to run."""
    return f"""\
import numpy as np
import rootdk

rng = np.random.default_rng({seed})
query = rng.standard_normal(({QUERIES}, {WIDEST}), np.float32)[:, :{d_k}]
blocks = [np.random.default_rng([{seed}, {_KEYS}, block]) for block in range({-(-keys // _BLOCK)})]
key = np.concatenate([rng.standard_normal(({_BLOCK}, {WIDEST}), np.float32) for rng in blocks])[:{keys}, :{d_k}]
"""


def reading_of(query: Array, key: Array, scale: Any) -> Reading:
    """What the operator measures; it depends on queries and keys alone, so one column of values is enough."""
    return measure(query, key, np.ones((*key.shape[:-1], 1), np.float32), scale=scale)[1]


def median(rows: Any) -> float:
    """The median over rows, in float64."""
    return float(np.median(np.asarray(rows, np.float64)))


def keys_in_order(query: Array, key: Array) -> Array:
    """Which key scores highest, second, ... for the first query; no positive scale changes that."""
    # einsum and not @: BLAS would share even such a small product among threads, and waiting for them takes longer.
    return np.argsort(-np.einsum("d,nd->n", query[0], key))


def weights_at(query: Array, key: Array, places: Array, scale: Any) -> Array:
    """The weights that the first query gives these keys.

    >>> weights_at(np.ones((1, 4)), np.zeros((8, 4)), np.array([0, 7]), "sqrt").tolist()
    [0.125, 0.125]
    """
    return np.asarray(weights(query[:1], key, rows=[0], scale=scale)[0][places])


@lru_cache(maxsize=1024)
def rows_of(keys: int, d_k: int, scale: float) -> RowLaw:
    """How rows differ: the source of the medians of rootdk.predict, without its other numbers, which take longer."""
    return row_law(keys, d_k, scale)


@lru_cache(maxsize=1024)
def flow(keys: int, d_k: int, scale: float) -> float:
    """|do/dq|/|o| of one setting."""
    return float(relative_gradient(keys, d_k, scale))


# What can be drawn over d_k, by theory.
QUANTITIES = {
    "trace": "Jacobian trace, median",
    "live": "share of rows where no key has over 99 %",
    "norm": "median of |J|",
    "rms": "root mean square of |J|",
    "flow": "|∂o/∂q| / |o|",
    "variance": "score variance",
    "entropy": "entropy share (entropy / ln n)",
}


def quantity_knob(default: str, names: tuple[str, ...]) -> Control:
    """Which of these QUANTITIES is drawn."""
    return choice("shown", "drawn over d_k", {name: QUANTITIES[name] for name in names}, default)


@lru_cache(maxsize=1024)
def over_widths(quantity: str, keys: int, rule: str | float) -> Array:
    """One of QUANTITIES at every width, under the rule, or under the scale d_k^-a for a number a."""
    widths = np.array(WIDTHS)
    scales = widths**-rule if isinstance(rule, float) else np.array([factor_of(rule, d_k, keys) for d_k in WIDTHS])
    if quantity == "variance":
        return np.asarray(widths * scales**2)
    if quantity == "flow":
        return np.asarray(relative_gradient(keys, widths, scales))
    if quantity in ("entropy", "rms"):
        moments = attention_moments(keys, widths, scales)
        return np.asarray(
            moments.entropy / np.log(keys) if quantity == "entropy" else moments.jacobian_norm_squared**0.5
        )
    laws = [rows_of(keys, d_k, float(scale)) for d_k, scale in zip(WIDTHS, scales, strict=True)]
    if quantity == "live":
        return np.array([(law.top_probability <= 0.99).mean() for law in laws])
    return np.array([np.median(law.jacobian_trace if quantity == "trace" else law.jacobian_norm) for law in laws])
