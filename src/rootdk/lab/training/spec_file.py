"""Specs from a JSON file: a list of runs, or an object that has one under "runs"."""

import json
from pathlib import Path
from typing import Any

from rootdk.errors import ArgumentError, RootdkError
from rootdk.lab.training import RunSpec


def read_specs(path: Path) -> tuple[RunSpec, ...]:
    """The runs that the file asks for. An error names the entry and the field.

    What Results wrote can be given too: of each of its runs the spec is taken.
    """
    try:
        data = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise ArgumentError(f"spec: cannot read {path}: {error.strerror or error}") from error
    except ValueError as error:
        raise ArgumentError(f"spec: {path} is not JSON: {error}") from error
    runs: Any = data.get("runs") if isinstance(data, dict) else data
    if not isinstance(runs, list) or not runs:
        came = (
            "an empty list" if runs == [] else f"{type(data).__name__} without it" if runs is None else repr(runs)[:40]
        )
        raise ArgumentError(f'spec: {path} must hold a list of runs, alone or under "runs", got {came}')
    return tuple(_spec(path, number, one) for number, one in enumerate(runs))


def _spec(path: Path, number: int, entry: Any) -> RunSpec:
    recorded = isinstance(entry, dict) and isinstance(entry.get("spec"), dict)
    try:
        return RunSpec.from_dict(entry["spec"] if recorded else entry)
    except RootdkError as error:
        raise ArgumentError(f"spec: entry {number} of {path}: {error}") from error
