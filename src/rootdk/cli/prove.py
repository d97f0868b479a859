"""`rootdk prove`: the argument for the variance of a score."""

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from . import options

if TYPE_CHECKING:
    from rootdk.lab.proof import Proof


@click.command()
@options.number("--d", 1, 10**6, 3, "Number of components of q and k.")
@options.seed("Seed of the random pairs.")
@options.data("Print JSON instead of text.", "one row per measured average")
def prove(d: int, seed: int, as_json: bool, as_csv: bool) -> None:
    """Why the variance of q.k is d, step by step, with all terms."""
    from rootdk.lab.proof import prove as proof_of

    proof = proof_of(d, seed)
    expected = [1.0, *([0.0] if d > 1 else []), float(d), 1.0]
    rows = [
        {"quantity": name, "theory": theory, "measured": mean, "standard_error": error}
        for (name, (mean, error)), theory in zip(proof.measured.items(), expected, strict=True)
    ]
    options.show(as_json, as_csv, proof.to_dict(), rows, lambda width: _lines(proof, rows, min(width, 80)))


def _lines(proof: "Proof", rows: Sequence[Mapping[str, Any]], width: int) -> Iterator[str]:
    """The argument, step by step."""
    d = proof.d
    yield f"Why the variance of q.k is {d} for d = {d}"
    yield ""
    steps = [
        f"The score is a sum of {_many(d, 'product')}, s = {_sum(proof)}.",
        "All components are independent, with mean 0 and variance 1. So E s = 0, and Var s = E s^2.",
        f"The square of the sum has {d} x {d} = {_many(proof.terms, 'term')}, q_i k_i q_j k_j:",
        f"Var s = {proof.ones:,} x 1 + {proof.zeros:,} x 0 = {proof.total:,}. Exact, for every distribution.",
        _counted(proof),
        f"Dividing s by c divides the variance by c^2. For variance 1: c = sqrt({d}) = {proof.divisor:.6g}.",
    ]
    for number, text in enumerate(steps, 1):
        yield from textwrap.wrap(text, width, initial_indent=f"  {number}. ", subsequent_indent="     ")
        if number == 3:
            yield from _terms(proof, width)
    yield ""
    yield f"Measured on {proof.pairs:,} random Gaussian pairs (seed {proof.seed}):"
    yield f"  {'':<24}{'theory':>8}  measured"
    for row in rows:
        yield f"  {row['quantity']:<24}{row['theory']:>8.6g}  {row['measured']:.4g} ± {row['standard_error']:.2g}"


def _terms(proof: "Proof", width: int) -> Iterator[str]:
    squares, crosses = _many(proof.ones, "square"), _many(proof.zeros, "cross term")
    if not proof.squares:  # too many to write out
        yield f"     {squares} q_i^2 k_i^2, average E q_i^2 E k_i^2 = 1"
        yield f"     {crosses}, average E q_i E q_j E k_i E k_j = 0"
        return
    for head, terms in ((f"{squares}, average 1", proof.squares), (f"{crosses}, average 0", proof.crosses)):
        # The spaces inside a term are kept together while lines are filled.
        text = ",  ".join(term.replace(" ", "\0") for term in terms)
        start = f"     {head}: "
        for line in textwrap.wrap(text, width, initial_indent=start, subsequent_indent=" " * 7, break_long_words=False):
            yield line.replace("\0", " ")


def _counted(proof: "Proof") -> str:
    if proof.exact is None:
        from rootdk.lab.proof import MOST_ENUMERATED

        return f"All outcomes for random signs are counted up to d = {MOST_ENUMERATED}; here there are too many."
    outcomes = _many(4**proof.d, "outcome") if proof.d <= 10 else f"4^{proof.d} outcomes"
    return f"Counted for random signs, all {outcomes}: Var s = {proof.exact}."


def _sum(proof: "Proof") -> str:
    if proof.squares:  # written out
        return " + ".join(f"q{i} k{i}" for i in range(1, proof.d + 1))
    return f"q1 k1 + q2 k2 + ... + q{proof.d} k{proof.d}"


def _many(count: int, word: str) -> str:
    return f"{count:,} {word}{'s' * (count != 1)}"
