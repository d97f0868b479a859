"""Small untrained models of many families, as transformers initialises and saves them, for the checkpoint audit.

Each is wide enough (d_k = 16, 64 inputs) for a layer to look like the next, and has options of its family switched on.
"""

import math
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

transformers = pytest.importorskip("transformers")

_SIZES = {
    "vocab_size": 50,
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 48,
}
_GROUPED = {**_SIZES, "num_key_value_heads": 2}
_FALCON = {"vocab_size": 50, "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "alibi": False}


@dataclass(frozen=True)
class Family:
    """`query` is the end of the name of what makes queries; `normed` says that QK-norm undoes a factor of it.

    inputs   what the model takes: tokens, pixels, features of speech, and tokens for a decoder
    above    whether gains are stored as what is added to 1
    """

    config: str
    model: str
    options: dict[str, Any]
    query: str
    attentions: int = 3
    key_heads: int = 4
    normed: bool = False
    scale: float = 0.25
    inputs: tuple[str, ...] = ("input_ids",)
    above: bool = False


_VISION = {"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 48} | {
    "image_size": 16,
    "patch_size": 4,
}
_LINEAR = {"linear_num_value_heads": 2, "linear_num_key_heads": 2, "linear_key_head_dim": 8} | {
    "linear_value_head_dim": 8,
    "head_dim": 16,
    "layer_types": ["linear_attention", "full_attention", "full_attention", "full_attention"],
    "num_hidden_layers": 4,
}
_EXPERTS = {"num_experts": 2, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16}
_YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "mscale": 1.0, "mscale_all_dim": 1.0} | {
    "original_max_position_embeddings": 16
}
_T5GEMMA = {**_GROUPED, "head_dim": 16, "query_pre_attn_scalar": 64}


