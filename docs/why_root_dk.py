"""Writes docs/why-root-dk.md and its two drawings. Every number in them is computed here: `python docs/why_root_dk.py`.

A test holds the files to what this prints.
"""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from rootdk import predict, scaling, theory
from rootdk.lab.answer import answer
from rootdk.lab.checks.premises import trained_models
from rootdk.lab.formulas import WORDS
from rootdk.lab.proof import prove

KEYS = 512
# A bar would end the cell of a table.
NORM, FLOW = "&#124;J&#124;", "&#124;do/dq&#124;/&#124;o&#124;"
TARGET = Path(__file__).with_name("why-root-dk.md")
NARROW, WIDE = (5.0, 5.125, 5.25, 5.375, 5.5), (3.0, 4.0, 5.0, 6.0, 7.0)  # heights in feet
WIDTHS = (4, 64, 512)
RULES = (("1", lambda d: 1.0), ("1/sqrt(d_k)", lambda d: d**-0.5), ("1/d_k", lambda d: 1 / d))


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *rows))


def percent(x: float) -> str:
    """Whole percents, one digit below one, and 0 for what nobody will see."""
    return f"{100 * x:.0f} %" if x >= 0.005 or x < 5e-6 else f"{100 * x:.1g} %"


def numbers(values: Sequence[float], digits: int = 3) -> str:
    """A list of numbers, without zeros at the end."""
    return ", ".join(f"{value:.{digits}f}".rstrip("0").rstrip(".") for value in values)


def variances() -> str:
    """What variance is, step by step."""
    rows = []
    for values in (NARROW, WIDE):
        mean = np.mean(values)
        off = np.subtract(values, mean)
        rows.append([numbers(values), f"{mean:g}", numbers(off), numbers(off**2), f"{np.var(values):.3g}"])
    return table(["heights in feet", "mean", "distances from the mean", "their squares", "variance"], rows)


def walk_size(steps: int) -> float:
    """E|sum| of so many independent signs: every number of heads weighed by its chance."""
    return sum(abs(2 * heads - steps) * math.comb(steps, heads) / 2**steps for heads in range(steps + 1))


def walks() -> str:
    rows = [[str(t), "0", f"{walk_size(t):.2f}", f"{math.sqrt(t):.2f}", str(t)] for t in WIDTHS]
    return table(["terms", "mean of the sum", "typical size, E&#124;sum&#124;", "sqrt(terms)", "variance"], rows)


def divisors() -> str:
    rows = []
    for name, divisor in (("2", 2.0), ("8", 8.0), ("10", 10.0), ("sqrt(d_k)", None)):
        deviations = [math.sqrt(d) / (divisor or math.sqrt(d)) for d in WIDTHS]
        rows.append([name, *(f"{deviation:.3g}" for deviation in deviations)])
    return table(["divided by", *(f"standard deviation at d_k = {d}" for d in WIDTHS)], rows)


def softmaxes() -> str:
    """The worked examples, with every number on the way."""
    rows = []
    for scores in ((50.0, 10.0, 5.0), (5.0, 1.0, 0.5), (14.0, 10.0, 12.0), (1.75, 1.25, 1.5)):
        powers = np.exp(scores)
        shown = [f"{power:,.0f}" if power > 1e4 else f"{power:.3f}" for power in powers]
        total = f"{powers.sum():,.0f}" if powers.sum() > 1e4 else f"{powers.sum():.3f}"
        if powers[0] > 1e12:
            shown[0], total = f"{powers[0]:.3e}", f"{powers.sum():.3e}"
        rows.append([numbers(scores, 2), ", ".join(shown), total, ", ".join(f"{p / powers.sum():.3f}" for p in powers)])
    return table(["scores", "e to the power of each", "their sum", "weights"], rows)


def exponentials() -> str:
    """Powers of e, with commas between thousands."""
    return ", ".join(f"e^{x} = {math.exp(x):,.{digits}f}" for x, digits in ((1, 3), (5, 1), (10, 0), (20, 0)))


def dot_product(query: Sequence[int], key: Sequence[int]) -> str:
    """Written out, and scaled."""
    products = [q * k for q, k in zip(query, key, strict=True)]
    root = math.sqrt(len(query))
    return (
        f"q = {list(query)} and k = {list(key)} have q.k = {' + '.join(map(str, products))} = {sum(products)}, and "
        f"divided by sqrt({len(query)}) = {root:g} that is {sum(products) / root:g}"
    )


