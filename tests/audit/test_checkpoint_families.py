"""read_checkpoint on small models as transformers saves them: the right numbers, no false alarm, the right alarm."""

import math
import statistics
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from checkpoint_zoo import FAMILIES, built, layer_of, queries, saved, sharpen
from numpy.typing import NDArray

import rootdk
from rootdk.audit import Audit, read_checkpoint

pytestmark = pytest.mark.usefixtures("one_thread")


def alarms(audit: Audit) -> list[tuple[str, str]]:
    return [(finding.layer, finding.severity) for finding in audit.findings if finding.severity != "note"]


@pytest.mark.parametrize("name", FAMILIES)
def test_untrained_models_are_healthy_and_fully_read(name: str, tmp_path: Path) -> None:
    family, model = FAMILIES[name], built(name)
    audit = read_checkpoint(saved(model, tmp_path))
    assert audit.verdict == "healthy", alarms(audit)
    assert audit.unknown == ()
    assert sorted(layer.name for layer in audit.layers) == sorted(layer_of(path) for path, _ in queries(name, model))
    assert all(len(layer.heads) == 4 for layer in audit.layers)
    assert audit.model["key_heads"] == family.key_heads
    for layer in audit.layers:
        assert layer.of("scale") == [family.scale] * 4
        assert layer.of("scale_ratio") == [family.scale * math.sqrt(head["d_k"]) for head in layer.heads]
        assert layer.of("non_finite_weights") == [0.0] * 4
        # Normed heads have gains in place of weights.
        assert [("gain_bound" in head, "spectral_bound" in head) for head in layer.heads] == [
            (family.normed, not family.normed)
        ] * 4
    # A start at a fixed 0.02 is near-uniform: told, and no alarm.
    narrow = statistics.median(audit.layers[0].of("predicted_deviation")) < 0.2
    assert narrow == any(
        finding.metric == "predicted_deviation" and finding.severity == "note" for finding in audit.findings
    )


@pytest.mark.parametrize("phase", ["any", "init"])
@pytest.mark.parametrize("name", [name for name, family in FAMILIES.items() if not family.normed])
def test_twenty_times_the_queries_of_one_layer_is_that_layer(name: str, phase: Any, tmp_path: Path) -> None:
    model = built(name)
    path, module = queries(name, model)[1]
    before = read_checkpoint(saved(model, tmp_path), phase=phase)
    sharpen(name, module, 20.0)
    audit = read_checkpoint(saved(model, tmp_path), phase=phase)
    assert alarms(before) == []
    assert {layer for layer, _ in alarms(audit)} == {layer_of(path)}
    assert audit.verdict in ("warning", "critical")
    for old, new in zip(before.layers, audit.layers, strict=True):
        factor = 20.0 if new.name == layer_of(path) else 1.0
        assert new.of("predicted_deviation") == pytest.approx(
            [factor * deviation for deviation in old.of("predicted_deviation")]
        )
    sharpen(name, module, 1 / 20)
    assert read_checkpoint(saved(model, tmp_path), phase=phase).verdict == "healthy"


@pytest.mark.parametrize("name", [name for name, family in FAMILIES.items() if family.normed])
def test_a_norm_undoes_the_weights_and_its_gain_is_what_counts(name: str, tmp_path: Path) -> None:
    model = built(name)
    path, module = queries(name, model)[1]
    sharpen(name, module, 20.0)
    assert alarms(read_checkpoint(saved(model, tmp_path))) == []
    norm = next(part for place, part in model.named_modules() if place.startswith(layer_of(path)) and "q_" in place
                and "norm" in place)  # fmt: skip
    with torch.no_grad():
        norm.weight.copy_((norm.weight + 1) * 40 - 1 if FAMILIES[name].above else norm.weight * 40)
    audit = read_checkpoint(saved(model, tmp_path))
    assert {layer for layer, _ in alarms(audit)} == {layer_of(path)}
    metrics = {finding.metric for finding in audit.findings if finding.severity != "note"}
    assert metrics & {"gain_over_neighbours", "predicted_over_others"}


@contextmanager
def watched_softmax(keep: Callable[[Any], None]) -> Iterator[None]:
    """Every logit of an eager model passes through torch's softmax."""
    own = torch.nn.functional.softmax

    def noted(logits: Any, *args: Any, **kwargs: Any) -> Any:
        keep(logits)
        return own(logits, *args, **kwargs)

    torch.nn.functional.softmax = noted
    try:
        yield
    finally:
        torch.nn.functional.softmax = own


@torch.no_grad()
def unsettle(model: Any) -> None:
    """Make heads, queries, keys and values differ, so that one taken for another shows; take positions out.

    Biases begin at 0 and gains at 1. Every 8 rows, half the width of a head, get a factor of their own and a direction
    that they share, which a norm that takes the mean off would lose.
    """
    draw = torch.Generator().manual_seed(5)
    for module in model.modules():
        weight = getattr(module, "weight", None)
        if weight is None or weight.ndim != 2 or isinstance(module, torch.nn.Embedding):
            continue
        rows = weight.T if type(module).__name__ == "Conv1D" else weight
        if rows.shape[1] in (64, 32, 24) and rows.shape[0] % 8 == 0:
            blocks = rows.shape[0] // 8
            factor = torch.exp(0.5 * torch.randn(blocks, 1, generator=draw)).repeat_interleave(8, dim=0)
            shared = rows.std() * torch.randn(blocks, rows.shape[1], generator=draw).repeat_interleave(8, dim=0)
            rows.copy_(factor * (rows + 0.7 * shared))
    for path, parameter in model.named_parameters():
        if path.endswith("relative_attention_bias.weight"):
            parameter.zero_()
        elif path.endswith("bias"):
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=draw))
        elif parameter.ndim == 1 or "_norm" in path:
            parameter.add_(0.7 * torch.randn(parameter.shape, generator=draw))
    for path, buffer in model.named_buffers():
        if "inv_freq" in path:
            buffer.zero_()


