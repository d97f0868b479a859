"""Every claim about the scale, each with a check that runs, its evidence, and a verdict computed from it.

    evidence   one number, what the claim makes of it, and whether the two agree
    record     the evidence of one claim; the verdict and its condition follow from it
    ledger     a claim and its check; the list of all of them, to which other modules may add
    draw       random q and k, and statistics over them with their standard error
    runs       training runs at their best learning rate, and differences between them
    table      a ledger as text

The checks: `definition` (1, 14), `moments` (3, 4, 17, 20), `arithmetic` (5, 6), `figures` (7, 8, 10), `sharpness`
(9, 11, 12), `gradients` (2, 15, 19), `formats` (13), `learning` (16, 18, 21),
`breaking` (22, 23). The last two read the runs of the training study, `rootdk.lab.training`.

>>> from rootdk.lab.claims import LEDGER
>>> record = LEDGER[7].check()
>>> record.verdict
'does not hold'
>>> print(record.condition)
e^50 is given as 5,184,705,528,587,072,045 and is 5,184,705,528,587,072,464,087
"""

from . import arithmetic, breaking, definition, figures, formats, gradients, learning, moments, sharpness
from .evidence import Evidence
from .ledger import Claim, Ledger, Setting, claim
from .record import CONDITIONAL, FAILS, HOLDS, OPEN, VERDICTS, Record

LEDGER = Ledger()
for _module in (arithmetic, breaking, definition, figures, formats, gradients, learning, moments, sharpness):
    LEDGER.add(*_module.CLAIMS)

__all__ = [
    "CONDITIONAL",
    "FAILS",
    "HOLDS",
    "LEDGER",
    "OPEN",
    "VERDICTS",
    "Claim",
    "Evidence",
    "Ledger",
    "Record",
    "Setting",
    "claim",
]
