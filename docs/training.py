"""Writes docs/training.md. Every number in that text comes out of the shipped runs: `python docs/training.py` makes it anew.

A test holds the file to what this prints.
"""

import math
from collections.abc import Sequence
from pathlib import Path

from rootdk.lab.training import Interval, Results, interval, shipped
from rootdk.lab.training.results import Outcome, best, difference, known, lost, outcomes, sharpest, widths
from rootdk.lab.training.run import ADDITIVE, TASKS

TARGET = Path(__file__).with_name("training.md")
RULES = {"none": "1", "sqrt": "1/sqrt(d_k)", "dk": "1/d_k"}
LITTLE = 0.1
LEARNED = 0.9


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


def runs_of_each_task(results: Results) -> str:
    rows = []
    for task in TASKS:
        some = results.select(task=task)
        rows.append(
            [
                task,
                ", ".join(map(str, results.values("d_k", task=task))),
                ", ".join(f"{rate:g}" for rate in results.values("learning_rate", task=task, optimizer="adam")),
                str(len(results.values("seed", task=task))),
                str(some[0].spec.steps),
                str(len(some)),
            ]
        )
    return table(["task", "d_k", "learning rates of Adam", "seeds", "steps", "runs"], rows)


def with_and_without(results: Results) -> str:
    rows = []
    for task in TASKS:
        for d_k in widths(results, task, "none"):
            found = {rule: best(results, task=task, rule=rule, d_k=d_k) for rule in RULES}
            cells = [f"{shown(one.loss, 3)} ({percent(one.accuracy.mean)})" for one in found.values()]
            rows.append([task, str(d_k), *cells])
    return table(["task", "d_k", *(f"{name}: loss (right)" for name in RULES.values())], rows)


def rate_by_rate(results: Results, d_k: int, task: str = "recall") -> str:
    some = {rule: outcomes(results, task=task, rule=rule, d_k=d_k) for rule in RULES}
    rows = [
        [f"{at[0].rate:g}", *(f"{shown(one.loss, 3)} ({percent(one.accuracy.mean)})" for one in at)]
        for at in zip(*some.values(), strict=True)
    ]
    return table(["learning rate", *(f"{name}: loss (right)" for name in RULES.values())], rows)


def learned_runs(results: Results) -> str:
    """How many runs of recall get it, by rule and learning rate."""
    rows = []
    for rate in results.values("learning_rate", task="recall"):
        cells = []
        for rule in RULES:
            some = results.select(task="recall", rule=rule, learning_rate=rate, qk_rate=1.0, qk_size=1.0)
            cells.append(f"{sum((run.last.accuracy or 0.0) > LEARNED for run in some)} of {len(some)}")
        rows.append([f"{rate:g}", *cells])
    return table(["learning rate", *RULES.values()], rows)


def highest_rates(results: Results) -> str:
    """The highest learning rate at which little less is learned than by the best of all rules and widths."""
    rows = []
    for task in TASKS:
        d_ks = widths(results, task, "none")
        every = {(rule, d_k): outcomes(results, task=task, rule=rule, d_k=d_k) for rule in RULES for d_k in d_ks}
        top = min((one for some in every.values() for one in some), key=lambda one: one.loss.mean)
        for rule, name in RULES.items():
            cells = [_highest(every[rule, d_k], top) for d_k in d_ks]
            rows.append([task, name, ", ".join(f"{cell} at {d_k}" for cell, d_k in zip(cells, d_ks, strict=True))])
    return table(["task", "scale", "highest learning rate that learns, by d_k"], rows)


def _highest(rates: Sequence[Outcome], top: Outcome) -> str:
    learned = [one.rate for one in rates if lost(one, top)[0] < LITTLE]
    return f"{max(learned):g}" if learned else "none"


def matched(results: Results) -> str:
    rows = []
    for task, optimizer, power in (("digits", "sgd", 0.5), ("recall", "adam", 0.25)):
        same = {"task": task, "optimizer": optimizer, "d_k": 256}
        changes = {
            "1/sqrt(d_k)": {"rule": "sqrt"},
            "1/d_k": {"rule": "dk"},
            "1/d_k, learning rate matched": {"rule": "dk", "qk_rate": 256.0**power},
            "1/d_k, learning rate and start matched": {"rule": "dk", "qk_rate": 256.0**power, "qk_size": 256.0**0.25},
        }
        rate = best(results, rule="sqrt", **same).rate
        for name, change in changes.items():
            one = next(found for found in outcomes(results, **same, **change) if found.rate == rate)
            entropy = interval(min(known(layer.entropy) for layer in run.moments[0].layers) for run in one.runs)
            rows.append([f"{task}, {optimizer}, {rate:g}", name, f"{entropy.mean:.2f}", shown(one.loss, 3)])
    return table(["task, optimizer, rate", "scale", "H / ln n at the start", "loss at the end"], rows)


