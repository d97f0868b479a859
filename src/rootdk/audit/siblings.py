"""A layer compared with the others of its model, and a head with the others of its layer.

The right value of a number depends on the model, but layers of one model should be alike. Layers are compared whose
paths differ in numbers only: a decoder's cross attention, or a part for vision, is another kind.

**As drawn.** Rows and columns of weights that were drawn at random differ in length by chance alone; training makes
them differ far more, because some directions become important. A layer within chance in all four, rows and columns of
W_q and W_k, in a model whose other layers are not, was never trained, or was lost and drawn again.

**Size of the input.** A norm before the projections fixes the size of their input; without one, the first layer of a
stack gets embeddings of any size. From weights alone, a layer whose norm is not known shows nothing about the size of
its logits, and the first layer cannot be compared with the others. In a run such a layer has learned to be sharp.

**Gains.** The gains of norms change slowly with depth. Where q and k are normed, the gain of the norm before W_q and
W_k shows nothing about the logits: QK-norm divides it out again, so models learn any value.
"""

import math
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .result import Finding, LayerAudit
from .thresholds import judge

# By how many standard errors a spread may lie above that of chance.
_ERRORS = 3.0
# How far above chance the median of the other layers must lie, before a layer within chance says anything.
_TRAINED = 1.2
# The smallest and the largest factor by which a layer may lie above the median of the others, whatever their spread.
_ALLOWED = (6.0, 20.0)
# W_q and W_k up to this factor above the median of the others count as like theirs.
_ALIKE = 2.0
# Below this share of the largest head, W_q and W_k count as decayed: their product has the square of this share, far
# below what makes a head flat.
_DECAYED = 1e-3
# A layer whose logits differ by less is at rest, and others are not compared with it.
_AT_REST = 1e-3
# Metrics of a run that a large layer input alone can raise.
_BY_INPUT = ("measured_over_others", "jacobian_trace", "logit_lead")
# Fewer layers than this have no usual value.
_FEWEST = 3
# The gain of the norm before the projections; and the root of the product of the gains of QK-norm, on which logits
# depend.
_GAINS = ("input_gain", "product_gain")
# How many steps from layer to layer are needed to know the usual one; how many usual steps a gain may lie above its
# neighbours; the factor that is always allowed.
_FEWEST_STEPS, _STEPS, _LEAST_GAIN = 3, 3.0, 1.6


def unevenness(
    rows: NDArray[np.float64], columns: NDArray[np.float64], gain: NDArray[np.float64] | None = None
) -> float:
    """How far squared lengths of the rows and columns of W spread, divided by what chance allows; up to 1 is chance.

    By chance they differ by sqrt(2/m) of their mean for m numbers.

    gain   what the inputs were multiplied by before the lengths of the rows were taken

    >>> weights = np.random.default_rng(0).standard_normal((256, 512))
    >>> drawn = unevenness((weights**2).sum(1), (weights**2).sum(0))
    >>> weights[:32] *= 2                                                           # one head has grown
    >>> grown = unevenness((weights**2).sum(1), (weights**2).sum(0))
    >>> drawn < 1.0, grown > 3.0
    (True, True)
    """
    squares = np.ones(len(columns)) if gain is None else gain**2
    inputs = float(squares.sum() ** 2 / max((squares**2).sum(), 1e-300))
    spreads = []
    for lengths, summed in ((rows, inputs), (columns, float(len(rows)))):
        mean = float(lengths.mean()) if len(lengths) else 0.0
        if mean > 0.0:
            chance = math.sqrt(2.0 / summed) * (1.0 + _ERRORS / math.sqrt(2.0 * len(lengths)))
            spreads.append(float(lengths.std()) / mean / chance)
    return max(spreads, default=math.nan)


def input_known(layer: LayerAudit) -> bool:
    """Whether the size of the projections' input is known, by the norm before; or does not matter, with QK-norm."""
    return "input_gain" in layer.facts or layer.normed