GROUPS, TOKENS = 96, 17


@torch.no_grad()
def measured(name: str, model: Any, modules: list[str]) -> dict[str, NDArray[Any]]:
    """Variance inside the rows of its own logits, by (group, head): groups are independent.

    The input is white, through the gain and the shift of the norm that made what the module would have got.
    """
    draw = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    seen: list[Any] = []
    made_by: dict[int, Any] = {}
    kept: list[Any] = []  # so that no other tensor gets the address of one of them

    def remember(norm: Any, _args: Any, out: Any) -> None:
        made_by[out.data_ptr()] = norm
        kept.append(out)

    def white(_module: Any, args: Any, kwargs: Any) -> Any:
        def fresh(value: Any) -> Any:
            if not (isinstance(value, torch.Tensor) and value.ndim == 3 and value.shape[-1] == 64):
                return value
            z, norm = torch.randn(value.shape, generator=draw), made_by.get(value.data_ptr())
            gain = 1.0 if norm is None or norm.weight is None else norm.weight + FAMILIES[name].above
            shift = getattr(norm, "bias", None)
            return gain * z + (0.0 if shift is None else shift)

        return tuple(map(fresh, args)), {key: fresh(value) for key, value in kwargs.items()}

    def noted(logits: Any) -> None:
        if logits.ndim == 4:  # and not the weights of experts
            seen.append(logits.double())

    own = dict(model.named_modules())
    hooks = [own[path].register_forward_pre_hook(white, with_kwargs=True) for path in modules]
    hooks += [part.register_forward_hook(remember) for part in own.values() if "Norm" in type(part).__name__
              and hasattr(part, "weight")]  # fmt: skip
    order: list[str] = []
    hooks += [own[path].register_forward_pre_hook(lambda *_, path=path: order.append(path)) for path in modules]
    tokens = torch.randint(1, 50, (GROUPS, TOKENS), generator=draw)
    given = {"input_ids": tokens, "decoder_input_ids": tokens}
    given["pixel_values"] = torch.randn(GROUPS, 3, 16, 16, generator=draw)
    given["input_features"] = torch.randn(GROUPS, 8, 2 * TOKENS, generator=draw)
    with watched_softmax(noted):
        model(**{kind: given[kind] for kind in FAMILIES[name].inputs})
    for hook in hooks:
        hook.remove()
    # A module that runs again, as ALBERT's do, is looked at when it gets what it made itself.
    assert len(seen) == len(order)
    assert set(order) == set(modules)
    return {path: _row_variance(logits.numpy()) for path, logits in zip(order, seen, strict=True)}


def _row_variance(logits: NDArray[Any]) -> NDArray[Any]:
    """Unbiased, over the keys that a row sees, averaged over rows of at least 4 keys."""
    visible = logits > -1e30
    count = visible.sum(axis=-1)
    z = np.where(visible, logits, 0.0)
    mean = z.sum(axis=-1, keepdims=True) / count[..., None]
    variance = np.where(visible, (z - mean) ** 2, 0.0).sum(axis=-1) / np.maximum(count - 1, 1)
    rows = count >= 4
    average: NDArray[Any] = (variance * rows).sum(axis=-1) / rows.sum(axis=-1)
    return average


@pytest.mark.parametrize("name", FAMILIES)
def test_predicted_variance_is_that_of_the_model_on_white_input(name: str, tmp_path: Path, monkeypatch: Any) -> None:
    """Within 5 standard errors of the groups, all heads of all layers, biases and gains included."""
    if name == "bloom":
        monkeypatch.setattr("transformers.models.bloom.modeling_bloom._get_alibi_slopes", _no_slopes)
    if name == "mpt":
        monkeypatch.setattr("transformers.models.mpt.modeling_mpt.build_mpt_alibi_tensor", _no_mpt_alibi)
    model = built(name)
    unsettle(model)
    audit = {layer.name: layer for layer in read_checkpoint(saved(model, tmp_path)).layers}
    modules = [path.rpartition(".")[0] for path, _ in queries(name, model)]
    for path, groups in measured(name, model, modules).items():
        predicted = np.array(audit[layer_of(path + ".")].of("predicted_variance"))
        mean, error = groups.mean(axis=0), groups.std(axis=0, ddof=1) / np.sqrt(len(groups))
        assert (np.abs(predicted - mean) < 5 * error).all(), (path, predicted / mean, 5 * error / mean)
        assert (predicted <= np.array(audit[layer_of(path + ".")].of("variance_bound")) * (1 + 1e-9)).all()


def _no_slopes(num_heads: int, *_: Any) -> Any:
    return torch.zeros(num_heads)


def _no_mpt_alibi(num_heads: int, sequence_length: int, *_: Any, **__: Any) -> Any:
    return torch.zeros(num_heads, 1, sequence_length)


@pytest.mark.parametrize("name", ["falcon", "falcon_one_key"])
def test_rows_of_a_model_whose_head_size_the_call_does_not_show(name: str, tmp_path: Path) -> None:
    """Falcon writes its softmax out, so a reading has no d_k; which rows are queries is then said by the module."""
    model = built(name).eval()
    weights = read_checkpoint(saved(model, tmp_path))
    with torch.no_grad(), rootdk.watch(model) as seen:
        model(input_ids=torch.randint(0, 50, (2, 40)))
    run = seen.report()
    assert all(reading.d_k == 0 for reading in seen.readings.values())
    uneven = [layer.facts["unevenness"] for layer in weights.layers]
    assert [layer.facts["unevenness"] for layer in run.layers] == pytest.approx(uneven)