def aligned() -> str:
    """The root of E (q.k)^2 where q_i and k_i are correlated, over sqrt(d_k)."""
    rows = []
    for r in (0.0, 0.1, 0.5):
        sizes = []
        for d in (16, 64, 512):
            unit, cross = np.eye(d), r * np.eye(d)
            square = theory.score_variance(unit, unit, cross_covariance=cross) + theory.score_mean(cross) ** 2
            sizes.append(f"{math.sqrt(square) / math.sqrt(d):.2f}")
        rows.append([f"{r:g}", *sizes])
    return table(["correlation of q_i with k_i", "d_k = 16", "d_k = 64", "d_k = 512"], rows)


def agreement() -> str:
    """The mean of q.k of a token with itself, in deviations, over all heads of trained models and of new ones."""
    rows = []
    for name, model in trained_models().items():
        means = [f"{np.mean(model[kind]['mean']):.2f}" for kind in ("trained", "new")]
        rows.append([name, str(model["d_k"]), str(len(model["trained"]["mean"])), *means])
    return table(["model", "d_k", "heads", "trained", "newly made"], rows)


def others() -> str:
    """Scales of models that are in use and are not 1/sqrt(d_k)."""
    shown = (
        scaling.T5,
        scaling.mup(128),
        scaling.attention_multiplier(0.0078125),
        scaling.query_pre_attn_scalar(256),
        scaling.qk_norm(),
        scaling.layer_scaled(3),
        scaling.qwen_log_n(2048),
        scaling.llama4(),
        scaling.yarn(16),
        scaling.cosine(),
    )
    rows = [[text.replace("|", "&#124;") for text in (rule.formula, rule.variance, rule.users)] for rule in shown]
    return table(["scale", "variance of the scores at unit q and k", "in"], rows)


def drawing(width: int, height: int, parts: Sequence[str]) -> str:
    """Grey and blue are legible on white and on black."""
    style = "font-family='system-ui, sans-serif' font-size='13' fill='#808080'"
    head = f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width} {height}' {style}>"
    return "\n".join([head, *parts, "</svg>\n"])


def variance_svg() -> str:
    """Both groups of people on one axis, each with its mean and one standard deviation to either side."""
    parts = []
    for line, values in enumerate((NARROW, WIDE)):
        y, mean, deviation = 50 + 90 * line, float(np.mean(values)), float(np.std(values))
        left, middle, right = (40 + 90 * (x - 2.5) for x in (mean - deviation, mean, mean + deviation))
        parts.append(
            f"<rect x='{left:.1f}' y='{y - 14}' width='{right - left:.1f}' height='28' fill='#2b8cd0' opacity='.25'/>"
        )
        parts.append(f"<path d='M{middle:.1f} {y - 22}v44' stroke='#2b8cd0' stroke-width='2'/>")
        parts += [f"<circle cx='{40 + 90 * (x - 2.5):.1f}' cy='{y}' r='6' fill='#e0662f'/>" for x in values]
        parts.append(f"<text x='480' y='{y + 4}'>variance {np.var(values):.3g}</text>")
    parts += [f"<text x='{40 + 90 * (x - 2.5):.1f}' y='195' text-anchor='middle'>{x} ft</text>" for x in range(3, 8)]
    return drawing(600, 205, parts)


def walks_svg() -> str:
    """Twelve sums of random signs as they grow, and the root of the number of terms on either side."""
    steps, x, y = WIDTHS[-1], 0.95, 1.5
    signs = np.random.default_rng(5).choice([-1, 1], (12, steps)).cumsum(axis=1)
    parts = []
    for walk in signs:
        points = " ".join(f"{40 + x * t:.0f},{110 - y * walk[t]:.0f}" for t in range(0, steps, 8))
        parts.append(f"<polyline points='{points}' fill='none' stroke='#2b8cd0' opacity='.6'/>")
    for sign in (1, -1):
        points = " ".join(f"{40 + x * t:.0f},{110 - y * sign * math.sqrt(t):.1f}" for t in range(0, steps + 1, 8))
        parts.append(f"<polyline points='{points}' fill='none' stroke='#e0662f' stroke-width='2'/>")
    parts.append(f"<text x='{44 + x * steps:.0f}' y='{114 - y * math.sqrt(steps):.0f}'>+√t</text>")
    parts.append(f"<text x='{44 + x * steps:.0f}' y='{114 + y * math.sqrt(steps):.0f}'>−√t</text>")
    parts.append(
        f"<text x='40' y='212'>1 term</text><text x='{40 + x * steps:.0f}' y='212' text-anchor='end'>{steps} terms</text>"
    )
    return drawing(600, 220, parts)


