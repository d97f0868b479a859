"""Claims 24 to 32: what people read about the scale and repeat."""

import math
from collections.abc import Callable, Iterator, Sequence

from scipy.optimize import brentq
from scipy.special import gammaln

from rootdk import theory
from rootdk.lab.training import Results, shipped
from rootdk.lab.training.results import tasks_of, widths

from .comparison import EQUAL, LIMITS, SHOWN, Comparison
from .learning import Gap
from .ledger import COMMON, LEDGER
from .moments import ENUMERABLE, Laws
from .sampler import Sampling
from .sharpness import KEYS

FEW, BILLION = 100, 10**9
_BASE = 512  # the number of keys at which the ln n rule is 1/sqrt(d_k)


@LEDGER.claim(
    24,
    title="dot products grow in expectation",
    statement="Dot products grow in expectation as d_k grows.",
    source=COMMON,
    method="The mean of q.k over every outcome, in fractions, for laws of a few values. Beside it the mean of |q.k| of "
    "normal q and k, which is E|q| E|N(0, 1)|, over sqrt(d_k).",
)
def grow_in_expectation(
    _sampling: Sampling, laws: Laws = ENUMERABLE, d_ks: Sequence[int] = (1, 8)
) -> Iterator[Comparison]:
    """laws map values to probabilities."""
    against = "the mean of q.k is 0 at every d_k; what grows is its size, E|q.k|, like sqrt(d_k)"
    for name, law in laws.items():
        small, large = (float(theory.exact_score_moments(d_k, law)["mean"]) for d_k in (min(d_ks), max(d_ks)))
        text = f"{name}: mean of q.k, d_k = {max(d_ks)} less {min(d_ks)}"
        yield Comparison(text, large - small, ">", 0.0, otherwise=against)
    for d_k in (16, 1024):
        length = math.sqrt(2.0) * math.exp(gammaln((d_k + 1) / 2) - gammaln(d_k / 2))
        size = length * math.sqrt(2 / math.pi) / math.sqrt(d_k)
        yield Comparison(f"normal, d_k = {d_k}: mean of |q.k| / sqrt(d_k)", size, role=SHOWN)


@LEDGER.claim(
    25,
    title="any constant would do",
    statement="Any constant divisor, such as 2 or 10, would do as well as sqrt(d_k).",
    source=f"{COMMON}, as a question",
    method=f"The standard deviation of the divided scores, and exactly the entropy of rows of {KEYS} keys, over d_k "
    "from 16 to 1024.",
)
def any_constant(
    _sampling: Sampling,
    divisors: Sequence[Callable[[int], float]] = (lambda _: 2.0, lambda _: 10.0),
    d_ks: Sequence[int] = (16, 64, 1024),
) -> Iterator[Comparison]:
    """divisors give what the scores of a d_k are divided by."""
    small, large = min(d_ks), max(d_ks)
    reason = "a quarter more or less counts as the same"
    against = (
        f"a constant fits one width: 8 is sqrt(d_k) at d_k = 64 and nowhere else; from d_k = {small} to {large} the "
        f"deviation of the scores grows {math.sqrt(large / small):g} times under any"
    )
    for divisor in divisors:
        first, last = (math.sqrt(d_k) / divisor(d_k) for d_k in (small, large))
        name = f"divided by {divisor(small):g}"
        text = f"{name}: deviation at d_k = {large} over that at {small}"
        yield Comparison(text, last / first, "=", 1.0, slack=EQUAL, otherwise=against, choice=reason)
        for d_k in d_ks:
            share = float(theory.attention_moments(KEYS, d_k, 1 / divisor(d_k)).entropy) / math.log(KEYS)
            yield Comparison(f"{name}, d_k = {d_k}: entropy share", share, role=SHOWN)


