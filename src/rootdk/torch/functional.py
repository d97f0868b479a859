"""scaled_dot_product_attention() with torch's signature and torch's meaning of every argument."""

from typing import Any

import torch
from torch import Tensor

from ..attention import attention
from ..backends import torch as adapter
from ..errors import ArgumentError, ArgumentTypeError


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """torch.nn.functional.scaled_dot_product_attention, on rootdk.

    query        (..., n_query, d_k), 2 axes or more; key and value likewise. Leading axes broadcast.
    attn_mask    broadcasts to (..., n_query, n_key): bool, True takes part, or float, added to the scores
    dropout_p    applied whenever it is not 0; the seed comes from torch's default generator
    is_causal    query i sees key j <= i, counted from the top left whatever the lengths are (rootdk.attention aligns at
                 the end). Together with attn_mask both hold, as in torch's formula and on its fused path (its other
                 path refuses the two together).
    enable_gqa   several query heads share a key head (axis -3); without it the head counts must be equal or broadcast

    A row that is hidden altogether is 0. A float attn_mask that requires a gradient gets one, of its own shape.

    >>> import torch
    >>> from rootdk.torch import scaled_dot_product_attention
    >>> query, key, value = torch.randn(3, 2, 4, 16, 8).unbind(0)
    >>> ours = scaled_dot_product_attention(query, key, value, is_causal=True)
    >>> theirs = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
    >>> torch.allclose(ours, theirs, atol=1e-5)
    True
    """
    if attn_mask is not None and attn_mask.dtype != torch.bool and not attn_mask.is_floating_point():
        kind = str(attn_mask.dtype).removeprefix("torch.")
        raise RuntimeError(f"attn_mask: must be bool or floating point, got {kind}")
    try:
        alike = query.shape == key.shape == value.shape
    except RuntimeError:
        alike = True  # a nested tensor has no shape; attention() says so
    if not alike:
        query, key, value = broadcast(query, key, value, enable_gqa)
    boolean = attn_mask is not None and attn_mask.dtype == torch.bool
    return attention(
        query,
        key,
        value,
        scale=scale,
        causal=is_causal,
        query_offset=0 if is_causal else None,
        mask=attn_mask if boolean else None,
        bias=None if boolean else attn_mask,
        dropout=dropout_p,
    )


def broadcast(query: Tensor, key: Tensor, value: Tensor, grouped: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Leading axes made equal by views; under `grouped` the axis of the heads is left alone."""
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        if not isinstance(tensor, Tensor):
            raise ArgumentTypeError(f"{name}: must be a torch tensor, got {type(tensor).__name__}")
        adapter.refuse_shapeless(**{name: tensor})
        if tensor.dim() < (3 if grouped else 2):
            expected = "3 axes (heads, n, d) with enable_gqa=True" if grouped else "2 axes (n, d)"
            raise ArgumentError(f"{name}: must have at least {expected}, got {tensor.dim()}")
    kept = 3 if grouped else 2
    shapes = [tuple(t.shape[:-kept]) for t in (query, key, value)]
    if shapes[0] == shapes[1] == shapes[2]:
        return query, key, value
    try:
        leading = torch.broadcast_shapes(*shapes)
    except RuntimeError:
        hint = "" if grouped else "; heads that share keys need enable_gqa=True"
        raise ArgumentError(
            f"key: leading axes must broadcast with query and value, got {shapes[0]}, {shapes[1]}, {shapes[2]}{hint}"
        ) from None
    expanded: Any = tuple(t.expand(*leading, *t.shape[-kept:]) for t in (query, key, value))
    return expanded  # type: ignore[no-any-return]
