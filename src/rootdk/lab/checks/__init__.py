"""Experiments: spec -> run -> result. Each puts what theory says beside what the operator does.

    plan(size)                 the specs of all experiments: "quick", "default" or "full"
    run(spec), run_all(specs)  results, from the cache where the same code has run the same spec
    Result                     comparisons (theory, measured, standard error), series and grids; to JSON and back
    prove(d), setting(...)     the argument for one d; theory and advice for one setting

Nothing here draws: `rootdk.lab.report` makes figures of results.
"""

from .cache import Cache
from .experiments import EXPERIMENTS, Experiment, name_of, spec_from_dict
from .formats import FormatsSpec
from .gradient import GradientSpec
from .length import LengthSpec
from .plan import SIZES, plan
from .premises import PremisesSpec
from .proof import Proof, prove
from .result import Comparison, Grid, Result, Series
from .rules import RulesSpec
from .running import run, run_all
from .scores import ScoresSpec
from .setting import SettingReport, setting
from .sharpness import SharpnessSpec
from .variance import VarianceSpec

__all__ = [
    "EXPERIMENTS",
    "SIZES",
    "Cache",
    "Comparison",
    "Experiment",
    "FormatsSpec",
    "GradientSpec",
    "Grid",
    "LengthSpec",
    "PremisesSpec",
    "Proof",
    "Result",
    "RulesSpec",
    "ScoresSpec",
    "Series",
    "SettingReport",
    "SharpnessSpec",
    "VarianceSpec",
    "name_of",
    "plan",
    "prove",
    "run",
    "run_all",
    "setting",
    "spec_from_dict",
]
