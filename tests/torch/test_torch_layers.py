"""torch's own layers inside use(): masks, memory and gradients, in float32 and float64."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from whole_models import assert_within, errors, outcome

import rootdk.torch

pytestmark = pytest.mark.usefixtures("one_thread")
HIDDEN = torch.arange(9) >= torch.tensor([9, 6, 4])[:, None]  # True is padding here
CAUSAL = torch.ones(9, 9, dtype=torch.bool).triu(1)


def encoder(x: Any, memory: Any, causal: bool) -> tuple[Any, Callable[[], Any]]:
    layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True, norm_first=causal)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=not causal)
    mask = CAUSAL if causal else None
    return model, lambda: model(x, mask=mask, src_key_padding_mask=HIDDEN, is_causal=causal)


def decoder(x: Any, memory: Any, causal: bool) -> tuple[Any, Callable[[], Any]]:
    model = nn.TransformerDecoder(nn.TransformerDecoderLayer(16, 4, 32, dropout=0.0, batch_first=True), 1)
    mask = CAUSAL if causal else None
    return model, lambda: model(x, memory, tgt_mask=mask, tgt_key_padding_mask=HIDDEN, tgt_is_causal=causal)


def multi_head(x: Any, memory: Any, causal: bool) -> tuple[Any, Callable[[], Any]]:
    model = nn.MultiheadAttention(16, 4, batch_first=True, kdim=8, vdim=8, add_bias_kv=True)
    narrow = x[..., :8]
    options = {"attn_mask": CAUSAL if causal else None, "key_padding_mask": HIDDEN, "need_weights": False}
    return model, lambda: model(x, narrow, narrow, **options)[0]


def ran(make: Any, dtype: torch.dtype, training: bool, causal: bool) -> dict[str, Any]:
    torch.manual_seed(5)
    x, memory = torch.randn(3, 9, 16).to(dtype), torch.randn(3, 5, 16).to(dtype)
    model, call = make(x, memory, causal)
    model.to(dtype).train(training)
    return outcome(model, call()[~HIDDEN])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("causal", [True, False], ids=["causal", "full"])
@pytest.mark.parametrize(("make", "attentions"), [(encoder, 2), (decoder, 2), (multi_head, 1)])
def test_outputs_and_gradients(
    routed: list[Any], make: Any, attentions: int, causal: bool, training: bool, dtype: torch.dtype
) -> None:
    judge = ran(make, torch.float64, training, causal)
    own = errors(ran(make, torch.float32, training, causal), judge)
    assert not routed
    with rootdk.torch.use():
        result = ran(make, dtype, training, causal)
    assert len(routed) == attentions
    assert_within(errors(result, judge), own, dtype)


@torch.no_grad()
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype stage")
def test_the_nested_path_of_evaluation_is_left_out(routed: list[Any]) -> None:
    """Without gradients torch packs padded rows into nested tensors, which only its own kernels read."""
    model, call = encoder(torch.randn(3, 9, 16), None, causal=False)
    model.eval()
    before = call()[~HIDDEN]
    with rootdk.torch.use():
        inside = call()[~HIDDEN]
    assert len(routed) == 2
    torch.testing.assert_close(before, inside, rtol=1e-4, atol=1e-5)
