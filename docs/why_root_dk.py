"""Writes docs/why-root-dk.md. Every number in that text is computed here: `python docs/why_root_dk.py` makes it anew.

A test holds the file to what this prints.
"""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from rootdk import predict, theory
from rootdk.lab.proof import prove

KEYS = 512
# A bar would end the cell of a table.
NORM, FLOW = "&#124;J&#124;", "&#124;do/dq&#124;/&#124;o&#124;"
TARGET = Path(__file__).with_name("why-root-dk.md")
RULES = (("1", lambda d: 1.0), ("1/sqrt(d_k)", lambda d: d**-0.5), ("1/d_k", lambda d: 1 / d))


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *rows))


def percent(x: float) -> str:
    """Whole percents, one digit below one, and 0 for what nobody will see."""
    return f"{100 * x:.0f} %" if x >= 0.005 or x < 5e-6 else f"{100 * x:.1g} %"


def counting() -> str:
    rows = []
    for d in (3, 64, 512):
        proof = prove(d)
        exact = str(proof.exact) if proof.exact is not None else "-"
        rows.append([str(d), f"{proof.terms:,}", f"{proof.ones:,}", f"{proof.zeros:,}", f"{proof.total:,}", exact])
    return table(["d", "terms", "average 1", "average 0", "variance", "counted out for random signs"], rows)


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
        ["sigma", "H / ln n", "largest weight", "rows with p > .99", "tr J", f"{NORM}, root mean square"], rows
    )


def rules() -> str:
    rows = []
    for d in (4, 64, 256, 1024):
        for name, scale in RULES:
            told = predict(d, KEYS, scale(d))
            moments = theory.attention_moments(KEYS, d, scale(d))
            flow = float(theory.relative_gradient(KEYS, d, scale(d)))
            rows.append(
                [
                    str(d),
                    name,
                    f"{d * scale(d) ** 2:.4g}",
                    f"{told.mean_entropy_ratio[0]:.3f}",
                    percent(float(told.saturated[0])),
                    f"{told.mean_jacobian_trace[0]:.3f}",
                    f"{math.sqrt(moments.jacobian_norm_squared):.3f}",
                    f"{flow:.2f}",
                ]
            )
    head = ["d_k", "scale", "variance", "H / ln n", "rows with p > .99", "tr J", NORM, FLOW]
    return table(head, rows)


def lengths() -> str:
    rows = []
    for exponent in (2, 3, 4, 6, 9):
        n = 10**exponent
        ratio = [
            theory.attention_moments(n, 64, s).entropy / math.log(n)
            for s in (1.0, 1 / 8, math.log(n) / math.log(512) / 8)
        ]
        rows.append([f"1e{exponent}", f"{theory.critical_sigma(n):.2f}", *(f"{one:.3f}" for one in ratio)])
    return table(["keys", "sqrt(2 ln n)", "H / ln n, no scale", "1/sqrt(d_k)", "ln n/(ln 512 sqrt(d_k))"], rows)


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
        ["components with heavy tails (0, or 3 either way one time in nine)", f"{float(heavy) / d:.2f}"],
    ]
    return table(["what is wrong, at d_k = 64", "variance inside a row, under 1/sqrt(d_k)"], rows)


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
        "The variance is about d_k, for large d_k.": f"""It is d_k, exactly, for every d_k. What needs a large d_k is the
            Gaussian shape: the excess kurtosis is 6/d_k, {kurtosis:.3g} at 64.""",
        "It holds for Gaussian q and k.": """It holds for any law of independent components with mean 0 and variance 1.
            Independence and the mean matter; the law does not.""",
        "Without the scale gradients vanish.": f"""Rows die: at d_k = 64 and 1024, {frozen[0]} and {frozen[1]} of them
            have one weight above .99. But the norm of J does not simply fall: its root mean square is {norm[0]:.3f} with
            the scale, {norm[1]:.3f} without at d_k = 64 and {norm[2]:.3f} at 1024. And what arrives at the query is
            larger in the mean, {flow[64]:.1f} and {flow[1024]:.1f} times the output: the rows that live carry it.""",
        "1/d_k makes the Jacobian too small.": f"""It does not: the weights are all but uniform, and tr J is at its
            largest. It is the factor in front that is small: {FLOW} is {small[64]:.3f} at d_k = 64 and
            {small[1024]:.3f} at 1024. Weights and learning rates can make up for that, and models tuned for 1/d_k do.""",
        "1/d_k is bad numerically, because scores get small.": f"""A floating-point number keeps its digits when it is
            small: in bfloat16 a score is off by {errors[0]:.2g} of its spread at a spread of 1, {errors[1]:.2g} at 1/8,
            {errors[2]:.2g} at 1/32. Only below a format's smallest numbers, as gradients in float16 can be, is it
            otherwise.""",
        "For small d_k the scale hardly matters.": f"""At d_k = 4 the entropy is {four[0]:.2f} ln n without it and
            {four[1]:.2f} ln n with it. Less than at 64, not nothing.""",
        "The scale keeps softmax well-behaved at any length.": f"""It keeps the logits at one width. The entropy stays a
            constant below ln n, so long rows go flat: {far[0]:.3f} ln n at a thousand keys, {far[1]:.3f} at a
            billion.""",
        "q and k have variance 1.": """At the start, if weights are scaled by their fan-in. Training owes nobody a
            variance; `rootdk.measure` tells what it is.""",
    }
    return table(["what is said", "what is true"], [[said, " ".join(true.split())] for said, true in rows.items()])