def counting() -> str:
    rows = []
    for d in (3, 64, 512):
        proof = prove(d)
        exact = str(proof.exact) if proof.exact is not None else "-"
        rows.append([str(d), f"{proof.terms:,}", f"{proof.ones:,}", f"{proof.zeros:,}", f"{proof.total:,}", exact])
    return table(["d", "terms", "average 1", "average 0", "variance", "counted for random signs"], rows)


def words() -> str:
    """The glossary; a bar would end a cell."""
    head = ["word", "what", "for n equal weights", "for one weight of 1"]
    return table(head, [[word.name, word.meaning.replace("|", "&#124;"), word.equal, word.one_key] for word in WORDS])


def sharpness() -> str:
    rows = []
    for sigma in (0.125, 1.0, 2.0, 4.0, 8.0, 16.0):
        m = theory.softmax_moments(1024, sigma)
        rows.append(
            [
                f"{sigma:g}",
                f"{m.entropy / math.log(1024):.3f}",
                f"{theory.top_probability(1024, sigma):.3f}",
                percent(float(theory.saturation(1024, sigma))),
                f"{m.jacobian_trace:.3f}",
                f"{math.sqrt(m.jacobian_norm_squared):.3f}",
            ]
        )
    return table(
        ["sigma", "entropy share", "largest weight", "rows of one key", "Jacobian trace", f"{NORM}, root mean square"],
        rows,
    )


def rules() -> str:
    rows = []
    for d in (4, 64, 256, 1024):
        for name, scale in RULES:
            predicted = predict(d, KEYS, scale(d))
            moments = theory.attention_moments(KEYS, d, scale(d))
            flow = float(theory.relative_gradient(KEYS, d, scale(d)))
            rows.append(
                [
                    str(d),
                    name,
                    f"{d * scale(d) ** 2:.4g}",
                    f"{predicted.mean_entropy_ratio[0]:.3f}",
                    percent(float(predicted.saturated[0])),
                    f"{predicted.mean_jacobian_trace[0]:.3f}",
                    f"{math.sqrt(moments.jacobian_norm_squared):.3f}",
                    f"{flow:.2f}",
                ]
            )
    head = [
        "d_k",
        "scale",
        "score variance",
        "entropy share",
        "rows of one key",
        "Jacobian trace",
        NORM,
        "relative gradient",
    ]
    return table(head, rows)


def lengths() -> str:
    rows = []
    for exponent in (2, 3, 4, 6, 9):
        n = 10**exponent
        ratio = [
            theory.attention_moments(n, 64, s).entropy / math.log(n)
            for s in (1.0, 1 / 8, math.log(n) / math.log(512) / 8)
        ]
        rows.append([f"1e{exponent}", f"{theory.critical_sigma(n):.2f}", *(f"{share:.3f}" for share in ratio)])
    return table(["keys", "sqrt(2 ln n)", "entropy share, no scale", "1/sqrt(d_k)", "ln n/(ln 512 sqrt(d_k))"], rows)


def premises() -> str:
    d = 64
    heavy = theory.exact_score_moments(d, {-3: "1/18", 0: "8/9", 3: "1/18"})["variance"]
    inside_query = theory.shared_mean_variance(d, 0.5, 0.0)[1] / d
    whole_key, inside_key = (x / d for x in theory.shared_mean_variance(d, 0.0, 0.5))
    rows = [
        ["any two components correlated by 0.1, in q and in k", f"{theory.correlated_score_variance(d, 0.1) / d:.2f}"],
        ["the same by 0.5", f"{theory.correlated_score_variance(d, 0.5) / d:.2f}"],
        ["correlated by 0.5 in q alone", f"{theory.correlated_score_variance(d, 0.5, 0.0) / d:.2f}"],
        ["all components of q have mean 0.5", f"{inside_query:.2f}"],
        ["all components of k have mean 0.5", f"{inside_key:.2f} (of all scores together: {whole_key:.2f})"],
        ["components with heavy tails (8 of 9 are 0, the others 3 or -3)", f"{float(heavy) / d:.2f}"],
    ]
    return table(["what is wrong, at d_k = 64", "variance inside a row, with 1/sqrt(d_k)"], rows)


