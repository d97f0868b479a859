"""FlashAttention's varlen function and transformers' packed batches: every document as if it were alone."""

import types
from typing import Any

import pytest
import torch
from transformers_zoo import transformers

import rootdk
import rootdk.torch
from rootdk.torch import flash_attn_varlen_func, scaled_dot_product_attention
from rootdk.torch.functional import transformers_attention

STARTS_Q, STARTS_K = torch.tensor([0, 5, 5, 12, 40]), torch.tensor([0, 9, 12, 12, 60])
WIDE = torch.float64


def packed(grad: bool = False) -> list[Any]:
    shapes = ((40, 4, 8), (60, 2, 8), (60, 2, 6))
    return [torch.randn(shape, dtype=WIDE, requires_grad=grad) for shape in shapes]


def written_out(q: Any, k: Any, v: Any, causal: bool, window: tuple[int, int], softcap: float, slopes: Any) -> Any:
    """Document by document in plain operations, as FlashAttention's reference has it: aligned at the bottom right."""
    parts = []
    for (a, b), (c, d) in zip(
        *(zip(s[:-1].tolist(), s[1:].tolist(), strict=True) for s in (STARTS_Q, STARTS_K)), strict=True
    ):
        qs, ks, vs = q[a:b].transpose(0, 1), *(t[c:d].transpose(0, 1).repeat_interleave(2, dim=0) for t in (k, v))
        scores = qs @ ks.transpose(-1, -2) / 8**0.5
        if softcap:
            scores = softcap * torch.tanh(scores / softcap)
        apart = torch.arange(b - a)[:, None] + (d - c) - (b - a) - torch.arange(d - c)
        if slopes is not None:
            scores = scores - slopes[:, None, None] * apart.abs()
        hidden = torch.zeros_like(apart, dtype=torch.bool)
        left, right = window
        right = 0 if causal else right
        if left >= 0:
            hidden |= apart > left
        if right >= 0:
            hidden |= -apart > right
        weights = torch.softmax(scores.masked_fill(hidden, -torch.inf), dim=-1).nan_to_num(0.0)
        parts.append((weights @ vs).transpose(0, 1))
    return torch.cat(parts)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window", [(-1, -1), (4, 2), (3, -1)], ids=str)
@pytest.mark.parametrize(("softcap", "learned"), [(0.0, False), (2.0, True)])
def test_every_document_alone(causal: bool, window: tuple[int, int], softcap: float, learned: bool) -> None:
    leaves = packed(grad=True)
    slopes = torch.rand(4, dtype=WIDE, requires_grad=True) if learned else None
    out = flash_attn_varlen_func(
        *leaves, STARTS_Q.int(), STARTS_K.int(), 28, 48, causal=causal, window_size=window, softcap=softcap,
        alibi_slopes=slopes, deterministic=True,
    )  # fmt: skip
    expected = written_out(*leaves, causal, window, softcap, slopes)
    torch.testing.assert_close(out, expected)
    leaves += [] if slopes is None else [slopes]
    for ours, theirs in zip(*(torch.autograd.grad(o.sin().sum(), leaves) for o in (out, expected)), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_compiled_scaled_and_dropped() -> None:
    q, k, v = packed()

    def call(q: Any, starts: Any) -> Any:
        return flash_attn_varlen_func(q, k, v, starts, STARTS_K, softmax_scale=0.3, causal=True)

    torch.testing.assert_close(torch.compile(call, fullgraph=True, backend="aot_eager")(q, STARTS_Q), call(q, STARTS_Q))
    ids = [torch.repeat_interleave(torch.arange(4), s.diff()) for s in (STARTS_Q, STARTS_K)]
    heads = [t.transpose(0, 1) for t in (q, k, v)]
    expected = rootdk.attention(*heads, scale=0.3, causal=True, segments=tuple(ids))
    assert torch.equal(call(q, STARTS_Q), expected.transpose(0, 1))
    torch.manual_seed(1)
    first = flash_attn_varlen_func(q, k, v, STARTS_Q, STARTS_K, dropout_p=0.5)
    torch.manual_seed(1)
    assert torch.equal(first, flash_attn_varlen_func(q, k, v, STARTS_Q, STARTS_K, dropout_p=0.5))


Q = torch.zeros(6, 2, 4)
ENDS = torch.tensor([0, 6])


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"cu_seqlens_q": torch.tensor([0, 5])}, "cu_seqlens_q: must rise from 0 to 6, got [0, 5]"),
        ({"cu_seqlens_k": torch.tensor([0, 4, 3, 6])}, "cu_seqlens_k: must rise from 0 to 6, got [0, 4, 3, 6]"),
        ({"cu_seqlens_k": [0, 6]}, "cu_seqlens_k: must be a tensor of ints with 1 axis, got [0, 6]"),
        ({"q": torch.zeros(1, 6, 2, 4)}, "q: must have 3 axes (total, heads, d), got shape (1, 6, 2, 4)"),
        ({"k": [1.0]}, "k: must be a torch tensor, got list"),
        ({"window_size": 3}, "window_size: must be (left, right), got 3"),
        ({"alibi_slopes": torch.zeros(1, 2)}, "alibi_slopes: must have shape (heads,), got (1, 2)"),
        ({"return_attn_probs": True}, "return_attn_probs: must be left out, got True: rootdk has no such thing"),
    ],
)
def test_errors(changes: dict[str, Any], line: str) -> None:
    given = {"q": Q, "k": Q, "v": Q, "cu_seqlens_q": ENDS, "cu_seqlens_k": ENDS} | changes
    with pytest.raises((rootdk.ArgumentError, rootdk.ArgumentTypeError)) as caught:
        flash_attn_varlen_func(**given)
    assert str(caught.value) == line


