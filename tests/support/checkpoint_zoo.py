"""Small untrained models of many families, as transformers initialises and saves them, for the checkpoint audit.

Each is wide enough (d_k = 16, 64 inputs) for a layer to look like the next, and has options of its family switched on.
"""

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
    """`query` is the end of the name of what makes queries; `normed` says that QK-norm undoes a factor of it."""

    config: str
    model: str
    options: dict[str, Any]
    query: str
    attentions: int = 3
    key_heads: int = 4
    normed: bool = False
    scale: float = 0.25


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
        {"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 48}
        | {"image_size": 16, "patch_size": 4},
        "attention.q_proj",
    ),
    "t5": Family(
        "T5Config",
        "T5ForConditionalGeneration",
        {"vocab_size": 50, "d_model": 64, "d_kv": 16, "d_ff": 48, "num_layers": 3, "num_heads": 4},
        "Attention.q",
        attentions=9,
        scale=1.0,
    ),
    "gemma": Family(
        "GemmaConfig",
        "GemmaForCausalLM",
        {**_SIZES, "num_key_value_heads": 1, "head_dim": 16},
        "self_attn.q_proj",
        key_heads=1,
    ),
    "gemma2": Family(
        "Gemma2Config",
        "Gemma2ForCausalLM",
        {**_GROUPED, "head_dim": 16, "query_pre_attn_scalar": 64},
        "self_attn.q_proj",
        key_heads=2,
        scale=0.125,
    ),
    "gemma3": Family(
        "Gemma3TextConfig",
        "Gemma3ForCausalLM",
        {**_GROUPED, "head_dim": 16, "query_pre_attn_scalar": 16},
        "self_attn.q_proj",
        key_heads=2,
        normed=True,
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
    found = [(path, module) for path, module in model.named_modules() if path.endswith(FAMILIES[name].query)]
    assert len(found) == FAMILIES[name].attentions
    return found


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
    if rows == 4 * d:
        return slice(None)
    if family.query.endswith("query_key_value"):
        group = 4 // family.key_heads
        return place % (group + 2) < group
    return place < 4
