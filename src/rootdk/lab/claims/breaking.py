"""Claims 22 and 23: what happens to a trained model with other logits, and to a model that is trained too fast."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from rootdk.errors import ArgumentError
from rootdk.lab.training import Interval, Results, interval, shipped
from rootdk.lab.training.results import Outcome, best, difference, known, outcomes, sharpest

from .evidence import LIMITS, SHOWN, Evidence
from .ledger import Setting, claim

THOUSANDS = (1e3, 1e4)
HUNDRED = 100.0
COLLAPSED = 0.05  # rootdk.audit calls a layer collapsed below this
Curve = tuple[tuple[float, float | None, float | None], ...]


@claim(
    22,
    title="loss breaks at logits of 1e3",
    statement="The loss breaks when q and k are rescaled until logits reach a thousand to ten thousand.",
    source="Wortsman et al. 2023 (arXiv 2309.14322)",
    method="Small trained models of text, tried again with sqrt(kappa) q/rms(q) and the same for k, in float32 and "
    "without further training: the loss where the largest logit is some thousands, where it is under a hundred, and "
    "where kappa is so small that all keys weigh alike.",
)
def loss_breaks(
    _setting: Setting, results: Results | None = None, rule: str = "sqrt", half: float = 0.5
) -> Iterator[Evidence]:
    """half: how much of what attention is worth must be lost before the loss counts as broken."""
    results = results or shipped()
    tried = results.select(lambda run: bool(run.transplant), task="text", rule=rule)
    if not tried:
        raise ArgumentError(f"results: must hold runs of text with rule {rule!r} and a transplant, got none")
    found = {
        d_k: _Rise.of(best(results, task="text", rule=rule, d_k=d_k)) for d_k in sorted({one.spec.d_k for one in tried})
    }
    worth, early = ([getattr(one, name) for one in found.values()] for name in ("share", "early"))
    rises = [one.rise.mean for one in found.values()]
    little = (
        f"the loss rises by {min(rises):.2f} to {max(rises):.2f}, {min(worth):.0%} to {max(worth):.0%} of what "
        "attention is worth to these small models"
    )
    sooner = f"no thousand is needed: {min(early):.0%} to {max(early):.0%} of the rise is there at logits under 100"
    broken = "attention is worth what is lost when all keys weigh alike, and losing half of that is broken"
    late = "less than half of it may be there before the logits are large"
    most = max(found, key=lambda d_k: found[d_k].share)
    for d_k, one in found.items():
        where = f"d_k = {d_k}"
        yield Evidence(f"{where}: loss risen at logits of 1e3 to 1e4", one.rise.mean, ">", 0.0, error=one.rise.error)
        text, error = f"{where}: as a share of attention's worth", one.share_error
        if d_k == most:  # the case that speaks most for the claim decides
            yield Evidence(text, one.share, ">", half, error=error, otherwise=little, choice=broken)
        else:
            yield Evidence(text, one.share, error=error, role=SHOWN)
        text = f"{where}: share of the rise at logits under 100"
        error = one.early_error
        yield Evidence(text, one.early, "<", 0.5, error=error, role=LIMITS, otherwise=sooner, choice=late)
        yield Evidence(f"{where}: loss risen at the largest kappa", one.end.mean, error=one.end.error, role=SHOWN)


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


@claim(
    23,
    title="entropy collapse and instability",
    statement="A collapse of the attention entropy goes with unstable training.",
    source="Zhai et al. 2023 (arXiv 2303.06296)",
    method="The same model of text at higher and higher learning rates: entropy / ln n of its sharpest layer, the "
    "largest logit, and the loss. And the other way round: whether a model with so sharp a layer can learn well.",
)
def collapse_goes_with_instability(
    _setting: Setting, results: Results | None = None, rule: str = "sqrt", d_k: int = 64, collapsed: float = COLLAPSED
) -> Iterator[Evidence]:
    """d_k is that of the ladder of learning rates."""
    results = results or shipped()
    ladder = outcomes(results, task="text", rule=rule, d_k=d_k)
    top, good = ladder[-1], min(ladder, key=lambda one: one.loss.mean)
    cut = "where rootdk's audit calls a layer collapsed"
    for one in ladder:
        if one is not top and one is not good:
            yield Evidence(f"rate {one.rate:g}: entropy / ln n", one.entropy.mean, role=SHOWN)
            yield Evidence(f"rate {one.rate:g}: loss", one.loss.mean, error=one.loss.error, role=SHOWN)
    entropy = top.entropy
    yield Evidence(f"rate {top.rate:g}: entropy / ln n", entropy.mean, "<", collapsed, error=entropy.error, choice=cut)
    worse, error = difference(top.loss, good.loss)
    yield Evidence(f"rate {top.rate:g}: loss over the best", worse, ">", 0.0, error=error)
    entropy = good.entropy
    text = f"rate {good.rate:g}, the best: entropy / ln n"
    yield Evidence(text, entropy.mean, ">", collapsed, error=entropy.error, choice=cut)
    sharp = _sharp_and_right(results, rule, collapsed)
    said = (
        f"not the other way round: {sharp} runs of recall under that rule have a layer below {collapsed:g} ln n and "
        "answer more than 99 % right, because looking up one pair is what they learned"
    )
    text = "runs of recall with such a layer that learned well"
    yield Evidence(text, sharp, "=", 0.0, role=LIMITS, otherwise=said)


def _sharp_and_right(results: Results, rule: str, collapsed: float) -> int:
    return sum(
        (run.last.accuracy or 0.0) > 0.99 and sharpest(run) < collapsed
        for run in results.select(task="recall", rule=rule)
    )


CLAIMS = (loss_breaks, collapse_goes_with_instability)
