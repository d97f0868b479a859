"""read_checkpoint(): the health of a model's attention from its weights and its config alone.

No model code runs and no framework is needed. The numbers hold for an input of independent unit components, which is
what a norm gives when training begins. A trained model has other inputs, so its weights are judged far more loosely,
and by comparing its layers with each other; rootdk.watch measures what really happens.
"""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from rootdk.errors import ArgumentError
from rootdk.files import shown_text

from .config import GAIN_OF_ONE, Config, Facts
from .families import Projections, find_projections
from .formats import Tensors, find_tensors
from .formats.packed import unpacked
from .heads import Metrics, read_heads, work_of
from .limits import MOST_BYTES, MOST_HEADS, MOST_HEADS_IN_ALL, MOST_WORK
from .metrics import counted
from .result import Audit, Finding, LayerAudit, Phase, worst_first
from .siblings import beside_others, flat_heads, input_known
from .thresholds import critical_deviation, judge

# Judged for a whole layer, and for a head where its layer is not the worse of the two.
_JUDGED = ("predicted_deviation", "spectral_bound", "gain_bound", "non_finite_weights")
# The share of the progress bar for reading headers.
_HEADERS = 0.05


def read_checkpoint(
    path: str | Path,
    *,
    heads: int | None = None,
    keys: int = 1024,
    phase: Phase = "any",
    progress: Callable[[str, float], None] | None = None,
) -> Audit:
    """Audit a checkpoint: a model folder, a file or an index of shards, with its config.json beside it.

    It reads .safetensors, GGUF, files of torch.save (.bin, .pt), ONNX and .npz. GGUF and ONNX need no config.json.

    heads     number of query heads in every layer, if no config says it
    keys      number of keys per row for which limits are computed: softmax freezes at a deviation of sqrt(2 ln keys)
    phase     "init" for a model that was not trained yet: the limits are then those of theory
    progress  called with the name of a layer and the share that is done

    Memory stays at a few heads whatever the size of the model; `rootdk.audit.limits` says how much is read. Nothing in
    a file is trusted or executed: a pickle that is more than weights is refused.

    >>> import json, tempfile, numpy
    >>> from safetensors.numpy import save_file
    >>> weights = numpy.random.default_rng(0).standard_normal((2, 64, 64)) / 8
    >>> names = [f"layers.0.attention.{name}.weight" for name in ("wq", "wk")]
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_file(dict(zip(names, weights)), f"{folder}/model.safetensors")
    ...     _ = Path(folder, "config.json").write_text(json.dumps({"dim": 64, "n_heads": 4, "model_type": "llama"}))
    ...     audit = read_checkpoint(folder)
    >>> audit.verdict, audit.layers[0].name, [round(head["predicted_variance"], 1) for head in audit.layers[0].heads]
    ('healthy', 'layers.0.attention', [0.9, 1.1, 1.0, 1.0])
    """
    place = Path(path)
    if isinstance(keys, bool) or not isinstance(keys, int) or keys < 2:
        raise ArgumentError(f"keys: must be an integer from 2 on, got {keys!r}")
    if phase not in ("any", "init", "trained"):
        raise ArgumentError(f"phase: must be 'any', 'init' or 'trained', got {phase!r}")
    if heads is not None and (isinstance(heads, bool) or not isinstance(heads, int) or not 1 <= heads <= MOST_HEADS):
        raise ArgumentError(f"heads: must be an integer from 1 to {MOST_HEADS}, got {heads!r}")
    report = progress or (lambda _name, _share: None)
    tensors = find_tensors(place, lambda name, share: report(name, _HEADERS * share))
    config = Config.of_checkpoint(place, tensors, heads)
    tensors = unpacked(tensors, config.fields)
    modules_and_unknown = find_projections(
        set(tensors), *config.model_types, key_layer=lambda module, index: config.of(module).key_layer(index)
    )
    modules, unknown = _readable(tensors, *modules_and_unknown)
    if not modules:
        raise ArgumentError(_nothing(tensors, config, unknown))
    facts = [
        config.of(module.module).facts(module.module, module.index, _outputs(tensors, module)) for module in modules
    ]
    works = _works(tensors, modules, facts)
    layers, done, in_all = [], 0.0, sum(works)
    try:
        for module, about, work in zip(modules, facts, works, strict=True):
            metrics: list[Metrics] = []
            of_layer: dict[str, Any] = {}
            for head in read_heads(tensors, module, about, of_layer):
                report(module.module, _HEADERS + (1 - _HEADERS) * (done + work * len(metrics) / about.heads) / in_all)
                metrics.append(head)
            of_layer |= {"input_gain": 1.0} if config.of(module.module).model_type in GAIN_OF_ONE else {}
            of_layer |= _gains(tensors, module, about)
            layers.append(LayerAudit(module.module or "attention", tuple(metrics), facts=of_layer))
            done += work
            tensors.close()
    finally:
        tensors.close()
    report(modules[-1].module, 1.0)
    findings = [*_judged(layers, keys, phase), *_capped(layers, facts, keys), *_scales(layers, facts, config)]
    findings += [*_unnormed(layers), *beside_others(layers, keys, measured=False)]
    return Audit(tuple(layers), worst_first(findings), phase, _about(config, facts, keys), tuple(unknown))


