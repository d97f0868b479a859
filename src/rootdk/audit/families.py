"""What is known of the families of models: the fields of their config.json, and the names of their tensors.

Families name the same thing differently. A number that is missing or does not fit is an error with the name of its key.

Split projections say by their names what they are, in any model. A fused one does not say in which order its rows come,
so it is read only where the model type is known to have that order. Every layout leaves the d_k rows of one head
together; a Layout says where they start. Names that are not understood are listed.
"""

import math
import re
from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rootdk.errors import ArgumentError
from rootdk.untrusted import JsonError, read_json, shown_text

from .limits import LARGEST_CONFIG, LARGEST_HEAD, LARGEST_LENGTH, LARGEST_WIDTH, MOST_HEADS, MOST_LAYERS, Fields

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


Layout = Literal["split", "blocks", "grouped"]
# Query and key projection under one module, in a file and in a torch module alike.
SPLIT = (
    *(("q_proj", "k_proj"), ("query", "key"), ("q", "k"), ("q_lin", "k_lin"), ("query_proj", "key_proj")),
    *(("to_q", "to_k"), ("wq", "wk"), ("Wq", "Wk"), ("w_q", "w_k"), ("q_linear", "k_linear")),
)
# Their norms, where there is QK-norm.
NORMS = (
    *(("q_norm", "k_norm"), ("q_layernorm", "k_layernorm"), ("query_layernorm", "key_layernorm")),
    *(("query_norm", "key_norm"), ("q_ln", "k_ln"), ("ln_q", "ln_k"), ("norm_q", "norm_k")),
)
# blocks    all queries, then all keys, then all values
# grouped   the queries that share a key head, that key, its value, then the next group; with a key per query head this
#           is query, key and value of head 0, then of head 1, ...
_FUSED: Mapping[str, Mapping[str, Layout]] = {
    "c_attn": {"gpt2": "blocks"},
    "query_key_value": {"gpt_neox": "grouped", "bloom": "grouped", "falcon": "grouped"},
    "qkv_proj": {"phi3": "blocks"},
    "Wqkv": {"mpt": "blocks", "modernbert": "blocks"},
    "att_proj": {"olmo": "blocks", "hf_olmo": "blocks"},
    "wqkv": {"internlm2": "grouped"},
}
# Parts of an attention module that queries and keys do not pass through, or that leave the scores' spread alone.
_OTHER = frozenset(
    [
        *("v_proj", "value", "v", "v_lin", "wv"),
        *("o_proj", "out_proj", "output", "o", "out_lin", "wo", "Wo", "dense", "c_proj"),
        *("relative_attention_bias", "sinks", "rotary_emb", "bias", "masked_bias", "inner_attn_ln"),
        # OLMo as first published has its whole block in one module.
        *("attn_out", "attn_norm", "ff_norm", "ff_proj", "ff_out"),
    ]
)
# Norms whose output is projected to queries and keys. Most blocks begin with one, by a name that says so; other names
# mean that in their own family alone; and where a block ends with its norm, the input is that of the block before, or
# of the embeddings. The keys of cross attention come from the encoder's last norm.
_NORM_BEFORE = (
    *("input_layernorm", "ln_1", "attn_norm", "attention_norm", "layernorm_before", "layer_norm1", "norm_1", "ln_attn"),
)
_NORM_BEFORE_OF = {
    **dict.fromkeys(("t5", "mt5", "umt5"), "layer_norm"),
    **dict.fromkeys(("whisper", "opt"), "self_attn_layer_norm"),
    "dinov2": "norm1",
    "albert": "full_layer_layer_norm",  # all layers but the first get what the same block made before
}
_NORM_AFTER = {
    **dict.fromkeys(("bert", "roberta", "xlm-roberta", "camembert", "electra"), "output.LayerNorm"),
    "distilbert": "output_layer_norm",
}
_CROSS = frozenset({"encoder_attn", "EncDecAttention"})
_NORM_OF_ENCODER = ("encoder.final_layer_norm", "encoder.layer_norm")
_ATTENTION = re.compile(r"attn|attention|mixer|\bqkv|query|\bkey\b", re.IGNORECASE)
_NORM_OF_A_BLOCK = re.compile(r"layer_?norm|_norm\b|\bln_|\bnorm|output\.", re.IGNORECASE)


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

    def __init__(self, fields: Fields) -> None:
        self.fields = fields
        self.name = fields.name
        self.model_type = fields.text("model_type") or ""

    @classmethod
    def beside(cls, path: Path) -> "Config":
        """The one of the folder that the path is or lies in."""
        folder = path if path.is_dir() else path.parent
        for name in ("config.json", "params.json"):
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
        raise ArgumentError(
            "path: needs a config.json beside the weights (heads and scale are not in them), "
            f"{shown_text(folder)} has none"
        )

    def of(self, module: str) -> "Config":
        """The part that is about one module: models of several parts have a config for each."""
        sees = any(part.startswith("vis") for part in module.split("."))
        inner = self.fields.part("vision_config" if sees else "text_config")
        return Config(inner) if inner is not None and self.fields.first(_HEADS) is None else self

    @property
    def model_types(self) -> tuple[str, ...]:
        """Its own and those of its parts."""
        parts = [self.fields.part(part) for part in ("text_config", "vision_config")]
        return (self.model_type, *(part.text("model_type") or "" for part in parts if part is not None))

    def facts(self, module: str, index: int) -> Facts:
        """Everything that one attention module needs, checked."""
        fields = self.fields
        heads = self._heads(module)
        d_k = self._head_width(heads)
        inner = fields.part("attn_config") or Fields({}, "")
        return Facts(
            heads=heads,
            key_heads=self._key_heads(heads, inner),
            d_k=d_k,
            scale=self._scale(d_k, index, inner),
            rotated=self.model_type not in _UNROTATED,
            softcap=fields.number("attn_logit_softcapping"),
            clip=inner.number("clip_qkv") or fields.number("clip_qkv"),
            centred_norm=self.model_type in _CENTRED,
            gain_offset=float(self.model_type in _GAIN_ABOVE_ONE),
            epsilon=self._epsilon(),
        )

    def _heads(self, module: str) -> int:
        side = next((side for side in ("encoder", "decoder") if side in module.split(".")), "")
        key = self.fields.first((f"{side}_attention_heads", *_HEADS))
        heads = None if key is None else self.fields.whole(key, 1, MOST_HEADS)
        if heads is None:
            raise ArgumentError(
                f"path: {self.name} must have {_HEADS[0]} (or {', '.join(_HEADS[1:])}), it has none of them"
            )
        return heads

    def _head_width(self, heads: int) -> int:
        key = self.fields.first(_HEAD_WIDTH)
        head_width = None if key is None else self.fields.whole(key, 1, LARGEST_HEAD)
        if head_width is not None:
            return head_width
        key = self.fields.first(_WIDTH)
        width = None if key is None else self.fields.whole(key, 1, LARGEST_WIDTH)
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
        count = None if key is None else fields.whole(key, 1, MOST_HEADS)
        if self.model_type == "falcon" and not fields.flag("new_decoder_architecture"):
            # num_kv_heads is written there and not obeyed.
            key, count = "multi_query", 1 if fields.flag("multi_query") else heads
        if "kv_n_heads" in inner:
            key, count = "attn_config.kv_n_heads", inner.whole("kv_n_heads", 1, MOST_HEADS)
        if count is None:
            return heads
        if heads % count:
            raise ArgumentError(f"path: {self.name}: {key} must divide the {heads} query heads, got {count}")
        return count

    def _scale(self, d_k: int, index: int, inner: Fields) -> Scale:
        """What <q, k> is multiplied by in layer number `index`."""
        fields, root = self.fields, Scale(d_k**-0.5, "1/sqrt(d_k)")
        scalar, multiplier = fields.number("query_pre_attn_scalar"), fields.number("attention_multiplier")
        nested = inner.number("softmax_scale")
        if scalar is not None:
            scale = Scale(scalar**-0.5, f"query_pre_attn_scalar {scalar:g}")
        elif multiplier is not None:
            scale = Scale(multiplier, "attention_multiplier")
        elif nested is not None:
            scale = Scale(nested, "softmax_scale")
        elif self.model_type in _UNSCALED:
            scale = Scale(1.0, f"{self.model_type} has none")
        elif fields.flag("scale_attn_weights") is False:
            scale = Scale(1.0, "scale_attn_weights false")
        else:
            known = self.model_type in _UNROTATED | _ROTATED
            scale = root if known else Scale(root.value, "1/sqrt(d_k), assumed", assumed=True)
        if fields.flag("scale_attn_by_inverse_layer_idx"):
            scale = Scale(scale.value / (index + 1), f"{scale.source} / (layer + 1)", scale.assumed)
        factor = self._stretched()
        return (
            scale
            if factor == 1.0
            else Scale(scale.value * factor**2, f"{scale.source} x {factor:.3g}^2 (rope)", scale.assumed)
        )

    def _stretched(self) -> float:
        """What a stretched rotary embedding multiplies both q and k with (YaRN, LongRoPE)."""
        fields = self.fields
        rope = fields.part("rope_parameters") or fields.part("rope_scaling")
        if rope is None:
            return 1.0
        kind = rope.text("rope_type") or rope.text("type")
        if kind not in ("yarn", "longrope"):
            return 1.0
        attention_factor, factor = rope.number("attention_factor"), rope.number("factor")
        if attention_factor is not None:
            return attention_factor
        # Of one position there is no logarithm to divide by.
        key, most = "original_max_position_embeddings", LARGEST_LENGTH
        length = rope.whole(key, 2, most) or fields.whole(key, 2, most)
        longest = fields.whole("max_position_embeddings", 1, most)
        if factor is None and length is not None and longest is not None:
            factor = longest / length
        if factor is None or factor <= 1.0:
            return 1.0
        if kind == "yarn":
            return 0.1 * math.log(factor) + 1.0
        return math.sqrt(1.0 + math.log(factor) / math.log(length or math.e))

    def _epsilon(self) -> float:
        key = self.fields.first(_EPSILON)
        return (None if key is None else self.fields.number(key, 1.0, zero=True)) or 0.0


