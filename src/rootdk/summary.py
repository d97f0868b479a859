"""HeadSummary: the rows of a Reading, or of a prediction, as a few numbers per head."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from . import rendering

if TYPE_CHECKING:
    from rich.table import Table

_KIND = "rootdk.HeadSummary"
_COUNTS = ("rows", "hidden_rows", "non_finite_rows")
# What a table shows: heading, heading in a terminal, field, what it is over the rows, and whether the column appears
# only where it has something to say.
_COLUMNS = (
    ("rows", "rows", "rows", "count", False),
    ("hidden", "hidden", "hidden_rows", "count", True),
    ("non-finite", "NaN", "non_finite_rows", "count", True),
    ("keys", "keys", "mean_keys", "mean", False),
    ("std", "std", "median_std", "median", False),
    ("max logit", "max\nlogit", "max_logit", "maximum", False),
    ("H/ln n", "H/\nln n", "median_entropy_ratio", "median", False),
    ("effective keys", "eff.\nkeys", "median_effective_keys", "median", False),
    ("top p", "top\np", "median_top_probability", "median", False),
    ("saturated", "sat.", "saturated", "share", False),
    ("tr J", "tr J", "median_jacobian_trace", "median", False),
    ("|J|", "|J|", "median_jacobian_norm", "median", False),
    ("sink", "sink", "mean_sink_mass", "mean", True),
)
# From 0 to 1: in a terminal without the leading 0.
_SHARES = frozenset({"H/ln n", "top p", "saturated", "tr J", "|J|", "sink"})


@dataclass(frozen=True, eq=False, repr=False)
class HeadSummary:
    """Each field is one NumPy array with one number per head.

    `rows` counts all rows. `hidden_rows` see too few keys and `non_finite_rows` hold a NaN; neither enters the other
    numbers, and both are counted here so that they cannot hide. A head with no row left has NaN everywhere else.
    `saturated` is the share of rows whose largest weight is above 0.99. `std` and `variance` are of the logits inside
    a row, which is what softmax feels. Entropy ratios leave out rows with a single outcome.
    """

    rows: NDArray[Any]
    hidden_rows: NDArray[Any]
    non_finite_rows: NDArray[Any]
    mean_keys: NDArray[Any]
    mean_std: NDArray[Any]
    median_std: NDArray[Any]
    mean_variance: NDArray[Any]
    median_variance: NDArray[Any]
    max_logit: NDArray[Any]
    min_logit: NDArray[Any]
    mean_log_sum_exp: NDArray[Any]
    min_log_sum_exp: NDArray[Any]
    mean_entropy: NDArray[Any]
    mean_entropy_ratio: NDArray[Any]
    median_entropy_ratio: NDArray[Any]
    mean_effective_keys: NDArray[Any]
    median_effective_keys: NDArray[Any]
    mean_top_probability: NDArray[Any]
    median_top_probability: NDArray[Any]
    saturated: NDArray[Any]
    mean_p_squared: NDArray[Any]
    mean_jacobian_trace: NDArray[Any]
    median_jacobian_trace: NDArray[Any]
    mean_jacobian_norm: NDArray[Any]
    median_jacobian_norm: NDArray[Any]
    mean_sink_mass: NDArray[Any]

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
        columns = [column for column in _COLUMNS if not column[4] or (getattr(self, column[2]) > 0).any()]
        headings, cells = ["head"], [[str(h)] for h in range(len(self))]
        kinds: dict[str, list[str]] = {}
        for heading, narrow, field, kind, _ in columns:
            headings.append(narrow if terminal else heading)
            kinds.setdefault(kind, []).append(" ".join(headings[-1].split()))
            for row, number in zip(cells, getattr(self, field), strict=True):
                row.append(rendering.brief(number, heading in _SHARES) if terminal else rendering.short(number))
        exceptions = "; ".join(f"{kind}: {', '.join(names)}" for kind, names in kinds.items() if kind != "median")
        title = f"{len(self)} head{'' if len(self) == 1 else 's'}, medians over rows, except {exceptions}"
        return title, headings, cells

    def to_dict(self) -> dict[str, Any]:
        """Plain lists, ready for JSON; `from_dict` is the way back."""
        return {"kind": _KIND} | {field.name: rendering.encode(getattr(self, field.name)) for field in fields(self)}

    def to_json(self) -> str:
        """`to_dict` as text."""
        import json

        return json.dumps(self.to_dict(), allow_nan=False)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> HeadSummary:
        """The summary that `to_dict` was called on."""
        rendering.expect_kind(data, _KIND)
        rendering.expect_fields(data, [field.name for field in fields(cls)])
        heads = (len(data["rows"]),)
        return cls(
            **{
                field.name: rendering.decode(data[field.name], "int64" if field.name in _COUNTS else "float64", heads)
                for field in fields(cls)
            }
        )
