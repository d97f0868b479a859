"""One attention call as a model made it, in the arguments of rootdk.attention: sdpa, transformers, fused layers."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import layer_norm, linear

from rootdk.torch.functional import broadcast

# A bias this low takes a key's weight to exactly 0, so the key is hidden: -inf, the lowest number of a type, or the
# -1e4 of older code.
HIDES = -9e3

# Arguments that change which keys take part, in ways that the other arguments do not show.
_UNREADABLE = ("cache", "indices", "block_indices", "cu_seq_lens_q")


# Kinds of mask of the fused functions: (n, n), (batch, n_key), or one for every batch entry (and head).
_OF_PAIRS, _OF_KEYS = 0, 1


class UnreadableError(Exception):
    """The call cannot be read; the message says why. The model itself is not disturbed."""


@dataclass(frozen=True, slots=True)
class Call:
    """Inputs and output, detached; nothing is copied.

    query, key, value   (..., heads, n_query, d_k), (..., kv_heads, n_key, d_k), (..., kv_heads, n_key, d_v)
    out                 (..., heads, n_query, d_v)
    causal              query i sees keys up to i
    added               what is added to the logits, some of it only to hide keys; None, or float
    mask                None, or bool, True keeps
    reach               None, or how many keys back a query sees
    route               the way in which the model called
    """

    query: Tensor
    key: Tensor
    value: Tensor
    out: Tensor
    route: str
    scale: float
    causal: bool = False
    mask: Tensor | None = None
    added: Tensor | None = None
    softcap: float | None = None
    sinks: Tensor | None = None
    reach: int | None = None
    dropout: float = 0.0


def of_sdpa(
    out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Call:
    """A call of torch.nn.functional.scaled_dot_product_attention."""
    query, key, value, out = (tensor.detach() for tensor in (query, key, value, out))
    if not query.shape == key.shape == value.shape:
        query, key, value = broadcast(query, key, value, enable_gqa)
    if query.dim() == 2:
        query, key, value, out = query[None], key[None], value[None], out[None]
    boolean = attn_mask is not None and attn_mask.dtype == torch.bool
    return Call(
        query,
        key,
        value,
        out,
        route="sdpa",
        scale=query.shape[-1] ** -0.5 if scale is None else float(scale),
        causal=bool(is_causal),
        mask=attn_mask if boolean else None,
        added=None if boolean or attn_mask is None else attn_mask.detach(),
        dropout=float(dropout_p),
    )


def of_transformers(
    out: Any,
    eager: bool,
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Any = None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    position_bias: Tensor | None = None,
    sliding_window: int | None = None,
    **others: Any,
) -> Call:
    """A call of an attention function of transformers, which returns ((batch, n, heads, d), weights or None).

    eager   the model's own function: it attends to all that the mask leaves, and ignores other causality or windows
    """
    for name in _UNREADABLE:
        if others.get(name) is not None:
            raise UnreadableError(f"{name} picks the keys")
    if attention_mask is not None and not isinstance(attention_mask, Tensor):
        raise UnreadableError(f"its mask is a {type(attention_mask).__name__}")
    if is_causal is None:
        is_causal = getattr(module, "is_causal", True)
    mask, added = None, None
    if attention_mask is not None:
        if attention_mask.dim() == 2:  # keys that are no padding, as flash attention takes them
            mask = attention_mask[:, None, None, : key.shape[-2]].bool()
        elif attention_mask.is_floating_point():
            added = attention_mask[..., : key.shape[-2]].detach()
        else:
            mask = attention_mask[..., : key.shape[-2]].bool()
    if position_bias is not None:
        added = position_bias.detach() if added is None else added + position_bias.detach()
    written_out = eager or (attention_mask is not None and attention_mask.dim() > 2)
    return Call(
        query.detach(),
        key.detach(),
        value.detach(),
        (out[0] if isinstance(out, tuple) else out).detach().transpose(1, 2),
        scale=query.shape[-1] ** -0.5 if scaling is None else float(scaling),
        causal=bool(query.shape[2] > 1 and is_causal and not written_out),
        mask=mask,
        added=added,
        softcap=softcap,
        sinks=None if s_aux is None else s_aux.detach().reshape(-1),
        reach=None if written_out or sliding_window is None else int(sliding_window) - 1,
        dropout=float(dropout) if getattr(module, "training", False) else 0.0,
        route="eager" if eager else "transformers",
    )


def split(added: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    """What is added to the logits, as (bool mask or None, bias or None): most such tensors only hide keys.

    >>> split(torch.tensor([[0.0, -torch.inf], [0.0, 0.0]]))
    (tensor([[ True, False], [ True,  True]]), None)
    """
    if added is None:
        return None, None
    seen = added > HIDES
    bias = torch.where(seen, added, 0.0)
    if not added.is_cpu:  # reading its values would wait for the device
        return seen, bias
    return (None if bool(seen.all()) else seen), (bias if bool(bias.any()) else None)


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
        lengths = torch.tensor([len(sequence) for sequence in query.unbind()])
        query = key = value = query.to_padded_tensor(0.0)
        hidden = (torch.arange(query.shape[1]) >= lengths[:, None])[:, None, None, :]
        # Rows of padding do not count: they see nothing.
        hidden = hidden | hidden.transpose(-1, -2)

    def heads(tensor: Tensor, part: int) -> Tensor:
        rows = slice(part * embed_dim, (part + 1) * embed_dim)
        projected = linear(tensor, qkv_weight[rows], qkv_bias[rows])
        return projected.unflatten(-1, (num_head, embed_dim // num_head)).transpose(1, 2).detach()

    q = heads(query, 0)
    return Call(
        q,
        heads(key, 1),
        heads(value, 2),
        q.new_empty(0),  # already projected: nothing to compare with
        route="fused",
        scale=(embed_dim // num_head) ** -0.5,
        mask=None if hidden is None else ~hidden,
    )
