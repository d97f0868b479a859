"""Claims 16, 18, 21, 22 and 23: what the scale does when a model learns. The runs are those of the training study."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rootdk.errors import ArgumentError
from rootdk.lab.training import Interval, Results, interval, shipped
from rootdk.lab.training.results import Outcome, best, difference, known, lost, outcomes, sharpest, widths
from rootdk.lab.training.run import ADDITIVE, TASKS
from rootdk.theory import attention_moments, relative_gradient

from .comparison import DECIDES, LIMITS, SHOWN, Comparison
from .ledger import COMMON, LEDGER, PAPER
from .sampler import Sampling

KEYS = 512
LITTLE = 0.1
_LITTLE = "a tenth of what is learned from the first step to the last is little"
THOUSANDS = (1e3, 1e4)
HUNDRED = 100.0
COLLAPSED = 0.05  # rootdk.audit calls a layer collapsed below this
Curve = tuple[tuple[float, float | None, float | None], ...]


@LEDGER.claim(
    16,
    title="learning slows without it",
    statement="Without the scale learning slows or fails, the more so the larger d_k is.",
    source=COMMON,
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
            yield Comparison(f"{task}, d_k = {d_k}: loss that the scale saves", gap, standard_error=error, role=SHOWN)
        gap, error = gaps[large]
        yield Comparison(f"{task}, d_k = {large}: loss that the scale saves", gap, ">", 0.0, error)
        for name, outcome in zip(("without", "with"), pairs[large], strict=True):
            yield _accuracy(f"{task}, d_k = {large}: accuracy {name} it", outcome)
        gap, error = gaps[small]
        condition = f"on {task} no clear difference at d_k = {small}: {gap:.2g} nats"
        text = f"{task}, d_k = {small}: loss that the scale saves"
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
    source=COMMON,
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
    source=f"{PAPER}, section 3.2.1, after Britz et al. 2017, Massive Exploration of Neural Machine Translation "
    "Architectures, https://arxiv.org/abs/1703.03906",
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


@LEDGER.claim(
    22,
    title="loss breaks at logits of 1e3",
    statement="The loss breaks when q and k are rescaled until logits reach a thousand to ten thousand.",
    source="Wortsman et al. 2023, Small-scale proxies for large-scale Transformer training instabilities, "
    "https://arxiv.org/abs/2309.14322",
    method="Small trained models of text, tried again with sqrt(kappa) q/rms(q) and the same for k, in float32 and "
    "without further training: the loss where the largest logit is some thousands, where it is under a hundred, and "
    "where kappa is so small that all keys weigh alike.",
    elsewhere="models of 10 million to 5 billion parameters, trained on while the logits grow; these have two layers",
)
def loss_breaks(
    _sampling: Sampling, results: Results | None = None, rule: str = "sqrt", half: float = 0.5
) -> Iterator[Comparison]:
    """half: how much of what attention is worth must be lost before the loss counts as broken."""
    results = results or shipped()
    tried = results.select(lambda run: bool(run.transplant), task="text", rule=rule)
    if not tried:
        raise ArgumentError(f"results: must hold runs of text with rule {rule!r} and a transplant, got none")
    rises = {
        d_k: _Rise.of(best(results, task="text", rule=rule, d_k=d_k)) for d_k in sorted({run.spec.d_k for run in tried})
    }
    worth, early = ([getattr(rise, name) for rise in rises.values()] for name in ("share", "early"))
    means = [rise.rise.mean for rise in rises.values()]
    little = (
        f"the loss rises by {min(means):.2f} to {max(means):.2f}, {min(worth):.0%} to {max(worth):.0%} of what "
        "attention is worth to these small models"
    )
    sooner = f"no thousand is needed: {min(early):.0%} to {max(early):.0%} of the rise is there at logits under 100"
    broken = "the worth of attention is the loss it saves against equal weights; losing half of it counts as broken"
    late = "less than half of it may be there before the logits are large"
    most = max(rises, key=lambda d_k: rises[d_k].share)
    for d_k, rise in rises.items():
        where = f"d_k = {d_k}"
        yield Comparison(f"{where}: loss risen at logits of 1e3 to 1e4", rise.rise.mean, ">", 0.0, rise.rise.error)
        text, error = f"{where}: as a share of attention's worth", rise.share_error
        if d_k == most:  # the case that speaks most for the claim decides
            yield Comparison(text, rise.share, ">", half, error, otherwise=little, choice=broken)
        else:
            yield Comparison(text, rise.share, standard_error=error, role=SHOWN)
        text = f"{where}: share of the rise at logits under 100"
        error = rise.early_error
        yield Comparison(text, rise.early, "<", 0.5, error, role=LIMITS, otherwise=sooner, choice=late)
        yield Comparison(
            f"{where}: loss risen at the largest kappa", rise.end.mean, standard_error=rise.end.error, role=SHOWN
        )


@dataclass(frozen=True, slots=True)
class _Rise:
    """By how much the loss rises at logits of 1e3 to 1e4, as a share of what attention is worth, and how early."""

    rise: Interval
    share: float
    share_error: float
    early: float
    early_error: float
    end: Interval

    @classmethod
    def of(cls, outcome: Outcome) -> "_Rise":
        curves = [(known(run.last.loss), run.transplant) for run in outcome.runs if run.transplant]
        rise = interval(_loss(curve, *THOUSANDS) - loss for loss, curve in curves)
        before = interval(_loss(curve, 0.0, HUNDRED) - loss for loss, curve in curves)
        worth, end = (interval(known(curve[at][1]) - loss for loss, curve in curves) for at in (0, -1))
        return cls(rise, *_part(rise, worth), *_part(before, rise), end)


def _part(of: Interval, whole: Interval) -> tuple[float, float]:
    """A share and its standard error; of nothing there is none."""
    if not whole.mean > 0:
        return math.nan, math.nan
    share = of.mean / whole.mean
    return share, math.hypot(of.error, share * whole.error) / whole.mean


def _loss(curve: Curve, low: float, high: float = math.inf) -> float:
    """The loss at the largest kappa whose largest logit lies between low and high."""
    inside = [loss for _, loss, largest in curve if loss is not None and largest is not None and low < largest < high]
    return inside[-1] if inside else math.nan


@LEDGER.claim(
    23,
    title="entropy collapse and instability",
    statement="A collapse of the attention entropy goes with unstable training.",
    source="Zhai et al. 2023, Stabilizing Transformer Training by Preventing Attention Entropy Collapse, "
    "https://arxiv.org/abs/2303.06296",
    method="The same model of text at higher and higher learning rates: entropy / ln n of its sharpest layer, the "
    "largest logit, and the loss. And the other way round: whether a model with so sharp a layer can learn well.",
)
def collapse_goes_with_instability(
    _sampling: Sampling, results: Results | None = None, rule: str = "sqrt", d_k: int = 64, collapsed: float = COLLAPSED
) -> Iterator[Comparison]:
    """d_k is that of the ladder of learning rates."""
    results = results or shipped()
    ladder = outcomes(results, task="text", rule=rule, d_k=d_k)
    top, good = ladder[-1], min(ladder, key=lambda outcome: outcome.loss.mean)
    cut = "where rootdk's audit calls a layer collapsed"
    for outcome in ladder:
        if outcome is not top and outcome is not good:
            yield Comparison(f"rate {outcome.rate:g}: entropy / ln n", outcome.entropy.mean, role=SHOWN)
            yield Comparison(
                f"rate {outcome.rate:g}: loss", outcome.loss.mean, standard_error=outcome.loss.error, role=SHOWN
            )
    entropy = top.entropy
    yield Comparison(f"rate {top.rate:g}: entropy / ln n", entropy.mean, "<", collapsed, entropy.error, choice=cut)
    worse, error = difference(top.loss, good.loss)
    yield Comparison(f"rate {top.rate:g}: loss over the best", worse, ">", 0.0, error)
    entropy = good.entropy
    text = f"rate {good.rate:g}, the best: entropy / ln n"
    yield Comparison(text, entropy.mean, ">", collapsed, entropy.error, choice=cut)
    sharp = _sharp_and_right(results, rule, collapsed)
    condition = (
        f"not the other way round: {sharp} runs of recall under that rule have a layer below {collapsed:g} ln n and "
        "answer more than 99 % right, because looking up one pair is what they learned"
    )
    text = "runs of recall with such a layer that learned well"
    yield Comparison(text, sharp, "=", 0.0, role=LIMITS, otherwise=condition)


def _sharp_and_right(results: Results, rule: str, collapsed: float) -> int:
    return sum(
        (run.last.accuracy or 0.0) > 0.99 and sharpest(run) < collapsed
        for run in results.select(task="recall", rule=rule)
    )
