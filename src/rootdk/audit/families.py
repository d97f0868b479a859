"""The known families of models: the names of their tensors, and what each tensor is.

Names of split projections show what they are, in any model. A fused projection does not show the order of its rows, so
it is read only for model types whose order is known. Every layout keeps the d_k rows of one head together; a Layout
says where they start. Names that are not understood are listed.
"""

import re
from bisect import bisect_left
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from typing import Literal

from rootdk.errors import ArgumentError

from .limits import MOST_LAYERS

Layout = Literal["split", "gated", "blocks", "grouped", "latent"]
# Query and key projection under one module, in a file and in a torch module alike.
SPLIT = (
    *(("q_proj", "k_proj"), ("query", "key"), ("q", "k"), ("q_lin", "k_lin"), ("query_proj", "key_proj")),
    *(("to_q", "to_k"), ("wq", "wk"), ("Wq", "Wk"), ("w_q", "w_k"), ("q_linear", "k_linear"), ("attn_q", "attn_k")),
)
# Their norms, where there is QK-norm.
NORMS = (
    *(("q_norm", "k_norm"), ("q_layernorm", "k_layernorm"), ("query_layernorm", "key_layernorm")),
    *(("query_norm", "key_norm"), ("q_ln", "k_ln"), ("ln_q", "ln_k"), ("norm_q", "norm_k")),
    ("attn_q_norm", "attn_k_norm"),
)
# gated     split, with a gate as wide as the query after the query of every head
# latent    low-rank projections one after the other, with a norm between them, and keys that share a rotated part
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
    "attn_qkv": {"": "blocks"},  # GGUF keeps one order for all
}
_GATED = frozenset({"qwen3_next", "qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text"})
# Parts of an attention module that queries and keys do not pass through, or that do not change the spread of scores.
_OTHER = frozenset(
    [
        *("v_proj", "value", "v", "v_lin", "wv"),
        *("o_proj", "out_proj", "output", "o", "out", "out_lin", "wo", "Wo", "dense", "c_proj"),
        *("relative_attention_bias", "sinks", "rotary_emb", "bias", "masked_bias", "inner_attn_ln"),
        # Norms of the output of attention; an indexer, which selects keys and does not change their scores.
        *("LayerNorm", "indexer"),
        # In GGUF, and in OLMo as first published, one module holds the whole block.
        *("attn_out", "attn_norm", "attn_norm_2", "attn_v", "attn_output", "attn_output_norm", "attn_sinks"),
        *("attn_post_norm", "attn_sub_norm", "attn_rot_embd"),
    ]
)
# Norms whose output is projected to queries and keys. Most blocks begin with such a norm, and its name shows it; other
# names have this meaning only in their own family ({} is the name of the module). Where a block ends with its norm, the
# input comes from the norm of the block before, or from that of the embeddings. The keys of cross attention come from
# the encoder's last norm.
_NORM_BEFORE = (
    *("input_layernorm", "ln_1", "attn_norm_2", "attn_norm", "attention_norm", "layernorm_before", "layer_norm1"),
    *("norm_1", "ln_attn"),
)
_NORM_BEFORE_OF = {
    **dict.fromkeys(("t5", "mt5", "umt5"), "layer_norm"),
    **dict.fromkeys(("whisper", "opt"), "{}_layer_norm"),
    **dict.fromkeys(("t5gemma", "t5_gemma_module"), "pre_{}_layernorm"),
    "dinov2": "norm1",
    "albert": "full_layer_layer_norm",  # all layers but the first get the output of the same block
}
_NORM_AFTER = {
    **dict.fromkeys(("bert", "roberta", "xlm-roberta", "camembert", "electra"), "output.LayerNorm"),
    "distilbert": "output_layer_norm",
}
# The same in GGUF.
_NORM_AFTER_IN_BLOCK, _NORM_OF_EMBEDDINGS = "layer_output_norm", ("embeddings.LayerNorm", "token_embd_norm")
_CROSS = frozenset({"encoder_attn", "EncDecAttention", "cross_attn"})
_NORM_OF_ENCODER = ("encoder.final_layer_norm", "encoder.layer_norm", "encoder.norm", "encoder.ln_post")
_ATTENTION = re.compile(r"attn|attention|mixer|\bqkv|query|\bkey\b", re.IGNORECASE)
_NORM_OF_A_BLOCK = re.compile(r"layer_?norm|_norm\b|_ln\b|\bln_|\bnorm|output\.", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Side:
    """The tensors that the queries, or the keys, of one module pass through, by name; None where there is none.

    input_gain, input_shift   of the norm whose output is projected
    weight, bias              of the projection; a fused one is the same for queries and keys
    gain, shift               of QK-norm
    down, latent_gain         of the projection to a latent, and of the norm after it, that come before the weight
    """

    weight: str
    bias: str | None = None
    gain: str | None = None
    shift: str | None = None
    input_gain: str | None = None
    input_shift: str | None = None
    down: str | None = None
    latent_gain: str | None = None

    @property
    def tensors(self) -> list[str]:
        """All of them."""
        return [name for name in astuple(self) if name is not None]


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


KeyLayer = Callable[[str, int], int | None]


def find_projections(
    names: Collection[str], *model_types: str, key_layer: KeyLayer | None = None
) -> tuple[list[Projections], list[str]]:
    """Every attention module whose queries and keys are known, in the order of layers, and the names left over.

    Left over are the tensors that seem to belong to attention and are not understood. A model of several parts has
    several model types. `key_layer` gives the number of the layer whose keys a module takes, or None for its own.

    >>> names = ["h.0.attn.q_proj.weight", "h.0.attn.k_proj.weight", "h.0.attn.v_proj.weight"]
    >>> modules, unknown = find_projections(names)
    >>> [module.module for module in modules], unknown
    (['h.0.attn'], [])
    >>> find_projections([*names, "h.0.attn.temperature"])[1]
    ['h.0.attn.temperature', 'h.0.attn.k_proj.weight', 'h.0.attn.q_proj.weight']
    """
    ordered = sorted(names)
    sources = {} if key_layer is None else _sources(ordered, key_layer)
    known = set(names)
    for path, source in sources.items():
        lent = [*_inside(f"{source}.k_proj", ordered), *_inside(f"{source}.k_norm", ordered)]
        known |= {f"{path}{name.removeprefix(source)}" for name in lent}
    candidates = [module for name in ordered if (module := _candidate(name, known, model_types)) is not None]
    if len(candidates) > MOST_LAYERS:
        raise ArgumentError(f"path: must have at most {MOST_LAYERS} modules of attention, got {len(candidates)}")
    modules: list[Projections] = []
    unknown: set[str] = set()
    read: set[str] = set()
    for module in sorted(candidates, key=lambda module: _order(module.module)):
        used = set(module.tensors)
        inside = set(_inside(module.module, ordered)) if module.module else used
        strange = {name for name in inside - used if not _is_other(name.removeprefix(f"{module.module}."), module)}
        if strange:
            # A learned temperature or a norm of another kind would change what the numbers mean.
            unknown |= strange | {module.query.weight, module.key.weight}
        else:
            modules.append(module)
            read |= inside
    keys = {module.module: module.key for module in modules}
    modules = [replace(module, key=keys.get(sources.get(module.module, ""), module.key)) for module in modules]
    for name in frozenset(names) - unknown - read:
        seems = _ATTENTION.search(name) and not _NORM_OF_A_BLOCK.search(name) and "linear_attn" not in name
        if seems and not _is_other(name.rpartition(".")[0].rpartition(".")[2] + "."):
            unknown.add(name)
    return modules, sorted(unknown, key=lambda name: (_order(name.rpartition(".")[0]), name))


def _sources(ordered: list[str], key_layer: KeyLayer) -> dict[str, str]:
    """{module: the module whose keys it uses}, for modules without keys of their own."""
    sources = {}
    for name in ordered:
        module = name.removesuffix(".q_proj.weight")
        parts = module.split(".")
        place = next((place for place, part in enumerate(parts) if _number(part) is not None), None)
        layer = None if module == name or place is None else key_layer(module, int(parts[place]))
        if layer is not None and place is not None:
            sources[module] = ".".join([*parts[:place], str(layer), *parts[place + 1 :]])
    return sources


def _inside(module: str, ordered: list[str]) -> list[str]:
    """The names that begin with the module and a dot; sorted, they stand together: '/' follows '.' in ASCII."""
    return ordered[bisect_left(ordered, f"{module}.") : bisect_left(ordered, f"{module}/")]


def _candidate(name: str, known: Collection[str], model_types: Sequence[str]) -> Projections | None:
    """The module whose query projection has this name."""
    place, _, last = name.rpartition(".")
    if last == "in_proj_weight":  # nn.MultiheadAttention
        bias = f"{place}.in_proj_bias".lstrip(".")
        sides = (
            Side(name, _known(bias, known), None, None, *_gain_and_shift(before, known))
            for before in _input_norms(place, known, model_types)
        )
        return Projections(place, "blocks", *sides)
    module, _, projection = place.rpartition(".")
    if last != "weight" or "linear_attn" in module:
        return None
    orders = _FUSED.get(projection, {})
    layout = next((orders[kind] for kind in (*model_types, "") if kind in orders), None)
    if layout is not None:
        return _module(module, layout, projection, projection, known, model_types)
    if projection == "kv_b_proj":
        return _latent(module, known, model_types)
    for query, key in SPLIT:
        if projection == query and f"{module}.{key}.weight" in known:
            gated = projection == "q_proj" and not _GATED.isdisjoint(model_types)
            return _module(module, "gated" if gated else "split", query, key, known, model_types)
    return None


def row_starts(layout: Layout, heads: int, key_heads: int, d: int) -> tuple[Sequence[int], Sequence[int]]:
    """The first row of every query head and of every key head in the projection that holds it.

    >>> row_starts("grouped", 4, 2, 1)
    ([0, 1, 4, 5], [2, 6])
    """
    group = max(heads // key_heads, 1)
    if layout == "grouped":
        query = [(head + 2 * (head // group)) * d for head in range(heads)]
        return query, [((group + 2) * head + group) * d for head in range(key_heads)]
    step, first_key = 2 * d if layout == "gated" else d, heads * d if layout == "blocks" else 0
    return range(0, heads * step, step), range(first_key, first_key + key_heads * d, d)


def _latent(module: str, known: Collection[str], model_types: Sequence[str]) -> Projections | None:
    """Multi-head latent attention, as DeepSeek-V2 names it; queries may come directly from the input."""

    def tensor(part: str) -> str | None:
        return _known(f"{module}.{part}.weight", known)

    gain, shift = _gain_and_shift(_input_norms(module, known, model_types)[0], known)
    before = {"input_gain": gain, "input_shift": shift}
    down, latent_gain = tensor("kv_a_proj_with_mqa"), tensor("kv_a_layernorm")
    key = Side(f"{module}.kv_b_proj.weight", **before, down=down, latent_gain=latent_gain)
    up, direct = tensor("q_b_proj"), tensor("q_proj")
    query = None if direct is None else Side(direct, **before)
    if up is not None and tensor("q_a_proj") and tensor("q_a_layernorm"):
        query = Side(up, **before, down=tensor("q_a_proj"), latent_gain=tensor("q_a_layernorm"))
    if query is None or down is None or latent_gain is None:
        return None
    return Projections(module, "latent", query, key)


def _known(name: str, known: Collection[str]) -> str | None:
    return name if name in known else None


def _module(
    module: str, layout: Layout, query: str, key: str, known: Collection[str], model_types: Sequence[str]
) -> Projections:
    norms = next(
        ([f"{module}.{norm}" for norm in pair] for pair in NORMS if all(f"{module}.{p}.weight" in known for p in pair)),
        ["", ""],
    )
    inputs = _input_norms(module, known, model_types)
    query_side, key_side = (
        Side(
            f"{module}.{projection}.weight",
            _known(f"{module}.{projection}.bias", known),
            _known(f"{norm}.weight", known),
            _known(f"{norm}.bias", known),
            *(_gain_and_shift(before, known)),
        )
        for projection, norm, before in zip((query, key), norms, inputs, strict=True)
    )
    return Projections(module, layout, query_side, key_side)


def _gain_and_shift(norm: str | None, known: Collection[str]) -> tuple[str | None, str | None]:
    """The tensors of the norm at a path; old checkpoints call them gamma and beta."""
    for gain, shift in (("weight", "bias"), ("gamma", "beta")):
        if f"{norm}.{gain}" in known:
            return f"{norm}.{gain}", _known(f"{norm}.{shift}", known)
    return None, None


def _input_norms(module: str, known: Collection[str], model_types: Sequence[str]) -> tuple[str | None, str | None]:
    """Paths of the norms whose output becomes queries and keys; None where that is not known."""
    parts = module.split(".")
    if f"{module}.input_layernorm.weight" in known:  # as a graph of ONNX was traced
        return f"{module}.input_layernorm", f"{module}.input_layernorm"
    block = next((place for place, part in enumerate(parts, start=1) if _number(part) is not None), None)
    if block is None:
        return None, None

    def nearest(names: Sequence[str], inner: int, outer: int) -> str | None:
        """The innermost norm with one of these names in the modules around."""
        paths = (".".join([*parts[:end], name]) for end in range(inner, outer - 1, -1) for name in names)
        return next((path for path in paths if _gain_and_shift(path, known)[0] is not None), None)

    after = next((_NORM_AFTER[kind] for kind in model_types if kind in _NORM_AFTER), None)
    if after is None:
        names_of_model = [_NORM_BEFORE_OF[kind].format(parts[-1]) for kind in model_types if kind in _NORM_BEFORE_OF]
        # Whisper as first published has attn_ln beside attn, and cross_attn_ln beside cross_attn.
        norm = nearest([*names_of_model, *_NORM_BEFORE, f"{parts[-1]}_ln"], len(parts), block)
        if norm is None and "modernbert" in model_types:  # its first block takes the embeddings as they are
            norm = nearest(["embeddings.norm"], block - 1, 0)
        return norm, nearest(_NORM_OF_ENCODER, block - 1, 0) if parts[-1] in _CROSS else norm
    if int(parts[block - 1]) > 0:
        after = _NORM_AFTER_IN_BLOCK if block == len(parts) else after
        norm = ".".join([*parts[: block - 1], str(int(parts[block - 1]) - 1), after])
    else:
        norm = nearest(_NORM_OF_EMBEDDINGS, block - 1, 0)
        if norm is not None and norm.replace("embeddings.LayerNorm", "embeddings_project.weight") in known:
            norm = None  # its output is projected to another width first
    return norm, norm


def _is_other(rest: str, module: Projections | None = None) -> bool:
    """Whether queries and keys bypass it. If the module is a whole block, only names with "att" are attention."""
    first = rest.partition(".")[0]
    block = module is not None and _number(module.module.rpartition(".")[2]) is not None
    return first in _OTHER or (block and not first.startswith("att"))


def _order(module: str) -> list[tuple[int, int, str]]:
    """A sort key that puts layer 10 after layer 9."""
    numbers = [(_number(part), part) for part in module.split(".")]
    return [(1, 0, part) if number is None else (0, number, "") for number, part in numbers]


def _number(part: str) -> int | None:
    """The layer number in a part of a path, else None; non-ASCII digits and ten digits or more count as text."""
    return int(part) if part.isascii() and part.isdecimal() and len(part) < 10 else None
