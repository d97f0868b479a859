"""Twelve ways to break a good model. Each changes it in place, and says whether it could.

A layer in the middle is broken where one is, and all of them where the fault is one of the whole model.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

import rootdk
from rootdk.audit.projections import Projections, gains_of, module_at, projections_of
from rootdk.audit.watching.handle import Watch

Inputs = dict[str, Any]
Break = Callable[["Subject"], bool]


@dataclass(frozen=True)
class Subject:
    """A model that is to be broken: what a watch saw of it while it was good."""

    model: Any
    inputs: Inputs
    seen: Watch

    @property
    def layers(self) -> list[str]:
        """The paths of its layers; one that ran several times comes once."""
        return [name for name in self.seen.readings if "#" not in name]

    @property
    def middle(self) -> str:
        """The layer in the middle."""
        return self.layers[len(self.layers) // 2]

    def module(self, layer: str) -> Any:
        """The module of a layer."""
        return module_at(self.model, layer)

    def weights(self, layer: str) -> Projections:
        """Its query and key projections, not the gains of QK-norm."""
        reading, module = self.seen.readings[layer], self.module(layer)
        norms = {name: module._modules.pop(name) for name in ("q_norm", "k_norm") if name in module._modules}  # noqa: SLF001
        try:
            return projections_of(module, reading.heads, reading.d_k, layer)
        finally:
            module._modules.update(norms)  # noqa: SLF001


def _multiplied(part: Any, factor: float, head: int | None = None) -> None:
    import numpy as np

    factors = np.ones(len(part.places))
    factors[slice(None) if head is None else head] = factor
    part.multiply_(factors)


def _one_projection(subject: Subject) -> bool:
    """W_q of one layer, times 40; with QK-norm its gain, since the norm undoes a factor of W_q."""
    gains = gains_of(subject.module(subject.middle))
    if gains is None:
        _multiplied(subject.weights(subject.middle).query, 40.0)
    else:
        gains[0].weight.mul_(40.0).add_(39.0 * gains[0].offset)
    return True


def _all_layers(subject: Subject) -> bool:
    """W_q of every layer, times 8."""
    for layer in subject.layers:
        gains = gains_of(subject.module(layer))
        if gains is None:
            _multiplied(subject.weights(layer).query, 8.0)
        else:
            gains[0].weight.mul_(8.0).add_(7.0 * gains[0].offset)
    return True


def _zeroed_head(subject: Subject) -> bool:
    _multiplied(subject.weights(subject.middle).query, 0.0, head=1)
    return True


def _scaled(subject: Subject, factor: Callable[[int], float], flag: bool) -> bool:
    """The attribute by which modules of transformers multiply; where the config has a word for it, there too."""
    changed = False
    for layer in subject.layers:
        module = subject.module(layer)
        if isinstance(getattr(module, "scaling", None), float):
            module.scaling *= factor(subject.seen.readings[layer].d_k)
            changed = True
    if flag and hasattr(subject.model.config, "scale_attn_weights"):
        subject.model.config.scale_attn_weights = False
    return changed


def _wrong_scale(subject: Subject) -> bool:
    """1/d_k where 1/sqrt(d_k) was."""
    return _scaled(subject, lambda d_k: d_k**-0.5, flag=False)


def _missing_scale(subject: Subject) -> bool:
    """1 where 1/sqrt(d_k) was."""
    return _scaled(subject, lambda d_k: d_k**0.5, flag=True)


def _norm_before(subject: Subject, layer: str) -> tuple[Any, float] | None:
    """The gain of the norm whose output the layer projects, and what the model adds to it."""
    from rootdk.audit.config import GAIN_ABOVE_ONE
    from rootdk.audit.families import find_projections

    model = subject.model
    modules, _ = find_projections([name for name, _ in model.named_parameters()], model.config.model_type)
    name = next((module.query.input_gain for module in modules if module.module == layer), None)
    offset = float(model.config.model_type in GAIN_ABOVE_ONE)
    return None if name is None else (dict(model.named_parameters())[name], offset)


def _doubled_gain(subject: Subject) -> bool:
    """The gain of QK-norm, or that of the norm before the projections, of one layer."""
    gains = gains_of(subject.module(subject.middle))
    doubled = [(gain.weight, gain.offset) for gain in gains] if gains else [_norm_before(subject, subject.middle)]
    for held in doubled:
        if held is None:
            return False
        weight, offset = held
        weight.mul_(2.0).add_(offset)
    return True


def _bf16_overflow(subject: Subject) -> bool:
    """A model in bfloat16 of which one layer's products leave the format."""
    subject.model.to(torch.bfloat16)
    weights = subject.weights(subject.middle)
    gains = gains_of(subject.module(subject.middle))
    for part, gain in zip((weights.query, weights.key), gains or (None, None), strict=True):
        if gain is None:
            _multiplied(part, 2.0**66)
        else:
            gain.weight.mul_(2.0**66)
    return True


