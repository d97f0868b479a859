"""The attention that transformers calls, without transformers: what its arguments mean, and where it is registered."""

import sys
import types
from typing import Any

import pytest
import torch

import rootdk
import rootdk.torch
from rootdk.torch.functional import transformers_attention

Q, K, V = torch.randn(2, 4, 6, 8), torch.randn(2, 2, 6, 8), torch.randn(2, 2, 6, 8)
DECODER, ENCODER = types.SimpleNamespace(is_causal=True), types.SimpleNamespace(is_causal=False)
MASK = torch.rand(2, 1, 6, 6) < 0.7
BIAS = torch.randn(1, 4, 6, 6)
SINKS = torch.randn(4)


@pytest.mark.parametrize(
    ("module", "mask", "given", "meant"),
    [
        (DECODER, None, {}, {"causal": True}),
        (types.SimpleNamespace(), None, {}, {"causal": True}),
        (ENCODER, None, {}, {}),
        (DECODER, None, {"is_causal": False}, {}),
        (DECODER, MASK, {}, {"mask": MASK}),
        (DECODER, BIAS, {}, {"bias": BIAS}),
        (ENCODER, MASK, {"position_bias": BIAS}, {"mask": MASK, "bias": BIAS}),
        (ENCODER, BIAS, {"position_bias": BIAS}, {"bias": 2 * BIAS}),
        (DECODER, None, {"position_bias": BIAS}, {"causal": True, "bias": BIAS}),
        (DECODER, None, {"scaling": 0.3, "softcap": 5.0}, {"causal": True, "scale": 0.3, "softcap": 5.0}),
        (DECODER, MASK, {"s_aux": SINKS, "sliding_window": 4}, {"mask": MASK, "sinks": SINKS}),
    ],
)
def test_what_it_means(module: Any, mask: Any, given: dict[str, Any], meant: dict[str, Any]) -> None:
    out, weights = transformers_attention(module, Q, K, V, mask, **given)
    assert weights is None
    assert out.is_contiguous()
    assert torch.equal(out, rootdk.attention(Q, K, V, **meant).transpose(1, 2))


def test_one_query_sees_the_whole_cache() -> None:
    out, _ = transformers_attention(DECODER, Q[:, :, -1:], K, V, None)
    assert torch.equal(out, rootdk.attention(Q[:, :, -1:], K, V).transpose(1, 2))


def test_dropout_follows_torch() -> None:
    torch.manual_seed(0)
    first, _ = transformers_attention(DECODER, Q, K, V, None, dropout=0.5)
    torch.manual_seed(0)
    assert torch.equal(first, transformers_attention(DECODER, Q, K, V, None, dropout=0.5)[0])
    assert not torch.equal(first, transformers_attention(DECODER, Q, K, V, None)[0])


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        ("cache", 3, "got int: paged caches are not supported"),
        ("indices", torch.zeros(2, 6, 3), "got Tensor: for keys that an indexer picks"),
        ("block_indices", torch.zeros(2, 6, 3), "got Tensor: for blocks of keys"),
        ("output_attentions", True, "got bool: the weights are never there as a whole"),
    ],
)
def test_what_would_change_the_answer_is_refused(name: str, given: Any, message: str) -> None:
    with pytest.raises(rootdk.ArgumentError, match=rf"^{name}: must be None, {message}"):
        transformers_attention(DECODER, Q, K, V, None, **{name: given})
    absent = {name: False if name == "output_attentions" else None}
    out, _ = transformers_attention(DECODER, Q, K, V, None, **absent)
    assert torch.equal(out, transformers_attention(DECODER, Q, K, V, None, sliding_window=6, position_ids=Q)[0])


def test_both_interfaces_are_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a mask function of the same name, transformers would drop causality."""
    registered: dict[str, tuple[str, Any]] = {}

    def interface(kind: str) -> Any:
        return types.SimpleNamespace(register=lambda name, function: registered.update({kind: (name, function)}))

    library, masks = types.ModuleType("transformers"), types.ModuleType("transformers.masking_utils")
    library.AttentionInterface = interface("attention")  # type: ignore[attr-defined]
    library.AttentionMaskInterface = interface("mask")  # type: ignore[attr-defined]
    masks.sdpa_mask = object()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "transformers", library)
    monkeypatch.setitem(sys.modules, "transformers.masking_utils", masks)
    assert rootdk.torch.register_transformers() == "rootdk"
    expected = {"attention": ("rootdk", transformers_attention), "mask": ("rootdk", masks.sdpa_mask)}
    assert registered == expected


def test_without_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ImportError, match=r"^transformers: must be installed \(version 5 or newer"):
        rootdk.torch.register_transformers()