def sayings() -> str:
    """What is usually said, what is true, and the numbers that say so."""
    none_64, none_1024 = (theory.attention_moments(KEYS, d, 1.0) for d in (64, 1024))
    sqrt_64 = theory.attention_moments(KEYS, 64, 1 / 8)
    flow = {d: float(theory.relative_gradient(KEYS, d, 1.0)) for d in (64, 1024)}
    small = {d: float(theory.relative_gradient(KEYS, d, 1 / d)) for d in (64, 1024)}
    norm = [math.sqrt(m.jacobian_norm_squared) for m in (sqrt_64, none_64, none_1024)]
    frozen = [percent(float(predict(d, KEYS, "none").saturated[0])) for d in (64, 1024)]
    four = [float(theory.attention_moments(KEYS, 4, s).entropy) / math.log(KEYS) for s in (1.0, 0.5)]
    kurtosis = float(theory.score_excess_kurtosis(64))
    errors = [float(theory.format_effect(s, "bfloat16").score_error) / s for s in (1.0, 1 / 8, 1 / 32)]
    far = [float(theory.attention_moments(n, 64, 1 / 8).entropy) / math.log(n) for n in (1e3, 1e9)]
    rows = {
        "The variance is about d_k, for large d_k.": f"""It is exactly d_k, for every d_k. Only the Gaussian shape
            needs a large d_k: the excess kurtosis is 6/d_k, {kurtosis:.3g} at 64.""",
        "It holds for Gaussian q and k.": """It holds for every distribution of independent components with mean 0
            and variance 1. Independence and the mean matter; the distribution does not.""",
        "Without the scale gradients vanish.": f"""In some rows they do: {frozen[0]} of them have one weight above .99
            at d_k = 64, and {frozen[1]} at 1024. But the norm of J is larger without the scale: its root mean square is
            {norm[0]:.3f} with it, and {norm[1]:.3f} at d_k = 64 and {norm[2]:.3f} at 1024 without it. And on average the
            gradient at the query is larger too, {flow[64]:.1f} and {flow[1024]:.1f} times the output. It comes from the
            rows in which several keys still compete.""",
        "1/d_k makes the Jacobian too small.": f"""No. The weights are nearly equal, and the Jacobian trace has its largest value. The
            factor before J is small: {FLOW} is {small[64]:.3f} at d_k = 64 and {small[1024]:.3f} at 1024. Larger weights
            or learning rates can correct that, as in models that are tuned for 1/d_k.""",
        "1/d_k is bad numerically, because scores get small.": f"""Small floating-point numbers have as many digits as large
            ones. In bfloat16 the error of a score, divided by the spread of the scores, is {errors[0]:.2g} at a spread
            of 1, {errors[1]:.2g} at 1/8 and {errors[2]:.2g} at 1/32. Only numbers below the smallest of a format lose
            digits, as gradients in float16 can.""",
        "For small d_k the scale hardly matters.": f"""At d_k = 4 the entropy is {four[0]:.2f} ln n without the scale and
            {four[1]:.2f} ln n with it. That is a smaller difference than at 64, but a difference.""",
        "The scale keeps softmax well-behaved at any length.": f"""It keeps the spread of the scores constant. But as keys
            are added, the entropy share approaches 1, which means equal weights: {far[0]:.3f} at a thousand keys,
            {far[1]:.3f} at a billion.""",
        "q and k have variance 1.": """At the start, if weights are scaled by their fan-in. After training the
            variance can be anything; `rootdk.measure` measures it.""",
    }
    return table(["what is said", "what is true"], [[saying, " ".join(true.split())] for saying, true in rows.items()])


