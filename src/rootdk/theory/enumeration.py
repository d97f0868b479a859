"""The exact law of a score, in fractions, for components that take a few values: no sampling, no rounding."""

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from rootdk.errors import ArgumentError, ArgumentTypeError

from ._arguments import count

_MOST_WORK = 250_000  # pairs of outcomes in one combination: some seconds of long fractions

Law = Mapping[Any, Any]


def score_law(d_k: int, query: Law, key: Law | None = None) -> dict[Fraction, Fraction]:
    """Every value that <q, k> can take and its probability, for d_k independent components.

    query and key map the values of one component to their probabilities; key is like query unless given. Values and
    probabilities are ints, Fractions, or texts such as "1/3"; floats are taken at their exact binary value. All
    outcomes are enumerated, equal ones together; where that would take more than some seconds it is refused.

    >>> sign = {-1: "1/2", 1: "1/2"}
    >>> score_law(2, sign)
    {Fraction(-2, 1): Fraction(1, 4), Fraction(0, 1): Fraction(1, 2), Fraction(2, 1): Fraction(1, 4)}
    """
    d_k = count("d_k", d_k, 1, 10**6)
    law_query = _law("query", query)
    law_key = law_query if key is None else _law("key", key)
    product = _combine(law_query, law_key, lambda a, b: a * b)
    # Powers by squaring: d_k = 1000 takes ten combinations and not a thousand.
    total, power, left = {Fraction(0): Fraction(1)}, product, d_k
    while left:
        if left & 1:
            total = _combine(total, power, lambda a, b: a + b)
        left >>= 1
        if left:
            power = _combine(power, power, lambda a, b: a + b)
    return dict(sorted(total.items()))


def exact_score_moments(d_k: int, query: Law, key: Law | None = None) -> dict[str, Fraction]:
    """Mean, variance, third and fourth central moment of <q, k>, and excess kurtosis, as fractions.

    >>> moments = exact_score_moments(3, {-1: "1/2", 1: "1/2"})
    >>> print(moments["mean"], moments["variance"], moments["excess_kurtosis"])
    0 3 -2/3
    >>> loaded = {"-1/2": "4/5", 2: "1/5"}          # mean 0, variance 1, not symmetric
    >>> print(exact_score_moments(5, loaded)["variance"])
    5
    """
    law = score_law(d_k, query, key)
    mean = sum((value * chance for value, chance in law.items()), Fraction(0))
    second, third, fourth = (
        sum(((value - mean) ** order * chance for value, chance in law.items()), Fraction(0)) for order in (2, 3, 4)
    )
    if second == 0:
        raise ArgumentError("query, key: must give a score that varies, got one that is always the same")
    return {
        "mean": mean,
        "variance": second,
        "third": third,
        "fourth": fourth,
        "excess_kurtosis": fourth / second**2 - 3,
    }


def _combine(left: Law, right: Law, operation: Any) -> dict[Fraction, Fraction]:
    work = len(left) * len(right)
    if work > _MOST_WORK:
        raise ArgumentError(
            f"d_k: must leave at most {_MOST_WORK} pairs of outcomes to combine, got {work}: "
            "fewer values or smaller d_k"
        )
    law: dict[Fraction, Fraction] = {}
    for a, chance_a in left.items():
        for b, chance_b in right.items():
            value = operation(a, b)
            law[value] = law.get(value, Fraction(0)) + chance_a * chance_b
    return law


def _law(argument: str, given: Law) -> dict[Fraction, Fraction]:
    if not isinstance(given, Mapping):
        raise ArgumentTypeError(f"{argument}: must map values to probabilities, got {type(given).__name__}")
    law: dict[Fraction, Fraction] = {}
    for value, chance in given.items():
        number = _fraction(argument, value)
        law[number] = law.get(number, Fraction(0)) + _fraction(argument, chance)
    if any(chance < 0 for chance in law.values()) or sum(law.values()) != 1:
        raise ArgumentError(
            f"{argument}: must have probabilities >= 0 that add up to exactly 1, got a sum of {sum(law.values())}"
        )
    return law


def _fraction(argument: str, given: Any) -> Fraction:
    try:
        if not isinstance(given, bool):
            return Fraction(given)
    except (ValueError, TypeError, OverflowError, ZeroDivisionError):
        pass
    raise ArgumentTypeError(f"{argument}: must hold ints, Fractions, floats or texts like '1/3', got {given!r}")
