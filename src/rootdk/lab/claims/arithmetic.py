"""Claims 5 and 6: what can be settled in fractions."""

import math
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import product
from types import MappingProxyType
from typing import Any

from rootdk.scaling import ScaleRule
from rootdk.theory import rule_variance, square_term_counts

from .evidence import SHOWN, Evidence
from .ledger import LATER, Setting, claim

Chances = Sequence[tuple[Fraction, Fraction]]
# d -> terms, how many of them average 1, how many 0
COUNTED = MappingProxyType({3: (9, 3, 6), 64: (4096, 64, 4032)})
SIGNS = MappingProxyType({-1: "1/2", 1: "1/2"})


@claim(
    5,
    title="d of d^2 terms average 1",
    statement="This is exact: of the d^2 terms of (q.k)^2, d average 1 and the others 0. d = 3: 9 terms, 3 and 6; "
    "d = 64: 4096 terms, 64 and 4032.",
    source=LATER,
    method="Averages of all terms in fractions, for components of random sign: for d = 3 over all outcomes of the six "
    "components, for larger d from the first two moments of one component.",
)
def square_of_the_sum(
    _setting: Setting,
    law: Mapping[Any, Any] = SIGNS,
    counted: Mapping[int, tuple[int, int, int]] = COUNTED,
    also: Sequence[int] = (1, 7, 512, 4096),
) -> Iterator[Evidence]:
    """law maps the values of a component to their probabilities."""
    chances = [(Fraction(value), Fraction(chance)) for value, chance in law.items()]
    for d, said in counted.items():
        averages = _by_outcomes(chances, d) if d <= 3 else _by_moments(chances, d)
        found = (sum(averages.values()), averages.get(Fraction(1), 0), averages.get(Fraction(0), 0))
        for what, number, expected in zip(
            ("terms", "terms of average 1", "terms of average 0"), found, said, strict=True
        ):
            yield Evidence(f"d = {d}: {what}", number, "=", expected)
    for d in also:
        total = sum((average * number for average, number in _by_moments(chances, d).items()), Fraction(0))
        yield Evidence(f"d = {d}: sum of all averages", float(total), "=", square_term_counts(d)["sum"])


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


@claim(
    6,
    title="c divides the variance by c^2",
    statement="Dividing by c divides the variance by c^2: 2, 4, 6 has variance 2.67 and its half 1, 2, 3 has 0.67. So "
    "c = sqrt(d_k) brings d_k to 1.",
    source=LATER,
    method="Fractions, and the variance of scores under the rule 1/sqrt(d_k) at several d_k.",
)
def division(
    _setting: Setting,
    numbers: Sequence[int] = (2, 4, 6),
    by: int = 2,
    printed: tuple[str, str] = ("2.67", "0.67"),
    scale: str | ScaleRule = "sqrt",
    d_ks: Sequence[int] = (4, 64, 512),
) -> Iterator[Evidence]:
    """printed are the two variances as they stand in print."""
    before, after = (_variance([Fraction(x, c) for x in numbers]) for c in (1, by))
    for name, variance, text in (("before", before, printed[0]), ("after", after, printed[1])):
        slack = 0.5 * 10.0 ** -len(text.partition(".")[2])
        yield Evidence(f"variance {name}: {variance}", float(variance), "=", float(text), slack=slack)
    yield Evidence("ratio of the two", float(before / after), "=", float(by * by))
    for d_k in d_ks:
        # Four roundings: the root, the quotient, its square, the product.
        found = float(rule_variance(scale, d_k))
        yield Evidence(f"variance of scaled scores, d_k = {d_k}", found, "=", 1.0, slack=1e-15)
    yield Evidence(
        "before, divided by n - 1 in place of n", float(before * len(numbers) / (len(numbers) - 1)), role=SHOWN
    )


def _variance(numbers: Sequence[Fraction]) -> Fraction:
    mean = sum(numbers, Fraction(0)) / len(numbers)
    return sum(((x - mean) ** 2 for x in numbers), Fraction(0)) / len(numbers)


CLAIMS = (square_of_the_sum, division)