def text() -> str:
    limits = [float(theory.critical_sigma(n)) for n in (1024, 1e9)]
    d_where = math.ceil(limits[0] ** 2)
    scaled = np.var([1, 2, 3]), np.var([2, 4, 6])
    return f"""# Why the root of d_k

Attention multiplies queries with keys, divides the result by a number, and applies softmax. The number is sqrt(d_k), where d_k is the
number of components of a query. Why this number? And are the usual explanations true? ([What is said, and where it is checked](statements.md).)

{answer(512, 1024)}

The rest of this page explains this step by step. All numbers are computed by [why_root_dk.py](why_root_dk.py) with `rootdk.theory`.
The command `rootdk` also measures them, and `rootdk claims` checks the usual explanations one by one.

## What attention computes

    Attention(Q, K, V) = softmax(Q K' / sqrt(d_k)) V

Every word (token) has three vectors. Its *query* q says what it looks for, its *key* k says what it has, and its *value* v is what it hands over. Q, K and V are tables with
one such vector per line. Queries and keys have d_k components each: 64 in the first Transformer, and 64, 128 or 256 in most models today. The dot product
q.k = q_1 k_1 + ... + q_d k_d is the *score* of a key: the cosine of the angle between the two vectors, which says how similar they are, times their lengths. A small example: {dot_product((1, 0, 1, 0), (0, 1, 1, 1))}. Softmax makes
weights of the scores of a query: positive numbers with the sum 1. All weights of one query are a *row*. The output is the mean of the values with these weights. The only question here is: what should the scores be divided by?

## What variance is

Variance says how far numbers are from their mean. Subtract the mean from each number, square these distances, and take the mean of the
squares. Two groups of five people:

{variances()}

![Two groups of heights on one axis: the wide one has the larger variance](variance.svg)

If the mean is 0, the distances are the numbers themselves, and the variance is the mean of their squares. The square root of the variance is the *standard deviation*. It is a distance again: {np.std(NARROW):.2f} and {np.std(WIDE):.2f} feet.

## A sum whose terms cancel still grows

A score is a sum of d_k products. Some are positive and some are negative, so they partly cancel. Think of a person who takes random steps to
the left and to the right: after t steps, the person is typically about sqrt(t) steps away from the start. For terms of +1 and -1, with every outcome
counted:

{walks()}

![Twelve sums of random signs, and plus and minus the root of the number of terms](random-walk.svg)

So the mean of the scores stays 0, but their size grows: like the square root of the number of terms. Their variance grows like the number of
terms itself.

## The variance of a score is d_k

A score is s = q_1 k_1 + ... + q_d k_d. Let all components be independent of each other, with mean 0 and variance 1. One product q_i k_i then has the mean
E q_i E k_i = 0 and the variance E q_i^2 E k_i^2 = 1. The mean of the sum is 0, too, so its variance is the mean of its square. With three products a, b and c the square is

    (a + b + c)^2 = a^2 + b^2 + c^2 + ab + ba + ac + ca + bc + cb

nine terms. The three squares have the mean 1. The six others are products of different terms, and their means are E a E b = 0. So the variance is 3. With d_k products there are d_k^2 terms:
d_k squares with the mean 1, and d_k (d_k - 1) others with the mean 0:

{counting()}

This is exact: d_k need not be large, and the components need not be Gaussian. That products of different terms have the mean 0 is all that is needed: variances of
uncorrelated terms add up. `rootdk prove --d 3` writes out the terms.

## Dividing by c divides the variance by c^2

Why the square? The numbers 2, 4, 6 have the mean 4, distances -2, 0, 2, squares 4, 0, 4, and so the variance {scaled[1]:.3g}. Half of them, 1, 2, 3, have
the mean 2, distances -1, 0, 1, squares 1, 0, 1, and the variance {scaled[0]:.3g}. Dividing by c = 2 divides the distances by 2 and their squares by
c^2 = {scaled[1] / scaled[0]:.0f}, and the variance is a mean of squares.

So scores divided by c have the variance d_k/c^2, and c = sqrt(d_k) makes it 1. Dividing by d_k would make it 1/d_k; multiplying by sqrt(d_k) would make it d_k^2.

## Why not 2, or 10?

{divisors()}

A constant is right at one width only: 8 at d_k = 64. sqrt(d_k) is right at every width. That the variance is 1, and not 2 or 1/2, is a choice. What
matters is that it is the same at every width.

## What softmax does, with every number

softmax(x)_i = e^(x_i) / (e^(x_1) + ... + e^(x_n)), with e = {math.e:.3f}. If one score is larger than another by 1,
its weight is larger by the factor e. Powers of e grow fast: {exponentials()}, and e^50 = {math.exp(50):.3e} (claim 7 is about a print of it that is a thousand times too small). The examples
that are often shown, with every number on the way:

{softmaxes()}

The scores of the second line are those of the first divided by 10. The scores of the fourth line are those of the third divided by 8, which is sqrt(64): a query
and three keys with d_k = 64 whose q.k are 14, 10 and 12. In the first line one key takes all and the output is its value alone; in the fourth line all three count.

## Words for what softmax did

These names mean the same in the terminal, in the report, on the page and here. p are the weights of a row, n is the number of its keys:

{words()}

The Jacobian J says how the weights change when the scores s change: J_ij = dp_i/ds_j = p_i (1 - p_i) where i = j, and -p_i p_j elsewhere. If one weight is 1, all its entries are 0.
Its trace is the sum of its diagonal.

## What softmax does with scores that are far apart

Softmax turns differences into ratios: if two scores differ by 10, their weights differ by a factor of {math.exp(10):,.0f}. For
1024 keys, with Gaussian scores of standard deviation sigma:

{sharpness()}

There is a limit, sigma = sqrt(2 ln n). It is {limits[0]:.2f} for 1024 keys and {limits[1]:.2f} for a billion. Above it a few keys take all the
weight, no matter how many keys there are. Scores without a scale have sigma = sqrt(d_k). So with 1024 keys they are above it for every d_k from {d_where} on.

The trace of J goes to 0 as one key takes the weight. The norm of J behaves differently: it is largest where a few weights compete.

## Attention, rule by rule

Random q and k, {KEYS} keys. The relative gradient is a ratio of root mean squares:

{rules()}

Only with 1/sqrt(d_k) do all columns stay the same as d_k grows. This is the whole argument. It does not say that other scales cannot work. It says that with them
softmax starts in a different state at every width.

## Length is another matter

d_k = 64, random q and k:

{lengths()}

1/sqrt(d_k) does not depend on the number of keys n. Rules with ln n make long rows sharper.

## What is said, and what is true

{sayings()}

## When the premise is wrong

{premises()}

A mean of the keys adds the same number to all scores of a row, and softmax ignores that. A mean of the queries changes the scores of a row in different ways.

## When q and k know of each other

Training can make a query and the keys that it looks for similar: then q_i and k_i are correlated, the products q_i k_i no longer have the mean 0, and they no longer cancel. For normal q and k with the
cross-covariance C, E (q.k)^2 = tr(S_q S_k) + (tr C)^2 + tr C^2. The second term grows like d_k^2. This is the argument for 1/d_k (maximal-update
parametrisation, muP). The size of q.k, the root of its mean square, divided by sqrt(d_k):

{aligned()}

Without correlation it is 1 at every width. With any correlation it grows with d_k, at large d_k like sqrt(d_k). `theory.score_variance(cross_covariance=)` has the formula;
claim 19 says what it means for "derived".

In trained models q and k do know of each other. The mean of q.k that a token's own query and key owe to each other, in standard deviations of the score of independent q and k, over all heads (claim 33):

{agreement()}

That mean does not make q.k larger there: the means of q and k point away from each other, and it makes up for that. Whether it grows with d_k, models of one width each cannot tell.

## Does the rest follow?

That rows start sharp or flat is arithmetic, and all of it is above. What it does to learning is not: rows that are frozen get no
gradient, but others do; an optimiser such as Adam divides every gradient by its usual size, so that a small gradient is not a small step; and training can make q and k larger or smaller. What training runs say is in [training.md](training.md).

## Models that do otherwise

1/sqrt(d_k) is in nearly every Transformer. These are in use, too (`rootdk.scaling` has the source of each):

{others()}

## Look for yourself

```
rootdk                                    the answer, with theory, measurement and a report
rootdk predict --d-k 128 --keys 8192      theory for your setting, with advice
rootdk prove --d 3                        the proof, with its terms
rootdk claims                             the usual explanations, checked
```
"""


def pages() -> dict[Path, str]:
    """Every file that this program writes, with what is in it."""
    return {
        TARGET: text(),
        TARGET.with_name("variance.svg"): variance_svg(),
        TARGET.with_name("random-walk.svg"): walks_svg(),
    }


if __name__ == "__main__":
    for file, content in pages().items():
        file.write_text(content, "utf-8", newline="\n")
