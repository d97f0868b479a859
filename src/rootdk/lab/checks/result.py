"""What an experiment found: numbers predicted and measured side by side, and what a figure is drawn from.

All of it is plain data and goes to JSON and back without loss.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from rootdk import rendering
from rootdk.errors import ArgumentError

from .comparison import Comparison, Parameters

_KIND = "rootdk.lab.checks.Result"


@dataclass(frozen=True, slots=True)
class Series:
    """Points of a curve or the heights of bars. kind is "theory" or "measured".

    >>> Series("weights", "measured", {"d_k": 64}, (1.0, 2.0), (0.75, 0.25)).y
    (0.75, 0.25)
    """

    name: str
    kind: str
    setting: Parameters
    x: tuple[float, ...]
    y: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Grid:
    """A matrix, such as the Jacobian of one row.

    >>> Grid("jacobian", "theory", {"sigma": 1.0}, ((0.25, -0.25), (-0.25, 0.25))).rows[0]
    (0.25, -0.25)
    """

    name: str
    kind: str
    setting: Parameters
    rows: tuple[tuple[float, ...], ...]


@dataclass(frozen=True, slots=True)
class Result:
    """What one run of one experiment found; `spec` says everything that it depended on.

    >>> from rootdk.lab.checks import EXPERIMENTS, run
    >>> result = run(EXPERIMENTS["variance"].spec(d_k=(16,), laws=("sign",), rows=1000))
    >>> [one.predicted for one in result.select("score variance", d_k=16)]
    [16.0]
    >>> Result.from_dict(result.to_dict()) == result
    True
    """

    experiment: str
    spec: Mapping[str, Any]
    comparisons: tuple[Comparison, ...]
    series: tuple[Series, ...] = ()
    grids: tuple[Grid, ...] = ()
    seconds: float = field(default=0.0, compare=False)

    def __post_init__(self) -> None:
        for comparison in self.comparisons:
            for name in ("predicted", "measured", "standard_error"):
                value = getattr(comparison, name)
                if value is not None and not math.isfinite(value):
                    where = f"{comparison.quantity} at {dict(comparison.setting)}"
                    raise ArgumentError(f"{name}: must be finite in an experiment, got {value} for {where}")
            if (comparison.measured is None) != (comparison.standard_error is None):
                raise ArgumentError("standard_error: must be given exactly where measured is, in an experiment")

    @property
    def compared(self) -> int:
        """How many numbers were both predicted and measured."""
        return sum(comparison.measured is not None for comparison in self.comparisons)

    @property
    def worst(self) -> Comparison:
        """The comparison with the largest disagreement."""
        return max(self.comparisons, key=lambda comparison: abs(comparison.disagreement or 0.0))

    def select(self, quantity: str, **setting: float | str) -> tuple[Comparison, ...]:
        """The comparisons of that quantity whose setting has these values."""
        return tuple(
            comparison
            for comparison in self.comparisons
            if comparison.quantity == quantity
            and all(comparison.setting.get(name) == value for name, value in setting.items())
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain lists, ready for JSON; `from_dict` is the way back."""
        return {
            "kind": _KIND,
            "experiment": self.experiment,
            "spec": _lists(self.spec),
            "comparisons": [comparison.to_dict() for comparison in self.comparisons],
            "series": [_lists(asdict(series)) for series in self.series],
            "grids": [_lists(asdict(grid)) for grid in self.grids],
            "seconds": self.seconds,
        }

    @classmethod
    def from_dict(cls, data: Any) -> "Result":
        """The result that `to_dict` was called on; an error if the dictionary holds something else."""
        rendering.expect_kind(data, _KIND)
        rendering.expect_fields(data, ["experiment", "spec", "comparisons", "series", "grids", "seconds"])
        for part, kind in (("series", Series), ("grids", Grid)):
            for entry in data[part]:
                rendering.expect_fields(entry, list(kind.__dataclass_fields__), f"data[{part!r}]")
        return cls(
            experiment=str(data["experiment"]),
            spec=_tuples(dict(data["spec"])),
            comparisons=tuple(Comparison.from_dict(entry, "data['comparisons']") for entry in data["comparisons"]),
            series=tuple(Series(**_tuples(entry)) for entry in data["series"]),
            grids=tuple(Grid(**_tuples(entry)) for entry in data["grids"]),
            seconds=float(data["seconds"]),
        )


def _lists(value: Any) -> Any:
    """Tuples as lists, for a dictionary that equals what JSON gives back."""
    if isinstance(value, Mapping):
        return {name: _lists(entry) for name, entry in value.items()}
    return [_lists(entry) for entry in value] if isinstance(value, (tuple, list)) else value


def _tuples(value: Any) -> Any:
    """The way back."""
    if isinstance(value, Mapping):
        return {name: _tuples(entry) for name, entry in value.items()}
    return tuple(_tuples(entry) for entry in value) if isinstance(value, list) else value
