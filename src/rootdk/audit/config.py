"""What a config says of attention: heads, their width, the scale, the norms; each family has its own names for them.

A number that is missing or does not fit is an error with the name of its key. A model of several parts, or of layers
that differ, has a config for each.
"""

import math
from dataclasses import dataclass
from pathlib import Path

from rootdk.errors import ArgumentError
from rootdk.files import JsonError, read_json, shown_text

from .formats import Tensors
from .limits import LARGEST_CONFIG, LARGEST_HEAD, LARGEST_LENGTH, LARGEST_WIDTH, MOST_HEADS, MOST_LAYERS, Fields

_HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads")
# The same in configs of other libraries, in upper or lower case and at any depth.
_HEADS_ELSEWHERE = frozenset({*_HEADS, "heads", "nhead", "nheads", "attention_heads", "encoder_attention_heads"})
_KEY_HEADS = ("num_key_value_heads", "n_kv_heads", "num_kv_heads")
_WIDTH = ("hidden_size", "n_embd", "d_model", "dim")
_HEAD_WIDTH = ("head_dim", "d_kv")
_EPSILON = ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "layernorm_epsilon")

# Their code multiplies by 1: the scale is in the initialisation of W_q, or absent.
_UNSCALED = frozenset({"t5", "mt5", "umt5", "longt5", "switch_transformers", "gpt_neo"})
# The same, for models that norm queries and keys first.
_UNSCALED_AFTER_NORM = frozenset({"gemma4", "gemma4_text", "gemma3n", "gemma3n_text"})
# They divide by sqrt(d_k/2): a head sees two streams.
_HALVED = frozenset({"zamba", "zamba2"})
# Their scale is 1/sqrt(d_k) unless one of the keys in _scale says otherwise, and queries and keys are not rotated.
_UNROTATED = _UNSCALED | {
    *("bert", "roberta", "xlm-roberta", "electra", "distilbert", "vit", "deit", "dinov2", "opt", "bart", "whisper"),
    *("clip_text_model", "clip_vision_model", "siglip_text_model", "siglip_vision_model", "gpt2", "bloom", "mpt"),
    *("albert", "camembert", "mbart", "blenderbot", "pegasus", "marian", "wav2vec2", "hubert", "xglm"),
}
_ROTATED = frozenset(
    {"llama", "mistral", "mixtral", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "gpt_neox", "gptj", "phi", "phi3"}
    | {"gemma", "gemma2", "gemma3", "gemma3_text", "olmo", "hf_olmo", "olmo2", "falcon", "granite", "cohere", "cohere2"}
    | {"stablelm", "starcoder2", "gpt_oss", "modernbert", "internlm2", "smollm3", "olmo3", "glm4", "nomic_bert"}
    | {"t5gemma", "t5_gemma_module", "deepseek_v2", "deepseek_v3", "kimi_k2", "kimi_k25"}
    | {"qwen3_next", "qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text", *_UNSCALED_AFTER_NORM}
)
# Their QK-norm subtracts the mean; the others only divide by the root mean square.
_CENTRED = frozenset({"cohere", "cohere2", "phi", "stablelm", "mpt"})
# The norm before their projections has no gain, so none is stored.
GAIN_OF_ONE = frozenset({"olmo", "hf_olmo"})
# Their norms multiply by 1 plus the stored gain.
GAIN_ABOVE_ONE = frozenset(
    {"gemma", "gemma2", "gemma3", "gemma3_text", "t5gemma", "t5_gemma_module", "qwen3_next"}
    | {"qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text"}
)


@dataclass(frozen=True, slots=True)
class Scale:
    """The factor of <q, k>, and where it comes from."""

    value: float
    source: str
    assumed: bool = False


@dataclass(frozen=True, slots=True)
class Latent:
    """How a head of latent attention is made up: components without a position, with one, and those of its values."""

    plain: int
    rotated: int
    value: int


@dataclass(frozen=True, slots=True)
class Facts:
    """What the audit needs to know of one attention module."""

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
    latent: Latent | None = None