@LEDGER.claim(
    26,
    title="ln n keeps the entropy",
    statement="A factor of ln n keeps the entropy of attention as the number of keys grows.",
    source="Su Jianlin 2021, on the entropy invariance of attention (in Chinese; not checked at the source), "
    "https://kexue.fm/archives/8823",
    method=f"Exactly, for normal q and k of d_k = 64 under ln n/(ln {_BASE} sqrt(d_k)): the entropy at {FEW} keys and "
    "at a billion, in nats and as a share of ln n.",
)
def log_n_keeps_entropy(
    _sampling: Sampling,
    d_k: int = 64,
    growth: Callable[[float], float] = lambda keys: math.log(keys) / math.log(_BASE),
) -> Iterator[Comparison]:
    """growth is the factor beside 1/sqrt(d_k) at that many keys."""
    nats = {}
    for keys in (FEW, BILLION):
        nats[keys] = float(theory.attention_moments(keys, d_k, growth(keys) / math.sqrt(d_k)).entropy)
    shares = {keys: entropy / math.log(keys) for keys, entropy in nats.items()}
    ratios = {"entropy": nats[BILLION] / nats[FEW], "share of ln n": shares[BILLION] / shares[FEW]}
    best_kept = min(ratios, key=lambda name: abs(ratios[name] - 1))
    text = f"{best_kept}, the better kept of the two: at {BILLION:.0e} keys over that at {FEW}"
    reason = "a tenth more or less counts as the same"
    against = (
        f"it keeps neither: from {FEW} keys to a billion the entropy rises from {nats[FEW]:.1f} to {nats[BILLION]:.1f} "
        f"nats, and its share of ln n falls from {shares[FEW]:.2f} to {shares[BILLION]:.2f}; a constant share needs a "
        "deviation that grows like sqrt(ln n)"
    )
    yield Comparison(text, ratios[best_kept], "=", 1.0, slack=0.1, otherwise=against, choice=reason)
    for keys, entropy in nats.items():
        yield Comparison(f"{keys:.0e} keys: entropy, nats", entropy, role=SHOWN)
        yield Comparison(f"{keys:.0e} keys: entropy share", shares[keys], role=SHOWN)
    for keys in nats:
        root = math.sqrt(math.log(keys) / math.log(FEW) / d_k)
        share = float(theory.attention_moments(keys, d_k, root).entropy) / math.log(keys)
        yield Comparison(f"{keys:.0e} keys, deviation like sqrt(ln n): entropy share", share, role=SHOWN)


@LEDGER.claim(
    27,
    title="scale 1.0 saturates at d = 256",
    statement="A scale of 1.0 at a head width of 256 saturates the softmax.",
    source=f"{COMMON}: of configurations that set the scale to 1, such as that of Gemma 4",
    method=f"Exactly, for rows of {KEYS} keys: the share of rows that give one key more than 99 %, for q and k of "
    "variance 1, and after QK-norm with the gains that bring the variance of the logits to 1.",
)
def scale_of_one(
    _sampling: Sampling,
    d_k: int = 256,
    scale: float = 1.0,
    gain: Callable[[int], float] = lambda d_k: d_k**-0.25,
) -> Iterator[Comparison]:
    """gain is that of QK-norm, of every component of q and of k."""
    plain = float(theory.saturation(KEYS, scale * math.sqrt(d_k)))
    reason = "one row in ten counts as saturated"
    yield Comparison("q and k of variance 1: rows of one key", plain, ">", 0.1, choice=reason)
    gains = [gain(d_k)] * d_k
    variance, largest = map(float, theory.qk_norm_variance(scale, gains, gains))
    normed = float(theory.saturation(KEYS, math.sqrt(variance)))
    condition = (
        f"unless QK-norm comes before it: with gains of {gain(d_k):g} each the logits have variance {variance:g} and "
        f"none can pass {largest:.0f}; the gains are the scale there, and they are learned"
    )
    text = f"QK-norm with gains {gain(d_k):g}: rows of one key"
    yield Comparison(text, normed, ">", 0.1, role=LIMITS, otherwise=condition, choice=reason)


@LEDGER.claim(
    28,
    title="softmax must disperse",
    statement="As the number of keys grows, softmax must spread its weight over them: the largest weight goes to 0.",
    source="Velickovic et al. 2024, Softmax is not Enough (for Sharp Size Generalisation), lemma 2.1 (in our "
    "words, after a summary of the paper), https://arxiv.org/abs/2410.01104",
    method="The largest weight at a hundred keys and at a billion. Its premise, logits that stay between two bounds: "
    "in closed form for the worst case, one key at the upper bound and all others at the lower one, 10 apart. And "
    "exactly for normal logits, which have no bounds, with deviation 1, 22.6 (d_k = 512 without a scale), and one "
    "that grows as 0.43 ln n (SSMax).",
)
def must_disperse(
    _sampling: Sampling, deviation: float = 1.0, unscaled: float = 512**0.5, gap: float = 10.0
) -> Iterator[Comparison]:
    """deviation is that of normal logits, the same for any number of keys; gap is the distance of the bounds."""
    reason = "a weight of a thousandth counts as going to 0"
    largest = {
        f"logits within {gap:g} of each other": [_leader(keys, gap) for keys in (FEW, BILLION)],
        f"deviation {deviation:g}": [float(theory.top_probability(keys, deviation)) for keys in (FEW, BILLION)],
    }
    for name, (of_few, of_a_billion) in largest.items():
        yield Comparison(f"{name}: largest weight of {BILLION:.0e} keys", of_a_billion, "<", 1e-3, choice=reason)
        yield Comparison(f"{name}: largest weight of {FEW} keys", of_few, role=SHOWN)
    still = float(theory.top_probability(BILLION, unscaled))
    condition = (
        "at a fixed deviation sigma, and only past some e^(sigma^2/2) keys: without a scale at d_k = 512 the largest "
        f"weight of a billion keys is still {still:.2f}, and with a deviation that grows like ln n it does not fade"
    )
    text = f"deviation {unscaled:.3g}: largest weight of {BILLION:.0e} keys"
    yield Comparison(text, still, "<", 1e-3, role=LIMITS, otherwise=condition, choice=reason)
    for keys in (FEW, BILLION):
        grown = float(theory.top_probability(keys, 0.43 * math.log(keys)))
        yield Comparison(f"deviation 0.43 ln n: largest weight of {keys:.0e} keys", grown, role=SHOWN)


