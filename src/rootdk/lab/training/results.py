"""The runs of a study, with what made them: versions, and the name of the plan that asked for them."""

import functools
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

from rootdk._views import expect_fields, expect_kind

from .run import Run

_KIND = "rootdk.trained.Results"
_SHIPPED = "shipped.json"


@dataclass(frozen=True, slots=True)
class Results:
    """Runs, and facts about their making: size of the plan, versions, machine."""

    runs: tuple[Run, ...]
    about: Mapping[str, str] = field(default_factory=dict)

    def select(self, where: Callable[[Run], bool] | None = None, **spec: Any) -> tuple[Run, ...]:
        """The runs whose spec has these values, and for which `where` is true.

        >>> from rootdk.lab.training import shipped
        >>> {run.spec.rule for run in shipped().select(task="recall", rule="sqrt")}
        {'sqrt'}
        """
        return tuple(
            run
            for run in self.runs
            if all(getattr(run.spec, name) == value for name, value in spec.items()) and (where is None or where(run))
        )

    def values(self, name: str, **spec: Any) -> list[Any]:
        """The values that the runs with this spec have for another entry of it, in order."""
        return sorted({getattr(run.spec, name) for run in self.select(**spec)})

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        return {"kind": _KIND, "about": dict(self.about), "runs": [run.to_dict() for run in self.runs]}

    def to_json(self) -> str:
        """One run per line, so that a change of one run is a change of one line."""
        runs = ",\n".join(json.dumps(run.to_dict(), allow_nan=False, separators=(",", ":")) for run in self.runs)
        return f'{{"kind": "{_KIND}", "about": {json.dumps(dict(self.about))}, "runs": [\n{runs}\n]}}\n'

    @classmethod
    def from_dict(cls, data: Any) -> "Results":
        """The results that `to_dict` was called on."""
        expect_kind(data, _KIND)
        expect_fields(data, ("about", "runs"))
        return cls(tuple(Run.from_dict(one) for one in data["runs"]), dict(data["about"]))

    @classmethod
    def of(cls, runs: Iterable[Run], **about: str) -> "Results":
        """Runs with facts about them."""
        return cls(tuple(runs), about)


@functools.cache
def shipped() -> Results:
    """The results that come with the package, made by `rootdk train-study`; their `about` says how."""
    return Results.from_dict(json.loads(files(__package__).joinpath(_SHIPPED).read_text("utf-8")))
