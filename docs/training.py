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
    estimate,
    grouped,
    known,
    largest,
    lowest,
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


def shown(value: Interval, digits: int = 2) -> str:
    """Mean and half of its 95 % interval; with the digits that the interval leaves."""
    if not math.isfinite(value.mean):
        return "diverged"
    return f"{value.mean:.{digits}f} ± {value.half:.{digits}f}"


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


def times(log_ratio: Estimate) -> str:
    """A ratio of steps, from the logarithm, with its interval."""
    return f"{math.exp(log_ratio.value):.2f} ({math.exp(log_ratio.low):.2f} to {math.exp(log_ratio.high):.2f})"


def slower(results: Results, a: dict[str, Any], b: dict[str, Any], rate: float | None = None) -> Estimate:
    """ln of the steps that a takes over those of b, on recall."""
    arms = (Arm(setting(results, task="recall", **spec), "log_steps", rate) for spec in (a, b))
    return estimate(lambda first, second: first - second, *arms)


def behind(results: Results, a: dict[str, Any], b: dict[str, Any]) -> Estimate:
    """By how many nats a ends above b."""
    return estimate(lambda first, second: first - second, *(Arm(setting(results, **spec), "loss") for spec in (a, b)))


def nats(gap: Estimate) -> str:
    return f"{gap.value:+.3f} ({gap.low:+.3f} to {gap.high:+.3f})"


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
            ", ".join(sorted((row[2] for row in matching_rows), key=int)),
            rates,
            seeds,
            str(sum(int(row[5]) for row in matching_rows)),
        ]
        for (task, line, rates, seeds), matching_rows in merged.items()
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
    return table(["d_k", "scale", "learning rate", "reached 90 %", "median of steps", "from, to"], rows)


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
            outcome = group.at(rate)
            cells.append(f"{outcome.learned} of {len(outcome.runs)}, {spread(outcome.steps, group.spec.steps)[0]}")
        rows.append([f"{rate:g}", *cells])
    return table(["learning rate", *RULES.values()], rows)