def by_input(findings: Sequence[Finding], layers: Sequence[LayerAudit]) -> list[Finding]:
    """The findings of a run, with a note in place of a warning where a layer is sharp by the size of its input alone.

    A layer is so if its W_q and W_k, with their biases, are like those of the other layers of its kind, and at most
    half of the layers are sharp: if more were, the cause would not be the input of one layer.
    """
    learned: set[tuple[str, str]] = set()
    for kind in _kinds(layer for layer in layers if layer.judged):
        sizes = np.array([float(layer.facts.get("weight_size", math.nan)) for layer in kind])
        for metric in _BY_INPUT:
            sharp = {finding.layer for finding in findings if finding.metric == metric and finding.severity != "note"}
            of_kind = [place for place, layer in enumerate(kind) if layer.name in sharp]
            if 2 * len(of_kind) > len(kind) or len(kind) < 2:
                continue
            for place in of_kind:
                if sizes[place] <= _ALIKE * _median(np.delete(sizes, place)):
                    learned.add((kind[place].name, metric))
    remedy = (
        "nothing, if the model is as good as it should be: W_q and W_k are no larger than in the other layers, what "
        "they are given is, such as embeddings without a norm. To train on, put a norm there"
    )
    return [
        replace(finding, severity="note", remedy=remedy) if (finding.layer, finding.metric) in learned else finding
        for finding in findings
    ]


def beside_others(layers: Sequence[LayerAudit], keys: int, measured: bool) -> list[Finding]:
    """All findings from comparing layers of one kind, in a run or in weights alone."""
    metric = "measured_over_others" if measured else "predicted_over_others"
    findings: list[Finding | None] = []
    for kind in _kinds(layer for layer in layers if layer.judged):
        middles = [_middle(layer, "score_deviation" if measured else "predicted_deviation") for layer in kind]
        uneven = [float(layer.facts.get("unevenness", math.nan)) for layer in kind]
        for place, layer in enumerate(kind):
            above = _above(middles[place], np.delete(middles, place))
            if measured or place or input_known(layer):  # embeddings can have any size
                findings.append(judge(layer.name, None, metric, above, keys))
            # Three quarters of the other layers must look trained.
            if len(kind) >= _FEWEST and np.mean(np.delete(uneven, place) > _TRAINED) >= 0.75:
                findings.append(judge(layer.name, None, "unevenness", uneven[place], keys))
            findings += [
                judge(layer.name, None, "gain_over_neighbours", _over_neighbours(kind, place, gain), keys)
                for gain in _GAINS
            ]
    findings += _typical(layers, measured, keys)
    return [finding for finding in findings if finding is not None]


def flat_heads(layer: str, metric: str, deviations: Any, keys: int, decayed: Collection[int] = ()) -> list[Finding]:
    """The heads whose logits do not differ while those of the others do; a note for those whose weights decayed."""
    usual = _median(np.asarray(deviations, np.float64))
    if not usual > 0.0:
        return []
    remedy = "nothing: W_q and W_k of this head decayed together, as weight decay does to a head that is not used"
    findings = []
    for head, value in enumerate(deviations):
        finding = judge(layer, head, metric, float(value) / usual, keys)
        if finding is not None:
            findings.append(replace(finding, severity="note", remedy=remedy) if head in decayed else finding)
    return findings


def decayed_heads(queries: Sequence[float], keys: Sequence[float]) -> list[int]:
    """The heads whose W_q and W_k are both tiny beside those of other heads, and neither is zero.

    The gradient of each is proportional to the other, so weights that are not used decay on both sides; weights that
    were lost, or masked, are zero.

    queries, keys   the squared size of W_q and of W_k, one number for each query head

    >>> decayed_heads([1.0, 1e-30, 0.0, 1e-30], [1.0, 1e-30, 1e-30, 1.0])
    [1]
    """
    least = [_DECAYED**2 * max(sizes, default=0.0) for sizes in (queries, keys)]
    return [
        head
        for head, (query, key) in enumerate(zip(queries, keys, strict=True))
        if 0.0 < query < least[0] and 0.0 < key < least[1]
    ]


