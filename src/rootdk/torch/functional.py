"""Functions of other libraries on rootdk, and the switch that puts one of them in its place."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from threading import Lock
from typing import Any

import torch
from torch import Tensor

from ..attention import attention
from ..backends import torch as adapter
from ..checks import shown, type_name
from ..errors import ArgumentError, ArgumentTypeError
from .wrapping import Wrapped


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

    A row in which every key is hidden is 0. A float attn_mask that requires a gradient gets one, of its own shape.

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
    trailing = 3 if grouped else 2
    shapes = [tuple(t.shape[:-trailing]) for t in (query, key, value)]
    if shapes[0] == shapes[1] == shapes[2]:
        return query, key, value
    try:
        leading = torch.broadcast_shapes(*shapes)
    except RuntimeError:
        hint = "" if grouped else "; heads that share keys need enable_gqa=True"
        raise ArgumentError(
            f"key: leading axes must broadcast with query and value, got {shapes[0]}, {shapes[1]}, {shapes[2]}{hint}"
        ) from None
    expanded: Any = tuple(t.expand(*leading, *t.shape[-trailing:]) for t in (query, key, value))
    return expanded  # type: ignore[no-any-return]


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
    max_seqlen_q    accepted and ignored, like max_seqlen_k
    causal          the last query of a document stands at its last key, as in FlashAttention
    window_size     (left, right) counted inside the document; -1 is no limit
    softcap         0.0 is none
    alibi_slopes    (heads,)
    deterministic   accepted and ignored: the result has the same bits in any case

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
    """The number of its document for every row, from where the documents begin."""
    if not isinstance(offsets, Tensor) or offsets.is_floating_point() or offsets.dim() != 1 or len(offsets) == 0:
        raise ArgumentTypeError(f"{argument}: must be a tensor of ints with 1 axis, got {shown(offsets)}")
    if not torch.compiler.is_compiling() and not adapter.traced(offsets):  # else there is no value to check
        first, last = int(offsets[0]), int(offsets[-1])
        if first != 0 or last != total or bool((offsets[1:] < offsets[:-1]).any()):
            raise ArgumentError(f"{argument}: must rise from 0 to {total}, got {shown(offsets.tolist())}")
    rows = torch.arange(total, dtype=offsets.dtype, device=offsets.device)
    return torch.searchsorted(offsets[1:].contiguous(), rows, right=True)


# What torch has at this name, for use() and for rootdk.watch.
SDPA = Wrapped(torch.nn.functional, "scaled_dot_product_attention")

# What the first block found, and how many blocks are open: they may overlap in several threads, so the last one to end
# restores it.
_lock = Lock()
_open = 0
_fastpath_before = True


@contextmanager
def use() -> Iterator[None]:
    """Inside this block torch.nn.functional.scaled_dot_product_attention is rootdk's.

    Reaches every model that looks the function up when it calls it: code with F.scaled_dot_product_attention,
    nn.MultiheadAttention with need_weights=False, nn.TransformerEncoderLayer, whose fused path for evaluation is
    switched off inside. Does not reach code that imported the function by name before, nn.MultiheadAttention with
    need_weights=True (it never calls the function) and models that compute attention themselves.

    What was there is restored at the end, after an exception too; blocks may be nested. All threads of the process see
    the replacement. What rootdk cannot compute, such as a tensor on another device, is an error inside the block.

    >>> import torch, rootdk.torch
    >>> layer = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True).eval()
    >>> x = torch.randn(1, 5, 16)
    >>> before = layer(x)
    >>> with rootdk.torch.use():
    ...     inside = layer(x)
    >>> torch.allclose(before, inside, atol=1e-5)
    True
    """
    global _open, _fastpath_before  # noqa: PLW0603 -- one process has one torch
    mha = torch.backends.mha
    with _lock:
        if _open == 0:
            _fastpath_before = mha.get_fastpath_enabled()
            SDPA.open(_ours)
            mha.set_fastpath_enabled(False)
        _open += 1
    try:
        yield
    finally:
        with _lock:
            _open -= 1
            if _open == 0:
                SDPA.close(_ours)
                mha.set_fastpath_enabled(_fastpath_before)


def _ours(_theirs: Any) -> Any:
    return scaled_dot_product_attention


NAME = "rootdk"

# Other arguments that models pass are for other implementations or do not change the result, except these: to ignore
# them silently would give a wrong result.
REFUSED = {
    "cache": "paged caches are not supported",
    "indices": "for keys that an indexer picks run the model on sdpa inside rootdk.torch.use()",
    "block_indices": "for blocks of keys that an indexer picks run the model on sdpa inside rootdk.torch.use()",
    "output_attentions": "the weights are never there as a whole; eager gives them",
}


def register_transformers() -> str:
    """Register rootdk with transformers and return the name to give it: "rootdk".

        rootdk.torch.register_transformers()
        model = AutoModelForCausalLM.from_pretrained(..., attn_implementation="rootdk")
        model.set_attn_implementation("rootdk")        for a model that is already there

    Both the attention and its mask are registered under the name: without its own mask a model would silently lose its
    causality. Packed sequences (position_ids that start again, or cu_seq_lens_q and cu_seq_lens_k) stay apart. Softcap
    (Gemma 2), sinks (gpt-oss), position biases (T5), grouped heads and dropout go to the kernel; what it does not
    support, such as the keys that an indexer picks (DeepSeek V3.2) or a paged cache, is an error.
    set_attn_implementation only warns where a model cannot switch (Falcon): see that model.config._attn_implementation
    is "rootdk" afterwards, or run the model on sdpa inside rootdk.torch.use().

    >>> register_transformers()
    'rootdk'
    """
    try:
        library = import_module("transformers")
        sdpa_mask = import_module("transformers.masking_utils").sdpa_mask
    except ImportError as error:
        raise ImportError(
            "transformers: must be installed (version 5 or newer, `pip install 'transformers>=5'`), "
            f"got {type(error).__name__}: {error}"
        ) from error
    library.AttentionInterface.register(NAME, transformers_attention)
    library.AttentionMaskInterface.register(NAME, sdpa_mask)
    return NAME


def transformers_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    position_bias: Tensor | None = None,
    cu_seq_lens_q: Tensor | None = None,
    cu_seq_lens_k: Tensor | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """What transformers calls: (batch, heads, n, d) in, (batch, n, heads, d) out, contiguous.

    A mask of None means that this function handles causality: more than one query and a causal module. A sliding window
    is in the mask that transformers makes, whenever it hides anything. Packed sequences are in that mask if
    position_ids start again; if offsets give them, as for flash attention, they are segments.
    """
    for name, reason in REFUSED.items():
        given = others.get(name)
        if given is not None and given is not False:
            raise ArgumentError(f"{name}: must be None, got {type(given).__name__}: {reason}")
    if is_causal is None:
        is_causal = getattr(module, "is_causal", True)
    causal = bool(query.shape[2] > 1 and attention_mask is None and is_causal)
    segments = None
    if cu_seq_lens_q is not None:
        if query.shape[0] != 1:
            raise ArgumentError(f"cu_seq_lens_q: must be None for a batch of {query.shape[0]}, got Tensor")
        of_keys = cu_seq_lens_q if cu_seq_lens_k is None else cu_seq_lens_k
        segments = (
            documents("cu_seq_lens_q", cu_seq_lens_q, query.shape[2]),
            documents("cu_seq_lens_k", of_keys, key.shape[2]),
        )
    boolean = attention_mask is not None and not attention_mask.is_floating_point()
    bias = position_bias if boolean or attention_mask is None else attention_mask
    if position_bias is not None and bias is attention_mask:
        bias = attention_mask + position_bias
    out = attention(
        query,
        key,
        value,
        scale=scaling,
        causal=causal,
        query_offset=0 if causal and segments is None else None,
        segments=segments,
        mask=attention_mask if boolean else None,
        bias=bias,
        softcap=softcap,
        sinks=s_aux,
        dropout=dropout,
    )
    return out.transpose(1, 2).contiguous(), None
