"""LayerReading: what one attention layer did in one forward pass, head by head, and what theory predicts for it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from rootdk.reading import Reading

if TYPE_CHECKING:
    from torch import Tensor
else:
    Tensor = Any  # so that typing.get_type_hints works without torch

Numbers = NDArray[np.float64]
# How the rows of a head become one number: a metric, or a part of one (min_score).
Kind = Literal["max", "min", "mean", "median"]
KINDS: dict[str, Kind] = {
    "logit_deviation": "median",
    "max_logit": "max",
    "min_logit": "min",
    "logit_lead": "max",
    "max_score": "max",
    "min_score": "min",
    "score_deviation": "median",
    "score_size": "median",
    "entropy_ratio": "median",
    "saturated": "mean",
    "jacobian_trace": "median",
    "min_log_sum_exp": "min",
    "sink_mass": "mean",
    "non_finite": "mean",
    "top_key_share": "mean",
    "top_key_mass": "mean",
}

# Rows with fewer keys say little: their entropy, their trace and their deviation are small whatever the model does. And
# a handful of rows may come from one unusual sentence.
MIN_KEYS, MIN_ROWS = 16, 32
# A head whose weight lies on the sink or on the first key rests; its sharpness is judged by the keys apart from that.
RESTING = 0.5
# If less weight than this is left apart from the sink, its distribution is rounding error.
_LEFT = 1e-3
# p_max > .99 if and only if sum p^2 > .9801 (the rest on many keys) to .9802 (on one).
_SATURATED = 0.98015


@dataclass(frozen=True, slots=True)
class Pointed:
    """For each batch entry and head the key that most rows point at, from some dozen rows that are evenly spread.

    key     its place, (entries, heads)
    share   of the rows whose largest weight is on it
    mass    the mean weight that rows give it; NaN, like share, where no row sees enough keys

    For a reading on a GPU they are tensors there, until they are used.
    """

    key: Tensor | NDArray[Any]
    share: Tensor | NDArray[Any]
    mass: Tensor | NDArray[Any]


@dataclass(frozen=True, eq=False)
class LayerReading:
    """Readings of one layer, and the facts of its call.

    reading       of the logits that enter the softmax: after scale, cap and bias
    scores        of the logits after the scale, before cap and bias; the same object where there is neither
    first_weight  the weight of the first key, row by row
    pointed       the key that most of the sampled rows point at, head by head; None if unknown
    digested      the two numbers per head of `digest`, where the device has computed them already
    silent        head by head, whether all that it returned is 0; None if unknown
    scale         what the scores were multiplied by; measured, if the output shows another scale than the call gave
    mismatch      how far the output of the model is from softmax(...) V in a row that was checked; NaN if unknown
    sampled       whether only some of the query rows were read

    >>> import torch, rootdk
    >>> model = torch.nn.MultiheadAttention(16, 2)
    >>> with rootdk.watch(model) as watch:
    ...     _ = model(*3 * [torch.randn(8, 1, 16)])
    >>> (layer,) = watch.readings.values()
    >>> round(layer.scale, 4), layer.reading.shape
    (0.3536, (1, 2, 8))
    """

    name: str
    step: int
    reading: Reading[Tensor]
    scores: Reading[Tensor]
    first_weight: Tensor
    route: str
    dtype: str
    d_k: int
    kv_heads: int
    n_query: int
    n_key: int
    scale: float = math.nan
    scale_given: float = math.nan
    mismatch: float = math.nan
    softcap: float | None = None
    sampled: bool = False
    pointed: Pointed | None = None
    silent: Tensor | None = None
    digested: tuple[Tensor, Tensor] | None = None

    @property
    def heads(self) -> int:
        """How many query heads."""
        return int(self.reading.shape[-2])

    @cached_property
    def keys(self) -> int:
        """How many keys a row that counts sees: the median."""
        keys_seen = _by_head(self.reading.keys)[self._used]
        return int(np.median(keys_seen)) if keys_seen.size else int(self.n_key)

    @cached_property
    def metrics(self) -> dict[str, Numbers]:
        """One number per head for every metric; NaN where a head has none.

        Extremes are over all rows, the others over rows that see at least 16 keys (or what the longest row sees).
        """
        numbers = {name: over_rows(KINDS[name], rows) for name, rows in self.columns().items()}
        return finished(numbers, self.scale, self.softcap, self.dtype)

    @cached_property
    def rows(self) -> int:
        """How many rows of a head count."""
        return int(self._used.sum(axis=1).max(initial=0))

    @property
    def enough(self) -> bool:
        """Whether there is enough to judge: 32 rows that see 16 keys or more."""
        return self.most_keys >= MIN_KEYS and self.rows >= MIN_ROWS

    @cached_property
    def most_keys(self) -> int:
        """How many keys the row sees that sees the most."""
        return int(_by_head(self.reading.keys).max(initial=0))

    def columns(self, most_keys: int | None = None) -> dict[str, Numbers]:
        """The rows behind the metrics, (heads, rows) each, NaN where a row does not count; KINDS says how they combine.

        most_keys   how many keys the longest row has, if that was read in another process
        """
        reading, scores = self.reading, self.scores
        used = self._used if most_keys is None else self._enough(most_keys)
        weight = reading.sink_mass if reading.has_sinks else self.first_weight

        def counted(field: Any) -> Numbers:
            return np.where(used, _by_head(field), math.nan)

        def finite(field: Any) -> Numbers:
            return np.where(np.isfinite(rows := _by_head(field)), rows, math.nan)

        def by_entry(part: Any) -> Numbers:
            return np.full((self.heads, 1), math.nan) if part is None else np.atleast_2d(fetched(part)).T

        pointed = self.pointed
        return {
            "logit_deviation": counted(reading.std),
            "max_logit": finite(reading.max),
            "min_logit": finite(reading.min),
            "logit_lead": finite(_by_head(reading.max) - _by_head(reading.mean)),
            "max_score": finite(scores.max),
            "min_score": finite(scores.min),
            "score_deviation": counted(scores.std),
            "score_size": counted(np.fmax(_by_head(scores.max), -_by_head(scores.min))),
            "entropy_ratio": counted(reading.entropy_ratio),
            "saturated": counted(reading.saturated()),
            "jacobian_trace": counted(reading.jacobian_trace),
            "min_log_sum_exp": finite(reading.log_sum_exp),
            "sink_mass": counted(weight),
            # A cap turns an infinite score into a finite logit.
            "non_finite": np.fmax(_by_head(reading.non_finite), _by_head(scores.non_finite)),
            # One number for each batch entry: their mean is that of the head.
            "top_key_share": by_entry(pointed and pointed.share),
            "top_key_mass": by_entry(pointed and pointed.mass),
        }

    @cached_property
    def apart(self) -> dict[str, Numbers]:
        """entropy_ratio, saturated and jacobian_trace of the weights among the keys that are no sink.

        With m the weight of the sink (or the first key) and the others divided by 1 - m: H = h(m) + (1 - m) H', and
        sum p'^2 = (sum p^2 - m^2)/(1 - m)^2, where a learned sink has no part in sum p^2.
        """
        learned = self.reading.has_sinks
        m = _by_head(self.reading.sink_mass if learned else self.first_weight)
        rest = 1 - m
        rest = np.where(rest > _LEFT, rest, math.nan)
        squares = (_by_head(self.reading.p_squared) - (0.0 if learned else m * m)) / rest**2
        squares = np.clip(squares, 0.0, 1.0)
        with np.errstate(divide="ignore", invalid="ignore"):
            split = -np.where(m > 0, m * np.log(m), 0.0) - rest * np.log(rest)
            entropy = np.clip((_by_head(self.reading.entropy) - split) / rest, 0.0, None)
            others = _by_head(self.reading.keys) - (0 if learned else 1)
            ratio = np.where(others > 1, entropy / np.log(np.maximum(others, 2)), math.nan)
        rows = {
            "entropy_ratio": ratio,
            "saturated": np.where(np.isnan(squares), math.nan, squares > _SATURATED),
            "jacobian_trace": 1 - squares,
        }
        return {name: over_rows(KINDS[name], np.where(self._used, of_rows, math.nan)) for name, of_rows in rows.items()}

    @cached_property
    def digest(self) -> tuple[Any, Any]:
        """Per head the largest logit and the mean of entropy / ln n: the input of a trend, without a median.

        For a reading on another device than the CPU they are tensors there: fetching them would wait for the device.
        """
        if self.digested is not None:
            return self.digested
        if getattr(self.reading.keys, "is_cpu", True) is False:
            return digest_on_device(self.reading)
        ratio = _by_head(self.reading.entropy_ratio)
        use = self._used & ~np.isnan(ratio)
        count = np.maximum(use.sum(axis=1), 1)
        mean = np.where(use.any(axis=1), np.where(use, ratio, 0.0).sum(axis=1) / count, math.nan)
        largest = np.where(np.isfinite(rows := _by_head(self.reading.max)), rows, math.nan)
        return over_rows("max", largest), mean

    @cached_property
    def _used(self) -> NDArray[np.bool_]:
        return self._enough(self.most_keys)

    def _enough(self, most_keys: int) -> NDArray[np.bool_]:
        whole: NDArray[np.bool_] = ~_by_head(self.reading.non_finite).astype(bool)
        return (_by_head(self.reading.keys) >= min(MIN_KEYS, max(most_keys, 1))) & whole


def digest_on_device(reading: Reading) -> tuple[Any, Any]:
    """`LayerReading.digest` in few torch operations, since each launches a kernel; -inf where no logit is known."""
    entropy, keys, largest = (t.movedim(-2, 0).flatten(1) for t in (reading.entropy, reading.keys, reading.max))
    if keys.shape[1] == 0:
        nothing = largest.new_full((len(keys),), math.nan)
        return nothing, nothing
    ratio = entropy / (keys + int(reading.has_sinks)).log()  # NaN for a single outcome, and in a row of NaN
    use = (keys >= keys.max().clamp(1, MIN_KEYS)) & (ratio < math.inf)
    mean = ratio.where(use, 0.0).sum(dim=1) / use.sum(dim=1)
    return largest.nan_to_num(-math.inf, -math.inf, -math.inf).amax(dim=1), mean


def finished(numbers: dict[str, Numbers], scale: float, softcap: float | None, dtype: str) -> dict[str, Numbers]:
    """The metrics from one number per head of each of `LayerReading.columns`."""
    metrics = dict(numbers)
    largest = np.fmax(metrics["max_score"], -metrics.pop("min_score"))
    metrics["raw_score"] = largest / abs(scale) if scale else np.full(len(largest), math.nan)
    metrics["non_finite"] = np.nan_to_num(metrics["non_finite"])  # no rows at all: none of them is broken
    if softcap is not None:
        metrics["cap_ratio"] = metrics["score_size"] / softcap
    if dtype == "bfloat16":
        metrics["bf16_spacing"] = spacing(np.fmax(metrics["max_logit"], -metrics["min_logit"]), digits=8)
    return metrics


def over_rows(kind: Kind, rows: Numbers) -> Numbers:
    """One number for each head of (heads, rows); NaN rows do not count, and a head with only such rows is NaN.

    >>> over_rows("median", np.array([[1.0, np.nan, 5.0], [np.nan] * 3])).tolist()
    [3.0, nan]
    """
    if kind in ("max", "min"):
        extreme: Numbers = (np.fmax if kind == "max" else np.fmin).reduce(rows, axis=1, initial=math.nan)
        return extreme
    statistic = np.median if kind == "median" else np.mean
    chosen = [row[~np.isnan(row)] for row in rows]
    return np.array([statistic(row) if row.size else math.nan for row in chosen])


def spacing(size: Numbers, digits: int) -> Numbers:
    """How far numbers of that size are from their neighbours in a format of so many binary digits.

    >>> spacing(np.array([63.0, 64.0, 200.0]), digits=8).tolist()
    [0.25, 0.5, 1.0]
    """
    known = np.where(np.isfinite(size) & (size > 0), size, 1.0)
    return np.where(np.isfinite(size), np.exp2(np.floor(np.log2(known)) + 1 - digits), math.nan)


def fetched(field: Any) -> Numbers:
    """An array, or a tensor on whatever device, in float64 of NumPy."""
    return np.asarray(field.cpu() if hasattr(field, "cpu") else field).astype(np.float64)


def _by_head(field: Any) -> Numbers:
    """(..., heads, rows) -> (heads, all rows), in float64; an array of that form is not copied."""
    rows = fetched(field)
    return np.moveaxis(rows, -2, 0).reshape(rows.shape[-2], -1)


def baseline(layer: LayerReading) -> dict[str, float]:
    """The theory for components of q and k that are independent, of mean 0 and variance 1, as after a norm.

    A limit at initialisation: a healthy layer lies near it or, with small initial weights, below. After training logits
    are not Gaussian, and it only shows how far the layer has moved. Empty where d_k or the scale is not known.
    """
    if layer.d_k < 1 or layer.keys < 2 or not math.isfinite(layer.scale) or abs(layer.scale) > 1e6:
        return {}
    rows = max(math.prod(layer.reading.shape) // layer.heads, 1)
    return dict(_predicted(layer.d_k, layer.keys, layer.scale, rows))  # a copy of what is kept


@lru_cache(maxsize=256)
def _predicted(d_k: int, keys: int, scale: float, rows: int) -> dict[str, float]:
    from rootdk.theory.prediction import predict

    predicted = predict(d_k, keys, scale, rows=rows)
    fields = {
        "logit_deviation": predicted.median_std,
        "max_logit": predicted.max_logit,
        "entropy_ratio": predicted.mean_entropy_ratio,
        "saturated": predicted.saturated,
        "jacobian_trace": predicted.mean_jacobian_trace,
    }
    return {name: float(values[0]) for name, values in fields.items()}
