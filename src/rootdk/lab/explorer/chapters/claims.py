"""The ledger: every claim about the scale with its verdict, and the evidence from which the verdict follows.

The claims are checked in this process, once, and kept: that takes some seconds, and then every request is quick. A file
of verdicts that ships with the package would be there at once, but it would show what some other machine found with
some other version, and a verdict must follow from evidence. `explorer.warm_up` checks them ahead of the reader.
"""

from functools import cache
from threading import Lock

from rootdk.lab.checks import AGREES, DISAGREES, LEDGER, VERDICTS, CheckedClaim, Sampling
from rootdk.lab.checks.comparison import number as short
from rootdk.lab.drawing import GREY, HUES, plot
from rootdk.lab.explorer.chapter import Chapter, Figure, Table, Values, View, choice, number
from rootdk.lab.formulas import ATTENTION

_ALL = "all"
_ROWS = 1024  # the quick look of `rootdk claims --rows 1024`
_COLOURS = dict(zip(VERDICTS, (HUES[2], HUES[4], HUES[1], HUES[3], HUES[0], GREY), strict=True))
_lock = Lock()


def compute(values: Values) -> View:
    """All records, or those of one verdict; the counts are of all."""
    with _lock:  # the cache alone would let two requests that come together check everything twice
        records = _checked()
    shown = [claim for claim in records if values["verdict"] in (_ALL, claim.verdict)]
    counts = {verdict: sum(claim.verdict == verdict for claim in records) for verdict in VERDICTS}
    numbers = tuple(number(verdict.replace(" ", "_"), verdict, count) for verdict, count in counts.items())
    totals = ", ".join(f"{verdict} {count}" for verdict, count in counts.items())
    # Horizontal bars, because the labels are long.
    horizontal = {"orientation": "h", "marker": {"color": [_COLOURS[verdict] for verdict in counts]}}
    trace = {"type": "bar", "x": list(counts.values()), "y": list(counts), "name": "claims"} | horizontal
    chart = plot([trace], "claims", "", xaxis={"dtick": 5}, yaxis={"autorange": "reversed"})
    figure = Figure("verdicts", "Verdicts", chart, f"Verdicts on {len(records)} claims: {totals}.")
    rows = tuple(
        (claim.id, claim.statement, claim.verdict, claim.condition, claim.source, _evidence(claim) or claim.method)
        for claim in shown
    )
    headings = ("number", "claim", "verdict", "condition, or the reason", "said in", "evidence")
    return View((figure,), numbers, _PYTHON, Table(headings, rows))


@cache
def _checked() -> tuple[CheckedClaim, ...]:
    return tuple(LEDGER.check(sampling=Sampling(rows=_ROWS)))


def _evidence(claim: CheckedClaim) -> str:
    """Every number with its standard error, and what the claim makes of it."""
    parts = []
    for comparison in claim.evidence:
        error = f" ± {comparison.standard_error:.1g}" if comparison.standard_error else ""
        mark = {AGREES: "", DISAGREES: ": no"}.get(comparison.state, ": not decided")
        relation = f" ({comparison.relation} {short(comparison.predicted)}{mark})" if comparison.relation else ""
        parts.append(f"{comparison.quantity}: {short(comparison.measured or 0.0)}{error}{relation}")
    return "; ".join(parts)


_PYTHON = f"""\
from collections import Counter
from rootdk.lab.checks import LEDGER, VERDICTS, Sampling

records = list(LEDGER.check(sampling=Sampling(rows={_ROWS})))
counts = Counter(record.verdict for record in records)
for verdict in VERDICTS:
    print(verdict.replace(" ", "_"), counts[verdict])
"""

CHAPTER = Chapter(
    id="claims",
    title="The claims",
    formula=ATTENTION,
    to_try="Choose a verdict to see the claims that have it.",
    to_see="Each claim is checked by code that runs here. The verdict is computed from the evidence beside it.",
    said="The scale is one line of algebra, and everything said about it is settled.",
    true="The algebra is exact. Of the other statements, some are true only under a condition, and some are not true.",
    controls=(choice("verdict", "verdict", (_ALL, *VERDICTS)),),
    compute=compute,
)
