"""Experiments and claims: what theory predicts beside what the operator does, with a verdict that is computed.

    Comparison                 one number: measured, its standard error, its prediction, and its state
    EXPERIMENTS                by name; plan(size) gives the specs of all, run(spec) and run_all(specs) their results
    Result                     what an experiment found: comparisons, series and grids; to JSON and back
    Cache                      results kept by content: the same code does not run the same spec twice
    LEDGER                     every claim about the scale, by number; LEDGER.check() gives a CheckedClaim for each
    Sampling                   how much the claims draw, and from which seed

`comparison` is the record that both share and `sampler` draws for both. Every other file is a subject: `moments`,
`sharpness`, `gradient_flow`, `rules`, `rounding`, `premises`, `exact`, `repeated`, `learning`, with its experiments,
its claims or both. All files of this folder are loaded here: a new one needs no line elsewhere.

>>> from rootdk.lab.checks import LEDGER
>>> checked = LEDGER[7].check()
>>> checked.verdict
'does not hold'
>>> print(checked.condition)
e^50 is given as 5,184,705,528,587,072,045 and is 5,184,705,528,587,072,464,087
"""

from importlib import import_module
from pkgutil import iter_modules

from .comparison import AGREES, DISAGREES, Comparison, Grid, Result, Series
from .experiment import EXPERIMENTS, SIZES, Cache, Experiment, name_of, plan, register, run, run_all, spec_from_dict
from .ledger import (
    CONDITIONAL,
    FAILS,
    HOLDS,
    LEDGER,
    NOT_REPRODUCED,
    OPEN,
    UNDECIDED,
    VERDICTS,
    CheckedClaim,
    Claim,
    Ledger,
)
from .sampler import Sampling

for _name in sorted(file.name for file in iter_modules(__path__)):
    import_module(f"{__name__}.{_name}")

__all__ = [
    "AGREES",
    "CONDITIONAL",
    "DISAGREES",
    "EXPERIMENTS",
    "FAILS",
    "HOLDS",
    "LEDGER",
    "NOT_REPRODUCED",
    "OPEN",
    "SIZES",
    "UNDECIDED",
    "VERDICTS",
    "Cache",
    "CheckedClaim",
    "Claim",
    "Comparison",
    "Experiment",
    "Grid",
    "Ledger",
    "Result",
    "Sampling",
    "Series",
    "name_of",
    "plan",
    "register",
    "run",
    "run_all",
    "spec_from_dict",
]
