"""Claims 22 and 23: what happens to a trained model with other logits, and to a model that is trained too fast."""

import math
from collections.abc import Iterator

from rootdk.errors import ArgumentError
from rootdk.trained import Results, interval, shipped

from .evidence import LIMITS, SHOWN, Evidence
from .ledger import Setting, claim
from .runs import best, difference, outcomes

THOUSAND = 1e3
HUNDRED = 100.0
COLLAPSED = 0.05  # rootdk.audit calls a layer collapsed below this
Curve = tuple[tuple[float, float | None, float | None], ...]


@claim(
    22,
    title="loss breaks at logits of 1e3",
    statement="The loss breaks when q and k are rescaled until logits reach a thousand to ten thousand.",
    source="Wortsman et al. 2023 (arXiv 2309.14322)",
    method="Trained models of text, tried again with sqrt(kappa) q/rms(q) and the same for k: the loss where the "
    "largest logit is over a thousand, where it is under a hundred, and where kappa is so small that all keys weigh "
    "alike.",
)
def loss_breaks(
    _setting: Setting, results: Results | None = None, rule: str = "sqrt", half: float = 0.5
) -> Iterator[Evidence]:
    """half: how much of what attention is worth must be lost before the loss counts as broken."""
    results = results or shipped()
    tried = results.select(lambda run: bool(run.transplant), task="text", rule=rule)
    if not tried:
        raise ArgumentError(f"results: must hold runs of text with rule {rule!r} and a transplant, got none")
    for d_k in sorted({run.spec.d_k for run in tried}):
        runs = best(results, task="text", rule=rule, d_k=d_k).runs
        curves = [(run.last.loss or math.inf, run.transplant) for run in runs if run.transplant]
        risen = interval(_loss(curve, THOUSAND) - loss for loss, curve in curves)
        worth = interval(curve[0][1] - loss for loss, curve in curves if curve[0][1] is not None)
        before = interval(_loss(curve, 0.0, HUNDRED) - loss for loss, curve in curves)
        where = f"d_k = {d_k}"
        yield Evidence(f"{where}: loss risen at logits over 1e3", risen.mean, ">", 0.0, error=risen.error)
        share = _part(risen.mean, worth.mean)
        broken = "attention is worth what is lost when all keys weigh alike, and losing half of that is broken"
        said = f"the loss rises by {risen.mean:.2f}, {share:.0%} of what attention is worth there, and no further"
        text = f"{where}: share of what attention is worth"
        yield Evidence(text, share, ">", half, role=LIMITS, otherwise=said, choice=broken)
        early = _part(before.mean, risen.mean)
        said = f"no thousand is needed: at d_k = {d_k} {early:.0%} of the rise is there at logits under 100"
        text = f"{where}: share of the rise at logits under 100"
        late = "less than half of it may be there before the logits are large"
        yield Evidence(text, early, "<", 0.5, role=LIMITS, otherwise=said, choice=late)
        farthest = interval(curve[-1][1] - loss for loss, curve in curves if curve[-1][1] is not None)
        yield Evidence(f"{where}: loss risen at the largest kappa", farthest.mean, error=farthest.error, role=SHOWN)


def _part(of: float, whole: float) -> float:
    """A share; of nothing there is none."""
    return of / whole if whole > 0 else math.nan


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
            yield Evidence(f"rate {one.rate:g}: entropy / ln n", one.entropy().mean, role=SHOWN)
            yield Evidence(f"rate {one.rate:g}: loss", one.loss.mean, error=one.loss.error, role=SHOWN)
    entropy = top.entropy()
    yield Evidence(f"rate {top.rate:g}: entropy / ln n", entropy.mean, "<", collapsed, error=entropy.error, choice=cut)
    worse, error = difference(top.loss, good.loss)
    yield Evidence(f"rate {top.rate:g}: loss over the best", worse, ">", 0.0, error=error)
    entropy = good.entropy()
    text = f"rate {good.rate:g}, the best: entropy / ln n"
    yield Evidence(text, entropy.mean, ">", collapsed, error=entropy.error, choice=cut)
    sharp = _sharp_and_right(results, collapsed)
    said = (
        f"not the other way round: {sharp} runs of recall have a layer below {collapsed:g} ln n and answer more than "
        "99 % right, because looking up one pair is what they learned"
    )
    text = "runs of recall with such a layer that learned well"
    yield Evidence(text, sharp, "=", 0.0, role=LIMITS, otherwise=said)


def _sharp_and_right(results: Results, collapsed: float) -> int:
    return sum(
        (run.last.accuracy or 0.0) > 0.99 and min(layer.entropy or 0.0 for layer in run.last.layers) < collapsed
        for run in results.select(task="recall")
    )


CLAIMS = (loss_breaks, collapse_goes_with_instability)
