"""HeadSummary: the rows of a Reading, or of a prediction, as a few numbers per head."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from . import _views

if TYPE_CHECKING:
    from rich.table import Table

_KIND = "rootdk.HeadSummary"
_COUNTS = ("rows", "hidden_rows", "non_finite_rows")
# What a table shows: heading, field, and whether the column appears only where it has something to say.
_COLUMNS = (
    ("rows", "rows", False),
    ("hidden", "hidden_rows", True),
    ("non-finite", "non_finite_rows", True),
    ("keys", "mean_keys", False),
    ("std", "median_std", False),
    ("max logit", "max_logit", False),
    ("H/ln n", "median_entropy_ratio", False),
    ("effective keys", "median_effective_keys", False),
    ("top p", "median_top_probability", False),
    ("saturated", "saturated", False),
    ("tr J", "median_jacobian_trace", False),
    ("|J|", "median_jacobian_norm", False),
    ("sink", "mean_sink_mass", True),
)


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
        return _views.html_table(*self.table())

    def __rich__(self) -> Table:
        return _views.rich_table(*self.table())

    def table(self) -> tuple[str, list[str], list[list[str]]]:
        """Title, headings and cells of the short view."""
        shown = [
            (heading, getattr(self, name))
            for heading, name, optional in _COLUMNS
            if not optional or (getattr(self, name) > 0).any()
        ]
        cells = [[str(h), *(_views.short(column[h]) for _, column in shown)] for h in range(len(self))]
        title = f"{len(self)} head{'' if len(self) == 1 else 's'}: medians over rows, unless it is a count or a maximum"
        return title, ["head", *(heading for heading, _ in shown)], cells

    def to_dict(self) -> dict[str, Any]:
        """Plain lists, ready for JSON; `from_dict` is the way back."""
        return {"kind": _KIND} | {field.name: _views.encode(getattr(self, field.name)) for field in fields(self)}

    def to_json(self) -> str:
        """`to_dict` as text."""
        import json

        return json.dumps(self.to_dict(), allow_nan=False)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> HeadSummary:
        """The summary that `to_dict` was called on."""
        _views.expect_kind(data, _KIND)
        heads = (len(data["rows"]),)
        return cls(
            **{
                field.name: _views.decode(data[field.name], "int64" if field.name in _COUNTS else "float64", heads)
                for field in fields(cls)
            }
        )
