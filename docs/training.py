"""Writes docs/training.md. Every number in that text comes out of the shipped runs: `python docs/training.py` makes it anew.

A test holds the file to what this prints.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

from rootdk.errors import ArgumentError
from rootdk.lab.training import Group, Interval, Results, interval, shipped
from rootdk.lab.training.results import (
    LEARNED,
    Arm,
    Estimate,
    best,
    estimate,
    grouped,
    known,
    largest,
    lowest,
    outcomes,
    setting,
    sharpest_ever,
    unstable,
    widths,
)
from rootdk.lab.training.run import ADDITIVE
from rootdk.lab.training.sweep import plan

TARGET = Path(__file__).with_name("training.md")
RULES = {"none": "1", "sqrt": "1/sqrt(d_k)", "dk": "1/d_k"}
WIDE = 256
COLLAPSED = 0.05


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *rows))


def shown(one: Interval, digits: int = 2) -> str:
    """Mean and half of its 95 % interval; with the digits that the interval leaves."""
    if not math.isfinite(one.mean):
        return "diverged"
    return f"{one.mean:.{digits}f} ± {one.half:.{digits}f}"


def size(x: float) -> str:
    """Two digits, and all before the point."""
    return f"{x:.2g}" if x < 100 else f"{float(f'{x:.2g}'):,.0f}"


def percent(x: float) -> str:
    return f"{100 * x:.0f} %"


def rate_of(group: Group) -> str:
    """The chosen learning rate, with a mark where a better one may lie beyond those that were tried."""
    mark = {"lowest": " (lowest tried)", "highest": " (highest tried)", "only": " (only one tried)"}.get(group.edge, "")
    return f"{group.best.rate:g}{mark}"


def steps_of(group: Group) -> list[str]:
    """How many runs came to 90 %, the median of their steps, and from where to where they lie."""
    best = group.best
    return [f"{best.learned} of {len(best.runs)}", *spread(best.steps, group.spec.steps)]


def spread(steps: Sequence[int | None], budget: int) -> list[str]:
    ordered = sorted(math.inf if step is None else step for step in steps)
    middle = (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2
    words = [f"over {budget:,}" if step == math.inf else f"{step:,.0f}" for step in (middle, ordered[0], ordered[-1])]
    return [words[0], f"{words[1]} to {words[2]}"]


def times(found: Estimate) -> str:
    """A ratio of steps, from the logarithm, with its interval."""
    return f"{math.exp(found.value):.2f} ({math.exp(found.low):.2f} to {math.exp(found.high):.2f})"


def slower(results: Results, a: dict[str, Any], b: dict[str, Any], rate: float | None = None) -> Estimate:
    """ln of the steps that a takes over those of b, on recall."""
    arms = (Arm(setting(results, task="recall", **spec), "log_steps", rate) for spec in (a, b))
    return estimate(lambda one, other: one - other, *arms)


def behind(results: Results, a: dict[str, Any], b: dict[str, Any]) -> Estimate:
    """By how many nats a ends above b."""
    return estimate(lambda one, other: one - other, *(Arm(setting(results, **spec), "loss") for spec in (a, b)))


def nats(found: Estimate) -> str:
    return f"{found.value:+.3f} ({found.low:+.3f} to {found.high:+.3f})"


def what_was_run(results: Results) -> str:
    rows = []
    for group in grouped(results.runs):
        spec = group.spec
        seeds = sorted({len(outcome.runs) for outcome in group.outcomes})
        rates = ", ".join(f"{rate:g}" for rate in group.rates)
        rows.append([spec.task, line_of(group), str(spec.d_k), rates, "/".join(map(str, seeds)), str(len(group.runs))])
    merged: dict[tuple[str, ...], list[list[str]]] = {}
    for row in rows:
        merged.setdefault((row[0], row[1], row[3], row[4]), []).append(row)
    lines = [
        [
            task,
            line,
            ", ".join(sorted((row[2] for row in some), key=int)),
            rates,
            seeds,
            str(sum(int(row[5]) for row in some)),
        ]
        for (task, line, rates, seeds), some in merged.items()
    ]
    return table(["task", "arm", "d_k", "learning rates", "seeds of each", "runs"], lines)


def line_of(group: Group) -> str:
    """An arm in words."""
    spec = group.spec
    fourth = spec.d_k**0.25
    words = {
        "qk_size": {1 / fourth: "W_q, W_k start smaller by d_k^1/4", fourth: "W_q, W_k start larger by d_k^1/4"},
        "qk_rate": {fourth: "rate of W_q, W_k larger by d_k^1/4"},
        "qk_gradient": {fourth**2: "gradients of W_q, W_k larger by d_k^1/2"},
        "v_size": {spec.d_k**0.5: "v starts larger by d_k^1/2"},
    }
    parts = [words[name][getattr(spec, name)] for name in words if getattr(spec, name) != 1.0]
    parts += ["QK-norm"] * spec.qk_norm + [f"warm-up of {spec.warmup} steps"] * bool(spec.warmup)
    parts += [f"{spec.layers} layer of width {spec.width}"] * (spec.width != 32)
    return ", ".join([RULES.get(spec.rule, spec.rule), *parts])


def missing(results: Results) -> str:
    """Which runs of the plan are not there."""
    have = {run.spec for run in results.runs}
    lost: dict[tuple[str, ...], dict[float, int]] = {}
    for spec in plan("default"):
        if spec not in have:
            line = line_of(Group((replace(results.runs[0], spec=spec),)))
            rates = lost.setdefault((spec.task, line, str(spec.d_k)), {})
            rates[spec.learning_rate] = rates.get(spec.learning_rate, 0) + 1
    if not lost:
        return "All runs of the plan are there."
    rows = [[*arm, ", ".join(f"{rate:g}" for rate in sorted(rates)), str(sum(rates.values()))]
            for arm, rates in lost.items()]  # fmt: skip
    return (
        f"**{sum(sum(rates.values()) for rates in lost.values())} of the {len(plan('default'))} runs of the plan have not "
        "been made.** `rootdk train-study --missing --out more.json` makes them, and goes on where it was interrupted:\n\n"
        + table(["task", "arm", "d_k", "learning rates", "runs missing"], rows)
    )


def recall(results: Results, *arms: dict[str, Any]) -> str:
    rows = []
    for arm in arms:
        group = setting(results, task="recall", **arm)
        rows.append([str(group.spec.d_k), line_of(group), rate_of(group), *steps_of(group)])
    return table(["d_k", "scale", "learning rate", "came to 90 %", "median of steps", "from, to"], rows)


def by_rate(results: Results, d_k: int) -> str:
    """How many runs of recall get it, and when, by rule and learning rate."""
    groups = {rule: setting(results, task="recall", rule=rule, d_k=d_k) for rule in RULES}
    rows = []
    for rate in sorted({rate for group in groups.values() for rate in group.rates}):
        cells = []
        for group in groups.values():
            if rate not in group.rates:
                cells.append("not run")
                continue
            here = group.at(rate)
            cells.append(f"{here.learned} of {len(here.runs)}, {spread(here.steps, group.spec.steps)[0]}")
        rows.append([f"{rate:g}", *cells])
    return table(["learning rate", *RULES.values()], rows)


def losses(results: Results, task: str) -> str:
    rows = []
    for d_k, (rule, name) in product(results.values("d_k", task=task), RULES.items()):
        if has(results, task=task, **arm(rule, d_k)):
            group = setting(results, task=task, rule=rule, d_k=d_k)
            one = group.best
            rows.append([task, str(d_k), name, rate_of(group), shown(one.loss, 3), f"{100 * one.accuracy.mean:.1f} %"])
    return table(["task", "d_k", "scale", "learning rate", "loss", "right"], rows)


CAUSES = {
    "1/sqrt(d_k)": {"rule": "sqrt"},
    "1/d_k": {"rule": "dk"},
    "1/d_k, gradients of W_q and W_k times 16": {"rule": "dk", "qk_gradient": 16.0},
    "1/d_k, learning rate of W_q and W_k times 4": {"rule": "dk", "qk_rate": 4.0},
    "1/d_k, learning rate and start of W_q and W_k times 4": {"rule": "dk", "qk_rate": 4.0, "qk_size": 4.0},
}
CAUSE_RATE = 1e-3


def causes(results: Results) -> str:
    rows = []
    usual = {"rule": "dk", "d_k": WIDE}
    for name, change in CAUSES.items():
        spec = {**change, "d_k": WIDE}
        if not has(results, task="recall", **spec):
            continue
        here = setting(results, task="recall", **spec).at(CAUSE_RATE)
        first = here.runs[0]
        ratio = "1" if spec == usual else times(slower(results, spec, usual, CAUSE_RATE))
        entropy = interval(min(known(layer.entropy) for layer in run.moments[0].layers) for run in here.runs)
        rows.append([name, f"{entropy.mean:.2f}", f"{here.learned} of {len(here.runs)}",
                     *spread(here.steps, first.spec.steps), ratio])  # fmt: skip
    head = [
        "scale",
        "entropy share at the start",
        "came to 90 %",
        "median of steps",
        "from, to",
        "steps over those of 1/d_k",
    ]
    return table(head, rows)


def additive(results: Results) -> str:
    rows = []
    for d_k in widths(results, "digits", ADDITIVE):
        arms = {
            "additive, starts as q.k/sqrt(d_k)": {"rule": ADDITIVE},
            "additive, starts as q.k": {"rule": ADDITIVE, "v_size": d_k**0.5},
            "dot product": {"rule": "none"},
            "dot product / sqrt(d_k)": {"rule": "sqrt"},
        }
        for name, arm in arms.items():
            group = setting(results, task="digits", d_k=d_k, **arm)
            one = group.best
            gap = nats(
                behind(results, {"task": "digits", "d_k": d_k, "rule": "none"}, {"task": "digits", "d_k": d_k, **arm})
            )
            rows.append([str(d_k), name, rate_of(group), shown(one.loss, 3), f"{100 * one.accuracy.mean:.1f} %",
                         "" if arm == {"rule": "none"} else gap])  # fmt: skip
    return table(["d_k", "scores", "learning rate", "loss", "right", "dot product less this"], rows)


def transplants(results: Results, d_k: int) -> str:
    runs = best(results, task="text", rule="sqrt", d_k=d_k).runs
    rows = []
    for at, (kappa, _, _) in enumerate(runs[0].transplant):
        loss = interval(run.transplant[at][1] for run in runs)
        logits = interval(run.transplant[at][2] for run in runs)
        rows.append([f"{kappa:g}", size(logits.mean), shown(loss, 3)])
    natural = interval(max(known(layer.largest) for layer in run.last.layers) for run in runs)
    rows.append(["as trained", size(natural.mean), shown(interval(run.last.loss for run in runs), 3)])
    return table(["kappa", "largest logit", "loss"], rows)


def ladder(results: Results, d_k: int) -> str:
    rows = []
    for one in outcomes(results, task="text", rule="sqrt", d_k=d_k):
        logits = interval(largest(run) for run in one.runs)
        count = len(one.runs)
        rows.append(
            [
                f"{one.rate:g}",
                f"{sum(sharpest_ever(run) < COLLAPSED for run in one.runs)} of {count}",
                size(logits.mean),
                str(sum(run.spikes for run in one.runs)),
                str(one.diverged),
                f"{sum(unstable(run) for run in one.runs)} of {count}",
                shown(one.loss, 3),
            ]
        )
    head = ["learning rate", "collapsed", "largest logit", "spikes", "diverged", "unstable", "lowest loss"]
    return table(head, rows)


def text(results: Results | None = None) -> str:
    results = results or shipped()
    parts = [what_it_is(results), without_it(results), start(results), causes_of_lag(results), additive_attention(results),
             of_text(results), side_arms(results), meaning()]  # fmt: skip
    return "\n".join(part for part in parts if part)


def has(results: Results, **spec: Any) -> bool:
    """Whether an arm was run, with two seeds of each learning rate at least."""
    try:
        setting(results, **spec)
    except ArgumentError:
        return False
    return True


def arm(rule: str, d_k: int, **more: Any) -> dict[str, Any]:
    return {"rule": rule, "d_k": d_k, **more}


def what_it_is(results: Results) -> str:
    about = results.about
    budget = results.select(task="recall")[0].spec.steps
    digits, texts = (results.select(task=task) for task in ("digits", "text"))
    flat = sum(run.end == "flat" for run in digits)
    diverged = sum(run.diverged for run in results.runs)
    seconds = sum(run.seconds for run in results.runs)
    of_text = (
        f" Text: after {texts[0].spec.steps} steps, which is far from flat: it compares how fast is learned, not how well in the end."
        if texts
        else ""
    )
    return f"""# Does the scale matter when a model learns?

