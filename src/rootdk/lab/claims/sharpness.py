"""Claims 9, 11 and 12: how the scale spreads the weight over the keys, or gathers it."""

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from rootdk.theory import attention_moments, relative_gradient, rule_variance

from .draw import over_groups, reading
from .evidence import LIMITS, SHOWN, Evidence
from .ledger import LATER, Setting, claim

KEYS = 512
_MOST = "nearly all the weight is 99 %, and that it takes it means in most rows"
_EVEN = "weights that leave 1 % of ln n at most are near 1/n each"
Scale = Callable[[int], float]


def unscaled(_d_k: int) -> float:
    """The factor 1."""
    return 1.0


def root(d_k: int) -> float:
    """The factor 1/sqrt(d_k)."""
    return 1 / math.sqrt(d_k)


@claim(
    9,
    title="hardly matters at small d_k",
    statement="At d_k = 4 the query 1, 0, 1, 0 and the key 0, 1, 1, 1 score 1, and 0.5 after the scale: for small d_k "
    "the scale hardly matters.",
    source=LATER,
    method="The product itself. How much of the entropy of the weights is lost without the scale, as a share of ln n "
    f"for {KEYS} keys: exact averages over normal q and k.",
)
def small_d_k(
    _setting: Setting,
    query: Sequence[float] = (1, 0, 1, 0),
    key: Sequence[float] = (0, 1, 1, 1),
    small: int = 4,
    larger: Sequence[int] = (64, 512),
    without: Scale = unscaled,
    hardly: float = 0.05,
) -> Iterator[Evidence]:
    """hardly is how much of ln n may be lost without anybody noticing."""
    score = float(np.dot(query, key))
    yield Evidence("q.k", score, "=", 1.0)
    yield Evidence("q.k / sqrt(d_k)", score / math.sqrt(len(query)), "=", 0.5)
    d_ks = np.array([small, *larger])
    entropy = [
        attention_moments(KEYS, d_ks, np.array([scale(d_k) for d_k in d_ks.tolist()])).entropy
        for scale in (root, without)
    ]
    lost = ((entropy[0] - entropy[1]) / math.log(KEYS)).tolist()
    for d_k, share in zip(larger, lost[1:], strict=True):
        clearly = "less than half of what is lost at the larger d_k is clearly less"
        yield Evidence(f"lost at d_k = {small}, under half that of {d_k}", lost[0], "<", share / 2, choice=clearly)
    said = f"in comparison only: at d_k = {small} the entropy is still {lost[0]:.0%} of ln n lower without the scale, "
    said += " and ".join(f"{share:.0%} at {d_k}" for d_k, share in zip(larger, lost[1:], strict=True))
    little = "a twentieth of ln n, 0.31 nats of 512 keys, is what hardly may mean"
    yield Evidence(f"lost at d_k = {small}", lost[0], "<", hardly, role=LIMITS, otherwise=said, choice=little)