@dataclass(frozen=True, slots=True)
class Side:
    """The tensors that the queries, or the keys, of one module pass through, by name; None where there is none.

    input_gain, input_shift   of the norm whose output is projected
    weight, bias              of the projection; a fused one is the same for queries and keys
    gain, shift               of QK-norm
    """

    weight: str
    bias: str | None = None
    gain: str | None = None
    shift: str | None = None
    input_gain: str | None = None
    input_shift: str | None = None

    @property
    def tensors(self) -> list[str]:
        """All of them."""
        names = (self.weight, self.bias, self.gain, self.shift, self.input_gain, self.input_shift)
        return [name for name in names if name is not None]


@dataclass(frozen=True, slots=True)
class Projections:
    """One attention module: its path, the order of the rows in its projections, and its tensors."""

    module: str
    layout: Layout
    query: Side
    key: Side

    @property
    def index(self) -> int:
        """The number of its layer: the first number in its path, 0 where there is none."""
        return next((number for part in self.module.split(".") if (number := _number(part)) is not None), 0)

    @property
    def tensors(self) -> tuple[str, ...]:
        """All that queries and keys pass through."""
        return tuple(dict.fromkeys([*self.query.tensors, *self.key.tensors]))


def find_projections(names: Collection[str], *model_types: str) -> tuple[list[Projections], list[str]]:
    """Every attention module whose queries and keys are known, in the order of layers, and the names left over.

    Left over are the tensors that seem to belong to attention and are not understood. A model of several parts has
    several model types.

    >>> names = ["h.0.attn.q_proj.weight", "h.0.attn.k_proj.weight", "h.0.attn.v_proj.weight"]
    >>> modules, unknown = find_projections(names)
    >>> [module.module for module in modules], unknown
    (['h.0.attn'], [])
    >>> find_projections([*names, "h.0.attn.temperature"])[1]
    ['h.0.attn.temperature', 'h.0.attn.k_proj.weight', 'h.0.attn.q_proj.weight']
    """
    known, ordered = frozenset(names), sorted(names)
    candidates = [module for name in ordered if (module := _candidate(name, known, model_types)) is not None]
    if len(candidates) > MOST_LAYERS:
        raise ArgumentError(f"path: must have at most {MOST_LAYERS} modules of attention, got {len(candidates)}")
    modules: list[Projections] = []
    unknown: set[str] = set()
    read: set[str] = set()
    for module in sorted(candidates, key=lambda module: _order(module.module)):
        used = set(module.tensors)
        inside = set(_inside(module.module, ordered)) if module.module else used
        strange = {name for name in inside - used if not _is_other(name.removeprefix(f"{module.module}."))}
        if strange:
            # A learned temperature or a norm of another kind would change what the numbers mean.
            unknown |= strange | {module.query.weight, module.key.weight}
        else:
            modules.append(module)
            read |= inside
    for name in known - unknown - read:
        seems = _ATTENTION.search(name) and not _NORM_OF_A_BLOCK.search(name)
        if seems and not _is_other(name.rpartition(".")[0].rpartition(".")[2] + "."):
            unknown.add(name)
    return modules, sorted(unknown, key=lambda name: (_order(name.rpartition(".")[0]), name))


