"""HeadSummary: the rows of a Reading, or of a prediction, as a few numbers per head.

The class is the table of its fields: for each its name, the statistic over rows, and the quantity of a Reading from
which it is taken. The first three fields count rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from . import rendering

if TYPE_CHECKING:
    from rich.table import Table

_KIND = "rootdk.HeadSummary"
Summary = TypeVar("Summary", bound="HeadSummary")


class _Column(NamedTuple):
    """A column of the table.

    statistic   what its numbers are over the rows of a head
    if_any      whether it is left out where all its numbers are 0
    share       whether its numbers are from 0 to 1: in a terminal they go without the leading 0
    """

    heading: str
    narrow_heading: str
    field: str
    statistic: str
    if_any: bool = False
    share: bool = False


_COLUMNS = (
    _Column("rows", "rows", "rows", "count"),
    _Column("hidden", "hidden", "hidden_rows", "count", if_any=True),
    _Column("non-finite", "NaN", "non_finite_rows", "count", if_any=True),
    _Column("keys", "keys", "mean_keys", "mean"),
    _Column("std", "std", "median_std", "median"),
    _Column("max logit", "max\nlogit", "max_logit", "maximum"),
    _Column("entropy share", "entr.\nshare", "median_entropy_ratio", "median", share=True),
    _Column("effective keys", "eff.\nkeys", "median_effective_keys", "median"),
    _Column("largest weight", "top\np", "median_top_probability", "median", share=True),
    _Column("rows of one key", "one\nkey", "saturated", "share", share=True),
    _Column("Jacobian trace", "Jac.\ntrace", "median_jacobian_trace", "median", share=True),
    _Column("Jacobian norm", "Jac.\nnorm", "median_jacobian_norm", "median", share=True),
    _Column("sink", "sink", "mean_sink_mass", "mean", if_any=True, share=True),
)


def _over_rows(statistic: Callable[[Any], Any], quantity: str) -> Any:
    return field(metadata={"statistic": statistic, "quantity": quantity})


@dataclass(frozen=True, eq=False, repr=False)
class HeadSummary:
    """Each field is one NumPy array with one number per head.

    `rows` counts all rows. `hidden_rows` see too few keys and `non_finite_rows` hold a NaN; neither enters the other
    numbers, and both are counted here so that they are not overlooked. A head with no row left has NaN everywhere else.
    `saturated` is the share of rows whose largest weight is above 0.99. `std` and `variance` are of the logits inside a
    row, on which softmax depends. Entropy ratios leave out rows with a single outcome.

    >>> import numpy as np, rootdk
    >>> q, k = np.zeros((2, 3, 8)), np.zeros((2, 5, 8))
    >>> heads = rootdk.measure(q, k, k)[1].by_head()
    >>> len(heads), heads.median_effective_keys.tolist(), heads.saturated.tolist()
    (2, [5.0, 5.0], [0.0, 0.0])
    """

    rows: NDArray[Any]
    hidden_rows: NDArray[Any]
    non_finite_rows: NDArray[Any]
    mean_keys: NDArray[Any] = _over_rows(np.mean, "keys")
    mean_std: NDArray[Any] = _over_rows(np.mean, "std")
    median_std: NDArray[Any] = _over_rows(np.median, "std")
    mean_variance: NDArray[Any] = _over_rows(np.mean, "variance")
    median_variance: NDArray[Any] = _over_rows(np.median, "variance")
    max_logit: NDArray[Any] = _over_rows(np.max, "max")
    min_logit: NDArray[Any] = _over_rows(np.min, "min")
    mean_log_sum_exp: NDArray[Any] = _over_rows(np.mean, "log_sum_exp")
    min_log_sum_exp: NDArray[Any] = _over_rows(np.min, "log_sum_exp")
    mean_entropy: NDArray[Any] = _over_rows(np.mean, "entropy")
    mean_entropy_ratio: NDArray[Any] = _over_rows(np.mean, "entropy_ratio")
    median_entropy_ratio: NDArray[Any] = _over_rows(np.median, "entropy_ratio")
    mean_effective_keys: NDArray[Any] = _over_rows(np.mean, "effective_keys")
    median_effective_keys: NDArray[Any] = _over_rows(np.median, "effective_keys")
    mean_top_probability: NDArray[Any] = _over_rows(np.mean, "top_probability")
    median_top_probability: NDArray[Any] = _over_rows(np.median, "top_probability")
    saturated: NDArray[Any] = _over_rows(np.mean, "saturated")
    mean_p_squared: NDArray[Any] = _over_rows(np.mean, "p_squared")
    mean_jacobian_trace: NDArray[Any] = _over_rows(np.mean, "jacobian_trace")
    median_jacobian_trace: NDArray[Any] = _over_rows(np.median, "jacobian_trace")
    mean_jacobian_norm: NDArray[Any] = _over_rows(np.mean, "jacobian_norm")
    median_jacobian_norm: NDArray[Any] = _over_rows(np.median, "jacobian_norm")
    mean_sink_mass: NDArray[Any] = _over_rows(np.mean, "sink_mass")

    def __len__(self) -> int:
        """How many heads."""
        return len(self.rows)

    def __repr__(self) -> str:
        return f"HeadSummary(heads={len(self)}, rows={self.rows.tolist()})"

    def _repr_html_(self) -> str:
        return rendering.html_table(*self.table())

    def __rich__(self) -> Table:
        return rendering.rich_table(*self.table(terminal=True))

    def table(self, terminal: bool = False) -> tuple[str, list[str], list[list[str]]]:
        """Title, headings and cells of the short view; for a terminal with headings and numbers that fit 80 columns."""
        names = self._names()
        headings, cells = [names[0]], [[str(name)] for name in names[1]]
        kinds: dict[str, list[str]] = {}
        for column in _COLUMNS:
            numbers = getattr(self, column.field)
            if column.if_any and not (numbers > 0).any():
                continue
            headings.append(column.narrow_heading if terminal else column.heading)
            kinds.setdefault(column.statistic, []).append(" ".join(headings[-1].split()))
            for row, number in zip(cells, numbers, strict=True):
                row.append(rendering.brief(number, column.share) if terminal else rendering.short(number))
        exceptions = "; ".join(f"{kind}: {', '.join(names)}" for kind, names in kinds.items() if kind != "median")
        title = f"{len(self)} {names[2]}{'' if len(self) == 1 else 's'}, medians over rows, except {exceptions}"
        return title, headings, cells

    def _names(self) -> tuple[str, Sequence[Any], str]:
        """What the first column of the table is called, its entries, and what one of them is."""
        return "head", range(len(self)), "head"

    def to_dict(self) -> dict[str, Any]:
        """Plain lists, ready for JSON; `from_dict` is the way back."""
        return {"kind": _KIND} | {f.name: rendering.encode(getattr(self, f.name)) for f in fields(self)}

    def to_json(self) -> str:
        """`to_dict` as text."""
        import json

        return json.dumps(self.to_dict(), allow_nan=False)

    @classmethod
    def of(cls: type[Summary], columns: Mapping[str, Sequence[Any]]) -> Summary:  # noqa: PYI019 -- typing.Self came with 3.11
        """From the numbers of every field, one per head."""
        return cls(**{f.name: np.array(columns[f.name], np.float64 if f.metadata else np.int64) for f in fields(cls)})

    @classmethod
    def from_dict(cls: type[Summary], data: dict[str, Any]) -> Summary:  # noqa: PYI019 -- typing.Self came with 3.11
        """The summary that `to_dict` was called on."""
        rendering.expect_kind(data, _KIND)
        rendering.expect_fields(data, [f.name for f in fields(cls)])
        return cls.of(data)