@pytest.mark.parametrize("layout", [torch.jagged, torch.strided], ids=str)
@pytest.mark.parametrize("grad", [False, True])
def test_nested_tensors_are_refused_by_name(layout: Any, grad: bool) -> None:
    nested = torch.nested.nested_tensor([torch.randn(3, 2, 4), torch.randn(5, 2, 4)], layout=layout, requires_grad=grad)
    heads = nested.transpose(1, 2)
    calls = (
        lambda: rootdk.attention(heads, heads, heads),
        lambda: rootdk.measure(heads, heads, heads),
        lambda: rootdk.read(heads, heads),
        lambda: rootdk.weights(heads, heads),
        lambda: scaled_dot_product_attention(heads, heads, heads),
        lambda: flash_attn_varlen_func(nested, nested, nested, ENDS, ENDS),
    )
    for call in calls:
        with pytest.raises(rootdk.ArgumentTypeError, match=r"^(query|q): must be a dense tensor, got a nested one"):
            call()


def test_offsets_of_transformers_are_segments() -> None:
    q, k, v = (torch.randn(1, heads, 12, 8) for heads in (4, 2, 2))
    starts = torch.tensor([0, 5, 12])
    segments = torch.repeat_interleave(torch.tensor([0, 1]), torch.tensor([5, 7]))
    out, _ = transformers_attention(
        types.SimpleNamespace(is_causal=True), q, k, v, None, cu_seq_lens_q=starts, cu_seq_lens_k=starts
    )
    assert torch.equal(out, rootdk.attention(q, k, v, causal=True, segments=segments).transpose(1, 2))
    with pytest.raises(rootdk.ArgumentError, match=r"^cu_seq_lens_q: must be None for a batch of 2, got Tensor"):
        transformers_attention(
            types.SimpleNamespace(), *(t.expand(2, -1, -1, -1) for t in (q, k, v)), None, cu_seq_lens_q=starts
        )


@torch.no_grad()
@pytest.mark.parametrize("documents_by", ["position_ids", "offsets", "both"])
def test_a_packed_batch_is_that_of_eager_with_a_block_mask(documents_by: str) -> None:
    config = transformers.LlamaConfig(
        vocab_size=50,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    model = transformers.LlamaForCausalLM(config).double().eval()
    lengths = [5, 1, 9]
    tokens = torch.randint(0, 50, (1, sum(lengths)))
    positions = torch.cat([torch.arange(n) for n in lengths])[None]
    segments = torch.repeat_interleave(torch.arange(3), torch.tensor(lengths))
    blocks = (segments[:, None] == segments) & torch.ones(15, 15, dtype=torch.bool).tril()
    model.set_attn_implementation("eager")
    bias = torch.zeros(15, 15, dtype=torch.float64).masked_fill(~blocks, -torch.inf)[None, None]
    expected = model(tokens, position_ids=positions, attention_mask=bias, use_cache=False).logits
    model.set_attn_implementation(rootdk.torch.register_transformers())
    starts = torch.tensor([0, 5, 6, 15], dtype=torch.int32)
    given: dict[str, Any] = {"position_ids": positions, "use_cache": False}
    if documents_by != "position_ids":
        given |= {"cu_seq_lens_q": starts, "cu_seq_lens_k": starts, "max_length_q": 9, "max_length_k": 9}
    if documents_by == "offsets":  # and a mask that says nothing: transformers then looks at no positions
        given["attention_mask"] = torch.ones(1, 15, dtype=torch.int64)
    torch.testing.assert_close(model(tokens, **given).logits, expected)