def _inside(module: str, ordered: Sequence[str]) -> Sequence[str]:
    """The names that begin with the module and a dot: they stand together, before those with a slash, dot's next."""
    return ordered[bisect_left(ordered, f"{module}.") : bisect_left(ordered, f"{module}/")]


def _candidate(name: str, known: frozenset[str], model_types: Sequence[str]) -> Projections | None:
    """The module that this name is the query projection of."""
    place, _, last = name.rpartition(".")
    if last == "in_proj_weight":  # nn.MultiheadAttention
        bias = f"{place}.in_proj_bias".lstrip(".")
        side = Side(name, bias if bias in known else None)
        return Projections(place, "blocks", side, side)
    module, _, projection = place.rpartition(".")
    if last != "weight" or "linear_attn" in module:
        return None
    orders = _FUSED.get(projection, {})
    layout = next((orders[kind] for kind in model_types if kind in orders), None)
    if layout is not None:
        return _module(module, layout, projection, projection, known, model_types)
    for query, key in SPLIT:
        if projection == query and f"{module}.{key}.weight" in known:
            return _module(module, "split", query, key, known, model_types)
    return None


def _module(
    module: str, layout: Layout, query: str, key: str, known: frozenset[str], model_types: Sequence[str]
) -> Projections:
    def present(name: str) -> str | None:
        return name if name in known else None

    norms = next(
        ([f"{module}.{norm}" for norm in pair] for pair in NORMS if all(f"{module}.{p}.weight" in known for p in pair)),
        ["", ""],
    )
    inputs = _input_norms(module, known, model_types)
    query_side, key_side = (
        Side(
            f"{module}.{projection}.weight",
            present(f"{module}.{projection}.bias"),
            present(f"{norm}.weight"),
            present(f"{norm}.bias"),
            *(_gain_and_shift(before, known)),
        )
        for projection, norm, before in zip((query, key), norms, inputs, strict=True)
    )
    return Projections(module, layout, query_side, key_side)


