"""Training runs that ask what the scale does when a model learns: as plain data, and the code that does them.

    RunSpec              everything that one training run depends on
    Run                  what it recorded, step by step; to JSON and back
    Results              the runs of a study with the versions that made them; `shipped()` gives those of the package
    Outcome, Group       the same setting over seeds, and over learning rates too; `grouped`, `panels`
    interval(values)     mean and half the width of its confidence interval over seeds

Nothing of that needs torch. `train` and `model` do: they make a run. `sweep` says which runs a study has, has them made
by an engine (`engine`, `ray_engine`) and keeps them in a `store`.
"""

from .results import Group, Interval, Outcome, Results, grouped, interval, panels, shipped
from .run import Layer, Moment, Run, RunSpec

__all__ = [
    "Group",
    "Interval",
    "Layer",
    "Moment",
    "Outcome",
    "Results",
    "Run",
    "RunSpec",
    "grouped",
    "interval",
    "panels",
    "shipped",
]
