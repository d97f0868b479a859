"""Reading: what measured attention shows about its softmax, row by row.

The fields are what one pass over the scores can add up; everything else is derived from them. They are arrays of the
caller's library, so the derived quantities use only operators and functions that NumPy and torch share by name.

The class is the table of its fields: for each its name, what it is, what a row that sees no key has, and how the
readings of two sets of keys merge. Their order is that of the kernel's buffer (ROOTDK_READING_FIELDS in attention.h).
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields
from functools import cache
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from . import checks, rendering
from .errors import ArgumentError, ArgumentTypeError
from .summary import HeadSummary

if TYPE_CHECKING:
    from rich.table import Table
    from typing_extensions import TypeVar as _TypeVar  # which every checker has; typing has `default` from 3.13 on

    # The type of the fields: NumPy's arrays, tensors or arrays of jax. They share few signatures, so inside this file
    # an array is Any; a caller's type checker has the exact type.
    Array = _TypeVar("Array", bound=Any, default=Any)
else:
    Array = TypeVar("Array")

_KIND = "rootdk.Reading"


class _Union:
    """Two readings of the same rows over sets of keys with none in common, and the numbers for merging them.

    share   of the softmax' denominator that each part holds      part   of the keys that it holds
    drop    how far the log of its denominator lies below that of the whole
    """

    def __init__(self, a: Reading, b: Reading) -> None:
        self.a, self.b = a, b
        self.xp = xp = _library(a)
        # Not with NumPy's logaddexp, which warns of every NaN: a row of NaN is a result like any other.
        higher = xp.maximum(a.log_sum_exp, b.log_sum_exp)
        nothing = higher == -math.inf
        level = xp.where(nothing, 0.0, higher)  # nothing seen by either: -inf - -inf would be NaN
        size_a, size_b = xp.exp(a.log_sum_exp - level), xp.exp(b.log_sum_exp - level)
        size = xp.where(nothing, 1.0, size_a + size_b)
        self.log_sum_exp = xp.where(nothing, higher, level + xp.log(size))
        self.share = size_a / size, size_b / size
        # A part that sees nothing has no weight to move.
        self.drop = (
            xp.where(size_a == 0.0, 0.0, xp.log(size) + (level - a.log_sum_exp)),
            xp.where(size_b == 0.0, 0.0, xp.log(size) + (level - b.log_sum_exp)),
        )
        count_a, count_b = _key_count(a), _key_count(b)
        count = xp.where(count_a + count_b == 0.0, 1.0, count_a + count_b)
        self.part = count_a / count, count_b / count

    def both(self, name: str) -> tuple[Any, Any]:
        """One field of the two readings."""
        return getattr(self.a, name), getattr(self.b, name)


def _largest(union: _Union, name: str) -> Any:
    return union.xp.maximum(*union.both(name))


def _smallest(union: _Union, name: str) -> Any:
    return union.xp.minimum(*union.both(name))


def _by_keys(union: _Union, name: str) -> Any:
    """A mean over keys."""
    (a, b), (part_a, part_b) = union.both(name), union.part
    return part_a * a + part_b * b


def _spread(union: _Union, name: str) -> Any:
    """A variance over keys, by the formula of Chan, Golub and LeVeque."""
    (a, b), (part_a, part_b) = union.both(name), union.part
    unseen = (union.a.keys == 0) | (union.b.keys == 0)
    difference = union.xp.where(unseen, 0.0, union.b.mean - union.a.mean)
    return part_a * a + part_b * b + part_a * part_b * difference * difference


def _surprise(union: _Union, name: str) -> Any:
    """An average over weights of -log p, which grows by as much as the log of the denominator does."""
    (a, b), (share_a, share_b), (drop_a, drop_b) = union.both(name), union.share, union.drop
    return share_a * (a + drop_a) + share_b * (b + drop_b)


def _by_weight(power: int) -> Callable[[_Union, str], Any]:
    """A sum of p^power: the weights of each part shrink to its share."""

    def merge(union: _Union, name: str) -> Any:
        (a, b), (share_a, share_b) = union.both(name), union.share
        return math.prod([share_a] * power) * a + math.prod([share_b] * power) * b

    return merge


def _measured(doc: str, *, empty: float = 0.0, merge: Callable[[_Union, str], Any]) -> Any:
    return field(metadata={"doc": doc, "empty": empty, "merge": merge})


@dataclass(frozen=True, eq=False, repr=False)
class Reading(Generic[Array]):
    """One number per query row, each field of shape (..., heads, n_query). s are the logits that enter the softmax.

    Numbers below the smallest normal one (1.2e-38; in float64 2.2e-308) read 0: p_squared and p_cubed where a sink
    leaves very little, and sink_mass. Above it they are right to rounding.

    A row that sees nothing has keys 0, max -inf, min +inf and 0 elsewhere. A row with a NaN or +inf logit has NaN in
    every field but `keys`. All of it describes the weights before dropout.

    >>> import numpy as np, rootdk
    >>> q, k, v = np.eye(4, dtype=np.float32), np.zeros((8, 4), np.float32), np.ones((8, 2), np.float32)
    >>> out, reading = rootdk.measure(q, k, v)
    >>> reading.effective_keys.tolist()
    [8.0, 8.0, 8.0, 8.0]
    """

    keys: Array = field(metadata={"doc": "how many keys the row sees"})
    has_sinks: bool = field(metadata={"doc": "whether a sink took part"})
    log_sum_exp: Array = _measured(
        "log of the denominator, sink included; -inf for a row that sees nothing",
        empty=-math.inf, merge=lambda union, _: union.log_sum_exp,
    )  # fmt: skip
    max: Array = _measured("largest s of the visible keys", empty=-math.inf, merge=_largest)
    min: Array = _measured("smallest s of the visible keys", empty=math.inf, merge=_smallest)
    mean: Array = _measured("mean of s over the visible keys", merge=_by_keys)
    variance: Array = _measured("of s over the visible keys, divided by their number", merge=_spread)
    entropy: Array = _measured("log_sum_exp - sum p*s in nats; a sink counts as one more outcome", merge=_surprise)
    p_squared: Array = _measured("sum p^2 over keys", merge=_by_weight(2))
    p_cubed: Array = _measured("sum p^3 over keys", merge=_by_weight(3))
    sink_mass: Array = _measured("the weight that the sink takes, 0 without sinks", merge=_by_weight(1))
    received: Array | None = field(
        default=None, metadata={"doc": "None, or with measure(per_key=True) what each key got, (..., heads, n_key)"}
    )

    @property
    def shape(self) -> tuple[int, ...]:
        """(..., heads, n_query)."""
        return tuple(self.keys.shape)

    @property
    def std(self) -> Array:
        """Standard deviation of the logits inside the row."""
        return _library(self).sqrt(self.variance)

    @property
    def top_probability(self) -> Array:
        """exp(max - log_sum_exp), the largest weight; 0 for a row that sees nothing."""
        xp, seen = _library(self), self.keys > 0
        gap = xp.where(seen, self.max, 0.0) - xp.where(seen, self.log_sum_exp, 0.0)
        return xp.where(seen, xp.exp(gap), 0.0)

    @property
    def effective_keys(self) -> Array:
        """(sum p)^2 / sum p^2, from 1 (one key takes all) to `keys` (all alike); 0 for a row that sees nothing.

        NaN where a sink leaves so little that sum p^2 underflows.
        """
        xp = _library(self)
        mass, known = 1.0 - self.sink_mass, self.p_squared > 0
        count = mass * mass / xp.where(known, self.p_squared, 1.0)
        # The bounds are exact; only rounding, above all of 1 - sink_mass, crosses them.
        count = xp.where(count < 1.0, 1.0, count)
        keys = _key_count(self)
        count = xp.where(count > keys, keys, count)
        return xp.where(self.keys == 0, 0.0, xp.where(known, count, self.p_squared + float("nan")))

    @property
    def entropy_ratio(self) -> Array:
        """entropy / ln(outcomes), 1 for equal weights; outcomes are the keys and the sink. NaN below two outcomes."""
        xp = _library(self)
        outcomes = _key_count(self) + (1.0 if self.has_sinks else 0.0)
        ratio = self.entropy / xp.log(xp.where(outcomes > 1.0, outcomes, 2.0))
        return xp.where(outcomes > 1.0, ratio, float("nan"))

    @property
    def jacobian_trace(self) -> Array:
        """sum p - sum p^2, the trace of diag(p) - p p': how much the weights can still move."""
        xp = _library(self)
        trace = (1.0 - self.sink_mass) - self.p_squared
        return xp.where((self.keys == 0) | (trace < 0.0), 0.0, trace)

    @property
    def jacobian_norm(self) -> Array:
        """sqrt(sum p^2 - 2 sum p^3 + (sum p^2)^2), the Frobenius norm of diag(p) - p p'.

        A difference of numbers near 1 in a saturated row: below about 1e-3 a float32 value is rounding.
        """
        xp = _library(self)
        square = self.p_squared - 2.0 * self.p_cubed + self.p_squared * self.p_squared
        return xp.sqrt(xp.where(square < 0.0, 0.0, square))

    def saturated(self, threshold: float = 0.99) -> Array:
        """Whether one key takes more than `threshold` of the weight. False for a row of NaN: see `non_finite`."""
        return self.top_probability > threshold

    @property
    def non_finite(self) -> Array:
        """Whether the row sees a NaN or +inf logit."""
        return self.variance != self.variance

    def by_head(self, min_keys: int = 1) -> HeadSummary:
        """Medians, means, extremes and shares per head, over the finite rows that see at least `min_keys` keys.

        >>> import numpy as np, rootdk
        >>> q = np.random.default_rng(0).standard_normal((2, 3, 16, 8))
        >>> rootdk.measure(q, q, q)[1].by_head().rows.tolist()
        [32, 32, 32]
        """
        least = checks.index(min_keys)
        if least is None:
            raise ArgumentTypeError(f"min_keys: must be an int, got {min_keys!r}")
        if least < 1:
            raise ArgumentError(f"min_keys: must be at least 1, got {least}")
        return _summarise(self, least)

    @staticmethod
    def concatenate(readings: Iterable[Reading[Array]], axis: int = -1) -> Reading[Array]:
        """One reading from blocks: of rows (axis -1), of heads (axis -2) or of a batch (axis 0).

        >>> import numpy as np, rootdk
        >>> q = np.random.default_rng(0).standard_normal((2, 6, 8))
        >>> parts = [rootdk.measure(q[:, rows], q, q)[1] for rows in (slice(0, 2), slice(2, 6))]
        >>> Reading.concatenate(parts).shape
        (2, 6)
        """
        if not isinstance(readings, Iterable):
            raise ArgumentTypeError(f"readings: must be several Readings, got {type(readings).__name__}")
        parts = list(readings)
        if not parts:
            raise ArgumentError("readings: must hold at least one Reading, got none")
        for part in parts:
            if not isinstance(part, Reading):
                raise ArgumentTypeError(f"readings: must hold Readings, got {type(part).__name__}")
            if (part.received is None) != (parts[0].received is None):
                raise ArgumentError("readings: must all be measured per key or none of them, got both")
            if part.has_sinks != parts[0].has_sinks:
                raise ArgumentError("readings: must all be with sinks or all without, got both")
            if _library(part) is not _library(parts[0]):
                libraries = " and ".join(_library(reading).__name__ for reading in (parts[0], part))
                raise ArgumentTypeError(f"readings: must all be of one array library, got {libraries}")
        shape = parts[0].shape
        axis = checks.axis(axis, shape, f"readings of shape {shape}")
        for part in parts:
            if len(part.shape) != len(shape) or _without(part.shape, axis) != _without(shape, axis):
                raise ArgumentError(
                    f"readings: must have shapes that are alike but for axis {axis}, got {shape} and {part.shape}"
                )
        xp = _library(parts[0])
        columns = {n: xp.concatenate([getattr(part, n) for part in parts], axis=axis) for n in (*FIELDS, "keys")}
        if parts[0].received is not None:
            by_key: list[Any] = [part.received for part in parts]
            if axis % len(shape) < len(shape) - 1:
                columns["received"] = xp.concatenate(by_key, axis=axis % len(shape))
            elif len({array.shape for array in by_key}) == 1:  # of other rows over the same keys
                columns["received"] = sum(by_key[1:], by_key[0])
            else:
                raise ArgumentError("readings: must be of the same keys where they are measured per key")
        return Reading(**columns, has_sinks=parts[0].has_sinks)

    def merge(self, other: Reading[Array]) -> Reading[Array]:
        """The reading of the same rows over both sets of keys, where the sets have no key in common.

        Exact but for rounding: weights by log-sum-exp, variance by the formula of Chan, Golub and LeVeque. A sink
        belongs to one of the two only, or it would be counted twice.

        >>> import numpy as np, rootdk
        >>> q = np.random.default_rng(0).standard_normal((2, 6, 8))
        >>> whole = rootdk.measure(q, q, q)[1]
        >>> merged = rootdk.measure(q, q[:, :2], q[:, :2])[1].merge(rootdk.measure(q, q[:, 2:], q[:, 2:])[1])
        >>> bool(np.allclose(merged.entropy, whole.entropy, rtol=1e-12))
        True
        """
        if not isinstance(other, Reading):
            raise ArgumentTypeError(f"other: must be a Reading, got {type(other).__name__}")
        if self.shape != other.shape:
            raise ArgumentError(f"other: must have the shape {self.shape} of this reading, got {other.shape}")
        if self.has_sinks and other.has_sinks:
            raise ArgumentError("other: must be measured without sinks if this reading has them, got sinks in both")
        if self.received is not None or other.received is not None:
            raise ArgumentError(
                "other: must be measured without per_key, as this reading: over more keys every weight is another"
            )
        union = _Union(self, other)
        columns = {f.name: f.metadata["merge"](union, f.name) for f in _TABLE}
        return Reading(**columns, keys=self.keys + other.keys, has_sinks=self.has_sinks or other.has_sinks)

    def to_dict(self) -> dict[str, Any]:
        """Plain lists in C order with shape and type, ready for JSON; `from_dict` is the way back."""
        return {
            "kind": _KIND,
            "shape": list(self.shape),
            "dtype": str(self.variance.dtype).rpartition(".")[2],
            "has_sinks": self.has_sinks,
            "fields": {name: rendering.encode(getattr(self, name)) for name in (*FIELDS, "keys")},
        } | ({} if self.received is None else {"received": rendering.encode(self.received)})

    def to_json(self) -> str:
        """`to_dict` as text."""
        import json

        return json.dumps(self.to_dict(), allow_nan=False)

    @staticmethod
    def from_dict(data: dict[str, Any]) -> Reading[NDArray[Any]]:
        """The reading that `to_dict` was called on, as NumPy arrays."""
        rendering.expect_kind(data, _KIND)
        rendering.expect_fields(data, ("shape", "dtype", "has_sinks", "fields"))
        rendering.expect_fields(data["fields"], (*FIELDS, "keys"), "data['fields']")
        columns: dict[str, Any] = {
            name: rendering.decode(data["fields"][name], data["dtype"], data["shape"]) for name in FIELDS
        }
        keys = rendering.decode(data["fields"]["keys"], "int64", data["shape"])
        received = None
        if "received" in data:
            flat = data["received"]
            heads = data["shape"][:-1]
            received = rendering.decode(flat, data["dtype"], [*heads, len(flat) // max(math.prod(heads), 1)])
        return Reading(**columns, keys=keys, has_sinks=bool(data["has_sinks"]), received=received)

    if not TYPE_CHECKING:  # a type checker would take any name for a field

        def __getattr__(self, name: str) -> Any:
            """A field of a reading as the kernel wrote it: a view, taken when it is asked for."""
            attributes = self.__dict__
            if name in _PLACE or name in ("keys", "has_sinks"):
                if "_buffer" in attributes and "_block" not in attributes:
                    # make_reading in bindings/module.cc, and nothing else, decides where the parts lie.
                    buffer, fields_at, keys_at, rows, double, attributes["has_sinks"] = attributes["_buffer"]
                    real = np.float64 if double else np.float32
                    attributes["keys"] = np.ndarray(rows, np.int64, buffer, keys_at)
                    # Set last: another thread that sees it finds the others too.
                    attributes["_block"] = np.ndarray((len(FIELDS), *rows), real, buffer, fields_at)
                if name in attributes:
                    return attributes[name]
                if "_block" in attributes:
                    return attributes["_block"][_PLACE[name]]
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)

    def __getstate__(self) -> dict[str, Any]:
        """The state for a copy or a pickle: arrays, because the places in a buffer depend on its address."""
        _ = self.keys
        return {name: value for name, value in self.__dict__.items() if name != "_buffer"}

    def __repr__(self) -> str:
        return f"Reading(shape={self.shape}, dtype={self.variance.dtype}, has_sinks={self.has_sinks})"

    def _repr_html_(self) -> str:
        return rendering.html_table(*self._table())

    def __rich__(self) -> Table:
        return rendering.rich_table(*self._table(terminal=True))

    def _table(self, terminal: bool = False) -> tuple[str, list[str], list[list[str]]]:
        title, columns, cells = self.by_head().table(terminal)
        return f"Reading {self.shape}, {title}", columns, cells


_TABLE = tuple(f for f in fields(Reading) if "merge" in f.metadata)
# The float fields in the order in which the kernel writes them.
FIELDS = tuple(f.name for f in _TABLE)
_PLACE = {name: place for place, name in enumerate(FIELDS)}
_first, _, _rest = (Reading.__doc__ or "").partition("\n\n")
_listed = "\n".join(f"    {f.name:13} {f.metadata['doc']}" for f in fields(Reading))
Reading.__doc__ = f"{_first}\n\n{_listed}\n\n{_rest}"


def reading_of(block: Any, keys: Any, has_sinks: bool) -> Reading:
    """A Reading of what the kernel wrote, (len(FIELDS), ..., heads, n_query) and (..., heads, n_query), without a copy.

    To make all views takes several times as long as the rest of a small call, and most callers look at a few of them.
    """
    reading = object.__new__(Reading)
    reading.__dict__.update(_block=block, keys=keys, has_sinks=has_sinks)
    return reading


def reading_of_nothing(filled: Callable[[float], Any], keys: Any, sinks: Any = None) -> Reading:
    """Rows that have seen no key yet. filled(x) is an array of x, keys one of 0, sinks the logit of each row's sink."""
    columns = {f.name: filled(f.metadata["empty"]) for f in _TABLE}
    if sinks is not None:  # the sink has all the weight
        columns |= {"log_sum_exp": sinks, "sink_mass": filled(1.0)}
    return Reading(**columns, keys=keys, has_sinks=sinks is not None)


def converted(reading: Reading, convert: Callable[[Any], Any]) -> Reading:
    """The reading with convert() applied to every array of it."""
    columns = {name: convert(getattr(reading, name)) for name in (*FIELDS, "keys")}
    received = None if reading.received is None else convert(reading.received)
    return Reading(**columns, has_sinks=reading.has_sinks, received=received)


def without_head_axis(reading: Reading) -> Reading:
    """The reading of a single head, (1, n_query), as one of (n_query,): what the kernel made of 2-D arrays."""
    keys, received = reading.keys[0], reading.received
    alone = reading_of(reading.__dict__["_block"][:, 0], keys, reading.has_sinks)
    if received is not None:
        alone.__dict__["received"] = received[0]
    return alone


def _without(shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    place = axis % len(shape)
    return shape[:place] + shape[place + 1 :]


def _library(reading: Reading) -> Any:
    """numpy, torch or jax.numpy: the functions of the fields' own type."""
    root = type(reading.variance).__module__.partition(".")[0]
    return sys.modules["jax.numpy" if root in {"jax", "jaxlib"} else root]


def _key_count(reading: Reading) -> Any:
    """`keys` in the type of the other fields, so that dividing by it does not change the type."""
    return _library(reading).asarray(reading.keys, dtype=reading.variance.dtype)


def _summarise(reading: Reading, min_keys: int) -> HeadSummary:
    def by_head(array: Any) -> NDArray[Any]:
        # (..., heads, n_query) -> (heads, rows); a reading of a single head without an axis for it is one head.
        rows = np.asarray(array)
        rows = rows[None] if rows.ndim == 1 else np.moveaxis(rows, -2, 0)
        return rows.reshape(rows.shape[0], int(np.prod(rows.shape[1:])))

    keys, broken = by_head(reading.keys), by_head(reading.non_finite)
    seen = keys >= min_keys
    used = seen & ~broken

    @cache  # a mean and a median ask for the same rows
    def rows_of(quantity: str) -> list[NDArray[np.float64]]:
        array = reading.saturated() if quantity == "saturated" else getattr(reading, quantity)
        columns = by_head(array).astype(np.float64)
        return [column[use & ~np.isnan(column)] for column, use in zip(columns, used, strict=True)]

    columns: dict[str, Any] = {
        "rows": [keys.shape[1]] * len(keys),
        "hidden_rows": (~seen).sum(axis=1),
        "non_finite_rows": (seen & broken).sum(axis=1),
    }
    for f in fields(HeadSummary):
        if f.metadata:
            statistic, heads = f.metadata["statistic"], rows_of(f.metadata["quantity"])
            columns[f.name] = [statistic(rows) if rows.size else np.nan for rows in heads]
    return HeadSummary.of(columns)