def _gain_and_shift(norm: str | None, known: frozenset[str]) -> tuple[str | None, str | None]:
    """The tensors of the norm at a path; checkpoints of the first years call them gamma and beta."""
    for gain, shift in (("weight", "bias"), ("gamma", "beta")):
        if f"{norm}.{gain}" in known:
            return f"{norm}.{gain}", f"{norm}.{shift}" if f"{norm}.{shift}" in known else None
    return None, None


def _input_norms(module: str, known: frozenset[str], model_types: Sequence[str]) -> tuple[str | None, str | None]:
    """Paths of the norms whose output becomes queries and keys; None where that is not known."""
    parts = module.split(".")
    block = next((place for place, part in enumerate(parts, start=1) if _number(part) is not None), None)
    if block is None:
        return None, None

    def nearest(names: Sequence[str], inner: int, outer: int) -> str | None:
        """The innermost norm of one of these names that a module around holds."""
        paths = (".".join([*parts[:end], name]) for end in range(inner, outer - 1, -1) for name in names)
        return next((path for path in paths if _gain_and_shift(path, known)[0] is not None), None)

    after = next((_NORM_AFTER[kind] for kind in model_types if kind in _NORM_AFTER), None)
    if after is None:
        own = [_NORM_BEFORE_OF[kind] for kind in model_types if kind in _NORM_BEFORE_OF]
        norm = nearest([*own, *_NORM_BEFORE], len(parts), block)
        if norm is None and "modernbert" in model_types:  # its first block takes the embeddings as they are
            norm = nearest(["embeddings.norm"], block - 1, 0)
        return norm, nearest(_NORM_OF_ENCODER, block - 1, 0) if parts[-1] in _CROSS else norm
    if int(parts[block - 1]) > 0:
        norm = ".".join([*parts[: block - 1], str(int(parts[block - 1]) - 1), after])
    else:
        norm = nearest(["embeddings.LayerNorm"], block - 1, 0)
        if norm is not None and norm.replace("embeddings.LayerNorm", "embeddings_project.weight") in known:
            norm = None  # its output is projected to another width first
    return norm, norm


def _is_other(rest: str) -> bool:
    return rest.partition(".")[0] in _OTHER


def _order(module: str) -> list[tuple[int, int, str]]:
    """Layer 10 after layer 9."""
    numbers = [(_number(part), part) for part in module.split(".")]
    return [(1, 0, part) if number is None else (0, number, "") for number, part in numbers]


def _number(part: str) -> int | None:
    """The number of a layer. Other digits than ours, and more of them than any model has layers, are a word."""
    return int(part) if part.isascii() and part.isdecimal() and len(part) < 10 else None