def _stuck_softcap(subject: Subject) -> bool:
    """A cap of a twentieth of the logits that it was made for."""
    changed = False
    for layer in subject.layers:
        module = subject.module(layer)
        if getattr(module, "attn_logit_softcapping", None):
            reading = subject.seen.readings[layer]
            module.attn_logit_softcapping = float(reading.metrics["score_size"].min()) / 20
            subject.model.config.attn_logit_softcapping = module.attn_logit_softcapping
            changed = True
    return changed


def _swapped_norms(subject: Subject) -> bool:
    """The gains of q and k, exchanged in every layer."""
    changed = False
    for layer in subject.layers:
        gains = gains_of(subject.module(layer))
        if gains is not None:
            query_gain = gains[0].weight.clone()
            gains[0].weight.copy_(gains[1].weight)
            gains[1].weight.copy_(query_gain)
            changed = True
    return changed


def _at_initialisation(subject: Subject) -> bool:
    """W_q and W_k of one layer as they are drawn: normal, of the deviation that the config names, without bias."""
    deviation = getattr(subject.model.config, "initializer_range", 0.02)
    weights = subject.weights(subject.middle)
    draw = torch.Generator().manual_seed(0)
    for part in (weights.query, weights.key):
        for parameter in part.parameters:
            whole, axis = parameter.data, part.axis if parameter.dim() > 1 else 0
            for places in part.places:
                rows = whole.narrow(axis, places.start, places.stop - places.start)
                drawn = deviation * torch.randn(rows.shape, generator=draw)
                rows.copy_(drawn if parameter.dim() > 1 else torch.zeros_like(drawn))
    gains = gains_of(subject.module(subject.middle))
    for gain in gains or ():
        gain.weight.fill_(1.0 - gain.offset)
    return len(subject.layers) > 2


def _hidden(subject: Subject) -> Any:
    """What the layer in the middle is given, (tokens, width) of the first batch entry."""
    taken: list[Any] = []
    module = subject.module(subject.middle)
    hook = module.register_forward_pre_hook(lambda _, args, kwargs: taken.append(args or kwargs), with_kwargs=True)
    with torch.no_grad():
        subject.model(**subject.inputs)
    hook.remove()
    arguments = taken[0]
    return (arguments[0] if isinstance(arguments, tuple) else arguments["hidden_states"])[0]


def _rows(part: Any) -> list[Any]:
    """Views of the rows of W of each head."""
    weight = part.parameters[0].data
    return [(weight if part.axis == 0 else weight.T)[places] for places in part.places]


def _outlier_channel(subject: Subject) -> bool:
    """One input of W_q and W_k of one layer, the one that moves logits the most, times 100."""
    weights = subject.weights(subject.middle)
    sides = [_rows(part) for part in (weights.query, weights.key)]
    heard = [sum(rows.square().sum(0) for rows in side).sqrt() for side in sides]
    channel = int((heard[0] * heard[1] * _hidden(subject).var(dim=0)).argmax())
    for side in sides:
        for rows in side:
            rows[:, channel].mul_(100.0)
    return True


def _sink_takes_all(subject: Subject) -> bool:
    """The key of the first token draws every query of one layer: its logit is 100 above the mean of the others."""
    weights = subject.weights(subject.middle)
    part = weights.query
    if len(part.parameters) < 2:
        return False
    hidden, keys_of = _hidden(subject), _rows(weights.key)
    bias, reading = part.parameters[1].data, subject.seen.readings[subject.middle]
    for head, places in enumerate(part.places):
        keys = hidden @ keys_of[head // weights.group].T
        others = keys[1:] - keys[1:].mean(0)
        spread = others.T @ others / len(others) + 1e-3 * others.square().mean() * torch.eye(keys.shape[1])
        apart = keys[0] - keys[1:].mean(0)
        direction = torch.linalg.solve(spread, apart)  # the one that tells the first key from the others best
        bias[places] += 100.0 * direction / (direction @ apart) / reading.scale
    return True


FAULTS: dict[str, Break] = {
    "one projection x40": _one_projection,
    "all layers x8": _all_layers,
    "a head zeroed": _zeroed_head,
    "wrong scale": _wrong_scale,
    "missing scale": _missing_scale,
    "gain doubled": _doubled_gain,
    "bf16 overflow": _bf16_overflow,
    "stuck softcap": _stuck_softcap,
    "swapped q and k norms": _swapped_norms,
    "a layer at initialisation": _at_initialisation,
    "an outlier channel": _outlier_channel,
    "a sink that takes all": _sink_takes_all,
}
# Faults of code and not of weights: a file shows them only where its config has a word for them.
OF_CODE = frozenset({"wrong scale"})


def broken(model: Any, inputs: Inputs, fault: str) -> bool:
    """Break a model in place; False where it has nothing to break in that way."""
    with torch.no_grad(), rootdk.watch(model) as seen:
        model(**inputs)
    with torch.no_grad():
        return FAULTS[fault](Subject(model, inputs, seen))
