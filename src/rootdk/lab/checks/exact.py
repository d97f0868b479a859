"""Claims without chance: 1 and 14, the operator and its derivative; 5 to 8 and 10, fractions and printed figures."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal, localcontext
from fractions import Fraction
from itertools import product
from statistics import pvariance

import numpy as np

from rootdk.attention import attention
from rootdk.scaling import ScaleRule
from rootdk.theory import rule_variance, softmax_jacobian, square_term_counts

from .comparison import SHOWN, Comparison
from .gradient_flow import jacobian_of_softmax
from .ledger import COMMON, LEDGER, PAPER
from .moments import ENUMERABLE, Law
from .sampler import Floats, Sampling, generator

Formula = Callable[[Floats, Floats, Floats], Floats]


def softmax(logits: Floats) -> Floats:
    """e^s / sum e^s over the last axis.

    >>> softmax(np.array([0.0, 0.0])).tolist()
    [0.5, 0.5]
    """
    raised = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return np.asarray(raised / raised.sum(axis=-1, keepdims=True))


def by_the_formula(query: Floats, key: Floats, value: Floats) -> Floats:
    """softmax(Q K'/sqrt(d_k)) V in float64, as the formula is written."""
    q, k, v = (array.astype(np.float64) for array in (query, key, value))
    return np.asarray(softmax(q @ np.swapaxes(k, -1, -2) / math.sqrt(q.shape[-1])) @ v)


@LEDGER.claim(
    1,
    title="attention is the formula",
    statement="Attention is the softmax of Q K'/sqrt(d_k), times V.",
    source=f"{PAPER}, section 3.2.1",
    method="rootdk.attention with its default scale against that formula in float64: the largest error as a share of "
    "what rounding alone may do.",
)
def formula_holds(
    sampling: Sampling,
    formula: Formula = by_the_formula,
    shapes: Sequence[tuple[int, int, int]] = ((4, 3, 4), (64, 512, 64), (512, 128, 32), (7, 33, 5)),
) -> Iterator[Comparison]:
    """shapes are (d_k, keys, d_v)."""
    for dtype in (np.float64, np.float32):
        worst = 0.0
        for d_k, keys, d_v in shapes:
            rng, sizes = generator(sampling.seed, 1, d_k, keys), ((8, d_k), (keys, d_k), (keys, d_v))
            query, key, value = (rng.standard_normal((2, *size)).astype(dtype) for size in sizes)
            error = np.abs(attention(query, key, value) - formula(query, key, value)).max()
            worst = max(worst, float(error) / _rounding(query, key, value))
        name = np.dtype(dtype).name
        against = f"the operator differs from the formula in {name} by {worst:.3g} times what rounding may do"
        yield Comparison(f"error / rounding bound, {name}", worst, "<", 1.0, otherwise=against)


def _rounding(query: Floats, key: Floats, value: Floats) -> float:
    """A bound on the error of any order of summation.

    The error of a score is at most e = (d_k + 2) u |q||k|/sqrt(d_k), the relative error of each weight 4e + 8u through
    the exponential and the normalisation, and adding up n weights and n values costs n u each; u is half of eps.
    """
    unit, d_k, keys = np.finfo(query.dtype).eps / 2, query.shape[-1], key.shape[-2]
    longest_query, longest_key = (float(np.linalg.norm(array, axis=-1).max()) for array in (query, key))
    score = (d_k + 2) * unit * longest_query * longest_key / math.sqrt(d_k)
    return float((4 * score + (2 * keys + 12) * unit) * np.abs(value).max())


@LEDGER.claim(
    14,
    title="derivative of softmax",
    statement="The derivative of weight i by score j is s_i (1 - s_i) for i = j and -s_i s_j otherwise.",
    source=COMMON,
    method="The formula against central differences of a softmax, and against the gradient that attention_vjp pulls "
    "back: largest difference over random rows of 16 scores.",
)
def derivative_holds(
    sampling: Sampling, formula: Callable[[Floats], Floats] = softmax_jacobian, keys: int = 16, rows: int = 24
) -> Iterator[Comparison]:
    """formula maps the weights of one row to its table of derivatives."""
    step, unit = 1e-5, float(np.finfo(np.float64).eps)
    logits = generator(sampling.seed, 14).standard_normal((rows, keys)) * 2
    table = np.stack([formula(weights) for weights in softmax(logits)])
    up, down = (softmax(logits[:, None] + sign * step * np.eye(keys)) for sign in (1, -1))
    by_difference = float(np.abs((up - down).swapaxes(1, 2) / (2 * step) - table).max())
    by_operator = float(np.abs(jacobian_of_softmax(logits) - table).max())
    # The error of central differences is step^2/6 times a third derivative below 1, plus rounding divided by the step.
    yield Comparison("largest gap to finite differences", by_difference, "<", step**2 + 4 * unit / step)
    # A weight of the operator has an error of some units of rounding, and so does the product of two.
    yield Comparison("largest gap to attention_vjp", by_operator, "<", (2 * keys + 24) * unit)


Chances = Sequence[tuple[Fraction, Fraction]]
# d -> terms, how many of them average 1, how many 0
COUNTED = {3: (9, 3, 6), 64: (4096, 64, 4032)}


@LEDGER.claim(
    5,
    title="d of d^2 terms average 1",
    statement="This is exact: of the d^2 terms of (q.k)^2, d average 1 and the others 0. d = 3: 9 terms, 3 and 6; "
    "d = 64: 4096 terms, 64 and 4032.",
    source=COMMON,
    method="Averages of all terms in fractions, for components of random sign: for d = 3 over all outcomes of the six "
    "components, for larger d from the first two moments of one component.",
)
def square_of_the_sum(
    _sampling: Sampling,
    law: Law = ENUMERABLE["signs"],
    counted: Mapping[int, tuple[int, int, int]] = COUNTED,
    also: Sequence[int] = (1, 7, 512, 4096),
) -> Iterator[Comparison]:
    """law maps the values of a component to their probabilities."""
    chances = [(Fraction(value), Fraction(chance)) for value, chance in law.items()]
    for d, as_printed in counted.items():
        averages = _by_outcomes(chances, d) if d <= 3 else _by_moments(chances, d)
        counts = (sum(averages.values()), averages.get(Fraction(1), 0), averages.get(Fraction(0), 0))
        kinds = ("terms", "terms of average 1", "terms of average 0")
        for kind, number, printed in zip(kinds, counts, as_printed, strict=True):
            yield Comparison(f"d = {d}: {kind}", number, "=", printed)
    for d in also:
        total = sum((average * number for average, number in _by_moments(chances, d).items()), Fraction(0))
        yield Comparison(f"d = {d}: sum of all averages", float(total), "=", square_term_counts(d)["sum"])


def _by_outcomes(chances: Chances, d: int) -> dict[Fraction, int]:
    """How many terms have which average E q_i k_i q_j k_j, over every outcome of the 2d components."""
    table = dict.fromkeys(product(range(d), repeat=2), Fraction(0))
    for outcome in product(chances, repeat=2 * d):
        chance = math.prod((p for _, p in outcome), start=Fraction(1))
        z = [outcome[i][0] * outcome[d + i][0] for i in range(d)]
        for i, j in table:
            table[i, j] += chance * z[i] * z[j]
    return {average: list(table.values()).count(average) for average in table.values()}


def _by_moments(chances: Chances, d: int) -> dict[Fraction, int]:
    """The same for independent components: E q_i q_j is E q^2 for i = j and (E q)^2 otherwise, and likewise for k."""
    first, second = (sum((value**n * p for value, p in chances), Fraction(0)) for n in (1, 2))
    counts: dict[Fraction, int] = {}
    for average, number in ((second**2, d), (first**4, d * (d - 1))):
        counts[average] = counts.get(average, 0) + number
    return counts


@LEDGER.claim(
    6,
    title="c divides the variance by c^2",
    statement="Dividing by c divides the variance by c^2: 2, 4, 6 has variance 2.67 and its half 1, 2, 3 has 0.67. So "
    "c = sqrt(d_k) brings d_k to 1.",
    source=COMMON,
    method="Fractions, and the variance of scores under the rule 1/sqrt(d_k) at several d_k.",
)
def division(
    _sampling: Sampling,
    numbers: Sequence[int] = (2, 4, 6),
    by: int = 2,
    printed: tuple[str, str] = ("2.67", "0.67"),
    scale: str | ScaleRule = "sqrt",
    d_ks: Sequence[int] = (4, 64, 512),
) -> Iterator[Comparison]:
    """printed are the two variances as they are printed."""
    before, after = (pvariance([Fraction(x, c) for x in numbers]) for c in (1, by))
    for name, variance, text in (("before", before, printed[0]), ("after", after, printed[1])):
        yield Comparison(f"variance {name}: {variance}", float(variance), "=", float(text), slack=_half_a_digit(text))
    yield Comparison("ratio of the two", float(before / after), "=", float(by * by))
    for d_k in d_ks:
        # Four roundings: the root, the quotient, its square, the product.
        scaled = float(rule_variance(scale, d_k))
        yield Comparison(f"variance of scaled scores, d_k = {d_k}", scaled, "=", 1.0, slack=1e-15)
    by_one_less = before * len(numbers) / (len(numbers) - 1)
    yield Comparison("before, divided by n - 1 in place of n", float(by_one_less), role=SHOWN)


def _half_a_digit(printed: str) -> float:
    """Half of the last digit of a number as it is printed."""
    return 0.5 * 10.0 ** -len(printed.partition(".")[2])


Powers = Mapping[int, str]
Weights = Sequence[tuple[Sequence[float], Sequence[str]]]

POWERS = {1: "2.718", 5: "148.4", 10: "22,026", 20: "485,165,195", 50: "5,184,705,528,587,072,045"}


@LEDGER.claim(
    7,
    title="powers of e, as printed",
    statement="e^1 = 2.718, e^5 = 148.4, e^10 = 22,026, e^20 = 485,165,195, e^50 = 5,184,705,528,587,072,045.",
    source=COMMON,
    method="Decimal arithmetic with 50 digits, rounded to the printed ones.",
)
def powers_of_e(_sampling: Sampling, printed: Powers = POWERS) -> Iterator[Comparison]:
    """printed maps exponents to the figures as they are printed."""
    with localcontext() as context:
        context.prec = 50
        for exponent, text in printed.items():
            as_printed = Decimal(text.replace(",", ""))
            rounded = Decimal(exponent).exp().quantize(Decimal(1).scaleb(int(as_printed.as_tuple().exponent)))
            # The difference is taken here: float64 has 16 digits and the longest figure 19.
            off = float(abs(as_printed - rounded) / rounded)
            wrong = f"e^{exponent} is given as {text} and is {rounded:,}"
            yield Comparison(f"e^{exponent}: |printed - true| / true", off, "=", 0.0, otherwise=wrong)
            if off:
                yield Comparison(f"e^{exponent}: true / printed", float(rounded / as_printed), role=SHOWN)


def _as_printed(examples: Weights) -> Iterator[Comparison]:
    """Softmax by the operator itself: one query 1, the scores as keys, unit vectors as values."""
    for logits, texts in examples:
        row = f"[{', '.join(f'{x:g}' for x in logits)}]"
        keys, unit = np.array(logits, np.float64)[:, None], np.eye(len(logits))
        weights = attention(np.ones((1, 1)), keys, unit, scale=1.0)[0].tolist()
        for place, (weight, text) in enumerate(zip(weights, texts, strict=True), 1):
            name, slack = f"softmax {row}, weight {place}", _half_a_digit(text)
            wrong = f"weight {place} of {row} is {weight:.5f} and not {text}"
            yield Comparison(name, weight, "=", float(text), slack=slack, otherwise=wrong)


TENTH = (((50, 10, 5), ("1.000", "0.000", "0.000")), ((5, 1, 0.5), ("0.971", "0.018", "0.011")))
EIGHTH = (((14, 10, 12), ("0.867", "0.016", "0.117")), ((1.75, 1.25, 1.5), ("0.419", "0.254", "0.326")))


@LEDGER.claim(
    8,
    title="softmax of 50, 10, 5",
    statement="Scores 50, 10, 5 give weights 1, 0, 0, almost exactly; a tenth of them gives .971, .018, .011.",
    source=COMMON,
    method="The operator on these scores, to the printed digit.",
)
def large_scores_take_all(_sampling: Sampling, examples: Weights = TENTH) -> Iterator[Comparison]:
    """examples are scores and the weights as printed."""
    yield from _as_printed(examples)


@LEDGER.claim(
    10,
    title="softmax of 14, 10, 12",
    statement="At d_k = 64 scores 14, 10, 12 give weights .867, .016, .117; divided by 8 they give .419, .254, .326.",
    source=COMMON,
    method="The operator on these scores, to the printed digit.",
)
def eight_at_sixty_four(_sampling: Sampling, examples: Weights = EIGHTH, d_k: int = 64) -> Iterator[Comparison]:
    """The second row of examples must be the first divided by sqrt(d_k)."""
    (whole, _), (divided, _) = examples
    for a, b in zip(whole, divided, strict=True):
        yield Comparison(f"{a:g} / sqrt({d_k})", a / d_k**0.5, "=", b)
    yield from _as_printed(examples)