The argument for sqrt(d_k) is about the first step: with it, random queries and keys start in one state whatever d_k is
([why-root-dk.md](why-root-dk.md)). What this means for training can only be found out by training. The models here are very small: {len(results.runs)}
runs, made by `rootdk train-study` and shipped with the package: `rootdk.lab.training.shipped()` has them,
`rootdk` draws them in its report, and `rootdk claims --id 16` uses them as evidence. [training.py](training.py) computes every number below
from them. They show what can happen; large models may behave differently.

An earlier version of this page said that without the scale recall is never learned at d_k = 256 and more. That was wrong: its runs
ended after 300 steps. It also said that 1/d_k is late because its gradients are small, but under Adam the size of gradients hardly matters.

## What was run

A Transformer with 2 layers of width 32 and one head, with norms before each block, without dropout, trained by Adam. All weights start with variance 1/fan-in, so that
queries and keys have variance 1, if an arm does not say otherwise. **Only the width of queries and keys changes with d_k**, and
everything else keeps its size. Three tasks:

- *recall*: 12 pairs of a name and a value, then 12 names whose values are asked for. It needs attention and nothing else.
- *text*: the next character of the sources of Python's standard library, 64 at a time; a decoder. Another version of Python has another
  text.{"" if texts else " Its runs are planned, and none is shipped yet."}
