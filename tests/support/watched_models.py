"""Small torch models that attend in the ways that rootdk.watch must see."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.nn.functional import scaled_dot_product_attention as imported_by_name

WIDTH, HEADS, LAYERS, TOKENS = 32, 4, 3, 20
# Where a watch may put itself.
PLACES = [
    (functional, "scaled_dot_product_attention"),
    (functional, "multi_head_attention_forward"),
    (torch, "_transformer_encoder_layer_fwd"),
    (torch, "_native_multi_head_attention"),
]


@contextmanager
def torch_as_it_was() -> Iterator[None]:
    """Afterwards no wrapper, no mode and no setting is left behind."""
    before = [getattr(owner, name) for owner, name in PLACES]
    fast, modes = torch.backends.mha.get_fastpath_enabled(), torch._C._len_torch_function_stack()
    yield
    assert [getattr(owner, name) for owner, name in PLACES] == before
    assert torch.backends.mha.get_fastpath_enabled() == fast
    assert torch._C._len_torch_function_stack() == modes


class Attention(nn.Module):
    """q, k and v out of one linear layer; `how` computes the rest."""

    def __init__(self, how: Any, width: int = WIDTH, heads: int = HEADS) -> None:
        super().__init__()
        self.how, self.heads = how, heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Any) -> Any:
        query, key, value = self.qkv(x).unflatten(-1, (3, self.heads, -1)).transpose(1, 3).unbind(2)
        return self.out(self.how(query, key, value).transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, how: Any) -> None:
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(WIDTH), Attention(how)

    def forward(self, x: Any) -> Any:
        return x + self.attention(self.norm(x))


class Model(nn.Module):
    """A few blocks. `saved` runs every block under gradient checkpointing, True in the reentrant way."""

    def __init__(self, how: Any, saved: bool | None = None) -> None:
        super().__init__()
        self.blocks, self.saved = nn.ModuleList(Block(how) for _ in range(LAYERS)), saved

    def forward(self, x: Any) -> Any:
        for block in self.blocks:
            if self.saved is None:
                x = block(x)
            else:
                x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=self.saved)
        return x


class MultiHead(nn.Module):
    """nn.MultiheadAttention, asked for its weights or not."""

    def __init__(self, need_weights: bool, **options: Any) -> None:
        super().__init__()
        self.attn, self.need_weights = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True, **options), need_weights

    def forward(self, x: Any, **masks: Any) -> Any:
        return self.attn(x, x, x, need_weights=self.need_weights, **masks)[0]


def by_attribute(query: Any, key: Any, value: Any) -> Any:
    return functional.scaled_dot_product_attention(query, key, value, is_causal=True)


def by_name(query: Any, key: Any, value: Any) -> Any:
    return imported_by_name(query, key, value, is_causal=True)


def written_out(query: Any, key: Any, value: Any) -> Any:
    scores = query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5
    hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    return functional.softmax(scores.masked_fill(hidden, -torch.inf), dim=-1) @ value


WAYS = {"attribute": by_attribute, "name": by_name, "written out": written_out}
NAMES = [f"blocks.{layer}.attention" for layer in range(LAYERS)]


def model(how: Any = by_attribute, **options: Any) -> Model:
    torch.manual_seed(0)
    return Model(how, **options)


def tokens(batch: int = 2, n: int = TOKENS) -> Any:
    return torch.randn(batch, n, WIDTH, generator=torch.Generator().manual_seed(1))