def additive(results: Results) -> str:
    rows = []
    for d_k in widths(results, "digits", ADDITIVE):
        found = [best(results, task="digits", rule=rule, d_k=d_k) for rule in (ADDITIVE, "none", "sqrt")]
        rows.append([str(d_k), *(f"{shown(one.loss)} ({100 * one.accuracy.mean:.1f} %)" for one in found)])
    return table(["d_k", "additive: loss (right)", "dot product", "dot product / sqrt(d_k)"], rows)


def transplants(results: Results, d_k: int) -> str:
    runs = best(results, task="text", rule="sqrt", d_k=d_k).runs
    rows = []
    for at, (kappa, _, _) in enumerate(runs[0].transplant):
        loss = interval(run.transplant[at][1] for run in runs)
        largest = interval(run.transplant[at][2] for run in runs)
        rows.append([f"{kappa:g}", size(largest.mean), shown(loss)])
    natural = interval(max(known(layer.largest) for layer in run.last.layers) for run in runs)
    rows.append(["as trained", size(natural.mean),
                 shown(interval(run.last.loss for run in runs))])  # fmt: skip
    return table(["kappa", "largest logit", "loss"], rows)


def ladder(results: Results) -> str:
    rows = []
    for one in outcomes(results, task="text", rule="sqrt", d_k=64):
        largest = interval(max(known(layer.largest) for layer in run.last.layers) for run in one.runs)
        rows.append([f"{one.rate:g}", shown(one.entropy, 3), size(largest.mean), shown(one.loss)])
    return table(["learning rate", "H / ln n of the sharpest layer", "largest logit", "loss"], rows)