def losses(results: Results, task: str) -> str:
    rows = []
    for d_k, (rule, name) in product(results.values("d_k", task=task), RULES.items()):
        if has(results, task=task, **arm(rule, d_k)):
            group = setting(results, task=task, rule=rule, d_k=d_k)
            outcome = group.best
            rows.append(
                [task, str(d_k), name, rate_of(group), shown(outcome.loss, 3), f"{100 * outcome.accuracy.mean:.1f} %"]
            )
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
        outcome = setting(results, task="recall", **spec).at(CAUSE_RATE)
        first = outcome.runs[0]
        ratio = "1" if spec == usual else times(slower(results, spec, usual, CAUSE_RATE))
        entropy = interval(min(known(layer.entropy) for layer in run.moments[0].layers) for run in outcome.runs)
        rows.append([name, f"{entropy.mean:.2f}", f"{outcome.learned} of {len(outcome.runs)}",
                     *spread(outcome.steps, first.spec.steps), ratio])  # fmt: skip
    head = [
        "scale",
        "entropy share at the start",
        "reached 90 %",
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
            outcome = group.best
            gap = nats(
                behind(results, {"task": "digits", "d_k": d_k, "rule": "none"}, {"task": "digits", "d_k": d_k, **arm})
            )
            rows.append([str(d_k), name, rate_of(group), shown(outcome.loss, 3), f"{100 * outcome.accuracy.mean:.1f} %",
                         "" if arm == {"rule": "none"} else gap])  # fmt: skip
    return table(["d_k", "scores", "learning rate", "loss", "right", "dot product less this"], rows)


def transplants(results: Results, d_k: int) -> str:
    runs = setting(results, task="text", rule="sqrt", d_k=d_k).best.runs
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
    for outcome in setting(results, task="text", rule="sqrt", d_k=d_k).outcomes:
        logits = interval(largest(run) for run in outcome.runs)
        count = len(outcome.runs)
        rows.append(
            [
                f"{outcome.rate:g}",
                f"{sum(sharpest_ever(run) < COLLAPSED for run in outcome.runs)} of {count}",
                size(logits.mean),
                str(sum(run.spikes for run in outcome.runs)),
                str(outcome.diverged),
                f"{sum(unstable(run) for run in outcome.runs)} of {count}",
                shown(outcome.loss, 3),
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
        f" Text ends after {texts[0].spec.steps} steps, long before it has learned all it can: it compares how fast a model learns, not how well in the end."
        if texts
        else ""
    )
    return f"""# Does the scale matter when a model learns?

The argument for sqrt(d_k) is about the first step: with this scale, attention between random queries and keys starts the same at every d_k
([why-root-dk.md](why-root-dk.md)). What follows for training can only be found by training. So very small models were trained, {len(results.runs)}
times, by `rootdk train-study`. The results are part of the package: `rootdk.lab.training.shipped()` returns them,
the report of `rootdk` draws them, and `rootdk claims --id 16` uses them as evidence. [training.py](training.py) computes every number below
from them. They show what can happen. Large models may behave differently.

An earlier version of this page said two things that were wrong. Without the scale, it said, recall is never learned at d_k = 256 and more; but its runs
ended after 300 steps. And 1/d_k learns later, it said, because its gradients are small; but under Adam the size of gradients hardly matters.

## What was run

A Transformer with 2 layers of width 32 and one head, with a norm before each block, without dropout, trained by Adam. All weights start with variance 1/fan-in, so
queries and keys start with variance 1. An *arm* is one way to set the model up: a scale, and what else is changed. **Only the width of queries and keys changes with d_k**;
everything else keeps its size. There are three tasks:

- *recall*: 12 pairs of a name and a value, then 12 names whose values are asked for. It needs attention and nothing else.
- *text*: predict the next character in the source code of Python's standard library, from 64 characters; a decoder. Another version of Python
  has another text.{"" if texts else " Its runs are planned, and none is shipped yet."}
- *digits*: name the digit in one of scikit-learn's images of 8 x 8 pixels, cut into 16 patches; an encoder.

{what_was_run(results)}

**When a run ends.** The model is tested on the validation set each time the number of steps has grown by a tenth, so numbers of steps are known to a tenth.
Recall ends when three such tests in a row are 99 % right, or after {budget:,} steps. A run that has
not learned by then is *censored*: it counts as "over {budget:,}". A mean takes it as {budget:,} steps, which makes slow learning look
faster than it is. Digits ends when the second half of all steps has lowered the validation loss by less than 1 %, or after {digits[0].spec.steps} steps
({flat} of {len(digits)} runs ended in the first way).{of_text}

**What is compared.** The data are in three parts: for training, validation and test. The validation set chooses the learning rate of every arm. What is reported is measured on
the test set, at the step where the validation loss is lowest. If the best rate is the lowest or the highest that was tried, the table says
so: a better one may exist beyond it. "±" is half of the 95 % interval of the mean over seeds (Student's t). A range in brackets is the middle
95 % of a bootstrap, which draws the seeds anew and chooses the learning rates again. {"No run" if not diverged else f"{diverged} runs"} diverged to NaN.
Made with torch {about["torch"]}, Python {about["python"]}, kernel {about["kernel"]}, one thread each: {seconds / 3600:.1f} hours of runs on
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
It learns later, but it learns: at d_k = {large}, {without.best.learned} of {len(without.best.runs)} seeds reach {percent(LEARNED)} within {budget:,} steps, at their own best learning rate
({rates}). In the other two tasks the loss says how far behind it stays:

{chr(10).join(part + chr(10) for part in tables)}
What the scale gains, in nats (the unit of these losses), with the interval: {"; ".join(gains)}.
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
        words.append(
            f"With queries and keys that are normalised (QK-norm) it takes {times(slower(results, norm, root))}."
        )
    if has(results, task="recall", **large):
        rows += [arm("dk", WIDE), large]
        words.append(
            f"1/d_k takes {times(slower(results, large, root))} from a start that gives q.k/d_k variance 1, and "
            f"{times(slower(results, arm('dk', WIDE), root))} from the usual start."
        )
    return f"""## The start does it

The scale can be left out if W_q and W_k each start smaller by d_k^1/4: then q.k starts with
variance 1 without a scale. (T5 does something like it: it has no scale, and its W_q starts smaller.)

{recall(results, *rows)}

{" ".join(words)}
"""


def causes_of_lag(results: Results) -> str:
    rates = f"""By learning rate, at d_k = {WIDE} (how many runs reached {percent(LEARNED)}, and the median of their steps):

{by_rate(results, WIDE)}

and at d_k = 16:

{by_rate(results, 16)}
"""
    if not all(has(results, task="recall", **{**CAUSES[name], "d_k": WIDE}) for name in list(CAUSES)[:4]):
        return f"## By learning rate\n\n{rates}"
    return f"""## Why 1/d_k is late at low learning rates

Recall at d_k = {WIDE} and one learning rate for all, {CAUSE_RATE:g}:

{causes(results)}

It is often said that 1/d_k learns slowly because the gradients of W_q and W_k are smaller, by sqrt(d_k). But under Adam small gradients
do not mean small updates. Adam divides a gradient by its own size, so making it 16 times as large changes almost nothing. What is
smaller is the effect of an update: the same step of W_q and W_k moves q.k/d_k less than q.k/sqrt(d_k), by sqrt(d_k). If both learn 4 times
as fast (d_k^1/4 for each, so sqrt(d_k) for their product), most of the lag is gone. If they also start 4 times as large,
1/d_k *is* 1/sqrt(d_k), step by step, as a test shows. A scale is a start and a learning rate.

{rates}"""


def additive_attention(results: Results) -> str:
    if not has(results, task="digits", **arm(ADDITIVE, 16)):
        return ""
    return f"""## Additive attention

The scale was proposed because dot products did worse than additive attention, v.tanh(q + k), at large d_k. The size of v decides how large the scores of additive
attention are at the start. They can start as large as q.k/sqrt(d_k), or as large as q.k. Both, on digits:

{additive(results)}

The last column says by how many nats the loss of the unscaled dot product is higher. If additive attention starts with scores as large as those of q.k,
it is no longer clearly better: much of the difference was a difference of starts. Britz et al. measured the same two in translation, dot product against additive: 22.03 against 22.23
BLEU at width 128, and 18.22 against 22.10 at 1024.
"""


def of_text(results: Results) -> str:
    if not has(results, task="text", **arm("sqrt", 128)):
        return ""
    learned = setting(results, task="text", rule="sqrt", d_k=128).best.runs
    rise = interval(known(run.transplant[-1][1]) - known(run.last.loss) for run in learned)
    worth = interval(known(run.transplant[0][1]) - known(run.last.loss) for run in learned)
    right = [run for run in results.select(task="recall", rule="sqrt") if (lowest(run).accuracy or 0.0) > 0.99]
    sharp = sum(sharpest_ever(run) < COLLAPSED for run in right)
    return f"""## Other sizes for trained queries and keys

A model of text at d_k = 128 was trained with 1/sqrt(d_k). Then, without more training, every query and key x was given the same length, as
sqrt(kappa) x/rms(x):

{transplants(results, 128)}

It is said of large models that the loss breaks down when logits reach a thousand. Here it rises by {shown(rise, 3)} nats at the largest
logits. All that attention does is worth {shown(worth, 3)} nats: that is the first row, where all keys have the same weight. (Both are differences within one seed, so their intervals are narrower
than those of the table.) Models as small as these cannot refute the statement; `rootdk claims --id 22` has the verdict.

## Too fast

Text at d_k = 128 under 1/sqrt(d_k), with higher and higher learning rates. *Collapsed*: the entropy of a layer fell below {COLLAPSED:g} ln n. *Spikes*: steps
whose training loss was 6 standard deviations above the mean of the 50 steps before. *Unstable*: the run diverged, had a spike, or ended 5 % above its own lowest
validation loss.

{ladder(results, 128)}

But a collapse alone is no alarm: {sharp} of the {len(right)} runs of recall under 1/sqrt(d_k) that
answer more than 99 % right have a layer as sharp as this, because the task is to look up one pair.
"""


def meaning() -> str:
    return """## What it means for choosing a scale

- Use a scale: without one, every task here is learned later or less well at large d_k.
- 1/sqrt(d_k) is a good default: it learns at every d_k and on every task that was tried.
- 1/d_k learns later at low learning rates and stays stable at higher ones. Maximal-update parametrisation uses it because its best learning rate stays the same as d_k grows.
  Uniform weights at the first step do not make it wrong.
- To compare two scales at one learning rate is to compare learning rates. Match the rates, or tune both.
- Watch logits and entropy in your own run (`rootdk.watch`, [audit.md](audit.md)).

## Do it again

```bash
rootdk train-study --quick                  # minutes on two cores: one learning rate each, so it says nothing about the best
rootdk train-study --out results.json --report training.html      # the plan of what is shipped here
rootdk train-study --missing                # of that plan, what is not shipped
rootdk train-study --spec runs.json         # your own: a list of specs, fields as in rootdk.lab.training.RunSpec
```

Finished runs are kept, each under its spec, so a study that was interrupted continues where it stopped. Ctrl-C ends a study and all processes that it started within about a second, with exit code 130. A folder
of runs is for one study at a time. A second study is refused, with the number of the process that holds the folder; the lock ends with that process, in whatever way it ends.
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