@claim(
    11,
    title="one word takes all the weight",
    statement="Without the scale one word takes nearly all the weight.",
    source=LATER,
    method="Share of measured rows in which one key has more than 99 %, and the median effective number of keys, for "
    "normal q and k without a scale.",
)
def one_key_takes_all(
    setting: Setting,
    scale: Scale = unscaled,
    keys: Sequence[int] = (64, 512, 4096),
    d_ks: Sequence[int] = (64, 256, 512, 1024),
    usual: int = 64,
) -> Iterator[Evidence]:
    """usual is the d_k at which the claim is illustrated; the largest of d_ks decides whether it is ever true."""
    middle, largest = keys[len(keys) // 2], max(d_ks)
    taken = {d_k: _taken(setting, d_k, middle, scale(d_k)) for d_k in d_ks}
    for d_k in sorted({*d_ks} - {usual, largest}):
        share, error = taken[d_k]
        yield Evidence(f"rows with p > .99, d_k = {d_k}, {middle} keys", share, error=error, role=SHOWN)
    text, (share, error) = f"rows with p > .99, d_k = {largest}, {middle} keys", taken[largest]
    yield Evidence(text, share, ">", 0.5, error=error, choice=_MOST)
    effective, error = over_groups(reading(setting, largest, middle, scale(largest)).effective_keys, np.median)
    fewer = "two keys that share a row evenly make 2; one that takes nearly all makes less"
    yield Evidence(f"effective keys, d_k = {largest}, {middle} keys", effective, "<", 2.0, error=error, choice=fewer)
    most = [d_k for d_k, (share, error) in sorted(taken.items()) if Evidence("", share, ">", 0.5, error).agrees]
    said = f"in most rows for large d_k only: with {middle} keys in {taken[usual][0]:.0%} of rows at d_k = {usual}"
    said += f", clearly in more than half at d_k = {most[0]}" if most else ", nowhere clearly in more than half"
    for n in keys:
        share, error = taken[usual] if n == middle else _taken(setting, usual, n, scale(usual))
        text = f"rows with p > .99, d_k = {usual}, {n} keys"
        yield Evidence(text, share, ">", 0.5, error=error, role=LIMITS, otherwise=said, choice=_MOST)
    effective, error = over_groups(reading(setting, usual, middle, scale(usual)).effective_keys, np.median)
    yield Evidence(f"effective keys, d_k = {usual}, {middle} keys", effective, error=error, role=SHOWN)


def _taken(setting: Setting, d_k: int, keys: int, scale: float) -> tuple[float, float]:
    return over_groups(reading(setting, d_k, keys, scale).saturated(0.99))


@claim(
    12,
    title="1/d_k makes weights alike",
    statement="Dividing by d_k itself gives scores of variance 1/d_k and weights near 1/n each, less able to tell keys "
    "apart.",
    source=LATER,
    method=f"The rule's variance; entropy and largest weight of measured rows of {KEYS} keys; |do/dq|/|o|, exact, "
    "against the scale 1/sqrt(d_k). Once more with q and k grown by d_k^(1/4) each.",
)
def divided_by_d_k(
    setting: Setting,
    rule: str = "dk",
    d_ks: Sequence[int] = (64, 512),
    growth: Scale = lambda d_k: d_k**0.25,
) -> Iterator[Evidence]:
    """growth is by how much training may have scaled q and k, each."""
    for d_k in d_ks:
        yield Evidence(f"d_k = {d_k}: variance times d_k", float(rule_variance(rule, d_k)) * d_k, "=", 1.0, slack=1e-15)
        found = reading(setting, d_k, KEYS, rule)
        ratio, error = over_groups(found.entropy_ratio)
        yield Evidence(f"d_k = {d_k}: entropy / ln n", ratio, ">", 0.99, error=error, choice=_EVEN)
        top, error = over_groups(found.top_probability * KEYS)
        near = "twice 1/n at most is near 1/n; with 1/sqrt(d_k) the largest weight is several times that"
        yield Evidence(f"d_k = {d_k}: largest weight times n", top, "<", 2.0, error=error, choice=near)
        gradient = float(relative_gradient(KEYS, d_k, rule_factor(rule, d_k)) / relative_gradient(KEYS, d_k, root(d_k)))
        less = "a quarter of what passes with 1/sqrt(d_k) is clearly less able"
        yield Evidence(f"d_k = {d_k}: |do/dq|/|o| against sqrt rule", gradient, "<", 0.25, choice=less)
    grown = {
        d_k: over_groups(reading(setting, d_k, KEYS, rule_factor(rule, d_k) * growth(d_k) ** 2).entropy_ratio)
        for d_k in d_ks
    }
    said = "while q and k have variance 1, as at the start: training can grow them, and "
    said += " and ".join(f"{growth(d_k):.3g} times as large at d_k = {d_k}" for d_k in d_ks)
    said += f" they leave an entropy of {', '.join(f'{ratio:.2f}' for ratio, _ in grown.values())} ln n"
    for d_k, (ratio, error) in grown.items():
        text = f"d_k = {d_k}, grown q and k: entropy / ln n"
        yield Evidence(text, ratio, ">", 0.99, error=error, role=LIMITS, otherwise=said, choice=_EVEN)


def rule_factor(rule: str, d_k: int) -> float:
    """What a rule multiplies scores by, from their variance under it."""
    return math.sqrt(float(rule_variance(rule, d_k)) / d_k)


CLAIMS = (small_d_k, one_key_takes_all, divided_by_d_k)
