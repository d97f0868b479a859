"""Small models of the families of transformers as they are before training, and the query part of one of their layers.

Three layers of width 64. Weights start with the deviation that keeps the variance of what goes through them, as large
widths have it with the usual 0.02; a width of 64 with 0.02 has logits of almost 0.
"""

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch

transformers = pytest.importorskip("transformers")

WIDTH, HEADS, D, VOCABULARY, TOKENS = 64, 4, 16, 64, 48
_SIZES = {"vocab_size": VOCABULARY, "hidden_size": WIDTH, "num_hidden_layers": 3, "num_attention_heads": HEADS}
_USUAL = {**_SIZES, "intermediate_size": 96, "initializer_range": WIDTH**-0.5}
_GROUPED = {**_USUAL, "num_key_value_heads": 2, "pad_token_id": 0}
_NO_TOKENS = {"bos_token_id": 0, "eos_token_id": 0}


@dataclass(frozen=True)
class Family:
    """`layer` is the path of an attention with {} for its number; `query` gives views of all that makes its q."""

    model: str
    config: str
    options: dict[str, Any]
    layer: str
    query: Callable[[Any], list[Any]]
    own: tuple[str, ...] = ("sdpa", "eager")
    attentions: int = 3
    route: str = ""


def _split(name: str) -> Callable[[Any], list[Any]]:
    def parts(module: Any) -> list[Any]:
        linear = getattr(module, name)
        return [parameter.data for parameter in (linear.weight, linear.bias) if parameter is not None]

    return parts


def _first_rows(name: str) -> Callable[[Any], list[Any]]:
    return lambda module: [part[: HEADS * D] for part in _split(name)(module)]


def _of_each_key_head(kv_heads: int) -> Callable[[Any], list[Any]]:
    group = HEADS // kv_heads

    def parts(module: Any) -> list[Any]:
        both = _split("query_key_value")(module)
        return [part.view(kv_heads, group + 2, D, *part.shape[1:])[:, :group] for part in both]

    return parts


def _columns(module: Any) -> list[Any]:
    return [module.c_attn.weight.data[:, :WIDTH], module.c_attn.bias.data[:WIDTH]]


def _gain(module: Any) -> list[Any]:
    return [module.q_norm.weight.data]


FAMILIES = {
    "llama": Family("LlamaForCausalLM", "LlamaConfig", _GROUPED, "model.layers.{}.self_attn", _split("q_proj")),
    "mistral": Family(
        "MistralForCausalLM", "MistralConfig", {**_GROUPED, "sliding_window": 16}, "model.layers.{}.self_attn",
        _split("q_proj"),
    ),
    "qwen3": Family(
        "Qwen3ForCausalLM", "Qwen3Config", {**_GROUPED, "head_dim": D}, "model.layers.{}.self_attn", _gain
    ),
    "olmo2": Family(
        "Olmo2ForCausalLM", "Olmo2Config", {**_GROUPED, "eos_token_id": 1}, "model.layers.{}.self_attn", _gain
    ),
    "gemma2": Family(
        "Gemma2ForCausalLM", "Gemma2Config",
        {**_GROUPED, "head_dim": D, "query_pre_attn_scalar": D, "sliding_window": 16}, "model.layers.{}.self_attn",
        _split("q_proj"), own=("eager",),
    ),
    "phi": Family("PhiForCausalLM", "PhiConfig", _GROUPED, "model.layers.{}.self_attn", _split("q_proj")),
    "phi3": Family(
        "Phi3ForCausalLM", "Phi3Config", {**_GROUPED, "eos_token_id": 1}, "model.layers.{}.self_attn",
        _first_rows("qkv_proj"),
    ),
    "gpt2": Family(
        "GPT2LMHeadModel", "GPT2Config",
        {"vocab_size": VOCABULARY, "n_embd": WIDTH, "n_layer": 3, "n_head": HEADS, "initializer_range": WIDTH**-0.5}
        | _NO_TOKENS,
        "transformer.h.{}.attn", _columns,
    ),
    "gpt_neox": Family(
        "GPTNeoXForCausalLM", "GPTNeoXConfig", _USUAL, "gpt_neox.layers.{}.attention", _of_each_key_head(HEADS)
    ),
    "bert": Family("BertModel", "BertConfig", _USUAL, "encoder.layer.{}.attention.self", _split("query")),
    "vit": Family(
        "ViTModel", "ViTConfig",
        {"image_size": 28, "patch_size": 4, **{name: _USUAL[name] for name in _USUAL if name != "vocab_size"}},
        "layers.{}.attention", _split("q_proj"),
    ),
    "t5": Family(
        "T5ForConditionalGeneration", "T5Config",
        {"vocab_size": VOCABULARY, "d_model": WIDTH, "d_kv": D, "d_ff": 96, "num_layers": 3, "num_heads": HEADS}
        | {"decoder_start_token_id": 0},
        "encoder.block.{}.layer.0.SelfAttention", _split("q"), attentions=9,
    ),
    "mpt": Family(
        "MptForCausalLM", "MptConfig",
        {"vocab_size": VOCABULARY, "d_model": WIDTH, "n_layers": 3, "n_heads": HEADS, "initializer_range": WIDTH**-0.5}
        | {"max_seq_len": 64, "expansion_ratio": 2},
        "transformer.blocks.{}.attn", _first_rows("Wqkv"), own=("eager",), route="softmax",
    ),
    "falcon": Family(
        "FalconForCausalLM", "FalconConfig", {**_USUAL, **_NO_TOKENS}, "transformer.h.{}.self_attention",
        _of_each_key_head(1), own=("sdpa",),
    ),
    "falcon, new": Family(
        "FalconForCausalLM", "FalconConfig",
        {**_USUAL, **_NO_TOKENS, "new_decoder_architecture": True, "num_kv_heads": 2},
        "transformer.h.{}.self_attention", _of_each_key_head(2), own=("sdpa",),
    ),
}  # fmt: skip
RUNS = [(name, implementation) for name, family in FAMILIES.items() for implementation in family.own]


def built(name: str, implementation: str = "") -> Any:
    """A fresh model in train mode, always with the same weights."""
    family = FAMILIES[name]
    with torch.random.fork_rng():
        torch.manual_seed(zlib.crc32(name.encode()))
        model = getattr(transformers, family.model)(getattr(transformers, family.config)(**family.options))
    wanted = implementation or family.own[0]
    if model.config._attn_implementation != wanted:
        model.set_attn_implementation(wanted)
    assert model.config._attn_implementation == wanted
    return model.train()


def inputs(name: str) -> dict[str, Any]:
    draw = torch.Generator().manual_seed(7)
    if name == "vit":
        return {"pixel_values": torch.randn(2, 3, 28, 28, generator=draw)}
    tokens = torch.randint(2, VOCABULARY, (2, TOKENS), generator=draw)
    return {"input_ids": tokens} | ({"decoder_input_ids": tokens} if name == "t5" else {})


def layer_of(name: str, number: int = 1) -> str:
    return FAMILIES[name].layer.format(number)


def enlarge_query_(model: Any, name: str, factor: float = 20.0) -> str:
    """Multiply the query projection of the second layer (the gain, where q is normed); returns the layer's path."""
    path = layer_of(name)
    with torch.no_grad():
        for part in FAMILIES[name].query(model.get_submodule(path)):
            part.mul_(factor)
    return path
