"""Claims 16, 18 and 21: what the scale does when a model learns. The runs are those of the training study."""

import math
from collections.abc import Iterator, Sequence

from rootdk.lab.training import Results, shipped
from rootdk.lab.training.results import Outcome, best, difference, lost, outcomes, widths
from rootdk.lab.training.run import ADDITIVE, TASKS
from rootdk.theory import attention_moments, relative_gradient

from .comparison import DECIDES, LIMITS, SHOWN, Comparison
from .ledger import LATER, LEDGER, PAPER
from .sampler import Sampling

KEYS = 512
LITTLE = 0.1
_LITTLE = "a tenth of what is learned from the first step to the last is little"


@LEDGER.claim(
    16,
    title="learning slows without it",
    statement="Without the scale learning slows or fails, the more so the larger d_k is.",
    source=LATER,
    method="Small Transformers trained with and without 1/sqrt(d_k) on three tasks: the loss at the end, after equally "
    "many steps, each at its own best learning rate, over seeds.",
)
def learning_slows(
    _sampling: Sampling,
    results: Results | None = None,
    without: str = "none",
    scaled: str = "sqrt",
    tasks: Sequence[str] = TASKS,
) -> Iterator[Comparison]:
    """Without a scale against with one; whether it grows with d_k must be clear on one task at least."""
    results = results or shipped()
    grown: dict[str, tuple[float, float]] = {}
    for task in tasks:
        d_ks = widths(results, task, without)
        pairs = {d_k: [best(results, task=task, rule=rule, d_k=d_k) for rule in (without, scaled)] for d_k in d_ks}
        gaps = {d_k: difference(a.loss, b.loss) for d_k, (a, b) in pairs.items()}
        small, large = d_ks[0], d_ks[-1]
        for d_k in d_ks[1:-1]:
            gap, error = gaps[d_k]
            yield Comparison(f"{task}, d_k = {d_k}: loss gained by the scale", gap, standard_error=error, role=SHOWN)
        gap, error = gaps[large]
        yield Comparison(f"{task}, d_k = {large}: loss gained by the scale", gap, ">", 0.0, error)
        for name, outcome in zip(("without", "with"), pairs[large], strict=True):
            yield _accuracy(f"{task}, d_k = {large}: accuracy {name} it", outcome)
        gap, error = gaps[small]
        condition = f"on {task} no clear difference at d_k = {small}: {gap:.2g} nats"
        text = f"{task}, d_k = {small}: loss gained by the scale"
        yield Comparison(text, gap, ">", 0.0, error, role=LIMITS, otherwise=condition)
        grown[task] = gaps[large][0] - gap, math.hypot(gaps[large][1], error)
    clearest = max(grown, key=lambda task: grown[task][0] / max(grown[task][1], 1e-12))
    for task, (more, error) in grown.items():
        condition = (
            f"on {task} the gain does not clearly grow with d_k: {more:.2g} nats from the smallest to the largest"
        )
        text = f"{task}: gain at the largest d_k over the smallest"
        yield Comparison(
            text,
            more,
            ">",
            0.0,
            standard_error=error,
            role=DECIDES if task == clearest else LIMITS,
            otherwise=condition,
        )


