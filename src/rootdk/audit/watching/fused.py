"""The calls behind torch's fused layers for evaluation: attention inside, so q and k are projected once more here."""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import layer_norm, linear

from rootdk.audit.watching.call import Call

# Kinds of mask of the fused functions: (n, n), (batch, n_key), or one for every batch entry (and head).
_OF_PAIRS, _OF_KEYS = 0, 1


def of_encoder_layer(
    src: Tensor,
    embed_dim: int,
    num_heads: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    proj_weight: Tensor,  # noqa: ARG001 -- torch's order
    proj_bias: Tensor,  # noqa: ARG001
    use_gelu: bool,  # noqa: ARG001
    norm_first: bool,
    eps: float,
    norm_weight_1: Tensor,
    norm_bias_1: Tensor,
    *others: Any,
) -> Call:
    """A call of torch._transformer_encoder_layer_fwd."""
    mask, mask_type = others[-2:] if len(others) >= 8 else (None, None)
    if norm_first:
        src = layer_norm(src, (embed_dim,), norm_weight_1, norm_bias_1, eps)
    return of_multi_head(src, src, src, embed_dim, num_heads, qkv_weight, qkv_bias, mask=mask, mask_type=mask_type)


def of_multi_head(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim: int,
    num_head: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    proj_weight: Any = None,  # noqa: ARG001 -- torch's order
    proj_bias: Any = None,  # noqa: ARG001
    mask: Tensor | None = None,
    need_weights: bool = True,  # noqa: ARG001
    average_attn_weights: bool = True,  # noqa: ARG001
    mask_type: int | None = None,
) -> Call:
    """A call of torch._native_multi_head_attention."""
    hidden = None if mask is None else mask.bool()  # anything but 0 hides, as a float mask of -inf does
    if hidden is not None:
        if mask_type == _OF_KEYS:
            hidden = hidden[:, None, None, :]
        elif mask_type != _OF_PAIRS and hidden.dim() == 3:
            hidden = hidden[:, None]
    if query.is_nested:
        lengths = torch.tensor([len(one) for one in query.unbind()])
        query = key = value = query.to_padded_tensor(0.0)
        hidden = (torch.arange(query.shape[1]) >= lengths[:, None])[:, None, None, :]
        # Rows of padding are no rows of the model: they see nothing.
        hidden = hidden | hidden.transpose(-1, -2)

    def heads(tensor: Tensor, part: int) -> Tensor:
        rows = slice(part * embed_dim, (part + 1) * embed_dim)
        made = linear(tensor, qkv_weight[rows], qkv_bias[rows])
        return made.unflatten(-1, (num_head, embed_dim // num_head)).transpose(1, 2).detach()

    q = heads(query, 0)
    return Call(
        q,
        heads(key, 1),
        heads(value, 2),
        q.new_empty(0),  # it comes out projected: nothing to compare with
        scale=(embed_dim // num_head) ** -0.5,
        causal=False,
        mask=None if hidden is None else ~hidden,
        added=None,
        softcap=None,
        sinks=None,
        reach=None,
        dropout=0.0,
        route="fused",
    )
