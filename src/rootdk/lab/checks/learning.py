"""Claims 16, 18, 21, 22 and 23: what the scale does when a model learns. The runs are those of the training study.

Every number from runs has a standard error over seeds: from a bootstrap that chooses the learning rates again.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rootdk.lab.training import Interval, Results, interval, shipped
from rootdk.lab.training.results import (
    LEARNED,
    Arm,
    Estimate,
    Outcome,
    estimate,
    known,
    largest,
    lowest,
    resampled,
    setting,
    sharpest_ever,
    tasks_of,
    unstable,
    widths,
)
from rootdk.lab.training.run import ADDITIVE, Transplant
from rootdk.theory import attention_moments, relative_gradient

from .comparison import CLEAR, DECIDES, LIMITS, SHOWN, Comparison
from .ledger import COMMON, LEDGER, PAPER
from .sampler import Sampling

KEYS = 512
LITTLE = 0.1
_LITTLE = "a tenth of what is learned from the first step to the lowest loss is little"
SLOWER = math.log(1.5)
_SLOWER = "half as many steps again is slower"
THOUSANDS = (1e3, 1e4)
HUNDRED = 100.0
COLLAPSED = 0.05  # rootdk.audit calls a layer collapsed below this


@LEDGER.claim(
    16,
    title="learning slows without it",
    statement="Without the scale learning slows or fails, the more so the larger d_k is.",
    source=COMMON,
    method="Small Transformers trained with and without 1/sqrt(d_k) on up to three tasks, W_q and W_k starting with "
    f"variance 1/fan-in: on recall the steps until {LEARNED:.0%} are right (a run that does not come so far counts "
    "with its budget, which makes the ratio too small), on text and digits the lowest loss. Each at the learning rate "
    "that a validation set chooses, on a test set, over seeds. And without the scale from smaller W_q and W_k.",
)
def learning_slows(
    _sampling: Sampling,
    results: Results | None = None,
    without: str = "none",
    scaled: str = "sqrt",
    tasks: Sequence[str] | None = None,
) -> Iterator[Comparison]:
    """No scale against a scale; whether the difference grows with d_k must be clear on one task at least.

    By default, tasks are those that both were run on at two d_k.
    """
    results = results or shipped()
    tasks = tasks_of(results, without, scaled) if tasks is None else tasks
    grown: dict[str, Estimate] = {}
    for task in tasks:
        d_ks = widths(results, task, without)
        small, large = d_ks[0], d_ks[-1]
        gap = Gap(results, task, without, scaled)
        for d_k in d_ks[1:-1]:
            between = gap.at(d_k)
            yield _shown(gap.text(d_k), between.value, between.error)
        most = gap.at(large)
        yield Comparison(gap.text(large), most.value, ">", gap.clear, most.error, choice=gap.choice)
        for name, rule in (("without", without), ("with", scaled)):
            right = setting(results, task=task, rule=rule, d_k=large).best.accuracy
            yield _shown(f"{task}, d_k = {large}: accuracy {name} it", right.mean, right.error)
        least = gap.at(small)
        condition = f"on {task} hardly any difference at d_k = {small}: {gap.words(least)}"
        doubt = f"at d_k = {small} not clear on {task}: {gap.words(least)}"
        yield Comparison(
            gap.text(small), least.value, ">", gap.clear, least.error, role=LIMITS, otherwise=condition, doubt=doubt,
            choice=gap.choice,
        )  # fmt: skip
        grown[task] = gap.growth(small, large)
        started = gap.started(large)
        if started is not None:
            condition = (
                f"where queries and keys start with unit variance: from W_q and W_k smaller by d_k^1/4 {task} takes "
                f"{gap.words(started)} at d_k = {large}, not {math.exp(most.value):.2f}"
            )
            text = f"{task}, d_k = {large}, small start: ln(steps without / with it)"
            yield Comparison(
                text, started.value, ">", SLOWER, started.error, role=LIMITS, otherwise=condition,
                doubt=condition, choice=_SLOWER,
            )  # fmt: skip
    clearest = max(grown, key=lambda task: grown[task].value / max(grown[task].error, 1e-12))
    for task, more in grown.items():
        condition = f"on {task} the gain does not grow with d_k: {more.value:.2g} from the smallest to the largest"
        role, doubt = LIMITS, f"on {task} it is not clear that the gain grows with d_k"
        if task == clearest:
            role, doubt = DECIDES, ""
        text = f"{task}: the same, largest d_k less smallest"
        yield Comparison(text, more.value, ">", 0.0, more.error, role=role, otherwise=condition, doubt=doubt)


def _difference(first: Arm, second: Arm) -> Estimate:
    return estimate(lambda a, b: a - b, first, second)


def _shown(text: str, value: float, error: float) -> Comparison:
    """A number for the reader, with its standard error."""
    return Comparison(text, value, standard_error=error, role=SHOWN)


class Gap:
    """What a task loses without the scale: steps, if runs end when they have learned, else loss."""

    def __init__(self, results: Results, task: str, without: str, scaled: str) -> None:
        self.results, self.task, self.rules = results, task, (without, scaled)
        first = setting(results, task=task, rule=scaled, d_k=widths(results, task, scaled)[0])
        self.steps = first.spec.stop == "learned"
        self.metric = "log_steps" if self.steps else "loss"
        self.clear, self.choice = (SLOWER, _SLOWER) if self.steps else (0.0, "")

    def _arms(self, d_k: int) -> list[Arm]:
        return [self._arm(rule, d_k) for rule in self.rules]

    def _arm(self, rule: str, d_k: int, **spec: float) -> Arm:
        return Arm(setting(self.results, task=self.task, rule=rule, d_k=d_k, **spec), self.metric)

    def at(self, d_k: int) -> Estimate:
        """The gap at this d_k."""
        return _difference(*self._arms(d_k))

    def growth(self, small: int, large: int) -> Estimate:
        """How much larger the gap is at the larger d_k."""
        return estimate(lambda a, b, c, d: (a - b) - (c - d), *self._arms(large), *self._arms(small))

    def started(self, d_k: int) -> Estimate | None:
        """The same from an initialisation that gives q.k the variance that the scale would give."""
        without, scaled = self.rules
        size = d_k**-0.25
        if not self.steps or not self.results.select(task=self.task, rule=without, d_k=d_k, qk_size=size):
            return None
        return _difference(self._arm(without, d_k, qk_size=size), self._arm(scaled, d_k))

    def text(self, d_k: int) -> str:
        """`at` in words."""
        quantity = "ln(steps without / with it)" if self.steps else "loss that the scale saves"
        return f"{self.task}, d_k = {d_k}: {quantity}"

    def words(self, measured: Estimate) -> str:
        """The number with the interval that decides, in words."""
        low, high = measured.value - CLEAR * measured.error, measured.value + CLEAR * measured.error
        if self.steps:
            return f"{math.exp(measured.value):.2f} ({math.exp(low):.2f} to {math.exp(high):.2f}) times the steps"
        return f"{measured.value:.2g} nats ({low:.2g} to {high:.2g})"


@LEDGER.claim(
    18,
    title="works over a wide range of d_k",
    statement="Dividing by sqrt(d_k) works over a wide range of d_k.",
    source=COMMON,
    method=f"At the start, exactly: entropy and |do/dq|/|o| of {KEYS} keys over d_k. In training: how much less is "
    "learned at the worst d_k than at the best, each at the learning rate that a validation set chooses, and how much "
    "less at the highest rate that both ends of the range were tried at.",
)
def wide_range(
    _sampling: Sampling,
    results: Results | None = None,
    rule: str = "sqrt",
    exponent: float = 0.5,
    tasks: Sequence[str] | None = None,
) -> Iterator[Comparison]:
    """exponent is that of the rule, 1/2 in d_k^-1/2, for the computed numbers; tasks as in claim 16."""
    results = results or shipped()
    tasks = tasks_of(results, rule) if tasks is None else tasks
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
        groups = {d_k: setting(results, task=task, rule=rule, d_k=d_k) for d_k in mine}
        losses = {d_k: groups[d_k].best.loss.mean for d_k in mine}
        top, worst = min(losses, key=losses.__getitem__), max(losses, key=losses.__getitem__)
        learned = Arm(groups[top], "loss"), Arm(groups[top], "start")
        less = estimate(lambda loss, low, start: (loss - low) / (start - low), Arm(groups[worst], "loss"), *learned)
        text = f"{task}: learned less at the worst d_k = {worst}"
        yield Comparison(text, less.value, "<", LITTLE, less.error, choice=_LITTLE)
        ends = groups[mine[0]], groups[mine[-1]]
        rate = max(set(ends[0].rates) & set(ends[1].rates))
        less = estimate(
            lambda wide, narrow, low, start: (wide - narrow) / (start - low),
            Arm(ends[1], "loss", rate),
            Arm(ends[0], "loss", rate),
            *learned,
        )
        condition = (
            f"at learning rates that suit d_k: on {task} at {rate:g}, d_k = {mine[-1]} learns less than {mine[0]} by "
            f"{less.value:.0%} of what is learned at the best"
        )
        doubt = (
            f"on {task} it is not clear whether d_k = {mine[-1]} learns less than {mine[0]} at the rate {rate:g}: "
            f"by {less.value:.0%} of what is learned at the best, within {CLEAR * less.error:.0%}"
        )
        text = f"{task}: learned less at rate {rate:g}, d_k = {mine[-1]} than {mine[0]}"
        yield Comparison(
            text, less.value, "<", LITTLE, less.error, role=LIMITS, otherwise=condition, doubt=doubt, choice=_LITTLE
        )


@LEDGER.claim(
    21,
    title="additive against dot product",
    statement="Additive and dot-product attention do equally well for small d_k; for large d_k additive attention does "
    "better than dot-product attention without a scale.",
    source=f"{PAPER}, section 3.2.1, after Britz et al. 2017, Massive Exploration of Neural Machine Translation "
    "Architectures, https://arxiv.org/abs/1703.03906",
    method="The same small encoder with either, on images of digits: the lowest loss, each at the learning rate that a "
    "validation set chooses, on a test set, over seeds. v of additive attention starts so that scores have the "
    "variance of q.k/sqrt(d_k); and once more so that they have that of q.k. Britz et al. found 22.03 and 22.23 BLEU "
    "at width 128, and 18.22 and 22.10 at 1024.",
)
def additive_against_dot_product(
    _sampling: Sampling,
    results: Results | None = None,
    additive: str = ADDITIVE,
    dot: str = "none",
    scaled: str = "sqrt",
    alike: float = 0.1,
) -> Iterator[Comparison]:
    """alike is by how many nats the losses may differ and still count as equal."""
    results = results or shipped()
    d_ks = widths(results, "digits", additive)
    small, large = d_ks[0], d_ks[-1]
    close = "a tenth of a nat is under a twentieth of what is learned"
    for d_k in d_ks:
        product = Arm(setting(results, task="digits", rule=dot, d_k=d_k), "loss")
        sums = Arm(setting(results, task="digits", rule=additive, d_k=d_k), "loss")
        behind = _difference(product, sums)
        text = f"d_k = {d_k}: loss of dot product less additive"
        if d_k == small:
            yield Comparison(text, behind.value, "=", 0.0, behind.error, slack=alike, choice=close)
        elif d_k == large:
            yield Comparison(text, behind.value, ">", 0.0, behind.error)
        else:
            yield _shown(text, behind.value, behind.error)
        size = d_k**0.5
        if results.select(task="digits", rule=additive, d_k=d_k, v_size=size):
            sums = Arm(setting(results, task="digits", rule=additive, d_k=d_k, v_size=size), "loss")
            behind = _difference(product, sums)
            text = f"d_k = {d_k}, the same start: dot product less additive"
            condition = (
                f"where the start differs: with scores that begin with the variance of q.k, additive attention is "
                f"{behind.value:.2g} nats ahead of the dot product at d_k = {d_k}"
            )
            if d_k == large:
                yield Comparison(text, behind.value, ">", 0.0, behind.error, role=LIMITS, otherwise=condition)
            else:
                yield _shown(text, behind.value, behind.error)
    for rule, name in ((additive, "additive"), (dot, "dot product"), (scaled, "with the scale")):
        for d_k in (small, large):
            right = setting(results, task="digits", rule=rule, d_k=d_k).best.accuracy
            yield _shown(f"d_k = {d_k}: accuracy, {name}", right.mean, right.error)


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
    yield Comparison(f"runs of text under {rule}, tried with other sizes", len(tried), role=SHOWN)
    if not tried:
        return  # not checked
    d_ks = sorted({run.spec.d_k for run in tried})
    rises = {d_k: _Rise.of(setting(results, task="text", rule=rule, d_k=d_k).best) for d_k in d_ks}
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
            yield _shown(text, rise.share, error)
        text, error = f"{where}: share of the rise at logits under 100", rise.early_error
        yield Comparison(text, rise.early, "<", 0.5, error, role=LIMITS, otherwise=sooner, choice=late)
        yield _shown(f"{where}: loss risen at the largest kappa", rise.end.mean, rise.end.error)


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
    """A share and its standard error; NaN if the whole is not above 0."""
    if not whole.mean > 0:
        return math.nan, math.nan
    share = of.mean / whole.mean
    return share, math.hypot(of.error, share * whole.error) / whole.mean


def _loss(curve: Transplant, low: float, high: float = math.inf) -> float:
    """The loss at the largest kappa whose largest logit lies between low and high."""
    inside = [loss for _, loss, largest in curve if loss is not None and largest is not None and low < largest < high]
    return inside[-1] if inside else math.nan


@LEDGER.claim(
    23,
    title="entropy collapse and instability",
    statement="A collapse of the attention entropy goes with unstable training.",
    source="Zhai et al. 2023, Stabilizing Transformer Training by Preventing Attention Entropy Collapse, "
    "https://arxiv.org/abs/2303.06296",
    method="The same model of text at higher and higher learning rates. A run is collapsed if a layer came below "
    f"{COLLAPSED:g} ln n at any look, and unstable if it diverged, if its training loss had a spike (6 standard "
    "deviations above the 50 steps before), or if it ended 5 % above its lowest validation loss: how many more of the "
    "collapsed runs are unstable than of the others, over seeds. And the other way round: whether models of recall "
    "with so sharp a layer can learn well.",
    elsewhere="Transformers for images, speech, translation and language, far larger and trained far longer",
)
def collapse_goes_with_instability(
    _sampling: Sampling, results: Results | None = None, rule: str = "sqrt", collapsed: float = COLLAPSED
) -> Iterator[Comparison]:
    """The ladder of learning rates is that of the largest d_k under the rule."""
    results = results or shipped()
    d_ks = results.values("d_k", task="text", rule=rule)
    yield Comparison(f"runs of text under {rule}", len(results.select(task="text", rule=rule)), role=SHOWN)
    if not d_ks:
        return  # not checked
    ladder = setting(results, task="text", rule=rule, d_k=d_ks[-1]).outcomes
    for outcome in ladder:
        count = len(outcome.runs)
        numbers = {
            "share unstable": interval(float(unstable(run)) for run in outcome.runs),
            "share collapsed": interval(float(sharpest_ever(run) < collapsed) for run in outcome.runs),
            "largest logit": interval(largest(run) for run in outcome.runs),
            "loss": outcome.loss,
        }
        for name, over in numbers.items():
            yield _shown(f"rate {outcome.rate:g}, {count} runs: {name}", over.mean, over.error)
    kinds = [[(sharpest_ever(run) < collapsed, unstable(run)) for run in outcome.runs] for outcome in ladder]
    more = resampled(
        lambda places: _more_unstable([facts[at] for facts in kinds for at in places]),
        min(len(outcome.runs) for outcome in ladder),
    )
    together = "one more in two is taken for going together"
    against = (
        f"of the collapsed runs {more.value:+.0%} more are unstable than of the others: they end at a loss that is "
        "higher and flat, without spikes"
    )
    text = "share unstable, collapsed runs less others"
    yield Comparison(text, more.value, ">", 0.5, more.error, otherwise=against, choice=together)
    learned = [run for run in results.select(task="recall", rule=rule) if (lowest(run).accuracy or 0.0) > 0.99]
    sharp = interval(float(sharpest_ever(run) < collapsed) for run in learned)
    condition = (
        f"not the other way round: {sharp.mean:.0%} of the runs of recall that answer more than 99 % right have such a "
        "layer, because looking up one pair is what they learned"
    )
    text = "recall answered right: share with such a layer"
    rare = "one in twenty is rare"
    yield Comparison(text, sharp.mean, "<", 0.05, sharp.error, role=LIMITS, otherwise=condition, choice=rare)


def _more_unstable(runs: Sequence[tuple[bool, bool]]) -> float:
    """The share of unstable runs among those that collapsed, less that among the others; NaN if one kind is missing.

    A run is (whether it collapsed, whether it was unstable).
    """
    shares = []
    for kind in (True, False):
        flags = [is_unstable for collapsed, is_unstable in runs if collapsed == kind]
        shares.append(sum(flags) / len(flags) if flags else math.nan)
    return shares[0] - shares[1]