@LEDGER.claim(
    18,
    title="works over a wide range of d_k",
    statement="Dividing by sqrt(d_k) works over a wide range of d_k.",
    source=LATER,
    method=f"At the start, exactly: entropy and |do/dq|/|o| of {KEYS} keys over d_k. In training: how much less is "
    "learned at the worst d_k than at the best, and the highest learning rate at which each d_k still learns.",
)
def wide_range(
    _sampling: Sampling,
    results: Results | None = None,
    rule: str = "sqrt",
    exponent: float = 0.5,
    tasks: Sequence[str] = TASKS,
) -> Iterator[Comparison]:
    """exponent is that of the rule, 1/2 in d_k^-1/2, for what is computed."""
    results = results or shipped()
    d_ks = sorted({d_k for task in tasks for d_k in widths(results, task, rule)})
    small, large = d_ks[0], d_ks[-1]
    entropy = [float(attention_moments(KEYS, d_k, d_k**-exponent).entropy) / math.log(KEYS) for d_k in (small, large)]
    alike = "a twentieth of ln n is hardly seen"
    text = f"entropy / ln n at the start, d_k = {large} less {small}"
    yield Comparison(text, entropy[1] - entropy[0], "=", 0.0, slack=0.05, choice=alike)
    near = "within a quarter of 1 is near 1"
    for d_k in (small, large):
        gradient = float(relative_gradient(KEYS, d_k, d_k**-exponent))
        yield Comparison(f"|do/dq|/|o| at the start, d_k = {d_k}", gradient, "=", 1.0, slack=0.25, choice=near)
    for task in tasks:
        mine = widths(results, task, rule)
        by_d_k = {d_k: best(results, task=task, rule=rule, d_k=d_k) for d_k in mine}
        top = min(by_d_k.values(), key=lambda outcome: outcome.loss.mean)
        worst = max(mine, key=lambda d_k: by_d_k[d_k].loss.mean)
        text = f"{task}: learned less at the worst d_k = {worst}"
        less, error = lost(by_d_k[worst], top)
        yield Comparison(text, less, "<", LITTLE, error, choice=_LITTLE)
        limits = {d_k: _highest(outcomes(results, task=task, rule=rule, d_k=d_k), top) for d_k in mine}
        condition = (
            f"at learning rates that suit d_k: on {task} the highest that still learns is {limits[mine[0]]:g} at "
            f"d_k = {mine[0]} and {limits[mine[-1]]:g} at {mine[-1]}"
        )
        share = limits[mine[-1]] / limits[mine[0]] if limits[mine[0]] else math.nan
        text = f"{task}: highest rate that learns, d_k = {mine[-1]} over {mine[0]}"
        yield Comparison(text, share, "=", 1.0, role=LIMITS, otherwise=condition, choice=_LITTLE)


def _highest(rates: Sequence[Outcome], top: Outcome) -> float:
    """The highest learning rate at which little less is learned than by the best of all; 0 if there is none."""
    return max((outcome.rate for outcome in rates if lost(outcome, top)[0] < LITTLE), default=0.0)


@LEDGER.claim(
    21,
    title="additive against dot product",
    statement="Additive and dot-product attention do equally well for small d_k; for large d_k additive attention does "
    "better than dot-product attention without a scale.",
    source=f"{PAPER}, section 3.2.1, after Britz et al. 2017",
    method="The same small encoder with either, on images of digits: the loss at the end, each at its best learning "
    "rate, over seeds. Britz et al. found 22.03 and 22.23 BLEU at width 128, and 18.22 and 22.10 at 1024.",
)
def additive_against_dot_product(
    _sampling: Sampling,
    results: Results | None = None,
    additive: str = ADDITIVE,
    dot: str = "none",
    scaled: str = "sqrt",
    alike: float = 0.1,
) -> Iterator[Comparison]:
    """alike is by how many nats the losses may differ and still be called equal."""
    results = results or shipped()
    d_ks = widths(results, "digits", additive)
    trained = {
        (rule, d_k): best(results, task="digits", rule=rule, d_k=d_k)
        for rule in (additive, dot, scaled)
        for d_k in d_ks
    }
    small, large = d_ks[0], d_ks[-1]
    for d_k in d_ks:
        value, error = difference(trained[dot, d_k].loss, trained[additive, d_k].loss)
        text = f"d_k = {d_k}: loss of dot product less additive"
        if d_k == small:
            close = "a tenth of a nat is under a twentieth of what is learned"
            yield Comparison(text, value, "=", 0.0, error, slack=alike, choice=close)
        elif d_k == large:
            yield Comparison(text, value, ">", 0.0, error)
        else:
            yield Comparison(text, value, standard_error=error, role=SHOWN)
    for rule, name in ((additive, "additive"), (dot, "dot product"), (scaled, "with the scale")):
        for d_k in (small, large):
            yield _accuracy(f"d_k = {d_k}: accuracy, {name}", trained[rule, d_k])


def _accuracy(text: str, outcome: Outcome) -> Comparison:
    return Comparison(text, outcome.accuracy.mean, standard_error=outcome.accuracy.error, role=SHOWN)
