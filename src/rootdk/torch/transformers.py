"""rootdk as an attention implementation of the transformers library."""

from importlib import import_module
from typing import Any

from torch import Tensor

from ..attention import attention
from ..errors import ArgumentError
from .functional import documents

NAME = "rootdk"

# What models hand over beyond the arguments below is for other implementations or without effect on the result, except
# for these: dropped in silence, they would give an answer to another question.
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

    Both the attention and its mask are registered under the name: without a mask of its own a model would lose its
    causality without a word. Packed sequences (position_ids that start again, or cu_seq_lens_q and cu_seq_lens_k) stay
    apart. Softcap (Gemma 2), sinks (gpt-oss), position biases (T5), grouped heads and dropout go to
    the kernel; what it has no answer to, such as the keys that an indexer picks (DeepSeek V3.2) or a paged cache, is an
    error. set_attn_implementation only warns where a model cannot switch (Falcon): see that
    model.config._attn_implementation is "rootdk" afterwards, or run the model on sdpa inside rootdk.torch.use().

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

    A mask of None means that the callee takes care of causality: more than one query and a causal module. A sliding
    window is in the mask that transformers makes, whenever it hides anything. Packed sequences are in that mask where
    position_ids start again; where offsets tell them, as flash attention is told, they are segments.
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
