"""predict(): what measure() would show of attention with random q and k, computed and not measured."""

from typing import Any

import numpy as np

from .errors import ArgumentError
from .summary import HeadSummary


def predict(d_k: Any, keys: Any, rule: Any = "sqrt", *, rows: Any = None, position: Any = None) -> HeadSummary:
    """The fields of `Reading.by_head()` for standard normal q and k, one entry per setting.

    d_k       components of q and k, from 1 to 1e6
    keys      keys that each row sees, from 2 to 1e12; d_k and keys broadcast, and the entries come in their C order
    rule      name of a rule, a rule from rootdk.scaling, or a number up to 1e6, the scale itself
    rows      over how many rows the extremes are taken; as many as keys unless given
    position  where the query stands, for rules that ask; the last one, keys - 1, unless given

    Exact, by quadrature: every mean but that of |J|_F, saturated, median_std and median_variance; to 1e-8, and
    saturated and mean_top_probability to 1e-6. max_logit and min_logit are expected extremes, exact if every row has
    keys of its own; of rows that share their keys the extremes lie a little lower.

    By 8192 rows that stand for the law of all (`theory.row_law`; nothing is drawn anew): the other medians, with
    about half a percent of the rows at most on the wrong side, and mean_jacobian_norm, to 0.4 % (6 % at a billion keys
    with d_k = 1, where very few rows make it). min_log_sum_exp, the expected lowest, by the saddle point method for
    rows with keys of their own, to a few percent of the spread of ln Z or better.

    >>> sorted(name for name, numbers in vars(predict(64, 1024)).items() if np.isnan(numbers).any())
    []
    >>> heads = predict([64, 512], 1024, "none")
    >>> heads.mean_variance.round(1).tolist(), heads.saturated.round(3).tolist()
    ([63.9, 511.5], [0.097, 0.49])
    >>> predict(64, 1024).mean_entropy_ratio.round(3).tolist()
    [0.928]
    """
    # Here and not above: SciPy takes longer to load than all the rest.
    from .theory._arguments import broadcast, whole
    from .theory.prediction import fields

    sizes, counts = broadcast(d_k=whole("d_k", d_k, 1, 1e6), keys=whole("keys", keys, 2, 1e12))
    length = whole("rows", counts if rows is None else rows, 1, 1e12)
    place = whole("position", counts - 1 if position is None else position, 0, 1e15)
    sizes, counts, length, place = broadcast(d_k=sizes, keys=counts, rows=length, position=place)
    found = [
        fields(n, d, _factor(rule, int(d), int(n), int(at)), r)
        for d, n, r, at in zip(sizes.flat, counts.flat, length.flat, place.flat, strict=True)
    ]
    whole_numbers = ("rows", "hidden_rows", "non_finite_rows")
    return HeadSummary(
        **{
            name: np.array([one[name] for one in found], np.int64 if name in whole_numbers else np.float64)
            for name in HeadSummary.__dataclass_fields__
        }
    )


def _factor(given: Any, d_k: int, keys: int, position: int) -> float:
    from .theory._arguments import numbers
    from .theory.effects import rule_of

    if not isinstance(given, str) and np.ndim(given) == 0 and np.asarray(given).dtype.kind in "fiu":
        return float(numbers("rule", given, least=-1e6, most=1e6))
    chosen = rule_of(given)
    if chosen.unit_length:
        raise ArgumentError(
            f"rule: must be one for q and k as they are, got {chosen.name!r}, which wants them of length 1: "
            "such scores are not Gaussian"
        )
    known = {"keys": keys, "position": position}
    return float(chosen.factor(d_k, *(known[name] if name in chosen.varies else None for name in known)))
