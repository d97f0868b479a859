"""Claims 22 and 23: what happens to a trained model with other logits, and to a model that is trained too fast."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from rootdk.errors import ArgumentError
from rootdk.lab.training import Interval, Results, interval, shipped
from rootdk.lab.training.results import Outcome, best, difference, known, outcomes, sharpest

from .comparison import LIMITS, SHOWN, Comparison
from .ledger import LEDGER
from .sampler import Sampling

THOUSANDS = (1e3, 1e4)
HUNDRED = 100.0
COLLAPSED = 0.05  # rootdk.audit calls a layer collapsed below this
Curve = tuple[tuple[float, float | None, float | None], ...]


@LEDGER.claim(
    22,
    title="loss breaks at logits of 1e3",
    statement="The loss breaks when q and k are rescaled until logits reach a thousand to ten thousand.",
    source="Wortsman et al. 2023 (arXiv 2309.14322)",
    method="Small trained models of text, tried again with sqrt(kappa) q/rms(q) and the same for k, in float32 and "
    "without further training: the loss where the largest logit is some thousands, where it is under a hundred, and "
    "where kappa is so small that all keys weigh alike.",
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
    broken = "attention is worth what is lost when all keys weigh alike, and losing half of that is broken"
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
    source="Zhai et al. 2023 (arXiv 2303.06296)",
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
