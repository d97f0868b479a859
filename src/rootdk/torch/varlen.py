"""Packed documents as FlashAttention takes them: rows of all documents one after the other, and where each begins."""

from typing import Any

import torch
from torch import Tensor

from ..attention import attention
from ..backends import torch as adapter
from ..checks import shown, type_name
from ..errors import ArgumentError, ArgumentTypeError


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: Any = None,  # noqa: ARG001 -- theirs, and not needed here
    max_seqlen_k: Any = None,  # noqa: ARG001
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,  # noqa: ARG001 -- it always is
    return_attn_probs: bool = False,
    block_table: Any = None,
) -> Tensor:
    """FlashAttention's function of this name, on rootdk and on the CPU: (total_q, heads, d_v), differentiable.

    q               (total_q, heads, d): the queries of all documents, one document after the other
    k, v            (total_k, kv_heads, d) and (total_k, kv_heads, d_v); heads % kv_heads == 0
    cu_seqlens_q    (documents + 1,) ints from 0 to total_q: where each document begins, and the end; cu_seqlens_k
                    likewise for the keys
    max_seqlen_q    taken and not looked at, as max_seqlen_k
    causal          the last query of a document stands at its last key, as theirs does
    window_size     (left, right) counted inside the document; -1 is no limit
    softcap         0.0 is none
    alibi_slopes    (heads,)
    deterministic   True or False, the result is the same bits

    return_attn_probs and block_table are refused: rootdk.weights gives the weights of chosen rows, and a paged cache
    is not supported.

    >>> import rootdk, torch
    >>> q = torch.randn(30, 4, 16)
    >>> out = flash_attn_varlen_func(q, q, q, torch.tensor([0, 10, 30]), torch.tensor([0, 10, 30]), 20, 20, causal=True)
    >>> alone = rootdk.attention(*(q[10:].transpose(0, 1) for _ in range(3)), causal=True)
    >>> torch.allclose(out[10:], alone.transpose(0, 1), atol=1e-5)
    True
    """
    for name, given in (("return_attn_probs", return_attn_probs), ("block_table", block_table)):
        if given is not None and given is not False:
            raise ArgumentError(f"{name}: must be left out, got {shown(given)}: rootdk has no such thing")
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        if not isinstance(tensor, Tensor):
            raise ArgumentTypeError(f"{name}: must be a torch tensor, got {type_name(tensor)}")
        adapter.refuse_shapeless(**{name: tensor})
        if tensor.dim() != 3:
            raise ArgumentError(f"{name}: must have 3 axes (total, heads, d), got shape {tuple(tensor.shape)}")
    if alibi_slopes is not None and alibi_slopes.dim() != 1:
        raise ArgumentError(f"alibi_slopes: must have shape (heads,), got {tuple(alibi_slopes.shape)}")
    out = attention(
        *(tensor.transpose(0, 1) for tensor in (q, k, v)),
        scale=softmax_scale,
        causal=causal,
        window=_window(window_size),
        softcap=softcap if softcap != 0 else None,
        alibi=alibi_slopes,
        segments=(
            documents("cu_seqlens_q", cu_seqlens_q, q.shape[0]),
            documents("cu_seqlens_k", cu_seqlens_k, k.shape[0]),
        ),
        dropout=dropout_p,
    )
    return out.transpose(0, 1)


def _window(given: Any) -> Any:
    """-1 is no limit there, None here."""
    if not isinstance(given, (tuple, list)) or len(given) != 2:
        raise ArgumentError(f"window_size: must be (left, right), got {shown(given)}")
    left, right = (None if side == -1 else side for side in given)
    return None if left is right is None else (left, right)


def documents(argument: str, offsets: Any, total: int) -> Tensor:
    """The number of its document for every row, out of where the documents begin."""
    if not isinstance(offsets, Tensor) or offsets.is_floating_point() or offsets.dim() != 1 or len(offsets) == 0:
        raise ArgumentTypeError(f"{argument}: must be a tensor of ints with 1 axis, got {shown(offsets)}")
    if not torch.compiler.is_compiling() and not adapter.traced(offsets):  # else there is no value to look at
        first, last = int(offsets[0]), int(offsets[-1])
        if first != 0 or last != total or bool((offsets[1:] < offsets[:-1]).any()):
            raise ArgumentError(f"{argument}: must rise from 0 to {total}, got {shown(offsets.tolist())}")
    rows = torch.arange(total, dtype=offsets.dtype, device=offsets.device)
    return torch.searchsorted(offsets[1:].contiguous(), rows, right=True)