FAMILIES = {
    "llama": Family("LlamaConfig", "LlamaForCausalLM", _GROUPED, "self_attn.q_proj", key_heads=2),
    "mistral": Family("MistralConfig", "MistralForCausalLM", _GROUPED, "self_attn.q_proj", key_heads=2),
    "qwen2": Family("Qwen2Config", "Qwen2ForCausalLM", _GROUPED, "self_attn.q_proj", key_heads=2),
    "qwen3": Family(
        "Qwen3Config", "Qwen3ForCausalLM", {**_GROUPED, "head_dim": 16}, "self_attn.q_proj", key_heads=2, normed=True
    ),
    "gpt2": Family(
        "GPT2Config", "GPT2LMHeadModel", {"vocab_size": 50, "n_embd": 64, "n_layer": 3, "n_head": 4}, "attn.c_attn"
    ),
    "gpt_neox": Family("GPTNeoXConfig", "GPTNeoXForCausalLM", _SIZES, "attention.query_key_value"),
    "bert": Family("BertConfig", "BertForMaskedLM", _SIZES, "attention.self.query"),
    "vit": Family(
        "ViTConfig",
        "ViTForImageClassification",
        _VISION,
        "attention.q_proj",
        inputs=("pixel_values",),
    ),
    "clip": Family(
        "CLIPConfig",
        "CLIPModel",
        {"text_config": {**_SIZES, "eos_token_id": 49}, "vision_config": _VISION, "projection_dim": 32},
        "self_attn.q_proj",
        attentions=6,
        inputs=("input_ids", "pixel_values"),
    ),
    "whisper": Family(
        "WhisperConfig",
        "WhisperForConditionalGeneration",
        {"vocab_size": 50, "d_model": 64, "encoder_layers": 3, "decoder_layers": 3, "encoder_attention_heads": 4}
        | {"decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "num_mel_bins": 8}
        | {"max_source_positions": 17, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
        | {"decoder_start_token_id": 1},
        "attn.q_proj",
        attentions=9,
        inputs=("input_features", "decoder_input_ids"),
    ),
    "albert": Family(
        "AlbertConfig",
        "AlbertModel",
        {**_SIZES, "num_hidden_layers": 6, "num_hidden_groups": 3, "embedding_size": 32},
        "attention.query",
    ),
    "t5": Family(
        "T5Config",
        "T5ForConditionalGeneration",
        {"vocab_size": 50, "d_model": 64, "d_kv": 16, "d_ff": 48, "num_layers": 3, "num_heads": 4},
        "Attention.q",
        attentions=9,
        scale=1.0,
        inputs=("input_ids", "decoder_input_ids"),
    ),
    "t5gemma": Family(
        "T5GemmaConfig",
        "T5GemmaForConditionalGeneration",
        {"encoder": _T5GEMMA, "decoder": _T5GEMMA, "vocab_size": 50},
        "attn.q_proj",
        attentions=9,
        key_heads=2,
        scale=0.125,
        inputs=("input_ids", "decoder_input_ids"),
        above=True,
    ),
    "gemma": Family(
        "GemmaConfig",
        "GemmaForCausalLM",
        {**_SIZES, "num_key_value_heads": 1, "head_dim": 16},
        "self_attn.q_proj",
        key_heads=1,
        above=True,
    ),
    "gemma2": Family(
        "Gemma2Config",
        "Gemma2ForCausalLM",
        {**_GROUPED, "head_dim": 16, "query_pre_attn_scalar": 64},
        "self_attn.q_proj",
        key_heads=2,
        scale=0.125,
        above=True,
    ),
    "gemma3": Family(
        "Gemma3TextConfig",
        "Gemma3ForCausalLM",
        {**_GROUPED, "head_dim": 16, "query_pre_attn_scalar": 16},
        "self_attn.q_proj",
        key_heads=2,
        normed=True,
        above=True,
    ),
    "gemma4": Family(
        "Gemma4TextConfig",
        "Gemma4ForCausalLM",
        {**_GROUPED, "head_dim": 16, "global_head_dim": 32, "num_global_key_value_heads": 1, "attention_k_eq_v": True}
        | {"num_hidden_layers": 4, "layer_types": [*3 * ["sliding_attention"], "full_attention"]}
        | {"hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 50},
        "self_attn.q_proj",
        attentions=4,
        key_heads=2,
        normed=True,
        scale=1.0,
    ),
    "gemma4_shared": Family(
        "Gemma4TextConfig",
        "Gemma4ForCausalLM",
        {**_GROUPED, "num_hidden_layers": 4, "head_dim": 16, "global_head_dim": 16, "num_kv_shared_layers": 2}
        | {"layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"]}
        | {"hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 50},
        "self_attn.q_proj",
        attentions=4,
        key_heads=2,
        normed=True,
        scale=1.0,
    ),
    "qwen3_next": Family(
        "Qwen3NextConfig",
        "Qwen3NextForCausalLM",
        {**_GROUPED, **_LINEAR, **_EXPERTS, "num_experts_per_tok": 1},
        "self_attn.q_proj",
        key_heads=2,
        normed=True,
        above=True,
    ),
    "qwen3_5": Family(
        "Qwen3_5TextConfig",
        "Qwen3_5ForCausalLM",
        {**_GROUPED, **_LINEAR},
        "self_attn.q_proj",
        key_heads=2,
        normed=True,
        above=True,
    ),
    "deepseek_v3": Family(
        "DeepseekV3Config",
        "DeepseekV3ForCausalLM",
        {**_SIZES, "num_key_value_heads": 4, "q_lora_rank": 32, "kv_lora_rank": 24, "qk_rope_head_dim": 8}
        | {"qk_nope_head_dim": 8, "v_head_dim": 16, "first_k_dense_replace": 2, "moe_intermediate_size": 16}
        | {"n_routed_experts": 2, "num_experts_per_tok": 1, "n_group": 1, "topk_group": 1, "rope_parameters": _YARN},
        "self_attn.q_b_proj",
        scale=0.25 * (0.1 * math.log(4.0) + 1.0) ** 2,
    ),
    "phi": Family("PhiConfig", "PhiForCausalLM", _SIZES, "self_attn.q_proj"),
    "phi_qk_norm": Family(
        "PhiConfig", "PhiForCausalLM", {**_SIZES, "qk_layernorm": True}, "self_attn.q_proj", normed=True
    ),
    "phi3": Family("Phi3Config", "Phi3ForCausalLM", {**_GROUPED, "pad_token_id": 0}, "self_attn.qkv_proj", key_heads=2),
    "olmo": Family("OlmoConfig", "OlmoForCausalLM", _SIZES, "self_attn.q_proj"),
    "olmo2": Family("Olmo2Config", "Olmo2ForCausalLM", _GROUPED, "self_attn.q_proj", key_heads=2, normed=True),
    "mpt": Family(
        "MptConfig", "MptForCausalLM", {"d_model": 64, "n_heads": 4, "n_layers": 3, "vocab_size": 50}, "attn.Wqkv"
    ),
    "falcon": Family(
        "FalconConfig",
        "FalconForCausalLM",
        {**_FALCON, "new_decoder_architecture": True, "num_kv_heads": 2},
        "query_key_value",
        key_heads=2,
    ),
    "falcon_one_key": Family("FalconConfig", "FalconForCausalLM", _FALCON, "query_key_value", key_heads=1),
    "falcon_a_key_each": Family(
        "FalconConfig", "FalconForCausalLM", {**_FALCON, "multi_query": False, "bias": True}, "query_key_value"
    ),
    "bloom": Family(
        "BloomConfig",
        "BloomForCausalLM",
        {"vocab_size": 50, "hidden_size": 64, "n_layer": 3, "n_head": 4},
        "query_key_value",
    ),
    "gpt_neo": Family(
        "GPTNeoConfig",
        "GPTNeoForCausalLM",
        {"vocab_size": 50, "hidden_size": 64, "num_layers": 3, "num_heads": 4, "intermediate_size": 48}
        | {"attention_types": [[["global"], 3]]},
        "attention.q_proj",
        scale=1.0,
    ),
    "cohere": Family(
        "CohereConfig", "CohereForCausalLM", {**_SIZES, "use_qk_norm": True}, "self_attn.q_proj", normed=True
    ),
    "granite": Family(
        "GraniteConfig",
        "GraniteForCausalLM",
        {**_GROUPED, "attention_multiplier": 0.0625},
        "self_attn.q_proj",
        key_heads=2,
        scale=0.0625,
    ),
    "distilbert": Family(
        "DistilBertConfig",
        "DistilBertModel",
        {"vocab_size": 50, "dim": 64, "n_layers": 3, "n_heads": 4, "hidden_dim": 48},
        "q_lin",
    ),
    "modernbert": Family("ModernBertConfig", "ModernBertModel", {**_SIZES, "pad_token_id": 0}, "attn.Wqkv"),
}


def built(name: str) -> Any:
    """The model as its family initialises it; biases too, which begin at 0, are left alone."""
    family = FAMILIES[name]
    with torch.random.fork_rng():
        torch.manual_seed(zlib.crc32(name.encode()))
        config = getattr(transformers, family.config)(**family.options, attn_implementation="eager")
        return getattr(transformers, family.model)(config).eval()


def saved(model: Any, folder: Path) -> Path:
    """As transformers writes it: config.json and model.safetensors."""
    model.save_pretrained(folder)
    return folder


def layer_of(path: str) -> str:
    """What the module of a projection is called in the file: ViT is saved under older names than it runs under."""
    module = path.rpartition(".")[0]
    if module.startswith("vit.layers."):
        return module.replace("vit.layers.", "vit.encoder.layer.") + ".attention"
    return module


def queries(name: str, model: Any) -> list[tuple[str, Any]]:
    """The projections that make queries, fused or not, with the paths of their modules."""
    modules = [(path, module) for path, module in model.named_modules() if path.endswith(FAMILIES[name].query)]
    assert len(modules) == FAMILIES[name].attentions
    return modules


@torch.no_grad()
def sharpen(name: str, module: Any, factor: float) -> None:
    """Multiply what makes the queries of one module, and nothing that makes keys or values."""
    for parameter in module.parameters():
        rows = query_rows(name, parameter)
        (parameter.T if parameter.ndim == 2 and name == "gpt2" else parameter)[rows] *= factor


def query_rows(name: str, parameter: Any) -> Any:
    """Which rows of a projection with 4 query heads of 16 are queries."""
    family, d = FAMILIES[name], 16
    rows = parameter.shape[-1] if name == "gpt2" else parameter.shape[0]
    place = torch.arange(rows) // d
    if name in ("qwen3_next", "qwen3_5"):
        return place % 2 == 0
    if rows == 4 * d or name == "gemma4":
        return slice(None)
    if family.query.endswith("query_key_value"):
        group = 4 // family.key_heads
        return place % (group + 2) < group
    return place < 4
