"""The first look: one set of random queries and keys, several scales, and what each does to the softmax.

The queries and keys of one d_k are the same under every rule, so that whatever differs between two rows of the table
comes from the scale alone. What it leaves out: trained weights, whose scores need not look like random ones.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

from rootdk.api import measure

RULES = ("none", "sqrt", "dk")


@dataclass(frozen=True, slots=True)
class Look:
    """What one rule did at one d_k, over all query rows.

    score_variance: mean over rows of the variance of the scores inside a row
    entropy_ratio: mean of H / ln n; 1 is uniform, 0 is one key
    effective_keys: median of 1 / sum p^2
    saturated: share of rows whose largest weight is above 0.99
    jacobian_trace: median of 1 - sum p^2, the trace of the softmax's derivative; 0 means that scores cannot move the
    weights
    """

    d_k: int
    rule: str
    keys: int
    rows: int
    score_variance: float
    entropy_ratio: float
    effective_keys: float
    saturated: float
    jacobian_trace: float

    def to_dict(self) -> dict[str, int | str | float]:
        """Plain numbers and names, for JSON."""
        return asdict(self)


def look(d_ks: Sequence[int], rules: Sequence[str], keys: int, rows: int, seed: int) -> list[Look]:
    """Measure every rule on the same random q and k, one row of the result per (d_k, rule)."""
    looks = []
    for d_k in d_ks:
        # A generator per d_k: the numbers of one d_k do not depend on which others were asked for.
        rng = np.random.default_rng([seed, d_k])
        query = rng.standard_normal((1, rows, d_k), dtype=np.float32)
        key = rng.standard_normal((1, keys, d_k), dtype=np.float32)
        # The reading depends on q and k only, so one column of values is enough.
        value = np.ones((1, keys, 1), dtype=np.float32)
        for rule in rules:
            _, reading = measure(query, key, value, scale=rule)
            looks.append(
                Look(
                    d_k=d_k,
                    rule=rule,
                    keys=keys,
                    rows=rows,
                    score_variance=float(np.mean(reading.variance)),
                    entropy_ratio=float(np.mean(reading.entropy_ratio)),
                    effective_keys=float(np.median(reading.effective_keys)),
                    saturated=float(np.mean(reading.saturated(0.99))),
                    jacobian_trace=float(np.median(reading.jacobian_trace)),
                )
            )
    return looks


def meaning(looks: Sequence[Look]) -> str:
    """Say in one line what the numbers show; every word is chosen by them, rule by rule."""
    by_rule: dict[str, list[Look]] = {}
    for one in sorted(looks, key=lambda one: one.d_k):
        by_rule.setdefault(one.rule, []).append(one)
    return " ".join(f"{rule}: {_sentence(of_rule)}." for rule, of_rule in by_rule.items())


def _sentence(looks: Sequence[Look]) -> str:
    """Judge one rule at its largest d_k, and say how it came there from the smallest.

    The cuts are where a person would use the word. Uniform: above 0.99 of ln n. Frozen: half of the rows have a trace
    below 0.1, so one key has about 95 % of their weight. Sharp: below 0.5, the trace of two equal keys.
    """
    last = looks[-1]
    variance = f"score variance {_course([one.score_variance for one in looks])}"
    if last.entropy_ratio > 0.99:
        return f"{variance}, weights all but uniform (entropy/ln n {last.entropy_ratio:.3f}), keys hardly told apart"
    if last.jacobian_trace < 0.5:
        few = (
            "the weights hardly answer to the scores"
            if last.jacobian_trace < 0.1
            else "one or two keys take the weight"
        )
        return (
            f"{variance}, {last.saturated:.0%} of rows give one key over 99 %, "
            f"median trace {_course([one.jacobian_trace for one in looks])}, so in half of the rows {few}"
        )
    answer = "every row still answers to its scores" if last.saturated == 0 else f"{last.saturated:.1%} of rows frozen"
    return f"{variance}, weight spread over about {_short(last.effective_keys)} keys, {answer}"


def _course(values: Sequence[float]) -> str:
    """'1 at every d_k', or where it starts and ends."""
    first, last = _short(values[0]), _short(values[-1])
    if len(values) == 1:
        return last
    return f"{last} at every d_k" if all(_short(value) == last for value in values) else f"{first} -> {last}"


def _short(value: float) -> str:
    """Two digits that count, without an exponent where a person would write none."""
    return f"{float(f'{value:.2g}'):g}"
