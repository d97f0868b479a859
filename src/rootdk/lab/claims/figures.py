"""Claims 7, 8 and 10: figures that are printed in explanations, to the digit."""

from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal, localcontext

import numpy as np

from rootdk.api import attention

from .draw import Floats
from .evidence import Evidence
from .ledger import LATER, Setting, claim

Powers = Mapping[int, str]
Weights = Sequence[tuple[Sequence[float], Sequence[str]]]

POWERS = {1: "2.718", 5: "148.4", 10: "22,026", 20: "485,165,195", 50: "5,184,705,528,587,072,045"}


@claim(
    7,
    title="powers of e, as printed",
    statement="e^1 = 2.718, e^5 = 148.4, e^10 = 22,026, e^20 = 485,165,195, e^50 = 5,184,705,528,587,072,045.",
    source=LATER,
    method="Decimal arithmetic with 50 digits, rounded to the printed ones.",
)
def powers_of_e(_setting: Setting, printed: Powers = POWERS) -> Iterator[Evidence]:
    """printed maps exponents to the figures as they stand in print."""
    with localcontext() as context:
        context.prec = 50
        for exponent, text in printed.items():
            given = Decimal(text.replace(",", ""))
            rounded = Decimal(exponent).exp().quantize(Decimal(1).scaleb(int(given.as_tuple().exponent)))
            # The difference is taken here: float64 has 16 digits and the longest figure 19.
            off = float(abs(given - rounded) / rounded)
            yield Evidence(
                f"e^{exponent}: |printed - true| / true",
                off,
                "=",
                0.0,
                otherwise=f"e^{exponent} is given as {text} and is {rounded:,}",
            )
            if off:
                yield Evidence(f"e^{exponent}: true / printed", float(rounded / given), role="shown")


def _weights(logits: Sequence[float]) -> Floats:
    """Softmax by the operator itself: one query 1, the scores as keys, unit vectors as values."""
    keys = len(logits)
    weights: Floats = attention(np.ones((1, 1)), np.array(logits, np.float64)[:, None], np.eye(keys), scale=1.0)[0]
    return weights


def _as_printed(examples: Weights) -> Iterator[Evidence]:
    for logits, texts in examples:
        row = f"[{', '.join(f'{x:g}' for x in logits)}]"
        for place, (found, text) in enumerate(zip(_weights(logits), texts, strict=True), 1):
            slack = 0.5 * 10.0 ** -len(text.partition(".")[2])
            said = f"weight {place} of {row} is {found:.5f} and not {text}"
            yield Evidence(
                f"softmax {row}, weight {place}", float(found), "=", float(text), slack=slack, otherwise=said
            )


TENTH = (((50, 10, 5), ("1.000", "0.000", "0.000")), ((5, 1, 0.5), ("0.971", "0.018", "0.011")))
EIGHTH = (((14, 10, 12), ("0.867", "0.016", "0.117")), ((1.75, 1.25, 1.5), ("0.419", "0.254", "0.326")))


@claim(
    8,
    title="softmax of 50, 10, 5",
    statement="Scores 50, 10, 5 give weights 1, 0, 0, all but exactly; a tenth of them gives .971, .018, .011.",
    source=LATER,
    method="The operator on these scores, to the printed digit.",
)
def large_scores_take_all(_setting: Setting, examples: Weights = TENTH) -> Iterator[Evidence]:
    """examples are scores and the weights as printed."""
    yield from _as_printed(examples)


@claim(
    10,
    title="softmax of 14, 10, 12",
    statement="At d_k = 64 scores 14, 10, 12 give weights .867, .016, .117; divided by 8 they give .419, .254, .326.",
    source=LATER,
    method="The operator on these scores, to the printed digit.",
)
def eight_at_sixty_four(_setting: Setting, examples: Weights = EIGHTH, d_k: int = 64) -> Iterator[Evidence]:
    """The second row of examples must be the first divided by sqrt(d_k)."""
    (whole, _), (divided, _) = examples
    for a, b in zip(whole, divided, strict=True):
        yield Evidence(f"{a:g} / sqrt({d_k})", a / d_k**0.5, "=", b)
    yield from _as_printed(examples)


CLAIMS = (powers_of_e, large_scores_take_all, eight_at_sixty_four)
