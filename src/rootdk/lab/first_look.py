"""The first look: one set of random queries and keys, several scales, and what each does to the softmax.

The queries and keys of one d_k are the same under every rule, so that whatever differs between two rows of the table
comes from the scale alone. What it leaves out: trained weights, whose scores need not look like random ones.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

from rootdk.attention import measure

# The names that are shown for the usual rules.
RULE_WORDS = {"none": "none", "sqrt": "1/√d_k", "dk": "1/d_k"}
RULES = tuple(RULE_WORDS)


def typed(text: str) -> str:
    """As one types it, for a terminal.

    >>> typed("dividing q·k by √d_k")
    'dividing q.k by sqrt(d_k)'
    """
    return text.replace("√d_k", "sqrt(d_k)").replace("·", ".")


def rule_label(name: str) -> str:
    """A rule in a terminal: a usual one by its formula, any other by its name.

    >>> rule_label("dk"), rule_label("llama4")
    ('1/d_k', 'llama4')
    """
    return typed(RULE_WORDS.get(name, name))


@dataclass(frozen=True, slots=True)
class Look:
    """What one rule did at one d_k, over all query rows.

    score_variance: mean over rows of the variance of the scores inside a row
    entropy_ratio: mean of the entropy share, H / ln n; 1 is uniform, 0 is one key
    effective_keys: median of 1 / sum p^2
    saturated: share of rows whose largest weight is above 0.99
    jacobian_trace: mean of 1 - sum p^2, the trace of the softmax's derivative; 0 means that scores cannot move the
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

    def shown(self) -> dict[str, str]:
        """The measured numbers with the digits that a person is shown, in the order of the table's columns."""
        return {
            "score_variance": f"{self.score_variance:.3g}",
            "entropy_ratio": f"{self.entropy_ratio:.3f}",
            "effective_keys": f"{self.effective_keys:.1f}",
            "saturated": f"{self.saturated:.1%}",
            "jacobian_trace": f"{self.jacobian_trace:.3f}",
        }


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
                    jacobian_trace=float(np.mean(reading.jacobian_trace)),
                )
            )
    return looks


def meaning(looks: Sequence[Look]) -> str:
    """Say in one sentence where the weight goes at the largest d_k; every number in it is one of the table's.

    The limits are where a person would use the word. All equally: above 0.99 of ln n. One key: half of the rows have
    fewer than 1.1 effective keys, so about 95 % of their weight is on one. Few keys: fewer than two.
    """
    largest = max(look.d_k for look in looks)
    groups: dict[str, list[Look]] = {}
    for look in {look.rule: look for look in looks if look.d_k == largest}.values():
        if look.entropy_ratio > 0.99:
            where_it_goes = "all keys share it nearly equally"
        elif look.effective_keys < 1.1:
            where_it_goes = "one key has over 99 % of it in {saturated} of rows"
        elif look.effective_keys < 2:
            where_it_goes = "only {effective_keys} keys share it"
        else:
            where_it_goes = "{effective_keys} keys share it"
        groups.setdefault(where_it_goes, []).append(look)
    clauses = []
    for where_it_goes, group in groups.items():
        spans = {name: _span(group, name) for name in ("saturated", "effective_keys")}
        clauses.append(f"{where_it_goes.format(**spans)} ({', '.join(rule_label(look.rule) for look in group)})")
    return f"Where the weight goes at d_k = {largest}: {'; '.join(clauses)}."


def _span(looks: Sequence[Look], name: str) -> str:
    """The number as the table shows it, or the smallest and the largest of several."""
    ordered = sorted(looks, key=lambda look: float(getattr(look, name)))
    least, greatest = (look.shown()[name] for look in (ordered[0], ordered[-1]))
    return least if least == greatest else f"{least}-{greatest}"