@LEDGER.claim(
    29,
    title="gradients explode without it",
    statement="Without the scale gradients explode as d_k grows.",
    source=COMMON,
    method=f"|do/dq|/|o| of {KEYS} keys as a root mean square over rows, exact, from d_k = 16 to 1024.",
)
def gradients_explode(
    _sampling: Sampling, scale: Callable[[int], float] = lambda _: 1.0, d_ks: Sequence[int] = (16, 1024)
) -> Iterator[Comparison]:
    """scale is the factor of the scores."""
    flows = {d_k: float(theory.relative_gradient(KEYS, d_k, scale(d_k))) for d_k in d_ks}
    small, large = min(d_ks), max(d_ks)
    growth = flows[large] / flows[small]
    text = f"|do/dq|/|o| at d_k = {large} over that at {small}"
    reason = "ten times over a width that grows 64 times is the least that may be called an explosion"
    against = (
        f"the root mean square grows {growth:.1f} times from d_k = {small} to {large}, like the fourth root of d_k, "
        "and in the typical row the gradient vanishes (claim 2)"
    )
    yield Comparison(text, growth, ">", 10.0, otherwise=against, choice=reason)
    for d_k, flow in flows.items():
        yield Comparison(f"d_k = {d_k}: |do/dq|/|o|", flow, role=SHOWN)


@LEDGER.claim(
    30,
    title="1/d_k harms performance",
    statement="Dividing by d_k in place of sqrt(d_k) harms performance.",
    source=COMMON,
    method="Small Transformers trained with either on three tasks under Adam, at the largest d_k: on recall the steps "
    "until 90% are right, on text and digits the lowest loss, each at the learning rate that a validation set chooses, "
    "on a test set, over seeds.",
)
def d_k_harms(
    _sampling: Sampling,
    results: Results | None = None,
    suspected: str = "dk",
    usual: str = "sqrt",
    tasks: Sequence[str] | None = None,
) -> Iterator[Comparison]:
    """suspected and usual are rules; by default, tasks are those that both were run on."""
    results = results or shipped()
    for task in tasks_of(results, suspected, usual, fewest=1) if tasks is None else tasks:
        d_k = widths(results, task, suspected, fewest=1)[-1]
        gap = Gap(results, task, suspected, usual)
        added = gap.at(d_k)
        quantity = "ln(steps with it / with the root)" if gap.steps else "loss that it adds"
        yield Comparison(
            f"{task}, d_k = {d_k}: {quantity}", added.value, ">", gap.clear, added.error, choice=gap.choice,
            otherwise=f"on {task} at d_k = {d_k} it takes {gap.words(added)}" if gap.steps else "",
            doubt=f"on {task} not clear: {gap.words(added)}",
        )  # fmt: skip