def text(results: Results | None = None) -> str:
    results = results or shipped()
    about = results.about
    model = results.runs[0].spec
    wide = widths(results, "recall", "none")[-1]
    without, root = (best(results, task="recall", rule=rule, d_k=wide) for rule in ("none", "sqrt"))
    gain = {
        task: difference(*(best(results, task=task, rule=rule, d_k=d_k).loss for rule in ("none", "sqrt")))[0]
        for task in TASKS
        for d_k in widths(results, task, "none")[-1:]
    }
    small = {
        task: difference(*(best(results, task=task, rule=rule, d_k=d_k).loss for rule in ("none", "sqrt")))[0]
        for task in TASKS
        for d_k in widths(results, task, "none")[:1]
    }
    text_small = widths(results, "text", "none")[0]
    diverged = sum(run.diverged for run in results.runs)
    added = widths(results, "digits", ADDITIVE)
    behind = [
        difference(*(best(results, task="digits", rule=rule, d_k=d_k).loss for rule in ("none", ADDITIVE)))[0]
        for d_k in (added[0], added[-1])
    ]
    text_d_k = widths(results, "text", "none")[-1]
    learned = best(results, task="text", rule="sqrt", d_k=text_d_k).runs
    rise = interval(known(run.transplant[-1][1]) - known(run.last.loss) for run in learned)
    worth = interval(known(run.transplant[0][1]) - known(run.last.loss) for run in learned)
    steps = outcomes(results, task="text", rule="sqrt", d_k=64)
    sharp = [
        run
        for run in results.select(task="recall", rule="sqrt")
        if (run.last.accuracy or 0.0) > 0.99 and sharpest(run) < 0.05
    ]
    return f"""# Does the scale matter when a model learns?

The argument for sqrt(d_k) is about the first step: with it, random queries and keys start in one state whatever d_k is
([why-root-dk.md](why-root-dk.md)). What follows for training is a guess until somebody trains. These are small models on three
tasks, {len(results.runs)} runs, made by `rootdk train-study` and shipped with the package: `rootdk.lab.training.shipped()` has them,
`rootdk` draws them into its report, `rootdk claims --id 16` judges by them. Every number below is read off them by
[training.py](training.py). Small models on one CPU: read it as what can happen, not as what must happen at scale.

## What was run

A Transformer with {model.layers} layers of width {model.width} and {model.heads} heads, norms before, no dropout, no warm-up. All
weights start with variance 1/fan-in, so that queries and keys have variance 1. **Only the width of queries and keys changes with
d_k**, and everything else keeps its size. Three tasks:

- *recall*: 24 pairs of a name and a value, then names whose values are asked for. It needs attention and nothing else.
- *text*: the next character of the sources of Python's standard library, 64 at a time; a decoder. Another version of Python has another
  text.
- *digits*: scikit-learn's images of 8 x 8 pixels, in 16 patches; an encoder.

{runs_of_each_task(results)}

Loss and accuracy belong to data that was not trained on. "±" is half of the 95 % interval of the mean over seeds (Student's t: with
three seeds it is wide, and on recall, which a run either gets or does not, very wide). Where two intervals overlap the runs do not
tell the two apart. {diverged or "No"} run{"" if diverged == 1 else "s"} ended in a loss that was no number. Made with torch {about["torch"]},
Python {about["python"]}, kernel {about["kernel"]}, {about["cpus"]} CPUs.

## Without the scale

Each rule at the best of the learning rates that were tried, after equally many steps:

{with_and_without(results)}

At d_k = {wide} the unscaled model answers {percent(without.accuracy.mean)} of recall, which is guessing, and the scaled one {percent(root.accuracy.mean)}.
On text and digits it does learn, and ends {gain["text"]:.2f} and {gain["digits"]:.2f} nats behind: a model can work around attention
that is frozen, where the task lets it. At d_k = 16 the difference on recall and digits is {small["recall"]:.2f} nats each, which these runs
do not tell from none; on text it is {small["text"]:.2f} at d_k = {text_small} already.

## Where 1/d_k wins, and where it loses

Recall at d_k = {wide}, by learning rate:

{rate_by_rate(results, wide)}

At the lowest rate 1/d_k is late: its gradient to the queries is smaller by sqrt(d_k), and its weights start all but uniform. At higher
rates it is the other way round. A run of recall gets it or does not, so what can be counted is how many do (more than 90 % right),
over all d_k:

{learned_runs(results)}

That much is clear. Adam moves every weight by about the learning rate, so the change of q.k adds up over d_k components in one direction
and grows with d_k, not with its root: 1/d_k divides that away, 1/sqrt(d_k) does not. By that reasoning the highest rate at which
1/sqrt(d_k) still learns should fall as d_k grows, and that of 1/d_k should not. The means say so on recall, with three seeds each: a hint and
no proof. A rate counts here if the mean loss is within a tenth of the best (of what is learned from the start to the end):

{highest_rates(results)}

**A scale is a start and a learning rate.** q.k/d_k is (q d_k^-1/4).(k d_k^-1/4)/sqrt(d_k): the two rules are one model, whose W_q and W_k
start smaller by d_k^1/4 and move less. Start them larger by d_k^1/4 and multiply their learning rate by sqrt(d_k) under SGD, or
by d_k^1/4 under Adam, and 1/d_k *is* 1/sqrt(d_k), step by step. With the rate alone it keeps its own start:

{matched(results)}

## Additive attention

The scale was proposed because dot products fell behind additive attention, v.tanh(q + k), at large d_k. On digits:

{additive(results)}

Without the scale the dot product is {behind[0]:+.2f} nats from additive attention at d_k = {added[0]} and {behind[1]:+.2f} at {added[-1]}: the shape that Britz
et al. found for translation (22.03 against 22.23 BLEU at width 128, 18.22 against 22.10 at 1024). With the scale it does not fall
behind.

## Other sizes for trained queries and keys

A model of text at d_k = {text_d_k}, trained with 1/sqrt(d_k), then tried with every query and key set to one length,
sqrt(kappa) x/rms(x):

{transplants(results, text_d_k)}

It is said that the loss breaks when logits reach a thousand. Here it rises by {shown(rise, 3)} nats (seed by seed, which
is why this interval is narrower than those of the table) and stays there: {percent(rise.mean / worth.mean)} of what attention is worth (the first row,
where all keys weigh alike), and most of that is there before the logits are a hundred. A softmax
with all its weight on one key still has it on the key that the model would have favoured. What large logits do to *training* is the next
table.

## Too fast

Text at d_k = 64 under 1/sqrt(d_k), faster and faster:

{ladder(results)}

From {steps[0].rate:g} to {steps[-1].rate:g} the entropy of the sharpest layer falls to {steps[-1].entropy.mean:.3f} of ln n and the loss is worse for it: collapse and
instability do go together. The other way round they need not: {len(sharp)} runs of recall under 1/sqrt(d_k) have a layer that sharp and answer
more than 99 % right, because looking up one pair is what they were asked to learn. So low entropy alone is no alarm; low entropy
with large logits that grow is.

## What it means for choosing a scale

- Have one. At d_k = 256 and more the unscaled model is behind on every task here, and on recall it does not learn at all; at 64 it
  depends on the seed.
- 1/sqrt(d_k) is a good default: it learns at every d_k that was tried, at low learning rates too.
- If you train fast, 1/d_k is the safer one here, at every d_k; that it keeps its learning rate as d_k grows is what maximal-update
  parametrisation uses it for, and what these runs hint at. Do not call it wrong because a table at the first step shows uniform weights.
- If you train slowly, 1/d_k is the later one.
- Comparing two scales at one learning rate compares learning rates. Match them, or tune both.
- Watch logits and entropy in your own run (`rootdk.watch`, [audit.md](audit.md)).

## Do it again

```bash
rootdk train-study --quick                  # minutes: usable curves
rootdk train-study --out results.json --report training.html      # what is shipped here
rootdk train-study --full                   # a night: 6 seeds, d_k from 8 to 512
rootdk train-study --spec runs.json         # your own: a list of specs, fields as in rootdk.lab.training.RunSpec
```

Runs are kept by content and go on where they were interrupted. Ctrl-C ends a study and all that it has started within about a second, with exit code 130. A folder
of runs is for one study at a time: a second one is refused, and told which process has it. The lock ends with that process, however that ends.
"""


if __name__ == "__main__":
    TARGET.write_text(text(), "utf-8", newline="\n")
