"""What an experiment found: numbers predicted and measured side by side, and what a figure is drawn from.

All of it is plain data and goes to JSON and back without loss.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rootdk import rendering
from rootdk.errors import ArgumentError

from .comparison import Comparison, Parameters

_KIND = "rootdk.lab.checks.Result"


@dataclass(frozen=True, slots=True)
class Series:
    """Points of a curve or the heights of bars. kind is "theory" or "measured"."""

    name: str
    kind: str
    setting: Parameters
    x: tuple[float, ...]
    y: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Grid:
    """A matrix, such as the Jacobian of one row."""

    name: str
    kind: str
    setting: Parameters
    rows: tuple[tuple[float, ...], ...]


@dataclass(frozen=True, slots=True)
class Result:
    """What one run of one experiment found; `spec` says everything that it depended on."""

    experiment: str
    spec: Mapping[str, Any]
    comparisons: tuple[Comparison, ...]
    series: tuple[Series, ...] = ()
    grids: tuple[Grid, ...] = ()
    seconds: float = field(default=0.0, compare=False)

    def __post_init__(self) -> None:
        for one in self.comparisons:
            for name in ("predicted", "measured", "standard_error"):
                value = getattr(one, name)
                if value is not None and not math.isfinite(value):
                    where = f"{one.quantity} at {dict(one.setting)}"
                    raise ArgumentError(f"{name}: must be finite in an experiment, got {value} for {where}")
            if (one.measured is None) != (one.standard_error is None):
                raise ArgumentError("standard_error: must be given exactly where measured is, in an experiment")

    @property
    def compared(self) -> int:
        """How many numbers were both predicted and measured."""
        return sum(one.measured is not None for one in self.comparisons)

    @property
    def worst(self) -> Comparison:
        """The comparison with the largest disagreement."""
        return max(self.comparisons, key=lambda one: abs(one.disagreement or 0.0))

    def select(self, quantity: str, **setting: float | str) -> tuple[Comparison, ...]:
        """The comparisons of that quantity whose setting has these values."""
        return tuple(
            one
            for one in self.comparisons
            if one.quantity == quantity and all(one.setting.get(name) == value for name, value in setting.items())
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain lists, ready for JSON; `from_dict` is the way back."""
        return {
            "kind": _KIND,
            "experiment": self.experiment,
            "spec": {name: _plain(value) for name, value in self.spec.items()},
            "comparisons": [one.to_dict() for one in self.comparisons],
            "series": [{name: _plain(getattr(one, name)) for name in _SERIES} for one in self.series],
            "grids": [{name: _plain(getattr(one, name)) for name in _GRID} for one in self.grids],
            "seconds": self.seconds,
        }

    @classmethod
    def from_dict(cls, data: Any) -> "Result":
        """The result that `to_dict` was called on; an error if the dictionary holds something else."""
        rendering.expect_kind(data, _KIND)
        rendering.expect_fields(data, ["experiment", "spec", "comparisons", "series", "grids", "seconds"])
        for part, names in (("series", _SERIES), ("grids", _GRID)):
            for one in data[part]:
                rendering.expect_fields(one, names, f"data[{part!r}]")
        return cls(
            experiment=str(data["experiment"]),
            # JSON made lists of the tuples.
            spec={
                name: tuple(value) if isinstance(value, list) else value for name, value in dict(data["spec"]).items()
            },
            comparisons=tuple(Comparison.from_dict(one, "data['comparisons']") for one in data["comparisons"]),
            series=tuple(
                Series(one["name"], one["kind"], dict(one["setting"]), tuple(one["x"]), tuple(one["y"]))
                for one in data["series"]
            ),
            grids=tuple(
                Grid(one["name"], one["kind"], dict(one["setting"]), tuple(tuple(row) for row in one["rows"]))
                for one in data["grids"]
            ),
            seconds=float(data["seconds"]),
        )


_SERIES = tuple(Series.__dataclass_fields__)
_GRID = tuple(Grid.__dataclass_fields__)


def _plain(value: Any) -> Any:
    """Tuples as lists, for a dictionary that equals what JSON gives back."""
    if isinstance(value, tuple):
        return [_plain(one) for one in value]
    return dict(value) if isinstance(value, Mapping) else value