def _works(tensors: Tensors, modules: list[Projections], facts: list[Facts]) -> list[float]:
    """The work of each module in multiply-adds; an error, before the work starts, if it is too much."""
    heads = sum(about.heads for about in facts)
    if heads > MOST_HEADS_IN_ALL:
        raise ArgumentError(f"path: must have at most {MOST_HEADS_IN_ALL} heads in all layers, got {heads}")
    costs = [work_of(tensors, module, about) for module, about in zip(modules, facts, strict=True)]
    work, size = (sum(cost[place] for cost in costs) for place in (0, 1))
    if size > MOST_BYTES:
        raise ArgumentError(f"path: must have at most {MOST_BYTES} bytes of query and key weights, got {size}")
    if work > MOST_WORK:
        raise ArgumentError(f"path: must take at most {MOST_WORK:.0e} multiply-adds to read, got {work:.1e}")
    return [cost[0] for cost in costs]


def _outputs(tensors: Tensors, module: Projections) -> tuple[int, int] | None:
    """How many rows make queries, and how many make keys; None where queries and keys are interleaved."""
    query, key = (tensors[side.weight] for side in (module.query, module.key))
    if any(len(weight.shape) != 2 for weight in (query, key)) or module.layout not in ("split", "blocks"):
        return None
    rows = [weight.shape[weight.inputs_first] for weight in (query, key)]
    return (rows[0], rows[1]) if module.layout == "split" else (rows[0] // 3, rows[0] // 3)


def _readable(tensors: Tensors, modules: list[Projections], unknown: list[str]) -> tuple[list[Projections], list[str]]:
    """Packed numbers whose scales were not understood are listed, not guessed."""
    readable: list[Projections] = []
    packed: set[str] = set()
    for module in modules:
        strange = {name for name in module.tensors if not tensors.readable(name)}
        if strange:
            packed |= strange | {module.query.weight, module.key.weight}
        else:
            readable.append(module)
    return readable, [*unknown, *sorted(packed)]


def _nothing(tensors: Tensors, config: Config, unknown: list[str]) -> str:
    names = unknown or sorted(tensors)
    listed = ", ".join(f"{shown_text(name, 120)} ({shown_text(tensors[name].dtype)})" for name in names[:6])
    kind = f"model_type {shown_text(repr(config.model_type), 80)}" if config.model_type else "no model_type"
    more = f" and {len(names) - 6} more" if len(names) > 6 else ""
    reason = f"not understood: {listed}{more}" if names else "it has no tensors"
    return f"path: no query and key projection that is known, with {kind}; {reason}"


def _judged(layers: list[LayerAudit], keys: int, phase: Phase) -> list[Finding]:
    """Every layer by its median head, then the heads that are worse than their layer."""
    findings = []
    for layer in layers:
        for metric in _JUDGED:
            values = layer.of(metric)
            of_layer = judge(layer.name, None, metric, values, keys, phase)
            if of_layer is not None:
                findings.append(of_layer)
            for head, value in enumerate(values):
                finding = judge(layer.name, head, metric, value, keys, phase)
                if finding is not None and (of_layer is None or finding.worse_than(of_layer)):
                    findings.append(finding)
        if phase != "init":
            decayed = layer.facts.get("decayed_heads", ())
            findings += flat_heads(layer.name, "flat_prediction", layer.of("predicted_deviation"), keys, decayed)
    return findings


def _gains(tensors: Tensors, module: Projections, about: Facts) -> dict[str, float]:
    """Root mean square of the gain of the norm before the projections, and of those of QK-norm, for `siblings`."""
    with np.errstate(all="ignore"):  # a gain that is not finite is counted with the weights
        before, of_query, of_key = (
            math.nan if name is None else float(np.sqrt(np.mean((tensors.read(name) + about.gain_offset) ** 2)))
            for name in (module.query.input_gain, module.query.gain, module.key.gain)
        )
    gains = {"input_gain": before, "product_gain": math.sqrt(of_query * of_key)}
    return {name: gain for name, gain in gains.items() if math.isfinite(gain)}


def _capped(layers: list[LayerAudit], facts: list[Facts], keys: int) -> list[Finding]:
    """Layers whose largest logits would exceed their softcap: n normal logits of deviation s reach s sqrt(2 ln n)."""
    findings = []
    for layer, about in zip(layers, facts, strict=True):
        if about.softcap:
            reach = float(np.median(layer.of("predicted_deviation"))) * critical_deviation(keys)
            findings.append(judge(layer.name, None, "predicted_cap_ratio", reach / about.softcap, keys))
    return [finding for finding in findings if finding is not None]


def _scales(layers: list[LayerAudit], facts: list[Facts], config: Config) -> list[Finding]:
    """A note for each scale that is far from 1/sqrt(d_k) or had to be assumed: once, at the first layer that has it."""
    findings, known = [], set()
    for layer, about in zip(layers, facts, strict=True):
        if about.scale in known:
            continue
        known.add(about.scale)
        ratio = about.scale.value * math.sqrt(about.d_k)
        if about.scale.assumed:
            kind = config.of(layer.name).model_type
            value = about.scale.value
            known_as = f"model_type {shown_text(repr(kind), 80)} is" if kind else "without a model_type its scale is"
            remedy = (
                f"look into the model's code: <q, k> should be multiplied by {value:.3g} = 1/sqrt(d_k) there; with "
                f"another scale all logits are its ratio to {value:.3g} times as large"
            )
            name = "" if len({other.scale for other in facts}) == 1 else layer.name
            source = f"{known_as} not known here"
            findings.append(Finding(name, None, "scale_assumed", "note", value, value, source, remedy))
        judged = judge(layer.name, None, "scale_ratio", ratio, 2)
        findings += [judged] if judged is not None else []
    return findings


def _unnormed(layers: list[LayerAudit]) -> list[Finding]:
    """A note, once, where it is not known which norm comes before the projections."""
    unknown = [layer for layer in layers if not input_known(layer)]
    if not unknown:
        return []
    source = (
        f"which norm comes before the projections is not known in {len(unknown)} of {counted(len(layers), 'layer')}"
    )
    remedy = (
        "run the model while it is watched: from weights these layers are judged as if their input had size 1, "
        "and only beside each other"
    )
    return [Finding("", None, "unknown_norms", "note", float(len(unknown)), 0.0, source, remedy)]


def _about(config: Config, facts: list[Facts], keys: int) -> dict[str, Any]:
    """What the page and the summary say about the model."""
    first = facts[0]
    return {
        "model_type": config.model_type,
        "heads": first.heads,
        "key_heads": first.key_heads,
        "d_k": first.d_k,
        "scale": first.scale.value,
        "scale_source": first.scale.source,
        "rotated": first.rotated,
        "softcap": first.softcap,
        "keys": keys,
    }
