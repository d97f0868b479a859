"""Claims 2, 15 and 19: which gradient, and which statistic of it.

The mean of a norm and the median of a trace tell opposite stories about an unscaled softmax: most rows answer to
nothing, and the few that hang between two keys answer very much.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from rootdk.theory import attention_moments, relative_gradient, softmax_moments

from .draw import over_groups, reading
from .evidence import LIMITS, SHOWN, Evidence
from .ledger import LATER, PAPER, Setting, claim
from .sharpness import KEYS, Scale, root, unscaled
from .weights import live_entries

Gradient = Callable[[Any, Any, Any], Any]
_NEAR = 0.02
_NEAR_IS = "near is 0.02 in the exponent, a factor of 1.15 at d_k = 1024, where the rules that people use differ by 32"


@claim(
    2,
    title="unscaled gradients are tiny",
    statement="For large d_k dot products grow large and push the softmax to where its gradients are extremely small.",
    source=f"{PAPER}, section 3.2.1, as a suspicion and without an experiment",
    method=f"Rows of {KEYS} keys, normal q and k, no scale: variance of the scores, trace of the softmax Jacobian J, "
    "measured; |J| and |do/dq|/|o| as root mean squares over rows, exact.",
)
def gradients_vanish(
    setting: Setting, scale: Scale = unscaled, d_ks: Sequence[int] = (16, 64, 256, 1024)
) -> Iterator[Evidence]:
    """scale is what the claim is about: no scale at all."""
    median: dict[int, float] = {}
    for d_k in d_ks:
        found = reading(setting, d_k, KEYS, scale(d_k))
        variance, error = over_groups(found.variance * (KEYS / (KEYS - 1)) / d_k)
        yield Evidence(f"d_k = {d_k}: score variance / d_k", variance, "=", 1.0, error)
        median[d_k], error = over_groups(found.jacobian_trace, np.median)
        yield Evidence(f"d_k = {d_k}: median tr J", median[d_k], error=error, role=SHOWN)
    largest, smallest = max(d_ks), min(d_ks)
    found = reading(setting, largest, KEYS, scale(largest))
    trace, error = over_groups(found.jacobian_trace, np.median)
    text = f"median tr J, d_k = {largest} / d_k = {smallest}"
    small = "a loss of ten times in the typical row is taken for extremely small; with the scale nothing is lost"
    yield Evidence(text, trace / median[smallest], "<", 0.1, error / median[smallest], choice=small)
    # With 1/sqrt(d_k) the trace is 1 - e/n and not one row is below.
    dead, error = over_groups(found.jacobian_trace < 0.01)
    many = "one row in three without an answer is more than an accident; with the scale there is none"
    yield Evidence(f"d_k = {largest}: rows with tr J < .01", dead, ">", 1 / 3, error, choice=many)
    scales = np.array([[scale(d_k), root(d_k)] for d_k in d_ks])
    sizes = np.array(d_ks)[:, None]
    norm = np.sqrt(attention_moments(KEYS, sizes, scales).jacobian_norm_squared)
    passed = relative_gradient(KEYS, sizes, scales)
    ratios = {name: float(both[-1, 0] / both[-1, 1]) for name, both in (("|J|", norm), ("|do/dq|/|o|", passed))}
    said = f"if gradient means the trace of J in a typical (median) row; at d_k = {d_ks[-1]} the root mean square over "
    said += "rows of " + " and of ".join(f"{name} is {ratio:.1f} times" for name, ratio in ratios.items())
    said += " what it is with the scale"
    for name, ratio in ratios.items():
        text = f"d_k {d_ks[-1]}: {name}, unscaled / scaled"
        smaller = "to be smaller at all than with the scale is the least that the claim asks"
        yield Evidence(text, ratio, "<", 1.0, role=LIMITS, otherwise=said, choice=smaller)


@claim(
    15,
    title="most derivatives are tiny",
    statement="Where the weights are skewed most derivatives are tiny.",
    source=LATER,
    method=f"Rows of {KEYS} keys, normal q and k, d_k = 1024, no scale: trace of the Jacobian J, share of its entries "
    "from 1/1000 on, measured. |J| along the spread sigma of normal scores, exact.",
)
def skewed_rows(
    setting: Setting,
    scale: Scale = unscaled,
    d_k: int = 1024,
    spreads: Sequence[float] = (0.25, 0.5, 1, 2, 3, 4, 5, 6, 8, 16, 32, 64),
) -> Iterator[Evidence]:
    """spreads are values of sigma in rising order."""
    trace, error = over_groups(reading(setting, d_k, KEYS, scale(d_k)).jacobian_trace, np.median)
    tiny = "of the trace of an even row, which is next to 1, a tenth"
    yield Evidence("median tr J", trace, "<", 0.1, error, choice=tiny)
    skewed, even = (live_entries(setting, d_k, KEYS, one) for one in (scale(d_k), root(d_k)))
    most = "most is 99 of 100 entries; tiny is below 1/1000, where an entry can reach 1/4"
    yield Evidence("entries of J from .001 on", skewed[0], "<", 0.01, skewed[1], choice=most)
    yield Evidence("the same with 1/sqrt(d_k)", even[0], error=even[1], role=SHOWN)
    norm = np.sqrt(softmax_moments(KEYS, np.array(spreads)).jacobian_norm_squared)
    top = int(norm.argmax())
    for place in sorted({0, top, len(spreads) - 1}):
        yield Evidence(f"|J| at sigma = {spreads[place]:g}", float(norm[place]), role=SHOWN)
    yield Evidence(
        "steps of sigma at which |J| grows",
        float((np.diff(norm) > 0).sum()),
        "=",
        0.0,
        role=LIMITS,
        otherwise=f"for the typical row and by count: the norm |J| (root mean square) grows with the skew at first, "
        f"from {norm[0]:.3f} at sigma = {spreads[0]:g} to {norm[top]:.3f} at {spreads[top]:g}",
    )


@claim(
    19,
    title="derived and not tuned",
    statement="The scale 1/sqrt(d_k) is derived and not tuned.",
    source=LATER,
    method="Of all scales d_k^-a the one that best keeps |do/dq|/|o| at 1 for d_k from 16 to 1024 is searched, by "
    "least squares of its logarithm: exact, for normal q, k and v. Where does a land?",
)
def derived(
    _setting: Setting,
    exponent: float = 0.5,
    gradient: Gradient = relative_gradient,
    d_ks: Sequence[int] = (16, 128, 1024),
    many: Sequence[int] = (512, 65536),
    few: Sequence[int] = (16,),
) -> Iterator[Evidence]:
    """exponent is the one that was derived; many and few are numbers of keys."""
    keys = (*many, *few)
    for number, (best, flattest, level) in zip(keys, _landing(gradient, d_ks, keys), strict=True):
        yield Evidence(
            f"{number} keys: best a",
            best,
            "=",
            exponent,
            slack=_NEAR,
            choice=_NEAR_IS,
            role="decides" if number in many else LIMITS,
            otherwise=f"with many keys: with {number} the best a is {best:.3f}, because |do/dq|/|o| under 1/sqrt(d_k) "
            f"is {level:.2f} there; the a that keeps it equal at every d_k is {flattest:.3f}",
        )
        yield Evidence(f"{number} keys: a that keeps it equal", flattest, "=", exponent, slack=_NEAR, choice=_NEAR_IS)
        yield Evidence(f"{number} keys: |do/dq|/|o| at a = 1/2", level, role=SHOWN)


def _landing(gradient: Gradient, d_ks: Sequence[int], keys: Sequence[int]) -> list[tuple[float, float, float]]:
    """For each number of keys: the best a, the a at which ln d_k explains nothing, and the level at 1/sqrt(d_k)."""
    sizes, counts = np.array(d_ks, np.float64), np.array(keys)[:, None, None]
    coarse = np.linspace(0, 1, 5)
    logs = np.log(gradient(counts, sizes, sizes ** -coarse[:, None]))
    found = []
    for number, table in zip(keys, logs, strict=True):
        near = coarse[int((table**2).sum(axis=1).argmin())]
        fine = near + np.linspace(-0.125, 0.125, 5)
        values = np.log(gradient(number, sizes, sizes ** -fine[:, None]))
        # Between the five points every d_k has its own smooth curve; a polynomial of degree 4 goes through them.
        a = np.linspace(fine[0], fine[-1], 2001)
        curves = np.stack([np.polyval(np.polyfit(fine - near, column, 4), a - near) for column in values.T])
        slope = np.polyfit(np.log(sizes), curves, 1)[0]
        level = float(np.exp(np.mean(np.log(gradient(number, sizes, sizes**-0.5)))))
        found.append((float(a[(curves**2).sum(axis=0).argmin()]), float(a[np.abs(slope).argmin()]), level))
    return found


CLAIMS = (gradients_vanish, skewed_rows, derived)