@LEDGER.claim(
    31,
    title="softmax fades, SSMax does not",
    statement="Of 1,000 keys one of which scores 3 and the others -2, softmax gives the one .129 and scalable softmax "
    "with s = 0.43 gives it .9996; as keys are added the first goes to 0 and the second stays.",
    source="Nakanishi 2025, Scalable-Softmax Is Superior for Attention, figure 1 (the scores and s are those of its "
    "caption; the two figures were read off the curve by others), https://arxiv.org/abs/2501.19399",
    method="The weight in closed form, e^(5b) / (e^(5b) + n - 1) with b = 1 and b = s ln n, at a thousand and at a "
    "billion keys. And s from which on it stays: 5 s > 1.",
)
def scalable_softmax(
    _sampling: Sampling, s: float = 0.43, gap: float = 5.0, figures: tuple[float, float] = (0.129, 0.9996)
) -> Iterator[Comparison]:
    """gap is by how much the one key leads."""
    at = {keys: (_leader(keys, gap), _leader(keys, gap * s * math.log(keys))) for keys in (1000, BILLION)}
    for name, weight, figure, digit in zip(("softmax", "SSMax"), at[1000], figures, (5e-4, 5e-5), strict=True):
        yield Comparison(f"1000 keys: weight of the one, {name}", weight, "=", figure, slack=digit)
    reason = "a weight of a thousandth counts as going to 0, and one of .99 as staying"
    yield Comparison("1e+09 keys: weight of the one, softmax", at[BILLION][0], "<", 1e-3, choice=reason)
    yield Comparison("1e+09 keys: weight of the one, SSMax", at[BILLION][1], ">", 0.99, choice=reason)
    lead = 0.8 / s
    less = _leader(BILLION, lead * s * math.log(BILLION))
    condition = (
        f"where the one leads by more than 1/s = {1 / s:.2f}: with a lead of {lead:.2f} its weight among a billion "
        f"keys is {less:.2g}, and goes to 0 as well"
    )
    text = f"a lead of {lead:.2f}, 1e+09 keys: weight of the one, SSMax"
    yield Comparison(text, less, ">", 0.99, role=LIMITS, otherwise=condition, choice=reason)


def _leader(keys: float, lead: float) -> float:
    """The weight of a key whose logit is larger by `lead` than those of all others, which are equal."""
    return 1 / (1 + (keys - 1) * math.exp(-lead))


@LEDGER.claim(
    32,
    title="gap counting sets the factor",
    statement="Which factor keeps attention from fading as keys are added, (ln n)^1/2, ln n or (ln n)^2, follows from "
    "how many keys lie how closely below the largest.",
    source="Hayase and Karakida 2026, A Unified Framework for Critical Scaling of Inverse Temperature in "
    "Self-Attention, abstract (the proofs were not checked), https://arxiv.org/abs/2605.12697",
    method="The factor at which the largest weight is 1/2, for three kinds of rows, from a thousand keys to 1e12: "
    "normal scores (exact quadrature), one key ahead of all others by 1, and by 1/ln n (closed form). The power of "
    "ln n that it grows with must be that of the claim within a tenth, a slack that was set before the powers were "
    "computed; a looser one, such as the nearest of the three powers, would let all pass. Beside it max over g of "
    "ln N(g)/g, where N(g) keys lie within g of the largest.",
    elsewhere="the limit of infinitely many keys, which 1e12 keys are far from",
)
def gap_counting(
    _sampling: Sampling, keys: tuple[float, float] = (1e3, 1e12), powers: tuple[float, ...] = (0.5, 1.0, 2.0)
) -> Iterator[Comparison]:
    """keys are two numbers of them, powers the exponents that the claim names, in the order of the rows."""
    few, many = keys
    factors: tuple[tuple[str, Callable[[float], float], Callable[[float], float]], ...] = (
        ("normal scores", _normal_factor, lambda n: math.sqrt(2 * math.log(n))),
        ("one ahead by 1", lambda n: math.log(n - 1), math.log),
        ("one ahead by 1/ln n", lambda n: math.log(n) * math.log(n - 1), lambda n: math.log(n) ** 2),
    )
    for (name, factor, counted), power in zip(factors, powers, strict=True):
        near, later = (_power_of_log(factor, *ends) for ends in ((few, many), (many, 1e3 * many)))
        against = (
            f"from {few:.0e} to {many:.0e} keys the power for {name} is {near:.2f}, and from there to a thousand "
            f"times as many {later:.2f}, not {power:g} within a tenth"
        )
        reason = "a tenth of the power off is still that power: set before the powers were computed"
        text = f"{name}: power of ln n"
        yield Comparison(text, near, "=", power, slack=0.1 * power, otherwise=against, choice=reason)
        yield Comparison(f"{name}: the same, from {many:.0e} keys to {1e3 * many:.0e}", later, role=SHOWN)
        yield Comparison(f"{name}, {many:.0e} keys: factor for a weight of 1/2", factor(many), role=SHOWN)
        # Of normal scores some e^(g m - g^2/2) lie within g of the largest, m = sqrt(2 ln n): ln N(g)/g starts at m.
        yield Comparison(f"{name}, {many:.0e} keys: by gap counting", counted(many), role=SHOWN)


def _power_of_log(factor: Callable[[float], float], few: float, many: float) -> float:
    return math.log(factor(many) / factor(few)) / math.log(math.log(many) / math.log(few))


def _normal_factor(keys: float) -> float:
    """The deviation of normal logits at which the largest weight is 1/2 on average."""
    return float(brentq(lambda deviation: float(theory.top_probability(int(keys), deviation)) - 0.5, 0.5, 50.0))
