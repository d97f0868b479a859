"""Small transformers models of every family, and what their attention must compute.

Each is built from its config class: two layers, weights wide enough that attention is far from uniform, every option of
its attention switched on. Weights are float32 numbers, so the float64 model is the same model.
"""

import copy
import math
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import pytest
import torch
import whole_models
from whole_models import errors, largest

import rootdk.torch

transformers = pytest.importorskip("transformers")

from transformers.masking_utils import eager_mask  # noqa: E402

VOCABULARY = 23
LENGTHS = (11, 7, 4)
SIZES = {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
DECODER = {**SIZES, "intermediate_size": 48, "num_key_value_heads": 2, "head_dim": 12, "initializer_range": 0.25}
TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": None}


@dataclass(frozen=True)
class Family:
    """One kind of model; `own` is the attention that transformers has for it, `attentions` the calls in a pass."""

    model: str
    config: str
    options: dict[str, Any]
    own: tuple[str, ...] = ("sdpa", "eager")
    attentions: int = 2
    generates: bool = True


FAMILIES = {
    "llama": Family("LlamaForCausalLM", "LlamaConfig", {**DECODER, **TOKENS}),
    "bert": Family(
        "BertForMaskedLM",
        "BertConfig",
        {**SIZES, "intermediate_size": 48, "initializer_range": 0.25, "max_position_embeddings": 16, "pad_token_id": 0}
        | {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0},
        generates=False,
    ),
    "gpt2": Family(
        "GPT2LMHeadModel",
        "GPT2Config",
        {
            "vocab_size": VOCABULARY,
            "n_embd": 32,
            "n_layer": 2,
            "n_head": 4,
            "n_positions": 32,
            "initializer_range": 0.25,
        }
        | {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "scale_attn_by_inverse_layer_idx": True, **TOKENS},
    ),
    "t5": Family(
        "T5ForConditionalGeneration",
        "T5Config",
        {"vocab_size": VOCABULARY, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4}
        | {"relative_attention_num_buckets": 8, "relative_attention_max_distance": 12, "initializer_factor": 1.5}
        | {"dropout_rate": 0.0, "decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": None},
        attentions=6,
    ),
    "gemma2": Family(
        "Gemma2ForCausalLM",
        "Gemma2Config",
        {**DECODER, **TOKENS, "query_pre_attn_scalar": 24, "attn_logit_softcapping": 2.0, "sliding_window": 4},
        own=("eager",),
    ),
    "qwen3": Family(
        "Qwen3ForCausalLM",
        "Qwen3Config",
        {**DECODER, **TOKENS, "use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1},
    ),
    "vit": Family(
        "ViTForImageClassification",
        "ViTConfig",
        {"image_size": 16, "patch_size": 4, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
        | {"intermediate_size": 48, "initializer_range": 0.25, "num_labels": VOCABULARY},
        generates=False,
    ),
    "gpt_oss": Family(
        "GptOssForCausalLM",
        "GptOssConfig",
        {**DECODER, **TOKENS, "intermediate_size": 32, "num_local_experts": 2, "num_experts_per_tok": 2}
        | {"sliding_window": 4, "experts_implementation": "eager"},
        own=("eager",),
    ),
}


ROUTES = [(name, "registered") for name in FAMILIES] + [(n, "use") for n, f in FAMILIES.items() if "sdpa" in f.own]


@cache
def _built(name: str, **changes: Any) -> Any:
    family = FAMILIES[name]
    with torch.random.fork_rng():
        torch.manual_seed(zlib.crc32(name.encode()))
        model = getattr(transformers, family.model)(
            getattr(transformers, family.config)(**{**family.options, **changes})
        )
        # Biases and sinks start at 0, where a gradient or an argument that is lost may not show.
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter), alpha=0.05)
    return model


def built(name: str, implementation: str, dtype: torch.dtype = torch.float64, **changes: Any) -> Any:
    """A fresh model of the family, always with the same weights, in train mode; `changes` to its config."""
    model = copy.deepcopy(_built(name, **changes)).to(dtype).train()
    if dtype == torch.float64:
        for module in model.modules():
            if type(module).__name__.endswith(("RMSNorm", "T5LayerNorm")):
                module.forward = partial(_rms_norm, module)
    model.set_attn_implementation(implementation)
    assert model.config._attn_implementation == implementation
    return model


@contextmanager
def on_rootdk(name: str, route: str, dtype: torch.dtype = torch.float64, **changes: Any) -> Iterator[Any]:
    """The model, and for as long as the block lasts it runs on rootdk by the given route."""
    implementation = "sdpa" if route == "use" else rootdk.torch.register_transformers()
    with rootdk.torch.use() if route == "use" else nullcontext():
        yield built(name, implementation, dtype, **changes)


def _rms_norm(module: Any, x: Any) -> Any:
    """The library's take their mean in float32 whatever the model is, which hides what float64 is there to show."""
    epsilon = getattr(module, "variance_epsilon", None) or module.eps
    weight = 1.0 + module.weight if "Gemma" in type(module).__name__ else module.weight
    return x * torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + epsilon) * weight