def text() -> str:
    logits = [float(theory.critical_sigma(n)) for n in (1024, 1e9)]
    d_where = math.ceil(logits[0] ** 2)
    scaled = np.var([1, 2, 3]), np.var([2, 4, 6])
    return f"""# Why the root of d_k

Attention multiplies queries with keys, divides by a number, and takes the softmax. The number is sqrt(d_k), the root of the
length of a query. Why that one, and is what is said about it true? All numbers below are computed by
[why_root_dk.py](why_root_dk.py), from `rootdk.theory`; `rootdk` measures them beside the theory, and `rootdk claims` checks the
sayings one by one.

## The variance of a score is d_k

A score is a sum of d_k products, s = q_1 k_1 + ... + q_d k_d. Take components that are independent of each other, with mean 0
and variance 1. Then E s = 0, and the variance is E s^2. Write the square out: d_k^2 terms q_i k_i q_j k_j. Where i = j the
average is E q_i^2 E k_i^2 = 1. Elsewhere it has a factor E q_i = 0. So d_k terms average 1, all others 0:

{counting()}

No limit was taken and no Gaussian was needed. `rootdk prove --d 3` writes out the terms.

## Dividing by c divides the variance by c^2

1, 2, 3 have a variance of {scaled[0]:.3g}, and 2, 4, 6 one of {scaled[1]:.3g}. So scores over c have the variance d_k/c^2, and
c = sqrt(d_k) makes it 1. Dividing by d_k makes it 1/d_k; multiplying by sqrt(d_k) would make it d_k^2.

## What softmax does with wide logits

Softmax turns differences into ratios: logits that differ by 10 have weights that differ by a factor of {math.exp(10):,.0f}. With
1024 keys whose logits are Gaussian with standard deviation sigma:

{sharpness()}

There is a point where it freezes, sigma = sqrt(2 ln n): {logits[0]:.2f} for 1024 keys, {logits[1]:.2f} for a billion. Past it a
few keys take all the weight, however many there are. Unscaled scores have sigma = sqrt(d_k), so with 1024 keys every d_k from
{d_where} on is past it.

J = diag(p) - p p' is the derivative of the weights by the logits. Its trace, 1 - sum p^2, says how much of a row still moves.
Its norm tells another story: it is largest where a few weights compete.

## Attention, rule by rule

Random q and k, {KEYS} keys. The last column is what arrives at the query, relative to the output (both as root mean squares):

{rules()}

Only with 1/sqrt(d_k) does every column stay where it is as d_k grows. That is the whole argument: not that the others
cannot work, but that with them the softmax starts from another state at every width.

## Length is another matter

{lengths()}

1/sqrt(d_k) knows nothing of the number of keys. Rules with ln n in them sharpen long rows.

## What is said, and what is true

{sayings()}

## When the premise is wrong

{premises()}

A mean of the keys adds one number to all scores of a row, and softmax does not see it. A mean of the queries it does see.

## Look for yourself

```
rootdk                                    theory and measurement, with a report to look at
rootdk predict --d-k 128 --keys 8192      theory for your setting, with advice
rootdk prove --d 3                        the argument with its terms
rootdk claims                             what is said, checked
```
"""


if __name__ == "__main__":
    TARGET.write_text(text(), "utf-8")