def _typical(layers: Sequence[LayerAudit], measured: bool, keys: int) -> list[Finding | None]:
    """The median over the layers of a model: a fault that all layers share shows nowhere else."""
    judged = [layer for layer in layers if layer.judged and (measured or input_known(layer))]
    of_heads, metric = (
        ("score_deviation", "typical_deviation") if measured else ("predicted_deviation", "typical_prediction")
    )
    # With QK-norm, unit gains and scale 1 the logits have deviation sqrt(d_k); such models start there and training
    # shrinks it.
    by_norm = [1.0 if measured else max(1.0, _middle(layer, "scale_ratio") * bool(layer.normed)) for layer in judged]
    known = zip(judged, by_norm, strict=True)
    middles = sorted(middle / by for layer, by in known if not math.isnan(middle := _middle(layer, of_heads)))
    # The lower one of two in the middle: a fault of half of the layers is not one of the whole model.
    return [judge("", None, metric, middles[(len(middles) - 1) // 2], keys)] if middles else []


def _above(value: float, others: NDArray[np.float64]) -> float:
    """value / median of the others / what their spread allows: e^(4 s), s the deviation of their logarithms.

    s is 1.48 times the median distance from the median, which one other bad layer does not move.
    """
    known = others[others > _AT_REST]
    if not len(known):
        return math.nan
    logs = np.log(known)
    spread = 1.48 * float(np.median(np.abs(logs - np.median(logs))))
    allowed = min(max(math.exp(4 * spread), _ALLOWED[0]), _ALLOWED[1])
    if len(known) == 1:  # one other layer has no spread
        allowed = _ALLOWED[1]
    return value / float(np.median(known)) / allowed


def _over_neighbours(kind: Sequence[LayerAudit], place: int, gain: str) -> float:
    """A gain / the larger one of the two nearest layers / what is allowed; NaN where there are no two.

    Allowed is 1.6, or three usual steps where gains differ more from layer to layer. The usual step is the median
    |log ratio| of neighbours other than this layer.
    """
    if gain == "input_gain" and kind[place].normed:
        return math.nan
    around = sorted((other for other in range(len(kind)) if other != place), key=lambda other: abs(other - place))[:2]
    gains = [float(layer.facts.get(gain, math.nan)) for layer in kind]
    near = [gains[other] for other in around]
    if len(near) < 2 or not min(near) > 0.0:
        return math.nan
    others = np.delete(gains, place)
    logs = np.log(np.where(others > 0.0, others, math.nan))
    steps = np.delete(np.abs(np.diff(logs)), [place - 1] if 0 < place < len(others) else [])  # not across this layer
    usual = float(np.median(steps)) if len(steps) >= _FEWEST_STEPS else 0.0
    return gains[place] / max(near) / max(_LEAST_GAIN, math.exp(_STEPS * usual))


def _kinds(layers: Iterable[LayerAudit]) -> list[list[LayerAudit]]:
    kinds: dict[str, list[LayerAudit]] = {}
    for layer in layers:
        # Layers of two head widths are two kinds: under a scale that does not depend on the width their logits differ.
        width = layer.facts.get("d_k", layer.of("d_k")[0] if layer.heads else math.nan)
        kinds.setdefault(f"{re.sub(r'[0-9]+', '#', layer.name)} {width}", []).append(layer)
    return list(kinds.values())


def _middle(layer: LayerAudit, metric: str) -> float:
    """NaN if a head is broken: such a layer has no usual deviation."""
    values = layer.of(metric)
    return float(np.median(values)) if values else math.nan


def _median(values: NDArray[np.float64]) -> float:
    known = values[~np.isnan(values)]
    return float(np.median(known)) if len(known) else math.nan