def paddings(name: str) -> tuple[str, ...]:
    """The sides that a batch of it can be padded on."""
    return ("none",) if name == "vit" else ("none", "right", "left")


def inputs(name: str, padding: str) -> tuple[dict[str, Any], Any]:
    """What the model is called with, and which rows of its logits are no padding."""
    draw = torch.Generator().manual_seed(7)
    rows, n = len(LENGTHS), max(LENGTHS)
    if name == "vit":
        return {"pixel_values": torch.randn(rows, 3, 16, 16, generator=draw)}, torch.ones(rows, dtype=torch.bool)
    real = torch.ones(rows, n, dtype=torch.bool)
    if padding != "none":
        place = torch.arange(n) if padding == "right" else torch.arange(n).flip(0)
        real = place < torch.tensor(LENGTHS)[:, None]
    tokens = torch.randint(1, VOCABULARY, (rows, n), generator=draw) * real
    # Without padding no mask is given at all: the callee itself must then see to causality.
    given = {"input_ids": tokens} | ({} if padding == "none" else {"attention_mask": real.long()})
    if name == "t5":
        given["decoder_input_ids"] = torch.randint(1, VOCABULARY, (rows, 9), generator=draw)
        real = torch.ones(rows, 9, dtype=torch.bool)
    return given, real


def outcome(model: Any, name: str, padding: str) -> dict[str, Any]:
    """The logits at every token that is no padding, and the gradients that come from there."""
    given, real = inputs(name, padding)
    dtype = next(model.parameters()).dtype
    given = {key: value.to(dtype) if value.is_floating_point() else value for key, value in given.items()}
    return whole_models.outcome(model, model(**given).logits[real])


def textbook(
    module: Any,
    query: Any,
    key: Any,
    value: Any,
    attention_mask: Any,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: Any = None,
    position_bias: Any = None,
    folded: bool = False,
    **_: Any,
) -> tuple[Any, None]:
    """Attention as the papers write it, in the type of the query; eager versions take the softmax in float32.

    folded    with the scale and log2(e) multiplied into the query before the product, which rounds each component once:
              the kernel does it, and budgets.py grants it. With a scale of 1, as in T5, nobody else rounds there.
    """
    group = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(group, dim=1), value.repeat_interleave(group, dim=1)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    before, after = (scale / math.log(2), math.log(2)) if folded else (1.0, scale)
    logits = (query * before) @ key.transpose(-1, -2) * after
    if softcap is not None:
        logits = softcap * torch.tanh(logits / softcap)
    for added in (position_bias, attention_mask):
        logits = logits if added is None else logits + added
    if s_aux is not None:
        logits = torch.cat([logits, s_aux[:, None, None].expand(*logits.shape[:-1], 1)], dim=-1)
    weights = torch.softmax(logits, dim=-1)[..., : key.shape[-2]]
    return (weights @ value).transpose(1, 2).contiguous(), None


# The judge gets a mask that is always written out: what rootdk leaves to causal=True is in it.
PLAIN = {"textbook": textbook, "folded": partial(textbook, folded=True)}
for _name, _function in PLAIN.items():
    transformers.AttentionInterface.register(_name, _function)
    transformers.AttentionMaskInterface.register(_name, eager_mask)


@cache
def judged(name: str, padding: str) -> dict[str, Any]:
    """What outcome() must be: the textbook in float64."""
    return outcome(built(name, "textbook"), name, padding)


@cache
def own_errors(name: str) -> tuple[float, float]:
    """errors() of float32 without rootdk against judged(), the largest over all paddings."""
    runs = [(implementation, p) for implementation in (*FAMILIES[name].own, *PLAIN) for p in paddings(name)]
    return largest([errors(outcome(built(name, i, torch.float32), name, p), judged(name, p)) for i, p in runs])