class Config:
    """config.json, or params.json of a model as first published."""

    def __init__(self, fields: Fields) -> None:
        self.fields = fields
        self.name = fields.name
        self.model_type = fields.text("model_type") or ""

    @classmethod
    def of_checkpoint(cls, path: Path, tensors: Tensors, heads: int | None = None) -> "Config":
        """From the file itself, or else from the config.json beside it; `heads` comes from the caller."""
        if tensors.config is None:
            config = cls.beside(path, needed=heads is None)
        else:
            config = cls(Fields(tensors.config, "metadata"))
        known = config.fields.first(_HEADS)
        if heads is None or known is None:
            count = heads or config._heads_elsewhere()
            return config if count is None else cls(config.fields.updated({_HEADS[0]: count}))
        stated = config.fields.whole(known, 1, MOST_HEADS)
        if stated != heads:
            raise ArgumentError(f"heads: must be {known} of {config.name}, {stated}, got {heads}")
        return config

    def _heads_elsewhere(self) -> int | None:
        """The number of heads, under another name than in transformers, if all such names give the same number."""
        if self.fields.first(_HEADS) is not None or self.model_type:
            return None
        counts = {
            value
            for _, key, value in self.fields.leaves()
            if key.lower() in _HEADS_ELSEWHERE and type(value) is int and 1 <= value <= MOST_HEADS
        }
        return counts.pop() if len(counts) == 1 else None

    @classmethod
    def beside(cls, path: Path, *, needed: bool = True) -> "Config":
        """The config beside the weights: config.json, params.json or that of the file's name; empty if not needed."""
        folder = path if path.is_dir() else path.parent
        own_names = () if path.is_dir() else (path.with_suffix(".json").name,)
        for name in ("config.json", "params.json", *own_names):
            try:
                values = read_json(folder / name, LARGEST_CONFIG)
            except FileNotFoundError:
                if (folder / name).is_symlink():
                    raise ArgumentError(f"path: {name} cannot be read: it is a link to a file that is absent") from None
                continue
            except OSError as error:
                raise ArgumentError(f"path: {name} cannot be read: {error.strerror or error}") from error
            except JsonError as error:
                raise ArgumentError(f"path: {name} must be JSON, got something else ({error})") from error
            if not isinstance(values, dict):
                raise ArgumentError(f"path: {name} must be a JSON object, got {type(values).__name__}")
            return cls(Fields(values, name))
        if not needed:
            return cls(Fields({}, "--heads"))
        raise ArgumentError(
            "path: how many heads it has is not in its weights: say it (--heads 8, or heads=8), or put its config.json "
            f"into {shown_text(folder)}, which has none"
        )

    def of(self, module: str) -> "Config":
        """The part that is about one module: models of several parts have a config for each."""
        names = module.split(".")
        sees = any(part.startswith("vis") for part in names)
        inner = self.fields.part("vision_config" if sees else "text_config")
        if not inner and self.model_type.startswith("t5gemma"):
            inner = self.fields.part("encoder" if "encoder" in names else "decoder")
        return Config(inner) if inner and self.fields.first(_HEADS) is None else self

    @property
    def model_types(self) -> tuple[str, ...]:
        """The model types of the config and of its parts."""
        inner = ("encoder", "decoder") if self.model_type.startswith("t5gemma") else ("text_config", "vision_config")
        return (self.model_type, *(self.fields.part(part).text("model_type") or "" for part in inner))

    def facts(self, module: str, index: int, outputs: tuple[int, int] | None = None) -> Facts:
        """Everything that one attention module needs, checked.

        outputs   how many rows the weights of queries and keys have, for a config that does not say how wide heads are
        """
        layer_fields = self._of_layer(index)
        if layer_fields is not self.fields:
            return Config(layer_fields).facts(module, index, outputs)
        fields = self.fields
        heads = self._heads(module)
        if outputs is not None and fields.first((*_HEAD_WIDTH, *_WIDTH)) is None and self._latent() is None:
            return self._by_outputs(heads, outputs).facts(module, index)
        d_k = self._head_width(heads)
        inner = fields.part("attn_config")
        return Facts(
            heads=heads,
            key_heads=self._key_heads(heads, inner),
            d_k=d_k,
            scale=self._scale(d_k, index, inner),
            rotated=fields.flag("rotated") is not False and self.model_type not in _UNROTATED,
            softcap=fields.number("attn_logit_softcapping"),
            clip=inner.number("clip_qkv") or fields.number("clip_qkv"),
            centred_norm=self.model_type in _CENTRED,
            gain_offset=float(self.model_type in GAIN_ABOVE_ONE and not fields.flag("stored_gains")),
            epsilon=fields.number(fields.first(_EPSILON), 1.0, zero=True) or 0.0,
            latent=self._latent(),
        )

    def _of_layer(self, index: int) -> Fields:
        """The fields with the values of one layer; the same object if the layer has none of its own."""
        fields = self.fields
        if self.name == "metadata":
            fields = fields.of_layer(index, (_HEADS[0], _KEY_HEADS[0]))
        inner = fields.part("per_layer_config").part(str(index))
        if "global_head_dim" in fields and fields.entry("layer_types", index) == "full_attention":
            narrow = "num_global_key_value_heads" if fields.flag("attention_k_eq_v") else _KEY_HEADS[0]
            width, count = fields.whole("global_head_dim", 1, LARGEST_HEAD), fields.whole(narrow, 1, MOST_HEADS)
            inner = Fields({"head_dim": width, _KEY_HEADS[0]: count}, self.name)
        if not inner and fields is self.fields:
            return fields
        return fields.updated(inner.values).updated(
            dict.fromkeys(("per_layer_config", "global_head_dim", "layer_types"))
        )

    def key_layer(self, index: int) -> int | None:
        """The layer whose keys this layer uses, or None: last layers may use those of an earlier one of their type."""
        shared = self.fields.whole("num_kv_shared_layers", 0, MOST_LAYERS)
        layers = self.fields.whole("num_hidden_layers", 1, MOST_LAYERS)
        if not shared or layers is None or index < layers - shared:
            return None
        layer_type = self.fields.entry("layer_types", index)
        earlier = range(layers - shared - 1, -1, -1)
        return next((layer for layer in earlier if self.fields.entry("layer_types", layer) == layer_type), None)

    def _latent(self) -> Latent | None:
        """The parts of a head where queries and keys pass through a latent of low rank."""
        keys = ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
        plain, rotated, value = (self.fields.whole(key, 1, LARGEST_HEAD) for key in keys)
        return None if plain is None or rotated is None else Latent(plain, rotated, value or plain)

    def _heads(self, module: str) -> int:
        side = next((side for side in ("encoder", "decoder") if side in module.split(".")), "")
        heads = self.fields.whole(self.fields.first((f"{side}_attention_heads", *_HEADS)), 1, MOST_HEADS)
        if heads is None:
            raise ArgumentError(
                f"path: {self.name} must have {_HEADS[0]} (or {', '.join(_HEADS[1:])}), it has none of them; "
                "or say how many heads there are: --heads 8, or heads=8"
            )
        return heads

    def _by_outputs(self, heads: int, outputs: tuple[int, int]) -> "Config":
        """The same with the head width and the number of key heads that follow from the shapes of the weights."""
        width = outputs[0] // heads
        if outputs[0] % heads or not 1 <= width <= LARGEST_HEAD:
            raise ArgumentError(
                f"heads: must divide the {outputs[0]} outputs of the query projection into heads of at most "
                f"{LARGEST_HEAD}, got {heads}"
            )
        derived = {"head_dim": width}
        if self.fields.first(_KEY_HEADS) is None and outputs[1] % width == 0 < outputs[1]:
            derived[_KEY_HEADS[0]] = outputs[1] // width
        return Config(self.fields.updated(derived))

    def _head_width(self, heads: int) -> int:
        latent = self._latent()
        if latent is not None:
            return latent.plain + latent.rotated
        head_width = self.fields.whole(self.fields.first(_HEAD_WIDTH), 1, LARGEST_HEAD)
        if head_width is not None:
            return head_width
        key = self.fields.first(_WIDTH)
        width = self.fields.whole(key, 1, LARGEST_WIDTH)
        if width is None:
            raise ArgumentError(f"path: {self.name} must have head_dim or {_WIDTH[0]} (or {', '.join(_WIDTH[1:])})")
        if width % heads:
            raise ArgumentError(f"path: {self.name}: {key} must be a multiple of the {heads} heads, got {width}")
        if width // heads > LARGEST_HEAD:
            raise ArgumentError(
                f"path: {self.name}: {key} must be at most {LARGEST_HEAD} for each of the {heads} heads, got {width}"
            )
        return width // heads

    def _key_heads(self, heads: int, inner: Fields) -> int:
        """How many heads the keys have; each belongs to a group of query heads."""
        fields, key = self.fields, self.fields.first(_KEY_HEADS)
        count = fields.whole(key, 1, MOST_HEADS)
        if self.model_type == "falcon" and not fields.flag("new_decoder_architecture"):
            # num_kv_heads is in those configs, and their code ignores it.
            key, count = "multi_query", 1 if fields.flag("multi_query") else heads
        if "kv_n_heads" in inner:
            key, count = "attn_config.kv_n_heads", inner.whole("kv_n_heads", 1, MOST_HEADS)
        if count is None:
            return heads
        if heads % count:
            raise ArgumentError(f"path: {self.name}: {key} must divide the {heads} query heads, got {count}")
        return count

    def _scale(self, d_k: int, index: int, inner: Fields) -> Scale:
        """The factor of <q, k> in layer number `index`."""
        fields, assumed = self.fields, False
        scalar, multiplier = fields.number("query_pre_attn_scalar"), fields.number("attention_multiplier")
        nested = inner.number("softmax_scale")
        if scalar is not None:
            value, source = scalar**-0.5, f"query_pre_attn_scalar {scalar:g}"
        elif multiplier is not None:
            value, source = multiplier, "its graph" if self.model_type == "onnx" else "attention_multiplier"
        elif nested is not None:
            value, source = nested, "softmax_scale"
        elif self.model_type in _UNSCALED | _UNSCALED_AFTER_NORM:
            value, source = 1.0, f"{self.model_type} has none"
        elif self.model_type in _HALVED:
            value, source = (d_k / 2) ** -0.5, "1/sqrt(d_k/2)"
        elif fields.flag("scale_attn_weights") is False:
            value, source = 1.0, "scale_attn_weights false"
        else:
            assumed = self.model_type not in _UNROTATED | _ROTATED
            value, source = d_k**-0.5, "1/sqrt(d_k), assumed" if assumed else "1/sqrt(d_k)"
        if fields.flag("scale_attn_by_inverse_layer_idx"):
            value, source = value / (index + 1), f"{source} / (layer + 1)"
        factor, kind = self._stretched()
        if factor != 1.0:
            value, source = value * factor, f"{source} x {kind}"
        return Scale(value, source, assumed)

    def _stretched(self) -> tuple[float, str]:
        """The factor of <q, k> from a stretched rotary embedding (YaRN, LongRoPE), and its name."""
        fields = self.fields
        rope = fields.part("rope_parameters") or fields.part("rope_scaling")
        kind = rope.text("rope_type") or rope.text("type")
        if kind not in ("yarn", "longrope"):
            return 1.0, ""
        attention_factor, factor = rope.number("attention_factor"), rope.number("factor")
        # With 1 position the logarithm to divide by is 0.
        key, most = "original_max_position_embeddings", LARGEST_LENGTH
        length = rope.whole(key, 2, most) or fields.whole(key, 2, most)
        longest = fields.whole("max_position_embeddings", 1, most)
        if factor is None and length is not None and longest is not None:
            factor = longest / length
        stretch = math.log(factor) if factor is not None and factor > 1.0 else 0.0
        all_dims = rope.number("mscale_all_dim", zero=True)
        if self._latent() is not None and all_dims:
            # Latent attention puts this factor into the scale; the factor left for the rotated part is 1 if both
            # settings are equal.
            growth = 0.1 * all_dims * stretch + 1.0
            return growth**2, f"{growth:.3g}^2 (mscale)"
        if attention_factor is not None:
            growth = attention_factor
        elif kind == "longrope":
            growth = math.sqrt(1.0 + stretch / math.log(length or math.e))
        else:
            mscale = rope.number("mscale", zero=True)
            growth = 0.1 * stretch * (mscale if mscale and all_dims else 1.0) + 1.0
            growth /= 0.1 * stretch * all_dims + 1.0 if mscale and all_dims else 1.0
        return growth**2, f"{growth:.3g}^2 (rope)"
