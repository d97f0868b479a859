"""What config.json says about attention: heads, their width, and the scale that is really set.

Families name the same thing differently; a number that is missing or does not fit is an error with the name of its key.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rootdk.errors import ArgumentError

_HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads")
_KEY_HEADS = ("num_key_value_heads", "n_kv_heads", "num_kv_heads")
_WIDTH = ("hidden_size", "n_embd", "d_model", "dim")
_HEAD_WIDTH = ("head_dim", "d_kv")
_EPSILON = ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "layernorm_epsilon")

# Their code multiplies by 1: the scale is in the initialisation of W_q, or absent.
_UNSCALED = frozenset({"t5", "mt5", "umt5", "longt5", "switch_transformers", "gpt_neo"})
# Their scale is 1/sqrt(d_k) unless one of the keys in _scale says otherwise, and queries and keys are not rotated.
_UNROTATED = _UNSCALED | {
    *("bert", "roberta", "xlm-roberta", "electra", "distilbert", "vit", "deit", "dinov2", "opt", "bart", "whisper"),
    *("clip_text_model", "clip_vision_model", "siglip_vision_model", "gpt2", "bloom", "mpt"),
}
_ROTATED = frozenset(
    {"llama", "mistral", "mixtral", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "gpt_neox", "gptj", "phi", "phi3"}
    | {"gemma", "gemma2", "gemma3", "gemma3_text", "olmo", "hf_olmo", "olmo2", "falcon", "granite", "cohere", "cohere2"}
    | {"stablelm", "starcoder2", "gpt_oss", "modernbert", "internlm2", "smollm3"}
)
# QK-norm that takes the mean off; the others take the root mean square alone.
_CENTRED = frozenset({"cohere", "cohere2", "phi", "stablelm", "mpt"})
# Norms whose stored gain is what is added to 1.
_GAIN_ABOVE_ONE = frozenset({"gemma", "gemma2", "gemma3", "gemma3_text"})


@dataclass(frozen=True, slots=True)
class Scale:
    """The factor of <q, k>, and where it comes from."""

    value: float
    source: str
    assumed: bool = False


@dataclass(frozen=True, slots=True)
class Facts:
    """What one attention module needs to know."""

    heads: int
    key_heads: int
    d_k: int
    scale: Scale
    rotated: bool
    softcap: float | None
    clip: float | None
    centred_norm: bool
    gain_offset: float
    epsilon: float


class Config:
    """config.json, or params.json of a model as first published."""

    def __init__(self, values: Mapping[str, Any], name: str = "config.json") -> None:
        self.name = name
        self._values = values
        self.model_type = str(values.get("model_type") or "")

    @classmethod
    def beside(cls, path: Path) -> "Config":
        """The one of the folder that the path is or lies in."""
        folder = path if path.is_dir() else path.parent
        for name in ("config.json", "params.json"):
            file = folder / name
            if not file.exists():
                continue
            try:
                values = json.loads(file.read_text("utf-8"))
            except ValueError as error:
                raise ArgumentError(f"path: {name} must be JSON, got something else ({error})") from error
            if not isinstance(values, dict):
                raise ArgumentError(f"path: {name} must be a JSON object, got {type(values).__name__}")
            return cls(values, name)
        raise ArgumentError(
            f"path: needs a config.json beside the weights (heads and scale are not in them), {folder} has none"
        )

    def of(self, module: str) -> "Config":
        """The part that is about one module: models of several parts have a config for each."""
        sees = any(part.startswith("vis") for part in module.split("."))
        part = "vision_config" if sees else "text_config"
        inner = self._values.get(part)
        if isinstance(inner, dict) and self._first(_HEADS)[1] is None:
            return Config(inner, f"{self.name}: {part}")
        return self

    @property
    def model_types(self) -> tuple[str, ...]:
        """Its own and those of its parts."""
        parts = (self._values.get(part) for part in ("text_config", "vision_config"))
        return (self.model_type, *(str(part.get("model_type") or "") for part in parts if isinstance(part, dict)))

    def facts(self, module: str, index: int) -> Facts:
        """Everything that one attention module needs, checked."""
        heads = self._heads(module)
        d_k = self._head_width(heads)
        nested = self._values.get("attn_config")
        inner: Mapping[str, Any] = nested if isinstance(nested, dict) else {}
        key_heads = self._key_heads(heads, inner)
        return Facts(
            heads=heads,
            key_heads=key_heads,
            d_k=d_k,
            scale=self._scale(d_k, index, inner),
            rotated=self.model_type not in _UNROTATED,
            softcap=self._positive("attn_logit_softcapping", self._values.get("attn_logit_softcapping")),
            clip=self._positive("clip_qkv", inner.get("clip_qkv") or self._values.get("clip_qkv")),
            centred_norm=self.model_type in _CENTRED,
            gain_offset=float(self.model_type in _GAIN_ABOVE_ONE),
            epsilon=self._epsilon(),
        )

    def _heads(self, module: str) -> int:
        side = next((one for one in ("encoder", "decoder") if one in module.split(".")), "")
        keys = (f"{side}_attention_heads", *_HEADS)
        key, value = self._first(keys)
        if value is None:
            raise ArgumentError(
                f"path: {self.name} must have {_HEADS[0]} (or {', '.join(_HEADS[1:])}), it has none of them"
            )
        return self._count(key, value)

    def _head_width(self, heads: int) -> int:
        key, value = self._first(_HEAD_WIDTH)
        if value is not None:
            return self._count(key, value)
        key, value = self._first(_WIDTH)
        if value is None:
            raise ArgumentError(f"path: {self.name} must have head_dim or {_WIDTH[0]} (or {', '.join(_WIDTH[1:])})")
        width = self._count(key, value)
        if width % heads:
            raise ArgumentError(f"path: {self.name}: {key} must be a multiple of the {heads} heads, got {width}")
        return width // heads

    def _key_heads(self, heads: int, inner: Mapping[str, Any]) -> int:
        key, value = self._first(_KEY_HEADS)
        if self.model_type == "falcon" and not self._values.get("new_decoder_architecture"):
            # num_kv_heads is written there and not obeyed.
            key, value = "multi_query", 1 if self._values.get("multi_query") else heads
        if inner.get("kv_n_heads") is not None:
            key, value = "attn_config.kv_n_heads", inner["kv_n_heads"]
        count = heads if value is None else self._count(key, value)
        if heads % count:
            raise ArgumentError(f"path: {self.name}: {key} must divide the {heads} query heads, got {count}")
        return count

    def _scale(self, d_k: int, index: int, inner: Mapping[str, Any]) -> Scale:
        """What <q, k> is multiplied by in layer number `index`."""
        values, root = self._values, Scale(d_k**-0.5, "1/sqrt(d_k)")
        if values.get("query_pre_attn_scalar") is not None:
            scalar = self._positive("query_pre_attn_scalar", values["query_pre_attn_scalar"]) or 1.0
            found = Scale(scalar**-0.5, f"query_pre_attn_scalar {scalar:g}")
        elif values.get("attention_multiplier") is not None:
            found = Scale(
                self._positive("attention_multiplier", values["attention_multiplier"]) or 1.0, "attention_multiplier"
            )
        elif inner.get("softmax_scale") is not None:
            found = Scale(self._positive("attn_config.softmax_scale", inner["softmax_scale"]) or 1.0, "softmax_scale")
        elif self.model_type in _UNSCALED:
            found = Scale(1.0, f"{self.model_type} has none")
        elif values.get("scale_attn_weights") is False:
            found = Scale(1.0, "scale_attn_weights false")
        else:
            known = self.model_type in _UNROTATED | _ROTATED
            found = root if known else Scale(root.value, "1/sqrt(d_k), assumed", assumed=True)
        if values.get("scale_attn_by_inverse_layer_idx"):
            found = Scale(found.value / (index + 1), f"{found.source} / (layer + 1)", found.assumed)
        factor = self._stretched()
        return (
            found
            if factor == 1.0
            else Scale(found.value * factor**2, f"{found.source} x {factor:.3g}^2 (rope)", found.assumed)
        )

    def _stretched(self) -> float:
        """What a stretched rotary embedding multiplies both q and k with (YaRN, LongRoPE)."""
        rope = self._values.get("rope_parameters") or self._values.get("rope_scaling") or {}
        if not isinstance(rope, dict):
            return 1.0
        kind, factor = rope.get("rope_type", rope.get("type")), rope.get("factor")
        if kind not in ("yarn", "longrope"):
            return 1.0
        given = self._positive("attention_factor", rope.get("attention_factor"))
        if given is not None:
            return given
        length = rope.get("original_max_position_embeddings") or self._values.get("original_max_position_embeddings")
        if factor is None and length and self._values.get("max_position_embeddings"):
            factor = self._values["max_position_embeddings"] / length
        stretch = self._positive("factor", factor) or 1.0
        if stretch <= 1.0:
            return 1.0
        if kind == "yarn":
            return 0.1 * math.log(stretch) + 1.0
        return math.sqrt(
            1.0 + math.log(stretch) / math.log(self._positive("original_max_position_embeddings", length) or math.e)
        )

    def _epsilon(self) -> float:
        key, value = self._first(_EPSILON)
        return 0.0 if value == 0 else self._positive(key, value) or 0.0

    def _first(self, keys: tuple[str, ...]) -> tuple[str, Any]:
        """The first of the keys that is there, with its value."""
        return next(((key, self._values[key]) for key in keys if self._values.get(key) is not None), (keys[0], None))

    def _count(self, key: str, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ArgumentError(f"path: {self.name}: {key} must be one integer above 0, got {value!r}")
        return value

    def _positive(self, key: str, value: Any) -> float | None:
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
            raise ArgumentError(f"path: {self.name}: {key} must be a number above 0, got {value!r}")
        return float(value)