- *digits*: scikit-learn's images of 8 x 8 pixels, in 16 patches; an encoder.

{what_was_run(results)}

**When a run ends.** Recall: once 99 % of the validation set are right at three looks in a row, or after {budget:,} steps. A run that has
not learned by then is *censored*: it counts as "over {budget:,}". A mean takes it as {budget:,} steps, which makes slow learning look
faster than it is. Digits: once the second half of all steps has not lowered the validation loss by 1 %, or after {digits[0].spec.steps} steps
({flat} of {len(digits)} runs were flat, the others used up their budget).{of_text} The validation set is
looked at each time the steps have grown by a tenth, so numbers of steps are known to a tenth.

**What is compared.** Data are in three parts. The learning rate of every arm is chosen by the validation set; what is reported belongs to
the test set, at the look where the validation loss is lowest. Where the best rate is at an end of those that were tried, the table says
so: a better one may lie beyond. "±" is half of the 95 % interval of the mean over seeds (Student's t); a range in brackets is the middle
95 % of a bootstrap that draws seeds and chooses the learning rates again. {"No run" if not diverged else f"{diverged} runs"} ended in a loss that was no
number. Made with torch {about["torch"]}, Python {about["python"]}, kernel {about["kernel"]}, one thread each: {seconds / 3600:.1f} hours of runs on
{about["cpus"]} cores that had other work.

{missing(results)}
"""


def without_it(results: Results) -> str:
    budget = results.select(task="recall")[0].spec.steps
    small, large = widths(results, "recall", "none")[0], WIDE
    arms = [arm(rule, d_k) for d_k in (small, large) for rule in RULES if has(results, task="recall", **arm(rule, d_k))]
    without = setting(results, task="recall", **arm("none", large))
    best_root = setting(results, task="recall", **arm("sqrt", large))
    rates = f"{without.best.rate:g} against {best_root.best.rate:g} with the scale"
    tables, gains = [], []
    for task in ("text", "digits"):
        d_ks = [d_k for d_k in (16, 128) if all(has(results, task=task, **arm(rule, d_k)) for rule in ("none", "sqrt"))]
        if d_ks:
            tables.append(losses(results, task))
            for d_k in d_ks:
                gain = behind(results, {"task": task, **arm("none", d_k)}, {"task": task, **arm("sqrt", d_k)})
                gains.append(f"{task} at d_k = {d_k}: {nats(gain)}")
    return f"""## Without the scale

{recall(results, *arms)}

At d_k = {large} the unscaled model takes {times(slower(results, arm("none", large), arm("sqrt", large)))} times the steps of the scaled one, at d_k = {small} {times(slower(results, arm("none", small), arm("sqrt", small)))}.
It learns late, but it learns: at d_k = {large} {without.best.learned} of {len(without.best.runs)} seeds come to {percent(LEARNED)} right within {budget:,} steps, at a learning rate of its own
({rates}). Elsewhere the loss says how far behind it stays:

{chr(10).join(part + chr(10) for part in tables)}
What the scale gains, in nats with the interval: {"; ".join(gains)}.
"""


def start(results: Results) -> str:
    small, large, norm = (
        arm("none", WIDE, qk_size=WIDE**-0.25), arm("dk", WIDE, qk_size=WIDE**0.25), arm("sqrt", WIDE, qk_norm=True),
    )  # fmt: skip
    if not has(results, task="recall", **small):
        return ""
    root = arm("sqrt", WIDE)
    rows = [arm("none", WIDE), small, root]
    ratio = times(slower(results, small, root))
    words = [f"From the smaller start the unscaled model takes {ratio} times the steps of 1/sqrt(d_k)."]
    if has(results, task="recall", **norm):
        rows.append(norm)
        words.append(f"Queries and keys that are normalised take {times(slower(results, norm, root))}.")
    if has(results, task="recall", **large):
        rows += [arm("dk", WIDE), large]
        words.append(
            f"1/d_k from a start that gives q.k/d_k variance 1 takes {times(slower(results, large, root))}, from its own "
            f"{times(slower(results, arm('dk', WIDE), root))}."
        )
    return f"""## The start does it

The scale can be left out if W_q and W_k start smaller by d_k^1/4 each (T5 has no scale and starts its W_q smaller): then q.k starts with
variance 1 without it.

{recall(results, *rows)}

{" ".join(words)}
"""


def causes_of_lag(results: Results) -> str:
    rates = f"""By learning rate, at d_k = {WIDE} (how many came to {percent(LEARNED)}, and the median of their steps):

{by_rate(results, WIDE)}

and at d_k = 16:

{by_rate(results, 16)}
"""
    if not all(has(results, task="recall", **{**CAUSES[name], "d_k": WIDE}) for name in list(CAUSES)[:4]):
        return f"## By learning rate\n\n{rates}"
    return f"""## Why 1/d_k is late at low learning rates

Recall at d_k = {WIDE} and one learning rate for all, {CAUSE_RATE:g}:

{causes(results)}

It is often said that 1/d_k learns slowly because the gradients of W_q and W_k are smaller, by sqrt(d_k). Under Adam small gradients
do not mean small updates: it divides them by their own size, and making them 16 times as large changes next to nothing. What is
smaller is what an update does: the same step of W_q and W_k moves q.k/d_k less than q.k/sqrt(d_k), by sqrt(d_k). Let them move 4 times
as fast (each by d_k^1/4, which is sqrt(d_k) for their product) and most of the lag is gone. Start them larger by as much as well, and
1/d_k *is* 1/sqrt(d_k), step by step, as a test shows: a scale is a start and a learning rate.

{rates}"""


def additive_attention(results: Results) -> str:
    if not has(results, task="digits", **arm(ADDITIVE, 16)):
        return ""
    return f"""## Additive attention

The scale was proposed because dot products fell behind additive attention, v.tanh(q + k), at large d_k. How large its scores start
depends on v. Both choices, on digits:

{additive(results)}

The last column is by how many nats the unscaled dot product ends above each. From a v that gives its scores the variance that q.k has
at the start, additive attention is no longer clearly ahead: much of the difference was one of starts. Britz et al. found for translation 22.03 against 22.23
BLEU at width 128, and 18.22 against 22.10 at 1024.
"""


def of_text(results: Results) -> str:
    if not has(results, task="text", **arm("sqrt", 128)):
        return ""
    learned = best(results, task="text", rule="sqrt", d_k=128).runs
    rise = interval(known(run.transplant[-1][1]) - known(run.last.loss) for run in learned)
    worth = interval(known(run.transplant[0][1]) - known(run.last.loss) for run in learned)
    right = [run for run in results.select(task="recall", rule="sqrt") if (lowest(run).accuracy or 0.0) > 0.99]
    sharp = sum(sharpest_ever(run) < COLLAPSED for run in right)
    return f"""## Other sizes for trained queries and keys

A model of text at d_k = 128, trained with 1/sqrt(d_k), then tried with every query and key set to one length,
sqrt(kappa) x/rms(x):

{transplants(results, 128)}

It is said of large models that the loss breaks when logits reach a thousand. Here it rises by {shown(rise, 3)} nats at the largest
logits (seed by seed, which is why this interval is narrower than those of the table), where attention is worth {shown(worth, 3)} (the first
row, in which all keys weigh alike). Models this small cannot refute it: `rootdk claims --id 22` has the verdict.

## Too fast

Text at d_k = 128 under 1/sqrt(d_k), faster and faster. *Collapsed*: a layer came below {COLLAPSED:g} ln n. *Spikes*: steps
whose training loss was 6 standard deviations above the 50 before. *Unstable*: diverged, with a spike, or 5 % above its own lowest
validation loss at the end.

{ladder(results, 128)}

The other way round a collapse is no alarm by itself: {sharp} of the {len(right)} runs of recall under 1/sqrt(d_k) that
answer more than 99 % right have a layer that sharp, because looking up one pair is what they were asked to learn.
"""


def meaning() -> str:
    return """## What it means for choosing a scale

- Have one: without it all tasks that were run are learned later or less well at large d_k.
- 1/sqrt(d_k) is a good default: it learns at every d_k and on every task that was tried.
- 1/d_k is late at low learning rates and bears higher ones; that it keeps its learning rate as d_k grows is what maximal-update
  parametrisation uses it for. Do not call it wrong because a table at the first step shows uniform weights.
- Comparing two scales at one learning rate compares learning rates. Match them, or tune both.
- Watch logits and entropy in your own run (`rootdk.watch`, [audit.md](audit.md)).

## Do it again

```bash
rootdk train-study --quick                  # minutes on two cores: one learning rate each, so it says nothing about the best
rootdk train-study --out results.json --report training.html      # the plan of what is shipped here
rootdk train-study --missing                # of that plan, what is not shipped
rootdk train-study --spec runs.json         # your own: a list of specs, fields as in rootdk.lab.training.RunSpec
```

Runs are kept by content and go on where they were interrupted. Ctrl-C ends a study and all that it has started within about a second, with exit code 130. A folder
of runs is for one study at a time: a second one is refused, and told which process has it. The lock ends with that process, however that ends.
"""


def side_arms(results: Results) -> str:
    """Warm-up, and another width and depth: what there is of them."""
    parts = []
    for name, change in (
        ("warm-up of 100 steps", {"warmup": 100}),
        ("1 layer of width 64", {"layers": 1, "width": 64}),
    ):
        arms = [arm(rule, WIDE, **change) for rule in ("none", "sqrt")]
        if all(has(results, task="recall", **each) for each in arms):
            ratio = times(slower(results, *arms))
            parts.append(
                f"With {name} the unscaled model takes {ratio} times the steps of the scaled one at d_k = {WIDE}:\n\n"
                f"{recall(results, *arms)}\n"
            )
    if not parts:
        return ""
    return (
        "## Warm-up, another width and depth\n\nFewer seeds, because no verdict rests on them.\n\n"
        + "\n".join(parts)
        + "\n"
    )


if __name__ == "__main__":
    TARGET.write_text(text(), "utf-8", newline="\n")
